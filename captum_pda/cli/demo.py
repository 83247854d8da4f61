"""``captum-pda demo``: two photos, the evidence for their classes, and Captum's maps."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from captum.attr import LayerAttribution, LayerGradCam, Occlusion, visualization
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

from captum_pda.cli import explain
from captum_pda.cli.classifier import Classifier
from captum_pda.cli.explainer import Explanation, PhotoExplainer, check_options
from captum_pda.cli.folders import PICTURES, check_free, write_figure
from captum_pda.cli.models import load_classifier
from captum_pda.cli.results import explanation_lines, predictions_in_words, top_classes
from captum_pda.cli.usage_errors import UsageError, optional_module
from captum_pda.distributed import Ranks
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
#: The window and stride of Captum's Occlusion, as usual for 224 pixels.
OCCLUSION_WINDOW, OCCLUSION_STRIDE = 64, 32


HELP = "explain two photos, and draw one picture"
DESCRIPTION = """Explain two photos that come with scikit-image by a network whose weights come by
pip (EfficientNet-lite0): what speaks for the class and what against it, beside Captum's Occlusion
and GradCAM, with the test of each map on its own photo. Takes about half a minute, and needs no
network."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo.png"),
        help="where to write the picture (default: %(default)s)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="one photo, and few regions: a coarse map in seconds"
    )


def run(options: argparse.Namespace, ranks: Ranks) -> int:
    """Explain the photos as ``captum-pda explain`` does, and draw them."""
    if options.output.suffix.lower() not in PICTURES:
        raise UsageError(f"--output {options.output} must end in .png or .jpg")
    check_free([options.output], [], options.overwrite)
    photos = optional_module("skimage.data")
    parser = argparse.ArgumentParser()
    explain.add_options(parser)
    regions = ["--superpixels", "25"] if options.quick else ["--effort", "quick"]
    asked = parser.parse_args([*PHOTOS, *regions])
    check_options(asked)
    explainer = PhotoExplainer(load_classifier(), asked, show_progress=not options.quiet)
    explained = []
    for name in PHOTOS[:1] if options.quick else PHOTOS:
        photo = Image.fromarray(getattr(photos, name)()).convert("RGB")
        explained.append(explainer.attribute(explainer.classifier.preprocessing(photo)))
        if not options.quiet:
            print(f"{explainer.classifier.name} sees: {top_classes(explained[-1])}")
            print("\n".join(explanation_lines(explained[-1])))
    write_figure(options.output, draw(explainer.classifier, explained), options.overwrite)
    if not options.quiet:
        print(f"Written: {options.output}")
    return 0


def draw(classifier: Classifier, explained: Sequence[Explanation]) -> Figure:
    """A row for each photo: its strongest regions, our map, and Captum's."""
    height = 4.0 * len(explained)
    figure = Figure(figsize=(13, height))
    rows = figure.subplots(len(explained), 4, squeeze=False)
    figure.subplots_adjust(0.01, 0.62 / height, 0.99, 1 - 0.35 / height, 0.05, 0.28)
    for panels, explanation in zip(rows, explained, strict=True):
        image, answer = explanation.image, explanation.answers[0]
        shown = picture(image, classifier.preprocessing.mean, classifier.preprocessing.std)
        share = predictions_in_words(answer, explanation, "")
        draw_picture(panels[0], shown)
        draw_outlines(panels[0], answer.speak_for, answer.speak_against)
        finish(panels[0], f"{answer.name.split(',')[0]}, {share}: strongest regions")
        values = evidence_map(answer.bits)
        draw_map(panels[1], values, evidence_scale(values), shown)
        finish(panels[1], "PDA: red for, blue against, in bits")
        maps = captum_maps(classifier.model, image, answer.classes[0])
        for axes, (name, one) in zip(panels[2:], maps.items(), strict=True):
            visualization.visualize_image_attr(
                one[..., None],
                shown,
                method="blended_heat_map",
                sign="all" if name == "Occlusion" else "positive",
                cmap="RdBu_r" if name == "Occlusion" else "Reds",
                plt_fig_axis=(figure, axes),
                use_pyplot=False,
            )
            finish(axes, f"{name} (Captum)")
        test = f"Test of the PDA map on this photo: {answer.test}."
        place = {"transform": panels[0].transAxes, "verticalalignment": "top"}
        panels[0].text(0, -0.06, test, fontsize=11, **place)
    return figure


def captum_maps(model: nn.Module, image: Tensor, target: int) -> dict[str, Any]:
    """The maps of Occlusion and GradCAM, (H, W) each."""
    channels = image.shape[1]
    last_convolution = [one for one in model.modules() if isinstance(one, nn.Conv2d)][-1]
    with warnings.catch_warnings():
        # Captum warns that it sets hooks.
        warnings.simplefilter("ignore")
        occlusion = Occlusion(model).attribute(
            image,
            sliding_window_shapes=(channels, OCCLUSION_WINDOW, OCCLUSION_WINDOW),
            strides=(channels, OCCLUSION_STRIDE, OCCLUSION_STRIDE),
            target=target,
            perturbations_per_eval=8,
        )
        grad_cam = LayerGradCam(model, last_convolution).attribute(image, target=target)
    upsampled = LayerAttribution.interpolate(grad_cam, tuple(image.shape[2:]), "bilinear")
    maps = {"Occlusion": occlusion, "GradCAM": upsampled}
    return {name: one[0].sum(dim=0).detach().cpu().numpy() for name, one in maps.items()}
