"""Several sizes and both contexts, against the oracle that computes each of them by itself."""

import numpy as np
import pytest
import reference
import torch
from conftest import make_classifier, make_images

from captum_pda import (
    EfficientPDA,
    SampledPDA,
)

SAMPLES = 3


def expected_fill(image, corner, window, sample=0):
    """Something that depends on the image, the place, the size and the sample, (C, *window)."""
    colour = image.reshape(len(image), -1).mean(axis=1) + 0.1 * sum(corner) - 0.4 * sample
    return np.broadcast_to(colour.reshape(-1, *(1 for _ in window)), (len(image), *window))


class OwnPrior:
    """A prior that says everything: conditional means, samples, and both ends of a context."""

    def _fills(self, example, regions, sample):
        fills = [
            expected_fill(example.numpy(), corner, regions.window, sample)
            for corner in regions.corner_array.tolist()
        ]
        return torch.from_numpy(np.stack(fills))

    def conditional_mean(self, example, regions):
        return self._fills(example, regions, 0)

    def sample(self, example, regions, n_samples, generator=None):
        return torch.stack([self._fills(example, regions, s) for s in range(n_samples)])

    def nothing_seen(self, example):
        return 0.3 * example

    def seen_alone(self, example, regions):
        content = example.flatten(1)[:, regions.pixels()].transpose(0, 1)
        return regions, content.reshape(len(regions), len(example), *regions.window)


def slow_maps(model, image, target, size, stride, sampled):
    """The maps of one size in the full and the empty context, by the oracle."""
    space = image.shape[1:]
    window, strides = (size,) * len(space), (stride,) * len(space)
    corners = reference.window_corners(space, window, strides)
    question = (window, strides, target, "logits", "weight_of_evidence")
    draws = [
        np.stack([expected_fill(image, corner, window, s) for corner in corners])
        for s in range(SAMPLES if sampled else 1)
    ]
    full = (
        reference.sampled_pda(model, image, draws, *question)
        if sampled
        else reference.efficient_pda(model, image, draws[0], *question)
    )
    return full, reference.seen_alone_pda(model, image, 0.3 * image, *question)


@pytest.mark.parametrize("engine", ["dense", "incremental"])
@pytest.mark.parametrize("context", ["full", "empty", "both"])
@pytest.mark.parametrize("sampled", [False, True], ids=["efficient", "sampled"])
def test_sizes_and_contexts_are_those_of_the_oracle(sampled, context, engine):
    model, images = make_classifier(), make_images(2, 3, 9, 11)
    sizes = {2: 1, 5: 2}
    method = (SampledPDA if sampled else EfficientPDA)(model, OwnPrior(), engine=engine)
    own = {"n_samples": SAMPLES} if sampled else {}
    found = method.attribute(
        images, target=[1, 3], scales=tuple(sizes), strides=(1, 2), context=context, **own
    )
    for n, target in enumerate((1, 3)):
        each = [slow_maps(model, images[n].numpy(), target, *s, sampled) for s in sizes.items()]
        full, empty = zip(*each, strict=True)
        questions = {"full": [full], "empty": [empty], "both": [full, empty]}[context]
        expected = reference.combined(questions)
        torch.testing.assert_close(found[n, 0], torch.from_numpy(expected), rtol=1e-8, atol=1e-8)


def test_evidence_keeps_sizes_and_contexts_apart():
    model, images = make_classifier(), make_images(1, 3, 9, 11)
    evidence = EfficientPDA(model, OwnPrior()).evidence(images, scales=(2, 5), context="both")
    for n, size in enumerate((2, 5)):
        maps = slow_maps(model, images[0].numpy(), 2, size, 1, False)
        for context, expected in zip(("full", "empty"), maps, strict=True):
            found = evidence.at(size).in_context(context)
            torch.testing.assert_close(found.attribution(2)[0, 0], torch.from_numpy(expected))
            assert found.parts == (evidence.parts[2 * (context == "empty") + n],)
    with pytest.raises(ValueError, match=r"no windows of size 3; there are \(2, 2\), \(5, 5\)"):
        evidence.at(3)


def test_the_standard_errors_of_several_sizes_and_contexts_add_up_by_squared_weights():
    evidence = SampledPDA(make_classifier(), OwnPrior()).evidence(
        make_images(1, 3, 9, 11), scales=(2, 5), context="both", n_samples=SAMPLES
    )
    questions = [evidence.in_context(context) for context in ("full", "empty")]
    inverse = np.array([1 / one.attribution(1)[0, 0].numpy().std() for one in questions])
    weight = (inverse / inverse.sum())[0] / 2  # what is seen by itself is not sampled
    errors = [questions[0].at(size).standard_error_map(1)[0, 0].numpy() for size in (2, 5)]
    expected = np.sqrt(sum((weight * e) ** 2 for e in errors))
    torch.testing.assert_close(
        evidence.standard_error_map(1)[0, 0], torch.from_numpy(expected), rtol=1e-9, atol=1e-9
    )


def test_tensors_of_different_shapes_get_windows_of_their_own_sizes():
    one, two = make_images(2, 3, 28, 30), make_images(2, 2, 14, seed=4)

    def model(x, y):
        return torch.stack([x.mean(dim=(1, 2, 3)), y.amax(dim=(1, 2)), x.amin(dim=(1, 2, 3))], 1)

    evidence = EfficientPDA(model, OwnPrior()).evidence((one, two), context="both")
    assert [(part.tensor, part.size, part.context) for part in evidence.parts] == [
        (0, (4, 4), "full"),
        (0, (8, 8), "full"),
        (1, (2,), "full"),
        (1, (4,), "full"),
        (0, (8, 8), "empty"),
        (0, (12, 12), "empty"),
        (1, (4,), "empty"),
        (1, (6,), "empty"),
    ]
    maps = evidence.attribution([0, 2])
    assert [tuple(each.shape) for each in maps] == [(2, 3, 28, 30), (2, 2, 14)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scales": (2, 4), "sliding_window_shapes": 3}, "scales and sliding_window_shapes both"),
        ({"scales": (2, 12)}, r"scales=12 is larger than the input's spatial shape \(9, 11\)"),
        ({"scales": (2, 2)}, "holds a size twice"),
        ({"scales": ()}, "must be a tuple of sizes"),
        ({"scales": "16"}, "must be a tuple of sizes"),
        ({"scales": (2, 4), "strides": (1, 1, 1)}, "does not fit scales"),
        ({"scales": (2, 4), "strides": 3}, "steps over pixels"),
        (
            {"context": "half"},
            "context='half' is not known; choose one of 'full', 'empty', 'random'",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_in_plain_words(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        EfficientPDA(make_classifier()).attribute(make_images(1, 3, 9, 11), target=1, **arguments)
