"""What to ask of a photo, and whether a model can be asked that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from captum_pda.cli.labels import find_class
from captum_pda.cli.usage_errors import UsageError
from captum_pda.regions.arguments import RegionChoice
from captum_pda.regions.protocol import Regions

METHODS = ("efficient", "sampled", "gradient")
CONTEXTS = ("full", "empty", "both")


@dataclass(frozen=True)
class Question:
    """What to ask of a photo.

    Args:
        method: one of METHODS.
        sizes: the windows' sides, in pixels of the model's input; without any, the library's
            default.
        stride: the step between windows of each size; by default a quarter of it.
        context: what else is seen: "full", "empty" or "both".
        n_samples, seed: for "sampled"; the same seed draws the same samples.
        targets: classes by number or name; without any, the ``n_top`` classes with the highest
            probability.
        contrast: two classes to tell apart.
        n_windows: how many of the strongest windows to list.
        engine: "auto", "dense" or "incremental".
    """

    method: str = "efficient"
    sizes: tuple[int, ...] = ()
    stride: int | None = None
    context: str = "full"
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
        if self.method == "gradient" and self.context != "full":
            raise UsageError(
                f"--context {self.context} needs forward passes; leave it out, or choose another "
                "--method than gradient"
            )

    def settings(self) -> dict[str, Any]:
        """What the answers depend on, as plain values."""
        sampled, gradient = (self.method == name for name in ("sampled", "gradient"))
        return {
            "method": self.method,
            "sizes": list(self.sizes) or "default",
            "stride": self.stride or "default",
            "context": self.context,
            "samples": self.n_samples if sampled else None,
            "seed": self.seed if sampled else None,
            "targets": list(self.targets),
            "classes": self.n_top,
            "contrast": self.contrast,
            "windows": self.n_windows,
            "measure": "weight_of_evidence",
            "engine": None if gradient else self.engine,
        }

    @property
    def region_arguments(self) -> dict[str, Any]:
        """The arguments of ``attribute`` that say what is hidden."""
        arguments: dict[str, Any] = {"strides": self.stride}
        if len(self.sizes) == 1:
            arguments["sliding_window_shapes"] = self.sizes[0]
        elif self.sizes:
            arguments["scales"] = self.sizes
        return arguments

    def regions(self, image: Tensor) -> tuple[Regions, ...]:
        """What is hidden of a model's input, size by size."""
        (regions,) = RegionChoice(**self.region_arguments).resolve((image,))
        return regions

    def check_size(self, image: Tensor) -> None:
        """Refuse windows that do not fit a model's input."""
        smallest = min(image.shape[2:])
        if self.sizes and max(self.sizes) > smallest:
            raise UsageError(
                f"a window of {max(self.sizes)} is larger than the model's input of {smallest} "
                "pixels; use a smaller one"
            )
        narrowest = min(min(one.size) for one in replace(self, stride=None).regions(image))
        if self.stride and self.stride > narrowest:
            raise UsageError(
                f"--stride {self.stride} steps over pixels that a window of {narrowest} does not "
                f"reach; use at most {narrowest}, or larger windows"
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
