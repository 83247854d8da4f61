"""Regions of many photos, grouped by likeness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from captum_pda.atlas.class_regions import ClassRegion
from captum_pda.files import counted
from captum_pda.model.inputs import check_count
from captum_pda.model.measures import signed

#: How many groups are tried at most, for the class and against it.
MAX_GROUPS = 10
#: Vectors of length 1 that are all closer than this to their mean form one group.
LEAST_DISTANCE = 0.1


@dataclass(frozen=True, eq=False)
class RegionGroup:
    """Regions that look alike to the model.

    Args:
        regions: the most typical ones first.
        n_photos_in_all: how many photos the atlas is made from.
    """

    regions: tuple[ClassRegion, ...]
    n_photos_in_all: int

    @property
    def speaks_for(self) -> bool:
        """Whether these regions speak for the class."""
        return self.regions[0].bits > 0

    @property
    def photos(self) -> tuple[str, ...]:
        """The photos that the regions come from."""
        return tuple(dict.fromkeys(region.photo for region in self.regions))

    @property
    def share(self) -> float:
        """In what share of the photos such a region occurs."""
        return len(self.photos) / self.n_photos_in_all

    @property
    def mean_bits(self) -> float:
        """The mean over photos of the mean evidence of such regions."""
        return float(np.mean(self._bits_of_photos()))

    @property
    def spread(self) -> float:
        """The standard deviation of that evidence over photos."""
        return float(np.std(self._bits_of_photos()))

    def _bits_of_photos(self) -> list[float]:
        return [
            float(np.mean([region.bits for region in self.regions if region.photo == photo]))
            for photo in self.photos
        ]

    @property
    def name(self) -> str:
        """What the regions have in common: their sign, and where most of them lie in the photo."""
        places = Counter(region.place for region in self.regions if region.place)
        common, count = places.most_common(1)[0] if places else ("", 0)
        where = f", mostly {common}" if count > len(self.regions) / 2 else ", anywhere"
        kind = "for" if self.speaks_for else "against"
        label = self.regions[0].label
        return f"{kind} {label}{where if places else ''}" if label else f"{kind}{where}"

    def examples(self, n: int) -> list[ClassRegion]:
        """The most typical regions, from as many different photos as possible."""
        seen: Counter[str] = Counter()
        rounds = []
        for region in self.regions:
            seen[region.photo] += 1
            rounds.append(seen[region.photo])
        return [self.regions[place] for place in np.argsort(rounds, kind="stable")[:n]]


@dataclass(frozen=True, eq=False)
class Atlas:
    """What speaks for a class and against it, over many photos.

    Args:
        label: the name of the class.
        n_photos: how many photos were looked at.
        groups: those that speak for the class first, the strongest in all first.
        n_left_out: how many regions are in no group, since too few photos have their like.
    """

    label: str
    n_photos: int
    groups: tuple[RegionGroup, ...]
    n_left_out: int = 0

    def __repr__(self) -> str:
        photos, groups = counted(self.n_photos, "photo"), counted(len(self.groups), "group")
        lines = [f"Atlas of {self.label!r}: {photos}, {groups}"]
        for group in self.groups:
            photos = counted(len(group.photos), "photo")
            lines.append(
                f"  {signed(group.mean_bits)} +- {group.spread:.2f} bits in {photos}: {group.name}"
            )
        return "\n".join(lines)


def make_atlas(
    regions: Sequence[ClassRegion],
    label: str,
    n_photos: int | None = None,
    n_groups: int | None = None,
    min_photos: int = 2,
) -> Atlas:
    """Group regions by likeness: those for the class, and those against it.

    Vectors of length 1 are compared by their distance, and regions joined by Ward's criterion
    (scikit-learn). The number of groups is the one with the best silhouette, unless it is given.

    Args:
        regions: of many photos, from ``strongest_regions``.
        label: the name of the class.
        n_photos: how many photos were looked at. Default: those that the regions come from.
        n_groups: how many groups to make of each kind.
        min_photos: how many photos a group must come from, to be shown.

    Example::

        >>> atlas = make_atlas(regions, "husky")
        >>> atlas.groups[0].mean_bits, atlas.groups[0].share
        (1.3, 0.45)
    """
    check_count("min_photos", min_photos)
    photos = {region.photo for region in regions}
    count = len(photos) if n_photos is None else check_count("n_photos", n_photos)
    if count < len(photos):
        raise ValueError(f"n_photos={count}, and the regions come from {len(photos)} photos")
    found = []
    for sign in (1, -1):
        kind = [region for region in regions if sign * region.bits > 0]
        groups = _grouped(kind, n_groups) if kind else ()
        made = [RegionGroup(tuple(one), count) for one in groups]
        kept = [group for group in made if len(group.photos) >= min_photos]
        found += sorted(kept, key=lambda group: -sign * group.mean_bits * len(group.photos))
    grouped = sum(len(group.regions) for group in found)
    return Atlas(label, count, tuple(found), len(regions) - grouped)


def _grouped(regions: list[ClassRegion], n_groups: int | None) -> Iterator[list[ClassRegion]]:
    """Regions in groups, the most typical of each first."""
    lengths = {len(region.features) for region in regions}
    if len(lengths) > 1:
        raise ValueError(
            f"the regions have features of {sorted(lengths)} values; describe all of them by the "
            "same model"
        )
    vectors = np.array([region.features for region in regions], dtype=np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    numbers = _clusters(vectors, n_groups)
    for number in np.unique(numbers):
        members = np.flatnonzero(numbers == number)
        typical = vectors[members] @ vectors[members].mean(axis=0)
        yield [regions[members[place]] for place in np.argsort(-typical, kind="stable")]


def _clusters(vectors: npt.NDArray[np.float64], n_groups: int | None) -> npt.NDArray[np.int64]:
    """The number of each vector's group."""
    try:
        from sklearn.cluster import AgglomerativeClustering
        from sklearn.metrics import silhouette_score
    except ImportError as error:
        raise ImportError(
            'an atlas groups regions with scikit-learn; pip install "captum_pda[atlas]"'
        ) from error
    tried = [min(check_count("n_groups", n_groups), len(vectors))] if n_groups is not None else []
    best, chosen = 0.0, np.zeros(len(vectors), dtype=np.int64)
    apart = np.linalg.norm(vectors - vectors.mean(axis=0), axis=1).max()
    if n_groups is None and apart >= LEAST_DISTANCE:
        tried = list(range(2, min(MAX_GROUPS, len(vectors) // 2) + 1))
    for n in tried:
        numbers = AgglomerativeClustering(n_clusters=n, linkage="ward").fit_predict(vectors)
        score = np.inf if n_groups is not None else silhouette_score(vectors, numbers)
        if score > best:
            best, chosen = float(score), numbers
    return chosen
