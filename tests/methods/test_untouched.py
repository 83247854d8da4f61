"""The user's model, inputs and global state are as they were, after success and after failure."""

import copy
import gc
import random
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from conftest import METHODS, make_images
from torch import nn

from captum_pda import GradientPDA, SampledPDA


@pytest.fixture
def model():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.5)
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()
    model[0].weight.requires_grad_(False)
    model[6].weight.grad = torch.ones_like(model[6].weight)
    model[1].train()
    model.eval()
    return model


HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
)
GLOBAL_HOOKS = [
    value for name, value in vars(torch.nn.modules.module).items() if name.endswith("_hooks")
]


def hooks_of(module):
    return [getattr(module, name) for name in HOOKS]


def state_of(model: nn.Module, images: torch.Tensor) -> dict:
    return {
        "values": copy.deepcopy(model.state_dict()),
        "identity": [parameter.data_ptr() for parameter in model.parameters()],
        "objects": [id(parameter) for parameter in model.parameters()],
        "formats": [parameter.stride() for parameter in model.parameters()],
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "hooks": [list(hooks) for module in model.modules() for hooks in hooks_of(module)],
        "global hooks": [list(hooks) for hooks in GLOBAL_HOOKS],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "buffers": [id(buffer) for buffer in model.buffers()],
        "random": torch.get_rng_state(),
        "Python's random": random.getstate(),
        "NumPy's random": str(np.random.get_state()),  # noqa: NPY002 - the one to leave alone
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "images": images.clone(),
        "images require grad": images.requires_grad,
        "images' gradient": images.grad,
        "images' version": images._version,
    }


def assert_same(before: dict, after: dict) -> None:
    for name, value in before.items():
        if isinstance(value, torch.Tensor | dict) or name == "gradients":
            torch.testing.assert_close(
                after[name], value, rtol=0, atol=0, msg=f"{name} changed", allow_subclasses=True
            )
        else:
            assert after[name] == value, f"{name} changed"


#: Every class on every engine.
EVERY_WAY = [
    (method, engine)
    for method in METHODS
    for engine in (["auto"] if method is GradientPDA else ["dense", "incremental", "auto"])
]
every_way = pytest.mark.parametrize(("method", "engine"), EVERY_WAY)


def explain(method, model, images, engine="auto"):
    options = {} if method is GradientPDA else {"engine": engine}
    arguments = {"sliding_window_shapes": 4, "strides": 2}
    if method is SampledPDA:
        arguments["n_samples"] = 2
    return method(model, **options).attribute(images, target=1, **arguments)


@pytest.mark.parametrize("setting", ["plain", "requires grad", "autocast", "channels last"])
@every_way
def test_after_success(method, engine, model, setting):
    images = make_images(2, 3, 9, 11).float().requires_grad_(setting == "requires grad")
    if setting == "channels last":
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.float16, enabled=setting == "autocast"):
        before = state_of(model, images)
        explain(method, model, images, engine)
        assert_same(before, state_of(model, images))


@contextmanager
def failing(method, model, error):
    """Within, the model fails in a late pass; GradientPDA calls it once only."""
    calls = []

    def stop(*_):
        calls.append(None)
        if len(calls) >= (1 if method is GradientPDA else 3):
            raise error("stop")

    handle = model.register_forward_hook(stop)
    with pytest.raises(error, match="stop"):
        yield
    handle.remove()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@every_way
def test_after_an_exception(method, engine, model, training, error):
    images = make_images(2, 3, 9, 11).float()
    model[3].train(training)
    before = state_of(model, images)
    warned = pytest.warns(UserWarning, match="training mode") if training else nullcontext()
    with warned, failing(method, model, error):
        explain(method, model, images, engine)
    assert_same(before, state_of(model, images))


def test_a_model_in_training_mode_is_explained_in_evaluation_mode(method, model):
    images = make_images(2, 3, 9, 11).float()
    expected = explain(method, model, images)
    model.train()
    model[1].eval()
    before = state_of(model, images)
    with pytest.warns(UserWarning, match=r"model\.eval\(\)"):
        attributions = explain(method, model, images)
    torch.testing.assert_close(attributions, expected)
    assert_same(before, state_of(model, images))
    with pytest.warns(UserWarning, match=r"model\.eval\(\)"):
        explain(method, model.forward, images)


@pytest.mark.parametrize("first", [nn.ReLU(inplace=True), nn.Hardtanh(inplace=True)])
def test_models_that_write_into_their_inputs(method, model, first):
    images = make_images(2, 3, 9, 11).float()
    extra = torch.ones(2)

    def writes(x, y):
        return model(first(x)) * y.mul_(2)[:, None]

    def reads(x, y):
        return model(first(x.clone())) * (2 * y)[:, None]

    before = images.clone()
    arguments = {"target": 1, "additional_forward_args": extra, "sliding_window_shapes": 4}
    attributions = method(writes).attribute(images, **arguments)
    assert torch.equal(images, before)
    assert torch.equal(extra, torch.ones(2))
    torch.testing.assert_close(attributions, method(reads).attribute(images, **arguments))


def test_a_fresh_wrapper_around_a_model_in_evaluation_mode_is_no_cause_for_alarm(method, model):
    wrapper = nn.Sequential(model, nn.Identity())
    assert wrapper.training
    explain(method, wrapper, make_images(1, 3, 9, 11).float())
    assert wrapper.training


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_and_frozen_models(method, model):
    images = make_images(1, 3, 9, 11).float()
    model[2].inplace = False
    expected = explain(method, model, images)
    scripted = torch.jit.script(model)
    torch.testing.assert_close(explain(method, scripted, images), expected)
    torch.testing.assert_close(explain(method, torch.jit.freeze(scripted), images), expected)


def tensors_alive() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def test_no_tensor_stays_alive(model):
    images = make_images(2, 3, 19, 21).float()
    counts = []
    for _ in range(2):  # PyTorch itself keeps some from a first time
        for method, engine in EVERY_WAY:
            explain(method, model, images, engine)
            with failing(method, model, ZeroDivisionError):
                explain(method, model, images, engine)
        counts.append(tensors_alive())
    assert counts[0] == counts[1]
