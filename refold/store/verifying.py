"""Proving a session: its chains and heads, its calls and results, what it derived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from refold.domain.envelope import Envelope
from refold.domain.errors import CorruptEvent, Erased, KeyUnavailable, RefoldError
from refold.domain.events import Fork, RedactionApplied, Request, Summary
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import EventLog, Problem, SessionInfo
from refold.domain.session import SessionState, decide, evolve
from refold.projections.context.view import View
from refold.store.history import History, born
from refold.store.superseded import Superseded
from refold.store.viewing import Viewer

T = TypeVar("T")
_TRIES: Final = 3


class Verified(NamedTuple):
    """What was proved of a session, and what is wrong with it.

    superseded:         events that were redacted again: their chain is proved from
                        the first ciphertext, and that the present one took its place.
    superseded_digests: digests of summaries and requests that cannot be derived
                        again, for they were made of what such events held.
    """

    events: int
    compactions: int
    requests: int
    problems: list[Problem]
    superseded: int = 0
    superseded_digests: int = 0


class Verifier:
    """Proves one session, stream by stream."""

    def __init__(self, log: EventLog, stream: StreamId) -> None:
        self._log, self._stream = log, stream
        self._begin()

    def _begin(self) -> None:
        self._problems: list[Problem] = []
        self._events = 0
        self._derived: list[Envelope] = []
        self._requests: list[Envelope] = []
        self._superseded: dict[str, set[int]] = {}
        self._underived = 0

    def run(self) -> Verified:
        """Prove the session, again if it was changed by others meanwhile."""
        for _ in range(_TRIES):
            before = self._end()
            verified = self._run()
            if not verified.problems or self._end() == before:
                break
            self._begin()
        return verified

    def _end(self) -> list[SessionInfo]:
        user_id, session_id, _ = self._stream
        return self._log.sessions(user_id, session_id=session_id)

    def _run(self) -> Verified:
        """Read everything once, then derive again what was derived from it."""
        names = self._log.streams(self._stream.user_id, self._stream.session_id)
        for name in [MAIN, *(name for name in names if name != MAIN)]:
            stream = self._stream._replace(stream=name)
            self._guarded(stream, self._prove, stream)
        summaries = [e for e in self._derived if isinstance(e.payload, Summary)]
        if not self._problems:
            self._guarded(self._stream, self._derive_again, summaries)
        return Verified(
            self._events,
            len(summaries),
            len(self._requests),
            self._problems,
            sum(len(seqs) for seqs in self._superseded.values()),
            self._underived,
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
            elif isinstance(item.payload, RedactionApplied):
                seqs = self._superseded.setdefault(item.payload.stream, set())
                seqs.update(item.payload.seqs)
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
        if _unnamed(head.state) != _unnamed(state):
            detail = "the head does not hold what follows from the events"
            self._problems.append(Problem(*stream, head.seq, "head", detail))

    def _derive_again(self, summaries: list[Envelope]) -> None:
        if not summaries and not self._requests:
            return
        state = self._log.head(self._stream).state
        viewer = Viewer(self._log, History.of(self._log, state))
        made_of = Superseded(viewer.history, self._superseded)
        for envelope in summaries:
            if viewer.source_matches(envelope):
                continue
            if made_of.touches_summary(envelope):
                self._underived += 1
            else:
                self._report(envelope, "source", "the source digest does not follow")
        for envelope in self._requests:
            self._check_request(viewer, made_of, envelope)

    def _check_request(
        self, viewer: Viewer, made_of: Superseded, envelope: Envelope
    ) -> None:
        request = envelope.payload
        if not isinstance(request, Request):
            return
        try:
            differs = _differs(viewer.requested(request), request)
        except RefoldError as error:
            self._report(envelope, "request", str(error))
            return
        if differs and made_of.touches_request(envelope):
            self._underived += 1
        elif differs:
            self._report(envelope, "request", f"{differs} has another digest now")

    def _report(self, envelope: Envelope, code: str, detail: str) -> None:
        self._problems.append(Problem(*envelope.stream_id, envelope.seq, code, detail))


def _differs(view: View, request: Request) -> str:
    """Which of what was sent is not what it was, the first of it; empty if all is."""
    again = view.request()
    if again.system_digest != request.system_digest:
        return "the system prompt"
    if again.tools_digest != request.tools_digest:
        return "the list of tools"
    return "" if again.digest == request.digest else "the view"


def _unnamed(state: SessionState) -> SessionState:
    """The state without tool names: a parent's may have been redacted since."""
    calls = state.open_calls.items()
    return state.with_calls({key: call._replace(tool_name="") for key, call in calls})
