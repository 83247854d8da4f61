"""What a stored result is known by: its input, its target, and what the model said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from captum_pda.basics.fingerprints import fingerprint
from captum_pda.prediction.evaluation_mode import evaluation_mode
from captum_pda.prediction.model_call import ModelCall

#: Rounding may move outputs by so many units in the last place, of their largest value; in half
#: precision by this share of it.
ROUNDINGS, MOST_ROUNDING = 100, 0.01


@dataclass(frozen=True, eq=False)
class Example:
    """An example to explain, where a plain tensor or pair says too little.

    Args:
        inputs: (C, *space).
        target: its own target, if it has one.
        source: where it comes from, as plain values that are stored with its result.
    """

    inputs: Tensor
    target: Any = None
    source: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(item: Any) -> Example:
        """The example of a data set's item: an input, or a pair of an input and its target."""
        if isinstance(item, Example):
            return item
        pair = item if isinstance(item, tuple | list) and len(item) == 2 else (item, None)
        inputs, target = pair
        if not isinstance(inputs, Tensor):
            raise TypeError(
                f"an item starts with {type(inputs).__name__} where a tensor (C, *space) was "
                "expected; add a transform that makes one"
            )
        return Example(inputs, target.tolist() if isinstance(target, Tensor) else target)


@dataclass(frozen=True, eq=False)
class Record:
    """What a result was made from.

    Args:
        input_sha256: a hash of the input.
        target: the explained output, as plain values.
        outputs: what the model said of the whole input; None where nobody asked it.
        source: where the input came from.
    """

    input_sha256: str
    target: Any
    outputs: Tensor | None
    source: Mapping[str, Any] = field(default_factory=dict)

    def change_of_example(self, stored: Record) -> str | None:
        """What differs in what was asked about: the input, or the target; None where nothing."""
        if stored.input_sha256 != self.input_sha256:
            return "the input is another one"
        if stored.target != self.target:
            return f"the target was {stored.target} and is now {self.target}"
        return None

    def change_of_model(self, stored: Record) -> str | None:
        """How the model's outputs differ beyond rounding; None where they don't."""
        before, now = stored.outputs, self.outputs
        if before is None or now is None:
            return "nothing tells whether the model is the same"
        if before.shape != now.shape:
            return f"the model had outputs {tuple(before.shape)} and has {tuple(now.shape)}"
        tolerance = min(ROUNDINGS * torch.finfo(now.dtype).eps, MOST_ROUNDING)
        before, now = before.double(), now.double()
        size = float(now.nan_to_num(0, 0, 0).abs().amax()) if now.numel() else 0.0
        if torch.allclose(now, before, rtol=0.0, atol=tolerance * size, equal_nan=True):
            return None
        share = float((now - before).nan_to_num().abs().max()) / (size or 1.0)
        return f"the model's outputs differ from those stored, by {share:.2g} of their size"


def record_of(
    example: Example, target: Any, forward_func: Callable[..., Any] | None, arguments: Any
) -> Record:
    """The record of an example, with one forward pass of the model.

    Args:
        example: with its input on the model's device.
        target: the explained output.
        forward_func: the model, or None where there is none to ask.
        arguments: its additional arguments.
    """
    outputs = None
    if forward_func is not None:
        batch = example.inputs.unsqueeze(0)
        with torch.no_grad(), evaluation_mode(forward_func), _same_noise(batch.device):
            outputs = ModelCall(forward_func, (batch,), arguments).as_given()[0]
        outputs = outputs.detach().cpu()
    return Record(fingerprint(example.inputs), target, outputs, example.source)


@contextmanager
def _same_noise(device: torch.device) -> Iterator[None]:
    """The same random numbers each time, so that a model with noise can be compared with itself;
    the user's random state stays as it was."""
    kind = device.type if device.type in ("cuda", "xpu") else None
    devices = [device.index or 0] if kind else []
    with torch.random.fork_rng(devices=devices, device_type=kind or "cuda"):
        torch.default_generator.manual_seed(0)
        if kind:
            getattr(torch, kind).default_generators[devices[0]].manual_seed(0)
        yield
