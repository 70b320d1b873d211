"""The append path: decide, redact, guard, write; and again if the head moved."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from datetime import datetime
from functools import wraps
from threading import Lock, Thread
from time import perf_counter_ns
from typing import (
    Any,
    Concatenate,
    Final,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypeVar,
)
from weakref import WeakKeyDictionary, WeakValueDictionary

from refold.domain.access_log import Access, Audit, Status
from refold.domain.canonical import canonical, encodable
from refold.domain.envelope import Draft, Envelope, Meta
from refold.domain.erasure import Accesses, Retention
from refold.domain.errors import (
    Erased,
    Frozen,
    IdempotencyConflict,
    InvalidEvent,
    OnHold,
    RefoldError,
    SessionClosed,
    SessionNotFound,
    StaleSession,
)
from refold.domain.events import (
    CompactionNote,
    Event,
    RedactionApplied,
    Summary,
    ToolResult,
)
from refold.domain.ids import MAIN, RESERVED, StreamId
from refold.domain.ports import (
    Append,
    Appended,
    Conflict,
    Duplicate,
    EventLog,
    Head,
    Outcome,
)
from refold.domain.session import decide, evolve
from refold.redaction.chokepoint import RedactedEvent, redact
from refold.redaction.guard import Limits
from refold.redaction.plan import Tagger, tagger
from refold.redaction.redactor import Redactor

APPEND: Final = "session_append_event"
_DENIED: Final = (SessionNotFound, Erased, Frozen, OnHold)
_ERRORS: Final = RefoldError.__module__
_inside: ContextVar[str | None] = ContextVar("refold_audit_inside", default=None)


def enter(event: str) -> Token[str | None]:
    """What is read from here on is part of ``event``, until ``leave``."""
    return _inside.set(event)


def leave(token: Token[str | None]) -> None:
    """The end of it."""
    _inside.reset(token)


def is_inside(event: str | None = None) -> bool:
    """Whether this is part of such an event, or any: its caller is recorded."""
    inside = _inside.get()
    return inside is not None if event is None else inside == event


def failed(access: Access, error: BaseException, spent: int) -> Access:
    """The access as it failed after ``spent`` nanoseconds; no word of the error."""
    return access._replace(
        duration_us=spent // 1000,
        status="denied" if isinstance(error, _DENIED) else "error",
        error=_name(error),
    )


def _name(error: BaseException) -> str:
    """Of ours its type; the name of another's type could say anything."""
    if type(error).__module__ == _ERRORS:
        return type(error).__name__
    return "Unexpected" if isinstance(error, Exception) else "Interrupted"


COMPACTION: Final = "compaction"
MEMORY: Final = "memory_write"
P = ParamSpec("P")
W = TypeVar("W", bound="Writer")


