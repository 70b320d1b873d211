"""The append path: decide, redact, guard, write; again if the head has moved."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from refold.domain import errors, events, ports
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
from refold.redaction.chokepoint import ItemDraft, JudgedItem, RedactedEvent
from refold.redaction.guard import Limits, TooLarge, guard, restored
from refold.redaction.learned import Learned
from refold.redaction.plan import Tagger, late, tagger
from refold.redaction.redactor import RedactionError, Redactor
from refold.redaction.types import UNSCANNED
from refold.store.vault import Numbering, Vault, kept_values, unnumbered

if TYPE_CHECKING:
    import asyncio

    from refold.domain.access_log import AccessTrail

# Attempts that decide on a head read before; then attempts that lock the stream.
_OPTIMISTIC: Final = 4
_EXCLUSIVE: Final = 16
# The most streams whose heads a process remembers.
_CACHED: Final = 10_000
# With this many drafts or fewer, the first attempt does not look their keys up.
_FEW: Final = 8

# By index in an order: the event that was decided on, and its redacted form.  An event
# that is decided on again is not redacted again.
_Redacted: TypeAlias = dict[int, tuple[Event, RedactedEvent]]
Appendable: TypeAlias = Event | Draft
# A text over the policy's budget of work refuses the append, or leaves a stub.
Unscanned: TypeAlias = Literal["refuse", "stub"]
DraftFields: TypeAlias = tuple[datetime | None, str | None, str | None, Meta]
# The most characters that are redacted and encrypted on an event loop; this takes well
# under 1 ms.
_LIGHT: Final = 16_384
_Locks: TypeAlias = "WeakValueDictionary[tuple[int, StreamId], asyncio.Lock]"
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, _Locks] = WeakKeyDictionary()


class Receipt(NamedTuple):
    """The first and last seq of the events of an append, and the hash of the last one.

    duplicate: an earlier append with the same key wrote these events.
    """

    first_seq: int
    last_seq: int
    hash: str
    duplicate: bool = False


class Order(NamedTuple):
    """The events that a caller wants to append to a stream.

    prepared:  the redacted events of the first drafts, if they are redacted already.
    unscanned: what happens to a text that exceeds the policy's budget of work.
    numbers:   the table of numbered placeholders after the prepared events.
    plain:     every draft is of one event and has no key.
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
    """Ignore that a stream was read."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Appends to any stream of a log.

    Every event goes through ``append``.  Only ``append`` redacts, and the log accepts
    redacted events only.

    clock: the wall clock of this machine, for the times of events.
    time:  the time of the store, by which stored values age.
    audit: the access log; None records nothing.
    used:  called with each session that is read by its name.
    vault: keeps the values of numbered placeholders in memory.
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
        learned: Learned | None = None,
    ) -> RedactedEvent:
        """Redact ``draft`` for a stream of this user.

        now:    microseconds since 1970.
        limits: None is the writer's own.
        tag:    what ``numbering`` returns, if values in the stream get numbers; None
                is the user's ``tagger``.
        learned: the secrets of the stream, which are found too.

        Raises InvalidEvent, RedactionFailed, EventTooLarge, KeyUnavailable.
        """
        redactor = self.redactor.stubbing if unscanned == "stub" else self.redactor
        if learned is not None and learned.entries:
            redactor = redactor.learning(learned)
        return chokepoint.redact(
            draft,
            now=now,
            redactor=redactor,
            limits=limits or self.limits,
            tag=tag or self.tagger(user_id, now=now),
        )

    def tagger(self, user_id: str, *, now: int | None = None) -> Tagger:
        """Return the function that computes pseudonyms and recorded ids of a user.

        Under a policy without pseudonyms, the user's key is read on first use.
        """
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
        """Return the tagger of a stream, which numbers values if the policy says so.

        Only main streams of sessions with an ordinary name get numbers.

        known: the stream's table of numbers so far.
        """
        kinds = self.redactor.plan.numbered_types
        if not kinds or stream.stream != MAIN or stream.session_id in RESERVED:
            return self.tagger(stream.user_id, now=now)
        now = self.clock() if now is None else now
        key = partial(self.log.pseudonym_key, stream.user_id, now=now)
        return kind(key, stream.session_id, known, kinds)

    def learned(self, state: SessionState) -> Learned:
        """Return the secrets of a session, to find them and to learn more."""
        user_id = state.stream.user_id
        return Learned(
            # The key is read on first use.
            lambda: self.log.pseudonym_key(user_id, now=self.clock()),
            state.learned,
        )

    def recorded_id(self, user_id: str, given: str) -> str:
        """The id under which the log records an id that a caller chose.

        It differs from the given one if redaction finds something in that.

        Raises RedactionFailed.
        """
        try:
            return chokepoint.recorded_id(self.redactor, given, self.tagger(user_id))
        except RedactionError as error:
            raise errors.RedactionFailed("id", reason=str(error)) from None

    def decided(
        self, state: SessionState, events: Sequence[Event], *, user_id: str
    ) -> tuple[list[Event], SessionState]:
        """Return what ``decide`` returns, with calls under the ids that are recorded.

        A call is recorded under another id if redaction finds something in its own, and
        if an earlier call has the same id.

        Raises what ``decide`` raises.
        """
        if not repeats_id(state):
            try:
                return decide(state, events)
            except InvalidEvent:
                pass  # under their recorded ids, the same events may be valid
        named = [self._with_recorded_id(event, user_id) for event in events]
        return decide_with_own_ids(state, named)

    def _with_recorded_id(self, event: Event, user_id: str) -> Event:
        """The event; a call or a result under the id that is recorded for its own."""
        if not isinstance(event, ToolCall | ToolResult):
            return event
        name = self.recorded_id(user_id, event.call_id)
        if name == event.call_id:
            return event
        return event.model_copy(update={"call_id": name})

    def append(self, order: Order, *, forked_head: ports.Head | None = None) -> Receipt:
        """Append all events of the order or none; durable when it returns.

        forked_head: the head that the new stream of a fork starts from; None is an
                     empty one.

        Raises the errors that ``Session.append`` documents.
        """
        order = _checked(order)
        try:
            return self._append(order, forked_head)
        except _AllKnown as known:
            last = known.last_seq
            (envelope,) = self.log.read(order.stream, after=last - 1, upto=last)
            return Receipt(known.first_seq, last, envelope.hash, duplicate=True)
        except (InvalidEvent, SessionClosed, StaleSession):
            # A retry of an append that took effect is not valid on the head after it.
            if order.idempotency_key is None:
                raise
            duplicate = self.log.receipt(order.stream, order.idempotency_key)
            if duplicate is None:
                raise
            return self._confirm(order, {}, duplicate)

    async def append_async(self, order: Order) -> Receipt:
        """``append`` without blocking the event loop; it raises the same errors.

        The appends of one loop to one stream take turns, since each builds on the one
        before.  A large append, and one that needs more than this process remembers,
        runs in a thread.
        """
        import asyncio

        locks = _locks.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
        async with locks.setdefault((id(self.heads), order.stream), asyncio.Lock()):
            request = self._light_request(order)
            if request is not None:
                outcome = await _written(self.log, request)
                if isinstance(outcome, ports.Appended):
                    return self.acknowledged(request, outcome)
            return await asyncio.to_thread(self.append, order)

    def request(self, head: ports.Head, order: Order) -> ports.Append:
        """Decide and redact the order on this head; raises as ``append`` does."""
        return self._decided(head, _checked(order), {})

    def acknowledged(self, request: ports.Append, outcome: ports.Appended) -> Receipt:
        """Remember the new head; return the receipt of an append that took effect."""
        head = outcome.head
        self.heads.put(head)
        first = request.base.state.head_seq + 1
        return Receipt(first, head.state.head_seq, head.hash.hex())

    def _light_request(self, order: Order) -> ports.Append | None:
        """Decide a small order on the remembered head; None if a thread is needed."""
        order = _checked(order)
        head = self.heads.get(order.stream)
        if head is None or not order.plain or self.redactor.recognizer is not None:
            return None
        contents = [
            (draft.event, draft.meta, draft.meta.__pydantic_extra__)
            for draft in order.drafts
        ]
        if _characters(contents, _LIGHT) >= _LIGHT:
            return None
        try:
            return self._decided(head, order, {})
        except (InvalidEvent, SessionClosed, StaleSession):
            return None  # it may be valid on the stored head

    def _append(self, order: Order, forked_head: ports.Head | None) -> Receipt:
        cache: _Redacted = {}
        prepared = zip(order.drafts, order.prepared, strict=False)
        for index, (draft, redacted) in enumerate(prepared):
            cache[index] = (draft.event, redacted)
        for attempt in range(_OPTIMISTIC):
            new, request = self._request(order, cache, forked_head, first=attempt == 0)
            outcome = self.log.append(request)
            if isinstance(outcome, ports.Appended):
                return self.acknowledged(request, outcome)
            if isinstance(outcome, ports.Duplicate):
                return self._confirm(new, cache, outcome)
            base = request.base
            stored = outcome.head
            self.heads.correct(stored)
            moved = (stored.seq, stored.hash) != (base.seq, base.hash)
            if moved and (order.expected_seq is not None or forked_head is not None):
                raise _stale(order, base.seq, stored.seq)
        return self._append_exclusive(order, cache, forked_head)

    def _without_known(self, order: Order, *, few: int = 0) -> Order:
        """The order without the drafts whose keys the stream has already.

        The head to decide on must be read before: then an append by another process
        after this moves the head, and is noticed.

        few: the keys of at most this many drafts are not looked up.

        Raises _AllKnown if no draft is left.
        """
        if order.plain:
            return order
        known: Mapping[str, tuple[int, int]] = {}
        if len(order.drafts) > few:
            keys = [draft.key for draft in order.drafts if draft.key]
            known = self.log.known(order.stream, keys)
        seen = set(known)
        new: list[Draft] = []
        for draft in order.drafts:
            if draft.key:
                if draft.key in seen:
                    continue
                seen.add(draft.key)
            new.append(draft)
        if not new:
            first_seq = min(first for first, _ in known.values())
            last_seq = max(last for _, last in known.values())
            raise _AllKnown(first_seq, last_seq)
        return order._replace(drafts=tuple(new))

    def _append_exclusive(
        self, order: Order, cache: _Redacted, forked_head: ports.Head | None
    ) -> Receipt:
        """Append with the stream locked between reading its head and writing."""
        requests: list[ports.Append] = []

        def build(head: ports.Head) -> ports.Append:
            base = forked_head if forked_head is not None and head.seq == 0 else head
            request = self._decided(base, self._without_known(order), cache)
            requests.append(request)
            return request

        for _ in range(_EXCLUSIVE):
            outcome = self.log.append_exclusive(order.stream, build)
            if isinstance(outcome, ports.Appended):
                return self.acknowledged(requests[-1], outcome)
            if isinstance(outcome, ports.Duplicate):
                return self._confirm(order, cache, outcome)
        raise _stale(order, requests[-1].base.seq, self.log.head(order.stream).seq)

    def _request(
        self,
        order: Order,
        cache: _Redacted,
        forked_head: ports.Head | None,
        *,
        first: bool,
    ) -> tuple[Order, ports.Append]:
        """Decide on the remembered head; if that refuses, on the stored one.

        Returns the order without known drafts, and the request for its events.

        first: this is the first attempt.
        """
        head = self.heads.get(order.stream)
        if head is not None:
            try:
                # On the first attempt, few keys are not looked up: the log refuses
                # known ones, and the second attempt looks them up.
                new = self._without_known(order, few=_FEW if first else 0)
                return new, self._decided(head, new, cache)
            except (InvalidEvent, SessionClosed, StaleSession):
                pass  # it may be valid on the stored head
        head = self.log.head(order.stream)
        self.heads.correct(head)
        if forked_head is not None and head.seq == 0:
            head = forked_head
        new = self._without_known(order)
        return new, self._decided(head, new, cache)

    def _decided(
        self, head: ports.Head, order: Order, cache: _Redacted
    ) -> ports.Append:
        """Decide the order on this head and redact its events."""
        state = head.state
        now = self.clock()
        if order.expected_seq is not None and order.expected_seq != state.head_seq:
            raise _stale(order, order.expected_seq, state.head_seq)
        tag = None
        if self.redactor.numbered:
            if not order.prepared:
                cache.clear()  # on another head, values may get other numbers
            tag = self.numbering(order.stream, order.numbers or state.numbers, now=now)
        learned = None
        if state.learned:
            learned = self.learned(state)
            if not order.prepared:
                cache.clear()  # another head may have learned other secrets
        keys: Sequence[ports.Keyed] = ()
        items: Mapping[int, JsonObject] = {}
        if not order.plain:
            if any(draft.native is not None for draft in order.drafts):
                cache.clear()  # on another state, an item may give other events
            order, keys, items = self._with_events_of_items(state, order, tag)
            if any(draft.mark is not None for draft in order.drafts):
                order = self._with_seqs(state, order, keys)
        incoming = [draft.event for draft in order.drafts]
        events, after = self.decided(state, incoming, user_id=order.stream.user_id)
        redacted, learned = self._redacted(
            order, cache, events, now, tag, learned, first=state.head_seq + 1
        )
        if items:
            self._redact_items_again(order, items, events, redacted, tag)
        for clean, event in zip(redacted, events, strict=True):
            if clean.event is not event:
                after = _evolved(state, redacted)
                break
        if learned is not None and learned.entries is not state.learned:
            after = after._replace(learned=learned.entries)
        if isinstance(tag, Numbering):
            self.vault.put(order.stream, tag.values)
            after = after._replace(numbers=tag.known)
            plan = self.redactor.plan
            if (plan.kept or after.kept) and not after.closed:
                kept = kept_values(after.kept, tag.values, plan, self.time.now())
                after = after._replace(kept=kept)
        return ports.Append(
            base=head,
            state=after,
            events=redacted,
            now=self.time.stamp(now),
            idempotency_key=order.idempotency_key,
            keys=[keyed for keyed in keys if keyed.key],
        )

    def _with_seqs(
        self, state: SessionState, order: Order, keys: Sequence[ports.Keyed]
    ) -> Order:
        """The order with the seqs of the entries that its marks name by keys."""
        from refold.store.marks import with_seqs

        own: dict[str, events.Span] = {}
        for keyed in keys:
            first = state.head_seq + 1 + keyed.first
            own[keyed.key] = (first, first + keyed.events - 1)
        drafts = with_seqs(self.log, order.stream, order.drafts, own)
        return order._replace(drafts=tuple(drafts))

    def item(
        self, native: Native, tag: Tagger, unscanned: Unscanned = "refuse"
    ) -> tuple[JudgedItem, tuple[Blob, ...]]:
        """Redact an item; return it with the bytes that were in it.

        Raises InvalidEvent, RedactionFailed.
        """
        redactor = self.redactor.stubbing if unscanned == "stub" else self.redactor
        if native.judged is not None and not redactor.numbered:
            judged, opaque = native.judged
            again = judged.under(redactor, native)
            if again is not None:
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
        """Yield each item with its redacted form, and its value as a reader gets it.

        A text over the policy's budget of work becomes a stub.
        """
        tag = self.tagger(stream.user_id)
        if self.redactor.numbered:
            tag = self.numbering(stream, self.log.head(stream).state.numbers)
        for native in natives:
            item, opaque = self.item(native, tag, "stub")
            clean = item.record
            if isinstance(tag, Numbering):
                clean = cast(JsonObject, tag.with_numbers(clean, ours=False))
            held = {blob.sha256: blob.data for blob in opaque}
            yield replace(native, judged=(item, opaque)), whole(clean, (), held.get)

    def _with_events_of_items(
        self, state: SessionState, order: Order, tag: Tagger | None
    ) -> tuple[Order, list[ports.Keyed], dict[int, JsonObject]]:
        """Replace each draft of an item by the drafts of its events.

        Returns the order with these drafts; for each draft before, its key and the
        place of its events; and the redacted items by the index of their first event.
        """
        tag = tag or self.tagger(order.stream.user_id)
        drafts: list[Draft] = []
        keys: list[ports.Keyed] = []
        items: dict[int, JsonObject] = {}
        for draft in order.drafts:
            new: Sequence[Draft] = [draft]
            if draft.native is not None:
                item, opaque = self.item(draft.native, tag, order.unscanned)
                items[len(drafts)] = item.record
                first, *more = _drafts_of_item(state, draft, item, self.limits)
                payloads = [seen.event.payload() for seen in (first, *more)]
                meta = first.meta.warned(REPAIRED) if item.repaired else first.meta
                meta = _with_rest_of_item(meta, item.record, payloads, self.limits)
                new = [replace(first, meta=meta, opaque=opaque), *more]
            keys.append(ports.Keyed(draft.key or "", len(drafts), len(new)))
            for added in new:
                state = evolve(state, added.event)
            drafts += new
        return order._replace(drafts=tuple(drafts)), keys, items

    def _redact_items_again(
        self,
        order: Order,
        items: Mapping[int, JsonObject],
        events: Sequence[Event],
        redacted: list[RedactedEvent],
        tag: Tagger | None,
    ) -> None:
        """Redact in the items what redaction found only in their events.

        Changes ``redacted``: the first event of such an item holds the item anew.
        """
        for index, clean in items.items():
            draft = order.drafts[index]
            native: Any = draft.meta.native
            places = range(index, index + native["n"])
            if all(redacted[place].event is events[place] for place in places):
                continue
            payloads: list[JsonObject] = []
            replacements: dict[str, str] = {}
            for place in places:
                before = order.drafts[place].event.payload()
                blobs = {blob.sha256: blob.data for blob in redacted[place].blobs}
                after = restored(redacted[place].event.payload(), blobs.get)
                pairs = changed_texts(before, after) if after != before else ()
                # A text that only got a number is the same in the item.
                changes = {
                    old: new for old, new in pairs if unnumbered(old) != unnumbered(new)
                }
                payloads.append(after if changes else before)
                replacements |= changes
            if not replacements:
                continue
            again = {**clean, "value": replaced(clean["value"], replacements)}
            meta = _with_rest_of_item(draft.meta, again, payloads, self.limits)
            redacted[index] = self.redacted(
                replace(draft, meta=meta),
                user_id=order.stream.user_id,
                now=self.clock(),
                unscanned=order.unscanned,
                tag=tag,
            )

    def _redacted(
        self,
        order: Order,
        cache: _Redacted,
        events: Sequence[Event],
        now: int,
        tag: Tagger | None,
        learned: Learned | None,
        *,
        first: int,
    ) -> tuple[list[RedactedEvent], Learned | None]:
        """Redact the events, except those that ``cache`` has; add them to ``cache``.

        events:  those of the order's drafts, as they were decided on.
        learned: the secrets before the first event; None if there are none.
        first:   the seq of the first event.

        Returns the redacted events, and the secrets after them.
        """
        results: list[RedactedEvent] = []
        user_id = order.stream.user_id
        for index, event in enumerate(events):
            cached = cache.get(index)
            if cached is None or cached[0] is not event:
                draft = order.drafts[index]
                if draft.event is not event:
                    draft = self._with_event(draft, event, user_id)
                secrets = learned
                if secrets is not None and isinstance(draft, ItemDraft):
                    secrets = None  # it was judged before, as its framework has it
                redacted = self.redacted(
                    draft,
                    user_id=user_id,
                    now=now,
                    unscanned=order.unscanned,
                    tag=tag,
                    learned=secrets,
                )
                cached = (event, redacted)
                cache[index] = cached
            if cached[1].secrets:
                if learned is None:
                    learned = self.learned(SessionState(order.stream))
                learned.learn(cached[1].secrets, first + index)
            results.append(cached[1])
        return results, learned

    def _with_event(self, draft: Draft, event: Event, user_id: str) -> Draft:
        """The draft with its event as decided, which may have another id or tool."""
        incoming = draft.event
        ids = (ToolCall, ToolResult)
        if isinstance(incoming, ids) and isinstance(event, ids):
            name = incoming.call_id
            if event.call_id != name:
                name = self.recorded_id(user_id, name)
            named = incoming.model_copy(update={"call_id": name})
            draft = with_id(replace(draft, event=named), event)
        return replace(draft, event=event)

    def _confirm(
        self, order: Order, cache: _Redacted, duplicate: ports.Duplicate
    ) -> Receipt:
        """Return the receipt of the key's first use.

        Raises IdempotencyConflict if that use had other content.
        """
        first, last = duplicate
        stored = self.log.read(order.stream, after=first - 1, upto=last)
        is_same = False
        if not self.redactor.numbered:
            is_same = self._is_same(order, cache, stored, first)
        if not is_same:
            # The events may have had other numbers and fewer known secrets then.
            state = self.log.head(order.stream).state
            is_same = self._is_same(order, {}, stored, first, state)
        if not is_same:
            session_id = order.stream.session_id
            raise errors.IdempotencyConflict(session_id, first_seq=first, last_seq=last)
        return Receipt(first, last, stored[-1].hash, duplicate=True)

    def _is_same(
        self,
        order: Order,
        cache: _Redacted,
        stored: Sequence[Envelope],
        first: int,
        state: SessionState | None = None,
    ) -> bool:
        """Whether the order's events are these stored events.

        cache: the redacted events of the order, as far as they are known.
        first: the seq of the first stored event.
        state: a later state of the session, which has the numbers of its placeholders
               and its secrets.  Secrets that it learned since the stored events do not
               count.
        """
        tag = None
        learned = None
        if state is not None:
            learned = self.learned(state).before(first)
            if self.redactor.numbered:
                tag = self.numbering(order.stream, state.numbers)
        events = [draft.event for draft in order.drafts]
        redacted, _ = self._redacted(
            order, cache, events, self.clock(), tag, learned, first=first
        )
        if len(stored) != len(redacted):
            return False
        for envelope, clean in zip(stored, redacted, strict=True):
            is_superseded = superseded(envelope, clean.event)
            if not is_superseded and not same_event(given(envelope), clean.event):
                return False
        return True


# The field of an event that holds many small pieces, and may hold one text instead.
_PARTED: Final = {ToolResult: "content", ToolCall: "arguments", Item: "value"}
# The most times that a format's view repeats an item: the events of an item that is
# this many times smaller than the limit are not measured.
_OFTEN: Final = 8


def _drafts_of_item(
    state: SessionState, draft: Draft, item: JudgedItem, limits: Limits
) -> list[ItemDraft]:
    """The drafts of the events that an item's format makes of it.

    If the format makes none, or the session does not accept them, the item becomes one
    ``item`` event.
    """
    native: Any = draft.native
    kind = native.kind
    value = item.record["value"]
    begun = state.head_seq
    drafts: list[ItemDraft] = []
    try:
        for viewed in native.format.view(kind, value, state.open_calls):
            view = viewed if isinstance(viewed, Draft) else Draft(viewed)
            view = _with_own_id(state, begun, view, item)
            event = accepted_next(state, _within(view.event, limits, item))
            match view.event, event:
                case ToolResult(tool_name=None), ToolResult(tool_name=str(name)):
                    item.add_text(name)  # the name is that of the recorded call
            state = evolve(state, event)
            drafts.append(_draft_of_view(draft, view, event, item))
    except (InvalidEvent, ValueError, TypeError, LookupError, AttributeError):
        drafts = []
    if drafts:
        return drafts
    event = Item(format=native.format.name, kind=kind, value=value)
    event = _within(event, limits, item)
    return [_draft_of_view(draft, draft, event, item)]


def _with_own_id(
    state: SessionState, begun: int, draft: Draft, item: JudgedItem
) -> Draft:
    """The draft under an id of its own if two calls of an item have one id.

    begun: the seq before the item.
    """
    event = draft.event
    renamed = event
    if isinstance(event, ToolCall):
        open_call = state.open_calls.get(event.call_id)
        if open_call is not None and open_call.seq > begun:
            renamed = with_own_id(state, event)
    elif isinstance(event, ToolResult) and repeats_id(state):
        renamed = with_recorded_id(state, event)
    if renamed is event or not isinstance(renamed, ToolCall | ToolResult):
        return draft
    item.add_text(renamed.call_id)
    return with_id(draft, renamed)


def _draft_of_view(
    draft: Draft, view: Draft, event: Event, item: JudgedItem
) -> ItemDraft:
    """The draft of one event of an item; fields that the view lacks are the item's."""
    return ItemDraft(
        event,
        view.ts or draft.ts,
        view.request_id or draft.request_id,
        view.agent or draft.agent,
        draft.meta if view.meta is NO_META else view.meta,
        item=item,
    )


