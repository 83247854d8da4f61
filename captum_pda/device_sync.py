"""The only places that wait for a device to read a value, none of them once per window or batch."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def is_true(condition: Tensor) -> bool:
    """The value of a one-element boolean tensor."""
    return bool(condition)


def all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite."""
    return is_true(torch.isfinite(values).all())


def wait(values: Tensor) -> None:
    """Wait until the device has worked these out."""
    all_finite(values)


def as_float(value: Tensor) -> float:
    """The value of a one-element tensor."""
    return float(value)


def checksum(values: Tensor) -> int:
    """A number that depends on the bytes of a tensor."""
    plain = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(plain.numpy().data)


def draw_seed(generator: torch.Generator | None) -> int:
    """A seed from ``generator``, or PyTorch's initial seed, without changing the random state."""
    if generator is None:
        return torch.initial_seed()
    return int(torch.randint(2**62, (1,), generator=generator, device=generator.device))


def generator_for(numbers: Sequence[int], device: torch.device) -> torch.Generator:
    """A generator that depends on a seed and further numbers only; trailing zeros are ignored."""
    words = list(numbers)
    while len(words) > 2 and words[-1] == 0:
        words.pop()
    state = np.random.SeedSequence([word % 2**64 for word in words]).generate_state(1, np.uint64)
    return torch.Generator(device=device).manual_seed(int(state[0] >> np.uint64(1)))


def has_double(device: torch.device | str) -> bool:
    """Whether a device supports double precision, as Apple's GPUs do not."""
    return torch.device(device).type != "mps"


def double_device(device: torch.device | str) -> torch.device:
    """The device itself, or the CPU for one without double precision."""
    return torch.device(device) if has_double(device) else torch.device("cpu")


def in_double(values: Tensor) -> Tensor:
    """Values in double precision, moved before the cast to a device that supports it."""
    return values.to(double_device(values.device)).to(torch.float64)


def moved_like(values: Tensor, like: Tensor) -> Tensor:
    """Values in the dtype and on the device of others, cast on a device with double precision."""
    if has_double(like.device):
        return values.to(like.device).to(like.dtype)
    return values.to(like.dtype).to(like.device)
