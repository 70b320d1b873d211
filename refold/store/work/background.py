"""Background work: it runs in threads of this process while the caller continues."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import Any

from refold.domain.errors import RefoldError

logger = logging.getLogger("refold")


class Background:
    """Runs named work in other threads.

    Work that is requested again before it begins runs once.  Work that is requested
    again while it runs is run once more afterwards.  Failures are logged, not raised.

    threads: the largest number of threads.
    queue:   the largest number of pieces of work that wait.
    """

    def __init__(self, *, threads: int = 2, queue: int = 1_000) -> None:
        self._threads = threads
        self._queue = queue
        self._closed = False
        self._start_empty()

    def _start_empty(self) -> None:
        """Start without threads and work, in a new object or in a forked process."""
        self._pid = os.getpid()
        self._changed = Condition()
        self._waiting: set[Hashable] = set()
        # The names of running work, and whether it was requested again.
        self._running: dict[Hashable, bool] = {}
        self._executor: ThreadPoolExecutor | None = None

    def ask(self, name: Hashable, work: Callable[[], Any]) -> bool:
        """Queue ``work``; returns False if the queue is full or closed."""
        if self._pid != os.getpid():  # a forked process does not have these threads
            self._start_empty()
        with self._changed:
            if self._closed:
                return False
            if name in self._waiting:
                return True
            if name in self._running:
                self._running[name] = True
                return True
            if len(self._waiting) >= self._queue:
                logger.warning(
                    "the queue of background work is full: the work runs later"
                )
                return False
            self._waiting.add(name)
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, "refold-background")
            self._executor.submit(self._run, name, work)
            return True

    def wait_idle(self) -> None:
        """Wait until no work waits or runs."""
        if self._pid != os.getpid():
            self._start_empty()
        with self._changed:
            self._changed.wait_for(self._is_idle)

    def _is_idle(self) -> bool:
        return not self._waiting and not self._running

    def close(self) -> None:
        """Wait for running work, and drop waiting work."""
        if self._pid != os.getpid():
            self._start_empty()
        with self._changed:
            self._closed = True
            executor = self._executor
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()

    def _run(self, name: Hashable, work: Callable[[], Any]) -> None:
        """Run work; run it once more each time that it was requested again."""
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
    """Run ``work``; if it fails, log ``otherwise`` with the reason, and return False.

    The log quotes only errors of Refold.  Other errors may contain text of a session.
    """
    try:
        work()
    except Exception as error:
        reason = type(error).__name__
        if isinstance(error, RefoldError):
            reason = str(error)
        logger.warning("%s: %s", otherwise, reason)
        return False
    return True
