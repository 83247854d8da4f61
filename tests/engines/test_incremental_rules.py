"""Every rule alone: boxes give what the function gives on whole maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from incremental_checks import assert_same
from torch import Tensor

from captum_pda import WindowGrid
from captum_pda.engines.incremental.rules import IN_PLACE, RULES, elementwise, pooling
from captum_pda.engines.incremental.rules import convolution as convolutions
from captum_pda.engines.incremental.rules import shape as shapes

CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE_POOL = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")

EXAMPLES = settings(max_examples=25, deadline=None, derandomize=True)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def after_a_convolution(func: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The rule is the last of a chain, and something must be saved in it."""
    weight = random(4, 2, 3, 3)
    return lambda x: func(F.conv2d(x, weight, stride=2, padding=1))


GRID = WindowGrid((13, 16), (3, 4), (3, 3))


@st.composite
def places(draw: Any, n_axes: int) -> tuple[Tensor, WindowGrid]:
    """An input and a grid of windows over it."""
    largest = {1: 20, 2: 13, 3: 7}[n_axes]
    space = tuple(draw(st.integers(4, largest)) for _ in range(n_axes))
    window = tuple(draw(st.integers(1, size)) for size in space)
    strides = tuple(draw(st.integers(1, 4)) for _ in space)
    torch.manual_seed(draw(st.integers(0, 9)))
    return random(1, 4, *space), WindowGrid(space, window, strides)


