"""How often sessions are read by their name: counted here, written in batches, late.

No read waits for it: it is counted in memory, and a thread writes what there is every
``EVERY`` seconds.  What dies with a process is what it counted since.  This is what
retention by use is decided on, not an audit log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Final

from refold.domain.errors import RefoldError
from refold.domain.ids import StreamId
from refold.domain.keeping import Accesses, Keeping

EVERY: Final = 30.0  # seconds: what a killed process loses at most
MOST: Final = 10_000  # sessions; of more, the others are counted from the next time on

log = logging.getLogger("refold")
_Place = tuple[str, str]


class Uses:
    """Counts reads of sessions, and writes the counts to a log's ``keeping``."""

    def __init__(
        self, keeping: Keeping, clock: Callable[[], int], *, every: float = EVERY
    ) -> None:
        self._keeping, self._clock, self._every = keeping, clock, every
        self._begin()

    def _begin(self) -> None:
        """Nothing is counted: at first, and in a forked child."""
        self._pid = os.getpid()
        self._lock, self._writing = Lock(), Lock()
        self._counted: dict[_Place, tuple[int, int]] = {}
        self._thread: Thread | None = None
        self._closed = Event()

    def note(self, stream: StreamId) -> None:
        """The session of this stream was read by its name just now."""
        if self._pid != os.getpid():
            self._begin()
        place, now = stream[:2], self._clock()
        with self._lock:
            known = self._counted.get(place)
            if known is not None or len(self._counted) < MOST:
                self._counted[place] = (known[0] + 1 if known else 1, now)
            if self._thread is None and not self._closed.is_set():
                self._thread = Thread(target=self._run, name="refold-uses", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Write what was counted; what cannot be written is kept for the next time."""
        with self._writing:
            with self._lock:
                counted, self._counted = self._counted, {}
            users: dict[str, list[Accesses]] = {}
            for (user_id, session_id), (reads, last) in counted.items():
                found = Accesses(user_id, session_id, reads, last)
                users.setdefault(user_id, []).append(found)
            for user_id, accesses in users.items():
                self._write(user_id, accesses)

    def _write(self, user_id: str, accesses: list[Accesses]) -> None:
        try:
            self._keeping.add_accesses(user_id, accesses)
        except RefoldError as error:
            log.debug("uses of sessions are not written yet: %s", error)
            self._take_back(accesses)

    def _take_back(self, accesses: list[Accesses]) -> None:
        with self._lock:
            for one in accesses:
                place = one.user_id, one.session_id
                reads, last = self._counted.get(place, (0, one.last_at))
                if reads or len(self._counted) < MOST:
                    total = reads + one.reads
                    self._counted[place] = (total, max(last, one.last_at))

    def _run(self) -> None:
        closed = self._closed
        while not closed.wait(self._every):
            self.flush()

    def close(self) -> None:
        """Write what was counted, and count no more."""
        if self._pid != os.getpid():
            return
        self._closed.set()
        thread = self._thread
        if thread is not None:
            thread.join()
        self.flush()
