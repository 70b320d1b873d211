"""The promises that hold after any history; the protocol page explains why."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

import refold
from refold.adapters.streams import Blobs
from refold.domain.envelope import Envelope
from refold.domain.events import Fork, Summary, ToolCall, ToolResult
from refold.domain.ids import MAIN, StreamId
from refold.store import Session, SessionStore
from tests.simulation.roles import Request, owner
from tests.simulation.world import Violated
from tests.support.folding import unequal_views
from tests.support.redacting import MAIL, aware

if TYPE_CHECKING:
    from tests.simulation.history import History

_CUT: Final = re.compile(r'session\.blob\("([0-9a-f]{64})"\)')


class Aftermath:
    """The findings of a process that opens the store after the history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.world = history.world
        self.store: SessionStore = self.world.store(self.world.process())
        self.sessions = [
            self.store.session(user_id=info.user_id, session_id=info.session_id)
            for info in self.store.sessions(internal=True)
            if not self.erased(info.session_id)
        ]
        self.events = {
            session.session_id: session.events() for session in self.sessions
        }
        self._by_token: dict[str, list[Envelope]] = {}
        for event in chain.from_iterable(self.events.values()):
            self._by_token.setdefault(_token(event), []).append(event)

    def erased(self, session_id: str) -> bool:
        """Whether the history erases the user of this session."""
        return self.world.erasures.refuses(owner(session_id))

    def requests_kept(self) -> list[Request]:
        """The requests of users that are not erased."""
        every = self.history.requests
        return [request for request in every if not self.erased(request.session_id)]

    def derived(self) -> Iterator[tuple[Session, str, list[Envelope]]]:
        """Yield each derived stream with its entries."""
        for session in self.sessions:
            for name in session.history.streams():
                if name != MAIN:
                    yield session, name, session.history.derived(name)

    def of(self, request: Request) -> list[Envelope]:
        """Return the events that contain the request's token."""
        return self._by_token.get(request.token, [])


def check(history: History) -> None:
    """Check all promises against the result of a history.

    Raises Violated with the first promise that is broken.
    """
    after = Aftermath(history)
    for promise in PROMISES:
        for detail in promise(after):
            raise Violated(f"{promise.__name__}: {detail}")


def nothing_acknowledged_is_lost(after: Aftermath) -> Iterator[str]:
    for request in after.requests_kept():
        for receipt in request.receipts:
            events = after.of(request)
            seqs = (events[0].seq, events[-1].seq) if events else (0, 0)
            if seqs != (receipt.first_seq, receipt.last_seq):
                yield f"{request.token} got {receipt}, and is at {seqs}"
            elif events[-1].hash != receipt.hash:
                yield f"{request.token}: another hash than acknowledged"


def nothing_is_there_twice_or_half(after: Aftermath) -> Iterator[str]:
    for request in after.history.requests:
        events = after.of(request)
        wanted = len(request.events())
        if events and len(events) != wanted:
            yield f"{request.token} has {len(events)} of {wanted} events"
        if [event.seq for event in events] != _run(events):
            yield f"{request.token} is scattered"


def nothing_refused_is_there(after: Aftermath) -> Iterator[str]:
    for request in after.history.requests:
        if request.state in ("refused", "not sent") and after.of(request):
            yield f"{request.token} was {request.state}, and is there"


def seqs_have_no_gap(after: Aftermath) -> Iterator[str]:
    for session_id, events in after.events.items():
        if [event.seq for event in events] != list(range(1, len(events) + 1)):
            yield f"{session_id}: {[event.seq for event in events]}"
    for session, name, entries in after.derived():
        if [entry.seq for entry in entries] != list(range(1, len(entries) + 1)):
            yield f"{session.session_id}/{name[:6]}: {[entry.seq for entry in entries]}"


def an_expected_seq_has_one_winner(after: Aftermath) -> Iterator[str]:
    won = Counter(
        (request.session_id, request.expected_seq)
        for request in after.history.requests
        if request.expected_seq is not None and after.of(request)
    )
    for place, winners in won.items():
        if winners > 1:
            yield f"{place} was won by {winners}"
    for request in after.history.requests:
        events = after.of(request)
        wanted = None if request.expected_seq is None else request.expected_seq + 1
        if events and wanted not in (None, events[0].seq):
            yield f"{request.token} is not at {wanted}, where it was expected"


def all_verifies(after: Aftermath) -> Iterator[str]:
    for _, verified in after.store.verify():
        yield from (str(problem) for problem in verified.problems)


def a_closed_session_takes_nothing(after: Aftermath) -> Iterator[str]:
    for session_id, events in after.events.items():
        ended = [
            event.seq for event in events if getattr(event.payload, "closed", False)
        ]
        later = [event for event in events if ended and event.seq > ended[0]]
        if any(event.type != "redaction_applied" for event in later):
            yield f"{session_id} goes on after {ended[0]}"


def two_compactions_never_take_effect_for_one_base(after: Aftermath) -> Iterator[str]:
    for session, _, entries in after.derived():
        through = 0
        absorbed = set[int]()
        for entry in entries:
            summary = entry.payload
            if not isinstance(summary, Summary):
                continue
            where = f"{session.session_id}: summary {entry.seq}"
            if absorbed & set(summary.absorbs):
                yield f"{where} absorbs what another did"
            absorbed |= set(summary.absorbs)
            if not summary.absorbs and summary.first_seq <= through:
                yield f"{where} begins at {summary.first_seq}, not after {through}"
            through = max(through, summary.last_seq)


