"""``captum-pda demo``: two photos, what speaks for their classes, and Captum's maps next to it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from captum_pda.cli.arguments import add_overwrite
from captum_pda.cli.captum_methods import captum_maps
from captum_pda.cli.classifier import Classifier
from captum_pda.cli.marks import PICTURES
from captum_pda.cli.models import load_classifier
from captum_pda.cli.places import check_free
from captum_pda.cli.results import write_figure
from captum_pda.cli.usage_errors import UsageError, optional_module
from captum_pda.cli.words import top_classes, window_lines
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


@dataclass(frozen=True, eq=False)
class Demonstration:
    """A photo's evidence, and its two most likely classes."""

    evidence: WindowEvidence
    first: int
    second: int

    @classmethod
    def of(cls, evidence: WindowEvidence) -> Demonstration:
        """The two classes that the network finds most likely."""
        first, second = evidence.probabilities[0].topk(2).indices.tolist()
        return cls(evidence, first, second)

    def bits(self) -> Tensor:
        """The map of the first class, (1, C, H, W)."""
        return cast(Tensor, self.evidence.attribution(self.first))

    def contrast(self) -> Tensor:
        """The map of the first class rather than the second, (1, C, H, W)."""
        return cast(Tensor, self.evidence.contrast(self.first, self.second))


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
    """Explain, tell, and draw."""
    say = (lambda *_: None) if options.quiet else print
    if options.output.suffix.lower() not in PICTURES:
        raise UsageError(f"--output {options.output} must end in .png or .jpg")
    check_free([options.output], [], options.overwrite)
    photos = optional_module("skimage.data")
    classifier = load_classifier()
    pda = PDA(classifier.model)
    sizes, strides = ((64, 96), 64) if options.quick else (None, None)
    shown = []
    for name in PHOTOS[:1] if options.quick else PHOTOS:
        image = classifier.preprocessing(Image.fromarray(getattr(photos, name)()))
        evidence = pda.evidence(
            image, scales=sizes, strides=strides, show_progress=not options.quiet
        )
        shown.append(Demonstration.of(evidence))
        tell(shown[-1], classifier, say)
    write_figure(options.output, draw(classifier, shown), options.overwrite)
    say(f"Written: {options.output}")
    return 0


def tell(shown: Demonstration, classifier: Classifier, say: Any) -> None:
    """What the network sees, and what speaks for it and against it."""
    evidence, name = shown.evidence, classifier.labels[shown.first]
    seen = top_classes(evidence.probabilities[0], classifier.labels, evidence.measure)
    say(f"{classifier.name} sees: {seen}")
    space = tuple(evidence.inputs[0].shape[2:])
    kinds = strongest_windows(evidence, shown.first)
    for verb, windows in zip(("for", "against"), kinds, strict=True):
        say(f"What speaks {verb} {name}:")
        for line in window_lines(windows, space, evidence.measure):
            say(line)


def draw(classifier: Classifier, photos: list[Demonstration]) -> Figure:
    """A row for each photo: its strongest regions, our maps, and Captum's."""
    figure = Figure(figsize=(15, 4.7 * len(photos)), layout="compressed")
    rows = figure.subplots(len(photos), 5, squeeze=False)
    for panels, shown in zip(rows, photos, strict=True):
        _draw_row(figure, list(panels), classifier, shown)
    return figure


def _draw_row(
    figure: Figure, panels: list[Axes], classifier: Classifier, shown: Demonstration
) -> None:
    names = [classifier.labels[number].split(",")[0] for number in (shown.first, shown.second)]
    share = float(shown.evidence.probabilities[0, shown.first])
    colours = classifier.preprocessing.mean, classifier.preprocessing.std
    image = shown.evidence.inputs[0]
    draw_windows(
        panels[0], picture(image, *colours), *strongest_windows(shown.evidence, shown.first)
    )
    panels[0].set_title(f'why "{names[0]}" ({share:.0%})?')
    titles = f"PDA: {names[0]}", f"{names[0]}, not {names[1]}"
    for axes, bits, title in zip(
        panels[1:3], (shown.bits(), shown.contrast()), titles, strict=True
    ):
        visualize_evidence(
            bits, image, None, None, *colours, title=title, plt_fig_axis=(figure, axes)
        )
    _draw_captums(figure, panels[3:], classifier, shown)
    for axes, words in zip(panels, HOW_TO_READ, strict=True):
        axes.set_xlabel(words, fontsize=9)


def _draw_captums(
    figure: Figure, panels: list[Axes], classifier: Classifier, shown: Demonstration
) -> None:
    """Captum's own methods, by Captum's own visualizer, which brings each map to at most 1."""
    from captum.attr import visualization

    image = shown.evidence.inputs[0]
    photo = picture(image, classifier.preprocessing.mean, classifier.preprocessing.std)
    signs = {"GradCAM": ("positive", "Reds"), "Saliency": ("absolute_value", "Purples")}
    maps = captum_maps(classifier.model, image, shown.first)
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
