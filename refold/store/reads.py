"""Counts of reads: how often each session was read by its name, and when last."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from itertools import groupby
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final

from refold.domain import errors
from refold.domain.ids import StreamId

if TYPE_CHECKING:
    from refold.domain.erasure import Accesses, Retention

log = logging.getLogger("refold")

EVERY: Final = 30.0  # seconds between two writes; a killed process loses these counts
MOST: Final = (
    10_000  # sessions that are counted at once; others wait for the next write
)


class Reads:
    """Counts reads of sessions, and writes the counts to a log's ``retention``.

    The counts are written in a thread, every ``every`` seconds and on ``close``.

    retention: returns the ``retention`` of the log; called when counts are written.
    """

    def __init__(
        self,
        retention: Callable[[], Retention],
        clock: Callable[[], int],
        *,
        every: float = EVERY,
    ) -> None:
        self._retention = retention
        self._clock = clock
        self._every = every
        self._begin()

    def _begin(self) -> None:
        """Begin without counts: in a new object, and in a forked child."""
        self._pid = os.getpid()
        self._lock = Lock()
        self._writing = Lock()
        # By user and session: the number of reads, and the time of the last one.
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}
        self._thread: Thread | None = None
        self._closed = threading.Event()

    def note(self, stream: StreamId) -> None:
        """Count one read of the stream's session."""
        if self._pid != os.getpid():
            self._begin()
        now = self._clock()
        with self._lock:
            self._count((stream.user_id, stream.session_id), 1, now)
            if self._thread is None and not self._closed.is_set():
                self._thread = Thread(
                    target=self._run, name="refold-reads", daemon=True
                )
                self._thread.start()

    def flush(self) -> None:
        """Write the counts; counts that cannot be written wait for the next time."""
        from refold.domain.erasure import Accesses

        if self._pid != os.getpid():  # the parent writes the counts of the parent
            self._begin()
        with self._writing:
            with self._lock:
                counts = self._counts
                self._counts = {}
            accesses = sorted(
                Accesses(user_id, session_id, reads, last_at)
                for (user_id, session_id), (reads, last_at) in counts.items()
            )
            for user_id, group in groupby(accesses, lambda access: access.user_id):
                self._write(user_id, list(group))

    def _write(self, user_id: str, accesses: list[Accesses]) -> None:
        try:
            self._retention().add_accesses(user_id, accesses)
        except errors.RefoldError as error:
            log.debug("uses of sessions are not written yet: %s", error)
            with self._lock:
                for access in accesses:
                    place = access.user_id, access.session_id
                    self._count(place, access.reads, access.last_at)

    def _count(self, place: tuple[str, str], reads: int, at: int) -> None:
        before, last_at = self._counts.get(place, (0, at))
        if before or len(self._counts) < MOST:
            self._counts[place] = (before + reads, max(last_at, at))

    def _run(self) -> None:
        closed = self._closed
        while not closed.wait(self._every):
            self.flush()

    def close(self) -> None:
        """Write the counts, and stop counting."""
        if self._pid != os.getpid():
            return
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()
