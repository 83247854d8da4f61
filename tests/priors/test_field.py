"""The Gaussian field: exact, without a leak, sampled as it says, fitted, stored."""

import itertools
import math
import subprocess
import sys
import time

import numpy as np
import pytest
import reference
import torch
from conftest import make_classifier, make_images
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.fft import idctn
from torch.utils.data import DataLoader

from captum_pda import (
    EfficientPDA,
    FeatureMaskRegions,
    GaussianFieldPrior,
    SampledPDA,
    Superpixels,
    WindowGrid,
)
from captum_pda.priors import EmptyContext, prior_for, prior_settings
from captum_pda.regions.protocol import PlacedWindows
from captum_pda.running.sampling import Sampling

#: Correlation length and smoothness of fields; None has no fit.
FIELDS = [None, (6.0, 1e-3), (3.0, 1.5), (1e4, 1e3), (0.1, 1e-3)]


def make_field(lengths, n_channels):
    """A field with a mean and colours of its own."""
    prior = GaussianFieldPrior()
    if lengths is not None:
        prior.correlation_length, prior.smoothness = lengths
        prior.mean = torch.linspace(-1, 2, n_channels, dtype=torch.float64)
        factor = torch.eye(n_channels, dtype=torch.float64) + 0.5
        prior.colour_covariance = factor @ factor.T
    return prior


def expected_of(prior, image, region):
    """Mean (C, pixels) and covariance (pixels, pixels) of a boolean region, densely."""
    mean = None if prior.mean is None else prior.mean.numpy()
    lengths = prior.correlation_length, prior.smoothness
    return reference.condition_field(image.double().numpy(), region, *lengths, mean)


def regions_of(windows):
    """Each region of windows: its number, its pixels (*space), and which of its box they are."""
    for number, corner in enumerate(windows.corner_array):
        inside = np.ones(windows.window, dtype=bool)
        if windows.hidden is not None:
            inside = windows.hidden[number].numpy()
        region = np.zeros(windows.space, dtype=bool)
        region[reference.block(corner, windows.window)[1:]] = inside
        yield number, region, inside


def random_mask(*space, labels=4, seed=0):
    """Regions of scattered pixels, none of them connected."""
    return torch.randint(0, labels, (1, *space), generator=torch.Generator().manual_seed(seed))


