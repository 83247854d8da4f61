"""How good an explanation is, measured on your own model: the paper's experiments as functions.

``print(diagnostics.conditional_mean_error(EfficientPDA(model), image))`` says how far the
conditional mean's answer is from the sampled one, in bits.
"""

from captum_pda.diagnostics.agreement import (
    MapAgreement,
    algorithm_agreement,
    map_agreement,
)
from captum_pda.diagnostics.approximation import (
    ActivationStatistics,
    ConditionalMeanError,
    SamplingConvergence,
    SomeWindows,
    activation_statistics,
    conditional_mean_error,
    sampling_convergence,
)
from captum_pda.diagnostics.priors import PriorQuality, prior_quality
from captum_pda.diagnostics.removal import (
    BlurFill,
    LinearFill,
    MeanFill,
    PriorFill,
    SymmetricRelevanceGain,
    symmetric_relevance_gain,
)

__all__ = [
    "ActivationStatistics",
    "BlurFill",
    "ConditionalMeanError",
    "LinearFill",
    "MapAgreement",
    "MeanFill",
    "PriorFill",
    "PriorQuality",
    "SamplingConvergence",
    "SomeWindows",
    "SymmetricRelevanceGain",
    "activation_statistics",
    "algorithm_agreement",
    "conditional_mean_error",
    "map_agreement",
    "prior_quality",
    "sampling_convergence",
    "symmetric_relevance_gain",
]
