"""What could stand in a window, given its surroundings."""

from captum_pda.priors.empty_context import EmptyContext
from captum_pda.priors.field import GaussianFieldPrior, prior_for, prior_settings
from captum_pda.priors.patches import GaussianPatchPrior
from captum_pda.priors.protocol import PatchPrior
from captum_pda.priors.simple import ConstantPrior, EmpiricalMeanPrior, MapMeanPrior, MarginalPrior

__all__ = [
    "ConstantPrior",
    "EmpiricalMeanPrior",
    "EmptyContext",
    "GaussianFieldPrior",
    "GaussianPatchPrior",
    "MapMeanPrior",
    "MarginalPrior",
    "PatchPrior",
    "prior_for",
    "prior_settings",
]
