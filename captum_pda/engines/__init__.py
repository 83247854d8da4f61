"""Engines run a model on an example with each window replaced."""

from captum_pda.engines.batch_loop import BatchLoop
from captum_pda.engines.batch_size import BatchSize
from captum_pda.engines.dense import DenseEngine
from captum_pda.engines.engine_protocol import Engine, PreparedEngine
from captum_pda.engines.incremental.engine import IncrementalEngine
from captum_pda.engines.incremental.no_rule import IncrementalError
from captum_pda.engines.report import Audit, EngineReport
from captum_pda.engines.select import ENGINES, engine_for, engine_settings

__all__ = [
    "ENGINES",
    "Audit",
    "BatchLoop",
    "BatchSize",
    "DenseEngine",
    "Engine",
    "EngineReport",
    "IncrementalEngine",
    "IncrementalError",
    "PreparedEngine",
    "engine_for",
    "engine_settings",
]
