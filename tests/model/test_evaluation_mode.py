"""Models behind functions, methods and objects are explained in evaluation mode, and given back."""

import copy
import functools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from conftest import METHODS, make_images
from torch import nn

from captum_pda import ConstantPrior, EfficientPDA, GradientPDA

IMAGES = make_images(2, 3, 9, 11).float()


def make_model():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)).eval()


NET = make_model()


def calls_a_global(x):
    return torch.cat([each for each in map(lambda row: NET(row[None]), x)])  # noqa: C416, C417


class Holder:
    """Calls one of the models that it holds."""

    __slots__ = ("nets",)

    def __init__(self, *nets):
        self.nets = nets

    def __call__(self, x):
        return self.nets[0](x)


WRAPPERS = {
    "lambda of a method": lambda net: lambda x: net.forward(x),
    "default": lambda net: lambda x, *, net=net: net(x),
    "partial": lambda net: functools.partial(net),
    "partial of a lambda": lambda net: functools.partial(lambda model, x: model(x), net),
    "bound method": lambda net: net.forward,
    "object": lambda net: Holder(net),
    "global": lambda net: calls_a_global,
    "cached": lambda net: functools.lru_cache(lambda x: net(x)),
    "ensemble": lambda net: lambda x: torch.stack([each(x) for each in (net, net)]).mean(0),
    "module that is no child": lambda net: Hidden(net),
    "parts, by the mode of the whole": lambda net: (
        lambda x: net[4:](F.dropout(net[:3](x), training=net.training))
    ),
    "its statistics": lambda net: functools.partial(
        lambda net, x: net[2:](F.batch_norm(net[0](x), *statistics(net[1]), net.training)), net
    ),
    "another thread": lambda net: InThread(net).answer,
}


def statistics(norm):
    return norm.running_mean, norm.running_var, norm.weight, norm.bias


class InThread:
    """Calls its model in a thread of its own."""

    def __init__(self, net):
        self.net = net

    def answer(self, x):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self.net, x).result()


class Hidden(nn.Module):
    """Holds a model where PyTorch does not look for it."""

    def __init__(self, net):
        super().__init__()
        self.nets = [net]

    def forward(self, x):
        return self.nets[0](x)


def explain(method, model):
    return method(model, prior=ConstantPrior(0.0)).attribute(
        IMAGES, target=1, sliding_window_shapes=4, strides=2
    )


@pytest.mark.parametrize("method", [EfficientPDA, GradientPDA])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_model_in_training_mode_is_found_and_put_back(wrapper, method):
    expected = explain(method, NET)
    model = WRAPPERS[wrapper](NET)
    torch.testing.assert_close(explain(method, model), expected)  # and nothing is said
    before = copy.deepcopy(NET.state_dict())
    NET.train()
    try:
        with pytest.warns(UserWarning, match=r"training mode.*model\.eval\(\)"):
            found = explain(method, model)
        assert all(module.training for module in NET.modules())
    finally:
        NET.eval()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(NET.state_dict(), before, rtol=0, atol=0)


def test_a_model_that_is_not_called_is_let_alone():
    explain(EfficientPDA, Holder(make_model(), make_model().train()))  # a warning would be an error


class Proxy:
    """Has every attribute, as objects of remote calls and of web applications do."""

    def __init__(self, finds):
        self.finds = finds

    def __getattr__(self, name):
        return self.finds(name)

    def __call__(self, x):
        return x


def fail(name):
    raise RuntimeError(f"no request in progress: {name}")


@pytest.mark.parametrize("finds", [lambda name: Proxy(None), fail])
def test_attributes_that_an_object_computes_are_left_alone(finds):
    model, proxy = make_model().train(), Proxy(finds)
    with pytest.warns(UserWarning, match="training mode"):
        explain(EfficientPDA, lambda x: model(proxy(x)))
    assert model.training


class KeepsStatistics(nn.Module):
    """Changes its buffers in evaluation mode too."""

    def __init__(self, kind):
        super().__init__()
        self.net = make_model()
        self.kind = kind
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("unknown", torch.full((2,), torch.nan))

    def forward(self, x):
        if self.kind == "in place":
            self.mean.mul_(0.9).add_(0.1 * x.mean((0, 2, 3)))
        elif self.kind == "anew":
            self.mean = 0.9 * self.mean + 0.1 * x.mean((0, 2, 3))
        elif self.kind == "batch norm":
            x = F.batch_norm(x, self.mean, torch.ones(3), training=True, momentum=1e-6)
        else:
            self.count += 1
        return self.net(x)


@pytest.mark.filterwarnings("ignore:.*other examples in its batch")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("kind", ["in place", "anew", "batch norm", "count"])
def test_buffers_that_move_in_evaluation_mode_are_given_back(kind, hidden, method):
    model = KeepsStatistics(kind).eval()
    before = {name: (id(buffer), buffer.clone()) for name, buffer in model.named_buffers()}
    named = "count" if kind == "count" else "mean"
    with pytest.warns(UserWarning, match=rf"changes its own buffers.*KeepsStatistics\.{named}"):
        explain(method, (lambda x: model(x)) if hidden else model)
    for name, buffer in model.named_buffers():
        assert id(buffer) == before[name][0]
        torch.testing.assert_close(buffer, before[name][1], rtol=0, atol=0, equal_nan=True)


def test_so_are_they_after_an_error():
    model = KeepsStatistics("count").eval()
    passes = []

    def stop(*_):
        passes.append(None)
        if len(passes) > 2:
            raise KeyboardInterrupt

    model.register_forward_hook(stop)
    with (
        pytest.warns(UserWarning, match="changes its own buffers"),
        pytest.raises(KeyboardInterrupt),
    ):
        explain(EfficientPDA, lambda x: model(x))
    assert model.count == 0


def test_a_cache_that_a_model_fills_stays_and_is_no_cause_for_alarm():
    class Caches(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = make_model()
            self.register_buffer("table", None)

        def forward(self, x):
            if self.table is None:
                self.table = torch.ones(1)
            return self.net(x) * self.table

    model = Caches().eval()
    explain(EfficientPDA, model)
    assert model.table is not None
