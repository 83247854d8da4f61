"""Pictures show the values they are given, in their own units."""

from __future__ import annotations

import io

import matplotlib
import numpy as np
import pytest
import torch
from conftest import make_classifier, make_images
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from captum_pda import EfficientPDA, GradientPDA
from captum_pda.evidence.strongest import strongest_regions
from captum_pda.visualization import (
    evidence_scale,
    visualize_evidence,
    visualize_evidence_multiple,
    visualize_strongest_regions,
)
from captum_pda.visualization.drawing import AGAINST, FOR, picture

HIDDEN = {"use_pyplot": False}
IMAGE = torch.rand(3, 6, 9, generator=torch.Generator().manual_seed(0))
WHITE = (1.0, 1.0, 1.0, 1.0)


@pytest.fixture(autouse=True)
def _headless():
    matplotlib.use("Agg")
    yield
    plt.close("all")


def make_map(height: int = 6, width: int = 9) -> torch.Tensor:
    """A map as PDA makes it, with all channels of a pixel alike, from -3 to 2 bits."""
    return torch.linspace(-3, 2, height * width).reshape(1, 1, height, width).expand(1, 3, -1, -1)


def heat_map(axes: Axes) -> AxesImage:
    return axes.images[-1]


def data_of(axes: Axes) -> np.ndarray:
    return np.asarray(heat_map(axes).get_array())


def colour_of(axes: Axes, value: float) -> tuple[float, ...]:
    image = heat_map(axes)
    return image.cmap(image.norm(value))


def colour_bars(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]


