"""A device that there is not: its tensors lie on the CPU and say that they are elsewhere."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from captum_pda import device_sync

aten = torch.ops.aten
#: PyTorch runs the backward pass of this one on the CPU's thread; others need a driver for it.
DEVICE = torch.device("meta")
DOUBLE = (torch.float64, torch.complex128)
#: What may take tensors of two devices: copies, and numbers of places given on the CPU.
TAKES_BOTH = {"aten::copy_", "aten::_to_copy", "aten::to", "aten::index", "aten::index_put_"}
#: What waits for the device: the host asks for values, or for a size that depends on them.
READS = {"aten::_local_scalar_dense", "aten::item", "aten::equal", "aten::allclose"}
READS |= {"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim"}
#: Views that only promise a result, which nothing would keep here.
AT_ONCE = {
    aten._conj.default: aten._conj_physical.default,
    aten._neg_view.default: aten.neg.default,
}


class PretendedTensor(Tensor):
    """A tensor that holds its values on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> PretendedTensor:
        kept = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, dtype=held.dtype, layout=held.layout, device=DEVICE, **kept
        )
        made.held = held
        return made

    def __repr__(self) -> str:
        return f"{self.held!r} on a pretended device"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new_tensor(self, data: Any) -> Tensor:  # type: ignore[override]
        return torch.tensor(data, dtype=self.dtype, device=DEVICE)

    def __getitem__(self, index: Any) -> Tensor:
        # PyTorch would make a tensor without values of a list.
        several = index if isinstance(index, tuple) else (index,)
        numbers = (torch.tensor(one) if isinstance(one, list) else one for one in several)
        return super().__getitem__(tuple(numbers))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("a pretended tensor is used outside its device")


class PretendedDevice(TorchDispatchMode):
    """Within, tensors can be on DEVICE, and what mixes devices is refused.

    Args:
        has_double: whether the device computes in double precision.
    """

    def __init__(self, has_double: bool) -> None:
        super().__init__()
        self.has_double = has_double
        #: How often which operation waited for the device.
        self.reads: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        ours = [isinstance(tensor, PretendedTensor) for tensor in tensors]
        if any(
            tensor.device == DEVICE and not own for tensor, own in zip(tensors, ours, strict=True)
        ):
            raise AssertionError(f"{func} is given a tensor that was made without values")
        here = _stays_here(name, kwargs, ours)
        if not here and not any(ours):
            return func(*args, **kwargs)
        mixed = any(not own and tensor.dim() for tensor, own in zip(tensors, ours, strict=True))
        if mixed and name not in TAKES_BOTH:
            raise RuntimeError(f"{func} takes tensors of one device, here of two")
        if name in READS or not here or _chooses_by_truth(name, tensors):
            self.reads[name] += 1
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        args_here, kwargs_here = tree_map_only(PretendedTensor, lambda t: t.held, (args, kwargs))
        made = AT_ONCE.get(func, func)(*args_here, **kwargs_here)
        if func._schema.is_mutable and isinstance(made, Tensor):
            return kwargs.get("out", args[0])
        return tree_map_only(Tensor, self.pretend, made) if here else made

    def pretend(self, values: Tensor) -> PretendedTensor:
        """These values on this device."""
        if not self.has_double and values.dtype in DOUBLE:
            raise TypeError(f"this device has no {values.dtype}")
        return PretendedTensor(values)


def _stays_here(name: str, kwargs: dict[str, Any], ours: list[bool]) -> bool:
    """Whether what comes out is on the pretended device."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"]) == DEVICE
    return ours[0] if name == "aten::copy_" else any(ours)


def _chooses_by_truth(name: str, tensors: list[Tensor]) -> bool:
    """Whether the number of true places must be known, as for ``x[x > 0]``."""
    return name.startswith("aten::index") and any(t.dtype == torch.bool for t in tensors[1:])


@contextmanager
def pretended_device(has_double: bool = True) -> Iterator[PretendedDevice]:
    """Within, there is a device of which PyTorch's own FakeTensorMode shows less: here values can
    be read, since there are some, and the backward pass runs."""
    generator_for = device_sync.generator_for
    with pytest.MonkeyPatch.context() as patch:
        for function in (torch.tensor, torch.as_tensor):
            patch.setattr(torch, function.__name__, _with_values(function))
        for name, otherwise in (("autocast", nullcontext()), ("is_autocast_enabled", False)):
            patch.setattr(torch, name, _unless_here(getattr(torch, name), otherwise))
        # The CPU's numbers, so that maps can be compared with the CPU's.
        patch.setattr(device_sync, "generator_for", lambda words, _: generator_for(words, "cpu"))
        patch.setattr(
            device_sync, "has_double", lambda device: has_double or torch.device(device) != DEVICE
        )
        # PyTorch remembers which functions a default device holds for: these ones, meanwhile.
        _device._device_constructors.cache_clear()
        with PretendedDevice(has_double) as device:
            yield device
    _device._device_constructors.cache_clear()


def _with_values(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that makes tensors of values also on DEVICE, where PyTorch knows of none."""

    @functools.wraps(function)
    def made(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        values = function(data, **options)
        return values if device is None else values.to(device)

    return made


def _unless_here(function: Callable[..., Any], otherwise: Any) -> Callable[..., Any]:
    """A function that PyTorch does not have for DEVICE."""

    def known(*given: Any, **options: Any) -> Any:
        return otherwise if DEVICE.type in given else function(*given, **options)

    return known
