"""Everything happens on the device of the inputs, shown on two pretended ones.

One holds values, so that its maps are compared with the CPU's; it also runs the backward pass of
GradientPDA. The other is PyTorch's own pretence of a graphics card, which has neither.
"""

import copy
from collections import Counter

import pytest
import torch
from conftest import make_convolutional
from pretended_device import DEVICE, PretendedTensor, pretended_device

from captum_pda import (
    PDA,
    ConstantPrior,
    EfficientPDA,
    EmpiricalMeanPrior,
    GaussianPatchPrior,
    GradientPDA,
    LayerPDA,
    MarginalPrior,
    SampledPDA,
    diagnostics,
    strongest_regions,
)
from captum_pda.report import write_report
from captum_pda.visualization import visualize_evidence

SMALL = {"sliding_window_shapes": 8, "strides": 8}
LARGE = {"sliding_window_shapes": 13, "strides": 10}
MASK = torch.arange(22)[:, None] // 8 * 2 + torch.arange(23) // 16

PRIORS = {
    "own": lambda images: None,
    "stationary": lambda images: GaussianPatchPrior(7).fit(images),
    "full": lambda images: GaussianPatchPrior(7, "full", "independent").fit(images),
    "fitted elsewhere": lambda images: GaussianPatchPrior(7).fit(images.cpu()),
    "marginal": lambda images: MarginalPrior().fit(images),
    "constant": lambda images: ConstantPrior(0.5),
    "empirical": lambda images: EmpiricalMeanPrior(GaussianPatchPrior(7).fit(images), 3),
}


def make_photos(n_examples=1):
    return torch.randn(n_examples, 3, 22, 23, generator=torch.Generator().manual_seed(2))


def assert_same(actual, expected, exact):
    """Equal; where the CPU has another solver, as for masks and superpixels, to its tolerance."""
    tolerance = 0 if exact else 1e-4 * float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@pytest.fixture
def on_device():
    """Check that a function of a model and images gives on a device what it gives on the CPU, be it
    one with double precision or, like Apple's, one without."""

    def check(function, n_examples=1, exact=True):
        model, images = make_convolutional(), make_photos(n_examples)
        expected = function(model, images)
        reads = Counter()
        for has_double in (True, False):
            with pretended_device(has_double) as device:
                actual = function(copy.deepcopy(model).to(DEVICE), images.to(DEVICE))
            if isinstance(expected, torch.Tensor):
                assert isinstance(actual, PretendedTensor)
                assert_same(actual.held, expected, exact)
            else:
                assert actual == expected
            reads += device.reads
        return reads

    return check


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("method", [EfficientPDA, SampledPDA])
def test_every_prior_fills_on_the_inputs_device(on_device, method, prior):
    on_device(
        lambda model, images: method(model, PRIORS[prior](images), engine="dense").attribute(
            images, target=[1, 2], sliding_window_shapes=6, strides=6
        ),
        n_examples=2,
    )


def explain(method, engine="auto", **arguments):
    """A function of a model and images, for target 1."""
    options = {} if method in (LayerPDA, GradientPDA) else {"engine": engine}
    return lambda model, images: method(model, **options).attribute(images, 1, **arguments)


#: What is explained, and whether the CPU gives the same bit by bit.
WAYS = {
    "both contexts": (explain(EfficientPDA, "dense", context="both", **SMALL), True),
    "incremental": (explain(EfficientPDA, "incremental", context="both", **SMALL), True),
    "samples": (explain(SampledPDA, "dense", **SMALL), True),
    "incremental samples": (explain(SampledPDA, "incremental", **SMALL), True),
    "large windows": (explain(SampledPDA, **LARGE), True),
    "superpixels": (explain(SampledPDA, "dense", superpixels=4, n_samples=2), False),
    "PDA": (explain(PDA, "incremental", scales=8), True),
    "a layer": (explain(LayerPDA, sliding_window_shapes=6, strides=6), True),
    "gradients": (explain(GradientPDA, **SMALL), True),
    "gradients of pixels": (explain(GradientPDA, pixelwise=True, **LARGE), True),
    "contrast": (lambda m, x: EfficientPDA(m).evidence(x, **SMALL).contrast(1, 2), True),
}


@pytest.mark.parametrize("way", WAYS)
def test_everything_happens_on_the_inputs_device(on_device, way):
    explained, exact = WAYS[way]
    on_device(explained, n_examples=2, exact=exact)


@pytest.mark.parametrize("context", ["full", "empty"])
@pytest.mark.parametrize("elsewhere", [True, False], ids=["mask on the CPU", "mask on the device"])
def test_a_feature_mask_may_be_on_either_device(on_device, context, elsewhere):
    def explained(model, images):
        mask = MASK[None, None] if elsewhere else MASK[None, None].to(images.device)
        return EfficientPDA(model).attribute(images, target=1, feature_mask=mask, context=context)

    on_device(explained, exact=False)