def blobs(*space):
    """Regions with a shape: stripes of several widths, bent by the first axis."""
    places = np.indices(space)
    return torch.from_numpy((places.sum(axis=0) + places[-1] // 2) // 5)[None]


def some_windows(*space):
    """Windows in the middle and at all borders and corners, and regions of other shapes."""
    window = tuple(min(3, size) for size in space)
    yield WindowGrid(space, window, tuple(max(1, size - 3) // 2 or 1 for size in space))
    yield WindowGrid(space, (1,) * len(space), space)
    yield from FeatureMaskRegions(random_mask(*space)).boxes(0)
    yield from FeatureMaskRegions(blobs(*space)).boxes(0)


# The conditional mean


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("lengths", FIELDS)
@pytest.mark.parametrize("shape", [(1, 30), (3, 9, 11), (2, 5, 4, 6)])
def test_the_mean_of_any_region_is_that_of_the_dense_field(shape, lengths, dtype):
    image, prior = make_images(1, *shape)[0].to(dtype), make_field(lengths, shape[0])
    allowed = {torch.float64: 1e-8, torch.float32: 1e-4}[dtype] * float(image.max() - image.min())
    for windows in some_windows(*shape[1:]):
        found = prior.conditional_mean(image, windows)
        assert found.dtype == dtype
        for number, region, inside in regions_of(windows):
            expected, _ = expected_of(prior, image, region)
            actual = found[number].double().numpy()[:, inside]
            np.testing.assert_allclose(actual, expected, rtol=0, atol=allowed)


def large_region(kind, space):
    """Most pixels of an image: all but a disc, all but scattered ones, stripes."""
    rows, columns = np.indices(space)
    if kind == "around a disc":
        return (rows - 50) ** 2 + (columns - 90) ** 2 > 20**2
    if kind == "scattered":
        return np.random.default_rng(0).random(space) < 0.8
    return (rows + 2 * columns) % 31 < 22


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["around a disc", "scattered", "stripes"])
def test_a_large_region_is_filled_as_by_a_direct_solution(kind, dtype):
    space = (121, 128)
    image, region = make_images(1, 2, *space)[0].to(dtype), large_region(kind, space)
    lines = [sparse.diags([-np.ones(n - 1), np.ones(n - 1)], [0, 1], (n - 1, n)) for n in space]
    along = [
        sparse.kron(lines[0], sparse.eye(space[1])),
        sparse.kron(sparse.eye(space[0]), lines[1]),
    ]
    laplacian = sum(steps.T @ steps for steps in along).tocsc()
    hidden, values = region.reshape(-1), image.double().numpy().reshape(2, -1)
    right = -laplacian[hidden][:, ~hidden] @ values[:, ~hidden].T
    expected = sparse.linalg.spsolve(laplacian[hidden][:, hidden], right).T
    mask = torch.from_numpy(region)
    windows = PlacedWindows(space, space, np.zeros((2, 2), int), mask.expand(2, *space))
    filled = GaussianFieldPrior().conditional_mean(image, windows)[..., mask]
    allowed = {torch.float64: 1e-8, torch.float32: 1e-4}[dtype] * float(image.max() - image.min())
    for found in filled.double().numpy():
        np.testing.assert_allclose(found, expected, rtol=0, atol=allowed)
    noise = torch.where(mask, torch.rand_like(image), image)
    assert torch.equal(GaussianFieldPrior().conditional_mean(noise, windows)[..., mask], filled)


@pytest.mark.parametrize("lengths", [None, (1e4, 1e-3), (50.0, 3.0)])
def test_long_windows_of_signals_are_filled_exactly_and_soon(lengths):
    """A second of sound has 16,000 samples: matrices of that size are out of reach."""
    length, low, high = 20_000, 3_000, 16_000
    signal, prior = make_images(1, 2, length)[0].float(), make_field(lengths, 2)
    if lengths is not None:
        prior.mean = torch.zeros(2, dtype=torch.float64)
    corner, hidden = np.array([[low], [0]]), torch.ones(2, high - low, dtype=torch.bool)
    start = time.process_time()
    for mask in (None, hidden):
        windows = PlacedWindows((length,), (high - low,), corner, mask)
        assert prior.sample(signal, windows, 2).isfinite().all()
        found = prior.conditional_mean(signal, windows)[0]
        if lengths is None:
            ends = signal[:, [low - 1, high]].double().numpy()
            steps = np.arange(1, high - low + 1) / (high - low + 1)
            expected = ends[:, :1] + steps * (ends[:, 1:] - ends[:, :1])
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        else:
            exact = prior.conditional_mean(signal.double(), windows)[0]
            torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-4)
    assert time.process_time() - start < 20  # they took minutes


@pytest.mark.parametrize("scale", [1.0, 1e-25])
@pytest.mark.parametrize("lengths", [None, (10.0, 3.0), (1e4, 1e3)])
def test_smooth_fields_and_tiny_values_are_filled_in_single_precision(lengths, scale):
    space = (70, 60)
    image, prior = scale * make_images(1, 2, *space)[0].float(), make_field(lengths, 2)
    allowed = 1e-4 * float(image.max() - image.min())
    image[:, 9, 11] *= 1e6  # in the disc's box, but not next to it
    if prior.mean is not None:
        prior.mean = torch.zeros(2, dtype=torch.float64)
    disc = torch.from_numpy((np.indices((40, 40)) - 20.0)[0:2]).square().sum(0) < 400
    corner = np.array([[9, 11]])
    for hidden in (None, disc[None]):
        windows = PlacedWindows(space, (40, 40), corner, hidden)
        found = prior.conditional_mean(image, windows).double()
        exact = prior.conditional_mean(image.double(), windows)
        inside = torch.ones(40, 40).bool() if hidden is None else disc
        torch.testing.assert_close(found[..., inside], exact[..., inside], rtol=0, atol=allowed)


@pytest.mark.parametrize("shape", [(100, 6, 7), (2, 1), (2, 1, 1), (1, 1, 5), (1, 2, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_many_channels_tiny_inputs_and_half_precision(shape, dtype):
    image, prior = make_images(1, *shape)[0].to(dtype), GaussianFieldPrior()
    allowed = 2 * torch.finfo(dtype).eps * float(image.abs().max()) + 1e-8
    for windows in some_windows(*shape[1:]):
        found = prior.conditional_mean(image, windows)
        drawn = prior.sample(image, windows, 2, torch.Generator().manual_seed(0))
        assert found.dtype == drawn.dtype == dtype
        assert drawn.isfinite().all()
        for number, region, inside in regions_of(windows):
            expected, _ = expected_of(prior, image, region)
            actual = found[number].double().numpy()[:, inside]
            np.testing.assert_allclose(actual, expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("level", [0.0, -3.5, 1e6])
def test_a_constant_image_is_filled_with_its_constant_and_nothing_varies(level):
    image = torch.full((2, 12, 13), level, dtype=torch.float64)
    for windows in some_windows(12, 13):
        hidden = torch.ones(1) if windows.hidden is None else windows.hidden.unsqueeze(1)
        for fills in (
            GaussianFieldPrior().conditional_mean(image, windows),
            *GaussianFieldPrior().sample(image, windows, 3),
        ):
            expected = (level * hidden).expand_as(fills)
            torch.testing.assert_close(fills * hidden, expected.to(fills), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("space", [(9,), (7, 8), (4, 5, 3)])
def test_where_nothing_is_seen_the_mean_is_the_fitted_one_or_0(space):
    image = make_images(1, 2, *space)[0]
    whole = WindowGrid(space, space, space)
    masked = PlacedWindows(
        space, space, np.zeros((1, len(space)), dtype=np.int64), torch.ones(1, *space).bool()
    )
    for windows, lengths in itertools.product((whole, masked), (None, (5.0, 1.0))):
        prior = make_field(lengths, 2)
        level = torch.zeros(2) if prior.mean is None else prior.mean
        level = level.double().reshape(2, *(1 for _ in space))
        found = prior.conditional_mean(image, windows)[0]
        torch.testing.assert_close(found, level.expand_as(found))
        drawn = prior.sample(image, windows, 50, torch.Generator().manual_seed(1))
        assert bool(drawn.any()) == (lengths is not None)


def test_it_is_the_default_prior_and_blurs_where_nothing_is_seen():
    image = make_images(1, 3, 9, 11)[0]
    assert isinstance(prior_for(None, "sample"), GaussianFieldPrior)
    assert prior_settings(None) == prior_settings(GaussianFieldPrior())
    versions = {"empty_context_version": EmptyContext.version}
    assert prior_settings(None) == versions | GaussianFieldPrior().settings()
    windows = WindowGrid((9, 11), (3, 3), (3, 4))
    for prior in (None, GaussianFieldPrior(), make_field((4.0, 1.0), 3)):
        empty = EmptyContext(prior)
        nothing = empty.nothing_seen(image)
        np.testing.assert_allclose(nothing, reference.nothing_seen(image.numpy()), atol=1e-10)
        boxes, contents = empty.seen_alone(image, windows)
        expected = EmptyContext(None).seen_alone(image, windows)
        assert torch.equal(contents, expected[1])
        assert np.array_equal(boxes.corner_array, expected[0].corner_array)


def test_nan_is_filled_where_it_is_hidden_and_refused_where_it_is_seen():
    image, window = make_images(1, 2, 9, 9)[0], WindowGrid((9, 9), (3, 3), (3, 3)).pick([4])
    expected = GaussianFieldPrior().conditional_mean(image, window)
    image[0, 4, 4] = math.nan
    assert torch.equal(GaussianFieldPrior().conditional_mean(image, window), expected)
    image[0, 4, 2] = math.nan
    with pytest.raises(ValueError, match="replace them first"):
        GaussianFieldPrior().conditional_mean(image, window)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_further_away_are_refused_for_samples_only(value):
    image, window = make_images(1, 2, 12, 12)[0], WindowGrid((12, 12), (3, 3), (3, 3)).pick([5])
    image[0, 4, 1] = value  # two pixels from the window: in its surroundings
    assert GaussianFieldPrior().conditional_mean(image, window).isfinite().all()
    with pytest.raises(ValueError, match="replace them first"):
        GaussianFieldPrior().sample(image, window, 2)


def test_another_number_of_channels_is_refused():
    prior, image = make_field((4.0, 1.0), 3), make_images(1, 2, 5, 5)[0]
    for fill in (prior.conditional_mean, lambda *given: prior.sample(*given, 2)):
        with pytest.raises(ValueError, match="fitted to 3 channels, and the input has 2; fit it"):
            fill(image, WindowGrid((5, 5), (2, 2), (2, 2)))


@pytest.mark.slow
def test_large_images_need_little_memory():
    """Beyond the fills, ten copies of an image of 1000 x 1000, and two more for all but a pixel."""
    program = """
import resource, sys, numpy as np, torch
from captum_pda import GaussianFieldPrior, WindowGrid, FeatureMaskRegions
from captum_pda.regions.protocol import PlacedWindows
torch.set_num_threads(1)
case, prior = sys.argv[1], GaussianFieldPrior()
image = torch.rand(3, 1000, 1000)
if case == "windows":
    regions = WindowGrid((1000, 1000), (200, 200), (200, 200))
elif case == "mask":
    mask = torch.arange(1000)[:, None] // 250 * 4 + (torch.arange(1000) // 7 * 7) // 250
    regions = FeatureMaskRegions(mask[None]).boxes(0)[0]
elif case == "all but a pixel":
    hidden = torch.arange(1000 * 1000).reshape(1, 1000, 1000) > 0
    regions = PlacedWindows((1000, 1000), (1000, 1000), np.array([[0, 0]]), hidden)
else:
    places = torch.arange(560) - 280  # too large for a sparse factor
    disk = places[:, None] ** 2 + places**2 < 280**2
    regions = PlacedWindows((1000, 1000), (560, 560), np.array([[99, 200]]), disk[None])
prior.conditional_mean(image[:, :60, :60], WindowGrid((60, 60), (9, 9), (9, 9)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fill = prior.sample if case == "samples" else prior.conditional_mean
fills = fill(image, regions, *[1] * (case == "samples"))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(((after - before) * 1024 - fills.nbytes) / image.nbytes)
"""
    for case in ("windows", "mask", "disk", "samples", "all but a pixel"):
        done = subprocess.run(
            [sys.executable, "-c", program, case], check=True, capture_output=True, text=True
        )
        assert float(done.stdout) < (13 if case == "all but a pixel" else 10), case


# Nothing of what is hidden is known


def leaks(method, image, windows, scale, seed):
    """Those of a few regions whose fill changes when other values are hidden there."""
    before = method(image, windows)
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(seed)).to(image)
    found = []
    for number, region, _ in list(regions_of(windows))[:: 1 + len(windows) // 4]:
        changed = torch.where(torch.from_numpy(region), scale * noise, image)
        after = method(changed, windows)
        # (..., W, C, *window), with samples in front where there are several
        place = (..., number, *[slice(None)] * (1 + region.ndim))
        if not torch.equal(after[place], before[place]):
            found.append(number)
    return found


SHAPES = [(1, 40), (3, 40), (3, 12, 13), (2, 20, 7), (1, 5, 6, 7)]


@settings(
    max_examples=30, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(
    shape=st.sampled_from(SHAPES),
    lengths=st.sampled_from(FIELDS[:3]),
    kind=st.sampled_from(["windows", "scattered", "blobs", "superpixels"]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16]),
    scale=st.sampled_from([0.0, 1.0, 1e4]),
    seed=st.integers(0, 2**31),
)
def test_no_fill_depends_on_what_it_replaces(shape, lengths, kind, dtype, scale, seed):
    """Bit for bit, means and samples, whatever else is hidden there."""
    images, space = make_images(1, *shape, seed=seed), shape[1:]
    image = images[0].to(dtype)
    if kind == "windows":
        window = tuple(1 + (seed >> n) % min(6, size) for n, size in enumerate(space))
        groups = [WindowGrid(space, window, tuple(max(1, size // 3) for size in space))]
    elif kind == "superpixels" and len(space) > 1:
        groups = Superpixels(images, 6).boxes(0)  # the labels are held fixed
    else:
        mask = blobs(*space) if kind == "blobs" else random_mask(*space, seed=seed)
        groups = FeatureMaskRegions(mask).boxes(0)
    prior = make_field(lengths, shape[0])
    for windows in groups:
        assert leaks(prior.conditional_mean, image, windows, scale, seed) == []

        def draw(example, regions):
            return prior.sample(example, regions, 2, torch.Generator().manual_seed(seed))

        assert leaks(draw, image, windows, scale, seed) == []


class Recorder:
    """A model that keeps the copies that it was given, after the inputs as they are and two passes
    that check the model."""

    def __init__(self, dims):
        self.model, self.passes = make_classifier(dims, 3), []

    def __call__(self, x):
        self.passes.append(x.clone())
        return self.model(x)

    def copies(self):
        return torch.cat(self.passes[3:])


@pytest.mark.parametrize("method", [EfficientPDA, SampledPDA])
@pytest.mark.parametrize(
    ("space", "choice"),
    [
        ((9, 10), "windows"),
        ((9, 10), "scales"),
        ((14, 15), "mask"),
        ((14, 15), "superpixels"),
        ((66, 64), "default"),
        ((30,), "default"),
        ((5, 6, 4), "windows"),
    ],
)
def test_a_model_is_never_shown_what_is_hidden(method, space, choice):
    """The copy without a region is the same, whatever values the region has; so it is in a batch
    beside another example."""
    images = make_images(2, 3, *space)
    labels = Superpixels(images[:1], 12).numbers if len(space) > 1 else None
    given = {
        "windows": {"sliding_window_shapes": 3, "strides": 3},
        "scales": {"scales": (2, 5), "strides": (2, 5)},
    }.get(choice, {})
    if choice in ("mask", "superpixels", "default") and labels is not None:
        given = {"feature_mask": labels.unsqueeze(1)}  # outlines are those of the image
    if method is SampledPDA:
        given["n_samples"] = 2

    def copies(x):
        recorder = Recorder(len(space))
        method(recorder, engine="dense").evidence(x, perturbations_per_eval=1, **given)
        return recorder.copies()

    before = copies(images)
    hidden = (before[: len(before) // 2] != images[0]).any(dim=1)  # what differs was filled
    for row in range(0, len(hidden), max(1, len(hidden) // 3)):
        changed = images.clone()
        changed[0] = torch.where(hidden[row], 1e3 * images[0].flip(-1) + 7, images[0])
        after = copies(changed)
        assert torch.equal(after[row], before[row])
        # The other example has the fills that it had.
        assert torch.equal(after[len(after) // 2 :], before[len(before) // 2 :])


# Samples


@pytest.mark.parametrize("lengths", FIELDS[:3])
@pytest.mark.parametrize("kind", ["window", "border", "scattered", "volume", "series"])
def test_samples_have_the_mean_and_the_covariance_of_the_field(kind, lengths):
    n = 4000
    space = {"volume": (4, 4, 4), "series": (14,)}.get(kind, (8, 9))
    image = make_images(1, 2, *space)[0]
    if kind == "scattered":
        windows = FeatureMaskRegions(random_mask(*space, labels=7)).boxes(0)[0][0:1]
    else:
        corner = [0] * len(space) if kind == "border" else [1] * len(space)
        windows = PlacedWindows(space, (2,) * len(space), np.array([corner]))
    prior = make_field(lengths, 2)
    drawn = prior.sample(image, windows, n, torch.Generator().manual_seed(3))[:, 0].numpy()
    ((_, region, inside),) = regions_of(windows)
    mean, covariance = expected_of(prior, image, region)
    colours = reference.surrounding_colours(
        image.numpy(), region, windows.corner_array[0], windows.window
    )
    if lengths is not None:
        colours = prior.colour_covariance.numpy()
    expected = np.kron(colours, covariance)
    values = drawn[:, :, inside].reshape(n, -1)
    deviation = values - mean.reshape(-1)
    variance = expected.diagonal()
    # Five standard errors of a mean, and of a covariance of Gaussian values.
    assert (np.abs(deviation.mean(axis=0)) < 5 * np.sqrt(variance / n)).all()
    error = np.sqrt((np.outer(variance, variance) + expected**2) / n)
    assert (np.abs(deviation.T @ deviation / n - expected) < 5 * error).all()


def test_regions_of_any_labels_have_noise_of_their_own():
    """A part of one group of boxes may begin with the number of another group."""
    labels = torch.tensor([[0] * 2 + [1] * 12 + [2] * 2] * 3)
    sampling = Sampling(2, seed=1)
    draws = [
        torch.rand(4, generator=sampling.generator(boxes[n : n + 1], torch.device("cpu")))
        for boxes in FeatureMaskRegions(labels[None]).boxes(0)
        for n in range(len(boxes))
    ]
    assert len(torch.stack(draws).unique(dim=0)) == len(labels.unique())


@pytest.mark.parametrize("regions", [{"sliding_window_shapes": 5}, {"superpixels": 6}])
def test_draws_do_not_depend_on_the_batch_size_or_on_batch_mates(regions):
    images = make_images(2, 3, 20, 21)
    recorded = []
    for rows, some in ((1, images[:1]), (7, images[:1]), (None, images)):
        recorder = Recorder(2)
        pda = SampledPDA(recorder, engine="dense")
        pda.attribute(some, 1, n_samples=2, perturbations_per_eval=rows, **regions)
        # One copy of a large batch is run again by itself.
        recorded.append(recorder.copies().unique_consecutive(dim=0))
    assert torch.equal(recorded[0], recorded[1])
    assert torch.equal(recorded[0], recorded[2][: len(recorded[0])])


def test_samples_follow_the_generator_and_vary_as_much_as_what_surrounds_them():
    image = make_images(1, 1, 24, 60)[0]
    image[:, :, 30:] *= 0.01
    windows = PlacedWindows((24, 60), (8, 8), np.array([[8, 8], [8, 45]]))
    state = torch.get_rng_state()
    drawn, same, other = (
        GaussianFieldPrior().sample(image, windows, 200, torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(drawn, same)
    assert not torch.equal(drawn, other)
    assert torch.equal(torch.get_rng_state(), state)
    rough, smooth = drawn.std(dim=0).mean(dim=(1, 2, 3))
    assert 50 < float(rough / smooth) < 200


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_samples_of_tiny_and_huge_values_vary_as_others_do(scale):
    image = make_images(1, 3, 20, 20)[0].float()
    windows = PlacedWindows((20, 20), (6, 6), np.array([[0, 0], [8, 9]]))
    expected, found = (
        GaussianFieldPrior().sample(each, windows, 5, torch.Generator().manual_seed(0))
        for each in (image, image * scale)
    )
    torch.testing.assert_close(found / scale, expected, rtol=1e-3, atol=1e-3)


# Fitting and storing


def simulated(n_images, space, length, smoothness, colours, mean, seed):
    """Fields drawn by their definition: independent coefficients of the cosine transform."""
    eigenvalues = np.zeros(space)
    for axis, size in enumerate(space):
        along = 2 - 2 * np.cos(np.pi * np.arange(size) / size)
        eigenvalues += along.reshape([-1 if a == axis else 1 for a in range(len(space))])
    scale = (length**-2 + eigenvalues + smoothness**2 * eigenvalues**2) ** -0.5
    noise = np.random.default_rng(seed).normal(size=(n_images, len(colours), *space))
    white = np.einsum("cd,nd...->nc...", np.linalg.cholesky(colours), noise)
    fields = idctn(white * scale, axes=range(2, 2 + len(space)), norm="ortho")
    return torch.from_numpy(fields + np.reshape(mean, (-1, *(1 for _ in space))))


COLOURS = np.array([[2.0, 0.8, 0.0], [0.8, 1.0, -0.3], [0.0, -0.3, 0.5]])
MEAN = np.array([0.3, -1.0, 4.0])


@pytest.mark.parametrize(
    ("space", "length", "smoothness"),
    [((48, 40), 6.0, 1.0), ((48, 40), 3.0, 3.0), ((400,), 12.0, 2.0), ((14, 16, 12), 3.0, 1.0)],
)
def test_a_fit_recovers_the_field_that_images_were_drawn_from(space, length, smoothness):
    images = simulated(20, space, length, smoothness, COLOURS, MEAN, 0)
    other = tuple(size - 3 for size in space)
    smaller = simulated(20, other, length, smoothness, COLOURS, MEAN, 1)
    loader = [(images[:8], torch.zeros(8)), images[8:], smaller.float()]
    prior = GaussianFieldPrior().fit(loader)
    assert prior.correlation_length == pytest.approx(length, rel=0.1)
    assert prior.smoothness == pytest.approx(smoothness, rel=0.1)
    torch.testing.assert_close(
        prior.colour_covariance, torch.from_numpy(COLOURS), rtol=0.1, atol=0.05
    )
    torch.testing.assert_close(prior.mean, torch.from_numpy(MEAN), rtol=0.1, atol=0.5)
    assert prior.correlation_distance > prior.correlation_length
    assert f"over {prior.correlation_distance:.3g} pixels" in repr(prior)


def test_a_fit_to_very_smooth_images_tells_over_how_many_pixels_they_are_correlated():
    """Of l and b only the product counts there, and either may end at its bound."""
    images = simulated(20, (40, 40), 2.0, 50.0, COLOURS, MEAN, 0)
    prior = GaussianFieldPrior().fit(images)
    assert prior.correlation_distance == pytest.approx(math.sqrt(2.0 * 50.0), rel=0.15)
    # The eigenvalue at that distance has half the power of the eigenvalue 0.
    v = prior.correlation_distance**-2
    assert v + (prior.smoothness * v) ** 2 == pytest.approx(prior.correlation_length**-2)
    rough = make_field((7.0, 0.0), 1)
    assert rough.correlation_distance == 7.0


def test_a_fit_to_images_of_neighbours_alike_is_not_smooth():
    images = simulated(20, (40, 40), 1e3, 1e-6, COLOURS, MEAN, 0)
    prior = GaussianFieldPrior().fit(DataLoader(list(images), batch_size=7))
    assert prior.smoothness < 0.1
    assert prior.correlation_length > 50


def test_channels_that_are_equal_are_fitted_as_one():
    """As those of a grey photo that is stored in three colours."""
    images = simulated(10, (30, 28), 5.0, 1.0, COLOURS[:1, :1], MEAN[:1], 0)
    one, three = (GaussianFieldPrior().fit(images.expand(-1, n, -1, -1)) for n in (1, 3))
    assert three.correlation_length == pytest.approx(one.correlation_length, rel=0.01)
    assert three.smoothness == pytest.approx(one.smoothness, rel=0.01)
    expected = one.colour_covariance.expand(3, 3)
    torch.testing.assert_close(three.colour_covariance, expected, rtol=0.01, atol=0)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (torch.full((2, 3, 8, 8), 0.1), ValueError, "constant.*use GaussianFieldPrior"),
        ([], ValueError, "no batches to fit"),
        ([torch.rand(1, 3, 8, 8), torch.rand(1, 1, 8, 8)], ValueError, "1 channels where the fir"),
        (7, TypeError, "fit takes a tensor"),
        (torch.rand(3, 8), ValueError, "batch 0"),
    ],
)
def test_data_that_cannot_be_fitted_is_refused_and_changes_nothing(data, error, message):
    prior = GaussianFieldPrior()
    with pytest.raises(error, match=message):
        prior.fit(data)
    assert repr(prior) == "GaussianFieldPrior()"


def fit_part(rank, images):
    import torch.distributed as dist

    part = [images[:5], images[5:]][rank] if len(images) > 1 else [images, []][rank]
    prior = GaussianFieldPrior().fit(part, process_group=dist.group.WORLD)
    return prior.correlation_length, prior.smoothness, prior.mean, prior.colour_covariance


def test_ranks_fit_what_one_process_fits(pool):
    images = simulated(16, (30, 28), 5.0, 1.0, COLOURS, MEAN, 2)
    for some in (images, images[:1]):
        whole = GaussianFieldPrior().fit(some)
        for length, smoothness, mean, colours in pool(fit_part, some):
            assert length == pytest.approx(whole.correlation_length, rel=1e-4)
            assert smoothness == pytest.approx(whole.smoothness, rel=1e-4)
            torch.testing.assert_close(mean, whole.mean)
            torch.testing.assert_close(colours, whole.colour_covariance, rtol=1e-4, atol=1e-6)


def test_a_stored_field_is_the_same_field(tmp_path):
    path = tmp_path / "field.safetensors"
    prior = GaussianFieldPrior().fit(simulated(4, (30, 28), 5.0, 1.0, COLOURS, MEAN, 2))
    prior.save(path)
    again = GaussianFieldPrior.load(path)
    assert again.settings() == prior.settings()
    assert repr(again) == repr(prior)
    image, windows = make_images(1, 3, 9, 9)[0], WindowGrid((9, 9), (4, 4), (3, 3))
    assert torch.equal(*(p.conditional_mean(image, windows) for p in (prior, again)))
    with pytest.raises(ValueError, match="no fit to save; call fit"):
        GaussianFieldPrior().save(path, overwrite=True)
