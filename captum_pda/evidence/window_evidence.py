"""The evidence of every window for every output, and the maps drawn from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from captum_pda._captum import TargetType, format_output
from captum_pda.prediction.inputs import attribution_dtype
from captum_pda.prediction.measures import Measure
from captum_pda.prediction.targets import target_columns
from captum_pda.regions.window_grid import WindowGrid


def to_attribution(values: Tensor, grid: WindowGrid, like: Tensor) -> Tensor:
    """Average window values (N, W) onto an input, every channel of a pixel alike."""
    averaged = grid.average(values).to(attribution_dtype(like))
    return averaged.unsqueeze(1).expand(like.shape).contiguous()


@dataclass(frozen=True, eq=False, repr=False)
class WindowEvidence:
    """What every window says about every output, from one set of forward passes.

    Made by ``EfficientPDA.evidence`` and ``SampledPDA.evidence``.

    Args:
        inputs: the explained tensors.
        grids: the windows of each tensor.
        scores: log-odds in nats (or raw outputs) with everything seen, (N, columns).
        scores_without: the same without each window, (N, W, columns) a tensor.
        output_shape: the shape of one example's output, whose flat columns these are.
        output: "logits", "probabilities" or "raw".
        measure: what differences are measured in.
        is_tuple: whether the inputs came as a tuple, and so do the maps.
        errors_without: the standard errors of ``scores_without``, where there were several samples.
        drawn: how many samples each window had, (N, W) a tensor.

    Example::

        >>> evidence = EfficientPDA(model).evidence(image)
        >>> evidence.attribution(husky)              # for and against "husky"
        >>> evidence.contrast(husky, wolf)           # why "husky" rather than "wolf"?

        >>> evidence = SampledPDA(model).evidence(image, n_samples=50, tolerance=0.1)
        >>> evidence.standard_error(husky)           # of each window's value, in bits
        >>> evidence.n_drawn                         # how many samples that took
    """

    inputs: tuple[Tensor, ...]
    grids: tuple[WindowGrid, ...]
    scores: Tensor
    scores_without: tuple[Tensor, ...]
    output_shape: tuple[int, ...]
    output: str
    measure: Measure
    is_tuple: bool
    errors_without: tuple[Tensor, ...] = ()
    drawn: tuple[Tensor, ...] = ()

    def __repr__(self) -> str:
        windows = ", ".join(str(len(grid)) for grid in self.grids)
        return (
            f"WindowEvidence({len(self.scores)} examples, {windows} windows, outputs "
            f"{self.output_shape}, {self.output}, {self.measure.name})"
        )

    @property
    def probabilities(self) -> Tensor:
        """P(c|x) of every output with everything seen, (N, *output_shape)."""
        if self.output == "raw":
            raise ValueError("raw outputs have no probabilities; use output='logits'")
        return torch.sigmoid(self.scores).reshape(-1, *self.output_shape)

    def window_values(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """The evidence of each window for ``target``, (N, W)."""
        columns = self._columns(target, "target")
        return self._differences(lambda scores: self.measure.value(_pick(scores, columns)))

    def attribution(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """The map for ``target``, of the inputs' shape: what ``attribute`` returns."""
        return self._maps(self.window_values(target))

    def partial_attribution(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """The map of a run that was stopped: each pixel has the mean of the finished windows that
        cover it, and NaN where there is none."""
        values = self.window_values(target)
        each = values if isinstance(values, tuple) else (values,)
        return format_output(
            self.is_tuple,
            tuple(
                to_attribution(value.nan_to_num(0, 0, 0), grid, tensor)
                / to_attribution(value.isfinite().to(value.dtype), grid, tensor)
                for value, grid, tensor in zip(each, self.grids, self.inputs, strict=True)
            ),
        )

    def predictions_without(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """P(c|x without w) of ``target`` for each window w, or the raw output, (N, W)."""
        columns = self._columns(target, "target")
        return format_output(
            self.is_tuple,
            tuple(
                self.measure.prediction(_pick(without, columns)) for without in self.scores_without
            ),
        )

    @property
    def n_drawn(self) -> Tensor | tuple[Tensor, ...]:
        """How many contents of each window the model has seen, (N, W)."""
        return format_output(self.is_tuple, self.drawn)

    def standard_error(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """The standard error of each of the ``window_values``, (N, W), from the samples' spread.

        By the delta method: with p the mean and s the standard deviation of the S samples'
        probabilities, s / sqrt(S) / (p (1 - p) ln 2) bits of log-odds; s / sqrt(S) for probability
        differences and raw outputs, and s / sqrt(S) / (p ln 2) for information differences.
        """
        if not self.errors_without:
            raise ValueError(
                "a standard error needs two samples or more of each window; use "
                "SampledPDA(...).evidence(inputs, n_samples=10)"
            )
        columns = self._columns(target, "target")
        return format_output(
            self.is_tuple,
            tuple(
                _pick(errors, columns) * self.measure.slope(_pick(without, columns))
                for errors, without in zip(self.errors_without, self.scores_without, strict=True)
            ),
        )

    def standard_error_map(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """The standard error of each value of ``attribution``, of the inputs' shape.

        A pixel is the mean of the n windows that cover it. They are sampled independently, so its
        error is the root of the sum of their squared errors, divided by n.
        """
        errors = self.standard_error(target)
        each = errors if isinstance(errors, tuple) else (errors,)
        return format_output(
            self.is_tuple,
            tuple(
                to_attribution(error**2, grid, tensor).div(grid.coverage(tensor.device)).sqrt()
                for error, grid, tensor in zip(each, self.grids, self.inputs, strict=True)
            ),
        )

    def contrast(self, first: TargetType, second: TargetType) -> Tensor | tuple[Tensor, ...]:
        """The map of what speaks for ``first`` rather than ``second``.

        In bits, log2 P(first)/P(second) with the window seen less the same without it; for raw
        outputs and probability differences, the difference of the two maps.
        """
        firsts = self._columns(first, "first")
        seconds = self._columns(second, "second")
        return self._maps(
            self._differences(
                lambda scores: self.measure.contrast(_pick(scores, firsts), _pick(scores, seconds))
            )
        )

    def _columns(self, target: TargetType, name: str) -> Tensor:
        columns = target_columns(target, len(self.scores), self.output_shape, name)
        return torch.tensor(columns, device=self.scores.device)

    def _differences(self, quantity: Callable[[Tensor], Tensor]) -> Tensor | tuple[Tensor, ...]:
        seen = quantity(self.scores.unsqueeze(1))
        return format_output(
            self.is_tuple, tuple(seen - quantity(without) for without in self.scores_without)
        )

    def _maps(self, values: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        each = values if isinstance(values, tuple) else (values,)
        return format_output(
            self.is_tuple,
            tuple(
                to_attribution(value, grid, tensor)
                for value, grid, tensor in zip(each, self.grids, self.inputs, strict=True)
            ),
        )


def _pick(scores: Tensor, columns: Tensor) -> Tensor:
    """Each example's own column of (N, W, columns) scores, (N, W)."""
    index = columns[:, None, None].expand(-1, scores.shape[1], 1)
    return scores.gather(2, index).squeeze(2)
