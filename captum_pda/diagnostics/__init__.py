"""How good an explanation is, measured on your own model: the paper's experiments as functions.

``print(diagnostics.conditional_mean_error(EfficientPDA(model), image))`` says how far the
conditional mean's answer is from the sampled one, in bits.
"""

from captum_pda.diagnostics.activations import ActivationStatistics, activation_statistics
from captum_pda.diagnostics.agreement import (
    MapAgreement,
    algorithm_agreement,
    map_agreement,
)
from captum_pda.diagnostics.conditional_mean import ConditionalMeanError, conditional_mean_error
from captum_pda.diagnostics.convergence import SamplingConvergence, sampling_convergence
from captum_pda.diagnostics.faithfulness import FaithfulnessCurves, faithfulness_curves
from captum_pda.diagnostics.prior_quality import PriorQuality, prior_quality
from captum_pda.diagnostics.relevance_gain import (
    SymmetricRelevanceGain,
    symmetric_relevance_gain,
)
from captum_pda.diagnostics.removal_fills import BlurFill, LinearFill, MeanFill, PriorFill
from captum_pda.diagnostics.some_windows import SomeWindows

__all__ = [
    "ActivationStatistics",
    "BlurFill",
    "ConditionalMeanError",
    "FaithfulnessCurves",
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
    "faithfulness_curves",
    "map_agreement",
    "prior_quality",
    "sampling_convergence",
    "symmetric_relevance_gain",
]
