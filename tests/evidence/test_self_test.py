"""A map is tested on its own input: without the strongest pixels, and with only them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import make_classifier, make_images
from torch import nn

from captum_pda import PDA, ConstantPrior, EfficientPDA, GaussianPatchPrior
from captum_pda.evidence.self_test import SHARES, SelfTest, hidden_copies
from captum_pda.model.measures import RawDifference, WeightOfEvidence


class OnePatch(nn.Module):
    """Looks at the mean of one patch, and counts the examples that it saw."""

    rows = 0

    def forward(self, x):
        self.rows += len(x)
        score = 40 * x[:, :, 4:8, 4:8].mean(dim=(1, 2, 3))
        return torch.stack([score, torch.zeros_like(score)], dim=1)


def patch_evidence(sign=1.0):
    image = torch.zeros(1, 1, 16, 16)
    image[:, :, 4:8, 4:8] = 0.2
    model = OnePatch()
    mask = (torch.arange(16)[:, None] // 4 * 4 + torch.arange(16) // 4)[None, None]
    pda = EfficientPDA(model, ConstantPrior(0.0))
    evidence = pda.evidence(image, feature_mask=mask)
    if sign < 0:
        (part,) = evidence.parts
        turned = replace(part, scores=2 * part.reference[:, None] - part.scores)
        evidence = replace(evidence, parts=(turned,))
    return model, evidence


def test_a_map_that_explains_the_answer_passes():
    model, evidence = patch_evidence()
    before = model.rows
    test = evidence.self_test(0)
    assert (
        model.rows - before == 2 * len(SHARES) + 2
    )  # one to see that copies do not change each other
    assert test.passed
    assert test.share <= 0.1
    hidden, shown = test.at(0.1)
    assert hidden == pytest.approx(0.5)
    assert shown == pytest.approx(test.prediction)
    assert str(test).startswith("without the strongest ")
    assert test.gain > 0.3


def test_a_map_that_does_not_says_so():
    _, evidence = patch_evidence(sign=-1.0)
    test = evidence.self_test(0)
    assert not test.passed
    assert "does not explain the answer" in str(test)


@pytest.mark.parametrize(
    ("hidden", "passed", "share"),
    [
        ([0.2, 0.4, 0.3, 0.25, 0.1], False, 0.25),  # hiding the strongest pixels raises it
        ([0.2, 0.4, 0.1, 0.1, 0.1], True, 0.5),  # here half of the pixels lowers it
        ([0.2, 0.1, 0.1, 0.1, 0.1], True, 0.25),
        ([0.2, 0.2, 0.2, 0.1, 0.1], False, 0.25),  # most pixels, which lower it in any order
    ],
)
def test_a_map_passes_only_if_hiding_its_strongest_pixels_lowers_the_answer(hidden, passed, share):
    shown = torch.tensor([0.1, 0.9, 0.9, 0.9, 0.2])
    test = SelfTest(torch.linspace(0, 1, 5), torch.tensor(hidden), shown, WeightOfEvidence())
    assert (test.passed, test.share) == (passed, share)
    assert ("does not explain" in str(test)) != passed


@pytest.mark.parametrize("scale", [0.02, 0.009])
def test_a_class_that_is_hardly_predicted_has_no_answer_to_explain(scale):
    """Changes of a tenth of almost nothing are found in any map."""
    hidden = scale * torch.tensor([1.0, 0.1, 0.1, 0.1, 0.1])
    shown = torch.tensor([0.1 * scale, 0.5, 0.5, 0.5, scale])
    test = SelfTest(torch.linspace(0, 1, 5), hidden, shown, WeightOfEvidence())
    assert test.passed == (scale == 0.02)
    assert ("the answer, as there is hardly one: hiding" in str(test)) != test.passed


def test_a_raw_output_that_is_the_same_with_nothing_seen_needs_a_gain_too():
    """Of a box, say, that a detector finds in the blurred photo as well."""
    shares = torch.linspace(0, 1, 21)
    hidden = torch.ones(21)
    hidden[-2] = 0  # without the strongest 95%
    test = SelfTest(shares, hidden, torch.ones(21), RawDifference())
    assert 0 < test.gain < 0.1
    assert not test.passed


def test_the_curves_are_those_of_copies_made_by_hand():
    image, model = make_images(1, 3, 16, 16), make_classifier()
    evidence = PDA(model).evidence(image)
    test = evidence.self_test(2)
    values = evidence.attribution(2)[0, 0].flatten()
    order = values.argsort(descending=True, stable=True)
    for share in (0.1, 0.5):
        count = round(share * 256)
        masks = torch.ones(2, 256, dtype=torch.bool)
        masks[0, order[count:]] = False
        masks[1, order[:count]] = False
        copies = hidden_copies(image[0], masks.reshape(2, 16, 16), None)
        expected = model(copies).softmax(dim=1)[:, 2]
        assert test.at(share) == pytest.approx(tuple(expected.tolist()))
    assert test.prediction == pytest.approx(float(evidence.probabilities[0, 2]))
    assert float(test.shown[-1]) == pytest.approx(test.prediction)


def test_the_total_is_everything_less_nothing():
    image, model = make_images(1, 3, 12, 12), make_classifier()
    evidence = PDA(model, prior=ConstantPrior(0.0)).evidence(image)
    outputs = model(torch.cat([image, torch.zeros_like(image)])).detach()
    both = outputs.softmax(dim=1)[:, 1]
    odds = torch.log2(both / (1 - both))
    assert float(evidence.total(1)[0]) == pytest.approx(float(odds[0] - odds[1]))


def test_several_examples_raw_outputs_and_no_model():
    images, model = make_images(2, 3, 12, 12), make_classifier()
    evidence = EfficientPDA(model, output="raw").evidence(images, sliding_window_shapes=4)
    with pytest.raises(ValueError, match="example=0"):
        evidence.self_test(1)
    test = evidence.self_test(1, example=1)
    assert test.prediction == pytest.approx(float(model(images).detach()[1, 1]))
    with pytest.raises(ValueError, match="no model to ask"):
        replace(evidence, ask=None).self_test(1, example=0)


def test_a_prior_of_small_patches_is_tested_in_the_blurred_input():
    """Regions of half an image are beyond its patches, and the map must not be lost for that."""
    image, model = make_images(1, 3, 20, 20), make_classifier()
    prior = GaussianPatchPrior(8).fit(image)
    evidence = EfficientPDA(model, prior).evidence(image, sliding_window_shapes=4, strides=4)
    test = evidence.self_test(1)
    masks = torch.zeros(1, 20, 20, dtype=torch.bool)
    masks[0, :15] = True
    copies = hidden_copies(image[0], masks, prior)
    assert torch.equal(copies[0, :, :15], prior.nothing_seen(image[0])[:, :15])
    assert torch.equal(copies[0, :, 15:], image[0, :, 15:])
    assert test.prediction == pytest.approx(float(evidence.probabilities[0, 1]))
