"""The append path: decide, redact, guard, write; and again if the head moved."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from threading import Lock
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

from refold.domain.access_log import Access, AccessTrail, Status
from refold.domain.canonical import canonical, encodable
from refold.domain.envelope import Draft, Envelope, Meta
from refold.domain.errors import (
    IdempotencyConflict,
    InvalidEvent,
    RedactionFailed,
    SessionClosed,
    StaleSession,
)
from refold.domain.events import (
    CompactionNote,
    Event,
    RedactionApplied,
    Summary,
    ToolCall,
    ToolResult,
)
from refold.domain.ids import MAIN, RESERVED, StreamId
from refold.domain.ports import Append, Appended, Duplicate, EventLog, Head, Outcome
from refold.domain.session import SessionState, accepted_next, decide, evolve
from refold.redaction.chokepoint import RedactedEvent, recorded_id, redact
from refold.redaction.guard import Limits
from refold.redaction.plan import Tagger, late, tagger
from refold.redaction.redactor import RedactionError, Redactor
from refold.store.vault import Numbering, Vault

APPEND: Final = "session_append_event"
COMPACTION: Final = "compaction"
MEMORY: Final = "memory_write"
_OPTIMISTIC: Final = 4
_EXCLUSIVE: Final = 16
_CACHED: Final = 10_000

# The redacted events of an order, with what was redacted: each is redacted once.
_Made: TypeAlias = dict[int, tuple[Event, RedactedEvent]]
Appendable: TypeAlias = Event | Draft
# A text over the budget of work refuses the append, or a stub is stored for it.
Unscanned: TypeAlias = Literal["refuse", "stub"]
_Beside: TypeAlias = tuple[datetime | None, str | None, str | None, Meta]
# So many characters are redacted and sealed in the loop; it takes well under 1 ms.
_LIGHT: Final = 16_384
_Locks = WeakValueDictionary[tuple[int, StreamId], asyncio.Lock]
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, _Locks] = WeakKeyDictionary()


class Receipt(NamedTuple):
    """Where an append's events are: first and last seq, and the last one's hash.

    ``duplicate``: they were written by an earlier use of the same idempotency key.
    """

    first_seq: int
    last_seq: int
    hash: str
    duplicate: bool = False


class Order(NamedTuple):
    """What a caller wants appended, as they said it.

    ``prepared``: the drafts redacted already, if they were, one for one.
    ``unscanned``: what is done with a text over the policy's budget of work.
    ``numbers``: the table of numbered placeholders that what is prepared ends with.
    """

    stream: StreamId
    drafts: tuple[Draft, ...]
    idempotency_key: str | None = None
    expected_seq: int | None = None
    prepared: tuple[RedactedEvent, ...] = ()
    unscanned: Unscanned = "refuse"
    numbers: Mapping[str, int] | None = None

    def access(self, receipt: Receipt | None = None, spent: int = 0) -> Access:
        """What the access log says of it, ``spent`` nanoseconds after it began.

        Without a receipt it failed, and the log says how.
        """
        events = [draft.event for draft in self.drafts]
        access = Access(
            self._called(events[-1]) if events else APPEND,
            self.stream.user_id,
            self.stream.session_id,
            self.drafts[0].request_id if events else None,
            receipt.last_seq if receipt else None,
            tuple(dict.fromkeys([event.type for event in events])),
            spent // 1000,
            counts={"events": len(events)},
        )
        if receipt is None:
            return access
        if receipt.duplicate:
            access = access._replace(counts={**access.counts, "duplicate": 1})
        return access if self.stream.stream == MAIN else _derived(access, events[-1])

    def _called(self, event: Event) -> str:
        """A derived stream holds summaries: of the session, or what is remembered."""
        if self.stream.stream != MAIN:
            kind = getattr(event, "kind", "session")
            return COMPACTION if kind == "session" else MEMORY
        return MEMORY if self.stream.session_id in RESERVED else APPEND


def _derived(access: Access, event: Event) -> Access:
    """A compaction as its event tells it: how long it took is how long it was written.

    Its seq is that of the session when it was decided.
    """
    if isinstance(event, Summary):
        took = int((event.duration_ms or 0) * 1000)
        counts = {
            "events": event.source_event_count,
            "tokens_before": event.tokens_before,
            "tokens_after": event.tokens_after,
        }
        return access._replace(
            seq=event.decided_at_seq,
            duration_us=access.duration_us + took,
            counts=counts,
        )
    if isinstance(event, CompactionNote):
        lost = event.phase == "failed"
        status: Status = "error" if lost else "ok"
        error = "SummarizerFailed" if lost else None
        return access._replace(seq=event.decided_at_seq, status=status, error=error)
    return access


def uncounted(stream: StreamId) -> None:
    """Reads are not counted."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Appends to any stream of a log.

    Everything goes through ``append``: it alone redacts, and the log takes nothing
    that was not redacted.

    audit: is told of each use of what has this writer.
    used:  is told of each session that is read by its name.
    vault: keeps in memory what numbered placeholders stand for.
    """

    log: EventLog
    redactor: Redactor
    limits: Limits
    clock: Callable[[], int]
    heads: Heads
    audit: AccessTrail | None = None
    used: Callable[[StreamId], None] = uncounted
    vault: Vault = field(default_factory=Vault)

    def redacted(
        self,
        draft: Draft,
        *,
        user_id: str,
        now: int,
        limits: Limits | None = None,
        unscanned: Unscanned = "refuse",
        tag: Tagger | None = None,
    ) -> RedactedEvent:
        """``draft`` as it may be written to a stream of the user's.

        ``tag`` is what ``numbering`` gives for the stream, if it is to have numbers.

        Raises InvalidEvent, RedactionFailed, EventTooLarge, KeyUnavailable.
        """
        stubs, limits = unscanned == "stub", limits or self.limits
        redactor = self.redactor.stubbing if stubs else self.redactor
        tag = tag or self.tagger(user_id, now=now)
        return redact(draft, now=now, redactor=redactor, limits=limits, tag=tag)

    def tagger(self, user_id: str, *, now: int | None = None) -> Tagger:
        """What makes the user's pseudonyms, and names for ids that must go.

        The user's key is asked for at once only if the policy wants pseudonyms.
        """
        now = self.clock() if now is None else now
        key = partial(self.log.pseudonym_key, user_id, now=now)
        return tagger(key()) if self.redactor.plan.pseudonyms else partial(late, key)

    def numbering(
        self, stream: StreamId, known: Mapping[str, int], *, now: int | None = None
    ) -> Tagger:
        """What names values in this stream: where the policy says so, by numbers."""
        kinds = self.redactor.plan.numbered_kinds
        if not kinds or stream.stream != MAIN or stream.session_id in RESERVED:
            return self.tagger(stream.user_id, now=now)
        now = self.clock() if now is None else now
        key = partial(self.log.pseudonym_key, stream.user_id, now=now)
        return Numbering(key, stream.session_id, known, kinds)

    def recorded_id(self, user_id: str, given: str) -> str:
        """An id that a caller chose, as it is recorded of this user."""
        try:
            return recorded_id(self.redactor, given, self.tagger(user_id))
        except RedactionError as error:
            raise RedactionFailed("id", reason=str(error)) from None

    def decided(
        self, state: SessionState, events: Sequence[Event], *, user_id: str
    ) -> tuple[list[Event], SessionState]:
        """What ``decide`` returns, also for results of calls whose ids were redacted.

        Raises as ``decide``.
        """
        try:
            return decide(state, events)
        except InvalidEvent:
            named = [self._named(event, user_id) for event in events]
            if all(one is event for one, event in zip(named, events, strict=True)):
                raise
        return decide(state, named)

    def _named(self, event: Event, user_id: str) -> Event:
        """A call or a result under the id that is recorded of it."""
        if not isinstance(event, ToolCall | ToolResult):
            return event
        name = self.recorded_id(user_id, event.call_id)
        if name == event.call_id:
            return event
        return event.model_copy(update={"call_id": name})

    def append(self, order: Order, *, born: Head | None = None) -> Receipt:
        """Append all of the order or nothing; durable when it returns.

        ``born`` is what a new stream starts from instead of nothing (a fork).

        Raises what is named in refold.domain.errors for an append.
        """
        _check(order)
        try:
            return self._append(order, born)
        except (InvalidEvent, SessionClosed, StaleSession):
            key = order.idempotency_key
            found = None if key is None else self.log.receipt(order.stream, key)
            if found is None:
                raise
            return self._confirm(order, {}, found)

    async def append_async(self, order: Order) -> Receipt:
        """``append`` without blocking the loop; it raises the same.

        The appends of one loop to one stream take turns, for each builds on the one
        before.  Where an append cannot be prepared from what this process knows, or is
        large, all of it is done in a thread.
        """
        locks = _locks.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
        async with locks.setdefault((id(self.heads), order.stream), asyncio.Lock()):
            request = self._at_hand(order)
            if request is not None:
                outcome = await _written(self.log, request)
                if isinstance(outcome, Appended):
                    return self.acknowledged(request, outcome)
            return await asyncio.to_thread(self.append, order)

    def request(self, head: Head, order: Order) -> Append:
        """The order as the log takes it, on this head.

        Raises what ``append`` raises for an order that the head does not allow.
        """
        _check(order)
        return self._decided(head, order, {})

    def acknowledged(self, request: Append, outcome: Appended) -> Receipt:
        """The receipt of an append that took effect."""
        head = outcome.head
        self.heads.put(head)
        first = request.base.state.head_seq + 1
        return Receipt(first, head.state.head_seq, head.hash.hex())

    def _at_hand(self, order: Order) -> Append | None:
        """The append on the head that was seen last; None where a thread is needed."""
        head = self.heads.get(order.stream)
        if head is None or self.redactor.recognizer is not None or not _light(order):
            return None
        try:
            return self.request(head, order)
        except (InvalidEvent, SessionClosed, StaleSession):
            return None  # it may be allowed on the head that is stored

    def _append(self, order: Order, born: Head | None) -> Receipt:
        made: _Made = (
            {
                index: (draft.event, prepared)
                for index, (draft, prepared) in enumerate(
                    zip(order.drafts, order.prepared, strict=False)
                )
            }
            if order.prepared
            else {}
        )
        for _ in range(_OPTIMISTIC):
            request = self._request(order, made, born)
            outcome = self.log.append(request)
            if isinstance(outcome, Appended):
                return self.acknowledged(request, outcome)
            if isinstance(outcome, Duplicate):
                return self._confirm(order, made, outcome)
            head = request.base
            self.heads.correct(outcome.head)
            moved = (outcome.head.seq, outcome.head.hash) != (head.seq, head.hash)
            if moved and (order.expected_seq is not None or born is not None):
                raise _stale(order, head.seq, outcome.head.seq)
        return self._append_exclusive(order, made, born)

    def _append_exclusive(
        self, order: Order, made: _Made, born: Head | None
    ) -> Receipt:
        built: list[Append] = []

        def build(head: Head) -> Append:
            base = born if born is not None and head.seq == 0 else head
            built.append(self._decided(base, order, made))
            return built[-1]

        for _ in range(_EXCLUSIVE):
            outcome = self.log.append_exclusive(order.stream, build)
            if isinstance(outcome, Appended):
                return self.acknowledged(built[-1], outcome)
            if isinstance(outcome, Duplicate):
                return self._confirm(order, made, outcome)
        raise _stale(order, built[-1].base.seq, self.log.head(order.stream).seq)

    def _request(self, order: Order, made: _Made, born: Head | None) -> Append:
        """Decide on the head at hand; if that says no, on the one that is stored."""
        head = self.heads.get(order.stream)
        if head is not None:
            try:
                return self._decided(head, order, made)
            except (InvalidEvent, SessionClosed, StaleSession):
                pass  # it may be allowed on the head that is stored
        head = self.log.head(order.stream)
        self.heads.correct(head)
        if born is not None and head.seq == 0:
            head = born
        return self._decided(head, order, made)

    def _decided(self, head: Head, order: Order, made: _Made) -> Append:
        state, now = head.state, self.clock()
        if order.expected_seq not in (None, state.head_seq):
            raise _stale(order, order.expected_seq or 0, state.head_seq)
        given = [draft.event for draft in order.drafts]
        events, after = self.decided(state, given, user_id=order.stream.user_id)
        tag = None
        if self.redactor.numbered:
            if not order.prepared:
                made.clear()  # on another head the numbers may be others
            tag = self.numbering(order.stream, order.numbers or state.numbers, now=now)
        redacted = self._redacted(order, made, events, now, tag)
        for one, event in zip(redacted, events, strict=True):
            if one.event is not event:
                after = _evolved(state, redacted)
                break
        if tag is not None and isinstance(tag, Numbering):
            self.vault.put(order.stream, tag.values)
            after = after._replace(numbers=tag.known)
        return Append(head, after, redacted, now, order.idempotency_key)

    def _redacted(
        self,
        order: Order,
        made: _Made,
        events: Sequence[Event],
        now: int,
        tag: Tagger | None = None,
    ) -> list[RedactedEvent]:
        found = []
        for index, event in enumerate(events):
            known = made.get(index)
            if known is None or known[0] is not event:
                draft, user_id = order.drafts[index], order.stream.user_id
                if draft.event is not event:
                    draft = replace(draft, event=event)
                made[index] = known = (
                    event,
                    self.redacted(
                        draft,
                        user_id=user_id,
                        now=now,
                        unscanned=order.unscanned,
                        tag=tag,
                    ),
                )
            found.append(known[1])
        return found

    def _confirm(self, order: Order, made: _Made, found: Duplicate) -> Receipt:
        """The receipt of the first use of a key, if the content is the same."""
        first, last = found
        stored = self.log.read(order.stream, after=first - 1, upto=last)
        events = [draft.event for draft in order.drafts]
        tag = None
        if self.redactor.numbered:
            known = self.log.head(order.stream).state.numbers
            tag, made = self.numbering(order.stream, known), {}
        redacted = self._redacted(order, made, events, self.clock(), tag)
        same = len(stored) == len(redacted) and all(
            superseded(envelope, event.event)
            or same_event(envelope.payload, event.event)
            for envelope, event in zip(stored, redacted, strict=True)
        )
        if not same:
            session_id = order.stream.session_id
            raise IdempotencyConflict(session_id, first_seq=first, last_seq=last)
        return Receipt(first, last, stored[-1].hash, duplicate=True)


def _evolved(state: SessionState, redacted: Sequence[RedactedEvent]) -> SessionState:
    for one in redacted:
        if isinstance(one.event, ToolCall):
            # Its id may be another than the one it was judged by.
            accepted_next(state, one.event)
        state = evolve(state, one.event)
    return state


def _stale(order: Order, expected: int, actual: int) -> StaleSession:
    return StaleSession(order.stream.session_id, expected=expected, actual=actual)


def _check(order: Order) -> None:
    if not order.drafts:
        raise InvalidEvent("no events were given to append")
    for draft in order.drafts:
        if isinstance(draft.event, RedactionApplied):
            raise InvalidEvent("redaction_applied is recorded by store.reredact alone")
    if order.idempotency_key is not None and not encodable(order.idempotency_key):
        raise InvalidEvent("an idempotency_key must be text without half of a pair")


def same_event(stored: Event, other: Event) -> bool:
    """Whether these are one event; a result may not name the tool its call names."""
    if isinstance(stored, ToolResult) and isinstance(other, ToolResult):
        name = stored.tool_name if other.tool_name is None else other.tool_name
        other = other.model_copy(update={"tool_name": name})
    return stored.type == other.type and (
        canonical(stored.payload()) == canonical(other.payload())
    )


def superseded(stored: Envelope, other: Event) -> bool:
    """Whether the event was redacted again, so that its content proves nothing more.

    Its idempotency key, or its place in a transcript, is all that is left to tell.
    """
    return stored.type == other.type and "before" in stored.redaction


class Heads:
    """The heads this process saw last; the log's compare-and-set keeps them honest."""

    def __init__(self) -> None:
        self._heads: OrderedDict[StreamId, Head] = OrderedDict()
        self._lock = Lock()

    def get(self, stream: StreamId) -> Head | None:
        """The head that was seen last, if it was an existing stream's."""
        head = self._heads.get(stream)  # one step, which nothing can come between
        return head if head is not None and head.state.head_seq else None

    def correct(self, head: Head) -> None:
        """Remember ``head``, which was just read: whatever was known is wrong."""
        with self._lock:
            self._heads.pop(head.state.stream, None)
        self.put(head)

    def put(self, head: Head) -> None:
        """Remember ``head``, unless a newer one is known."""
        stream = head.state.stream
        with self._lock:
            known = self._heads.get(stream)
            if known is None or known.state.head_seq <= head.state.head_seq:
                self._heads[stream] = head
            self._heads.move_to_end(stream)
            if len(self._heads) > _CACHED:
                self._heads.popitem(last=False)


