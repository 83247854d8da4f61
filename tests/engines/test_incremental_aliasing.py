"""Networks that view, write and change whatever they get hold of: right, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aliasing_networks import VIEWS, WRITES, AliasingNetwork
from incremental_checks import assert_same, outputs_of
from torch import Tensor, nn

from captum_pda import DenseEngine, EfficientPDA, IncrementalEngine, IncrementalError, WindowGrid
from captum_pda.engines import BatchSize

GRID = WindowGrid((12, 12), (3, 3), (4, 5))
#: A window that covers the image, so that boxes are whole from the start.
COVERING = WindowGrid((12, 12), (12, 12), (1, 1))
IN_EACH_RUN = 20


def images(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


EXAMPLE = images(1, 2, 12, 12)
WEIGHT = images(4, 2, 3, 3)
SECOND = images(4, 4, 3, 3)


def outputs_or_error(engine: Any, forward: Any, grid: WindowGrid, rows: int) -> Tensor | str:
    try:
        return outputs_of(engine.prepare(forward, EXAMPLE, BatchSize(rows)), grid, EXAMPLE)
    except Exception as error:  # the network itself may be wrong, for both engines alike
        return f"{type(error).__name__}: {error}"


def compare(forward: Any, grid: WindowGrid, rows: int) -> str:
    """Run both engines: "same", "refused" or "invalid"; anything else is a failure."""
    expected = outputs_or_error(DenseEngine(), forward, grid, len(grid))
    found = outputs_or_error(IncrementalEngine(), forward, grid, rows)
    if isinstance(expected, str):
        return "invalid"
    if isinstance(found, str):
        assert found.startswith("IncrementalError"), found
        return "refused"
    difference = ((found - expected).abs().max() / expected.abs().max().clamp_min(1.0)).item()
    assert difference < 1e-9
    return "same"


def compare_random(seed: int) -> str:
    network = AliasingNetwork(seed)
    grid, rows = (COVERING, 1) if seed % 5 == 0 else (GRID, 1 + seed % 4)
    try:
        return compare(network, grid, rows)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: pool {network.pool}, {network.recipe}") from error


@pytest.mark.parametrize("first", range(0, 100, IN_EACH_RUN))
def test_networks_that_write_are_right_or_refused(first: int) -> None:
    kinds = [compare_random(seed) for seed in range(first, first + IN_EACH_RUN)]
    assert kinds.count("same") >= IN_EACH_RUN // 4


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 1100, 100))
def test_a_thousand_networks_that_write_are_right_or_refused(first: int) -> None:
    kinds = [compare_random(seed) for seed in range(first, first + 100)]
    assert kinds.count("same") >= 25


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("write", WRITES)
def test_every_view_with_every_way_to_write(write: str, half: int) -> None:
    """A convolution that waits reads what is viewed and written: whole boxes, or others."""
    for number, view in enumerate(VIEWS, start=half + list(WRITES).index(write)):

        def forward(x: Tensor, view: str = view) -> Tensor:
            h = F.max_pool2d(F.conv2d(x, WEIGHT, padding=1), 2)
            side = F.conv2d(h, SECOND, padding=1)
            viewed = VIEWS[view](h)
            WRITES[write](viewed)
            parts = (side, h, viewed, side.relu())
            return torch.cat([part.flatten(1)[:, ::3] for part in parts], 1)

        compare(forward, *((GRID, 4), (COVERING, 1))[number % 2])


def convolved(x: Tensor) -> Tensor:
    return F.conv2d(x, WEIGHT, padding=1)


def refused(forward: Callable[[Tensor], Tensor], message: str) -> None:
    prepared = IncrementalEngine().prepare(forward, EXAMPLE, BatchSize(4))
    with pytest.raises(IncrementalError, match=message):
        outputs_of(prepared, GRID, EXAMPLE)


class TestWriting:
    def test_into_a_clone_stays_incremental(self) -> None:
        def forward(x: Tensor) -> Tensor:
            h = convolved(x)
            return torch.cat([h.clone().relu_(), h], 1)

        assert_same(forward, EXAMPLE, GRID)

    @pytest.mark.parametrize("cast", [Tensor.double, lambda x: x.to("cpu"), Tensor.contiguous])
    def test_after_a_cast_that_changes_nothing_is_refused(self, cast: Any) -> None:
        def forward(x: Tensor) -> Tensor:
            h = convolved(x)
            y = cast(h)
            y += 1
            return torch.cat([y, h], 1)

        refused(forward, r"add_.*shares memory.*engine='dense'")

    def test_other_memory_is_refused(self) -> None:
        def forward(x: Tensor) -> Tensor:
            h = convolved(x)
            h.data = h * 2
            return h

        refused(forward, "Tensor.data.*engine='dense'")

    def test_perturbed_values_into_an_ordinary_tensor(self) -> None:
        def forward(x: Tensor) -> Tensor:
            h = convolved(x)
            made = h.new_zeros(h.shape)
            made[:, 1:] = h[:, :-1]
            return (made + h).mean((2, 3))

        for rows in (1, 4):
            assert compare(forward, GRID, rows) == "same"

    def test_an_output_that_was_assembled(self) -> None:
        def forward(x: Tensor) -> Tensor:
            made = x.new_zeros(len(x), 4)
            made[:, :] = convolved(x).mean((2, 3))
            return made

        assert compare(forward, GRID, 4) == "same"


class TestWhatIsRemembered:
    @pytest.mark.parametrize(
        "change",
        [
            lambda t: t.mul_(2),
            lambda t: t.detach()[...].mul_(2),
            lambda t: torch.mul(t, 2, out=t),
            lambda t: torch._foreach_mul_([t], 2),
            lambda t: WRITES["script"](t),
        ],
    )
    @pytest.mark.parametrize("shape", [(), (4, 1, 1), (4, 12, 12)])
    def test_constants_that_change_between_two_uses(self, change: Any, shape: Any) -> None:
        constant = images(*shape).abs() + 0.5
        kept = constant.clone()

        def forward(x: Tensor) -> Tensor:
            constant.copy_(kept)
            h = convolved(x)
            first = h * constant
            change(constant)
            return torch.cat([first, h * constant], 1)

        assert_same(forward, EXAMPLE, GRID, stays=False)

    def test_inference_tensors_have_no_version(self) -> None:
        with torch.inference_mode():
            constant, weight = images(4, 1, 1), SECOND.clone()

            def forward(x: Tensor) -> Tensor:
                weight.copy_(SECOND)
                h = F.conv2d(convolved(x), weight) * constant
                weight.mul_(0.5)
                return torch.cat([h, F.conv2d(convolved(x), weight)], 1)

            assert_same(forward, EXAMPLE, GRID)

    def test_memory_that_is_handed_out_while_something_shares_it(self) -> None:
        def forward(x: Tensor) -> Tensor:
            h = convolved(x)
            part = h[:, 1:]
            torch.from_numpy(h.numpy()).relu_()
            return part

        refused(forward, r"numpy.*shares memory")


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)


def test_functions_of_autograd_that_write() -> None:
    def forward(x: Tensor) -> Tensor:
        h = convolved(x)
        made = Doubled.apply(h)
        return torch.cat([made.tanh(), h], 1)

    assert compare(forward, GRID, 4) in ("same", "refused")


def test_gradients_inside_a_model() -> None:
    def forward(x: Tensor) -> Tensor:
        h = convolved(x)
        with torch.enable_grad():
            h.requires_grad_()
            (gradient,) = torch.autograd.grad(h.sin().sum(), h)
        return torch.cat([gradient, h.detach()], 1).mean((2, 3))

    assert compare(forward, GRID, 4) == "same"


class Positional(nn.Module):
    """Keeps a code by shape, as a buffer, an attribute and in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(WEIGHT.clone())
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.register_buffer("code", None)
        self.codes: dict[Any, Tensor] = {}
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = F.conv2d(x, self.weight, padding=1)
        if self.code is None or self.code.shape != h.shape[1:]:
            self.code = torch.ones_like(h[0]).cumsum(1) * 0.1
            self.attribute = torch.linspace(0, 1, h.shape[-1]).type_as(h)
        key = tuple(h.shape[2:])
        if key not in self.codes:
            self.codes[key] = h.new_full((1, 1, *key), 0.5).sin() + h.new_tensor(0.25)
        self.seen = h
        return ((h + self.code * self.scale) * self.codes[key] + self.attribute).mean((2, 3))


