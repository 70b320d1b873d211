"""Counts of reads: how often each session was read, and when it was read last."""

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

# The seconds between two writes.  A killed process loses the counts since the last one.
_WRITE_INTERVAL_SEC: Final = 30.0
# The number of sessions with counts in memory.  Until the next write, reads of further
# sessions are not counted.
MOST_SESSIONS: Final = 10_000


class Reads:
    """Counts reads of sessions, and writes the counts to a log's ``retention``.

    A thread writes the counts every ``every`` seconds; ``close`` writes the rest.

    retention: returns the ``retention`` of the log; called when counts are written.
    clock:     returns the time in microseconds since 1970.
    """

    def __init__(
        self,
        retention: Callable[[], Retention],
        clock: Callable[[], int],
        *,
        every: float = _WRITE_INTERVAL_SEC,
    ) -> None:
        self._retention = retention
        self._clock = clock
        self._every = every
        self._start_empty()

    def _start_empty(self) -> None:
        """Start without counts, in a new object or in a forked process."""
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
            self._start_empty()
        now = self._clock()
        with self._lock:
            self._add((stream.user_id, stream.session_id), 1, now)
            if self._thread is None and not self._closed.is_set():
                self._thread = Thread(
                    target=self._run, name="refold-reads", daemon=True
                )
                self._thread.start()

    def flush(self) -> None:
        """Write the counts; those that cannot be written wait for the next write."""
        from refold.domain.erasure import Accesses

        if self._pid != os.getpid():  # after a fork, the parent writes these counts
            self._start_empty()
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
        """Write the counts of one user, or keep them for the next write."""
        try:
            self._retention().add_accesses(user_id, accesses)
        except errors.RefoldError as error:
            log.debug("uses of sessions are not written yet: %s", error)
            with self._lock:
                for access in accesses:
                    session = (access.user_id, access.session_id)
                    self._add(session, access.reads, access.last_at)

    def _add(self, session: tuple[str, str], reads: int, at: int) -> None:
        """Add reads to the count of a session."""
        reads_before, last_at = self._counts.get(session, (0, at))
        if reads_before or len(self._counts) < MOST_SESSIONS:
            self._counts[session] = (reads_before + reads, max(last_at, at))

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
