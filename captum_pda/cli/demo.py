"""``captum-pda demo``: two photos, what speaks for their classes, and Captum's maps next to it."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from captum.attr import LayerAttribution, LayerGradCam, Saliency, visualization
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

from captum_pda.basics.device_sync import in_double
from captum_pda.cli.classifier import Classifier
from captum_pda.cli.folders import PICTURES, check_free, write_figure
from captum_pda.cli.models import load_classifier
from captum_pda.cli.options import add_overwrite
from captum_pda.cli.results import top_classes, window_lines
from captum_pda.cli.usage_errors import UsageError, optional_module
from captum_pda.evidence.strongest import strongest_windows
from captum_pda.evidence.window_evidence import WindowEvidence
from captum_pda.methods.pda import PDA
from captum_pda.visualization import visualize_evidence
from captum_pda.visualization.arrays import picture
from captum_pda.visualization.drawing import draw_colorbar
from captum_pda.visualization.window_frames import draw_windows

#: Photos of scikit-image, by the names of its functions.
PHOTOS = ("chelsea", "coffee")
HOW_TO_READ = (
    "the regions that say most:\nred for, blue against",
    "red speaks for the class,\nblue against it; a bit doubles the odds",
    "red: rather the first,\nblue: rather the second",
    "one soft place, without\nsign or unit",
    "pixels that sway the score,\nwithout sign or unit",
)


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """The options of this command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="explain two photos, and draw one picture",
        description="Explain two photos that come with scikit-image by a network whose weights "
        "come by pip (EfficientNet-lite0): what speaks for the class, and why this class rather "
        "than the next, beside GradCAM and Saliency. Takes about a minute, and needs no network.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo.png"),
        metavar="FILE",
        help="where to write the picture (default: %(default)s)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="one photo, and few windows: a coarse map in seconds"
    )
    add_overwrite(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Explain the photos, print what was found, and draw it."""
    if options.output.suffix.lower() not in PICTURES:
        raise UsageError(f"--output {options.output} must end in .png or .jpg")
    check_free([options.output], [], options.overwrite)
    photos = optional_module("skimage.data")
    classifier = load_classifier()
    pda = PDA(classifier.model)
    sizes, strides = ((64, 96), 64) if options.quick else (None, None)
    explained = []
    for name in PHOTOS[:1] if options.quick else PHOTOS:
        image = classifier.preprocessing(Image.fromarray(getattr(photos, name)()))
        evidence = pda.evidence(
            image, scales=sizes, strides=strides, show_progress=not options.quiet
        )
        explained.append(evidence)
        if not options.quiet:
            tell(evidence, classifier)
    write_figure(options.output, draw(classifier, explained), options.overwrite)
    if not options.quiet:
        print(f"Written: {options.output}")
    return 0


def top_two(evidence: WindowEvidence) -> list[int]:
    """The two most likely classes."""
    return cast(list[int], evidence.probabilities[0].topk(2).indices.tolist())


def tell(evidence: WindowEvidence, classifier: Classifier) -> None:
    """What the network sees, and what speaks for it and against it."""
    first, _ = top_two(evidence)
    seen = top_classes(evidence.probabilities[0], classifier.labels, evidence.measure)
    print(f"{classifier.name} sees: {seen}")
    space = tuple(evidence.inputs[0].shape[2:])
    kinds = strongest_windows(evidence, first)
    for verb, windows in zip(("for", "against"), kinds, strict=True):
        print(f"What speaks {verb} {classifier.labels[first]}:")
        for line in window_lines(windows, space, evidence.measure):
            print(line)


def draw(classifier: Classifier, photos: list[WindowEvidence]) -> Figure:
    """A row for each photo: its strongest regions, our maps, and Captum's."""
    figure = Figure(figsize=(15, 4.7 * len(photos)), layout="compressed")
    rows = figure.subplots(len(photos), 5, squeeze=False)
    for panels, evidence in zip(rows, photos, strict=True):
        _draw_row(figure, list(panels), classifier, evidence)
    return figure


def _draw_row(
    figure: Figure, panels: list[Axes], classifier: Classifier, evidence: WindowEvidence
) -> None:
    first, second = top_two(evidence)
    names = [classifier.labels[number].split(",")[0] for number in (first, second)]
    share = float(evidence.probabilities[0, first])
    colours = classifier.preprocessing.mean, classifier.preprocessing.std
    image = evidence.inputs[0]
    draw_windows(panels[0], picture(image, *colours), *strongest_windows(evidence, first))
    panels[0].set_title(f'why "{names[0]}" ({share:.0%})?')
    maps = {
        f"PDA: {names[0]}": evidence.attribution(first),
        f"{names[0]}, not {names[1]}": evidence.contrast(first, second),
    }
    for axes, (title, bits) in zip(panels[1:3], maps.items(), strict=True):
        visualize_evidence(
            cast(Tensor, bits),
            image,
            None,
            None,
            *colours,
            title=title,
            plt_fig_axis=(figure, axes),
        )
    _draw_captums(figure, panels[3:], classifier, image, first)
    for axes, words in zip(panels, HOW_TO_READ, strict=True):
        axes.set_xlabel(words, fontsize=9)


def _draw_captums(
    figure: Figure, panels: list[Axes], classifier: Classifier, image: Tensor, target: int
) -> None:
    """Captum's own methods, by Captum's own visualizer, which brings each map to at most 1."""
    photo = picture(image, classifier.preprocessing.mean, classifier.preprocessing.std)
    signs = {"GradCAM": ("positive", "Reds"), "Saliency": ("absolute_value", "Purples")}
    maps = captum_maps(classifier.model, image, target)
    for axes, (name, (sign, colours)) in zip(panels, signs.items(), strict=True):
        visualization.visualize_image_attr(
            maps[name][..., None],
            photo,
            method="blended_heat_map",
            sign=sign,
            cmap=colours,
            title=f"{name} (Captum)",
            plt_fig_axis=(figure, axes),
            use_pyplot=False,
        )
        draw_colorbar(figure, [axes], axes.images[-1:], "normalised, no unit")


def captum_maps(model: nn.Module, image: Tensor, target: int) -> dict[str, npt.NDArray[np.float64]]:
    """The maps of Saliency and GradCAM, (H, W) each, by name."""
    with warnings.catch_warnings():
        # Captum warns that it sets hooks and gradients for a while.
        warnings.simplefilter("ignore")
        saliency = Saliency(model).attribute(image.clone(), target=target)
        grad_cam = LayerGradCam(model, last_convolution(model)).attribute(image, target=target)
    upsampled = LayerAttribution.interpolate(grad_cam, tuple(image.shape[2:]), "bilinear")
    maps = {"Saliency": saliency, "GradCAM": upsampled}
    return {name: in_double(one[0].sum(dim=0).detach()).cpu().numpy() for name, one in maps.items()}


def last_convolution(model: nn.Module) -> nn.Module:
    """The last convolution, where GradCAM looks."""
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)][-1]
