"""A batch whose rows are all alike: computed on one of them, for as long as they stay so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from captum_pda._torch import make_wrapper_subclass


class RepeatedTensor(Tensor):
    """Looks like ``n_rows`` rows, and holds one.

    A function of such tensors is computed on the one row, if what it returns has one row too;
    otherwise, as where they meet tensors whose rows differ, on all rows. That is right for
    functions that take each row by itself; a sum over the batch would be wrong.

    Args:
        row: the row, (1, ...).
        n_rows: how many it stands for.
    """

    row: Tensor
    n_rows: int

    @staticmethod
    def __new__(cls, row: Tensor, n_rows: int) -> RepeatedTensor:
        shape = (n_rows, *row.shape[1:])
        return make_wrapper_subclass(RepeatedTensor, shape, row.dtype, row.device)

    def __init__(self, row: Tensor, n_rows: int) -> None:
        self.row = row
        self.n_rows = n_rows

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = (tuple(args), dict(kwargs or {}))
        n_rows = next(each.n_rows for each in _tensors(given) if isinstance(each, RepeatedTensor))
        try:
            result = _call(func, given, lambda each: each.row)
        except Exception:  # one row does not do, as in a concatenation with many
            return _call(func, given, _copy_of_all_rows)
        found = list(_tensors(result))
        if result is not None and not found:
            # A shape, a length, a value: what it is for all rows.
            return _call(func, given, _view_of_all_rows)
        if any(each.dim() == 0 or len(each) != 1 for each in found):
            return _call(func, given, _copy_of_all_rows)
        return _mapped(result, Tensor, lambda row: RepeatedTensor(row, n_rows))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """The same for what reaches PyTorch's own operators."""
        return cls.__torch_function__(func, types, args, kwargs)


def all_rows(values: Any) -> Any:
    """The same values, with all rows of tensors that hold one."""
    return _mapped(values, RepeatedTensor, _copy_of_all_rows)


def _call(func: Callable[..., Any], given: Any, change: Callable[[RepeatedTensor], Tensor]) -> Any:
    args, kwargs = _mapped(given, RepeatedTensor, change)
    return func(*args, **kwargs)


def _view_of_all_rows(values: RepeatedTensor) -> Tensor:
    return values.row.expand(values.n_rows, *values.row.shape[1:])


def _copy_of_all_rows(values: RepeatedTensor) -> Tensor:
    return _view_of_all_rows(values).clone()


def _mapped(values: Any, kind: type[Tensor], change: Callable[[Any], Tensor]) -> Any:
    """Values with each tensor of a kind changed, also in tuples, lists and dicts."""
    if isinstance(values, kind):
        return change(values)
    if isinstance(values, dict):
        return {name: _mapped(each, kind, change) for name, each in values.items()}
    if isinstance(values, tuple | list):
        items = [_mapped(each, kind, change) for each in values]
        if any(new is not old for new, old in zip(items, values, strict=True)):
            return type(values)(items) if type(values) in (tuple, list) else tuple(items)
    return values


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among values, also in tuples, lists and dicts."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        for each in values.values():
            yield from _tensors(each)
    elif isinstance(values, tuple | list):
        for each in values:
            yield from _tensors(each)
