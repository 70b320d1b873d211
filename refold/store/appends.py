"""The append path: decide, redact, guard, write; and again if the head moved."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from refold.domain import errors, events, ports
from refold.domain.access_log import AccessTrail
from refold.domain.canonical import canonical, encodable
from refold.domain.clocks import StoreTime
from refold.domain.envelope import (
    LATER,
    NO_META,
    REPAIRED,
    Blob,
    Draft,
    Envelope,
    Meta,
    Native,
    with_id,
)
from refold.domain.errors import InvalidEvent, SessionClosed, StaleSession
from refold.domain.events import Event, Item, JsonObject, ToolCall, ToolResult
from refold.domain.ids import MAIN, RESERVED, StreamId
from refold.domain.locks import forkable_lock
from refold.domain.session import (
    SessionState,
    accepted_next,
    decide,
    decide_with_own_ids,
    evolve,
    repeats_id,
    with_own_id,
    with_recorded_id,
)
from refold.projections.items import (
    changed_texts,
    replaced,
    skeleton,
    whole,
    without_bytes,
)
from refold.redaction import chokepoint
from refold.redaction.chokepoint import JudgedItem, RedactedEvent, Seen
from refold.redaction.guard import Limits, TooLarge, guard, restored
from refold.redaction.plan import Tagger, late, tagger
from refold.redaction.redactor import RedactionError, Redactor
from refold.redaction.types import UNSCANNED
from refold.store.vault import Numbering, Vault, kept_values, unnumbered

_OPTIMISTIC: Final = 4
_EXCLUSIVE: Final = 16
_CACHED: Final = 10_000
_FEW: Final = 8  # drafts that are decided before it is asked whether they are known

# The redacted events of an order, with what was redacted: each is redacted once.
_Made: TypeAlias = dict[int, tuple[Event, RedactedEvent]]
Appendable: TypeAlias = Event | Draft
# A text over the budget of work refuses the append, or a stub is stored for it.
Unscanned: TypeAlias = Literal["refuse", "stub"]
DraftFields: TypeAlias = tuple[datetime | None, str | None, str | None, Meta]
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
    ``plain``: each draft is of one event, and has no key.
    """

    stream: StreamId
    drafts: tuple[Draft, ...]
    idempotency_key: str | None = None
    expected_seq: int | None = None
    prepared: tuple[RedactedEvent, ...] = ()
    unscanned: Unscanned = "refuse"
    numbers: Mapping[str, int] | None = None
    plain: bool = True


