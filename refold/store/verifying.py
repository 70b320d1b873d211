"""Proving a session: its chains and heads, its calls and results, what it derived."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from refold.domain.envelope import Envelope
from refold.domain.errors import CorruptEvent, Erased, KeyUnavailable, RefoldError
from refold.domain.events import Fork, Request, Summary
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import EventLog, Problem
from refold.domain.session import SessionState, decide, evolve
from refold.store.history import History, born
from refold.store.viewing import Viewer

T = TypeVar("T")


class Verified(NamedTuple):
    """What was proved of a session, and what is wrong with it."""

    events: int
    compactions: int
    requests: int
    problems: list[Problem]


class Verifier:
    """Proves one session, stream by stream."""

    def __init__(self, log: EventLog, stream: StreamId) -> None:
        self._log, self._stream = log, stream
        self._problems: list[Problem] = []
        self._events = 0
        self._derived: list[Envelope] = []
        self._requests: list[Envelope] = []

    def run(self) -> Verified:
        """Read everything once, then derive again what was derived from it."""
        names = self._log.streams(self._stream.user_id, self._stream.session_id)
        for name in [MAIN, *(name for name in names if name != MAIN)]:
            stream = self._stream._replace(stream=name)
            self._guarded(stream, self._prove, stream)
        summaries = [e for e in self._derived if isinstance(e.payload, Summary)]
        if not self._problems:
            self._guarded(self._stream, self._derive_again, summaries)
        return Verified(
            self._events, len(summaries), len(self._requests), self._problems
        )

    def _guarded(self, stream: StreamId, prove: Callable[[T], None], what: T) -> None:
        """A session that cannot be read is a problem of its own, not of others."""
        try:
            prove(what)
        except (CorruptEvent, KeyUnavailable, Erased) as error:
            seq = error.seq if isinstance(error, CorruptEvent) else None
            self._problems.append(Problem(*stream, seq, "unreadable", str(error)))

    def _prove(self, stream: StreamId) -> None:
        state = SessionState(stream)
        for item in self._log.audit(stream):
            if isinstance(item, Problem):
                self._problems.append(item)
                continue
            self._events += 1
            state = self._accept(state, item)
            if stream.stream != MAIN:
                self._derived.append(item)
            elif isinstance(item.payload, Request):
                self._requests.append(item)
        if not self._problems:
            self._compare(stream, state)

    def _accept(self, state: SessionState, envelope: Envelope) -> SessionState:
        """Follow the session's rules: each result answers one open call."""
        if isinstance(envelope.payload, Fork) and envelope.seq == 1:
            state = born(self._log, state.stream, envelope.payload)
        try:
            decide(state, [envelope.payload])
        except RefoldError as error:
            self._report(envelope, "rule", str(error))
        return evolve(state, envelope.payload)

    def _compare(self, stream: StreamId, state: SessionState) -> None:
        try:
            head = self._log.head(stream)
        except RefoldError as error:
            self._problems.append(Problem(*stream, None, "head", str(error)))
            return
        if head.state != state:
            detail = "the head does not hold what follows from the events"
            self._problems.append(Problem(*stream, head.seq, "head", detail))

    def _derive_again(self, summaries: list[Envelope]) -> None:
        if not summaries and not self._requests:
            return
        state = self._log.head(self._stream).state
        viewer = Viewer(self._log, History.of(self._log, state))
        for envelope in summaries:
            if not viewer.source_matches(envelope):
                self._report(envelope, "source", "the source digest does not follow")
        for envelope in self._requests:
            self._check_request(viewer, envelope)

    def _check_request(self, viewer: Viewer, envelope: Envelope) -> None:
        request = envelope.payload
        try:
            same = (
                isinstance(request, Request)
                and viewer.requested(request).digest == request.digest
            )
        except RefoldError as error:
            self._report(envelope, "request", str(error))
            return
        if not same:
            self._report(envelope, "request", "the view has another digest now")

    def _report(self, envelope: Envelope, code: str, detail: str) -> None:
        self._problems.append(Problem(*envelope.stream_id, envelope.seq, code, detail))