def views_equal_a_fresh_fold(after: Aftermath) -> Iterator[str]:
    for session in after.sessions:
        yield from unequal_views(session)
    after.store.catch_up()
    for session in after.sessions:
        yield from unequal_views(session)


def a_dead_holder_of_a_lease_costs_one_call(after: Aftermath) -> Iterator[str]:
    """A lease held to its end wastes no call, except one that was overtaken."""
    streams: dict[StreamId, list[int]] = {}
    for term in after.world.terms:
        wasted = term.answers - term.summaries
        streams.setdefault(term.stream, []).append(wasted - (not term.clean))
    for stream, over in streams.items():
        if sum(over) > 0 and not after.erased(stream.session_id):
            yield f"{stream.session_id}: {sum(over)} calls too many"


def what_was_redacted_is_gone(after: Aftermath) -> Iterator[str]:
    log = after.store.log
    for heads in after.world.rewritten:
        for stream, seq in heads.items():
            if after.erased(stream.session_id):
                continue
            for event in log.read(stream, upto=seq):
                text = str(event.to_json())
                cut = [log.blob(stream, digest) or b"" for digest in _CUT.findall(text)]
                if MAIL in text or any(MAIL.encode() in blob for blob in cut):
                    yield f"{stream.session_id} {event.seq} still says it"
    if not after.world.rewritten:
        return
    store = after.world.store(after.world.process(), aware())
    for result in store.reredact():
        if result.problem:
            yield result.problem
    for session in after.sessions:
        if log.count_old_keys(session.stream):
            yield f"{session.session_id} keeps an old key"


def a_cut_text_is_there_whole(after: Aftermath) -> Iterator[str]:
    """No other blob exists: a blob that no event needs is deleted."""
    world = after.world
    needed = set[tuple[str, bytes]]()
    for session in after.sessions:
        blobs = Blobs(world.recorder, world.ring(), session.stream)
        for event in after.events[session.session_id]:
            for digest in _CUT.findall(str(getattr(event.payload, "text", ""))):
                needed.add((session.user_id, blobs.address(digest)))
                text = session.history.blob(digest)
                if hashlib.sha256(text.encode()).hexdigest() != digest:
                    yield f"{session.session_id} {event.seq}: another text"
                if text.split()[0] != _token(event):
                    yield f"{session.session_id} {event.seq}: another's text"
    rows = after.world.recorder.execute("SELECT user_id, address FROM blobs")
    stored = {(user, bytes(address)) for user, address in rows}
    if stored != needed:
        yield f"{len(stored - needed)} blobs too many, {len(needed - stored)} too few"


def a_fork_goes_on_from_what_it_says(after: Aftermath) -> Iterator[str]:
    for forker in after.history.forks:
        name = forker.writing.requests[0].session_id
        if after.erased(name):
            continue
        events = after.events.get(name, [])
        first = events[0].payload if events else None
        if not isinstance(first, Fork):
            if forker.there:
                yield f"{name} is no fork: {first}"
        elif forker.forked and (first.session_id, first.at_seq) != forker.origin:
            yield f"{forker.name} was told of {forker.origin}, and {first} is there"
        elif first.at_seq > len(after.events[first.session_id]):
            yield f"{name} goes on from {first.at_seq}, which is not there"
    if sum(forker.forked for forker in after.history.forks) > 1:
        yield "two processes got the same fork name"


def an_erasure_that_began_is_completed(after: Aftermath) -> Iterator[str]:
    erasures = after.world.erasures
    for user_id in erasures.begun:
        left = erasures.left(user_id)
        if user_id not in erasures.certificates:
            yield f"{user_id} was half forgotten: {left} rows and keys are left"
        elif left:
            yield f"{user_id} has a certificate, and {left} rows and keys"
        session = after.world.store(after.world.process()).session(
            user_id=user_id, session_id="s-1"
        )
        try:
            session.append(refold.UserInput(text="back again"))
        except refold.Erased:
            continue
        yield f"{user_id} came back without a word"


def _token(event: Envelope) -> str:
    """Return the token of the request that the event belongs to."""
    match event.payload:
        case ToolCall(call_id=call_id):
            return call_id
        case ToolResult(content=str(text)):
            return text.split()[0]
        case payload:
            return f"{getattr(payload, 'text', '') or '-'}".split()[0]


def _run(events: list[Envelope]) -> list[int]:
    return [events[0].seq + place for place in range(len(events))] if events else []


Promise = Callable[[Aftermath], Iterator[str]]
PROMISES: Final[tuple[Promise, ...]] = (
    seqs_have_no_gap,
    nothing_acknowledged_is_lost,
    nothing_is_there_twice_or_half,
    nothing_refused_is_there,
    an_expected_seq_has_one_winner,
    all_verifies,
    a_closed_session_takes_nothing,
    two_compactions_never_take_effect_for_one_base,
    views_equal_a_fresh_fold,
    a_dead_holder_of_a_lease_costs_one_call,
    a_cut_text_is_there_whole,
    a_fork_goes_on_from_what_it_says,
    an_erasure_that_began_is_completed,
    what_was_redacted_is_gone,
)
