"""A few threads that work beside the appends, each piece of work once at a time."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import Any, Final

from refold.domain.errors import RefoldError

THREADS: Final = 2
QUEUE: Final = 1_000

log = logging.getLogger("refold")


class Background:
    """Does named work in at most ``threads`` threads; ``queue`` pieces may wait.

    Asked again for work that waits, it is done once; for work that runs, it is done
    once more when that ends.  What fails is logged, and no one else's matter.
    """

    def __init__(self, *, threads: int = THREADS, queue: int = QUEUE) -> None:
        self._threads, self._queue = threads, queue
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = Condition()
        self._waiting: set[Hashable] = set()
        self._running: dict[Hashable, bool] = {}
        self._executor: ThreadPoolExecutor | None = None

    def ask(self, name: Hashable, work: Callable[[], Any]) -> bool:
        """Have ``work`` done soon; False if too much waits, or this is closed."""
        if self._pid != os.getpid():  # a fork has none of its parent's threads
            self._begin()
        with self._changed:
            if self._closed:
                return False
            if name in self._waiting:
                return True
            if name in self._running:
                self._running[name] = True
                return True
            if len(self._waiting) >= self._queue:
                log.warning("too much work waits in the background: it is asked later")
                return False
            self._waiting.add(name)
            self._pool().submit(self._run, name, work)
            return True

    def wait_idle(self) -> None:
        """Return when nothing waits or runs."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._running))

    def close(self) -> None:
        """Let what runs end, and what waits be forgotten."""
        with self._changed:
            self._closed = True
            executor = self._executor if self._pid == os.getpid() else None
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()

    def _pool(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, "refold-background")
        return self._executor

    def _run(self, name: Hashable, work: Callable[[], Any]) -> None:
        with self._changed:
            self._waiting.discard(name)
            self._running[name] = False
        while True:
            attempt(work)
            with self._changed:
                if self._running[name] and not self._closed:
                    self._running[name] = False
                    continue
                del self._running[name]
                self._changed.notify_all()
                return


def attempt(
    work: Callable[[], Any],
    *,
    otherwise: str = "a compaction that nobody waits for failed",
) -> bool:
    """Do ``work``; else log ``otherwise``, and why as far as that may be said."""
    try:
        work()
    except Exception as error:
        why = str(error) if isinstance(error, RefoldError) else type(error).__name__
        log.warning("%s: %s", otherwise, why)
        return False
    return True
