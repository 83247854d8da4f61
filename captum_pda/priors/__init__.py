"""What could stand in a window, given its surroundings."""

from captum_pda.priors.constant import ConstantPrior
from captum_pda.priors.empirical_mean import EmpiricalMeanPrior
from captum_pda.priors.empty_context import EmptyContext
from captum_pda.priors.field import GaussianFieldPrior
from captum_pda.priors.gaussian.prior import GaussianPatchPrior
from captum_pda.priors.map_mean import MapMeanPrior
from captum_pda.priors.marginal import MarginalPrior
from captum_pda.priors.patch_prior import PatchPrior
from captum_pda.priors.per_example import prior_for, prior_settings

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