def _within(event: Event, limits: Limits, item: JudgedItem) -> Event:
    """The event; if it is too large in many small pieces, with these as one text."""
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
    """The event with its many pieces as one text, which a blob can hold, else None."""
    for kind, name in _PARTED.items():
        if not isinstance(event, kind):
            continue
        pieces = getattr(event, name)
        if isinstance(pieces, list | dict):
            return event.model_copy(update={name: canonical(pieces).decode()})
    return None


def _with_rest_of_item(
    meta: Meta, clean: JsonObject, payloads: Sequence[JsonObject], limits: Limits
) -> Meta:
    """``meta`` with the parts of the item that the payloads of its events lack."""
    rest = skeleton(clean["value"], payloads, most=limits.event_bytes // 2)
    native = {**clean, "value": rest, "n": len(payloads)}
    return meta.model_copy(update={"native": native})


def _evolved(state: SessionState, redacted: Sequence[RedactedEvent]) -> SessionState:
    for clean in redacted:
        if isinstance(clean.event, ToolCall):
            # Redaction may have changed its id: check that the new one is valid.
            accepted_next(state, clean.event)
        state = evolve(state, clean.event)
    return state


class _AllKnown(Exception):
    """Earlier appends wrote every draft of an order, under the same keys."""

    def __init__(self, first_seq: int, last_seq: int) -> None:
        super().__init__(first_seq, last_seq)
        self.first_seq = first_seq
        self.last_seq = last_seq


def _stale(order: Order, expected: int, actual: int) -> StaleSession:
    return StaleSession(order.stream.session_id, expected=expected, actual=actual)


def _checked(order: Order) -> Order:
    """The order with ``plain`` as its drafts are; raises InvalidEvent."""
    if not order.drafts:
        raise InvalidEvent("no events were given to append")
    for draft in order.drafts:
        if isinstance(draft.event, events.RedactionApplied):
            raise InvalidEvent("redaction_applied is recorded by store.reredact alone")
        if draft.native or draft.key or draft.event is LATER:
            order = order._replace(plain=False)
            if order.idempotency_key is not None:
                raise InvalidEvent(
                    "give keys to the drafts or one to the append, not both"
                )
            if draft.event is LATER and draft.native is None:
                raise InvalidEvent("a draft needs an event or a native item")
            if draft.key is not None and not encodable(draft.key):
                raise InvalidEvent("a key must be text without half of a pair")
    if order.idempotency_key is not None and not encodable(order.idempotency_key):
        raise InvalidEvent("an idempotency_key must be text without half of a pair")
    return order


def same_event(stored: Event, other: Event) -> bool:
    """Whether these are one event; a result may leave out the name of its tool."""
    if isinstance(stored, ToolResult) and isinstance(other, ToolResult):
        name = stored.tool_name if other.tool_name is None else other.tool_name
        other = other.model_copy(update={"tool_name": name})
    return stored.type == other.type and (
        canonical(stored.payload()) == canonical(other.payload())
    )


def given(stored: Envelope) -> Event:
    """The event as a caller gave it: a call has the id that its provider chose."""
    event = stored.payload
    call_id = stored.meta.call_id
    if call_id is None or not isinstance(event, ToolCall | ToolResult):
        return event
    return event.model_copy(update={"call_id": call_id})


def superseded(stored: Envelope, other: Event) -> bool:
    """Whether the stored event has the other's type and was redacted again.

    Then their contents cannot be compared: only the idempotency key, or the place in a
    transcript, shows that they are one event.
    """
    return stored.type == other.type and "before" in stored.redaction


class Heads:
    """The head of each stream as this process saw it last.

    A head may be old: the log compares it when it writes, and refuses an old one.
    """

    def __init__(self) -> None:
        self._heads: OrderedDict[StreamId, ports.Head] = OrderedDict()
        self._lock = forkable_lock()
        self._listeners: dict[StreamId, list[Callable[[], object]]] = {}

    @contextmanager
    def listening(
        self, stream: StreamId, notify: Callable[[], object]
    ) -> Iterator[None]:
        """Call ``notify``, in any thread, for each head of the stream that arrives."""
        with self._lock:
            self._listeners.setdefault(stream, []).append(notify)
        try:
            yield
        finally:
            with self._lock:
                self._listeners[stream].remove(notify)
                if not self._listeners[stream]:
                    del self._listeners[stream]

    def get(self, stream: StreamId) -> ports.Head | None:
        """The head that was seen last; None for a stream that had no events."""
        head = self._heads.get(stream)  # one step, which no thread can interrupt
        return head if head is not None and head.state.head_seq else None

    def correct(self, head: ports.Head) -> None:
        """Remember a head that was just read, in place of the one that was wrong."""
        with self._lock:
            self._heads.pop(head.state.stream, None)
        self.put(head)

    def put(self, head: ports.Head) -> None:
        """Remember ``head``, unless a newer one is remembered already."""
        stream = head.state.stream
        listeners: Sequence[Callable[[], object]] = ()
        with self._lock:
            newest = self._heads.get(stream)
            if newest is None or newest.state.head_seq <= head.state.head_seq:
                self._heads[stream] = head
            self._heads.move_to_end(stream)
            if len(self._heads) > _CACHED:
                self._heads.popitem(last=False)
            if self._listeners:
                listeners = tuple(self._listeners.get(stream, ()))
        for notify in listeners:
            notify()


# Types of one value to append, although some of them are iterable.
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


def _draft(value: object, fields: DraftFields) -> Draft:
    if isinstance(value, Event):
        draft = Draft(value, *fields)
    elif isinstance(value, Draft) and isinstance(value.event, Event):
        draft = replace(value, meta=Meta.of(value.meta))
    else:
        kind = type(value).__name__
        raise InvalidEvent(f"append takes events, not {kind}: refold.UserInput(text=…)")
    ts = draft.ts
    if ts is not None and not (isinstance(ts, datetime) and ts.tzinfo):
        raise InvalidEvent("ts needs a time zone: datetime.now(UTC)")
    for name, text in (("request_id", draft.request_id), ("agent", draft.agent)):
        if text is not None and not isinstance(text, str):
            raise InvalidEvent(f"{name} must be a text")
    return draft


async def _written(log: ports.EventLog, request: ports.Append) -> ports.Outcome | None:
    """Have another thread write the request; None if the log has no such thread."""
    import asyncio

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
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, outcome)

    return await written if log.append_soon(request, done) else None


def _characters(value: Any, most: int) -> int:
    """About how many characters ``value`` holds; counting stops above ``most``."""
    if isinstance(value, str):
        return len(value)
    parts: Iterable[Any]
    if isinstance(value, list | tuple):
        parts = value
    elif isinstance(value, dict):
        parts = value.values()
    else:
        parts = getattr(value, "__dict__", {}).values()
    total = 1
    for part in parts:
        if total > most:
            break
        total += _characters(part, most - total)
    return total
