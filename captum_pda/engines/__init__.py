"""Engines run a model on an example with each window replaced."""

from captum_pda.engines.auto import ENGINES, engine_for, engine_settings
from captum_pda.engines.dense import DenseEngine
from captum_pda.engines.incremental.engine import IncrementalEngine
from captum_pda.engines.protocol import (
    Audit,
    BatchLoop,
    BatchSize,
    Engine,
    EngineReport,
    IncrementalError,
    PreparedEngine,
)

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
