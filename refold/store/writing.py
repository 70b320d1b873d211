"""The append path: decide, redact, guard, write; and again if the head moved."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final, NamedTuple

from refold.domain.audit import Audit
from refold.domain.canonical import canonical, encodable
from refold.domain.envelope import Envelope
from refold.domain.errors import (
    IdempotencyConflict,
    InvalidEvent,
    SessionClosed,
    StaleSession,
)
from refold.domain.events import Event, RedactionApplied, ToolResult
from refold.domain.ids import StreamId
from refold.domain.ports import (
    Append,
    Appended,
    Conflict,
    Duplicate,
    EventLog,
    Head,
    Outcome,
)
from refold.domain.record import Draft
from refold.domain.session import decide, evolve
from refold.redaction.chokepoint import RedactedEvent, redact
from refold.redaction.engine import Redactor
from refold.redaction.guard import Limits
from refold.redaction.plan import Tagger
from refold.redaction.pseudonym import tagger
from refold.store.audited_appends import audited_append
from refold.store.using import Uses

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
