"""What is seen where nothing is, and where one region alone is: against the definitions."""

import numpy as np
import pytest
import reference
import torch
from conftest import make_classifier, make_images

from captum_pda import (
    PDA,
    ConstantPrior,
    EfficientPDA,
    EmpiricalMeanPrior,
    GaussianPatchPrior,
    MarginalPrior,
    SampledPDA,
    WindowGrid,
)
from captum_pda.priors import EmptyContext
from captum_pda.regions.masks import FeatureMaskRegions
from captum_pda.regions.protocol import PlacedWindows


def whole_inputs(nothing, boxes, contents):
    """The inputs (W, C, *space) that an engine makes of boxes and their contents."""
    copies = nothing.expand(len(boxes), *nothing.shape).clone()
    for copy, corner, content in zip(copies, boxes.corner_array, contents, strict=True):
        copy[reference.block(corner, boxes.window)] = content
    return copies


def region_of(space, corner, window, hidden=None):
    """A window as a boolean image."""
    region = np.zeros(space, dtype=bool)
    box = reference.block(corner, window)[1:]
    region[box] = True if hidden is None else hidden.numpy()
    return region


def expected_inputs(image, nothing, windows):
    hidden = windows.hidden if windows.hidden is not None else [None] * len(windows)
    return np.stack(
        [
            reference.seen_alone(image, nothing, region_of(windows.space, *place))
            for place in zip(
                windows.corner_array.tolist(), [windows.window] * len(windows), hidden, strict=True
            )
        ]
    )


@pytest.mark.parametrize("shape", [(2, 13), (3, 9, 11), (1, 5, 6, 4), (2, 2500), (2, 2100, 3)])
def test_nothing_seen_is_the_blurred_example(shape):
    image = make_images(1, *shape)[0] + 3
    expected = reference.nothing_seen(image.numpy())
    for prior in (None, GaussianPatchPrior(3).fit(image[None]), EmpiricalMeanPrior(None)):
        nothing = EmptyContext(prior).nothing_seen(image)
        torch.testing.assert_close(nothing.numpy(), expected, rtol=1e-10, atol=1e-10)
    single = EmptyContext(None).nothing_seen(image.float())
    np.testing.assert_allclose(single, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("space", "window", "strides"),
    [
        ((19,), (7,), (3,)),
        ((9, 11), (3, 8), (2, 3)),
        ((9, 11), (9, 4), (1, 2)),
        ((9, 11), (1, 1), (4, 5)),
        ((9, 11), (9, 11), (1, 1)),
        ((5, 6, 4), (3, 5, 2), (2, 1, 1)),
    ],
)
def test_a_window_seen_alone_is_pasted_with_soft_edges(space, window, strides):
    image = make_images(1, 2, *space)[0]
    grid = WindowGrid(space, window, strides)
    prior = GaussianPatchPrior(window).fit(image[None])
    nothing = prior.nothing_seen(image)
    boxes, contents = EmptyContext(prior).seen_alone(image, grid)
    torch.testing.assert_close(
        whole_inputs(nothing, boxes, contents).numpy(),
        expected_inputs(image.numpy(), nothing.numpy(), grid),
        rtol=1e-10,
        atol=1e-10,
    )


