"""The parts of the incremental engine that can be tried alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from incremental_checks import assert_same

from captum_pda import WindowGrid
from captum_pda.engines.incremental.boxes import Slide, Span, order_of_windows
from captum_pda.engines.incremental.cache import FORGOTTEN_AFTER, CallCache
from captum_pda.engines.incremental.rules.convolution import change_kernel, winograd

EXAMPLES = settings(max_examples=50, deadline=None, derandomize=True)


@EXAMPLES
@given(
    sizes=st.tuples(st.integers(3, 11), st.integers(3, 11)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    seed=st.integers(0, 5),
)
def test_winograd(sizes: tuple[int, int], padding: tuple[int, int], seed: int) -> None:
    torch.manual_seed(seed)
    maps = torch.randn(2, 5, *sizes, dtype=torch.float64)
    weight, bias = torch.randn(4, 5, 3, 3, dtype=torch.float64), torch.randn(4).double()
    changed = change_kernel(weight)
    for shift in (bias, None):
        found = winograd(maps, changed, shift, padding)
        expected = F.conv2d(maps, weight, shift, padding=padding)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "options", [{}, {"padding": 1}, {"padding": "same"}, {"stride": 2}, {"dilation": (2, 1)}]
)
def test_convolutions_of_many_channels(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    first, second = torch.randn(96, 2, 1, 1).double(), torch.randn(97, 96, 3, 3).double()
    grid = WindowGrid((8, 9), (3, 2), (3, 4))
    assert_same(
        lambda x: F.conv2d(F.conv2d(x, first), second, **options).flatten(2).mean(2),
        torch.randn(1, 2, 8, 9).double(),
        grid,
        stays=False,
    )


@EXAMPLES
@given(data=st.data())
def test_order_is_a_permutation(data: Any) -> None:
    n_axes = data.draw(st.integers(1, 3))
    space = tuple(data.draw(st.integers(5, 12)) for _ in range(n_axes))
    grid = WindowGrid(space, (3,) * n_axes, (2,) * n_axes)
    n_samples = data.draw(st.integers(1, 3))
    order = order_of_windows(grid, n_samples, data.draw(st.integers(1, 20)))
    assert sorted(order.tolist()) == list(range(n_samples * len(grid)))


@EXAMPLES
@given(data=st.data())
def test_spans_hold_all_that_can_differ(data: Any) -> None:
    """Against a plain search for the outputs whose kernel touches the window."""
    slide = Slide(
        *(data.draw(st.integers(1, 4)) for _ in range(2)), data.draw(st.integers(0, 3)), 2
    )
    size, width = data.draw(st.integers(8, 20)), data.draw(st.integers(1, 5))
    low = np.arange(size - width + 1)
    before = Span.of(size, low, low + width)
    n_out = (size + 2 * slide.padding - slide.reach) // slide.stride + 1
    after = slide.after(before, n_out)
    for copy in range(len(low)):
        touched = [
            place
            for place in range(n_out)
            if any(
                low[copy]
                <= place * slide.stride - slide.padding + slide.dilation * tap
                < low[copy] + width
                for tap in range(slide.kernel)
            )
        ]
        held = range(after.start[copy], after.start[copy] + after.length)
        assert set(touched) <= set(held)
        assert held.start >= 0
        assert held.stop <= n_out


def test_memory_knows_calls_by_their_arguments() -> None:
    memory, calls = CallCache(), []

    def double(tensor: torch.Tensor, *more: Any) -> torch.Tensor:
        calls.append(more)
        return tensor * 2

    one, equal = torch.ones(2), torch.ones(2)
    assert memory(double, one) is memory(double, one)
    assert memory(double, one) is not memory(double, equal)
    for argument in (1, True, 1.0, (1,), None):
        memory(double, one, argument)
    assert len(calls) == 7


def test_memory_forgets_what_is_no_longer_asked_for() -> None:
    memory, tensor = CallCache(), torch.ones(1)
    first = memory(torch.neg, tensor)
    for _ in range(FORGOTTEN_AFTER):
        memory.next_batch()
    assert memory(torch.neg, tensor) is first
    for _ in range(FORGOTTEN_AFTER + 1):
        memory.next_batch()
    assert memory(torch.neg, tensor) is not first
