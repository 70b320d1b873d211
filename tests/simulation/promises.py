"""What must hold after any history; the page on the protocol says why it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from refold.domain.envelope import Envelope
from refold.domain.events import Summary, ToolCall, ToolResult
from refold.domain.ids import MAIN, StreamId
from refold.store import Session, SessionStore
from tests.simulation.roles import USER, Request
from tests.simulation.world import Violated
from tests.support.folding import unequal_views
from tests.support.redacting import MAIL, aware

if TYPE_CHECKING:
    from tests.simulation.history import History


class Aftermath:
    """What a process finds that opens the store when all is over."""

    def __init__(self, history: History) -> None:
        self.history, self.world = history, history.world
        self.store: SessionStore = self.world.store(self.world.process())
        self.sessions = [
            self.store.session(USER, info.session_id)
            for info in self.store.sessions(USER)
        ]
        self.events = {one.session_id: one.events() for one in self.sessions}
        self._said: dict[str, list[Envelope]] = {}
        for event in (event for events in self.events.values() for event in events):
            self._said.setdefault(_token(event), []).append(event)

    def derived(self) -> Iterator[tuple[Session, str, list[Envelope]]]:
        """Each derived stream with its entries."""
        for session in self.sessions:
            for name in session.streams():
                if name != MAIN:
                    yield session, name, session.derived(name)

    def of(self, request: Request) -> list[Envelope]:
        """The events that hold the request's token."""
        return self._said.get(request.token, [])


def check(history: History) -> None:
    """Hold all promises against what came of a history.

    Raises Violated with the first that does not hold.
    """
    after = Aftermath(history)
    for promise in PROMISES:
        for detail in promise(after):
            raise Violated(f"{promise.__name__}: {detail}")


def nothing_acknowledged_is_lost(after: Aftermath) -> Iterator[str]:
    for request in after.history.requests:
        for receipt in request.receipts:
            found = after.of(request)
            seqs = (found[0].seq, found[-1].seq) if found else (0, 0)
            if seqs != (receipt.first_seq, receipt.last_seq):
                yield f"{request.token} was told {receipt}, and is at {seqs}"
            elif found[-1].hash != receipt.hash:
                yield f"{request.token}: another hash than was told"


def nothing_is_there_twice_or_half(after: Aftermath) -> Iterator[str]:
    for request in after.history.requests:
        found, wanted = after.of(request), len(request.events())
        if found and len(found) != wanted:
            yield f"{request.token} has {len(found)} of {wanted} events"
        if [one.seq for one in found] != _run(found):
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
            yield f"{session.session_id}/{name[:6]}: {[one.seq for one in entries]}"


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
        found = after.of(request)
        wanted = None if request.expected_seq is None else request.expected_seq + 1
        if found and wanted not in (None, found[0].seq):
            yield f"{request.token} is not at {wanted}, where it was expected"


def all_verifies(after: Aftermath) -> Iterator[str]:
    for _, verified in after.store.verify():
        yield from (str(problem) for problem in verified.problems)


def a_closed_session_takes_nothing(after: Aftermath) -> Iterator[str]:
    for session_id, events in after.events.items():
        ended = [one.seq for one in events if getattr(one.payload, "closed", False)]
        later = [one for one in events if ended and one.seq > ended[0]]
        if any(one.type != "redaction_applied" for one in later):
            yield f"{session_id} goes on after {ended[0]}"


def two_compactions_never_take_effect_for_one_base(after: Aftermath) -> Iterator[str]:
    for session, _, entries in after.derived():
        through, absorbed = 0, set[int]()
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
    """A lease that was held to its end wastes none, but for one that was overtaken."""
    streams: dict[StreamId, list[int]] = {}
    for term in after.world.terms:
        wasted = term.answers - term.summaries
        streams.setdefault(term.stream, []).append(wasted - (not term.clean))
    for stream, over in streams.items():
        if sum(over) > 0:
            yield f"{stream.session_id}: {sum(over)} calls too many"


def what_was_redacted_is_gone(after: Aftermath) -> Iterator[str]:
    log = after.store.log
    for heads in after.world.rewritten:
        for stream, seq in heads.items():
            for event in log.read(stream, upto=seq):
                if MAIL in str(event.to_json()):
                    yield f"{stream.session_id} {event.seq} still says it"
    if not after.world.rewritten:
        return
    store = after.world.store(after.world.process(), aware())
    for one in store.reredact(USER):
        if one.problem:
            yield one.problem
    for session in after.sessions:
        if log.retired_keys(session.stream):
            yield f"{session.session_id} keeps an old key"


def _token(event: Envelope) -> str:
    """The token of the request that the event was in."""
    match event.payload:
        case ToolCall(call_id=call_id):
            return call_id
        case ToolResult(content=str(text)):
            return text.split()[0]
        case payload:
            return f"{getattr(payload, 'text', '') or '-'}".split()[0]


def _run(found: list[Envelope]) -> list[int]:
    return [found[0].seq + place for place in range(len(found))] if found else []


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
    what_was_redacted_is_gone,
)
