"""Models that take only so many examples at once, as exported ones do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from captum_pda.model.outputs import one_row_each


def exported_batch_size(forward_func: Callable[..., Any]) -> int | None:
    """The number of examples that a model from ``torch.export`` takes, if it takes no other."""
    examples = exported_with(forward_func)
    sizes = [example.shape[0] for example in examples if example.dim() > 0]
    # A size that may vary is a symbol.
    return int(sizes[0]) if sizes and type(sizes[0]) is int else None


def exported_with(forward_func: object) -> list[Tensor]:
    """The examples that a model from ``torch.export`` was exported with; none for other models."""
    if not isinstance(forward_func, torch.fx.GraphModule):
        return []
    inputs = [node for node in forward_func.graph.nodes if node.op == "placeholder"]
    examples = [node.meta.get("val") for node in inputs]
    return [example for example in examples if isinstance(example, Tensor)]


def may_be_fixed(forward_func: Callable[..., Any], error: Exception) -> bool:
    """Whether an error may come from another number of examples than a model was traced with."""
    return isinstance(forward_func, torch.jit.ScriptModule) and "memory" not in str(error).lower()


def run_in_batches(
    forward_func: Callable[..., Any], arguments: Sequence[Any], is_row: Sequence[bool], size: int
) -> Tensor:
    """Call a model with exactly ``size`` rows at a time; the last batch is filled up.

    Args:
        forward_func: the model.
        arguments: what to call it with.
        is_row: which of the arguments have a row for each example.
        size: how many rows the model takes.
    """
    n_rows = next(len(each) for each, rows in zip(arguments, is_row, strict=True) if rows)
    outputs = []
    for start in range(0, n_rows, size):
        some = [
            _filled_up(each[start : start + size], size) if rows else each
            for each, rows in zip(arguments, is_row, strict=True)
        ]
        outputs.append(one_row_each(forward_func(*some), size)[: n_rows - start].clone())
    return torch.cat(outputs)


def _filled_up(rows: Tensor, size: int) -> Tensor:
    """As many rows, with the last one repeated."""
    if len(rows) == size:
        return rows
    return torch.cat([rows, rows[-1:].expand(size - len(rows), *rows.shape[1:])])