def render(figure: Figure) -> np.ndarray:
    """The figure's pixels, which also lets anything that fails while drawing fail here."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=50)
    file.seek(0)
    return plt.imread(file)


def test_values_are_drawn_as_they_are() -> None:
    figure, axes = visualize_evidence(make_map(), **HIDDEN)
    np.testing.assert_allclose(data_of(axes), make_map()[0, 0].numpy(), rtol=1e-6)
    assert heat_map(axes).get_clim() == (-3, 3)
    assert [bar.get_xlabel() for bar in colour_bars(figure)] == ["weight of evidence (bits)"]
    assert axes.get_xticks().size == axes.get_yticks().size == 0
    render(figure)


def test_red_speaks_for_and_blue_against_and_zero_is_white() -> None:
    _, axes = visualize_evidence(make_map(), **HIDDEN)
    assert colour_of(axes, 0.0) == WHITE
    assert (FOR, AGAINST) == ("#b2182b", "#2166ac")
    assert colour_of(axes, 3.0) == pytest.approx(to_rgba(FOR))
    assert colour_of(axes, -3.0) == pytest.approx(to_rgba(AGAINST))


def test_zero_covers_nothing_of_an_image() -> None:
    _, axes = visualize_evidence(make_map(), torch.rand(3, 6, 9), alpha_overlay=0.6, **HIDDEN)
    assert colour_of(axes, 0.0)[3] == 0
    assert colour_of(axes, 3.0) == pytest.approx(to_rgba(FOR, 0.6))
    assert colour_of(axes, -3.0) == pytest.approx(to_rgba(AGAINST, 0.6))


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e-6, 1e6])
def test_any_magnitude_is_drawn(value: float) -> None:
    figure, axes = visualize_evidence(value * make_map().double(), **HIDDEN)
    assert heat_map(axes).get_clim() == ((-1, 1) if value == 0 else (-3 * value, 3 * value))
    render(figure)


def test_missing_values_are_grey_and_do_not_set_the_scale() -> None:
    values = make_map().clone()
    values[..., 0, 0] = float("nan")
    values[..., 0, 1] = float("inf")
    figure, axes = visualize_evidence(values, **HIDDEN)
    low, high = heat_map(axes).get_clim()
    assert high == -low == pytest.approx(float(values[values.isfinite()].abs().max()))
    assert heat_map(axes).cmap(float("nan"))[:3] == (0.5, 0.5, 0.5)
    render(figure)


@pytest.mark.parametrize(
    ("scale", "extend"), [(5.0, "neither"), (2.5, "min"), (1.0, "both"), (None, "neither")]
)
def test_a_scale_cuts_openly(scale: float | None, extend: str) -> None:
    figure, axes = visualize_evidence(make_map(), scale=scale, **HIDDEN)
    assert heat_map(axes).get_clim()[1] == (scale or 3)
    assert heat_map(axes).colorbar.extend == extend
    render(figure)


@pytest.mark.parametrize(
    "given",
    [
        make_map(),
        make_map()[0],
        make_map()[0, 0],
        make_map()[:, :1],
        make_map()[0].permute(1, 2, 0).numpy(),
        make_map()[0, 0].numpy(),
        make_map().requires_grad_(),
        make_map().to(torch.bfloat16),
    ],
    ids=["NCHW", "CHW", "HW", "one channel", "array HWC", "array HW", "with gradient", "bfloat16"],
)
def test_forms_of_a_map(given: torch.Tensor | np.ndarray) -> None:
    _, axes = visualize_evidence(given, **HIDDEN)
    np.testing.assert_allclose(data_of(axes), make_map()[0, 0].numpy(), atol=1e-2)


def test_channels_that_differ_are_added_up() -> None:
    values = make_images(1, 3, 6, 7)
    _, axes = visualize_evidence(values, **HIDDEN)
    np.testing.assert_allclose(data_of(axes), values[0].sum(0).numpy())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(2, 3, 5, 5), r"batch of 2.*attribution\[0\]"),
        (torch.zeros(1, 1, 5, 5, 5), "three spatial dimensions"),
        (torch.zeros(4), r"shape \(4,\); expected one image"),
        (torch.zeros(3, 0, 5), "expected one image"),
        (np.zeros((3, 20, 20)), r"transpose\(1, 2, 0\)"),
        (np.zeros((1, 3, 5, 5)), "expected one image"),
    ],
)
def test_other_shapes_are_refused(given: torch.Tensor | np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        visualize_evidence(given, **HIDDEN)


@pytest.mark.parametrize(
    ("measure", "label"),
    [
        ("weight_of_evidence", "weight of evidence (bits)"),
        ("information_difference", "difference of information (bits)"),
        ("probability_difference", "difference of probability"),
        ("raw", "difference of the output"),
    ],
)
def test_the_colour_bar_names_the_measure(measure: str, label: str) -> None:
    figure, _ = visualize_evidence(make_map(), measure=measure, **HIDDEN)
    assert colour_bars(figure)[0].get_xlabel() == label


def test_overlay_lies_on_the_grey_image() -> None:
    figure, axes = visualize_evidence(make_map(), IMAGE, alpha_overlay=0.3, **HIDDEN)
    below, above = axes.images
    # Between dark and light grey.
    grey = 0.15 + 0.8 * IMAGE.mean(0).numpy()
    np.testing.assert_allclose(np.asarray(below.get_array()), grey, rtol=1e-5)
    assert below.get_clim() == (0, 1)
    assert above.cmap(1.0)[3] == pytest.approx(0.3)
    render(figure)


def test_normalised_images_are_shown_as_they_were() -> None:
    photo = torch.rand(3, 6, 9, dtype=torch.float64)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    normalised = (photo - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    np.testing.assert_allclose(picture(normalised, mean, std), photo.permute(1, 2, 0), atol=1e-6)


@pytest.mark.parametrize(
    ("image", "lowest", "highest"),
    [
        (np.array([[0, 255]], dtype=np.uint8), 0, 1),
        (np.array([[0, 51]], dtype=np.uint8), 0, 0.2),
        (torch.tensor([[0, 51]], dtype=torch.uint8), 0, 0.2),
        (np.array([[0, 1]], dtype=np.uint8), 0, 1),
        (np.array([[0.2, 0.7]]), 0.2, 0.7),
        (np.array([[-2.0, 3.0]]), 0, 1),
        (np.array([[7.0, 7.0]]), 0, 0),
    ],
    ids=["bytes", "dark bytes", "dark tensor", "bits", "as it is", "stretched", "constant"],
)
def test_ranges_of_images(image: np.ndarray, lowest: float, highest: float) -> None:
    shown = picture(image)
    assert (shown.min(), shown.max()) == pytest.approx((lowest, highest))


def test_given_axes_are_used_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plt, "show", lambda: pytest.fail("a given figure is shown by its owner"))
    figure, (left, right) = plt.subplots(1, 2)
    returned = visualize_evidence(make_map(), plt_fig_axis=(figure, right))
    assert returned == (figure, right)
    assert not left.images
    assert right.images


def test_pyplot_figures_are_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.get_fignums()))
    figure, _ = visualize_evidence(make_map())
    assert shown == [[figure.number]]
    visualize_evidence(make_map(), use_pyplot=False)
    assert len(shown) == len(plt.get_fignums()) == 1


def test_a_backend_without_windows_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")  # Without a display, matplotlib does not even try.
    visualize_evidence(make_map())


@pytest.mark.parametrize("shape", [(3, 40, 12), (3, 12, 40), (1, 20, 20)])
@pytest.mark.parametrize("shared", [True, False])
def test_nothing_is_clipped(shape: tuple[int, ...], shared: bool) -> None:
    image = torch.rand(shape)
    figure, _ = visualize_evidence_multiple(
        [image - 0.5] * 3,
        image,
        titles=["a title\nof two lines"] * 3,
        shared_scale=shared,
        **HIDDEN,
    )
    render(figure)
    drawn = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert drawn.x0 > -0.01
    assert drawn.y0 > -0.01
    assert drawn.x1 < width + 0.01
    assert drawn.y1 < height + 0.01


def test_several_maps_on_given_axes() -> None:
    figure, axes = plt.subplots(2, 1)
    returned = visualize_evidence_multiple([make_map()] * 2, plt_fig_axis=(figure, axes))
    assert returned == (figure, list(axes))
    with pytest.raises(ValueError, match="has 2 axes for 3 panels"):
        visualize_evidence_multiple([make_map()] * 3, plt_fig_axis=(figure, axes))


@pytest.mark.parametrize(
    ("draw", "given", "arguments", "error"),
    [
        (visualize_evidence, [[1.0]], {}, r"attribution must be a tensor .* got list"),
        (visualize_evidence, make_map(), {"method": "nice"}, "method='nice' is not known"),
        (visualize_evidence, make_map(), {"measure": "bits"}, "measure='bits' is not known"),
        (visualize_evidence, make_map(), {"method": "blended_heat_map"}, "draws the image too"),
        (visualize_evidence, make_map(), {"image": IMAGE[:, :5]}, "image is 5 x 9 where its map"),
        (visualize_evidence, make_map(), {"image": IMAGE, "mean": 0.5}, "give both or neither"),
        (
            visualize_evidence,
            make_map(),
            {"image": IMAGE, "mean": [0, 0], "std": [1, 1]},
            "std has 2 entries for an image of 3 channels",
        ),
        (visualize_evidence, make_map(), {"scale": 0}, "scale=0 must be a positive"),
        (
            visualize_evidence,
            make_map(),
            {"image": IMAGE[:2], "method": "original_image"},
            "image has 2 channels",
        ),
        (visualize_evidence_multiple, [], {}, "attributions is empty"),
        (visualize_evidence_multiple, [make_map()] * 2, {"titles": ["a"]}, "1 entries for 2 maps"),
        (visualize_evidence_multiple, {"a": make_map()}, {"titles": ["a"]}, "one or the other"),
        (visualize_evidence_multiple, [make_map()], {"method": "original_image"}, "is not known"),
        (visualize_evidence_multiple, [make_map()], {"method": "blended_heat_map"}, "image too"),
    ],
)
def test_wrong_arguments_are_named(draw, given, arguments, error) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        draw(given, **arguments, **HIDDEN)


def test_titles_and_what_is_left_out() -> None:
    _, axes = visualize_evidence(make_map(), title="husky", **HIDDEN)
    assert axes.get_title() == "husky"
    figure, _ = visualize_evidence(make_map(), show_colorbar=False, **HIDDEN)
    assert not colour_bars(figure)
    figure, axes = visualize_evidence(make_map(), IMAGE, method="original_image", **HIDDEN)
    np.testing.assert_allclose(data_of(axes), IMAGE.permute(1, 2, 0).numpy())
    assert (len(axes.images), colour_bars(figure)) == (1, [])


@pytest.mark.parametrize(
    ("arguments", "scales", "n_bars"),
    [
        ({}, [30, 30, 30], 1),
        ({"shared_scale": False, "n_columns": 2}, [3, 30, 1], 3),
        ({"shared_scale": False, "scale": 4}, [4, 4, 4], 1),
    ],
)
@pytest.mark.parametrize("image", [None, IMAGE])
def test_scales_of_several_maps(image, arguments, scales, n_bars) -> None:
    maps = {"one": make_map(), "ten": 10 * make_map(), "none": 0 * make_map()}
    figure, axes = visualize_evidence_multiple(maps, image, **arguments, **HIDDEN)
    assert [panel.get_title() for panel in axes] == ["image"] * (image is not None) + list(maps)
    assert [heat_map(panel).get_clim() for panel in axes[-3:]] == [(-one, one) for one in scales]
    assert len(colour_bars(figure)) == n_bars
    if "scale" in arguments:
        assert heat_map(axes[-3]).colorbar.extend == "both"
    render(figure)


def test_scale_of_several_maps() -> None:
    assert evidence_scale(make_map(), -2 * make_map()) == 6
    assert evidence_scale(0 * make_map()) == evidence_scale() == 1


def test_strongest_regions_are_drawn_where_they_lie() -> None:
    image = make_images(1, 3, 24, 30)
    evidence = EfficientPDA(make_classifier()).evidence(image, sliding_window_shapes=6, strides=3)
    figure, axes = visualize_strongest_regions(evidence, 2, n=2, title="two", **HIDDEN)
    kinds = strongest_regions(evidence, 2, 2)
    listed = [region for regions in kinds for region in regions]
    outlines = [one for one in axes[0].collections if isinstance(one, QuadContourSet)]
    assert [len(regions) for regions in kinds] == [2, 2]
    assert (len(outlines), len(axes)) == (4, 5)
    assert axes[0].get_title() == "two"
    assert [text.get_text() for text in axes[0].texts] == ["1", "2", "1", "2"]
    for region, outline, panel in zip(listed, outlines, axes[1:], strict=True):
        (top, left), (height, width) = region.corner, region.shape
        assert (height, width) == (6, 6)
        (path,) = outline.get_paths()
        low, high = path.vertices.min(axis=0), path.vertices.max(axis=0)
        np.testing.assert_allclose(low, (left - 0.5, top - 0.5))
        np.testing.assert_allclose(high, (left + 5.5, top + 5.5))
        colour = to_rgba(FOR if region.value > 0 else AGAINST)
        assert tuple(outline.get_edgecolor()[0]) == pytest.approx(colour)
        assert "".join(panel.get_xlabel().split()) == "".join("".join(region.answers()).split())
        # The close look keeps inside the image and holds the region.
        (x0, x1), (y1, y0) = panel.get_xlim(), panel.get_ylim()
        assert -0.5 <= x0 <= left - 0.5 < left + 5.5 <= x1 <= 29.5
        assert -0.5 <= y0 <= top - 0.5 < top + 5.5 <= y1 <= 23.5
    # The map decides about order and sign.
    map_ = evidence.attribution(2)[0, 0].numpy()
    for region in listed:
        assert region.value == pytest.approx(float(map_[region.pixels].mean()))
    values = [region.value for region in listed]
    assert values[0] >= values[1] > 0 > values[3] >= values[2]
    render(figure)


def test_no_region_speaks() -> None:
    """A model that sees nothing leaves panels empty."""
    image = make_images(1, 3, 8, 8)
    evidence = EfficientPDA(lambda x: x.new_zeros(len(x), 2)).evidence(image)
    figure, axes = visualize_strongest_regions(evidence, 0, **HIDDEN)
    assert not any(panel.images for panel in axes[1:])
    render(figure)


def test_strongest_regions_refuse() -> None:
    model = make_classifier()
    evidence = EfficientPDA(model).evidence(make_images(2, 3, 8, 8))
    with pytest.raises(ValueError, match="2 examples"):
        visualize_strongest_regions(evidence, 0, **HIDDEN)
    evidence = EfficientPDA(model).evidence(make_images(1, 3, 8, 8))
    with pytest.raises(ValueError, match="image is 8 x 9"):
        visualize_strongest_regions(evidence, 0, torch.zeros(3, 8, 9), **HIDDEN)
    with pytest.raises(ValueError, match="n=0 must be at least 1"):
        visualize_strongest_regions(evidence, 0, n=0, **HIDDEN)


def test_captum_s_visualizer_takes_our_maps_too() -> None:
    from captum.attr import visualization

    image = make_images(1, 3, 12, 12)
    attribution = GradientPDA(make_classifier()).attribute(image, target=0)
    figure, _ = visualization.visualize_image_attr(
        attribution[0].permute(1, 2, 0).numpy(),
        picture(image),
        method="blended_heat_map",
        sign="all",
        use_pyplot=False,
    )
    render(figure)
