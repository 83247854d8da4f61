"""What to ask of a photo, and whether a model can be asked that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from captum_pda.cli.labels import find_class
from captum_pda.cli.usage_errors import UsageError
from captum_pda.regions.choice import RegionChoice
from captum_pda.regions.protocol import Regions

METHODS = ("pda", "efficient", "sampled", "gradient", "layer")
CONTEXTS = ("full", "empty", "both")
#: Methods that leave the choice of a context to the user; "pda" asks in both, "gradient" in none.
WITH_CONTEXT = ("efficient", "sampled", "layer")


@dataclass(frozen=True)
class Question:
    """What to ask of a photo.

    Args:
        method: one of METHODS.
        sizes: the windows' sides, in pixels of the model's input, or for "layer" in places of its
            feature map; without any, the library's default.
        stride: the step between windows of each size; by default a quarter of it.
        context: what else is seen: "full", "empty" or "both"; None is the method's own.
        n_samples, seed: for "sampled"; the same seed draws the same samples.
        targets: classes by number or name; without any, the ``n_top`` classes with the highest
            probability.
        contrast: two classes to tell apart.
        n_windows: how many of the strongest windows to list.
        engine: "auto", "dense" or "incremental".
    """

    method: str = "pda"
    sizes: tuple[int, ...] = ()
    stride: int | None = None
    context: str | None = None
    n_samples: int = 10
    seed: int = 0
    targets: tuple[str, ...] = ()
    n_top: int = 1
    contrast: tuple[str, str] | None = None
    n_windows: int = 3
    engine: str = "auto"

    def __post_init__(self) -> None:
        if len(set(self.sizes)) < len(self.sizes):
            raise UsageError(f"--scales {' '.join(map(str, self.sizes))} holds a size twice")
        if self.stride is not None and self.sizes and self.stride > min(self.sizes):
            raise UsageError(
                f"--stride {self.stride} steps over pixels that a window of {min(self.sizes)} does "
                f"not reach; use at most {min(self.sizes)}"
            )
        if self.context and self.method not in WITH_CONTEXT:
            raise UsageError(
                f"--context {self.context} does not go with --method {self.method}; leave it out, "
                f"or choose --method {' or '.join(WITH_CONTEXT)}"
            )

    def settings(self) -> dict[str, Any]:
        """What the answers depend on, as plain values."""
        sampled, by_engine = self.method == "sampled", self.method not in ("gradient", "layer")
        return {
            "method": self.method,
            "sizes": list(self.sizes) or "default",
            "stride": self.stride or "default",
            "context": self.context or "default",
            "samples": self.n_samples if sampled else None,
            "seed": self.seed if sampled else None,
            "targets": list(self.targets),
            "classes": self.n_top,
            "contrast": self.contrast,
            "windows": self.n_windows,
            "engine": self.engine if by_engine else None,
        }

    @property
    def region_arguments(self) -> dict[str, Any]:
        """The arguments of ``attribute`` that say what is hidden."""
        return {"strides": self.stride, "scales": self.sizes or None}

    @property
    def contexts(self) -> tuple[str, ...]:
        """The contexts in which it is asked."""
        context = "both" if self.method == "pda" else self.context or "full"
        return ("full", "empty") if context == "both" else (context,)

    def regions(self, image: Tensor, context: str = "full") -> tuple[Regions, ...]:
        """What is hidden of a model's input, size by size."""
        choice = RegionChoice(**self.region_arguments)
        (regions,) = choice.resolve((image,), (context,))[context]
        return regions

    def check_size(self, image: Tensor) -> None:
        """Refuse windows that do not fit a model's input."""
        smallest = min(image.shape[2:])
        if self.sizes and self.method != "layer" and max(self.sizes) > smallest:
            raise UsageError(
                f"a window of {max(self.sizes)} is larger than the model's input of {smallest} "
                "pixels; use a smaller one"
            )

    def named_classes(
        self, labels: Sequence[str]
    ) -> tuple[list[int] | None, tuple[int, int] | None]:
        """The classes that were named (None where none was), and the two to tell apart."""
        pair = None
        if self.contrast:
            first, second = (find_class(name, labels, "--contrast") for name in self.contrast)
            if first == second:
                raise UsageError(f"--contrast needs two classes, and both are {labels[first]}")
            pair = first, second
        if not self.targets:
            return None, pair
        return list(dict.fromkeys(find_class(name, labels) for name in self.targets)), pair
