"""The quality of an explanation, measured on your own model: the paper's experiments as functions.

``print(diagnostics.conditional_mean_error(EfficientPDA(model), image))`` reports the difference
between the conditional mean and samples, in bits.
"""

from captum_pda.diagnostics.approximation import (
    ActivationStatistics,
    ConditionalMeanError,
    MapAgreement,
    SamplingConvergence,
    activation_statistics,
    algorithm_agreement,
    conditional_mean_error,
    map_agreement,
    sampling_convergence,
)
from captum_pda.diagnostics.priors import PriorQuality, prior_quality
from captum_pda.diagnostics.removal import (
    SymmetricRelevanceGain,
    blur_fill,
    linear_fill,
    mean_fill,
    prior_fill,
    symmetric_relevance_gain,
)

__all__ = [
    "ActivationStatistics",
    "ConditionalMeanError",
    "MapAgreement",
    "PriorQuality",
    "SamplingConvergence",
    "SymmetricRelevanceGain",
    "activation_statistics",
    "algorithm_agreement",
    "blur_fill",
    "conditional_mean_error",
    "linear_fill",
    "map_agreement",
    "mean_fill",
    "prior_fill",
    "prior_quality",
    "sampling_convergence",
    "symmetric_relevance_gain",
]
