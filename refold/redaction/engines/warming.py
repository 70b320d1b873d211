"""An engine that starts at once, and changes to the fastest when that is compiled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from refold.redaction.engines.base import Engine, Hit

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