def uncounted(stream: StreamId) -> None:
    """Reads are not counted."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Appends to any stream of a log.

    Everything goes through ``append``: it alone redacts, and the log takes nothing
    that was not redacted.

    clock: the wall clock of this machine, which says when events happened.
    time:  the time of the store, by which what is kept ages.
    audit: is told of each use of what has this writer.
    used:  is told of each session that is read by its name.
    vault: keeps in memory what numbered placeholders stand for.
    """

    log: ports.EventLog
    redactor: Redactor
    limits: Limits
    clock: Callable[[], int]
    heads: Heads
    time: StoreTime
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
        return chokepoint.redact(
            draft, now=now, redactor=redactor, limits=limits, tag=tag
        )

    def tagger(self, user_id: str, *, now: int | None = None) -> Tagger:
        """What makes pseudonyms and names for ids; the user's key is got if needed."""
        now = self.clock() if now is None else now
        key = partial(self.log.pseudonym_key, user_id, now=now)
        return tagger(key()) if self.redactor.plan.pseudonyms else partial(late, key)

    def numbering(
        self,
        stream: StreamId,
        known: Mapping[str, int],
        *,
        now: int | None = None,
        kind: type[Numbering] = Numbering,
    ) -> Tagger:
        """What names values in this stream: where the policy says so, by numbers."""
        kinds = self.redactor.plan.numbered_kinds
        if not kinds or stream.stream != MAIN or stream.session_id in RESERVED:
            return self.tagger(stream.user_id, now=now)
        now = self.clock() if now is None else now
        key = partial(self.log.pseudonym_key, stream.user_id, now=now)
        return kind(key, stream.session_id, known, kinds)

    def recorded_id(self, user_id: str, given: str) -> str:
        """An id that a caller chose, as it is recorded of this user."""
        try:
            return chokepoint.recorded_id(self.redactor, given, self.tagger(user_id))
        except RedactionError as error:
            raise errors.RedactionFailed("id", reason=str(error)) from None

    def decided(
        self, state: SessionState, events: Sequence[Event], *, user_id: str
    ) -> tuple[list[Event], SessionState]:
        """What ``decide`` gives and raises, with calls under the ids that are recorded.

        Those are names of ids in which something is redacted, and ids of their own for
        calls that a provider gave one id.
        """
        if not repeats_id(state):
            try:
                return decide(state, events)
            except InvalidEvent:
                pass  # the ids that are recorded of them may be other ones
        named = [self._named(event, user_id) for event in events]
        return decide_with_own_ids(state, named)

    def _named(self, event: Event, user_id: str) -> Event:
        """A call or a result under the id that is recorded of its own id."""
        if not isinstance(event, ToolCall | ToolResult):
            return event
        name = self.recorded_id(user_id, event.call_id)
        if name == event.call_id:
            return event
        return event.model_copy(update={"call_id": name})

    def append(self, order: Order, *, born: ports.Head | None = None) -> Receipt:
        """Append all of the order or nothing; durable when it returns.

        ``born`` is what a new stream starts from instead of nothing (a fork).

        Raises what is named in refold.domain.errors for an append.
        """
        order = _checked(order)
        try:
            return self._append(order, born)
        except _AllKnown as known:
            first, last = known.args[0]
            (envelope,) = self.log.read(order.stream, after=last - 1, upto=last)
            return Receipt(first, last, envelope.hash, duplicate=True)
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
                if isinstance(outcome, ports.Appended):
                    return self.acknowledged(request, outcome)
            return await asyncio.to_thread(self.append, order)

    def request(self, head: ports.Head, order: Order) -> ports.Append:
        """The order as the log takes it, on this head; raises as ``append`` does."""
        return self._decided(head, _checked(order), {})

    def acknowledged(self, request: ports.Append, outcome: ports.Appended) -> Receipt:
        """The receipt of an append that took effect."""
        head = outcome.head
        self.heads.put(head)
        first = request.base.state.head_seq + 1
        return Receipt(first, head.state.head_seq, head.hash.hex())

    def _at_hand(self, order: Order) -> ports.Append | None:
        """The append on the head that was seen last; None where a thread is needed."""
        order = _checked(order)
        head = self.heads.get(order.stream)
        plain = order.plain and self.redactor.recognizer is None
        drafts = order.drafts
        parts = [(one.event, one.meta, one.meta.__pydantic_extra__) for one in drafts]
        if head is None or not plain or _characters(parts, _LIGHT) >= _LIGHT:
            return None
        try:
            return self._decided(head, order, {})
        except (InvalidEvent, SessionClosed, StaleSession):
            return None  # it may be allowed on the head that is stored

    def _append(self, order: Order, born: ports.Head | None) -> Receipt:
        made: _Made = {}
        for draft, done in zip(order.drafts, order.prepared, strict=False):
            made[len(made)] = (draft.event, done)
        asked = order
        for attempt in range(_OPTIMISTIC):
            order, request = self._request(asked, made, born, soon=not attempt)
            outcome = self.log.append(request)
            if isinstance(outcome, ports.Appended):
                return self.acknowledged(request, outcome)
            if isinstance(outcome, ports.Duplicate):
                return self._confirm(order, made, outcome)
            head = request.base
            self.heads.correct(outcome.head)
            moved = (outcome.head.seq, outcome.head.hash) != (head.seq, head.hash)
            if moved and (order.expected_seq is not None or born is not None):
                raise _stale(order, head.seq, outcome.head.seq)
        return self._append_exclusive(asked, made, born)

    def _unknown(self, order: Order, *, few: int = 0) -> Order:
        """The order without what its keys say was appended; raises _AllKnown.

        A head to decide on is read before: what others append after that moves it.
        If its drafts are ``few``, it is not asked.
        """
        if order.plain:
            return order
        keys = [draft.key for draft in order.drafts if draft.key]
        asked = len(order.drafts) > few
        known = self.log.known(order.stream, keys) if asked else {}
        left, seen = list[Draft](), {*known}
        for draft in order.drafts:
            if draft.key is None or draft.key not in seen:
                left.append(draft)
            seen.add(draft.key or "")
        if not left:
            firsts, lasts = zip(*known.values(), strict=True)
            raise _AllKnown((min(firsts), max(lasts)))
        return order._replace(drafts=tuple(left))

    def _append_exclusive(
        self, order: Order, made: _Made, born: ports.Head | None
    ) -> Receipt:
        built: list[ports.Append] = []

        def build(head: ports.Head) -> ports.Append:
            base = born if born is not None and head.seq == 0 else head
            built.append(self._decided(base, self._unknown(order), made))
            return built[-1]

        for _ in range(_EXCLUSIVE):
            outcome = self.log.append_exclusive(order.stream, build)
            if isinstance(outcome, ports.Appended):
                return self.acknowledged(built[-1], outcome)
            if isinstance(outcome, ports.Duplicate):
                return self._confirm(order, made, outcome)
        raise _stale(order, built[-1].base.seq, self.log.head(order.stream).seq)

    def _request(
        self, asked: Order, made: _Made, born: ports.Head | None, *, soon: bool
    ) -> tuple[Order, ports.Append]:
        """Decide on the head at hand; if that says no, on the one that is stored."""
        head = self.heads.get(asked.stream)
        if head is not None:
            try:
                # The log refuses drafts that it knows, and is asked which then.
                order = self._unknown(asked, few=_FEW if soon else 0)
                return order, self._decided(head, order, made)
            except (InvalidEvent, SessionClosed, StaleSession):
                pass  # it may be allowed on the head that is stored
        head = self.log.head(asked.stream)
        self.heads.correct(head)
        if born is not None and head.seq == 0:
            head = born
        order = self._unknown(asked)
        return order, self._decided(head, order, made)

    def _decided(self, head: ports.Head, order: Order, made: _Made) -> ports.Append:
        state, now = head.state, self.clock()
        if order.expected_seq not in (None, state.head_seq):
            raise _stale(order, order.expected_seq or 0, state.head_seq)
        tag = None
        if self.redactor.numbered:
            if not order.prepared:
                made.clear()  # on another head the numbers may be others
            tag = self.numbering(order.stream, order.numbers or state.numbers, now=now)
        keys: Sequence[ports.Keyed] = ()
        items: Mapping[int, JsonObject] = {}
        if not order.plain:
            if any(draft.native is not None for draft in order.drafts):
                made.clear()  # as another state is, so are the events of an item
            order, keys, items = self._seen(state, order, tag)
        given = [draft.event for draft in order.drafts]
        events, after = self.decided(state, given, user_id=order.stream.user_id)
        redacted = self._redacted(order, made, events, now, tag)
        if items:
            self._agree(order, items, events, redacted, tag)
        for one, event in zip(redacted, events, strict=True):
            if one.event is not event:
                after = _evolved(state, redacted)
                break
        if tag is not None and isinstance(tag, Numbering):
            self.vault.put(order.stream, tag.values)
            after = after._replace(numbers=tag.known)
            plan = self.redactor.plan
            if (plan.kept or after.kept) and not after.closed:
                kept = kept_values(after.kept, tag.values, plan, self.time.now())
                after = after._replace(kept=kept)
        if keys:
            keys = [one for one in keys if one.key]
        return ports.Append(
            base=head,
            state=after,
            events=redacted,
            now=self.time.stamp(now),
            idempotency_key=order.idempotency_key,
            keys=keys,
        )

    def item(
        self, native: Native, tag: Tagger, unscanned: Unscanned = "refuse"
    ) -> tuple[JudgedItem, tuple[Blob, ...]]:
        """An item to write, and its bytes; raises InvalidEvent, RedactionFailed."""
        redactor = self.redactor.stubbing if unscanned == "stub" else self.redactor
        if native.judged is not None and not redactor.numbered:
            known, opaque = native.judged
            if again := known.under(redactor, native):
                return again, opaque
        held: list[bytes] = []
        try:
            value = without_bytes(native.value, held)
        except RecursionError:
            raise InvalidEvent("an item is nested too deeply: flatten it") from None
        opaque = tuple(Blob(sha256(data).hexdigest(), data) for data in held)
        record = {"format": native.format.name, "kind": native.kind, "value": value}
        if native.id is not None:
            record["id"] = native.id
        if opaque:
            record["bytes"] = [blob.sha256 for blob in opaque]
        item = JudgedItem(redactor, record, tag)
        for _ in opaque:
            item.found.add(UNSCANNED)
        return item, opaque

    def judged(
        self, stream: StreamId, natives: Iterable[Native]
    ) -> Iterator[tuple[Native, Any]]:
        """Each as it would be redacted and read; a stub for what is too much work."""
        tag = self.tagger(stream.user_id)
        if self.redactor.numbered:
            tag = self.numbering(stream, self.log.head(stream).state.numbers)
        for native in natives:
            item, opaque = self.item(native, tag, "stub")
            clean = item.record
            if isinstance(tag, Numbering):
                clean = cast(JsonObject, tag.told(clean, ours=False))
            held = {blob.sha256: blob.data for blob in opaque}
            yield replace(native, judged=(item, opaque)), whole(clean, (), held.get)

    def _seen(
        self, state: SessionState, order: Order, tag: Tagger | None
    ) -> tuple[Order, list[ports.Keyed], dict[int, JsonObject]]:
        """The order with its items' events, whose they are, and the redacted items."""
        tag = tag or self.tagger(order.stream.user_id)
        drafts, places = list[Draft](), list[ports.Keyed]()
        items: dict[int, JsonObject] = {}
        for draft in order.drafts:
            new: Sequence[Draft] = [draft]
            if draft.native is not None:
                item, opaque = self.item(draft.native, tag, order.unscanned)
                items[len(drafts)] = item.record
                first, *more = _typed(state, draft, item, self.limits)
                payloads = [one.event.payload() for one in (first, *more)]
                meta = first.meta.warned(REPAIRED) if item.repaired else first.meta
                meta = _beside(meta, item.record, payloads, self.limits)
                new = [replace(first, meta=meta, opaque=opaque), *more]
            places.append(ports.Keyed(draft.key or "", len(drafts), len(new)))
            for one in new:
                state = evolve(state, one.event)
            drafts += new
        return order._replace(drafts=tuple(drafts)), places, items

    def _agree(
        self,
        order: Order,
        items: Mapping[int, JsonObject],
        events: Sequence[Event],
        redacted: list[RedactedEvent],
        tag: Tagger | None,
    ) -> None:
        """Have an item say what its events say, where more was found in these."""
        user_id, unscanned = order.stream.user_id, order.unscanned
        for index, clean in items.items():
            draft = order.drafts[index]
            native: Any = draft.meta.native
            places = range(index, index + native["n"])
            if all(redacted[at].event is events[at] for at in places):
                continue
            payloads, said = list[JsonObject](), dict[str, str]()
            for at in places:
                before = order.drafts[at].event.payload()
                blobs = {blob.sha256: blob.data for blob in redacted[at].blobs}
                after = restored(redacted[at].event.payload(), blobs.get)
                pairs = [*changed_texts(before, after)] if after != before else []
                new = {b: a for b, a in pairs if unnumbered(b) != unnumbered(a)}
                payloads.append(after if new else before)
                said |= new
            if said:
                again = {**clean, "value": replaced(clean["value"], said)}
                meta = _beside(draft.meta, again, payloads, self.limits)
                draft, now = replace(draft, meta=meta), self.clock()
                redacted[index] = self.redacted(
                    draft, user_id=user_id, now=now, unscanned=unscanned, tag=tag
                )

    def _redacted(
        self,
        order: Order,
        made: _Made,
        events: Sequence[Event],
        now: int,
        tag: Tagger | None = None,
    ) -> list[RedactedEvent]:
        found, user_id, unscanned = [], order.stream.user_id, order.unscanned
        for index, event in enumerate(events):
            known = made.get(index)
            if known is None or known[0] is not event:
                draft = order.drafts[index]
                if draft.event is not event:
                    draft = self._renamed(draft, event, user_id)
                one = self.redacted(
                    draft, user_id=user_id, now=now, unscanned=unscanned, tag=tag
                )
                made[index] = known = (event, one)
            found.append(known[1])
        return found

    def _renamed(self, draft: Draft, event: Event, user_id: str) -> Draft:
        """The draft of an event that was decided on under another id, or tool."""
        given = draft.event
        ids = (ToolCall, ToolResult)
        if isinstance(given, ids) and isinstance(event, ids):
            name = given.call_id
            if event.call_id != name:
                name = self.recorded_id(user_id, name)
            named = given.model_copy(update={"call_id": name})
            draft = with_id(replace(draft, event=named), event)
        return replace(draft, event=event)

    def _confirm(self, order: Order, made: _Made, found: ports.Duplicate) -> Receipt:
        """The receipt of the first use of a key, if the content is the same."""
        first, last = found
        stored = self.log.read(order.stream, after=first - 1, upto=last)
        events = [draft.event for draft in order.drafts]
        tag = None
        if self.redactor.numbered:
            known = self.log.head(order.stream).state.numbers
            tag, made = self.numbering(order.stream, known), {}
        redacted = self._redacted(order, made, events, self.clock(), tag)
        if len(stored) != len(redacted) or not all(
            superseded(envelope, one.event) or same_event(given(envelope), one.event)
            for envelope, one in zip(stored, redacted, strict=True)
        ):
            session_id = order.stream.session_id
            raise errors.IdempotencyConflict(session_id, first_seq=first, last_seq=last)
        return Receipt(first, last, stored[-1].hash, duplicate=True)


