"""Bad input gets an error that names the argument, the value and the next step."""

import math
from collections import UserDict

import numpy as np
import pytest
import torch
from conftest import make_images
from torch import nn

from captum_pda import (
    ConstantPrior,
    GaussianPatchPrior,
    GradientPDA,
    NonFiniteOutputError,
    NotFittedError,
    SampledPDA,
    WindowEvidence,
)

PIXEL_VALUES = r"Pass inputs\['pixel_values'\].*lambda x: model\(pixel_values=x\)"
#: As a processor of HuggingFace returns them.
MANY_INPUTS = {"attention_mask": torch.ones(1, 9), "pixel_values": torch.zeros(1, 3, 9, 9)}


@pytest.mark.parametrize(
    ("inputs", "error", "says"),
    [
        (None, TypeError, "inputs must be a tensor"),
        ([torch.zeros(1, 3, 9, 9)], TypeError, r"tuple of tensors, got list.*tuple\(inputs\)"),
        (MANY_INPUTS, TypeError, PIXEL_VALUES),
        (UserDict(MANY_INPUTS), TypeError, PIXEL_VALUES),
        ({"path": "cat.jpg"}, TypeError, "got dict without a tensor"),
        (np.zeros((1, 3, 9, 9)), TypeError, r"torch\.as_tensor\(inputs\)"),
        ((), ValueError, "empty tuple"),
        ((torch.zeros(1, 3, 9, 9), None), TypeError, r"inputs\[1\]"),
        (torch.zeros(1, 3, 9, 9, dtype=torch.uint8), TypeError, r"\.float\(\)"),
        (torch.zeros(1, 3, 9, 9, dtype=torch.complex64), TypeError, "complex"),
        (torch.zeros(3, 9), ValueError, "unsqueeze"),
        (torch.zeros(0, 3, 9, 9), ValueError, "nothing to explain"),
        (torch.full((1, 3, 9, 9), math.nan), ValueError, "nan_to_num"),
        (torch.full((1, 3, 9, 9), math.inf), ValueError, "infinite"),
        ((torch.zeros(1, 3, 9, 9), torch.zeros(2, 3, 9, 9)), ValueError, "2 examples"),
    ],
)
def test_inputs_that_cannot_be_explained(method, classifier, inputs, error, says):
    with pytest.raises(error, match=says):
        method(classifier).attribute(inputs, target=0)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"target": None}, ValueError, "target is missing"),
        ({"target": 4}, ValueError, "out of range"),
        ({"target": [1]}, ValueError, "1 entries for 2 examples"),
        ({"target": 1.5}, TypeError, "integer"),
        ({"target": 1, "sliding_window_shapes": 12}, ValueError, "larger than the input"),
        ({"target": 1, "sliding_window_shapes": 3, "strides": 4}, ValueError, "at most 3"),
    ],
)
def test_arguments_that_make_no_sense(method, classifier, images, arguments, error, says):
    with pytest.raises(error, match=says):
        method(classifier).attribute(images, **arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"output": "softmax"}, "'logits', 'multilabel', 'probabilities', 'raw'"),
        ({"measure": "bits"}, "'weight_of_evidence', 'probability_difference'"),
        ({"output": "raw", "measure": "probability_difference"}, "raw"),
    ],
)
def test_unknown_options_list_the_choices(method, classifier, arguments, says):
    with pytest.raises(ValueError, match=says):
        method(classifier, **arguments)


@pytest.mark.parametrize("engine", ["fast", None, 3])
def test_unknown_engines_list_the_choices(perturbation_method, classifier, engine):
    with pytest.raises(ValueError, match="'auto', 'dense'"):
        perturbation_method(classifier, engine=engine)


@pytest.mark.parametrize("name", ["perturbations_per_eval", "n_samples"])
@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (1.5, TypeError)])
def test_counts_that_make_no_sense(classifier, images, name, value, error):
    with pytest.raises(error, match=name):
        SampledPDA(classifier).attribute(images, target=1, **{name: value})


def test_priors_that_cannot_be_used(method, classifier, images):
    with pytest.raises(NotFittedError, match="fit"):
        method(classifier, GaussianPatchPrior(8)).attribute(images, target=1)
    with pytest.raises(ValueError, match="patch_size beyond 5"):
        method(classifier, GaussianPatchPrior(5).fit(images)).attribute(
            images, target=1, sliding_window_shapes=5
        )
    with pytest.raises(ValueError, match="2 channels"):
        method(classifier, GaussianPatchPrior(8).fit(images[:, :2])).attribute(images, target=1)
    with pytest.raises(TypeError, match="PatchPrior"):
        method(classifier, prior="grey").attribute(images, target=1)


def test_a_prior_is_an_object_not_a_class(method, classifier, images):
    with pytest.raises(
        TypeError, match=r"prior=<class .*> has no method (conditional_mean|sample); use a Gau"
    ):
        method(classifier, prior=ConstantPrior).attribute(images, target=1)


