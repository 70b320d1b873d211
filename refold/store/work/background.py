"""Work that runs in threads of this process while the caller goes on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import Any

from refold.domain.errors import RefoldError

log = logging.getLogger("refold")


class Background:
    """Runs named work in at most ``threads`` threads; at most ``queue`` entries wait.

    Work that is asked for again while it waits runs once.  Work that is asked for again
    while it runs, runs once more afterwards.  Failures are logged and not raised.
    """

    def __init__(self, *, threads: int = 2, queue: int = 1_000) -> None:
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
        """Queue ``work``; returns False if the queue is full or closed."""
        if self._pid != os.getpid():  # a fork has none of its parent's threads
            self._begin()
        with self._changed:
            if self._closed or name in self._waiting:
                return not self._closed
            if name in self._running:
                self._running[name] = True
                return True
            if len(self._waiting) >= self._queue:
                log.warning("the queue of background work is full: the work runs later")
                return False
            self._waiting.add(name)
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, "refold-background")
            self._executor.submit(self._run, name, work)
            return True

    def wait_idle(self) -> None:
        """Return when no work waits or runs."""
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._running))

    def close(self) -> None:
        """Wait for the work that runs, and drop the work that waits."""
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            self._closed = True
            executor = self._executor if self._pid == os.getpid() else None
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()

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
    """Do ``work``; if it fails, log ``otherwise`` with the reason, and return False.

    Only errors of Refold are quoted: others may hold content of a session.
    """
    try:
        work()
    except Exception as error:
        why = str(error) if isinstance(error, RefoldError) else type(error).__name__
        log.warning("%s: %s", otherwise, why)
        return False
    return True