def kept_by(model: Positional) -> list[Tensor]:
    return [model.code, model.attribute, model.seen, *model.codes.values()]


@pytest.mark.parametrize("engine", ["dense", "incremental", "auto"])
def test_a_model_that_keeps_tensors_is_as_it_was(engine: str) -> None:
    model, image = Positional().eval(), images(1, 2, 12, 12)
    expected = Positional().eval()(image)
    prepared = IncrementalEngine() if engine == "incremental" else DenseEngine()
    outputs_of(prepared.prepare(model, image, BatchSize(4)), GRID, image)
    EfficientPDA(model, engine=engine).attribute(image, target=1, sliding_window_shapes=3)
    for tensor in kept_by(model):
        assert type(tensor) is Tensor
        assert not tensor.is_inference()
    outputs = model(image)
    assert type(outputs) is Tensor
    torch.testing.assert_close(outputs, expected)
    outputs.sum().backward()
    assert model.scale.grad is not None


@pytest.mark.parametrize("name", ["rand_like", "zeros_like", "new_empty", "new_ones", "new_tensor"])
def test_factories_give_ordinary_tensors(name: str) -> None:
    made: list[Tensor] = []

    def forward(x: Tensor) -> Tensor:
        h = convolved(x)
        arguments = {"new_tensor": [1.0], "new_empty": (2, 3), "new_ones": (2, 3)}
        function = getattr(h, name, None) or (lambda: getattr(torch, name)(h))
        made.append(function(arguments[name]) if name in arguments else function())
        return h

    assert_same(forward, EXAMPLE, GRID)
    assert {type(tensor) for tensor in made} == {Tensor}
    assert {tensor.dtype for tensor in made} == {torch.float64}


def test_what_a_failed_pass_leaves_behind_is_ordinary() -> None:
    kept: list[Tensor] = []

    def forward(x: Tensor) -> Tensor:
        kept.append(convolved(x))
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        outputs_of(IncrementalEngine().prepare(forward, EXAMPLE, BatchSize(4)), GRID, EXAMPLE)
    assert [type(tensor) for tensor in kept] == [Tensor]
    assert kept[0].shape == (4, 4, 12, 12)
