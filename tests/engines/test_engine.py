"""The dense engine: batches, memory, layouts and modes."""

import pytest
import torch
from conftest import make_classifier, make_convolutional, make_images
from torch import nn

from captum_pda import (
    ConstantPrior,
    DenseEngine,
    EfficientPDA,
    GaussianPatchPrior,
    SampledPDA,
    WindowGrid,
)
from captum_pda.engines import BatchSize

GRID = WindowGrid((9, 11), (3, 4), (2, 3))


def run(forward, example, fills, rows=None, grid=GRID):
    done = []
    prepared = DenseEngine().prepare(forward, example, BatchSize(rows))
    scores = prepared.scores(grid, fills, lambda outputs: outputs, done.append)
    assert sum(done) == scores.shape[0] * scores.shape[1]
    return scores, done


def expected_outputs(forward, example, fills, grid=GRID):
    """One forward pass for each window and fill, with the window written by a slice."""
    outputs = []
    for sample in fills:
        for corner, fill in zip(grid.corners.tolist(), sample, strict=True):
            copy = example.clone()
            place = [slice(c, c + k) for c, k in zip(corner, grid.window, strict=True)]
            copy[(0, slice(None), *place)] = fill
            outputs.append(forward(copy))
    return torch.cat(outputs).reshape(len(fills), len(grid), -1)


@pytest.fixture
def example():
    return make_images(1, 3, 9, 11)


@pytest.fixture
def fills():
    return make_images(2, len(GRID) * 3, 3, 4, seed=5).reshape(2, len(GRID), 3, 3, 4)


@pytest.mark.parametrize("rows", [None, 1, 3, 7, 1000])
def test_every_window_gets_its_own_fill_whatever_the_batch_size(classifier, example, fills, rows):
    """Batches of 3 and 7 do not divide the number of copies, so the last one is not full."""
    scores, _ = run(classifier, example, fills, rows)
    with torch.no_grad():
        torch.testing.assert_close(scores, expected_outputs(classifier, example, fills))


@pytest.mark.parametrize(
    ("space", "window"), [((13,), (4,)), ((9, 11), (9, 2)), ((4, 5, 6), (2, 2, 3))]
)
def test_one_to_three_dimensions(space, window):
    classifier = make_classifier(len(space), channels=2)
    example = make_images(1, 2, *space)
    grid = WindowGrid(space, window, window)
    fills = torch.randn(1, len(grid), 2, *window, dtype=torch.float64)
    scores, _ = run(classifier, example, fills, 2, grid)
    with torch.no_grad():
        torch.testing.assert_close(scores, expected_outputs(classifier, example, fills, grid))


def test_batches_are_channels_last_without_gradients(example, fills):
    seen = []

    def forward(copies):
        seen.append(
            (
                copies.is_contiguous(memory_format=torch.channels_last),
                torch.is_grad_enabled(),
                copies.requires_grad,
            )
        )
        return copies.flatten(1)[:, :2]

    scores, _ = run(forward, example, fills, 8)
    assert set(seen) == {(True, False, False)}
    assert not scores.is_inference()


def test_outputs_that_share_memory_with_the_copies_are_kept_apart(example, fills):
    def forward(copies):
        return copies[:, :, 0, 0]

    scores, _ = run(forward, example, fills, 4)
    torch.testing.assert_close(scores, expected_outputs(forward, example, fills))


def test_models_that_write_into_their_input(classifier, example, fills):
    def forward(copies):
        return classifier(copies.mul_(2).sub_(1))

    scores, _ = run(forward, example, fills, 4)
    with torch.no_grad():
        torch.testing.assert_close(scores, expected_outputs(forward, example, fills))
    torch.testing.assert_close(example, make_images(1, 3, 9, 11), rtol=0, atol=0)


