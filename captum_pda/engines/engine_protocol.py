"""What an engine is: prepared once per example, then asked for the outputs without its windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from captum_pda.engines.batch_size import BatchSize
from captum_pda.regions.protocol import Windows

#: From copies of an example, (rows, C, *space), to the model's outputs, (rows, ...).
Forward: TypeAlias = Callable[[Tensor], Tensor]
#: From outputs to the few numbers per row that are kept, (rows, columns).
Read: TypeAlias = Callable[[Tensor], Tensor]
#: Told how many copies have just gone through the model.
Advance: TypeAlias = Callable[[int], object]


class PreparedEngine(Protocol):
    """An engine that has seen the example it will run on.

    It may have an attribute ``unfinished``: while ``scores`` runs, what it will return, with NaN
    for the fills still to come. Then a run that is stopped loses nothing.
    """

    def scores(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        """Run the model with each window replaced by each of its fills.

        Args:
            grid: W windows.
            fills: what to put there, (S, W, C, *window).
            read: applied to the outputs of every batch at once, so that only what it returns is
                kept.
            advance: called with the number of copies after each batch.

        Returns:
            (S, W, columns): what was read for every fill.
        """
        ...


@runtime_checkable
class Engine(Protocol):
    """A way to run a model on an example with each window replaced.

    It may have a method ``settings()``: what results depend on, as a table of plain values. Without
    one, folders of results know it by a hash of its attributes.

    Example::

        >>> class Counting(DenseEngine):
        ...     examples = 0
        ...     def prepare(self, forward, example, batch_size):
        ...         self.examples += 1
        ...         return super().prepare(forward, example, batch_size)
        >>> EfficientPDA(model, engine=Counting()).attribute(images, target=3)
    """

    def prepare(self, forward: Forward, example: Tensor, batch_size: BatchSize) -> PreparedEngine:
        """Look at the model and the unperturbed example, (1, C, *space), once."""
        ...
