"""Engines run a model on an example with each window replaced."""

from captum_pda.engine.batch_size import BatchSize
from captum_pda.engine.dense import DenseEngine
from captum_pda.engine.going_dense import IncrementalError
from captum_pda.engine.incremental import IncrementalEngine
from captum_pda.engine.protocol import Engine, PreparedEngine
from captum_pda.engine.report import EngineReport
from captum_pda.engine.select import ENGINES, engine_for

__all__ = [
    "ENGINES",
    "BatchSize",
    "DenseEngine",
    "Engine",
    "EngineReport",
    "IncrementalEngine",
    "IncrementalError",
    "PreparedEngine",
    "engine_for",
]
