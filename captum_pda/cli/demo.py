"""``captum-pda demo``: one photo, three algorithms, and Captum's own methods next to them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from captum_pda.cli.arguments import add_overwrite, positive
from captum_pda.cli.captum_methods import captum_maps
from captum_pda.cli.classifier import Classifier
from captum_pda.cli.explanation import Answer, Explanation, PhotoExplainer
from captum_pda.cli.marks import PICTURES
from captum_pda.cli.models import load_classifier
from captum_pda.cli.places import check_free
from captum_pda.cli.question import Question
from captum_pda.cli.results import write_figure
from captum_pda.cli.usage_errors import UsageError, optional_module
from captum_pda.cli.words import answer_lines, top_classes
from captum_pda.visualization import visualize_evidence
from captum_pda.visualization.arrays import picture
from captum_pda.visualization.drawing import draw_colorbar
from captum_pda.visualization.window_frames import draw_windows

#: Some 3,800 forward passes in all: a minute on two cores. Samples are drawn for a quarter of the
#: windows only.
WINDOW, STRIDE, SAMPLES = 16, 5, 4


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """The options of this command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="explain a photo of a cat, and draw one picture",
        description="Explain a photo that comes with scikit-image by a network whose weights come "
        "by pip (EfficientNet-lite0), by all three algorithms next to Saliency, DeepLift and "
        "GradCAM. Takes about a minute, and needs no network.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo.png"),
        metavar="FILE",
        help="where to write the picture (default: %(default)s)",
    )
    parser.add_argument(
        "--stride",
        type=positive,
        default=STRIDE,
        metavar="PIXELS",
        help=f"the step between windows of {WINDOW} pixels; larger ones are quicker (default: "
        "%(default)s)",
    )
    add_overwrite(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Explain, tell, and draw."""
    say = (lambda *_: None) if options.quiet else print
    if options.output.suffix.lower() not in PICTURES:
        raise UsageError(f"--output {options.output} must end in .png or .jpg")
    check_free([options.output], [], options.overwrite)
    photo = Image.fromarray(optional_module("skimage.data").chelsea())
    classifier = load_classifier()
    image = classifier.preprocessing(photo)
    explanations = {}
    for method, stride in (
        ("efficient", options.stride),
        ("sampled", min(2 * options.stride, WINDOW)),
        ("gradient", options.stride),
    ):
        question = Question(method, (WINDOW,), stride, n_samples=SAMPLES)
        explainer = PhotoExplainer(classifier, question, show_progress=not options.quiet)
        explanations[method] = explainer.attribute(image)
    efficient = explanations["efficient"]
    say(f"{classifier.name} sees: {top_classes(efficient.probabilities, classifier.labels)}")
    for line in answer_lines(efficient.answers[0], tuple(image.shape[2:])):
        say(line)
    write_figure(options.output, draw(classifier, explanations), options.overwrite)
    say(f"Written: {options.output}")
    return 0


def draw(classifier: Classifier, explanations: dict[str, Explanation]) -> Figure:
    """The photo and our maps above, the strongest windows and Captum's maps below."""
    efficient = explanations["efficient"]
    answer, image = efficient.answers[0], efficient.image
    normalisation = classifier.preprocessing.mean, classifier.preprocessing.std
    shown = picture(image, *normalisation)
    figure = Figure(figsize=(12, 7.4), layout="compressed")
    (first, *ours), (second, *captums) = figure.subplots(2, 4)

    share = float(efficient.probabilities[answer.classes[0]])
    figure.suptitle(
        f'What speaks for "{answer.name}" ({share:.1%})? Red speaks for it, blue against it.'
    )
    visualize_evidence(
        answer.bits,
        image,
        "original_image",
        None,
        *normalisation,
        title="photo",
        plt_fig_axis=(figure, first),
    )
    titles = {
        "sampled": f"SampledPDA, {SAMPLES} samples",
        "efficient": "EfficientPDA",
        "gradient": "GradientPDA",
    }
    for axes, (method, title) in zip(ours, titles.items(), strict=True):
        bits = explanations[method].answers[0].bits
        visualize_evidence(
            bits, image, None, None, *normalisation, title=title, plt_fig_axis=(figure, axes)
        )
    _draw_strongest(second, shown, answer)
    _draw_captums(figure, captums, classifier, image, answer.classes[0], shown)
    return figure


def _draw_strongest(axes: Axes, shown: Any, answer: Answer) -> None:
    """The photo with the strongest windows by EfficientPDA."""
    draw_windows(axes, shown, answer.speak_for, answer.speak_against)
    best = max(answer.speak_for + answer.speak_against, key=lambda window: abs(window.value))
    axes.set_title(f"strongest windows, up to {abs(best.value):.2f} bits")


def _draw_captums(
    figure: Figure,
    panels: list[Axes],
    classifier: Classifier,
    image: Any,
    target: int,
    shown: Any,
) -> None:
    """Captum's own methods, by Captum's own visualizer, which brings each map to at most 1."""
    from captum.attr import visualization

    signs = {
        "Saliency": ("absolute_value", "Purples"),
        "DeepLift": ("all", "bwr"),
        "GradCAM": ("positive", "Reds"),
    }
    maps = captum_maps(classifier.model, image, target)
    for axes, (name, (sign, colours)) in zip(panels, signs.items(), strict=True):
        visualization.visualize_image_attr(
            maps[name][..., None],
            shown,
            method="blended_heat_map",
            sign=sign,
            cmap=colours,
            title=f"{name} (Captum)",
            plt_fig_axis=(figure, axes),
            use_pyplot=False,
        )
        draw_colorbar(figure, [axes], axes.images[-1:], "normalised, no unit")
