"""The thread that records exchanges, and the limits on the copies that it gets.

The recorder is synchronous and can wait for a database.  It runs in its own thread, so
that no request of a client waits for it.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from os.path import basename
from queue import SimpleQueue
from threading import Lock, Thread
from typing import NamedTuple, TypeAlias

from refold.adapters.proxy.exchange import (
    Answer,
    Exchange,
    RecordedSession,
    Recorder,
    RedactedRequest,
)
from refold.domain.errors import RefoldError


class Limits(NamedTuple):
    """The limits of a proxy.

    body_bytes:   the most bytes of a request that are copied for the record.
    answer_bytes: the most bytes of an answer that are copied.
    total_bytes:  the most bytes of all copies that are not recorded yet.
    begin_sec:    how long a request waits until it is recorded.  With ``--strict``, it
                  waits as long as the store does.
    connect_sec:  how long a connection to a provider may take.
    read_sec:     the longest pause in an answer of a provider.
    """

    body_bytes: int = 64 << 20
    answer_bytes: int = 64 << 20
    total_bytes: int = 512 << 20
    begin_sec: float = 2.0
    connect_sec: float = 30.0
    read_sec: float = 3_600.0


class Memory:
    """The bytes of all copies that are not recorded yet."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = Lock()  # the thread that records gives memory back
        self.used_bytes = 0

    def take(self, count: int) -> bool:
        """Count further bytes, if they are within the limit; False otherwise."""
        with self._lock:
            if self.used_bytes + count > self._most_bytes:
                return False
            self.used_bytes += count
            return True

    def give_back(self, count: int) -> None:
        """Stop counting these bytes."""
        with self._lock:
            self.used_bytes -= count


class Copy:
    """A copy of a body, up to a limit."""

    def __init__(self, memory: Memory, most_bytes: int) -> None:
        self._memory = memory
        self._most_bytes = most_bytes
        self._chunks: list[bytes] = []
        self.length = 0
        self.truncated = False

    def add(self, chunk: bytes) -> bool:
        """Add a chunk.  Returns False, for this and later chunks, beyond a limit."""
        if self.truncated:
            return False
        is_within_limit = self.length + len(chunk) <= self._most_bytes
        if not is_within_limit or not self._memory.take(len(chunk)):
            self.truncated = True
            return False
        self._chunks.append(chunk)
        self.length += len(chunk)
        return True

    def content(self) -> bytes:
        """Return all chunks as one."""
        if len(self._chunks) != 1:
            self._chunks = [b"".join(self._chunks)]
        return self._chunks[0]

    def release(self) -> None:
        """Give the memory back.  The copy is not used any more."""
        self._chunks = []
        self._memory.give_back(self.length)
        self.length = 0


class Problems:
    """The exchanges that were not recorded, and the reason of the first.

    report: called with a warning when the first exchange is not recorded.
    """

    def __init__(self, report: Callable[[str], object]) -> None:
        self._report = report
        self.count = 0
        self.first_reason = ""

    def add(self, error: Exception) -> None:
        """Count an error; report the first."""
        self.count += 1
        if self.count > 1:
            return
        self.first_reason = reason_of(error)
        self._report(
            f"a request was not recorded, and the agent goes on: {self.first_reason}"
        )


def reason_of(error: Exception) -> str:
    """Return the message of an error of Refold.

    The message of another error may contain text that is not redacted.
    """
    if isinstance(error, RefoldError):
        return str(error)
    place = ""
    if error.__traceback__ is not None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f" in {basename(frame.filename)}:{frame.lineno}"
    return f"unexpected {type(error).__name__}{place}"


class NotRecorded(RefoldError):
    """The request was refused, because it could not be recorded."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the request was not recorded: {reason_of(error)}")


_Job: TypeAlias = Callable[[], object]


class Recording:
    """Calls a recorder from one thread, one call after the other.

    report: called with a warning in that thread.
    strict: whether ``begin`` raises an error for a request that is not recorded.
    redacts_upstream: whether the provider gets only what the recorder returns.  Then
            ``begin`` raises as with ``strict``.
    """

    def __init__(
        self,
        recorder: Recorder,
        report: Callable[[str], object],
        *,
        strict: bool = False,
        redacts_upstream: bool = False,
        begin_sec: float = Limits().begin_sec,
    ) -> None:
        self._recorder = recorder
        self._strict = strict or redacts_upstream
        self.redacts_upstream = redacts_upstream
        self._begin_sec = begin_sec
        self._jobs = SimpleQueue[_Job | None]()
        # If the process ends before the thread, the requests in it are lost.
        self._thread = Thread(target=self._run, name="refold-recorder", daemon=True)
        self._thread.start()
        self.problems = Problems(report)
        self.requests = 0
        self._finished = 0

    async def begin(self, exchange: Exchange) -> RedactedRequest | None:
        """Record a request, before it is sent.

        Returns what the provider gets in its place; None for the client's bytes.

        Without ``strict``, this takes ``begin_sec`` seconds at most, and the request is
        recorded later.

        Raises NotRecorded.
        """
        self.requests += 1
        begun: Future[Exception | None] = Future()
        redacted: RedactedRequest | None = None

        def record() -> None:
            nonlocal redacted
            redacted = self._recorder.begin(exchange)

        def begin() -> None:
            error = _error_of(record)
            if error is not None and not self._strict:
                self.problems.add(error)
            begun.set_result(error)

        self._jobs.put(begin)
        timeout = None if self._strict else self._begin_sec
        await asyncio.wait({asyncio.wrap_future(begun)}, timeout=timeout)
        if not self._strict:
            return None
        error = begun.result()
        if error is not None:
            raise NotRecorded(error)
        return redacted

    def finish(self, exchange: Exchange, answer: Answer, after: _Job) -> None:
        """Record the end of an exchange, soon.

        after: called in the thread when it is recorded, or was not.
        """

        def finish() -> None:
            error = _error_of(lambda: self._recorder.finish(exchange, answer))
            if error is not None:
                self.problems.add(error)
            after()
            self._finished += 1

        self._jobs.put(finish)

    @property
    def is_idle(self) -> bool:
        """Whether each request that began has ended, and is recorded."""
        return self._finished == self.requests

    def sessions(self) -> Sequence[RecordedSession]:
        """Return the sessions that were written to.  Call it after the end."""
        return self._recorder.sessions()

    def end(self) -> None:
        """Let the thread end after everything is recorded."""

        def close() -> None:
            error = _error_of(self._recorder.close)
            if error is not None:
                self.problems.add(error)

        self._jobs.put(close)
        self._jobs.put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end; returns whether everything is recorded."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Wait until everything is recorded."""
        self.end()
        self.wait()

    def _run(self) -> None:
        """Run all jobs, until one is None."""
        while (job := self._jobs.get()) is not None:
            job()


def _error_of(call: Callable[[], object]) -> Exception | None:
    """Call a function, and return the error that it raises."""
    try:
        call()
    except Exception as error:
        return error
    return None
