"""The loop that engines and diagnostics share."""

from __future__ import annotations

import pytest
import torch
from conftest import make_images
from torch import Tensor

from captum_pda.engines import BatchLoop, BatchSize

IMAGE = make_images(1, 3, 6, 5)


def numbers(rows: range) -> Tensor:
    return torch.tensor(rows)[:, None].double()


def test_results_stand_in_the_order_of_the_rows() -> None:
    seen: list[int] = []
    found = BatchLoop(BatchSize(5), IMAGE).run(23, numbers, seen.append)
    torch.testing.assert_close(found[:, 0], torch.arange(23.0, dtype=torch.float64))
    assert seen == [5, 5, 5, 5, 3]
    assert not found.is_inference()


def test_what_is_finished_when_something_stops_the_loop_is_kept() -> None:
    loop = BatchLoop(BatchSize(4), IMAGE)

    def stopped(rows: range) -> Tensor:
        if 9 in rows:
            raise KeyboardInterrupt
        return numbers(rows)

    with pytest.raises(KeyboardInterrupt):
        loop.run(12, stopped)
    assert loop.unfinished is not None
    assert loop.unfinished[:8, 0].tolist() == list(range(8))
    assert loop.unfinished[8:].isnan().all()
    loop.run(12, numbers)
    assert loop.unfinished is None


def test_rows_that_fail_are_tried_again_in_another_way() -> None:
    """First for their layout, then for memory."""
    tries: list[tuple[int, bool]] = []
    loop = BatchLoop(BatchSize(8), IMAGE)

    def fussy(rows: range) -> Tensor:
        tries.append((len(rows), loop.channels_last))
        if loop.channels_last:
            raise RuntimeError("view size is not compatible with input tensor's size and stride")
        if len(rows) > 4:
            raise MemoryError
        return numbers(rows)

    with pytest.warns(UserWarning, match="going on with 3"):
        found = loop.run(6, fussy)
    assert tries == [(6, True), (6, False), (3, False), (3, False)]
    assert found[:, 0].tolist() == list(range(6))


def test_no_rows_are_an_error() -> None:
    with pytest.raises(ValueError, match="no rows"):
        BatchLoop(BatchSize(), IMAGE).run(0, numbers)
