"""Group commit: who writes at the same time shares a commit, an idle one waits not.

Whoever comes first leads: it writes its own, and hands the lead to the next in the
queue, who writes what has queued up meanwhile.  No timer.  Callers that cannot wait
(asyncio's) leave their batch and are called back; where the lead falls to one of them,
a thread has it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Condition, Event, Lock
from typing import Final, TypeAlias

from refold.adapters.recorder import Batch, WriteOutcome

MOST: Final = 64
# More than this is not taken from callers that do not wait.
QUEUED: Final = 1024
WriteGroup = Callable[[Sequence[Batch]], list[WriteOutcome | Exception]]
Result: TypeAlias = WriteOutcome | Exception
Done: TypeAlias = Callable[[Result], None]


class _Pending:
    """A batch in the queue, and who waits for it: a thread, or nobody (``done``)."""

    __slots__ = ("batch", "done", "outcome", "wake")

    def __init__(self, batch: Batch, done: Done | None = None) -> None:
        self.batch, self.done = batch, done
        self.outcome: Result | None = None
        self.wake = Event() if done is None else None

    def settle(self) -> None:
        """Tell who waits."""
        if self.wake is not None:
            self.wake.set()
        elif self.done is not None and self.outcome is not None:
            self.done(self.outcome)


class GroupCommit:
    """Joins concurrent writes of this process into groups of at most ``MOST``."""

    def __init__(self, write_group: WriteGroup) -> None:
        self._write_group = write_group
        self._begin()

    def _begin(self) -> None:
        """An empty queue: at first, and in a forked child."""
        self._pid = os.getpid()
        self._lock = Lock()
        self._idle = Condition(self._lock)
        self._queue: deque[_Pending] = deque()
        self._led = False
        self._thread: ThreadPoolExecutor | None = None

    def write(self, batch: Batch) -> WriteOutcome:
        """Write ``batch`` alone or with others; its outcome depends on none of them."""
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            alone, self._led = not self._led, True
            if not alone:
                pending = _Pending(batch)
                self._queue.append(pending)
        outcome = self._alone(batch) if alone else self._joined(pending)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def submit(self, batch: Batch, done: Done) -> bool:
        """Leave ``batch`` to be written; False if the queue is full.

        ``done`` is called once with its outcome, in the thread that wrote it; it must
        return at once and raise nothing.
        """
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            if len(self._queue) >= QUEUED:
                return False
            self._queue.append(_Pending(batch, done))
            if self._led:
                return True
            try:
                self._pass_on()
            except RuntimeError:  # the interpreter ends: no thread starts any more
                self._led = False
                self._queue.clear()
                return False
        return True

    def close(self) -> None:
        """Return when what was left to be written is written."""
        with self._idle:
            self._idle.wait_for(lambda: not self._led)
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()

    def _alone(self, batch: Batch) -> Result:
        try:
            return self._write_group([batch])[0]
        finally:
            self._hand_over()

    def _joined(self, pending: _Pending) -> Result:
        try:
            if pending.wake is not None:
                pending.wake.wait()
        except BaseException:
            self._withdraw(pending)
            raise
        if pending.outcome is None:
            self._lead()
        return pending.outcome or RuntimeError("the write has no outcome")

    def _withdraw(self, pending: _Pending) -> None:
        """Leave the queue, and pass on the lead if it was just given."""
        with self._lock:
            if pending not in self._queue:
                return
            self._queue.remove(pending)
            if pending.wake is not None and pending.wake.is_set():
                self._pass_on()

    def _lead(self, *, thread: bool = False) -> bool:
        """Write what is queued; whether the lead stays here, in the thread."""
        stays = False
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
            stays = self._hand_over(thread=thread)
            for pending in group:
                if pending.outcome is not None:
                    pending.settle()
        return stays

    def _requeue(self, group: list[_Pending]) -> None:
        """The leader was interrupted: the others are written by the next one.

        What was committed already is found by its hash, or is a conflict.
        """
        with self._lock:
            self._queue.extendleft(reversed(group[1:]))

    def _hand_over(self, *, thread: bool = False) -> bool:
        with self._lock:
            return self._pass_on(thread=thread)

    def _pass_on(self, *, thread: bool = False) -> bool:
        """Give the lead to the first in the queue; the lock is held.

        Where nobody waits for that one, the lead is the thread's: True if it has it.
        """
        self._led = bool(self._queue)
        if not self._queue:
            self._idle.notify_all()
        elif (wake := self._queue[0].wake) is not None:
            wake.set()
        elif thread:
            return True
        else:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "refold-writer")
            self._thread.submit(self._lead_in_thread)
        return False

    def _lead_in_thread(self) -> None:
        while self._lead(thread=True):
            pass
