"""What is to be computed, as frozen values: what is hidden, where, and how it is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from captum_pda.distributed import Ranks
from captum_pda.engines import Engine
from captum_pda.model.call import Call
from captum_pda.model.outputs import Reader
from captum_pda.regions.protocol import Regions
from captum_pda.running.contents import Contents

CONTEXTS = ("full", "empty", "both")


@dataclass(frozen=True, eq=False)
class Depth:
    """Where regions are hidden: in the inputs, or in a layer's feature maps.

    Args:
        name: "input", or the name of the layer.
        call: the model as a function of the tensors that are changed here.
        contents: what is put in the place of regions.
        engine: runs the copies.
    """

    name: str
    call: Call
    contents: Contents
    engine: Engine


@dataclass(frozen=True, eq=False)
class Part:
    """Regions of one size, of one tensor at one depth, in one context.

    Args:
        depth: where they are hidden.
        tensor: the number of the tensor among those of that depth.
        regions: where they lie.
        context: "full" (all else is seen) or "empty" (nothing else is seen).
    """

    depth: Depth
    tensor: int
    regions: Regions
    context: str = "full"

    @property
    def values(self) -> Tensor:
        """The tensor that the regions lie in, (N, C, *space)."""
        return self.depth.call.inputs[self.tensor]


@dataclass(frozen=True, eq=False)
class Scene:
    """One example with one tensor to change in one context.

    Args:
        example: the number of the example.
        first: a part that says the depth, the tensor and the context.
        parts: the numbers of all parts whose regions are changed here.
    """

    example: int
    first: Part
    parts: tuple[int, ...]

    @property
    def values(self) -> Tensor:
        """The example as it is, (1, C, *space)."""
        return self.first.values[self.example : self.example + 1]

    def forward(self, copies: Tensor) -> Tensor:
        """The model's outputs for copies of the example, (rows, C, *space)."""
        return self.first.depth.call.for_example(self.example, self.first.tensor)(copies)


@dataclass(frozen=True, eq=False)
class Task:
    """What is hidden of a model's inputs or feature maps, and what is read.

    Args:
        parts: what is hidden.
        reader: which scores are kept.
        seen: the scores with everything seen, (N, columns).
        references: for each part the scores before a region is changed, (N, columns).
    """

    parts: tuple[Part, ...]
    reader: Reader
    seen: Tensor
    references: tuple[Tensor, ...]

    @property
    def n_examples(self) -> int:
        """The batch size N."""
        return len(self.seen)

    def scenes(self) -> Iterator[Scene]:
        """Each tensor and context of each example, with its parts: they share what is prepared."""
        found: dict[tuple[Depth, int, str], list[int]] = {}
        for number, part in enumerate(self.parts):
            found.setdefault((part.depth, part.tensor, part.context), []).append(number)
        for numbers in found.values():
            for example in range(self.n_examples):
                yield Scene(example, self.parts[numbers[0]], tuple(numbers))


@dataclass(frozen=True, eq=False)
class Execution:
    """How the model is run.

    Args:
        perturbations_per_eval: copies in a batch; None chooses by itself.
        ranks: the processes that share the regions.
        title: of the progress bar; None shows none.
        densely: whether the dense engine runs all, since another has failed its audit.
    """

    perturbations_per_eval: int | None
    ranks: Ranks
    title: str | None
    densely: bool = False
