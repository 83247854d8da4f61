"""Random sets of regions that are shown together, and what each region adds to the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from typing_extensions import Self

from captum_pda import device_sync
from captum_pda.regions.masks import FeatureMaskRegions
from captum_pda.regions.protocol import Integers, block_pixels

#: The shares of visible regions, in turn; sets are drawn in pairs of complements.
SEEN_SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
#: The ridge penalty of each division, in sets. Without it, 200 sets do not determine 60 regions.
RIDGE = 6.0


class RandomSets:
    """Random sets of regions. For each set the model sees only its members.

    The sets are drawn in turn from several divisions of the input, whose different outlines show
    what parts of a region add. With z_kq the visible share of region q (of any division) in set k,
    the scores f_k are fitted by one ridge regression,

        f_k = a + sum_q b_q (z_kq - 1/2),

    so a is the score with half of everything visible. A region r adds what the regression predicts
    for showing it,

        added_r = sum_q b_q |r and q| / |q|.

    The sets do not depend on the output, so one run serves all outputs.

    Args:
        regions: the regions to explain; each pixel has one.
        count: the number of sets.
        divisions: the regions that sets are drawn from. Default: ``regions``.
    """

    def __init__(
        self, regions: FeatureMaskRegions, count: int, divisions: Sequence[FeatureMaskRegions] = ()
    ) -> None:
        self.regions = regions
        self.divisions = tuple(divisions) or (regions,)
        self.space = regions.space
        self.count = count
        #: Which regions of its division each set holds, (sets, regions) for each division.
        self.seen: tuple[npt.NDArray[np.bool_], ...] = tuple(
            _drawn(len(division), len(range(count)[seed :: len(self.divisions)]), seed)
            for seed, division in enumerate(self.divisions)
        )

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
        return tuple(
            ShownSets(division.of_pixels(example), seen, first=int(members[0]))
            for division, seen, members in zip(
                self.divisions, self.seen, self.members(example), strict=True
            )
            if len(members)
        )

    def members(self, example: int) -> tuple[Integers, ...]:
        ends = np.cumsum([len(seen) for seen in self.seen])
        return tuple(np.split(np.arange(self.count), ends[:-1]))

    def absent(self, n_examples: int) -> Tensor:
        return torch.zeros(n_examples, self.count, dtype=torch.bool, device="cpu")

    def of_examples(self, rows: slice) -> Self:
        other = copy(self)
        other.regions = self.regions.of_examples(rows)
        other.divisions = tuple(division.of_examples(rows) for division in self.divisions)
        return other

    def average(self, values: Tensor) -> Tensor:
        _, added, _ = self.fit(values.unsqueeze(-1), torch.ones_like(values, dtype=torch.bool))
        return self.regions.average(added.squeeze(-1))

    def coverage(self, device: torch.device | str = "cpu") -> Tensor:
        return self.regions.coverage(device)

    def settings(self) -> dict[str, object]:
        shares = {"count": self.count, "seen_shares": SEEN_SHARES, "ridge": RIDGE}
        divisions = [division.settings() for division in self.divisions]
        return {
            "kind": "RandomSets",
            **shares,
            "regions": self.regions.settings(),
            "divisions": divisions,
        }

    def fit(self, scores: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Fit the scores (N, sets, columns) of the ``known`` sets (N, sets): the scores with half
        of everything visible, (N, columns); what each region adds, (N, regions, columns), 0 for
        regions that an example lacks; and its standard error. NaN if no set is known."""
        parts = []
        for example, (own, is_known) in enumerate(zip(scores, known.cpu().numpy(), strict=True)):
            n_known = int(is_known.sum())
            if n_known == 0:
                empty = own.new_full((len(self.regions), own.shape[1]), torch.nan)
                parts.append((empty[0], empty, empty))
                continue
            design, adds = self._design(example)
            design = design[is_known]
            # Solved in the space of sets, which are fewer than the regions of all divisions. The
            # penalty grows with the number of divisions, which share what a pixel adds.
            kernel = design @ design.T + RIDGE * len(self.divisions) * np.eye(n_known)
            weights = np.linalg.inv(kernel)
            centre = weights.sum(axis=0) / weights.sum()  # a is not penalised
            weights = weights @ (np.eye(n_known) - centre)
            reads = np.concatenate([adds @ design.T @ weights, centre[None]])
            fits = design @ design.T @ weights + centre
            given = own[torch.from_numpy(np.flatnonzero(is_known)).to(own.device)]
            found = device_sync.moved_like(torch.from_numpy(reads), own) @ given
            fitted = device_sync.moved_like(torch.from_numpy(fits), own) @ given
            spread = (given - fitted).square().sum(0) / max(n_known - 1, 1)
            squares = np.square(reads[:-1]).sum(axis=1, keepdims=True)
            errors = (device_sync.moved_like(torch.from_numpy(squares), own) * spread).sqrt()
            parts.append((found[-1], found[:-1], errors))
        centre, added, error = (torch.stack(each) for each in zip(*parts, strict=True))
        return centre, added, error

    def _design(self, example: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The shares z - 1/2 of all regions of all divisions that are seen in each set (sets, Q),
        and those that lie in each region that is asked about (regions, Q)."""
        rows = [division.of_pixels(example).flatten().numpy() for division in self.divisions]
        sizes = [len(division) for division in self.divisions]
        counts = [np.bincount(row, minlength=size) for row, size in zip(rows, sizes, strict=True)]

        def shares(row: Integers, size: int) -> npt.NDArray[np.float64]:
            """The share of each region of all divisions in each of ``size`` regions."""
            common = [
                np.bincount(row * n + other, minlength=size * n).reshape(size, n)
                / np.maximum(count, 1)
                for other, n, count in zip(rows, sizes, counts, strict=True)
            ]
            return np.concatenate(common, axis=1)

        design = [
            seen @ shares(row, size) for seen, row, size in zip(self.seen, rows, sizes, strict=True)
        ]
        present = np.concatenate(counts) > 0
        asked = self.regions.of_pixels(example).flatten().numpy()
        return (np.concatenate(design) - 0.5) * present, shares(asked, len(self.regions))


def _drawn(n_regions: int, count: int, seed: int) -> npt.NDArray[np.bool_]:
    """The members of each set, (count, regions)."""
    generator = np.random.default_rng(seed)
    half = -(-count // 2)
    shares = np.resize(SEEN_SHARES, half)
    # Drawn region by region, so that a region's draws do not depend on the number of regions.
    drawn = (generator.random((n_regions, half)) < shares).T
    # In pairs of complements, in which the interactions of pairs cancel.
    pairs = np.stack([drawn, ~drawn], axis=1)
    seen: npt.NDArray[np.bool_] = pairs.reshape(2 * half, n_regions)[:count]
    return seen


class ShownSets:
    """Sets of regions of one example as windows of the whole input, whose pixels are computed on
    demand. ``numbers`` are the regions of the pixels, (*space), ``seen`` the members of each set,
    (sets, regions)."""

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
        chosen = np.fromiter(numbers, dtype=np.int64)
        first = self.first + (int(chosen[0]) if len(chosen) else 0)
        return ShownSets(self._numbers, self._seen[chosen], first)

    @property
    def hidden(self) -> Tensor:
        return torch.from_numpy(~self._seen)[:, self._numbers]

    def pixels(self, device: torch.device | str = "cpu") -> Tensor:
        return block_pixels(self.corner_array, self.window, self.space, device)