def test_regions_of_any_shape_seen_alone():
    """Contiguous or not, at the border, and one that an example lacks."""
    generator = torch.Generator().manual_seed(0)
    image = make_images(1, 3, 12, 14)[0]
    mask = (torch.arange(12)[:, None] // 5 + 3 * (torch.arange(14) // 6)).expand(2, -1, -1).clone()
    mask[0, 2:4, 7:12], mask[0, 11, 0] = 20, 20
    mask[1][torch.rand(12, 14, generator=generator) < 0.3] = 21
    regions = FeatureMaskRegions(mask)
    prior = EmptyContext(None)
    nothing = prior.nothing_seen(image)
    for example in range(2):
        for windows in regions.boxes(example):
            boxes, contents = prior.seen_alone(image, windows)
            assert boxes.first == windows.first
            torch.testing.assert_close(
                whole_inputs(nothing, boxes, contents).numpy(),
                expected_inputs(image.numpy(), nothing.numpy(), windows),
                rtol=1e-10,
                atol=1e-10,
            )


def test_a_region_without_pixels_shows_nothing():
    image = make_images(1, 3, 9, 11)[0]
    windows = PlacedWindows(
        (9, 11), (3, 3), np.array([[2, 3]]), torch.zeros(1, 3, 3, dtype=torch.bool)
    )
    prior = EmptyContext(None)
    boxes, contents = prior.seen_alone(image, windows)
    nothing = prior.nothing_seen(image)
    torch.testing.assert_close(whole_inputs(nothing, boxes, contents)[0], nothing)


def test_no_edge_is_seen_around_a_large_window():
    """From one pixel to the next, what is seen changes by less than the edge's slope allows."""
    flat = torch.zeros(1, 96, 96)
    prior = EmptyContext(ConstantPrior(1.0))
    boxes, contents = prior.seen_alone(flat, WindowGrid((96, 96), (32, 32), (32, 32)))
    seen = 1 - whole_inputs(prior.nothing_seen(flat), boxes, contents)
    assert seen.amax() > 0.999
    slope = 1 / (2 * np.sqrt(2 * np.pi)) * 1.02  # of a Gaussian edge with 2 pixels
    for axis in (2, 3):
        assert seen.diff(dim=axis).abs().amax() < slope
    # Windows at the border reach it in full.
    torch.testing.assert_close(seen[0, 0, :24, :24], torch.ones(24, 24), rtol=0, atol=0.01)


def test_other_priors_say_what_nothing_is():
    images = make_images(2, 3, 9, 11)
    image = images[0]
    grid = WindowGrid((9, 11), (3, 4), (2, 2))
    colours = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    marginal = MarginalPrior().fit(images)
    for prior, nothing in (
        (ConstantPrior(colours), colours[:, None, None].expand(3, 9, 11)),
        (ConstantPrior(image), image),
        (marginal, images.mean(dim=0)),
        (EmpiricalMeanPrior(marginal), images.mean(dim=0)),
    ):
        torch.testing.assert_close(prior.nothing_seen(image), nothing)
        torch.testing.assert_close(
            whole_inputs(nothing, *EmptyContext(prior).seen_alone(image, grid)).numpy(),
            expected_inputs(image.numpy(), nothing.numpy(), grid),
        )


@pytest.mark.parametrize("method", [EfficientPDA, SampledPDA])
@pytest.mark.parametrize("engine", ["dense", "incremental"])
def test_evidence_in_the_empty_context_as_defined(method, engine):
    model, image = make_classifier(), make_images(1, 3, 9, 11)
    prior = GaussianPatchPrior(7).fit(image)
    evidence = method(model, prior, engine=engine).evidence(
        image, sliding_window_shapes=(3, 4), strides=2, context="empty"
    )
    grid = WindowGrid((9, 11), (3, 4), (2, 2))
    regions = [region_of((9, 11), corner, (3, 4)) for corner in grid.corner_array.tolist()]
    nothing = reference.nothing_seen(image[0].numpy())
    expected = reference.empty_efficient_pda(
        model, image[0].numpy(), nothing, regions, 2, "logits", "weight_of_evidence"
    )
    (part,) = evidence.parts
    torch.testing.assert_close(part.values(2)[0].numpy(), expected, rtol=1e-8, atol=1e-8)


def test_half_precision_keeps_its_dtype():
    image = make_images(1, 3, 9, 11)[0]
    prior, grid = EmptyContext(None), WindowGrid((9, 11), (3, 4), (2, 2))
    exact = prior.seen_alone(image.half().double(), grid)[1]
    for dtype in (torch.float16, torch.bfloat16):
        contents = prior.seen_alone(image.half().to(dtype), grid)[1]
        assert contents.dtype == prior.nothing_seen(image.to(dtype)).dtype == dtype
        torch.testing.assert_close(contents.double(), exact, rtol=0.02, atol=0.05)


class OnlyMeans:
    def conditional_mean(self, example, regions):
        return ConstantPrior(0.0).conditional_mean(example, regions)


class WithNothing(OnlyMeans):
    def nothing_seen(self, example):
        return torch.zeros_like(example)


def test_a_prior_of_ones_own_may_say_what_nothing_is():
    model, image = make_classifier(), make_images(1, 3, 9, 11)
    options = {"target": 1, "sliding_window_shapes": 3, "context": "both"}
    with pytest.raises(TypeError, match="nothing_seen"):
        EfficientPDA(model, OnlyMeans()).attribute(image, **options)
    own = EfficientPDA(model, WithNothing()).attribute(image, **options)
    same = EfficientPDA(model, ConstantPrior(0.0)).attribute(image, **options)
    torch.testing.assert_close(own, same)

    class Misshapen(OnlyMeans):
        def nothing_seen(self, example):
            return torch.zeros(3)

    with pytest.raises(ValueError, match="nothing_seen gave"):
        EfficientPDA(model, Misshapen()).attribute(image, **options)


def test_a_long_signal_is_explained_in_all_contexts():
    """A matrix for its 40,000 samples would take 13 GB."""
    signal = make_images(1, 1, 40_000).float().cumsum(-1)
    pool = torch.nn.Sequential(torch.nn.AvgPool1d(500), torch.nn.Flatten(), torch.nn.Linear(80, 3))
    attributions = PDA(pool.eval()).attribute(signal, target=1)
    assert attributions.shape == signal.shape
    assert attributions.isfinite().all()
