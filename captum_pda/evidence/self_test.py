"""The test of a map on its own input: hide the strongest pixels, and show only them."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.model.measures import Measure
from captum_pda.priors import EmptyContext, prior_for
from captum_pda.regions.protocol import PlacedWindows

if TYPE_CHECKING:
    from captum_pda.evidence.evidence import WindowEvidence

#: The shares of the pixels that are hidden or shown.
SHARES = (
    0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3,
    0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95,
)  # fmt: skip
#: In larger images, conditional means would take minutes (39 of them, 1 s each at this size).
MAX_CONDITIONED_PIXELS = 2**19
#: A map fails if the two curves differ by less than this share of the prediction, or if hiding the
#: strongest pixels lowers the prediction by less.
LEAST_GAIN = 0.1
#: With a smaller probability there is hardly an answer to explain: a tenth of it is a change that
#: any map causes.
LEAST_PROBABILITY = 0.01
#: The summary uses the smallest share of pixels with this share of the largest effect.
NEARLY = 0.7
#: With more of the pixels hidden than this, an answer falls in any order, so that says nothing.
LARGEST_SHARE = 0.5


@dataclass(frozen=True, eq=False)
class SelfTest:
    """The predictions with the strongest pixels hidden, and with only them shown.

    Args:
        shares: the share of pixels that are hidden or shown, from 0 to 1, (K,).
        hidden: P(c) with the strongest pixels hidden, or the raw output, (K,).
        shown: the same with only these pixels shown, (K,).
        measure: the measure of evidence.

    Example::

        >>> test = evidence.self_test(husky)
        >>> print(test)
        without the strongest 15%: 95% -> 3.1%; with only these: 91%
        >>> test.gain                     # the symmetric relevance gain of this map
        0.61
    """

    shares: Tensor
    hidden: Tensor
    shown: Tensor
    measure: Measure

    @property
    def gain(self) -> float:
        """The area between the two curves: the symmetric relevance gain, 0 for a random order."""
        return float(torch.trapezoid(self.shown - self.hidden, self.shares))

    @property
    def prediction(self) -> float:
        """P(c) for the unperturbed input, or the raw output."""
        return float(self.hidden[0])

    @property
    def passed(self) -> bool:
        """Whether the strongest pixels explain the prediction better than the others do, and
        hiding them, half of all at most, lowers it. A class of less than 1% has no answer to
        explain, and never passes."""
        lowered = self.prediction - self.at(self.share)[0]
        return self._has_answer and min(self.gain, lowered) > self._least()

    @property
    def share(self) -> float:
        """The smallest share of pixels, up to a half, with nearly the largest effect; if any such
        share lowers the prediction when it is hidden, the smallest of those."""
        small = (self.shares > 0) & (self.shares <= LARGEST_SHARE)
        shares, hidden, shown = self.shares[small], self.hidden[small], self.shown[small]
        has_effect = (shown > hidden) & (shown - hidden >= NEARLY * (shown - hidden).max())
        lowers = has_effect & (self.prediction - hidden > self._least())
        found = lowers if lowers.any() else has_effect
        return float(shares[found][0] if found.any() else shares[len(shares) // 2])

    @property
    def _has_answer(self) -> bool:
        return not self.measure.needs_probabilities or self.prediction >= LEAST_PROBABILITY

    def _least(self) -> float:
        spread = float(np.ptp(torch.cat([self.hidden, self.shown]).cpu().numpy()))
        return LEAST_GAIN * (self.prediction if self.measure.needs_probabilities else spread)

    def at(self, share: float) -> tuple[float, float]:
        """P(c) with this share of the strongest pixels hidden, and with only them shown."""
        place = int((self.shares - share).abs().argmin())
        return float(self.hidden[place]), float(self.shown[place])

    def __str__(self) -> str:
        share = self.share
        strongest = f"the strongest {100 * share:.0f}%"
        seen, hidden, shown = map(self.measure.in_words, (self.prediction, *self.at(share)))
        if self.passed:
            return f"without {strongest}: {seen} -> {hidden}; with only these: {shown}"
        effect = f"hiding {strongest} changes {seen} to {hidden}, and with only these it is {shown}"
        hardly = "" if self._has_answer else ", as there is hardly one"
        return f"this map does not explain the answer{hardly}: {effect}"

    def __repr__(self) -> str:
        return f"SelfTest({self}; symmetric relevance gain {self.gain:.2f})"


def self_test(
    evidence: WindowEvidence, target: TargetType = None, example: int | None = None
) -> SelfTest:
    """Test a map; see ``WindowEvidence.self_test``."""
    ask = evidence.asker()
    number = evidence.checked_example(example)
    image = evidence.inputs[0][number]
    values = evidence.map(target, None, number)
    order = values.nan_to_num(-math.inf).flatten().argsort(descending=True, stable=True).cpu()
    n_shares = len(SHARES)
    hidden = torch.zeros(2 * n_shares + 1, len(order), dtype=torch.bool, device="cpu")
    for row, share in enumerate(SHARES):
        count = max(1, round(share * len(order)))
        hidden[row, order[:count]] = True
        hidden[n_shares + row, order[count:]] = True
    hidden[-1] = True
    copies = hidden_copies(image, hidden.reshape(-1, *values.shape), evidence.prior)
    scores = ask(number, copies)
    # Scores of all examples, because a target may be one for each of them.
    rows = evidence.scores.unsqueeze(1).expand(-1, len(scores) + 1, -1).clone()
    rows[number, 1:] = scores
    seen, without, alone, nothing = torch.split(
        evidence.outputs.prediction(target)(rows)[number], [1, n_shares, n_shares, 1]
    )
    shares = torch.tensor([0.0, *SHARES, 1.0], dtype=seen.dtype, device=seen.device)
    hidden_curve, shown = torch.cat([seen, without, nothing]), torch.cat([nothing, alone, seen])
    return SelfTest(shares, hidden_curve, shown, evidence.measure)


def hidden_copies(image: Tensor, masks: Tensor, prior: Any) -> Tensor:
    """Copies of an image (C, *space) with pixels hidden (K, *space) and replaced by the conditional
    mean; or by ``nothing_seen`` in large images, if everything is hidden, and for priors that
    cannot fill such regions (of small patches, or of samples only)."""
    space = tuple(image.shape[1:])
    some = ~masks.flatten(1).all(dim=1)
    if math.prod(space) > MAX_CONDITIONED_PIXELS:
        some = torch.zeros_like(some)
    corners = np.zeros((int(some.sum()), len(space)), dtype=np.int64)
    regions = PlacedWindows(space, space, corners, masks[some])
    copies = EmptyContext(prior).nothing_seen(image).expand(len(masks), *image.shape).clone()
    if len(regions):
        # A prior whose patches are smaller than half of the input should not prevent the test.
        with suppress(TypeError, ValueError):
            fills = prior_for(prior, "conditional_mean").conditional_mean(image, regions)
            copies[some.to(image.device)] = fills.to(image.dtype)
    return torch.where(masks.to(image.device).unsqueeze(1), copies, image)
