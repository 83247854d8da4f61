"""Further questions to a model about any set of hidden pixels of an example."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from typing import TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda.engines import BatchSize, DenseEngine
from captum_pda.engines.protocol import Advance
from captum_pda.errors import attach_result
from captum_pda.model.call import ModelCall
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.inputs import check_choice
from captum_pda.model.outputs import ExplainedOutputs
from captum_pda.regions.contexts import CONTEXTS
from captum_pda.regions.protocol import PlacedWindows
from captum_pda.running.plan import Place
from captum_pda.running.run import ProgressBar
from captum_pda.running.sampling import Sampling, score_regions

#: A box: its first pixel, and the pixel after its last.
Bounds: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]

#: A question: the example, the context, a hash of the pixels, and the box of the random numbers.
Key: TypeAlias = tuple[int, str, bytes, Bounds | None]

#: The values of copies in memory at once, and the size of the cache of scores.
VALUES_AT_ONCE, MAX_KEPT_SCORES = 2**23, 2**26


class Asker:
    """The model, the prior and the inputs of an explanation, for further questions.

    In the full context, hidden pixels h are replaced by the prior's mean, or by samples, given all
    visible pixels. In the empty context, visible pixels are pasted into the input n with everything
    hidden,

        x_h = n + s (x - n),     s(p) = sum_{q not in h} g(p - q) / sum_q g(p - q),

    with g a Gaussian of 2/224 of the shorter side. With everything hidden both give n, and with
    nothing hidden x. Copies are run by the dense engine, because sets of regions change most of the
    input. Scores are cached.
    """

    def __init__(
        self,
        place: Place,
        explained: ExplainedOutputs,
        seen: Tensor,
        sampling: Sampling,
        rows: int | None = None,
    ) -> None:
        self.place = place
        self.call = cast(ModelCall, place.call)
        self.explained = explained
        self.seen = seen  #: The scores with everything seen, (N, columns).
        self.sampling = sampling
        self._batch_size = BatchSize(rows, self.call.values_per_example)
        #: The scores (samples, columns) of earlier questions.
        self._known: dict[Key, Tensor] = {}
        #: The numbers of these examples among all that were explained.
        self._numbers: Sequence[int] = range(len(seen))

    def of_examples(self, rows: slice) -> Asker:
        """The same for some of the examples."""
        other = copy(self)
        other._numbers = self._numbers[rows]
        return other

    def __call__(self, example: int, copies: Tensor) -> Tensor:
        """The scores of changed copies (rows, C, *space) of an example, (rows, columns)."""
        with evaluation_mode(self.call.forward_func):
            found = list(self._finished(self._numbers[example], copies.unsqueeze(0)))
        return torch.cat([scores for _, scores in found])

    @torch.no_grad()
    def seconds_per_pass(self, example: int, hidden: Tensor, context: str = "full") -> float:
        """The time of a pass with some pixels (*space) hidden, with its fill; one is run."""
        start = time.perf_counter()
        sampling = replace(self.sampling, n_samples=1)
        copies = self._copies(self._numbers[example], hidden[None], context, None, sampling)
        device_sync.wait(self(example, copies[0]))
        return time.perf_counter() - start

    @torch.no_grad()
    def hidden(
        self,
        example: int,
        hidden: Tensor,
        context: str = "full",
        box: Tensor | None = None,
        progress: ProgressBar | str | None = None,
    ) -> Tensor:
        """The scores with each set of pixels (K, *space) of an example hidden.

        Args:
            example: its number.
            hidden: the hidden pixels, as booleans.
            context: "full" or "empty".
            box: pixels (*space) that contain all sets. Sets with the same box are sampled with the
                same random numbers.
            progress: the title of a progress bar, or a bar of several such runs; None shows none.

        Returns:
            (samples, K, columns). An interruption carries the same as its ``result``, with NaN for
            unfinished sets.
        """
        check_choice("context", context, ("full", "empty"))
        number, hidden = self._numbers[example], hidden.cpu()
        space = tuple(self.call.inputs[0].shape[2:])
        if hidden.dtype != torch.bool or tuple(hidden.shape[1:]) != space:
            raise ValueError(
                f"hidden is a tensor of {hidden.dtype} of shape {tuple(hidden.shape)}; give the "
                f"pixels that are hidden in each set as booleans, (K, *{space})"
            )
        sampling = replace(self.sampling.in_context(CONTEXTS[context]), common_draws=True)
        n_samples = sampling.n_samples
        box = torch.ones(space, device="cpu") if box is None else box.cpu()
        where = _bounds(box) if n_samples > 1 else None
        hashes = (hashlib.sha256(np.packbits(mask).tobytes()).digest() for mask in hidden.numpy())
        keys: list[Key] = [(number, context, pixels, where) for pixels in hashes]
        if len(self._known) * self.seen.shape[1] * n_samples > MAX_KEPT_SCORES:
            self._known = {}  # another thread may still read the former one
        known = self._known
        new = {key: mask for key, mask in zip(keys, hidden, strict=True) if key not in known}
        bar = progress
        if not isinstance(bar, ProgressBar):
            some = [mask for mask in new.values() if mask.any()] if bar is not None else []
            bar = ProgressBar(len(new) * n_samples, bar, warns=True)
            if some:
                seconds = self.seconds_per_pass(example, some[0], context)
                bar.expect(seconds * len(new) * n_samples)
        for key in [key for key, mask in new.items() if not mask.any()]:
            known[key] = self.seen[number].expand(n_samples, -1)
            del new[key]
            bar.update(n_samples)
        at_once = max(1, VALUES_AT_ONCE // (n_samples * self.call.inputs[0][0].numel()))
        try:
            with nullcontext() if bar is progress else bar, evaluation_mode(self.call.forward_func):
                for start in range(0, len(new), at_once):
                    chunk = list(new)[start : start + at_once]
                    masks = torch.stack([new[key] for key in chunk])
                    copies = self._copies(number, masks, context, where, sampling)
                    for place, scores in self._finished(number, copies, bar.update):
                        known[chunk[place]] = scores
        except BaseException as error:
            attach_result(error, self._stacked(known, keys, n_samples))
            raise
        return self._stacked(known, keys, n_samples)

    def _finished(
        self, number: int, copies: Tensor, advance: Advance = lambda rows: None
    ) -> Iterator[tuple[int, Tensor]]:
        """The place and scores (S, columns) of each of the copies (S, K, C, *space) of an example
        that is finished, also on an interruption."""
        values = self.call.inputs[0][number : number + 1].detach()
        space = tuple(values.shape[2:])
        boxes = PlacedWindows(space, space, np.zeros((copies.shape[1], len(space)), np.int64))
        forward, read = self.call.for_example(number, 0), self.explained.for_example(number)
        prepared = DenseEngine().prepare(forward, values, self._batch_size)
        for places, samples in score_regions(prepared, boxes, copies, read, advance):
            if len(samples) == len(copies):
                yield from zip(places.tolist(), samples.unbind(1), strict=True)

    def _copies(
        self, number: int, hidden: Tensor, context: str, where: Bounds | None, sampling: Sampling
    ) -> Tensor:
        """Copies of an example with each set of pixels (K, *space) hidden, (S, K, C, *space)."""
        values = self.call.inputs[0][number].detach()
        space = tuple(values.shape[1:])
        if context == "full":
            return torch.stack([self._filled(values, mask, where, sampling) for mask in hidden], 1)
        corners = np.zeros((len(hidden), len(space)), np.int64)
        windows = PlacedWindows(space, space, corners, hidden)
        return self.place.seen_together(values, windows)[1].unsqueeze(0)

    def _filled(
        self, values: Tensor, hidden: Tensor, where: Bounds | None, sampling: Sampling
    ) -> Tensor:
        """An example with hidden pixels (*space) filled given the others, (S, C, *space)."""
        prior = self.place.prior
        copies = values.expand(sampling.n_samples, *values.shape)
        if hidden.all() and (prior is None or hasattr(prior, "nothing_seen")):
            return self.place.nothing_seen(values).expand_as(copies)
        low, high = _bounds(hidden) if where is None else where
        shape = tuple(np.subtract(high, low).tolist())
        inside = tuple(map(slice, low, high))
        windows = PlacedWindows(tuple(hidden.shape), shape, np.array([low]), hidden[inside][None])
        try:
            fills = self.place.drawn(values, windows, sampling)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"{type(prior).__name__} cannot fill {int(hidden.sum()):,} pixels in a box of "
                f"{shape} that are hidden together: {error}. GaussianFieldPrior() fills any set of "
                "regions"
            ) from error
        copies = copies.clone()
        copies[(slice(None), slice(None), *inside)] = fills[:, 0]
        return copies

    def _stacked(self, known: dict[Key, Tensor], keys: list[Key], n_samples: int) -> Tensor:
        """Scores (S, K, columns), NaN where they are not known."""
        unknown = self.seen.new_full((n_samples, self.seen.shape[1]), math.nan)
        if not keys:
            return unknown.unsqueeze(1)[:, :0]
        return torch.stack([known.get(key, unknown) for key in keys], dim=1)


def _bounds(mask: Tensor) -> Bounds:
    places = np.nonzero(mask.numpy())
    return tuple(int(at.min()) for at in places), tuple(int(at.max()) + 1 for at in places)
