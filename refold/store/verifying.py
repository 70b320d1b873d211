"""Proving a session: its chains and heads, its calls and results, what it derived."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from refold.domain.envelope import Envelope
from refold.domain.errors import (
    CorruptEvent,
    Erased,
    Expired,
    KeyUnavailable,
    RefoldError,
)
from refold.domain.events import Fork, RedactionApplied, Request, Summary
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import (
    EXPIRED,
    JUNK,
    WRONG_TYPE,
    EventLog,
    Problem,
    SessionInfo,
)
from refold.domain.session import SessionState, accepted_next, evolve
from refold.projections.context.spans import spans_of
from refold.projections.context.view import View
from refold.store.checking_views import wrong_views
from refold.store.history import History, born
from refold.store.requested import RequestedViews
from refold.store.superseded import Superseded
from refold.store.viewing import Viewer

_TRIES: Final = 3
_READ: Final = 100


class Verified(NamedTuple):
    """What was proved of a session, and what is wrong with it.

    superseded:         events that were redacted again: their chain is proved from
                        the first ciphertext, and that the present one took its place;
                        and those whose whole text expired.
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
    """Proves one session, stream by stream.

    ``chain_only``: that no row was changed, added or taken away, and nothing of what
    the rows hold; none is decrypted.
    """

    def __init__(
        self, log: EventLog, stream: StreamId, *, chain_only: bool = False
    ) -> None:
        self._log, self._stream, self._chain_only = log, stream, chain_only
        self._begin()

    def _begin(self) -> None:
        self._problems: list[Problem] = []
        self._events = 0
        # Their seqs, not what they hold: a long session has many.
        self._summaries: dict[StreamId, list[int]] = {}
        self._requests: list[int] = []
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
            prove = self._prove_chain if self._chain_only else self._prove
            self._guarded(stream, prove, stream)
        if not self._problems:
            self._guarded(self._stream, self._derive_again, self._stream)
        if not self._problems and not self._chain_only:
            self._guarded(self._stream, self._check_views, self._stream)
        return Verified(
            self._events,
            sum(len(seqs) for seqs in self._summaries.values()),
            len(self._requests),
            self._problems,
            sum(len(seqs) for seqs in self._superseded.values()),
            self._underived,
        )

    def _guarded(
        self, stream: StreamId, prove: Callable[[StreamId], None], what: StreamId
    ) -> None:
        """A session that cannot be read is a problem of its own, not of others."""
        try:
            prove(what)
        except (CorruptEvent, KeyUnavailable, Erased) as error:
            seq = error.seq if isinstance(error, CorruptEvent) else None
            self._problems.append(Problem(*stream, seq, "unreadable", str(error)))
        except RefoldError:
            raise
        except JUNK:
            self._problems.append(Problem(*stream, None, "unreadable", WRONG_TYPE))

    def _prove(self, stream: StreamId) -> None:
        state = SessionState(stream)
        for item in self._log.audit(stream):
            if isinstance(item, Problem):
                if item.code == EXPIRED:
                    self._superseded.setdefault(item.stream, set()).add(item.seq or 0)
                else:
                    self._problems.append(item)
                continue
            self._events += 1
            state = self._accept(state, item)
            if isinstance(item.payload, Summary):
                self._summaries.setdefault(stream, []).append(item.seq)
            elif isinstance(item.payload, Request):
                self._requests.append(item.seq)
            elif isinstance(item.payload, RedactionApplied):
                seqs = self._superseded.setdefault(item.payload.stream, set())
                seqs.update(item.payload.seqs)
        if not self._problems:
            self._compare(stream, state)

    def _prove_chain(self, stream: StreamId) -> None:
        for item in self._log.audit_chain(stream):
            if isinstance(item, Problem):
                self._problems.append(item)
            else:
                self._events += item

    def _accept(self, state: SessionState, envelope: Envelope) -> SessionState:
        """Follow the session's rules: each result answers one open call."""
        if isinstance(envelope.payload, Fork) and envelope.seq == 1:
            state = born(self._log, state.stream, envelope.payload)
        try:
            accepted_next(state, envelope.payload)
        except RefoldError as error:
            self._report(envelope, "rule", str(error))
        return evolve(state, envelope.payload)

    def _compare(self, stream: StreamId, state: SessionState) -> None:
        try:
            head = self._log.head(stream)
        except RefoldError as error:
            self._problems.append(Problem(*stream, None, "head", str(error)))
            return
        # What was appended since the events were read has moved the head.
        if head.seq > state.head_seq:
            for envelope in self._log.read(stream, after=state.head_seq, upto=head.seq):
                state = evolve(state, envelope.payload)
        if unnamed(head.state) != unnamed(state):
            detail = "the head does not hold what follows from the events"
            self._problems.append(Problem(*stream, head.seq, "head", detail))

    def _derive_again(self, main: StreamId) -> None:
        if not self._summaries and not self._requests:
            return
        viewer = Viewer(self._log, History.of(self._log, self._log.head(main).state))
        made_of = Superseded(viewer.history, self._superseded)
        for stream, seqs in self._summaries.items():
            self._check_summaries(viewer, made_of, self._read(stream, seqs))
        views = RequestedViews(viewer)
        for envelope in self._read(main, self._requests):
            self._check_request(views, made_of, envelope)

    def _check_views(self, main: StreamId) -> None:
        self._problems += wrong_views(self._log, main)

    def _read(self, stream: StreamId, seqs: list[int]) -> Iterator[Envelope]:
        for start in range(0, len(seqs), _READ):
            spans = spans_of(seqs[start : start + _READ])
            yield from self._log.read(stream, spans=spans)

    def _check_summaries(
        self, viewer: Viewer, made_of: Superseded, summaries: Iterable[Envelope]
    ) -> None:
        for envelope in summaries:
            if viewer.source_matches(envelope):
                continue
            if made_of.touches_summary(envelope):
                self._underived += 1
            else:
                self._report(envelope, "source", "the source digest does not follow")

    def _check_request(
        self, views: RequestedViews, made_of: Superseded, envelope: Envelope
    ) -> None:
        request = envelope.payload
        if not isinstance(request, Request):
            return
        try:
            differs = _differs(views.view(request), request)
        except Expired:
            self._underived += 1
            return
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


def unnamed(state: SessionState) -> SessionState:
    """The state without tool names: a parent's may have been redacted since."""
    calls = state.open_calls.items()
    return state.with_calls({key: call._replace(tool_name="") for key, call in calls})