# What of an event may be one text instead of many pieces.
_PARTED: Final = {ToolResult: "content", ToolCall: "arguments", Item: "value"}
_OFTEN: Final = 8  # times a view says the same: no event of so small an item is large


def _typed(
    state: SessionState, draft: Draft, item: JudgedItem, limits: Limits
) -> list[Seen]:
    """The events that its format sees in an item; one of its own if there is none."""
    native: Any = draft.native
    kind, value = native.kind, item.record["value"]
    found: list[Seen] = []
    begun = state.head_seq
    try:
        for one in native.format.view(kind, value, state.open_calls):
            told = one if isinstance(one, Draft) else Draft(one)
            told = _with_own_id(state, begun, told, item)
            event = accepted_next(state, _within(told.event, limits, item))
            match told.event, event:
                case ToolResult(tool_name=None), ToolResult(tool_name=str(name)):
                    item.hears(name)  # as its call has it, which is in the log
            state = evolve(state, event)
            found.append(_one_of(draft, told, event, item))
    except (InvalidEvent, ValueError, TypeError, LookupError, AttributeError):
        found = []
    if found:
        return found
    event = Item(format=native.format.name, kind=kind, value=value)
    event = _within(event, limits, item)
    return [_one_of(draft, draft, event, item)]


def _with_own_id(
    state: SessionState, begun: int, draft: Draft, item: JudgedItem
) -> Draft:
    """The draft under an id of its own if two calls of an item have one id.

    begun: the seq before the item.
    """
    event = draft.event
    apart = event
    if isinstance(event, ToolCall):
        open_call = state.open_calls.get(event.call_id)
        if open_call is not None and open_call.seq > begun:
            apart = with_own_id(state, event)
    elif isinstance(event, ToolResult) and repeats_id(state):
        apart = with_recorded_id(state, event)
    if apart is event or not isinstance(apart, ToolCall | ToolResult):
        return draft
    item.hears(apart.call_id)
    return with_id(draft, apart)


