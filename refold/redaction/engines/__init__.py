"""What looks through bytes for all that rules are triggered by, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module, util
from typing import Final

from refold.redaction.engines.base import UNPAIRED, Engine, EngineName, Hit
from refold.redaction.engines.trigger import Trigger
from refold.redaction.engines.warming import Warming

__all__ = [
    "UNPAIRED",
    "Engine",
    "EngineName",
    "Hit",
    "Trigger",
    "best",
    "engine_of",
    "installed",
    "quickest",
    "start_quickly",
]

# What each needs to be installed, the fastest first.
_NEEDS: Final[dict[EngineName, str]] = {
    "vectorscan": "hyperscan",
    "re2": "re2",
    "stdlib": "re",
}


# Filled by a process that will not live long enough for a slow start to pay.
_SHORT_LIVED: Final[list[bool]] = []


def start_quickly() -> None:
    """Let ``auto`` mean the engine that starts fastest, for all of this process."""
    _SHORT_LIVED.append(True)


def engine_of(name: EngineName, triggers: Sequence[Trigger]) -> Engine:
    """The engine called ``name`` over ``triggers``.

    ``auto`` is the fastest one installed; as Vectorscan takes seconds to compile, the
    next best works until there was enough to do.

    Raises ModuleNotFoundError if that engine is not installed.
    """
    given = tuple(triggers)
    if name != "auto":
        return _made(name, given)
    chosen = best()
    if chosen != "vectorscan":
        return _made(chosen, given)
    quick = _made(quickest(), given)
    if _SHORT_LIVED:
        return quick
    return Warming(quick, partial(_made, "vectorscan", given))


def best() -> EngineName:
    """The fastest engine that is installed."""
    return next(name for name in _NEEDS if installed(name))


def quickest() -> EngineName:
    """The engine that is ready soonest."""
    return "re2" if installed("re2") else "stdlib"


@cache
def installed(name: EngineName) -> bool:
    """Whether what the engine ``name`` needs is installed."""
    return util.find_spec(_NEEDS[name]) is not None


def check_installed(name: EngineName) -> None:
    """Raise ModuleNotFoundError if the engine ``name`` is not installed."""
    if name != "auto" and not installed(name):
        raise ModuleNotFoundError(
            f"the redaction engine {name} is not installed: choose another, or install "
            f"{_NEEDS[name]}"
        )


def _made(name: EngineName, triggers: tuple[Trigger, ...]) -> Engine:
    check_installed(name)
    module = import_module(f"refold.redaction.engines.{name}")
    engine: Engine = module.engine(triggers)
    return engine