@pytest.mark.parametrize("n_axes", [1, 2, 3])
@EXAMPLES
@given(data=st.data())
def test_convolution(n_axes: int, data: Any) -> None:
    example, grid = data.draw(places(n_axes))
    groups = data.draw(st.sampled_from([1, 2, 4]))
    kernel = [data.draw(st.integers(1, 3)) for _ in range(n_axes)]
    dilation = [data.draw(st.integers(1, 2)) for _ in range(n_axes)]
    stride: Any = [data.draw(st.integers(1, 3)) for _ in range(n_axes)]
    padding: Any = [data.draw(st.integers(0, 3)) for _ in range(n_axes)]
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    if any(
        n + 2 * p < r for n, p, r in zip(example.shape[2:], padding, reach, strict=True)
    ) or data.draw(st.booleans()):
        padding, stride = "same", 1
    weight, bias = random(4, 4 // groups, *kernel), random(4)
    # The second convolution reads boxes that the first has made.
    assert_same(
        lambda x: (
            CONVOLVE[n_axes](
                CONVOLVE[n_axes](x, weight, bias, stride, padding, dilation, groups),
                weight,
                bias,
                padding="same",
            )
            if groups == 1
            else CONVOLVE[n_axes](x, weight, bias, stride, padding, dilation, groups)
        ),
        example,
        grid,
    )


@pytest.mark.parametrize("n_axes", [1, 2, 3])
@EXAMPLES
@given(data=st.data())
def test_max_pooling(n_axes: int, data: Any) -> None:
    example, grid = data.draw(places(n_axes))
    kernel = [data.draw(st.integers(1, 4)) for _ in range(n_axes)]
    stride = [data.draw(st.integers(1, 3)) for _ in range(n_axes)]
    padding = [data.draw(st.integers(0, size // 2)) for size in kernel]
    ceil_mode = data.draw(st.booleans())
    dilation = data.draw(st.integers(1, 2)) if max(kernel) < 3 else 1
    # Below zero everywhere, so that padding with zero would show.
    assert_same(
        lambda x: MAX_POOL[n_axes](
            -x.exp(), kernel, stride, padding, dilation, ceil_mode=ceil_mode
        ),
        example,
        grid,
    )


@pytest.mark.parametrize("n_axes", [1, 2, 3])
@EXAMPLES
@given(data=st.data())
def test_average_pooling(n_axes: int, data: Any) -> None:
    example, grid = data.draw(places(n_axes))
    kernel = [data.draw(st.integers(1, 4)) for _ in range(n_axes)]
    stride = [data.draw(st.integers(1, 3)) for _ in range(n_axes)]
    padding = [data.draw(st.integers(0, size // 2)) for size in kernel]
    options: dict[str, Any] = {
        "ceil_mode": data.draw(st.booleans()),
        "count_include_pad": data.draw(st.booleans()),
    }
    if n_axes > 1 and data.draw(st.booleans()):
        options["divisor_override"] = 5
    assert_same(
        lambda x: AVERAGE_POOL[n_axes](x, kernel, stride, padding, **options), example, grid
    )


@EXAMPLES
@given(data=st.data())
def test_padding(data: Any) -> None:
    example, grid = data.draw(places(2))
    amounts = [data.draw(st.integers(0, 3)) for _ in range(data.draw(st.sampled_from([2, 4])))]
    weight = random(3, 4, 3, 3)
    assert_same(
        lambda x: F.conv2d(F.pad(x, amounts, value=1.5), weight, stride=2, padding=1),
        example,
        grid,
    )


PADDED = {
    "evenly": lambda x, w: F.conv2d(F.pad(x, (2, 2, 1, 1)), w, padding=(0, 1)),
    "unevenly": lambda x, w: F.conv2d(F.pad(x, (0, 1, 1, 2)), w, stride=2),
    "by name": lambda x, w: F.conv2d(F.pad(x, (1, 1, 1, 1)), w, padding="same"),
}


@pytest.mark.parametrize("how", PADDED)
def test_zeros_around_maps_that_boxes_cover(how: str) -> None:
    weight = random(3, 4, 3, 3)
    grid = WindowGrid((9, 10), (9, 10), (1, 1))
    assert_same(lambda x: PADDED[how](x, weight), random(1, 4, 9, 10), grid, stays=False)


@EXAMPLES
@given(data=st.data())
def test_joining_maps_with_different_boxes(data: Any) -> None:
    example, grid = data.draw(places(2))
    wide = data.draw(st.sampled_from([1, 3, 5]))
    weight = random(4, 4, 3, wide)
    assert_same(
        lambda x: torch.cat(
            [x, F.conv2d(x, weight, padding="same") + x, x * 2 - F.max_pool2d(x, 3, 1, 1)], 1
        ),
        example,
        grid,
    )


def squeeze_first(x: Tensor) -> Tensor:
    return torch.unsqueeze(x[:, 0], 1) * 0.5 + x[:, 1:2]


CONSTANT = random(4, 1, 1)
MAP = random(4, 7, 8)
WEIGHT = random(5, 4)
CASES: dict[Any, list[Callable[[Tensor], Tensor]]] = {
    elementwise.pointwise: [F.relu, torch.tanh, lambda x: x.clamp(-0.5, 0.5), lambda x: -x],
    elementwise.dropout: [lambda x: F.dropout(x, training=False)],
    elementwise.copied: [lambda x: x.clone(), lambda x: x.clone().relu_() + x],
    elementwise.unchanged: [lambda x: x.contiguous(), lambda x: x.detach()],
    elementwise.convert: [
        lambda x: x.to(torch.float64),
        lambda x: x.to(device="cpu"),
        lambda x: x.double(),
        lambda x: x.to(x.sin()),
        lambda x: x.to(x, copy=True).relu_() + x,
        lambda x: x.to(memory_format=torch.channels_last),
    ],
    elementwise.linear: [lambda x: F.linear(x.permute(0, 2, 3, 1), WEIGHT).permute(0, 3, 1, 2)],
    elementwise.layer_norm: [lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (4,))],
    convolutions.batch_norm: [
        lambda x: F.batch_norm(x, WEIGHT[0], WEIGHT[1] ** 2, WEIGHT[2], WEIGHT[3]),
        lambda x: F.batch_norm(x.sin(), WEIGHT[0], WEIGHT[1] ** 2),
        lambda x: F.relu(F.batch_norm(x, WEIGHT[0], WEIGHT[1] ** 2, None, WEIGHT[3])).relu(),
    ],
    convolutions.convolution: [lambda x: F.conv2d(x, WEIGHT[..., None, None], stride=2)],
    pooling.max_pool: [lambda x: F.max_pool2d(x, 2), lambda x: torch.max_pool2d(x, 3, 1, 1)],
    pooling.average_pool: [lambda x: F.avg_pool2d(x, 3, 2, 1)],
    pooling.adaptive_average_pool: [
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.adaptive_avg_pool2d(x, (7, 4)),
        lambda x: F.adaptive_avg_pool2d(x, (None, 2)),
    ],
    pooling.mean_over_space: [
        lambda x: x.mean((2, 3)),
        lambda x: x.mean((-1, -2), keepdim=True),
        lambda x: torch.mean(x, [1, 2, 3], keepdim=True),
    ],
    elementwise.elementwise: [
        lambda x: x + CONSTANT,
        lambda x: MAP - x,
        lambda x: 2 / (3 + x.abs()),
        lambda x: x * x.sigmoid(),
        lambda x: torch.maximum(x, MAP[None]),
        lambda x: x.add(x.cos(), alpha=2.0),
        lambda x: x + MAP.expand(len(x), -1, -1, -1),
    ],
    elementwise.concatenate: [
        lambda x: torch.cat((x, -x), 1),
        lambda x: torch.cat([x, MAP.expand(len(x), -1, -1, -1)], dim=-3),
    ],
    shapes.view: [
        lambda x: torch.permute(x, (0, 3, 1, 2)),
        lambda x: x.transpose(1, 3).sin().transpose(1, -1),
        lambda x: x.movedim(1, -1),
        lambda x: x.unsqueeze(1),
        lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
        lambda x: x.split([1, 3], dim=1)[1],
        squeeze_first,
        lambda x: x[:, :2],
        lambda x: x[:, 1, ...],
        lambda x: x[:, -1],
    ],
    shapes.reshape: [
        lambda x: x.view(x.size(0), 2, 2, *x.shape[2:]).transpose(1, 2).reshape(x.shape) * MAP,
        lambda x: x.view(len(x), 2, 2, 7, 8).flatten(1, 2) * MAP,
    ],
    shapes.pad: [lambda x: F.pad(x, (1, 2, 0, 1)), lambda x: F.pad(x, (1, 1), value=2.0)],
}


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == {rule.apply for rule in RULES.values()}


def readable(func: Callable[..., Any]) -> str:
    """A name without an address, so that processes agree on it."""
    return str(getattr(func, "__qualname__", func))


@pytest.mark.parametrize(
    "func",
    [
        pytest.param(func, id=f"{rule.__name__}-{number}")
        for rule, funcs in CASES.items()
        for number, func in enumerate(funcs)
    ],
)
def test_rule(func: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    assert_same(after_a_convolution(func), random(1, 2, 13, 16), GRID)


NEED_MORE = {
    "clamp": 0.3,
    "clamp_max": 0.3,
    "clamp_min": 0.3,
    "clip": 0.3,
    "threshold": (0.2, 9.0),
    "_threshold": (0.2, 9.0),
}


@pytest.mark.parametrize(
    "func", [f for f, rule in RULES.items() if rule.apply is elementwise.pointwise], ids=readable
)
def test_pointwise(func: Callable[..., Tensor]) -> None:
    torch.manual_seed(1)
    name = func.__name__
    extra = NEED_MORE.get(name, ())
    more = extra if isinstance(extra, tuple) else (extra,)
    # Most need numbers between 0 and 1.
    steps = dict.fromkeys(("ceil", "floor", "sign", "trunc"), lambda x: x)
    domain: Callable[[Tensor], Tensor] = {"acosh": lambda x: x.abs() + 1.5, **steps}.get(
        name, lambda x: x.sigmoid() * 0.9 + 0.05
    )
    assert_same(after_a_convolution(lambda x: func(domain(x), *more)), random(1, 2, 13, 16), GRID)


@pytest.mark.parametrize("func", list(IN_PLACE), ids=readable)
def test_in_place(func: Callable[..., Tensor]) -> None:
    """What is written in place is seen by those who hold the tensor, and by no other."""
    torch.manual_seed(2)
    twin = IN_PLACE[func]
    extra = NEED_MORE.get(
        twin.__name__, () if RULES[twin].apply is elementwise.pointwise else (1.5,)
    )
    more = extra if isinstance(extra, tuple) else (extra,)

    def forward(x: Tensor) -> Tensor:
        y = x.sigmoid() * 0.9 + (1.05 if twin.__name__ == "acosh" else 0.05)
        held = y
        func(y, *more)
        return torch.cat([held, x], 1)

    # Comparisons give another type, which is written back as numbers.
    stays = twin.__name__ not in ("eq", "ge", "gt", "le", "lt", "ne")
    assert_same(after_a_convolution(forward), random(1, 2, 13, 16), GRID, stays)
