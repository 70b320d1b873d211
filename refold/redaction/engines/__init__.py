"""What looks through bytes for all that rules are triggered by, in one pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module, util
from typing import Final

from refold.redaction.engines.base import UNPAIRED, Engine, EngineName, Hit, Trigger

# After so many bytes a faster engine pays for the seconds it takes to compile.
_WORTH_IT: Final = 262_144


class Warming:
    """``first`` until so much was scanned that ``make`` is worth its time.

    All engines find the same, so it makes no difference when they change.
    """

    def __init__(self, first: Engine, make: Callable[[], Engine]) -> None:
        self._engine, self._make = first, make
        self._left = _WORTH_IT
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """Which engine is at work now."""
        return self._engine.name

    @property
    def gates(self) -> bool:
        """Whether it is worth asking first."""
        return self._engine.gates

    def clean(self, data: bytes, *, beside: bool) -> bool:
        self._count(data)
        return self._engine.clean(data, beside=beside)

    def scan(self, data: bytes) -> list[Hit]:
        self._count(data)
        return self._engine.scan(data)

    def _count(self, data: bytes) -> None:
        # A lost count of another thread only makes it a little later.
        if self._left > 0:
            self._left -= len(data)
            if self._left <= 0 and self._lock.acquire(blocking=False):
                self._thread = threading.Thread(target=self._warm, name="refold-warm")
                self._thread.start()

    def join(self) -> None:
        """Wait until the change that has begun, if any, is made."""
        if self._thread is not None:
            self._thread.join()

    def _warm(self) -> None:
        self._engine = self._make()


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