def audited_append(
    append: Callable[Concatenate[W, Order, P], Receipt],
) -> Callable[Concatenate[W, Order, P], Receipt]:
    """Have each append recorded once, whoever asked for it."""

    @wraps(append)
    def call(writer: W, order: Order, /, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        audit = writer.audit
        if audit is None or is_inside(APPEND):
            return append(writer, order, *args, **kwargs)
        begun, token = perf_counter_ns(), enter(APPEND)
        try:
            receipt = append(writer, order, *args, **kwargs)
        except BaseException as error:
            audit.note(failed(_of(order), error, perf_counter_ns() - begun))
            raise
        finally:
            leave(token)
        audit.note(_done(order, receipt, perf_counter_ns() - begun))
        return receipt

    return call


def audited_append_async(
    append: Callable[[Writer, Order], Awaitable[Receipt]],
) -> Callable[[Writer, Order], Awaitable[Receipt]]:
    """The same for an append that is awaited."""

    @wraps(append)
    async def call(writer: Writer, order: Order) -> Receipt:
        audit = writer.audit
        if audit is None:
            return await append(writer, order)
        begun, token = perf_counter_ns(), enter(APPEND)
        try:
            receipt = await append(writer, order)
        except BaseException as error:
            audit.note(failed(_of(order), error, perf_counter_ns() - begun))
            raise
        finally:
            leave(token)
        audit.note(_done(order, receipt, perf_counter_ns() - begun))
        return receipt

    return call


def _of(order: Order, seq: int | None = None, spent: int = 0) -> Access:
    """What an append is, however it went."""
    events = [draft.event for draft in order.drafts]
    user_id, session_id, _ = order.stream
    return Access(
        _event(order, events[-1]) if events else APPEND,
        user_id,
        session_id,
        order.drafts[0].request_id if events else None,
        seq,
        tuple(dict.fromkeys([event.type for event in events])),
        spent // 1000,
        counts={"events": len(events)},
    )


def _event(order: Order, event: Event) -> str:
    """A derived stream holds summaries: of the session, or what a layer remembers."""
    if order.stream.stream != MAIN:
        kind = getattr(event, "kind", "session")
        return COMPACTION if kind == "session" else MEMORY
    return MEMORY if order.stream.session_id in RESERVED else APPEND


def _done(order: Order, receipt: Receipt, spent: int) -> Access:
    access = _of(order, receipt.last_seq, spent)
    if receipt.duplicate:
        access = access._replace(counts={**access.counts, "duplicate": 1})
    if order.stream.stream == MAIN:
        return access
    return _derived(access, order.drafts[-1].event)


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


EVERY: Final = 30.0  # seconds: what a killed process loses at most
MOST: Final = 10_000  # sessions; of more, the others are counted from the next time on

log = logging.getLogger("refold")
_Place = tuple[str, str]


class Uses:
    """Counts reads of sessions, and writes the counts to a log's ``retention``."""

    def __init__(
        self, retention: Retention, clock: Callable[[], int], *, every: float = EVERY
    ) -> None:
        self._retention, self._clock, self._every = retention, clock, every
        self._begin()

    def _begin(self) -> None:
        """Nothing is counted: at first, and in a forked child."""
        self._pid = os.getpid()
        self._lock, self._writing = Lock(), Lock()
        self._counted: dict[_Place, tuple[int, int]] = {}
        self._thread: Thread | None = None
        self._closed = threading.Event()

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
            self._retention.add_accesses(user_id, accesses)
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


_OPTIMISTIC: Final = 4
_EXCLUSIVE: Final = 16
_CACHED: Final = 10_000


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
    """

    stream: StreamId
    drafts: tuple[Draft, ...]
    idempotency_key: str | None = None
    expected_seq: int | None = None
    prepared: tuple[RedactedEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Writer:
    """Appends to any stream of a log.

    Everything goes through ``append``: it alone redacts, and the log takes nothing
    that was not redacted.
    """

    log: EventLog
    redactor: Redactor
    limits: Limits
    clock: Callable[[], int]
    heads: Heads
    audit: Audit | None = None
    uses: Uses | None = None

    def used(self, stream: StreamId) -> None:
        """The session of this stream is read by its name now."""
        if self.uses is not None:
            self.uses.note(stream)

    def redacted(
        self, draft: Draft, *, user_id: str, now: int, limits: Limits | None = None
    ) -> RedactedEvent:
        """``draft`` as it may be written to a stream of the user's.

        Raises InvalidEvent, RedactionFailed, EventTooLarge, KeyUnavailable.
        """
        tag, limits = self.tagger(user_id, now=now), limits or self.limits
        return redact(draft, now=now, redactor=self.redactor, limits=limits, tag=tag)

    def tagger(self, user_id: str, *, now: int | None = None) -> Tagger | None:
        """What makes the user's pseudonyms, if the policy wants any."""
        if not self.redactor.plan.pseudonyms:
            return None
        now = self.clock() if now is None else now
        return tagger(self.log.pseudonym_key(user_id, now=now))

    @audited_append
    def append(self, order: Order, *, born: Head | None = None) -> Receipt:
        """Append all of the order or nothing; durable when it returns.

        ``born`` is what a new stream starts from instead of nothing (a fork).

        Raises what is named in refold.domain.errors for an append.
        """
        _check(order)
        try:
            return self._append(order, born)
        except (InvalidEvent, SessionClosed, StaleSession):
            earlier = self._earlier(order)
            if earlier is None:
                raise
            return earlier

    def request(self, head: Head, order: Order) -> Append:
        """The order as the log takes it, on this head.

        Raises what ``append`` raises for an order that the head does not allow.
        """
        _check(order)
        _expect(head, order)
        return self._decided(head, order, _Redacted(self, order))

    def acknowledged(self, request: Append, outcome: Appended) -> Receipt:
        """The receipt of an append that took effect."""
        head = outcome.head
        self.heads.put(head)
        return Receipt(request.base.seq + 1, head.seq, head.hash.hex())

    def _append(self, order: Order, born: Head | None) -> Receipt:
        redacted = _Redacted(self, order)
        for _ in range(_OPTIMISTIC):
            head, request = self._request(order, redacted, born)
            outcome = self.log.append(request)
            if not isinstance(outcome, Conflict):
                return self._receipt(order, redacted, request, outcome)
            self.heads.correct(outcome.head)
            moved = (outcome.head.seq, outcome.head.hash) != (head.seq, head.hash)
            if moved and (order.expected_seq is not None or born is not None):
                raise StaleSession(
                    order.stream.session_id, expected=head.seq, actual=outcome.head.seq
                )
        return self._append_exclusive(order, redacted)

    def _append_exclusive(self, order: Order, redacted: _Redacted) -> Receipt:
        made: list[Append] = []

        def build(head: Head) -> Append:
            _expect(head, order)
            made.append(self._decided(head, order, redacted))
            return made[-1]

        for _ in range(_EXCLUSIVE):
            outcome = self.log.append_exclusive(order.stream, build)
            if not isinstance(outcome, Conflict):
                return self._receipt(order, redacted, made[-1], outcome)
        raise StaleSession(
            order.stream.session_id,
            expected=made[-1].base.seq,
            actual=self.log.head(order.stream).seq,
        )

    def _request(
        self, order: Order, redacted: _Redacted, born: Head | None
    ) -> tuple[Head, Append]:
        """Decide on the head at hand; if that says no, on the one that is stored."""
        head = self.heads.get(order.stream)
        if head is not None:
            try:
                _expect(head, order)
                return head, self._decided(head, order, redacted)
            except (InvalidEvent, SessionClosed, StaleSession):
                pass
        head = self.log.head(order.stream)
        self.heads.correct(head)
        _expect(head, order)
        if born is not None and head.seq == 0:
            head = born
        return head, self._decided(head, order, redacted)

    def _decided(self, head: Head, order: Order, redacted: _Redacted) -> Append:
        now = self.clock()
        decided = decide(head.state, [draft.event for draft in order.drafts])
        events = redacted.of(decided, now)
        state = head.state
        for event in events:
            state = evolve(state, event.event)
        return Append(head, state, events, now, order.idempotency_key)

    def _receipt(
        self, order: Order, redacted: _Redacted, request: Append, outcome: Outcome
    ) -> Receipt:
        match outcome:
            case Appended():
                return self.acknowledged(request, outcome)
            case Duplicate() as earlier:
                return self._confirm(order, redacted, earlier)
            case Conflict():
                raise AssertionError("a conflict has no receipt")

    def _earlier(self, order: Order) -> Receipt | None:
        if order.idempotency_key is None:
            return None
        found = self.log.receipt(order.stream, order.idempotency_key)
        return self._confirm(order, _Redacted(self, order), found) if found else None

    def _confirm(self, order: Order, redacted: _Redacted, found: Duplicate) -> Receipt:
        """The receipt of the first use of a key, if the content is the same."""
        first, last = found
        stored = self.log.read(order.stream, after=first - 1, upto=last)
        events = redacted.of([draft.event for draft in order.drafts], self.clock())
        same = len(stored) == len(events) and all(
            superseded(envelope, event.event)
            or same_event(envelope.payload, event.event)
            for envelope, event in zip(stored, events, strict=True)
        )
        if not same:
            session_id = order.stream.session_id
            raise IdempotencyConflict(session_id, first_seq=first, last_seq=last)
        return Receipt(first, last, stored[-1].hash, duplicate=True)


def _check(order: Order) -> None:
    if not order.drafts:
        raise InvalidEvent("there is nothing to append")
    if any(isinstance(draft.event, RedactionApplied) for draft in order.drafts):
        raise InvalidEvent("redaction_applied is recorded by store.reredact alone")
    if order.idempotency_key is not None and not encodable(order.idempotency_key):
        raise InvalidEvent("an idempotency_key must be text without half of a pair")


def _expect(head: Head, order: Order) -> None:
    if order.expected_seq is not None and head.seq != order.expected_seq:
        raise StaleSession(
            order.stream.session_id, expected=order.expected_seq, actual=head.seq
        )


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


class _Redacted:
    """The redacted events of one order, each redacted once."""

    def __init__(self, writer: Writer, order: Order) -> None:
        self._writer, self._order = writer, order
        pairs = zip(order.drafts, order.prepared, strict=False)
        self._made = {
            index: (draft.event, redacted)
            for index, (draft, redacted) in enumerate(pairs)
        }

    def of(self, events: Sequence[Event], now: int) -> tuple[RedactedEvent, ...]:
        return tuple(self._one(index, event, now) for index, event in enumerate(events))

    def _one(self, index: int, event: Event, now: int) -> RedactedEvent:
        known = self._made.get(index)
        if known is None or known[0] is not event:
            draft = self._order.drafts[index]
            if draft.event is not event:
                draft = replace(draft, event=event)
            user_id = self._order.stream.user_id
            clean = self._writer.redacted(draft, user_id=user_id, now=now)
            self._made[index] = known = (event, clean)
        return known[1]


class Heads:
    """The heads this process saw last; the log's compare-and-set keeps them honest."""

    def __init__(self) -> None:
        self._heads: OrderedDict[StreamId, Head] = OrderedDict()
        self._lock = Lock()

    def get(self, stream: StreamId) -> Head | None:
        """The head that was seen last, if it was an existing stream's."""
        with self._lock:
            head = self._heads.get(stream)
            return head if head is not None and head.seq else None

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
            if known is None or known.seq <= head.seq:
                self._heads[stream] = head
            self._heads.move_to_end(stream)
            while len(self._heads) > _CACHED:
                self._heads.popitem(last=False)


Appendable: TypeAlias = Event | Draft


class Beside(NamedTuple):
    """What all events of one append have beside them, as in ``Draft``."""

    ts: datetime | None
    request_id: str | None
    agent: str | None
    meta: Meta


def drafts_of(
    events: Appendable | Sequence[Appendable], beside: Beside
) -> tuple[Draft, ...]:
    """A draft for each event, with what ``beside`` has beside it unless it has its own.

    Raises InvalidEvent for what is no event, or has a ts without a time zone.
    """
    given = [events] if isinstance(events, Event | Draft) else _listed(events)
    return tuple(_draft(event, beside) for event in given)


def _listed(events: object) -> list[Any]:
    if isinstance(events, str | bytes | Mapping) or not isinstance(events, Iterable):
        raise _no_event(events)
    return list(events)


def _no_event(given: object) -> InvalidEvent:
    return InvalidEvent(
        f"append takes events, not {type(given).__name__}: refold.UserInput(text=…)"
    )


def _draft(given: Appendable, beside: Beside) -> Draft:
    if isinstance(given, Draft) and isinstance(given.event, Event):
        draft = replace(given, meta=Meta.of(given.meta))
    elif isinstance(given, Event):
        draft = Draft(given, *beside)
    else:
        raise _no_event(given)
    if draft.ts is not None and not (
        isinstance(draft.ts, datetime) and draft.ts.tzinfo
    ):
        raise InvalidEvent("ts needs a time zone: datetime.now(UTC)")
    for name in ("request_id", "agent"):
        if not isinstance(getattr(draft, name), str | None):
            raise InvalidEvent(f"{name} must be a text")
    return draft


# So many characters are redacted and sealed in the loop; it takes well under 1 ms.
_LIGHT: Final = 16_384
_Locks = WeakValueDictionary[tuple[int, StreamId], asyncio.Lock]
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, _Locks] = WeakKeyDictionary()


