"""Symmetric relevance gain and its fills: against the oracle, closed forms and Quantus."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from conftest import make_classifier
from torch import Tensor, nn

from captum_pda import diagnostics
from captum_pda.priors.solver import weighted_means


def black(image: Tensor, seen: Tensor) -> Tensor:
    return torch.zeros_like(image)


def some_map(images: Tensor, seed: int = 3) -> Tensor:
    shape = (len(images), 1, *images.shape[2:])
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("output", ["logits", "probabilities"])
def test_the_gain_of_every_fill_is_the_oracles(output, images):
    model = make_classifier()
    if output == "probabilities":
        model = nn.Sequential(*model, nn.Softmax(1)).eval()
    relevance, targets = some_map(images), [1, 2]
    found = diagnostics.symmetric_relevance_gain(
        model,
        images,
        relevance,
        targets,
        fills={"mean": diagnostics.mean_fill, "linear": weighted_means, "black": black},
        n_steps=6,
        output=output,
    )

    def mean(image, seen):
        return image.mean(axis=(1, 2), keepdims=True)

    def linear(image, seen):
        return reference.impute_linearly(image, seen) if seen.any() else mean(image, seen)

    for number, image in enumerate(images.numpy()):
        order = relevance[number, 0].numpy()
        common = (model, image, order, 6)
        rest = (targets[number], output)
        for name, fill, bound in (
            ("mean", mean, 1e-9),
            ("black", lambda image, seen: 0, 1e-9),
            ("linear", linear, 1e-3),
        ):
            expected = reference.symmetric_relevance_gain(*common, fill, *rest)
            assert found.by_fill[name][number] == pytest.approx(expected, abs=bound)
            assert abs(expected) > 1e-4
    torch.testing.assert_close(found.gain, torch.stack(list(found.by_fill.values())).mean(0))
    assert str(found).startswith("2 examples: symmetric relevance gain ")
    assert all(words in str(found) for words in ("+-", "mean ", "black "))


@pytest.mark.parametrize("shape", [(2, 11, 9), (1, 30), (1, 5, 4, 6), (3, 13, 12)])
@pytest.mark.parametrize("share", [0.2, 0.9])
def test_removed_pixels_are_the_weighted_mean_of_their_neighbours(shape, share):
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(shape, generator=generator, dtype=torch.float64)
    seen = torch.rand((3, *shape[1:]), generator=generator) > share
    assert seen.flatten(1).any(1).all()
    found = weighted_means(image, seen)
    for row, which in zip(found, seen.numpy(), strict=True):
        expected = reference.impute_linearly(image.numpy(), which)
        np.testing.assert_allclose(row.numpy(), expected, atol=1e-7)
        np.testing.assert_array_equal(row.numpy()[:, which], image.numpy()[:, which])


@pytest.mark.parametrize("shape", [(3, 37, 41), (1, 1, 1), (2, 1, 9)])
def test_where_nothing_is_seen_stands_the_mean_colour(shape):
    image = 7 + torch.rand(shape, generator=torch.Generator().manual_seed(0))
    nothing = torch.zeros((1, *shape[1:]), dtype=torch.bool)
    expected = image.mean(dim=(1, 2), keepdim=True).expand_as(image)
    torch.testing.assert_close(weighted_means(image, nothing)[0], expected)


def test_noise_is_small_the_same_each_time_and_leaves_the_random_state(images):
    state = torch.get_rng_state()
    seen = torch.ones(1, 9, 11, dtype=torch.bool)
    first, second = (diagnostics.linear_fill(images[0], seen, 0.1) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    noise = first[0] - images[0]
    assert 0.07 < noise.std() / images[0].std() < 0.13


def test_curves_of_a_linear_model_are_sums(images):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 9 * 11, 1).double()).eval()
    contributions = model[1].weight.detach().reshape(1, 3, 9, 11) * images
    black_out = {"fills": {"black": black}, "n_steps": 9, "output": "raw"}
    found = diagnostics.symmetric_relevance_gain(model, images, contributions, **black_out)
    bias = model[1].bias.item()
    for number in range(2):
        ordered = np.sort(contributions[number].sum(0).numpy().reshape(-1))[::-1]
        for step in range(10):
            inserted = ordered[: 11 * step].sum() + bias
            deleted = ordered[11 * step :].sum() + bias
            assert found.least_first["black"][number, 9 - step] == pytest.approx(inserted)
            assert found.most_first["black"][number, step] == pytest.approx(deleted)
    torch.testing.assert_close(found.fractions, torch.arange(10).double() / 9)
    torch.testing.assert_close(found.insertion_area - found.deletion_area, found.gain)
    shuffled = contributions.flip(3)
    other = diagnostics.symmetric_relevance_gain(model, images, shuffled, **black_out)
    assert (found.deletion_area < other.deletion_area).all()
    assert (found.insertion_area > other.insertion_area).all()


def test_batches_that_do_not_fit_are_halved(images):
    model = make_classifier()
    sizes = []

    def small(inputs: Tensor) -> Tensor:
        sizes.append(len(inputs))
        if len(inputs) > 3:
            raise RuntimeError("out of memory")
        return model(inputs)

    arguments = (images, some_map(images), [0, 1])
    with pytest.warns(UserWarning, match="out of memory"):
        found = diagnostics.symmetric_relevance_gain(small, *arguments, n_steps=5)
    assert max(sizes) > 3
    expected = diagnostics.symmetric_relevance_gain(model, *arguments, n_steps=5)
    torch.testing.assert_close(found.gain, expected.gain)


def test_a_model_that_writes_into_its_input_changes_nothing(images):
    model = make_classifier()

    def writing(inputs: Tensor) -> Tensor:
        return model(inputs.mul_(2))

    before = images.clone()
    found = diagnostics.symmetric_relevance_gain(writing, images, some_map(images), [0, 1])
    assert torch.equal(images, before)
    expected = diagnostics.symmetric_relevance_gain(
        lambda inputs: model(2 * inputs), images, some_map(images), [0, 1]
    )
    torch.testing.assert_close(found.gain, expected.gain)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"fills": ("blur", "sepia")}, ValueError, "'sepia'"),
        ({"fills": ()}, ValueError, "at least one"),
        ({"fills": {"none": None}}, TypeError, "NoneType"),
        ({"fills": {"wrong": lambda image, seen: image[0]}}, ValueError, r"shape \(9, 11\)"),
        ({"n_steps": 0}, ValueError, "n_steps"),
        ({"output": "odds"}, ValueError, "output='odds'"),
        ({"perturbations_per_eval": 0}, ValueError, "perturbations_per_eval"),
    ],
)
def test_wrong_arguments_are_named(classifier, images, arguments, error, message):
    with pytest.raises(error, match=message):
        diagnostics.symmetric_relevance_gain(classifier, images, some_map(images), **arguments)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_quantus_sees_the_same_curves_on_the_same_masks():
    """Its pixel flipping of one channel, 11 pixels a step, black in place of what is removed."""
    quantus = pytest.importorskip("quantus")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(252, 3)).eval()
    images = torch.randn(2, 1, 9, 11)
    relevance = some_map(images)
    found = diagnostics.symmetric_relevance_gain(
        model, images, relevance, [1, 2], fills={"black": black}, n_steps=9
    )
    for curves, each in ((found.most_first, relevance), (found.least_first, 1 - relevance)):
        flipping = quantus.PixelFlipping(
            features_in_step=11,
            normalise=False,
            perturb_baseline=0.0,
            disable_warnings=True,
        )
        theirs = flipping(
            model=model,
            x_batch=images.numpy(),
            y_batch=np.array([1, 2]),
            a_batch=each.numpy(),
            softmax=True,
            device="cpu",
        )
        np.testing.assert_allclose(np.array(theirs), curves["black"][:, 1:].numpy(), atol=1e-6)