def _one_of(draft: Draft, told: Draft, event: Event, item: JudgedItem) -> Seen:
    """The draft of an item's event; what it does not say is said of the item."""
    return Seen(
        event,
        told.ts or draft.ts,
        told.request_id or draft.request_id,
        told.agent or draft.agent,
        draft.meta if told.meta is NO_META else told.meta,
        item=item,
    )


def _within(event: Event, limits: Limits, item: JudgedItem) -> Event:
    """The event; as one text what would be too large in many small pieces."""
    if item.size * _OFTEN < limits.event_bytes:
        return event
    payload = event.payload()
    if len(canonical(payload)) <= limits.event_bytes:
        return event
    try:
        guard(payload, limits)
    except TooLarge:
        return as_text(event) or event
    return event


def as_text(event: Event) -> Event | None:
    """The event with what it holds in one text, which a blob can take; None if none."""
    for kind, name in _PARTED.items():
        held = getattr(event, name, None) if isinstance(event, kind) else None
        if isinstance(held, list | dict):
            return event.model_copy(update={name: canonical(held).decode()})
    return None


def _beside(
    meta: Meta, clean: JsonObject, payloads: Sequence[JsonObject], limits: Limits
) -> Meta:
    """``meta`` with what is left of the item beside its events."""
    left = skeleton(clean["value"], payloads, most=limits.event_bytes // 2)
    native = {**clean, "value": left, "n": len(payloads)}
    return meta.model_copy(update={"native": native})


def _evolved(state: SessionState, redacted: Sequence[RedactedEvent]) -> SessionState:
    for one in redacted:
        if isinstance(one.event, ToolCall):
            # Its id may be another than the one it was judged by.
            accepted_next(state, one.event)
        state = evolve(state, one.event)
    return state


class _AllKnown(Exception):
    """Each draft was appended before, under its key: at these seqs."""


def _stale(order: Order, expected: int, actual: int) -> StaleSession:
    return StaleSession(order.stream.session_id, expected=expected, actual=actual)


def _checked(order: Order) -> Order:
    if not order.drafts:
        raise InvalidEvent("no events were given to append")
    for draft in order.drafts:
        if isinstance(draft.event, events.RedactionApplied):
            raise InvalidEvent("redaction_applied is recorded by store.reredact alone")
        if draft.native or draft.key or draft.event is LATER:
            order = order._replace(plain=False)
            if order.idempotency_key is not None:
                why = "give drafts keys, or all of the append one: not both"
                raise InvalidEvent(why)
            if draft.event is LATER and draft.native is None:
                raise InvalidEvent("a draft is of an event, or of a native item")
            if draft.key is not None and not encodable(draft.key):
                raise InvalidEvent("a key must be text without half of a pair")
    if order.idempotency_key is not None and not encodable(order.idempotency_key):
        raise InvalidEvent("an idempotency_key must be text without half of a pair")
    return order


def same_event(stored: Event, other: Event) -> bool:
    """Whether these are one event; a result may not name the tool its call names."""
    if isinstance(stored, ToolResult) and isinstance(other, ToolResult):
        name = stored.tool_name if other.tool_name is None else other.tool_name
        other = other.model_copy(update={"tool_name": name})
    return stored.type == other.type and (
        canonical(stored.payload()) == canonical(other.payload())
    )


def given(stored: Envelope) -> Event:
    """The event as it was given: a call under the id that its provider used."""
    event, call_id = stored.payload, stored.meta.call_id
    if call_id is None or not isinstance(event, ToolCall | ToolResult):
        return event
    return event.model_copy(update={"call_id": call_id})


def superseded(stored: Envelope, other: Event) -> bool:
    """Whether the event was redacted again, so that its content proves nothing more.

    Its idempotency key, or its place in a transcript, is all that is left to tell.
    """
    return stored.type == other.type and "before" in stored.redaction


class Heads:
    """The heads this process saw last; the log's compare-and-set keeps them honest."""

    def __init__(self) -> None:
        self._heads: OrderedDict[StreamId, ports.Head] = OrderedDict()
        self._lock = forkable_lock()
        self._waiting: dict[StreamId, list[Callable[[], object]]] = {}

    @contextmanager
    def heard(self, stream: StreamId, tell: Callable[[], object]) -> Iterator[None]:
        """Have ``tell`` called, in any thread, when a head of the stream comes in."""
        with self._lock:
            self._waiting.setdefault(stream, []).append(tell)
        try:
            yield
        finally:
            with self._lock:
                self._waiting[stream].remove(tell)
                if not self._waiting[stream]:
                    del self._waiting[stream]

    def get(self, stream: StreamId) -> ports.Head | None:
        """The head that was seen last, if it was an existing stream's."""
        head = self._heads.get(stream)  # one step, which nothing can come between
        return head if head is not None and head.state.head_seq else None

    def correct(self, head: ports.Head) -> None:
        """Remember ``head``, which was just read: whatever was known is wrong."""
        with self._lock:
            self._heads.pop(head.state.stream, None)
        self.put(head)

    def put(self, head: ports.Head) -> None:
        """Remember ``head``, unless a newer one is known."""
        stream = head.state.stream
        with self._lock:
            known = self._heads.get(stream)
            if known is None or known.state.head_seq <= head.state.head_seq:
                self._heads[stream] = head
            self._heads.move_to_end(stream)
            if len(self._heads) > _CACHED:
                self._heads.popitem(last=False)
            told = [*self._waiting.get(stream, ())] if self._waiting else ()
        for tell in told:
            tell()


_ONE: Final = (Event, Draft, str, bytes, Mapping)


def draft_fields(
    ts: datetime | None,
    request_id: str | None,
    agent: str | None,
    meta: Meta | Mapping[str, object] | None,
) -> DraftFields:
    """The fields of a ``Draft`` that all events of one append share."""
    return ts, request_id, agent, Meta.of(meta) if meta else NO_META


def drafts_of(
    events: Appendable | Sequence[Appendable], fields: DraftFields
) -> tuple[Draft, ...]:
    """Return a draft for each event.  A value that is a draft keeps its own fields.

    Raises InvalidEvent for a value that is no event, and for a ts without a time zone.
    """
    if isinstance(events, _ONE) or not isinstance(events, Iterable):
        return (_draft(events, fields),)
    return tuple([_draft(event, fields) for event in events])


def _draft(given: object, fields: DraftFields) -> Draft:
    if isinstance(given, Event):
        draft = Draft(given, *fields)
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


async def _written(log: ports.EventLog, request: ports.Append) -> ports.Outcome | None:
    """What became of it; None if it is not written in another thread."""
    loop = asyncio.get_running_loop()
    written: asyncio.Future[ports.Outcome] = loop.create_future()

    def settle(outcome: ports.Outcome | Exception) -> None:
        if written.done():
            return
        if isinstance(outcome, Exception):
            written.set_exception(outcome)
        else:
            written.set_result(outcome)

    def done(outcome: ports.Outcome | Exception) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(settle, outcome)

    return await written if log.append_soon(request, done) else None


def _characters(value: Any, most: int) -> int:
    """About how many there are in ``value``, counted no further than ``most``."""
    if isinstance(value, str):
        return len(value)
    parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    total = 1
    for part in value if isinstance(value, list | tuple) else parts.values():
        if total > most:
            break
        total += _characters(part, most - total)
    return total
