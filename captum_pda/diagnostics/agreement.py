"""How alike maps are: the same algorithm's variants, or any maps of one shape.

The paper compares its method with the mean of a few samples in place of the exact conditional mean
(`ilsvrc_result2`) and with the gradient form (`ilsvrc_result3`) by eye; here it is by correlation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.device_sync import in_double
from captum_pda.diagnostics.approximation import settings_of, target_or_predicted
from captum_pda.methods.gradient import GradientPDA
from captum_pda.methods.perturbation import EfficientPDA, PerturbationPDA, SampledPDA
from captum_pda.model.inputs import check_count
from captum_pda.priors import EmpiricalMeanPrior
from captum_pda.regions.choice import Extents


@dataclass(frozen=True, eq=False, repr=False)
class MapAgreement:
    """How alike several maps of the same examples are.

    Args:
        maps: the maps by name, each (N, ...).
        correlations: Pearson's between each two, (N, maps, maps): likeness of shape, whatever the
            size. NaN for a map of one value.
        sizes: each map's root mean square, (N, maps): its intensity.
    """

    maps: dict[str, Tensor]
    correlations: Tensor
    sizes: Tensor

    def correlation(self, first: str, second: str) -> Tensor:
        """The correlation of two maps by name, (N,)."""
        names = list(self.maps)
        for name in (first, second):
            if name not in names:
                raise ValueError(f"no map is called {name!r}; there are {names}")
        return self.correlations[:, names.index(first), names.index(second)]

    def __repr__(self) -> str:
        """The mean over examples, as a table."""
        width = max(len(name) for name in self.maps)
        rows = zip(
            self.maps, self.sizes.mean(0).tolist(), self.correlations.mean(0).tolist(), strict=True
        )
        lines = [
            f"{name:>{width}}  size {size:8.3g}  correlations "
            + " ".join(f"{value:6.3f}" for value in row)
            for name, size, row in rows
        ]
        return "\n".join(lines)


def map_agreement(maps: Mapping[str, Tensor]) -> MapAgreement:
    """Correlate maps of one shape, (N, ...), each two of them.

    Example::

        >>> print(diagnostics.map_agreement({"PDA": attribution, "GradCAM": other}))
    """
    if not maps:
        raise ValueError("maps is empty; give at least one map by name")
    shapes = {name: tuple(each.shape) for name, each in maps.items()}
    if len(set(shapes.values())) != 1:
        raise ValueError(f"maps have different shapes, {shapes}; correlate maps of one shape")
    values = torch.stack([in_double(each.detach()).flatten(1) for each in maps.values()], dim=1)
    deviations = values - values.mean(dim=2, keepdim=True)
    lengths = deviations.norm(dim=2, keepdim=True)
    # A map that is constant but for rounding has no shape.
    constant = lengths <= 1e-12 * values.norm(dim=2, keepdim=True)
    directions = torch.where(constant, torch.nan, deviations / lengths)
    return MapAgreement(dict(maps), directions @ directions.mT, values.square().mean(dim=2).sqrt())


def algorithm_agreement(
    pda: PerturbationPDA,
    inputs: Tensor,
    target: TargetType = None,
    *,
    additional_forward_args: object = None,
    n_samples: int = 10,
    generator: torch.Generator | None = None,
    sliding_window_shapes: Extents = None,
    strides: Extents = None,
    **arguments: Any,
) -> MapAgreement:
    """Explain inputs with every algorithm, and correlate the maps.

    The maps are "conditional mean" (EfficientPDA), "empirical mean" (the same with the mean of
    ``n_samples`` samples in the window), "sampled" and "sampled again" (SampledPDA twice, with
    samples of their own: no map can agree with "sampled" much better than its own repetition
    does) and "gradient" (GradientPDA).

    Args:
        pda, inputs, target, generator: as in ``conditional_mean_error``.
        additional_forward_args, sliding_window_shapes, strides: as in ``attribute``.
        n_samples: of each window, for the empirical mean and the sampled maps; 10 in the paper.
        arguments: perturbations_per_eval and show_progress, as in ``attribute``.
    """
    n_samples = check_count("n_samples", n_samples)
    generator = generator or torch.Generator().manual_seed(torch.initial_seed())
    windows = (additional_forward_args, sliding_window_shapes, strides)
    model, settings = pda.forward_func, settings_of(pda)
    averaging = EmpiricalMeanPrior(pda.prior, n_samples, generator)
    evidence = EfficientPDA(model, pda.prior, **settings).evidence(inputs, *windows, **arguments)
    target = target_or_predicted(target, evidence)
    sampled = partial(
        SampledPDA(model, pda.prior, **settings).attribute,
        *(inputs, target, *windows),
        n_samples=n_samples,
        generator=generator,
        **arguments,
    )
    empirical = EfficientPDA(model, averaging, **settings)
    gradient = GradientPDA(model, pda.prior, pda.output_kind, pda.measure)
    return map_agreement(
        {
            "conditional mean": cast(Tensor, evidence.attribution(target)),
            "empirical mean": empirical.attribute(inputs, target, *windows, **arguments),
            "sampled": sampled(),
            "sampled again": sampled(),
            "gradient": gradient.attribute(inputs, target, *windows),
        }
    )