@audited_append_async
async def append(writer: Writer, order: Order) -> Receipt:
    """``writer.append`` without blocking the loop; it raises the same.

    The appends of one loop to one stream take turns, for each builds on the one before.
    Where an append cannot be prepared from what this process knows, or is large, all of
    it is done in a thread.
    """
    async with _turn(writer, order.stream):
        request = _prepared(writer, order)
        if request is not None:
            outcome = await _written(writer.log, request)
            if isinstance(outcome, Appended):
                return writer.acknowledged(request, outcome)
        return await asyncio.to_thread(writer.append, order)


def _turn(writer: Writer, stream: StreamId) -> asyncio.Lock:
    locks = _locks.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return locks.setdefault((id(writer.heads), stream), asyncio.Lock())


def _prepared(writer: Writer, order: Order) -> Append | None:
    """The append on the head that was seen last, or None if a thread must see to it."""
    head = writer.heads.get(order.stream)
    if head is None or writer.redactor.recognizer is not None or not _light(order):
        return None
    try:
        return writer.request(head, order)
    except (InvalidEvent, SessionClosed, StaleSession):
        return None  # it may be allowed on the head that is stored


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
    left = _LIGHT
    for draft in order.drafts:
        beside = (draft.meta.__dict__, draft.meta.__pydantic_extra__)
        left -= _characters((draft.event.__dict__, *beside), left)
    return left > 0


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
