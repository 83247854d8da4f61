"""Our methods in the hands of Captum, which knows nothing of them."""

import pytest
import torch
from captum.attr import (
    GradientAttribution,
    LayerAttribution,
    NoiseTunnel,
    PerturbationAttribution,
)
from captum.metrics import infidelity, sensitivity_max
from conftest import METHODS, make_classifier

from captum_pda import PDA, EfficientPDA, GradientPDA, LayerPDA, SampledPDA

WINDOWS = {"sliding_window_shapes": 4, "strides": 4}


@pytest.mark.parametrize(
    ("argument", "ours"),
    [
        ("baselines", "prior=ConstantPrior"),
        ("internal_batch_size", "perturbations_per_eval="),
        ("n_steps", "strides="),
        ("return_convergence_delta", "no convergence delta"),
        ("nt_samples", "NoiseTunnel"),
        ("prior", "constructor"),
    ],
)
def test_arguments_of_other_methods_are_answered_with_ours(method, argument, ours, images):
    pda = method(make_classifier())
    with pytest.raises(TypeError, match=rf"{method.__name__}.attribute has no.*{argument}.*{ours}"):
        pda.attribute(images, 1, **{argument: 1})


def test_an_argument_that_nobody_has_is_answered_with_those_there_are(method, images):
    with pytest.raises(TypeError, match=r"attribute has no argument strids: it takes .*strides"):
        method(make_classifier()).attribute(images, 1, strids=2)


@pytest.mark.parametrize(
    ("argument", "ours"), [("target", "attribution.target"), ("baselines", "prior=")]
)
def test_arguments_that_evidence_lacks_are_answered_too(argument, ours, images):
    with pytest.raises(TypeError, match=f"PDA.evidence has no argument {argument}: .*{ours}"):
        PDA(make_classifier()).evidence(images, **{argument: 1})


@pytest.mark.parametrize(
    ("kind", "name", "base"),
    [
        (EfficientPDA, "Efficient PDA", PerturbationAttribution),
        (SampledPDA, "Sampled PDA", PerturbationAttribution),
        (GradientPDA, "Gradient PDA", GradientAttribution),
        (LayerPDA, "Layer PDA", LayerAttribution),
        (PDA, "PDA", PerturbationAttribution),
    ],
)
def test_what_captum_documents_of_every_attribution(kind, name, base):
    pda = kind(make_classifier())
    assert isinstance(pda, base)
    assert kind.get_name() == name
    assert pda.has_convergence_delta() is False
    assert pda.multiplies_by_inputs is True


@pytest.mark.parametrize("kind", [EfficientPDA, SampledPDA, PDA])
def test_perturbation_methods_run_without_gradients_and_leave_them_on(kind, images):
    seen = []
    model = make_classifier()
    model.register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    kind(model).attribute(images, 1)
    assert seen
    assert not any(seen)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_a_noise_tunnel_takes_our_methods(kind, images):
    tunnel = NoiseTunnel(kind(make_classifier()))
    torch.manual_seed(0)
    found = tunnel.attribute(images, nt_samples=2, stdevs=0.0, target=1, **WINDOWS)
    torch.manual_seed(0)
    expected = kind(make_classifier()).attribute(images, target=1, **WINDOWS)
    if kind is not SampledPDA:  # which draws anew
        torch.testing.assert_close(found, expected)
    assert found.shape == images.shape


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_infidelity_and_sensitivity_take_our_methods(kind, images):
    model = make_classifier()
    pda = kind(model)
    attributions = pda.attribute(images, target=1, **WINDOWS)

    def perturb(inputs):
        noise = 0.1 * torch.randn_like(inputs)
        return noise, inputs - noise

    torch.manual_seed(0)
    assert infidelity(model, perturb, images, attributions, target=1).isfinite().all()
    found = sensitivity_max(pda.attribute, images, target=1, n_perturb_samples=2, **WINDOWS)
    assert found.shape == (2,)
    assert (found > 0).all()