def test_a_fitted_prior_of_a_layers_map_is_on_its_device(on_device):
    def explained(model, images):
        prior = GaussianPatchPrior(7).fit(model[:3](images).detach())
        return LayerPDA(model, model[2], prior).attribute(
            images, target=[1, 2], sliding_window_shapes=6, strides=6
        )

    on_device(explained, n_examples=2)


TOOLS = {
    "self_test": lambda model, images: EfficientPDA(model).evidence(images, **SMALL).self_test(1),
    "total": lambda model, images: (
        EfficientPDA(model).evidence(images, context="both", **SMALL).total(1).cpu()
    ),
    "strongest_regions": lambda model, images: strongest_regions(
        EfficientPDA(model).evidence(images, **SMALL), 1
    ),
    "conditional_mean_error": lambda model, images: diagnostics.conditional_mean_error(
        EfficientPDA(model), images, n_samples=2
    ),
    "sampling_convergence": lambda model, images: diagnostics.sampling_convergence(
        EfficientPDA(model), images, n_samples=2, repeats=2
    ),
    "activation_statistics": lambda model, images: diagnostics.activation_statistics(
        EfficientPDA(model), images, model[2], n_samples=2
    ),
    "algorithm_agreement": lambda model, images: diagnostics.algorithm_agreement(
        EfficientPDA(model), images, n_samples=2, **SMALL
    ),
    "symmetric_relevance_gain": lambda model, images: diagnostics.symmetric_relevance_gain(
        model, images, images[:, :1], n_steps=2
    ),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_works_on_a_device(on_device, tool):
    on_device(lambda model, images: str(TOOLS[tool](model, images)))


def test_evidence_of_a_device_is_drawn_and_reported(on_device, tmp_path):
    def page(model, images):
        evidence = SampledPDA(model).evidence(images, **SMALL)
        visualize_evidence(evidence.attribution(1)[0], images[0])
        write_report(evidence, tmp_path / "tested.html")
        return write_report(evidence, tmp_path / "why.html", test=False).read_text()

    on_device(page)
    # Pixels of any shape are filled on the CPU, and on a device, up to rounding.
    for curve in ("hidden", "shown"):
        on_device(
            lambda model, images, curve=curve: getattr(
                SampledPDA(model).evidence(images, **SMALL).self_test(1), curve
            ),
            exact=False,
        )


@pytest.mark.parametrize("way", ["both contexts", "large windows", "superpixels", "a layer"])
def test_a_default_device_changes_nothing(way):
    """As after ``torch.set_default_device("cuda")``: what is worked out on the CPU stays there."""
    model, images = make_convolutional(), make_photos()
    explained, exact = WAYS[way]
    expected = explained(model, images)
    with pretended_device(), torch.device(DEVICE):
        actual = explained(model.to(DEVICE), images.to(DEVICE))
    assert_same(actual.held, expected, exact)


@pytest.mark.parametrize("method", [EfficientPDA, SampledPDA, PDA, LayerPDA, GradientPDA])
def test_a_default_device_without_values_changes_nothing(method):
    """As where a model is being built: tensors of no device's are the default."""
    model, images = make_convolutional(), make_photos()
    expected = method(model).attribute(images, target=1)
    with torch.device("meta"):
        found = method(model).attribute(images, target=1)
        if method is EfficientPDA:
            method(model).evidence(images, scales=(4,)).interactions(1, regions=4)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("engine", ["dense", "incremental"])
def test_values_are_read_back_as_often_for_many_windows_as_for_few(engine):
    model, images = make_convolutional(), make_photos()
    counts = []
    with pretended_device() as device:
        model, images = model.to(DEVICE), images.to(DEVICE)
        for strides in (4, 2):
            device.reads.clear()
            EfficientPDA(model, ConstantPrior(), engine=engine).attribute(
                images, target=1, sliding_window_shapes=4, strides=strides, perturbations_per_eval=2
            )
            counts.append(device.reads.total())
    assert counts[0] == counts[1]
    assert counts[0] < 12


def test_the_pretended_device_would_catch_a_mix_a_read_and_double_precision():
    with pretended_device(has_double=False) as device:
        ones = torch.ones(3, device=DEVICE)
        with pytest.raises(RuntimeError, match="one device"):
            ones + torch.ones(3)
        with pytest.raises(TypeError, match=r"no torch\.float64"):
            ones.double()
        for read in (lambda: float(ones[0]), ones.cpu, lambda: ones[ones > 0], ones.nonzero):
            device.reads.clear()
            read()
            assert device.reads.total() == 1
