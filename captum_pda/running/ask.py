"""Asking a model about any set of hidden regions of one input, again and again."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from copy import copy

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda.engines import BatchLoop, BatchSize, DenseEngine, PreparedEngine
from captum_pda.engines.audit import audited, warn_of_disagreement
from captum_pda.engines.protocol import audit_of
from captum_pda.errors import attach_result
from captum_pda.model.call import ModelCall
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.inputs import check_choice
from captum_pda.model.outputs import ExplainedOutputs
from captum_pda.priors.empty_context import seen_share
from captum_pda.regions.contexts import CONTEXTS
from captum_pda.regions.protocol import PlacedWindows, Windows
from captum_pda.running.plan import Place
from captum_pda.running.run import ProgressBar
from captum_pda.running.sampling import Sampling

Corners = npt.NDArray[np.int64]

ALL = slice(None)

#: The sides of boxes that are run together, as shares of the input's sides.
BOX_SIDES = (1 / 8, 1 / 4, 1 / 2, 1)
#: Values of fills that are held at once, and scores that are kept for later questions.
VALUES_AT_ONCE, MAX_KEPT_SCORES = 2**23, 2**26
#: After this many copies some are compared with the dense engine again.
COPIES_PER_AUDIT = 50


class CommonDraws(Sampling):
    """Samples of all sets of regions with the same random numbers."""

    def generator(self, windows: Windows, device: torch.device) -> torch.Generator:
        """The same draws, whatever is hidden."""
        return device_sync.generator_for((self.seed, 0), device)


class Asker:
    """The model, the prior and the inputs of an explanation, for further questions.

    Args:
        call: the model with its inputs.
        place: what is put in the place of hidden regions, and the engine that runs the copies.
        explained: which outputs are explained, as which scores.
        seen: the scores with everything seen, (N, columns).
        sampling: how many contents hidden regions get.
        rows: copies in a batch; None chooses by itself.
    """

    def __init__(
        self,
        call: ModelCall,
        place: Place,
        explained: ExplainedOutputs,
        seen: Tensor,
        sampling: Sampling,
        rows: int | None = None,
    ) -> None:
        self.call = call
        self.place = place
        self.engine = place.engine
        self.explained = explained
        self.seen = seen
        self.sampling = sampling
        self.rows = rows
        self._examples: dict[int, AskedExample] = {}
        self._numbers: Sequence[int] = range(len(seen))

    def of_examples(self, rows: slice) -> Asker:
        """The same about some of the examples, counted among themselves."""
        other = copy(self)
        other._numbers = self._numbers[rows]
        return other

    def __call__(self, example: int, copies: Tensor) -> Tensor:
        """The scores of changed copies (rows, C, *space) of an example, (rows, columns)."""
        return self.scores_of(self._numbers[example], copies)

    def scores_of(self, example: int, copies: Tensor) -> Tensor:
        """The same for an example that is counted among all that were explained."""
        read, forward = self.explained.for_example(example), self.call.for_example(example, 0)
        loop = BatchLoop(BatchSize(self.rows, self.call.values_per_example), copies[:1])
        with evaluation_mode(self.call.forward_func):
            return loop.run(len(copies), lambda rows: read(forward(copies[torch.from_numpy(rows)])))

    def seconds_per_pass(self, example: int) -> float:
        """How long a pass of one copy of an example takes, from one pass that is measured."""
        number = self._numbers[example]
        start = time.perf_counter()
        device_sync.wait(self.scores_of(number, self.call.inputs[0][number : number + 1].detach()))
        return time.perf_counter() - start

    def hidden(
        self,
        example: int,
        hidden: Tensor,
        context: str = "full",
        box: Tensor | None = None,
        progress: ProgressBar | str | None = None,
    ) -> Tensor:
        """The scores of an example with pixels hidden; see ``AskedExample.scores``."""
        number = self._numbers[example]
        if number not in self._examples:
            self._examples[number] = AskedExample(self, number)
        seconds = self.seconds_per_pass(example) if isinstance(progress, str) else None
        return self._examples[number].scores(hidden, context, box, progress, seconds)


class AskedExample:
    """One example that is asked about sets of hidden pixels; equal sets are asked once.

    In the full context, hidden pixels h are replaced by what the prior expects of them, or draws,
    given all pixels that are seen. In the empty context what is seen is pasted into the input n of
    which nothing is seen,

        x_h = n + s (x - n),     s(p) = sum_{q not in h} g(p - q) / sum_q g(p - q),

    with g a Gaussian of 2/224 of the shorter side. With everything hidden both are n, and with
    nothing hidden both are x.

    Args:
        asker: the model, the prior and the inputs.
        example: the number of the example.
    """

    def __init__(self, asker: Asker, example: int) -> None:
        self._asker = asker
        self._example = example
        self._values = asker.call.inputs[0][example : example + 1].detach()
        self._batch_size = BatchSize(asker.rows, asker.call.values_per_example)
        self._engine = asker.engine
        self._prepared: dict[str, PreparedEngine] = {}
        self._copies_since_audit: dict[str, int] = {}
        #: Scores (samples, columns) by context and hidden pixels.
        self._known: dict[tuple[object, ...], Tensor] = {}
        self._nothing: Tensor | None = None

    @torch.no_grad()
    def scores(
        self,
        hidden: Tensor,
        context: str,
        box: Tensor | None = None,
        progress: ProgressBar | str | None = None,
        seconds_per_pass: float | None = None,
    ) -> Tensor:
        """The scores with each set of pixels (K, *space) hidden.

        Args:
            hidden: which pixels are hidden, true or false.
            context: "full" or "empty".
            box: pixels (*space) that all sets lie in. Samples of all sets that are asked with the
                same box are drawn with the same random numbers.
            progress: the title of a progress bar, or a bar of several such runs; None shows none.
            seconds_per_pass: what the bar expects before the first pass.

        Returns:
            (samples, K, columns). What stops the run carries the same as its ``result``, with NaN
            for sets that were not finished.
        """
        check_choice("context", context, ("full", "empty"))
        hidden = hidden.cpu()
        n_samples = self._sampling(context).n_samples
        where = None
        if n_samples > 1:
            where = _bounds(torch.ones_like(hidden[:1]) if box is None else box.cpu().unsqueeze(0))
        keys = [_key(context, mask, where) for mask in hidden]
        found = {key: self._known[key] for key in keys if key in self._known}
        rows = {key: row for row, key in reversed(list(enumerate(keys))) if key not in found}
        new = sorted(rows.items(), key=lambda item: item[1])
        bar = progress
        if not isinstance(bar, ProgressBar):
            bar = ProgressBar(len(new) * n_samples, bar, warns=True)
            if new and seconds_per_pass is not None:
                bar.expect(seconds_per_pass)
        closing = nullcontext() if bar is progress else bar
        try:
            with closing, evaluation_mode(self._asker.call.forward_func):
                self._run(new, hidden, context, where, found, bar)
                if not self._agrees(context, len(new) * n_samples):
                    found.clear()
                    return self.scores(hidden, context, box, progress)
        except BaseException as error:
            attach_result(error, self._stacked(keys, found, n_samples))
            raise
        finally:
            self._keep(found)
        return self._stacked(keys, found, n_samples)

    def _run(
        self,
        new: list[tuple[tuple[object, ...], int]],
        hidden: Tensor,
        context: str,
        where: tuple[Corners, Corners] | None,
        found: dict[tuple[object, ...], Tensor],
        bar: ProgressBar,
    ) -> None:
        """Run the sets of pixels that are not known yet, those of boxes of one size together."""
        n_samples = self._sampling(context).n_samples
        groups: dict[tuple[int, ...], list[tuple[tuple[object, ...], int]]] = {}
        space = tuple(hidden.shape[1:])
        changed = {}
        for key, row in new:
            n_hidden = int(hidden[row].sum())
            certain = None
            if n_hidden == 0:
                certain = self._asker.seen[self._example]
            elif n_hidden == hidden[row].numel() and self._has_nothing_seen(context):
                nothing = self._nothing_seen().unsqueeze(0)
                certain = self._asker.scores_of(self._example, nothing)[0]
            if certain is not None:
                found[key] = certain.expand(n_samples, -1)
                bar.update(n_samples)
                continue
            changed[row] = (
                hidden[row] if context == "full" else seen_share(hidden[row : row + 1])[0] > 0
            )
            groups.setdefault(_box_shape(changed[row], space), []).append((key, row))
        for shape in sorted(groups, key=math.prod):
            at_once = max(1, VALUES_AT_ONCE // (n_samples * self._values[0].numel()))
            for start in range(0, len(groups[shape]), at_once):
                some = groups[shape][start : start + at_once]
                fills, corners = [], []
                for _, row in some:
                    if context == "full":
                        copies = self._filled(hidden[row], where)
                    else:
                        copies = self._pasted(hidden[row])
                    (low,), _ = _bounds(changed[row].unsqueeze(0))
                    corner = np.minimum(low, np.subtract(space, shape))
                    corners.append(corner)
                    fills.append(copies[(ALL, ALL, *_slices(corner, shape))])
                boxes = PlacedWindows(space, shape, np.stack(corners))
                self._run_boxes(context, boxes, torch.stack(fills, 1), some, found, bar)

    def _run_boxes(
        self,
        context: str,
        boxes: PlacedWindows,
        fills: Tensor,
        some: list[tuple[tuple[object, ...], int]],
        found: dict[tuple[object, ...], Tensor],
        bar: ProgressBar,
    ) -> None:
        """Run the model with these fills (S, W, C, *box), and keep what is finished."""
        prepared = self._prepared_in(context)
        read = self._asker.explained.for_example(self._example)
        scores = None
        try:
            scores = prepared.scores(boxes, fills, read, bar.update)
        except BaseException:
            scores = getattr(prepared, "unfinished", None)
            raise
        finally:
            if scores is not None:
                for column, (key, _) in enumerate(some):
                    if not bool(scores[:, column].isnan().all(dim=1).any()):
                        found[key] = scores[:, column]

    def _filled(self, hidden: Tensor, where: tuple[Corners, Corners] | None) -> Tensor:
        """The example with hidden pixels (*space) filled given the others, (S, C, *space)."""
        (low,), (high,) = _bounds(hidden.unsqueeze(0)) if where is None else where
        shape = tuple(int(side) for side in high - low)
        place = _slices(low, shape)
        windows = PlacedWindows(tuple(hidden.shape), shape, low[None], hidden[place].unsqueeze(0))
        try:
            sampling = CommonDraws(self._sampling("full").n_samples, self._sampling("full").seed)
            fills = self._asker.place.drawn(self._values[0], windows, sampling)
        except (TypeError, ValueError) as error:
            prior = type(self._asker.place.prior).__name__
            raise type(error)(
                f"{prior} cannot fill {int(hidden.sum()):,} pixels in a box of {shape} that are "
                f"hidden together: {error}. GaussianFieldPrior() fills any set of regions"
            ) from error
        copies = self._values.expand(len(fills), *self._values.shape[1:]).clone()
        copies[(ALL, ALL, *place)] = fills[:, 0]
        return copies

    def _pasted(self, hidden: Tensor) -> Tensor:
        """What is not hidden (*space), in an input with nothing else seen, (1, C, *space)."""
        nothing = self._nothing_seen()
        share = (
            seen_share(hidden.unsqueeze(0))[0]
            .to(nothing.device)
            .to(torch.promote_types(nothing.dtype, torch.float32))
        )
        pasted = torch.lerp(nothing.to(share.dtype), self._values[0].to(share.dtype), share)
        return pasted.to(nothing.dtype).unsqueeze(0)

    def _nothing_seen(self) -> Tensor:
        if self._nothing is None:
            self._nothing = self._asker.place.nothing_seen(self._values[0])
        return self._nothing

    def _has_nothing_seen(self, context: str) -> bool:
        """Whether everything hidden is the input with nothing seen: a prior that does not know one
        fills all of it in the full context."""
        prior = self._asker.place.prior
        return context == "empty" or prior is None or hasattr(prior, "nothing_seen")

    def _sampling(self, context: str) -> Sampling:
        return self._asker.sampling.in_context(CONTEXTS[context])

    def _prepared_in(self, context: str) -> PreparedEngine:
        if context not in self._prepared:
            unchanged = self._values if context == "full" else self._nothing_seen().unsqueeze(0)
            forward = self._asker.call.for_example(self._example, 0)
            arguments = (forward, unchanged, self._batch_size)
            self._prepared[context] = audited(self._engine.prepare(*arguments), *arguments)
        return self._prepared[context]

    def _agrees(self, context: str, n_copies: int) -> bool:
        """Whether the engine finds what the dense one does; else all is forgotten."""
        if context not in self._prepared:
            return True
        since = self._copies_since_audit.get(context, COPIES_PER_AUDIT) + n_copies
        self._copies_since_audit[context] = since
        if since < COPIES_PER_AUDIT:
            return True
        self._copies_since_audit[context] = 0
        audit = audit_of(self._prepared[context])
        if not audit.agrees:
            warn_of_disagreement(audit)
            self._engine = DenseEngine()
            self._prepared.clear()
            self._known.clear()
        return audit.agrees

    def _keep(self, found: dict[tuple[object, ...], Tensor]) -> None:
        """Remember scores for later questions, as long as they are not too large."""
        for key, scores in found.items():
            if (len(self._known) + 1) * scores.numel() <= MAX_KEPT_SCORES:
                self._known[key] = scores

    def _stacked(
        self, keys: list[tuple[object, ...]], found: dict[tuple[object, ...], Tensor], n: int
    ) -> Tensor:
        """Scores (S, K, columns), NaN where they are not known."""
        unknown = self._asker.seen.new_full((n, self._asker.seen.shape[1]), math.nan)
        if not keys:
            return unknown.unsqueeze(1)[:, :0]
        return torch.stack([found.get(key, unknown) for key in keys], dim=1)


def _key(context: str, hidden: Tensor, where: object) -> tuple[object, ...]:
    """What tells one question from another."""
    packed = np.packbits(hidden.numpy()).tobytes()
    return context, hashlib.blake2b(packed, digest_size=16).digest(), str(where)


def _bounds(masks: Tensor) -> tuple[Corners, Corners]:
    """The first pixel of masks (K, *space), and the one past the last, each (K, dims)."""
    low, high = [], []
    for axis in range(1, masks.dim()):
        others = [other for other in range(1, masks.dim()) if other != axis]
        line = masks.movedim(axis, 1).flatten(2).any(dim=2) if others else masks
        plain = line.numpy()
        low.append(plain.argmax(axis=1))
        high.append(plain.shape[1] - plain[:, ::-1].argmax(axis=1))
    return np.stack(low, axis=1), np.stack(high, axis=1)


def _box_shape(mask: Tensor, space: tuple[int, ...]) -> tuple[int, ...]:
    """The smallest box of a few shapes that holds a mask (*space)."""
    (low,), (high,) = _bounds(mask.unsqueeze(0))
    for share in BOX_SIDES:
        shape = tuple(math.ceil(share * side) for side in space)
        if (high - low <= shape).all():
            break
    return shape


def _slices(corner: Sequence[int] | Corners, shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(int(a), int(a) + side) for a, side in zip(corner, shape, strict=True))
