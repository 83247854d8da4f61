"""Compiled, exported and traced models."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from conftest import make_images
from torch import Tensor, nn

from captum_pda import PDA, ConstantPrior, EfficientPDA, LayerPDA
from captum_pda._torch import without_compiler

dynamo = pytest.importorskip("torch._dynamo")
IMAGES = make_images(2, 3, 12, 14).float()
CALL: dict[str, Any] = {"target": 1, "sliding_window_shapes": 4, "strides": 4}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()]
    layers += [nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)]
    return nn.Sequential(*layers).eval()


class Backend:
    """Counts the graphs that are compiled, and runs them as they are."""

    def __init__(self) -> None:
        self.functions: list[str] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        self.functions += [str(node.target) for node in graph.graph.nodes]
        return graph.forward


def compiled(kind: str, backend: Backend) -> Any:
    model = network()
    if kind == "module":
        return torch.compile(model, backend=backend)
    if kind == "in place":
        model.compile(backend=backend)
    elif kind == "layer":
        model[2] = torch.compile(model[2], backend=backend)
    elif kind == "layer in place":
        model[2].compile(backend=backend)
    elif kind == "function":
        return torch.compile(lambda x: model(x) * 1.0, backend=backend)
    else:
        inner = torch.compile(model, backend=backend)
        return lambda x: inner(x)
    return model


KINDS = ("module", "in place", "layer", "layer in place", "function", "hidden in a function")


@pytest.fixture(autouse=True)
def nothing_compiled() -> Any:
    dynamo.reset()
    yield
    dynamo.reset()


def explain(model: Any, engine: str, images: Tensor = IMAGES) -> Tensor:
    return EfficientPDA(model, ConstantPrior(0.0), engine=engine).attribute(images, **CALL)


@pytest.mark.parametrize("engine", ["dense", "incremental", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_compiled_for_an_explanation(kind: str, engine: str) -> None:
    backend = Backend()
    pda = EfficientPDA(compiled(kind, backend), ConstantPrior(0.0), engine=engine)
    found = pda.attribute(IMAGES, **CALL)
    torch.testing.assert_close(found, explain(network(), "dense"))
    assert backend.functions == []


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="there are no stances")
def test_what_was_compiled_before_is_used() -> None:
    ran: list[bool] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return lambda *arguments: ran.append(True) or graph.forward(*arguments)

    model = torch.compile(network(), backend=backend)
    with torch.no_grad():
        model(IMAGES[:1])
    ran.clear()
    found = explain(model, "dense", IMAGES[:1])
    torch.testing.assert_close(found, explain(network(), "dense", IMAGES[:1]))
    assert ran


@pytest.mark.parametrize("kind", ["module", "in place", "layer", "layer in place"])
@pytest.mark.parametrize("was_run", [False, True])
def test_the_layers_of_a_compiled_model_are_asked_too(kind: str, was_run: bool) -> None:
    """Compiled code calls no layers, and warns of hooks of all modules."""
    model = compiled(kind, Backend())
    if was_run:
        with torch.no_grad():
            model(IMAGES[:1])
    for method in (PDA, LayerPDA):
        found = method(model).evidence(IMAGES[:1])
        assert found.parts[-1].depth != "input"
        expected = method(network()).evidence(IMAGES[:1])
        torch.testing.assert_close(found.attribution(1), expected.attribution(1))


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="there are no stances")
def test_the_compiler_is_left_as_it_was() -> None:
    backend = Backend()
    model = compiled("module", backend)
    with torch.compiler.set_stance("force_eager"):
        explain(model, "incremental")
        model(IMAGES)
        assert backend.functions == []
    explain(model, "dense")
    assert backend.functions == []
    model(IMAGES)
    assert backend.functions


def test_threads_share_the_compiler() -> None:
    backend = Backend()
    model = torch.compile(network(), backend=backend)
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with without_compiler():
            entered.set()
            assert leave.wait(60)

    thread = threading.Thread(target=stay)
    with without_compiler():
        thread.start()
        assert entered.wait(60)
    model(IMAGES)
    assert backend.functions == []
    leave.set()
    thread.join()
    model(IMAGES)
    assert backend.functions


# Models that take batches of one size only


@pytest.mark.parametrize("n_exported", [1, 2, 5])
@pytest.mark.parametrize("engine", ["dense", "auto"])
def test_exported_models_get_batches_of_their_size(n_exported: int, engine: str) -> None:
    examples = torch.randn(n_exported, 3, 12, 14)
    exported = torch.export.export(network(), (examples,)).module()
    torch.testing.assert_close(explain(exported, engine), explain(network(), engine))


def test_exported_models_of_any_batch_size_are_run_as_they_are() -> None:
    sizes = ({0: torch.export.Dim("batch")},)
    exported = torch.export.export(network(), (IMAGES,), dynamic_shapes=sizes).module()
    torch.testing.assert_close(explain(exported, "dense"), explain(network(), "dense"))


class FixedView(nn.Module):
    """Traced, the number of rows becomes a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), 3, -1).mean(2)


@pytest.mark.parametrize("n_traced", [1, 2])
def test_traced_models_that_take_one_batch_size_get_batches_of_it(n_traced: int) -> None:
    images = IMAGES[:n_traced]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(FixedView(), images)
        found = explain(traced, "dense", images)
    torch.testing.assert_close(found, explain(FixedView().eval(), "dense", images))


def test_arguments_of_each_example_go_along() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return self.inner(x) * scale

    scale = torch.tensor([[1.0], [2.0]])
    model = Scaled().eval()
    exported = torch.export.export(model, (IMAGES, scale)).module()
    found, expected = (
        EfficientPDA(each, ConstantPrior(0.0), engine="dense").attribute(
            IMAGES, additional_forward_args=scale, **CALL
        )
        for each in (exported, model)
    )
    torch.testing.assert_close(found, expected)
