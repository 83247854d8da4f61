"""``captum-pda demo``: two photos, what speaks for their classes, and Captum's maps next to it."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from captum.attr import LayerAttribution, LayerGradCam, Occlusion, visualization
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

from captum_pda.cli.classifier import Classifier
from captum_pda.cli.explainer import LISTED_REGIONS, Answer, Explanation
from captum_pda.cli.folders import PICTURES, check_free, write_figure
from captum_pda.cli.models import load_classifier
from captum_pda.cli.options import add_overwrite
from captum_pda.cli.results import answer_lines, top_classes
from captum_pda.cli.usage_errors import UsageError, optional_module
from captum_pda.device_sync import in_double
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.evidence.strongest import strongest_regions
from captum_pda.methods.pda import PDA
from captum_pda.visualization.drawing import (
    draw_map,
    draw_picture,
    evidence_map,
    evidence_scale,
    finish,
    picture,
)
from captum_pda.visualization.regions import draw_outlines

#: Photos of scikit-image, by the names of its functions.
PHOTOS = ("coffee", "camera")
#: The window and stride of Captum's Occlusion, as its users would choose them for 224 pixels.
OCCLUSION_WINDOW, OCCLUSION_STRIDE = 64, 32


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """The options of this command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="explain two photos, and draw one picture",
        description="Explain two photos that come with scikit-image by a network whose weights "
        "come by pip (EfficientNet-lite0): what speaks for the class and what against it, beside "
        "Captum's Occlusion and GradCAM, with the test of each map on its own photo. Takes about "
        "half a minute, and needs no network.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo.png"),
        metavar="FILE",
        help="where to write the picture (default: %(default)s)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="one photo, and few regions: a coarse map in seconds"
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
    regions: dict[str, Any] = {"superpixels": 25} if options.quick else {"effort": "quick"}
    explained = []
    for name in PHOTOS[:1] if options.quick else PHOTOS:
        image = classifier.preprocessing(Image.fromarray(getattr(photos, name)()).convert("RGB"))
        evidence = pda.evidence(image, show_progress=not options.quiet, **regions)
        explained.append((evidence, explain(evidence, classifier)))
        if not options.quiet:
            tell(evidence, explained[-1][1], classifier)
    write_figure(options.output, draw(classifier, explained), options.overwrite)
    if not options.quiet:
        print(f"Written: {options.output}")
    return 0


def explain(evidence: WindowEvidence, classifier: Classifier) -> Answer:
    """What speaks for the most likely class, and the test of its map."""
    first = int(evidence.scores[0].argmax())
    return Answer(
        classifier.labels[first],
        (first,),
        cast(Tensor, evidence.attribution(first))[0, 0],
        *strongest_regions(evidence, first, LISTED_REGIONS),
        evidence.self_test(first),
        float(evidence.total(first)[0]),
    )


def tell(evidence: WindowEvidence, answer: Answer, classifier: Classifier) -> None:
    """What the network sees, and what speaks for it and against it."""
    probabilities, measure = evidence.probabilities[0], evidence.measure
    print(f"{classifier.name} sees: {top_classes(probabilities, classifier.labels, measure)}")
    shown = Explanation(
        evidence.inputs[0], probabilities, [answer], "PDA", measure, classifier.labels, evidence
    )
    print("\n".join(answer_lines(answer, shown)))


def draw(classifier: Classifier, photos: list[tuple[WindowEvidence, Answer]]) -> Figure:
    """A row for each photo: its strongest regions, our map, and Captum's."""
    figure = Figure(figsize=(13, 4.0 * len(photos)))
    rows = figure.subplots(len(photos), 4, squeeze=False)
    height = 4.0 * len(photos)
    figure.subplots_adjust(0.01, 0.62 / height, 0.99, 1 - 0.35 / height, 0.05, 0.28)
    for panels, (evidence, answer) in zip(rows, photos, strict=True):
        _draw_row(figure, list(panels), classifier, evidence, answer)
    return figure


def _draw_row(
    figure: Figure,
    panels: list[Axes],
    classifier: Classifier,
    evidence: WindowEvidence,
    answer: Answer,
) -> None:
    (target,) = answer.classes
    image = evidence.inputs[0]
    shown = picture(image, classifier.preprocessing.mean, classifier.preprocessing.std)
    share = evidence.measure.in_words(float(evidence.probabilities[0, target]))
    draw_picture(panels[0], shown)
    draw_outlines(panels[0], answer.speak_for, answer.speak_against)
    finish(panels[0], f"{answer.name.split(',')[0]}, {share}: strongest regions")
    values = evidence_map(answer.bits)
    draw_map(panels[1], values, evidence_scale(values), shown)
    finish(panels[1], "PDA: red for, blue against, in bits")
    titles = ("Occlusion (Captum)", "GradCAM (Captum)")
    maps = captum_maps(classifier.model, image, target)
    for axes, title, one in zip(panels[2:], titles, maps, strict=True):
        visualization.visualize_image_attr(
            one[..., None],
            shown,
            method="blended_heat_map",
            sign="all" if title.startswith("Occlusion") else "positive",
            cmap="RdBu_r" if title.startswith("Occlusion") else "Reds",
            plt_fig_axis=(figure, axes),
            use_pyplot=False,
        )
        finish(axes, title)
    panels[0].text(
        0,
        -0.06,
        f"Test of the PDA map on this photo: {answer.test}.",
        transform=panels[0].transAxes,
        verticalalignment="top",
        fontsize=11,
    )


def captum_maps(
    model: nn.Module, image: Tensor, target: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The maps of Occlusion and GradCAM, (H, W) each."""
    channels = image.shape[1]
    with warnings.catch_warnings():
        # Captum warns that it sets hooks for a while.
        warnings.simplefilter("ignore")
        occlusion = Occlusion(model).attribute(
            image,
            sliding_window_shapes=(channels, OCCLUSION_WINDOW, OCCLUSION_WINDOW),
            strides=(channels, OCCLUSION_STRIDE, OCCLUSION_STRIDE),
            target=target,
            perturbations_per_eval=8,
        )
        grad_cam = LayerGradCam(model, last_convolution(model)).attribute(image, target=target)
    upsampled = LayerAttribution.interpolate(grad_cam, tuple(image.shape[2:]), "bilinear")
    first, second = (
        in_double(one[0].sum(dim=0).detach()).cpu().numpy() for one in (occlusion, upsampled)
    )
    return first, second


def last_convolution(model: nn.Module) -> nn.Module:
    """The last convolution, where GradCAM looks."""
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)][-1]