def test_models_that_cannot_take_channels_last(example, fills):
    def forward(copies):
        return copies.view(len(copies), -1)[:, ::7]

    scores, done = run(forward, example, fills, 4)
    torch.testing.assert_close(scores, expected_outputs(forward, example, fills))
    assert len(done) == -(-2 * len(GRID) // 4)


def refusing_more_than(limit, forward, error):
    sizes = []

    def limited(copies):
        sizes.append(len(copies))
        if len(copies) > limit:
            raise error
        return forward(copies)

    return limited, sizes


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("MPS backend out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
    ids=lambda error: str(error) or "MemoryError",
)
def test_running_out_of_memory_halves_the_batch_and_loses_nothing(
    classifier, example, fills, error
):
    limited, sizes = refusing_more_than(5, classifier, error)
    with pytest.warns(UserWarning, match="going on with") as caught:
        scores, done = run(limited, example, fills, 16)
    assert "going on with 4" in str(caught[-1].message)
    assert sizes[:3] == [16, 8, 4]
    assert max(sizes[2:]) == 4
    assert sum(done) == 2 * len(GRID)
    with torch.no_grad():
        torch.testing.assert_close(scores, expected_outputs(classifier, example, fills))


def test_memory_runs_out_only_once_a_call(classifier, images):
    limited, sizes = refusing_more_than(6, classifier, MemoryError())
    with pytest.warns(UserWarning, match="out of memory") as caught:
        EfficientPDA(limited).attribute(images, target=1, perturbations_per_eval=8)
    assert len(caught) == 1
    assert sizes.count(8) == 1


def test_one_copy_that_does_not_fit_is_an_error(example, fills):
    limited, _ = refusing_more_than(0, nn.Identity(), MemoryError())
    with pytest.raises(MemoryError):
        run(limited, example, fills, 1)


def test_other_errors_of_the_model_reach_the_user(example, fills):
    def forward(copies):
        raise RuntimeError("my own mistake")

    with pytest.raises(RuntimeError, match="my own mistake"):
        run(forward, example, fills, 4)


@pytest.mark.parametrize(
    ("shape", "rows"), [((1, 3, 224, 224), 5), ((1, 1, 8, 8), 1024), ((1, 1, 2000, 2000), 1)]
)
def test_the_automatic_batch_size_follows_the_size_of_an_example(shape, rows):
    assert BatchSize().rows_for(torch.zeros(shape)) == rows


def test_the_automatic_batch_size_counts_all_that_goes_into_the_model():
    small, large = torch.randn(1, 1, 16), torch.randn(1, 3, 64, 64)
    sizes = []

    def model(x, y, z):
        sizes.append(len(x))
        assert len(x) == len(y) == len(z)
        return x.mean(dim=(1, 2)) + y.mean(dim=(1, 2, 3)) + z.mean(dim=1)

    EfficientPDA(model, output="raw", engine="dense").attribute(
        (small, large),
        additional_forward_args=torch.zeros(1, 1000),
        sliding_window_shapes=((4,), (10, 10)),
        strides=((4,), (4, 4)),
    )
    assert max(sizes) == 3 * 2**18 // (16 + 3 * 64 * 64 + 1000)


def test_autocast_is_respected():
    classifier = make_convolutional()
    images = make_images(1, 3, 9, 11).float()
    seen = set()
    classifier[0].register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        attributions = EfficientPDA(classifier, engine="dense").attribute(images, target=1)
    assert seen == {torch.bfloat16}
    assert attributions.dtype == torch.float32
    expected = EfficientPDA(classifier, engine="dense").attribute(images, target=1)
    torch.testing.assert_close(attributions, expected, rtol=0, atol=0.02)


@pytest.mark.parametrize("prior", [None, GaussianPatchPrior(8, channels="independent")])
def test_autocast_does_not_reach_the_prior(prior):
    """Values far from zero would lose all their detail in half precision."""
    images = make_images(1, 3, 19, 21).float() - 600
    if prior is not None:
        prior.fit(images)
    batches = []

    def model(copies):
        batches.append(copies.clone())
        return copies.mean(dim=(2, 3))

    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            for method, options in ((SampledPDA, {"n_samples": 2}), (EfficientPDA, {})):
                pda = method(model, prior, engine="dense")
                pda.attribute(images, target=1, sliding_window_shapes=4, strides=3, **options)
    half = len(batches) // 2
    torch.testing.assert_close(batches[half:], batches[:half])


def test_data_parallel_models(classifier, images):
    expected = EfficientPDA(classifier).attribute(images, target=1)
    parallel = nn.DataParallel(classifier)
    torch.testing.assert_close(EfficientPDA(parallel).attribute(images, target=1), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models(dtype):
    classifier = make_convolutional().to(dtype)
    images = make_images(1, 3, 9, 11).to(dtype)
    attributions = SampledPDA(classifier).attribute(images, target=1, n_samples=2)
    assert attributions.dtype == torch.float32
    assert attributions.isfinite().all()


def test_what_a_model_caches_stays_usable_for_training(images):
    class Caching(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
            self.cache = None

        def forward(self, x):
            if self.cache is None:
                self.cache = torch.arange(3, dtype=x.dtype) * 2
            return (x * (self.weight * self.cache)[:, None, None]).mean(dim=(2, 3))

    model = Caching().eval()
    EfficientPDA(model).attribute(images, target=1)
    model(images).sum().backward()
    assert model.weight.grad.isfinite().all()


def test_an_engine_object_is_used_as_it_is(classifier, images):
    class Counting(DenseEngine):
        prepared = 0

        def prepare(self, *arguments):
            self.prepared += 1
            return super().prepare(*arguments)

    engine = Counting()
    attributions = EfficientPDA(classifier, ConstantPrior(), engine=engine).attribute(
        images, target=1
    )
    assert engine.prepared == len(images)
    expected = EfficientPDA(classifier, ConstantPrior(), engine="dense").attribute(images, target=1)
    torch.testing.assert_close(attributions, expected)
