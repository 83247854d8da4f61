"""A binary tree of regions: neighbours of similar colour are merged first."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from captum_pda.regions.protocol import Integers
from captum_pda.regions.superpixels import stretched

Floats = npt.NDArray[np.float64]
#: A region's number, or a pair of trees.
NestedTree: TypeAlias = int | tuple[Any, Any]

#: Added to all colour distances, in units of the range of values, so that among regions of the same
#: colour the small ones merge first.
LEAST_DIFFERENCE = 0.05
#: The approximate number of leaves.
LEAVES = 250


class RegionTree:
    """A binary tree whose leaves are regions of one example.

    Nodes are numbered: first the ``leaves`` (given as the region of each pixel, (*space)), then the
    nodes with two ``children``, the root last.
    """

    def __init__(self, leaves: Integers, children: Sequence[tuple[int, int]]) -> None:
        self.leaves = leaves
        self.n_leaves = int(leaves.max()) + 1
        self._children = list(children)
        #: The leaves of each node, (nodes, leaves).
        self.members = np.zeros((self.n_leaves + len(children), self.n_leaves), dtype=np.bool_)
        self.members[np.arange(self.n_leaves), np.arange(self.n_leaves)] = True
        for number, (one, other) in enumerate(children, start=self.n_leaves):
            self.members[number] = self.members[one] | self.members[other]

    def __len__(self) -> int:
        return len(self.members)

    @property
    def root(self) -> int:
        """The number of the root."""
        return len(self) - 1

    def children(self, node: int) -> tuple[int, int] | None:
        """The two children of a node; None for a leaf."""
        return None if node < self.n_leaves else self._children[node - self.n_leaves]

    def pixels(self, members: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The pixels of some leaves, (*space)."""
        return members[self.leaves]

    @classmethod
    def of_image(cls, image: Tensor, leaves: Integers) -> RegionTree:
        """Merge neighbouring regions (*space) of an image (C, *space), two at a time.

        The neighbours a and b with the smallest n_a n_b / (n_a + n_b) (d^2 + 0.05^2) merge first,
        with n the numbers of pixels and d the distance of the mean colours (Ward's criterion).
        Regions without neighbours merge last.
        """
        values = stretched(image)
        flat, n = leaves.reshape(-1), int(leaves.max()) + 1
        area = np.bincount(flat, minlength=n).astype(np.float64)
        columns = values.reshape(-1, values.shape[-1]).T
        means = np.stack([np.bincount(flat, one, n) / area for one in columns], axis=1)
        return cls(leaves, _merged(area, means, _neighbours(leaves)))

    @classmethod
    def of_nested(cls, leaves: Integers, labels: Sequence[int], tree: NestedTree) -> RegionTree:
        """A tree from nested pairs of the regions' labels."""
        places = {label: place for place, label in enumerate(labels)}
        children: list[tuple[int, int]] = []
        used: list[int] = []

        def number_of(node: NestedTree) -> int:
            if isinstance(node, int) and node in places:
                used.append(places[node])
                return places[node]
            if isinstance(node, tuple | list) and len(node) == 2:
                children.append((number_of(node[0]), number_of(node[1])))
                return len(labels) + len(children) - 1
            raise ValueError(
                f"tree holds {node!r}; give a pair of trees, or the number of a region, which are "
                f"{labels[0]} to {labels[-1]}"
            )

        number_of(tree)
        counts = np.bincount(used, minlength=len(labels))
        if wrong := [label for label, count in zip(labels, counts, strict=True) if count != 1]:
            raise ValueError(
                f"tree holds the regions {wrong[:5]} of feature_mask not at all or several times; "
                "it must hold each of them once"
            )
        return cls(leaves, children)


def tiles(space: tuple[int, ...], n: int = LEAVES) -> Integers:
    """About n blocks of one size, for inputs without superpixels."""
    side = math.ceil((math.prod(space) / n) ** (1 / len(space)))
    numbers = np.zeros(space, dtype=np.int64)
    for axis, size in enumerate(space):
        blocks = np.arange(size) // side
        shape = [-1 if other == axis else 1 for other in range(len(space))]
        numbers = numbers * (blocks[-1] + 1) + blocks.reshape(shape)
    return numbers


def _neighbours(leaves: Integers) -> set[tuple[int, int]]:
    """The pairs of neighbouring regions, the smaller number first."""
    found: set[tuple[int, int]] = set()
    for axis in range(leaves.ndim):
        moved = np.moveaxis(leaves, axis, 0)
        pairs = np.stack([moved[:-1].reshape(-1), moved[1:].reshape(-1)], axis=1)
        pairs = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
        found.update((int(a), int(b)) for a, b in np.unique(pairs, axis=0))
    return found


def _merged(area: Floats, means: Floats, touching: set[tuple[int, int]]) -> list[tuple[int, int]]:
    areas, colours = list(area), list(means)
    near: dict[int, set[int]] = {number: set() for number in range(len(areas))}
    for a, b in touching:
        near[a].add(b)
        near[b].add(a)

    def cost(a: int, b: int) -> float:
        difference = float(((colours[a] - colours[b]) ** 2).sum()) + LEAST_DIFFERENCE**2
        return float(areas[a] * areas[b] / (areas[a] + areas[b]) * difference)

    queue = [(cost(a, b), a, b) for a, b in sorted(touching)]
    heapq.heapify(queue)
    merged: list[tuple[int, int]] = []
    while len(near) > 1:
        if not queue:  # islands
            left = sorted(near)
            queue = [(cost(a, b), a, b) for place, a in enumerate(left) for b in left[:place]]
            heapq.heapify(queue)
        _, a, b = heapq.heappop(queue)
        if a not in near or b not in near:
            continue
        new = len(areas)
        merged.append((a, b))
        areas.append(areas[a] + areas[b])
        colours.append((areas[a] * colours[a] + areas[b] * colours[b]) / areas[new])
        near[new] = (near.pop(a) | near.pop(b)) - {a, b}
        for other in sorted(near[new]):
            near[other] = (near[other] - {a, b}) | {new}
            heapq.heappush(queue, (cost(other, new), other, new))
    return merged
