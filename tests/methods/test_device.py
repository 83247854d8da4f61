"""Everything happens on the device of the inputs, shown on a pretended one."""

import pytest
import torch
from conftest import make_convolutional
from torch._subclasses.fake_tensor import FakeTensorMode

from captum_pda import (
    ConstantPrior,
    EfficientPDA,
    EmpiricalMeanPrior,
    GaussianPatchPrior,
    GradientPDA,
    MarginalPrior,
    SampledPDA,
)
from captum_pda.basics import device_sync

# The engine asks for a tensor's address, which a pretended one has not; PyTorch warns of it once.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")

CUDA = torch.device("cuda")
PRIORS = ["own", "stationary", "full", "fitted elsewhere", "marginal", "constant", "empirical"]


@pytest.fixture(params=["dense", "incremental"])
def engine(request):
    return request.param


@pytest.fixture
def pretended(monkeypatch):
    """A device without values: whoever reads a value, or mixes devices, fails.

    Only the functions of ``captum_pda.basics.device_sync`` may read values; they are replaced and
    counted here.
    """
    reads = []

    def read(answer):
        def replaced(*_):
            reads.append(answer)
            return answer

        return replaced

    monkeypatch.setattr(device_sync, "all_finite", read(True))
    monkeypatch.setattr(device_sync, "is_true", read(False))
    monkeypatch.setattr(device_sync, "as_float", read(0.0))
    monkeypatch.setattr(device_sync, "generator_for", lambda *_: torch.Generator())
    with FakeTensorMode(allow_non_fake_inputs=False):
        try:
            torch.empty(2, device=CUDA).uniform_()
        except RuntimeError as error:
            if "CUDA error" not in str(error):
                raise
            pytest.skip("this PyTorch needs a driver even to pretend a graphics card")
        yield reads


def model_on_device():
    with CUDA:
        return make_convolutional()


def forward_only(forward, inputs, *_):
    """Stands for a backward pass, which needs a real device."""
    forward(*inputs)
    return tuple(torch.ones_like(tensor) for tensor in inputs)


def priors(images):
    return {
        "own": None,
        "stationary": GaussianPatchPrior(7).fit(images),
        "full": GaussianPatchPrior(7, covariance="full", channels="independent").fit(images),
        "fitted elsewhere": GaussianPatchPrior(7).fit(images.cpu()),
        "marginal": MarginalPrior().fit(images),
        "constant": ConstantPrior(0.5),
        "empirical": EmpiricalMeanPrior(GaussianPatchPrior(7).fit(images), 3),
    }


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("method", [EfficientPDA, SampledPDA])
def test_maps_are_made_on_the_inputs_device(pretended, method, prior, engine):
    model = model_on_device()
    images = torch.randn(2, 3, 20, 21, device=CUDA)
    pda = method(model, priors(images)[prior], engine=engine)
    attributions = pda.attribute(images, target=[1, 2], sliding_window_shapes=4, strides=4)
    assert attributions.device.type == "cuda"
    assert attributions.shape == images.shape


@pytest.mark.parametrize("prior", PRIORS)
def test_gradients_are_used_on_the_inputs_device(pretended, prior):
    images = torch.randn(2, 3, 20, 21, device=CUDA)
    pda = GradientPDA(model_on_device(), priors(images)[prior])
    pda.gradient_func = forward_only
    for pixelwise in (False, True):
        attributions = pda.attribute(
            images,
            target=[1, 2],
            sliding_window_shapes=4,
            strides=4,
            pixelwise=pixelwise,
        )
        assert attributions.device.type == "cuda"


@pytest.mark.parametrize("method", [EfficientPDA, SampledPDA])
def test_evidence_is_kept_on_the_inputs_device(pretended, method, engine):
    model = model_on_device()
    images = torch.randn(2, 3, 20, 21, device=CUDA)
    evidence = method(model, engine=engine).evidence(images, sliding_window_shapes=4, strides=4)
    assert evidence.parts[0].scores.device.type == "cuda"
    assert evidence.contrast(1, 2).device.type == "cuda"


def test_values_are_read_back_as_often_for_many_windows_as_for_few(pretended, engine):
    model = model_on_device()
    images = torch.randn(1, 3, 20, 21, device=CUDA)
    counts = []
    for strides in (4, 1):
        pretended.clear()
        EfficientPDA(model, ConstantPrior(), engine=engine).attribute(
            images, target=1, sliding_window_shapes=4, strides=strides, perturbations_per_eval=2
        )
        counts.append(len(pretended))
    assert counts[0] == counts[1]
    assert counts[0] < 10


def test_the_pretended_device_would_catch_a_mix(pretended):
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(3, device=CUDA) + torch.ones(3)
