"""Prediction difference analysis for PyTorch, as Captum attributions.

``PDA(model).attribute(image, target=c)`` is the evidence of each part of an image for and against a
class, in bits.
"""

from importlib import import_module
from types import ModuleType

from captum_pda import diagnostics
from captum_pda._version import __version__
from captum_pda.datasets.explain_dataset import DatasetSummary, explain_dataset
from captum_pda.datasets.result_folder import ResultFolder, SettingsError
from captum_pda.distributed import OtherRankError
from captum_pda.engines import (
    DenseEngine,
    Engine,
    EngineReport,
    IncrementalEngine,
    IncrementalError,
)
from captum_pda.errors import (
    BatchDimensionError,
    CovarianceError,
    NonFiniteOutputError,
    NotFittedError,
)
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.evidence.self_test import SelfTest
from captum_pda.evidence.strongest import StrongRegion, strongest_regions
from captum_pda.evidence.together import Coalitions, DecidingPart, Interactions, RegionGame
from captum_pda.methods.gradient import GradientPDA
from captum_pda.methods.layer import LayerPDA
from captum_pda.methods.pda import PDA
from captum_pda.methods.perturbation import EfficientPDA, SampledPDA
from captum_pda.methods.tree import OwenTree, TreePDA
from captum_pda.priors import (
    ConstantPrior,
    EmpiricalMeanPrior,
    GaussianFieldPrior,
    GaussianPatchPrior,
    MapMeanPrior,
    MarginalPrior,
    PatchPrior,
)
from captum_pda.regions.masks import FeatureMaskRegions
from captum_pda.regions.superpixels import Superpixels
from captum_pda.regions.windows import WindowGrid

__all__ = [
    "PDA",
    "BatchDimensionError",
    "Coalitions",
    "ConstantPrior",
    "CovarianceError",
    "DatasetSummary",
    "DecidingPart",
    "DenseEngine",
    "EfficientPDA",
    "EmpiricalMeanPrior",
    "Engine",
    "EngineReport",
    "FeatureMaskRegions",
    "GaussianFieldPrior",
    "GaussianPatchPrior",
    "GradientPDA",
    "IncrementalEngine",
    "IncrementalError",
    "Interactions",
    "LayerPDA",
    "MapMeanPrior",
    "MarginalPrior",
    "NonFiniteOutputError",
    "NotFittedError",
    "OtherRankError",
    "OwenTree",
    "PatchPrior",
    "RegionGame",
    "ResultFolder",
    "SampledPDA",
    "SelfTest",
    "SettingsError",
    "StrongRegion",
    "Superpixels",
    "TreePDA",
    "WindowEvidence",
    "WindowGrid",
    "__version__",
    "diagnostics",
    "explain_dataset",
    "strongest_regions",
]

#: Subpackages for pictures and pages, which are loaded on first use.
ROOMS = ("atlas", "report", "visualization")


def __getattr__(name: str) -> ModuleType:
    """Load ``captum_pda.visualization`` and the like on first use."""
    if name in ROOMS:
        return import_module(f"captum_pda.{name}")
    raise AttributeError(f"module 'captum_pda' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names only."""
    return sorted([*__all__, *ROOMS])
