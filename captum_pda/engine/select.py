"""From the ``engine`` argument to an engine."""

from __future__ import annotations

from captum_pda.engine.dense import DenseEngine
from captum_pda.engine.protocol import Engine
from captum_pda.inputs import check_choice

ENGINES = ("auto", "dense")


def engine_for(engine: str | Engine) -> Engine:
    """The engine of this name, or the engine object itself."""
    if not isinstance(engine, str) and isinstance(engine, Engine):
        return engine
    check_choice("engine", engine, ENGINES)
    return DenseEngine()
