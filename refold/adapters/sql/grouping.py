"""Group commit: who writes at the same time shares a commit, an idle one waits not.

Whoever comes first leads: it writes what has queued up meanwhile, its own first,
and hands the lead to the next in the queue.  No thread of its own, no timer.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import Final

from refold.adapters.recorder import Batch, WriteOutcome

MOST: Final = 64
WriteGroup = Callable[[Sequence[Batch]], list[WriteOutcome | Exception]]


class _Pending:
    __slots__ = ("batch", "outcome", "wake")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.outcome: WriteOutcome | BaseException | None = None
        self.wake = Event()


class GroupCommit:
    """Joins concurrent writes of this process into groups of at most ``MOST``."""

    def __init__(self, write_group: WriteGroup) -> None:
        self._write_group = write_group
        self._begin()

    def _begin(self) -> None:
        """An empty queue: at first, and in a forked child."""
        self._pid = os.getpid()
        self._lock = Lock()
        self._queue: deque[_Pending] = deque()
        self._led = False

    def write(self, batch: Batch) -> WriteOutcome:
        """Write ``batch`` alone or with others; its outcome depends on none of them."""
        if self._pid != os.getpid():
            self._begin()
        pending = _Pending(batch)
        with self._lock:
            self._queue.append(pending)
            leads, self._led = not self._led, True
        if not leads:
            self._wait(pending)
        if pending.outcome is None:
            self._lead()
        outcome = pending.outcome
        if outcome is None or isinstance(outcome, BaseException):
            raise outcome or RuntimeError("the write has no outcome")
        return outcome

    def _wait(self, pending: _Pending) -> None:
        try:
            pending.wake.wait()
        except BaseException:
            self._withdraw(pending)
            raise

    def _withdraw(self, pending: _Pending) -> None:
        """Leave the queue, and pass on the lead if it was just given."""
        with self._lock:
            if pending not in self._queue:
                return
            self._queue.remove(pending)
            if pending.wake.is_set():
                self._led = bool(self._queue)
                if self._queue:
                    self._queue[0].wake.set()

    def _lead(self) -> None:
        with self._lock:
            size = min(MOST, len(self._queue))
            group = [self._queue.popleft() for _ in range(size)]
        try:
            outcomes = self._write_group([pending.batch for pending in group])
            for pending, outcome in zip(group, outcomes, strict=True):
                pending.outcome = outcome
        except Exception as error:
            for pending in group:
                pending.outcome = pending.outcome or error
        except BaseException:
            self._requeue(group)
            raise
        finally:
            self._hand_over()
            for pending in group:
                if pending.outcome is not None:
                    pending.wake.set()

    def _requeue(self, group: list[_Pending]) -> None:
        """The leader was interrupted: the others are written by the next one.

        What was committed already is found by its hash, or is a conflict.
        """
        with self._lock:
            self._queue.extendleft(reversed(group[1:]))

    def _hand_over(self) -> None:
        with self._lock:
            self._led = bool(self._queue)
            if self._queue:
                self._queue[0].wake.set()
