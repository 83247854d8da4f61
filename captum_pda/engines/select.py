"""From the ``engine`` argument to an engine."""

from __future__ import annotations

from captum_pda.engines.auto import AutoEngine
from captum_pda.engines.dense import DenseEngine
from captum_pda.engines.engine_protocol import Engine
from captum_pda.engines.incremental.engine import IncrementalEngine
from captum_pda.fingerprints import fingerprint, own_code
from captum_pda.model.inputs import check_choice

ENGINES = ("auto", "dense", "incremental")


def engine_for(engine: str | Engine) -> Engine:
    """The engine of this name, or the engine object itself."""
    if not isinstance(engine, str) and isinstance(engine, Engine):
        return engine
    check_choice("engine", engine, ENGINES)
    if engine == "auto":
        return AutoEngine()
    return IncrementalEngine() if engine == "incremental" else DenseEngine()


def engine_settings(engine: Engine) -> dict[str, object]:
    """What describes an engine, as plain values; one of your own without ``settings()`` is known by
    its class and a hash of its code and attributes."""
    if callable(getattr(engine, "settings", None)):
        return {**engine.settings(), **own_code(engine)}  # type: ignore[attr-defined]
    return {"kind": type(engine).__qualname__, "sha256": fingerprint(engine)}
