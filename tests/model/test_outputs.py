"""What models return: objects, dicts and tuples, labels of their own, regions of outputs."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from conftest import make_classifier, make_images
from torch import Tensor, nn

from captum_pda import EfficientPDA, GradientPDA, SampledPDA

ALL = pytest.mark.parametrize("method", [EfficientPDA, SampledPDA, GradientPDA])
WINDOWS: dict[str, Any] = {"sliding_window_shapes": 4, "strides": 4}


@dataclass
class Answer:
    loss: Tensor
    logits: Tensor


class Named(NamedTuple):
    logits: Tensor
    aux: Tensor


@pytest.fixture
def image() -> Tensor:
    return make_images(1, 3, 8, 8)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y: Answer(y.mean(), y),
        lambda y: Named(y, y * 2),
        lambda y: {"logits": y, "hidden": y * 2},
        lambda y: OrderedDict(out=y, aux=y * 2),
        lambda y: (y, y * 2),
        lambda y: [y],
        lambda y: (y, {"hidden": y}),
    ],
)
@ALL
def test_scores_are_found_in_what_a_model_returns(
    method: type, wrap: Callable[[Tensor], object], image: Tensor
) -> None:
    model = make_classifier()
    torch.manual_seed(0)
    expected = method(model).attribute(image, 1, **WINDOWS)
    found = method(lambda x: wrap(model(x))).attribute(image, 1, **WINDOWS)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (lambda y: {"logits": y, "out": y}, r"\['logits'\] \(1, 4\), \['out'\].*model\(x\)\['logi"),
        (lambda y: {"scores": y, "hidden": y}, r"model\(x\)\['scores'\]"),
        (lambda y: {"scores": [1]}, r"dict without a tensor \(it has .*scores.*\)"),
        (lambda y: (y.mean(), y), r"\[0\] \(\), \[1\] \(1, 4\).*lambda x: model\(x\)\[1\]"),
        (lambda y: (y[:, :, None].expand(-1, -1, 7), y), r"lambda x: model\(x\)\[1\]"),
        (lambda y: (), "tuple without a tensor"),
        (lambda y: "cat", "returned a str without a tensor"),
    ],
)
@ALL
def test_an_unclear_answer_names_the_choice(
    method: type, wrap: Callable[[Tensor], object], words: str, image: Tensor
) -> None:
    model = make_classifier()
    with pytest.raises(TypeError, match=words):
        method(lambda x: wrap(model(x))).attribute(image, 1, **WINDOWS)


def test_an_object_without_scores_lists_its_tensors(image: Tensor) -> None:
    @dataclass
    class Boxes:
        boxes: Tensor
        note: str

    model = make_classifier()
    with pytest.raises(TypeError, match=r"a Boxes with the tensors \.boxes \(1, 4\).*\.boxes$"):
        EfficientPDA(lambda x: Boxes(model(x), "")).attribute(image, 1, **WINDOWS)


def test_another_error_of_the_model_stays_its_own() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)).eval()
    with pytest.raises(RuntimeError, match="to have 4 channels"):
        EfficientPDA(model).attribute(torch.randn(1, 3, 8, 8), 1)


@ALL
def test_one_number_per_example_is_not_taken_for_a_logit_without_a_word(
    method: type, image: Tensor
) -> None:
    model = make_classifier()

    def similarity(x: Tensor) -> Tensor:
        return torch.cosine_similarity(model(x), torch.ones(1, 4, dtype=x.dtype))

    with pytest.warns(UserWarning, match="similarity.*output='raw'"):
        as_logit = method(similarity).attribute(image, **WINDOWS)
    same = method(lambda x: similarity(x)[:, None]).attribute(image, **WINDOWS)
    torch.testing.assert_close(as_logit, same)
    assert method(similarity, output="raw").attribute(image, **WINDOWS).abs().max() > 0


@ALL
def test_labels_of_their_own_are_each_one_logit(method: type, image: Tensor) -> None:
    model = make_classifier()
    for label in (0, 3):
        found = method(model, output="multilabel").attribute(image, label, **WINDOWS)
        alone = method(lambda x, label=label: model(x)[:, [label]]).attribute(image, **WINDOWS)
        torch.testing.assert_close(found, alone)
    as_classes = method(model).attribute(image, 0, **WINDOWS)
    assert not torch.allclose(as_classes, method(model, output="multilabel").attribute(image, 0))


def test_labels_have_probabilities_that_do_not_compete(image: Tensor) -> None:
    model = make_classifier()
    evidence = EfficientPDA(model, output="multilabel").evidence(image, **WINDOWS)
    torch.testing.assert_close(evidence.probabilities, model(image).sigmoid())


def segmenter() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.Tanh(), nn.Conv2d(5, 2, 3)).double()


@pytest.mark.parametrize("measure", ["weight_of_evidence", "probability_difference"])
@ALL
def test_a_mask_is_the_sum_over_its_places(method: type, measure: str, image: Tensor) -> None:
    pda = method(segmenter().eval(), measure=measure)
    places = [(0, 1), (3, 2), (3, 3)]
    mask = torch.zeros(6, 6, dtype=torch.bool)
    for place in places:
        mask[place] = True
    one_by_one = sum(pda.attribute(image, (1, *place), **WINDOWS) for place in places)
    torch.testing.assert_close(pda.attribute(image, (1, mask), **WINDOWS), one_by_one)
    every = torch.zeros(2, 6, 6, dtype=torch.bool)
    every[1] = mask
    torch.testing.assert_close(pda.attribute(image, every, **WINDOWS), one_by_one)


def test_evidence_of_every_output_reads_a_mask_too(image: Tensor) -> None:
    pda = EfficientPDA(segmenter().eval())
    mask = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)) > 0.5
    evidence = pda.evidence(image, **WINDOWS)
    torch.testing.assert_close(
        evidence.attribution((1, mask)), pda.attribute(image, (1, mask), **WINDOWS)
    )


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ((1, torch.ones(5, 6, dtype=torch.bool)), r"mask of shape \(5, 6\).*\(6, 6\)"),
        (torch.ones(6, 6, dtype=torch.bool), r"\(6, 6\) for outputs of shape \(2, 6, 6\)"),
        (torch.zeros(2, 6, 6, dtype=torch.bool), "without a True"),
        ((2, torch.ones(6, 6, dtype=torch.bool)), "out of range"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(target: Any, words: str, image: Tensor) -> None:
    with pytest.raises(ValueError, match=words):
        EfficientPDA(segmenter().eval()).attribute(image, target, **WINDOWS)


def test_a_sum_over_a_region_has_no_standard_error(image: Tensor) -> None:
    pda = SampledPDA(segmenter().eval())
    mask = torch.ones(6, 6, dtype=torch.bool)
    evidence = pda.evidence(image, n_samples=3, **WINDOWS)
    with pytest.raises(ValueError, match="ask for one output"):
        evidence.standard_error((1, mask))
    with pytest.raises(ValueError, match="leave tolerance out"):
        pda.attribute(image, (1, mask), tolerance=0.1, **WINDOWS)