_ONE: Final = (Event, Draft, str, bytes, Mapping)


def drafts_of(
    events: Appendable | Sequence[Appendable], beside: _Beside
) -> tuple[Draft, ...]:
    """A draft for each event, with what is to be beside it unless it has its own.

    beside: ts, request_id, agent and meta of them all, as in ``Draft``.

    Raises InvalidEvent for what is no event, or has a ts without a time zone.
    """
    if isinstance(events, _ONE) or not isinstance(events, Iterable):
        return (_draft(events, beside),)
    return tuple([_draft(event, beside) for event in events])


def _draft(given: object, beside: _Beside) -> Draft:
    if isinstance(given, Event):
        draft = Draft(given, *beside)
    elif isinstance(given, Draft) and isinstance(given.event, Event):
        draft = replace(given, meta=Meta.of(given.meta))
    else:
        kind = type(given).__name__
        raise InvalidEvent(f"append takes events, not {kind}: refold.UserInput(text=…)")
    ts, request_id, agent = draft.ts, draft.request_id, draft.agent
    if ts is not None and not (isinstance(ts, datetime) and ts.tzinfo):
        raise InvalidEvent("ts needs a time zone: datetime.now(UTC)")
    for name, text in (("request_id", request_id), ("agent", agent)):
        if text is not None and not isinstance(text, str):
            raise InvalidEvent(f"{name} must be a text")
    return draft


async def _written(log: EventLog, request: Append) -> Outcome | None:
    """What became of it; None if it is not written in another thread."""
    loop = asyncio.get_running_loop()
    written: asyncio.Future[Outcome] = loop.create_future()

    def settle(outcome: Outcome | Exception) -> None:
        if written.done():
            return
        if isinstance(outcome, Exception):
            written.set_exception(outcome)
        else:
            written.set_result(outcome)

    def done(outcome: Outcome | Exception) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(settle, outcome)

    return await written if log.append_soon(request, done) else None


def _light(order: Order) -> bool:
    drafts = order.drafts
    parts = [(one.event, one.meta, one.meta.__pydantic_extra__) for one in drafts]
    return _characters(parts, _LIGHT) < _LIGHT


def _characters(value: Any, most: int) -> int:
    """About how many there are in ``value``, counted no further than ``most``."""
    if isinstance(value, str):
        return len(value)
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    elif hasattr(value, "__dict__"):
        parts = value.__dict__.values()
    total = 1
    for part in parts:
        if total > most:
            break
        total += _characters(part, most - total)
    return total