def test_priors_with_fills_of_another_shape(method, classifier, images):
    class Wrong(ConstantPrior):
        def conditional_mean(self, example, regions):
            return super().conditional_mean(example, regions)[:, :1]

    with pytest.raises(ValueError, match="fills of shape"):
        method(classifier, Wrong()).attribute(images, target=1)


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [
        (lambda x: (x.mean(), x.mean((2, 3))), TypeError, r"model\(x\)\[1\]"),
        (lambda x: x.mean((2, 3)).argmax(1), TypeError, "labels"),
        (lambda x: x.mean((0, 2, 3)), ValueError, "first dimension"),
        (lambda x: x.mean(), ValueError, "first dimension"),
        (lambda x: x.mean((2, 3)) * math.nan, ValueError, "unperturbed"),
    ],
    ids=["tuple", "labels", "no batch", "scalar", "NaN"],
)
def test_outputs_that_cannot_be_read(method, images, model, error, says):
    with pytest.raises(error, match=says):
        method(model).attribute(images, target=0)


def test_outputs_that_contradict_the_setting(method, classifier, images):
    with pytest.raises(ValueError, match="output='logits'"):
        method(classifier, output="probabilities").attribute(images, target=1)
    probabilities = nn.Sequential(classifier, nn.Softmax(dim=1)).eval()
    with pytest.warns(UserWarning, match="output='probabilities'"):
        method(probabilities).attribute(images, target=1)
    torch.testing.assert_close(
        method(probabilities, output="probabilities").attribute(images, target=1),
        method(classifier).attribute(images, target=1),
    )


def breaks_on_a_window(images, classifier):
    """A model that answers NaN where the top left pixel was replaced."""

    def model(x):
        broken = x[:, 0, 0, 0] != images[0, 0, 0, 0]
        return torch.where(broken[:, None], math.nan, classifier(x))

    return model


def test_windows_without_a_finite_output_lose_nothing_else(perturbation_method, classifier):
    image = make_images(1, 3, 9, 11)
    arguments = {"sliding_window_shapes": 3, "strides": 3}
    model = breaks_on_a_window(image, classifier)
    with pytest.raises(NonFiniteOutputError, match="without 1 of the windows") as caught:
        perturbation_method(model).attribute(image, target=1, **arguments)
    result = caught.value.result
    expected = perturbation_method(classifier).attribute(image, target=1, **arguments)
    assert result[0, :, :3, :3].isnan().all()
    result[0, :, :3, :3] = expected[0, :, :3, :3]
    torch.testing.assert_close(result, expected)
    with pytest.raises(NonFiniteOutputError) as caught:
        perturbation_method(model).evidence(image, **arguments)
    assert isinstance(caught.value.result, WindowEvidence)


def test_gradients_that_are_not_finite_lose_nothing(images):
    def model(x):
        return torch.where(x > 0, x, 0 * x).sqrt().flatten(1)[:, :3]

    with pytest.raises(NonFiniteOutputError, match="gradient") as caught:
        GradientPDA(model).attribute(images, target=1)
    assert caught.value.result.shape == images.shape


class DetachedFeatures(nn.Module):
    """Has parameters with gradients, but none with respect to its input."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3).double()

    def forward(self, x, *_):
        return self.head(x.detach().mean(dim=(2, 3)))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda x: x.detach().mean(dim=(2, 3)), "no gradient with respect to inputs: "),
        (lambda x: (x > 0).float().mean(dim=(2, 3)) - 1, "use EfficientPDA"),
        (DetachedFeatures().eval(), r"no gradient with respect to (inputs\[0\]|one of the inputs)"),
    ],
)
def test_models_without_gradients(images, model, says):
    with pytest.raises(ValueError, match=says):
        GradientPDA(model).attribute(images, target=1)


def test_one_input_without_a_gradient(images):
    with pytest.raises(ValueError, match="additional_forward_args"):
        GradientPDA(lambda x, y: x.mean(dim=(2, 3))).attribute((images, images), target=1)


def test_errors_of_the_model_itself_are_its_own(images):
    with pytest.raises(RuntimeError, match="must match the size"):
        GradientPDA(lambda x: x.flatten(1) + torch.zeros(7)).attribute(images, target=1)


def test_models_that_squeeze_their_outputs(method, classifier, images):
    """With 35 windows in batches of 17, the last batch holds one copy."""
    arguments = {"target": 1, "sliding_window_shapes": 3, "strides": (1, 2)}
    if method is not GradientPDA:
        arguments["perturbations_per_eval"] = 17
    expected = method(classifier).attribute(images, **arguments)
    squeezed = method(lambda x: classifier(x).squeeze()).attribute(images, **arguments)
    torch.testing.assert_close(squeezed, expected)


def test_warnings_point_at_the_users_line(method, classifier, images):
    classifier.train()
    with pytest.warns(UserWarning, match="training mode") as caught:
        method(classifier).attribute(images, target=1)
    assert caught[0].filename == __file__
