"""What is to be computed, as frozen values: the task, how it is sampled, and how it is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from captum_pda.basics import device_sync
from captum_pda.distributed.ranks import Ranks
from captum_pda.engines import Engine
from captum_pda.execution.sampling_error import StoppingRule
from captum_pda.prediction.model_call import ModelCall
from captum_pda.prediction.reader import Reader
from captum_pda.regions.protocol import Regions, Windows

CONTEXTS = ("full", "empty", "both")


@dataclass(frozen=True, eq=False)
class Part:
    """Regions of one size, of one input tensor, in one context.

    Args:
        tensor: the number of the input tensor.
        regions: where they lie.
        context: "full" (all else is seen) or "empty" (nothing else is seen).
    """

    tensor: int
    regions: Regions
    context: str = "full"


@dataclass(frozen=True)
class Scene:
    """One example with one tensor to change in one context.

    Args:
        tensor: the number of the input tensor.
        context: "full" or "empty".
        example: the number of the example.
        parts: the numbers of the parts whose regions are changed here.
    """

    tensor: int
    context: str
    example: int
    parts: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Task:
    """A model, its inputs, what is hidden of them, and what is read.

    Args:
        call: the model with its arguments.
        inputs: the tensors whose regions are hidden.
        parts: what is hidden.
        reader: which scores are kept.
        seen: the scores with everything seen, (N, columns).
        references: for each part the scores before a region is changed, (N, columns).
        seconds_per_pass: about how long the model takes for one copy.
    """

    call: ModelCall
    inputs: tuple[Tensor, ...]
    parts: tuple[Part, ...]
    reader: Reader
    seen: Tensor
    references: tuple[Tensor, ...]
    seconds_per_pass: float = 0.0

    @property
    def n_examples(self) -> int:
        """The batch size N."""
        return len(self.inputs[0])

    def scenes(self) -> Iterator[Scene]:
        """Each tensor and context of each example, with its parts: they share what is prepared."""
        found: dict[tuple[int, str], list[int]] = {}
        for number, part in enumerate(self.parts):
            found.setdefault((part.tensor, part.context), []).append(number)
        for (tensor, context), parts in found.items():
            for example in range(self.n_examples):
                yield Scene(tensor, context, example, tuple(parts))


@dataclass(frozen=True)
class Sampling:
    """How many contents each region gets.

    Args:
        n_samples: how many; with ``stopping``, at most.
        seed: the same one gives the same draws.
        keep_errors: whether to keep the standard error of each score.
        stopping: when a region has contents enough; None runs all of them.
        part: the number of the part whose regions are sampled.
    """

    n_samples: int = 1
    seed: int = 0
    keep_errors: bool = False
    stopping: StoppingRule | None = None
    part: int = 0

    def in_context(self, context: str) -> Sampling:
        """In the empty context the true content is put in, which is one and certain."""
        return self if context == "full" else Sampling(1, self.seed, self.keep_errors)

    def generator(self, windows: Windows, device: torch.device) -> torch.Generator:
        """Draws for these windows, which depend on the seed and on nothing drawn before."""
        return device_sync.generator_for((self.seed, windows.first, self.part), device)


@dataclass(frozen=True, eq=False)
class Execution:
    """How the model is run.

    Args:
        engine: runs the copies.
        perturbations_per_eval: copies in a batch; None chooses by itself.
        ranks: the processes that share the regions.
        title: of the progress bar; None shows none.
    """

    engine: Engine
    perturbations_per_eval: int | None
    ranks: Ranks
    title: str | None
