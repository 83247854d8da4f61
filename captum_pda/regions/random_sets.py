"""Random sets of regions that are shown together, and what each region adds to them."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from typing_extensions import Self

from captum_pda import device_sync
from captum_pda.regions.masks import FeatureMaskRegions
from captum_pda.regions.protocol import Integers, block_pixels

#: The shares of regions that are seen, in turn; sets are drawn in pairs of opposites.
SEEN_SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
#: The ridge penalty on what a region adds, in sets of regions: without it, 200 sets say little
#: about 60 regions each.
RIDGE = 10.0


class RandomSets:
    """Random sets of the regions of a mask. Of each set only its members are seen.

    What a region adds to the others is read from the scores f_k of all sets by ridge regression,

        f_k = a + sum_r b_r (z_kr - 1/2),

    with z_kr = 1 where set k holds region r, and 0 elsewhere. So a is the score with half of the
    regions seen, and b_r what is gained by seeing region r in the company of random others. The
    sets depend on nothing but their number and that of the regions, so one run serves all outputs.

    Args:
        regions: the regions, of which each pixel has one.
        count: how many sets there are.
        seed: of the random numbers.

    Example::

        >>> sets = RandomSets(Superpixels(images, 60), 200)
        >>> sets.seen.shape
        (200, 58)
    """

    def __init__(self, regions: FeatureMaskRegions, count: int, seed: int = 0) -> None:
        self.regions = regions
        self.space = regions.space
        self.count = count
        self.seed = seed
        generator = np.random.default_rng(seed)
        half = -(-count // 2)
        shares = np.resize(SEEN_SHARES, half)
        # Region by region: whether one is seen does not depend on how many others there are, such
        # as those of other examples.
        drawn = (generator.random((len(regions), half)) < shares).T
        #: Which regions each set holds, (sets, regions).
        self.seen: npt.NDArray[np.bool_] = np.stack([drawn, ~drawn], axis=1).reshape(
            2 * half, len(regions)
        )[:count]

    def __repr__(self) -> str:
        return f"RandomSets({self.count} sets of {self.regions!r})"

    def __len__(self) -> int:
        return self.count

    @property
    def size(self) -> tuple[int, ...]:
        return self.regions.size

    @property
    def title(self) -> str:
        return f"{self.count} sets of {self.regions.title}"

    def boxes(self, example: int) -> tuple[ShownSets, ...]:
        """The sets of an example, whose box is the whole input."""
        row = 0 if len(self.regions.numbers) == 1 else example
        return (ShownSets(self.regions.numbers[row], self.seen),)

    def members(self, example: int) -> tuple[Integers, ...]:
        return (np.arange(self.count),)

    def absent(self, n_examples: int) -> Tensor:
        return torch.zeros(n_examples, self.count, dtype=torch.bool, device="cpu")

    def of_examples(self, rows: slice) -> Self:
        other = copy(self)
        other.regions = self.regions.of_examples(rows)
        return other

    def average(self, values: Tensor) -> Tensor:
        """Give each pixel what its region adds, from the values (N, sets), (N, *space)."""
        _, added, _ = self.fit(values.unsqueeze(-1), torch.ones_like(values, dtype=torch.bool))
        return self.regions.average(added.squeeze(-1))

    def coverage(self, device: torch.device | str = "cpu") -> Tensor:
        return self.regions.coverage(device)

    def settings(self) -> dict[str, object]:
        shares = {
            "count": self.count,
            "seed": self.seed,
            "seen_shares": SEEN_SHARES,
            "ridge": RIDGE,
        }
        return {"kind": "RandomSets", **shares, "regions": self.regions.settings()}

    def fit(self, scores: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What each region adds, from scores (N, sets, columns) of the sets that are known.

        Args:
            scores: log-odds, or raw outputs.
            known: which sets were run, (N, sets); NaN without any.

        Returns:
            The scores with half of the regions seen, (N, columns); what each region adds, (N,
            regions, columns), 0 for those an example lacks; and its standard error.
        """
        absent = self.regions.absent(len(scores)).numpy()
        parts = []
        for own, is_known, lacks in zip(scores, known.cpu().numpy(), absent, strict=True):
            n_known = int(is_known.sum())
            if n_known == 0:
                empty = own.new_full((len(lacks), own.shape[1]), torch.nan)
                parts.append((empty[0], empty, empty))
                continue
            design = np.where(self.seen[is_known], 0.5, -0.5) * ~lacks
            design = np.concatenate([design, np.ones((n_known, 1))], axis=1)
            penalty = np.diag([RIDGE] * len(lacks) + [0.0])
            # From scores to coefficients; the errors are those of independent residuals.
            inverse = np.linalg.inv(design.T @ design + penalty)
            reads = device_sync.moved_like(torch.from_numpy(inverse @ design.T), own)
            given = own[torch.from_numpy(np.flatnonzero(is_known)).to(own.device)]
            found = reads @ given
            fitted = device_sync.moved_like(torch.from_numpy(design), own) @ found
            spread = (given - fitted).square().sum(0) / max(n_known - 1, 1)
            errors = (reads.square().sum(1, keepdim=True) * spread).sqrt()
            parts.append((found[-1], found[:-1], errors[:-1]))
        centre, added, error = (torch.stack(each) for each in zip(*parts, strict=True))
        return centre, added, error


class ShownSets:
    """Sets of regions of one example as windows of the whole input, whose pixels are worked out
    only when they are asked for.

    Args:
        numbers: the region of each pixel, (*space).
        seen: which regions each set holds, (sets, regions).
        first: the number of the first set among all.
    """

    def __init__(self, numbers: Tensor, seen: npt.NDArray[np.bool_], first: int = 0) -> None:
        self._numbers = numbers
        self._seen = seen
        self.first = first
        self.space = self.window = tuple(numbers.shape)
        self.corner_array: Integers = np.zeros((len(seen), len(self.space)), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._seen)

    def __getitem__(self, numbers: slice) -> ShownSets:
        return self.pick(range(len(self))[numbers])

    def pick(self, numbers: Iterable[int]) -> ShownSets:
        """Some of these sets, in this order."""
        chosen = np.fromiter(numbers, dtype=np.int64)
        first = self.first + (int(chosen[0]) if len(chosen) else 0)
        return ShownSets(self._numbers, self._seen[chosen], first)

    @property
    def hidden(self) -> Tensor:
        """Which pixels are in no region of each set, (sets, *space)."""
        return torch.from_numpy(~self._seen)[:, self._numbers]

    def pixels(self, device: torch.device | str = "cpu") -> Tensor:
        """The flat numbers of all pixels, for each set."""
        return block_pixels(self.corner_array, self.window, self.space, device)
