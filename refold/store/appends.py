"""The append path: decide, redact, guard, write; repeat it if the head has moved."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, partial
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
    AnswersOfCalls,
    SessionState,
    accepted_next,
    decide,
    decide_with_own_ids,
    evolve,
    repeats_id,
    with_own_id,
    with_recorded_id,
)
from refold.domain.stubs import STUB_MARK
from refold.projections.items import (
    changed_texts,
    replaced,
    skeleton,
    whole,
    without_bytes,
)
from refold.redaction import chokepoint
from refold.redaction.chokepoint import ItemDraft, RedactedEvent, RedactedItem
from refold.redaction.guard import Limits, TooLarge, guard, restored
from refold.redaction.learned import Learned
from refold.redaction.plan import Tagger, tag_reading_key, tagger
from refold.redaction.redactor import RedactionError, Redactor
from refold.redaction.types import UNSCANNED
from refold.store.vault import Numbering, Vault, kept_values, unnumbered

if TYPE_CHECKING:
    import asyncio

    from refold.domain.access_log import AccessTrail

# An append is tried this often without a lock, and then with the stream locked.
_OPTIMISTIC_TRIES: Final = 4
_EXCLUSIVE_TRIES: Final = 16
# The largest number of streams whose heads a process remembers.
_MOST_HEADS: Final = 10_000
# The first attempt does not look up the keys of this many drafts or fewer.
_FEW_DRAFTS: Final = 8

# The event that was decided on and its redacted form, by the index in an order.  So an
# event that is decided on again is not redacted again.
_Redacted: TypeAlias = dict[int, tuple[Event, RedactedEvent]]
Appendable: TypeAlias = Event | Draft
# The handling of a text that takes more work to redact than the policy allows.
Unscanned: TypeAlias = Literal["refuse", "stub"]
# The fields that all events of an append share: ts, request id, agent and meta.
DraftFields: TypeAlias = tuple[datetime | None, str | None, str | None, Meta]
# The most characters that are redacted and encrypted on an event loop, which takes less
# than 1 ms.
_LIGHT_CHARACTERS: Final = 16_384
# The locks of an event loop, by writer and stream: its appends to a stream take turns.
_Locks: TypeAlias = "WeakValueDictionary[tuple[int, StreamId], asyncio.Lock]"
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, _Locks] = WeakKeyDictionary()


class Receipt(NamedTuple):
    """The result of an append.

    first_seq: the seq of its first event.
    last_seq:  the seq of its last event.
    hash:      the hash of its last event.
    duplicate: whether an earlier append with the same key wrote these events.
    """

    first_seq: int
    last_seq: int
    hash: str
    duplicate: bool = False


class Order(NamedTuple):
    """The events that a caller wants to append to a stream.

    prepared:  the redacted events of the first drafts that are redacted already.
    unscanned: the handling of a text that takes more work to redact than allowed.
    numbers:   the table of numbered placeholders after the prepared events.
    plain:     whether every draft has one event and no key.
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
    """Count nothing when a stream is read."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Appends to any stream of a log.

    Every event goes through ``append``.  The log accepts only redacted events.

    limits: the limits of the size guard.
    clock:  returns this machine's time for events, in microseconds since 1970.
    heads:  the heads that this process has seen.
    time:   the store's time, from which the ages of stored values are counted.
    audit:  the access log; None records nothing.
    used:   called with each session that is read by its id.
    vault:  keeps the values of numbered placeholders in memory.
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

        now:     microseconds since 1970.
        limits:  the limits of the size guard; None means the writer's limits.
        tag:     the result of ``numbering`` if values in the stream get numbers; None
                 means the user's ``tagger``.
        learned: secrets that the stream showed earlier, which are redacted, too.

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
        read_key = partial(self.log.pseudonym_key, user_id, now=now)
        if self.redactor.plan.pseudonyms:
            return tagger(read_key())
        return partial(tag_reading_key, read_key)

    def numbering(
        self,
        stream: StreamId,
        known: Mapping[str, int],
        *,
        now: int | None = None,
        kind: type[Numbering] = Numbering,
    ) -> Tagger:
        """Return the tagger of a stream, which numbers values if the policy says so.

        Only main streams of sessions that are not internal get numbers.

        known: the stream's table of numbers so far.
        """
        types = self.redactor.plan.numbered_types
        if not types or stream.stream != MAIN or stream.session_id in RESERVED:
            return self.tagger(stream.user_id, now=now)
        now = self.clock() if now is None else now
        read_key = partial(self.log.pseudonym_key, stream.user_id, now=now)
        return kind(read_key, stream.session_id, known, types)

    def learned(self, state: SessionState) -> Learned:
        """Return the secrets that a session has shown, to which more can be added."""
        user_id = state.stream.user_id
        return Learned(
            # The key is read on first use.
            lambda: self.log.pseudonym_key(user_id, now=self.clock()),
            state.learned,
        )

    def recorded_id(self, user_id: str, chosen: str) -> str:
        """Return the id that the log records for an id that a caller chose.

        It is another id if redaction finds something in the chosen one.

        Raises RedactionFailed.
        """
        try:
            return chokepoint.recorded_id(self.redactor, chosen, self.tagger(user_id))
        except RedactionError as error:
            raise errors.RedactionFailed("id", reason=str(error)) from None

    def decided(
        self, state: SessionState, events: Sequence[Event], *, user_id: str
    ) -> tuple[list[Event], SessionState]:
        """Decide on events as ``decide`` does, with the call ids that are recorded.

        A call is recorded under another id if redaction finds something in its id, or
        if an earlier call has the same id.

        Raises the errors of ``decide``.
        """
        if not repeats_id(state):
            try:
                return decide(state, events)
            except InvalidEvent:
                pass  # with their recorded ids, the same events may be valid
        with_recorded_ids = [self._with_recorded_id(event, user_id) for event in events]
        answers = self._answers_of_open_calls(state)
        return decide_with_own_ids(state, with_recorded_ids, answers)

    def _answers_of_open_calls(self, state: SessionState) -> AnswersOfCalls:
        """Return the answers of the open calls.

        They read the log from the first of these calls on, if two of them have one id
        and a result names it.
        """
        seqs = [call.seq for call in state.open_calls.values() if call.seq > 0]
        if not seqs or not repeats_id(state):
            return AnswersOfCalls()
        first = min(seqs)
        upto = state.head_seq

        @cache  # copies of the answers share what was read
        def read_earlier() -> list[tuple[int, Event]]:
            envelopes = self.log.read(state.stream, after=first - 1, upto=upto)
            return [(envelope.seq, envelope.payload) for envelope in envelopes]

        return AnswersOfCalls(read_earlier)

    def _with_recorded_id(self, event: Event, user_id: str) -> Event:
        """Return the event; a call or a result gets the id that is recorded."""
        if not isinstance(event, ToolCall | ToolResult):
            return event
        recorded_id = self.recorded_id(user_id, event.call_id)
        if recorded_id == event.call_id:
            return event
        return event.model_copy(update={"call_id": recorded_id})

    def append(self, order: Order, *, forked_head: ports.Head | None = None) -> Receipt:
        """Append all events of the order or none; durable when it returns.

        forked_head: the head from which the new stream of a fork starts; None means an
                     empty head.

        Raises the errors that ``Session.append`` documents.
        """
        order = _checked(order)
        try:
            return self._append(order, forked_head)
        except _AllPresent as present:
            last = present.last_seq
            hash_ = hash_at(self.log, order.stream, last)
            return Receipt(present.first_seq, last, hash_, duplicate=True)
        except (InvalidEvent, SessionClosed, StaleSession):
            # This may be the retry of an append that took effect, and so is refused.
            if order.idempotency_key is None:
                raise
            duplicate = self.log.receipt(order.stream, order.idempotency_key)
            if duplicate is None:
                raise
            return self._confirm(order, {}, duplicate)

    async def append_async(self, order: Order) -> Receipt:
        """Do the same as ``append``, without blocking the event loop.

        The appends of one event loop to one stream take turns, because each builds on
        the previous one.  A large append runs in a thread, and so does an append that
        must read from the log.
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
        """Decide and redact the order on this head; raises the errors of ``append``."""
        return self._decided_request(head, _checked(order), {})

    def acknowledged(self, request: ports.Append, outcome: ports.Appended) -> Receipt:
        """Remember the new head; return the receipt of an append that took effect."""
        head = outcome.head
        self.heads.put(head)
        first = request.base.state.head_seq + 1
        return Receipt(first, head.state.head_seq, head.hash.hex())

    def _light_request(self, order: Order) -> ports.Append | None:
        """Decide a small order on the remembered head; None if it needs a thread."""
        order = _checked(order)
        head = self.heads.get(order.stream)
        if head is None or not order.plain or self.redactor.recognizer is not None:
            return None
        contents = [
            (draft.event, draft.meta, draft.meta.__pydantic_extra__)
            for draft in order.drafts
        ]
        if _characters(contents, _LIGHT_CHARACTERS) >= _LIGHT_CHARACTERS:
            return None
        try:
            return self._decided_request(head, order, {})
        except (InvalidEvent, SessionClosed, StaleSession):
            return None  # the order may be valid on the stored head

    def _append(self, order: Order, forked_head: ports.Head | None) -> Receipt:
        """Append without a lock, and with a lock if other writers are faster."""
        cache: _Redacted = {}
        prepared = zip(order.drafts, order.prepared, strict=False)
        for index, (draft, redacted) in enumerate(prepared):
            cache[index] = (draft.event, redacted)
        for attempt in range(_OPTIMISTIC_TRIES):
            new, request = self._request_on_best_head(
                order, cache, forked_head, first=attempt == 0
            )
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

    def _without_present(self, order: Order, *, few: int = 0) -> Order:
        """Return the order without the drafts whose keys the stream has already.

        The caller must read the head first.  Then the log notices appends that other
        processes make after the keys were looked up, because the head has moved.

        few: the keys of this many drafts or fewer are not looked up.

        Raises _AllPresent if no draft is left.
        """
        if order.plain:
            return order
        present: Mapping[str, tuple[int, int]] = {}
        if len(order.drafts) > few:
            keys = [draft.key for draft in order.drafts if draft.key]
            present = self.log.known(order.stream, keys)
        present_keys = set(present)
        new: list[Draft] = []
        for draft in order.drafts:
            if draft.key:
                if draft.key in present_keys:
                    continue
                present_keys.add(draft.key)
            new.append(draft)
        if not new:
            first_seq = min(first for first, _ in present.values())
            last_seq = max(last for _, last in present.values())
            raise _AllPresent(first_seq, last_seq)
        return order._replace(drafts=tuple(new))

    def _append_exclusive(
        self, order: Order, cache: _Redacted, forked_head: ports.Head | None
    ) -> Receipt:
        """Append with the stream locked from reading its head until writing."""
        requests: list[ports.Append] = []

        def build(head: ports.Head) -> ports.Append:
            base = forked_head if forked_head is not None and head.seq == 0 else head
            request = self._decided_request(base, self._without_present(order), cache)
            requests.append(request)
            return request

        for _ in range(_EXCLUSIVE_TRIES):
            outcome = self.log.append_exclusive(order.stream, build)
            if isinstance(outcome, ports.Appended):
                return self.acknowledged(requests[-1], outcome)
            if isinstance(outcome, ports.Duplicate):
                return self._confirm(order, cache, outcome)
        raise _stale(order, requests[-1].base.seq, self.log.head(order.stream).seq)

    def _request_on_best_head(
        self,
        order: Order,
        cache: _Redacted,
        forked_head: ports.Head | None,
        *,
        first: bool,
    ) -> tuple[Order, ports.Append]:
        """Decide on the remembered head, and on the stored head if that fails.

        Returns the order without drafts that are present, and the request for its
        events.

        first: whether this is the first attempt.
        """
        head = self.heads.get(order.stream)
        if head is not None:
            try:
                # The first attempt does not look up a few keys.  The log refuses keys
                # that it has, and then the second attempt looks them up.
                new = self._without_present(order, few=_FEW_DRAFTS if first else 0)
                return new, self._decided_request(head, new, cache)
            except (InvalidEvent, SessionClosed, StaleSession):
                pass  # the order may be valid on the stored head
        head = self.log.head(order.stream)
        self.heads.correct(head)
        if forked_head is not None and head.seq == 0:
            head = forked_head
        new = self._without_present(order)
        return new, self._decided_request(head, new, cache)

    def _decided_request(
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
                values = kept_values(after.kept, tag.values, plan, self.time.now())
                after = after._replace(kept=values)
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
        """Return the order with seqs in place of the keys in its marks."""
        from refold.store.marks import with_seqs

        own: dict[str, events.Span] = {}
        for keyed in keys:
            first = state.head_seq + 1 + keyed.first
            own[keyed.key] = (first, first + keyed.events - 1)
        drafts = with_seqs(self.log, order.stream, order.drafts, own)
        return order._replace(drafts=tuple(drafts))

    def item(
        self, native: Native, tag: Tagger, unscanned: Unscanned = "refuse"
    ) -> tuple[RedactedItem, tuple[Blob, ...]]:
        """Return the redacted item, and the bytes that were in it.

        Raises InvalidEvent, RedactionFailed.
        """
        redactor = self.redactor.stubbing if unscanned == "stub" else self.redactor
        if native.redacted is not None and not redactor.numbered:
            redacted_before, opaque = native.redacted
            renamed = redacted_before.under(redactor, native)
            if renamed is not None:
                return renamed, opaque
        bytes_in_item: list[bytes] = []
        try:
            value = without_bytes(native.value, bytes_in_item)
        except RecursionError:
            raise InvalidEvent("an item is nested too deeply: flatten it") from None
        opaque = tuple(Blob(sha256(data).hexdigest(), data) for data in bytes_in_item)
        record = {"format": native.format.name, "kind": native.kind, "value": value}
        if native.id is not None:
            record["id"] = native.id
        if opaque:
            record["bytes"] = [blob.sha256 for blob in opaque]
        item = RedactedItem(redactor, record, tag)
        for _ in opaque:
            item.tally.add(UNSCANNED)
        return item, opaque

    def redacted_items(
        self, stream: StreamId, natives: Iterable[Native]
    ) -> Iterator[tuple[Native, Any]]:
        """Yield each item with its redacted form, and its value as a reader gets it.

        A text that takes more work to redact than allowed becomes a stub.
        """
        tag = self.tagger(stream.user_id)
        if self.redactor.numbered:
            tag = self.numbering(stream, self.log.head(stream).state.numbers)
        for native in natives:
            item, opaque = self.item(native, tag, "stub")
            clean = item.record
            if isinstance(tag, Numbering):
                clean = cast(JsonObject, tag.with_numbers(clean, ours=False))
            data_by_digest = {blob.sha256: blob.data for blob in opaque}
            value = whole(clean, (), data_by_digest.get)
            yield replace(native, redacted=(item, opaque)), value

    def _with_events_of_items(
        self, state: SessionState, order: Order, tag: Tagger | None
    ) -> tuple[Order, list[ports.Keyed], dict[int, JsonObject]]:
        """Replace each draft of an item by the drafts of its events.

        Returns the order with these drafts; for each original draft, its key and where
        its events are; and the redacted items, by the index of their first event.
        """
        tag = tag or self.tagger(order.stream.user_id)
        drafts: list[Draft] = []
        keys: list[ports.Keyed] = []
        items: dict[int, JsonObject] = {}
        calls = _OpenCalls(self.log, self._answers_of_open_calls(state))
        for draft in order.drafts:
            new: Sequence[Draft] = [draft]
            if draft.native is not None:
                item, opaque = self.item(draft.native, tag, order.unscanned)
                items[len(drafts)] = item.record
                first, *more = _drafts_of_item(state, draft, item, self.limits, calls)
                payloads = [part.event.payload() for part in (first, *more)]
                meta = first.meta.warned(REPAIRED) if item.repaired else first.meta
                meta = _with_rest_of_item(meta, item.record, payloads, self.limits)
                new = [replace(first, meta=meta, opaque=opaque), *more]
            keys.append(ports.Keyed(draft.key or "", len(drafts), len(new)))
            for added in new:
                state = evolve(state, added.event)
                calls.add(state.head_seq, added.event)
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
        """Redact the values in items that redaction found only in their events.

        This changes ``redacted``: the first event of such an item gets the new item.
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
            new_item = {**clean, "value": replaced(clean["value"], replacements)}
            meta = _with_rest_of_item(draft.meta, new_item, payloads, self.limits)
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
        """Redact the events, except those in ``cache``; add them to ``cache``.

        events:  the events of the order's drafts, after the decision.
        learned: the secrets that the session showed before the first event; None if
                 there are none.
        first:   the seq of the first event.

        Returns the redacted events, and the secrets after them.
        """
        results: list[RedactedEvent] = []
        user_id = order.stream.user_id
        for index, event in enumerate(events):
            cached = cache.get(index)
            redacted: RedactedEvent | None = None
            if cached is not None:
                cached_event, cached_redacted = cached
                if cached_event is event:
                    redacted = cached_redacted
            if redacted is None:
                draft = order.drafts[index]
                if draft.event is not event:
                    draft = self._with_event(draft, event, user_id)
                secrets = learned
                if secrets is not None and isinstance(draft, ItemDraft):
                    secrets = None  # the item was redacted before, in its own form
                redacted = self.redacted(
                    draft,
                    user_id=user_id,
                    now=now,
                    unscanned=order.unscanned,
                    tag=tag,
                    learned=secrets,
                )
                cache[index] = (event, redacted)
            if redacted.secrets:
                if learned is None:
                    learned = self.learned(SessionState(order.stream))
                learned.learn(redacted.secrets, first + index)
            results.append(redacted)
        return results, learned

    def _with_event(self, draft: Draft, event: Event, user_id: str) -> Draft:
        """Return the draft with the decided event, whose id or tool may be new."""
        incoming = draft.event
        with_call_id = (ToolCall, ToolResult)
        if isinstance(incoming, with_call_id) and isinstance(event, with_call_id):
            call_id = incoming.call_id
            if event.call_id != call_id:
                call_id = self.recorded_id(user_id, call_id)
            with_recorded_id = incoming.model_copy(update={"call_id": call_id})
            draft = with_id(replace(draft, event=with_recorded_id), event)
        return replace(draft, event=event)

    def _confirm(
        self, order: Order, cache: _Redacted, duplicate: ports.Duplicate
    ) -> Receipt:
        """Return the receipt of the append that used the idempotency key first.

        Raises IdempotencyConflict if that append had other content.
        """
        first, last = duplicate
        stored = self.log.read(order.stream, after=first - 1, upto=last)
        is_same = False
        if not self.redactor.numbered:
            is_same = self._is_same(order, cache, stored, first)
        if not is_same:
            # Redact the events again, with the numbers and secrets of the session.
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

        cache: the events of the order that are redacted already.
        first: the seq of the first stored event.
        state: a later state of the session, with its numbered placeholders and its
               secrets.  Secrets that it showed after the stored events are ignored.
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
            if not is_superseded and not same_event(as_given(envelope), clean.event):
                return False
        return True


# The field of an event that may have many small pieces, or one text in their place.
_FIELD_OF_PIECES: Final = {ToolResult: "content", ToolCall: "arguments", Item: "value"}
# The events of an item repeat its content at most this often.  So if the limit is this
# many times the size of the item, its events are not measured.
_MOST_REPEATS: Final = 8


def hash_at(log: ports.EventLog, stream: StreamId, seq: int) -> str:
    """Return the hash of the chain at a stored event.

    Raises Erased if the event is gone: its session was erased after it was found.
    """
    stored = log.read(stream, after=seq - 1, upto=seq)
    if not stored:
        raise errors.Erased("the session")
    return stored[0].hash


class _OpenCalls:
    """The open calls of a session, and the answers of the model that they belong to."""

    def __init__(self, log: ports.EventLog, answers: AnswersOfCalls) -> None:
        self.answers = answers
        self._log = log
        self._appended: dict[int, ToolCall] = {}  # by seq

    def add(self, seq: int, event: Event) -> None:
        """Add the next event that is appended."""
        self.answers.add(seq, event)
        if isinstance(event, ToolCall):
            self._appended[seq] = event

    def repeats(self, state: SessionState, call: ToolCall) -> bool:
        """Whether a call may equal the open call with its id.

        Numbers of placeholders do not count.  A stored call of which a part is in a
        blob may equal any call of its tool, and a call that a fork inherited, which is
        not in its log, any call.
        """
        seq = state.open_calls[call.call_id].seq
        open_event: Event | None = self._appended.get(seq)
        if open_event is None:
            stored = self._log.read(state.stream, after=seq - 1, upto=seq)
            open_event = stored[0].payload if stored else None
        if not isinstance(open_event, ToolCall) or open_event.call_id != call.call_id:
            return True
        if open_event.tool_name != call.tool_name:
            return False
        open_arguments = canonical(open_event.arguments).decode()
        if STUB_MARK in open_arguments:
            return True
        arguments = canonical(call.arguments).decode()
        return unnumbered(open_arguments) == unnumbered(arguments)


def _drafts_of_item(
    state: SessionState,
    draft: Draft,
    item: RedactedItem,
    limits: Limits,
    calls: _OpenCalls,
) -> list[ItemDraft]:
    """Return the drafts of the events that the format derives from an item.

    If the format derives no events, or the session does not accept them, the item
    becomes one ``item`` event.
    """
    native: Any = draft.native
    kind = native.kind
    value = item.record["value"]
    is_transcript = native.format.is_transcript
    begun = state.head_seq
    answers = calls.answers.copy()
    drafts: list[ItemDraft] = []
    try:
        for viewed in native.format.view(kind, value, state.open_calls):
            view = viewed if isinstance(viewed, Draft) else Draft(viewed)
            view = _with_own_id(
                state, begun, answers, view, item, calls if is_transcript else None
            )
            original = view.event
            event = accepted_next(state, _within(original, limits, item))
            named_by_call = _name_from_call(original, event)
            if named_by_call is not None:
                item.add_text(named_by_call)
            state = evolve(state, event)
            answers.add(state.head_seq, event)
            drafts.append(_draft_of_view(draft, view, event, item))
    except (InvalidEvent, ValueError, TypeError, LookupError, AttributeError):
        drafts = []
    if drafts:
        return drafts
    event = Item(format=native.format.name, kind=kind, value=value)
    event = _within(event, limits, item)
    return [_draft_of_view(draft, draft, event, item)]


def _name_from_call(original: Event, accepted: Event) -> str | None:
    """Return the tool's name that a result got from its recorded call, or None."""
    if not isinstance(original, ToolResult) or not isinstance(accepted, ToolResult):
        return None
    if original.tool_name is not None:
        return None
    return accepted.tool_name


def _with_own_id(
    state: SessionState,
    begun: int,
    answers: AnswersOfCalls,
    draft: Draft,
    item: RedactedItem,
    calls: _OpenCalls | None,
) -> Draft:
    """Return the draft; a call gets a new id if an open call has the provider's id.

    The other call must belong to the same item, or to another entry of a transcript.

    begun:   the newest seq before the item.
    answers: those of the calls so far.
    calls:   those before the item, if it is an entry of a transcript.
    """
    event = draft.event
    renamed = event
    if isinstance(event, ToolCall):
        open_call = state.open_calls.get(event.call_id)
        if open_call is not None:
            is_of_item = open_call.seq > begun
            is_other = calls is not None and not calls.repeats(state, event)
            if is_of_item or is_other:
                renamed = with_own_id(state, event)
    elif isinstance(event, ToolResult) and repeats_id(state):
        renamed = with_recorded_id(state, event, answers)
    if renamed is event or not isinstance(renamed, ToolCall | ToolResult):
        return draft
    item.add_text(renamed.call_id)
    return with_id(draft, renamed)


def _draft_of_view(
    draft: Draft, view: Draft, event: Event, item: RedactedItem
) -> ItemDraft:
    """Return the draft of one event of an item, with fields of the item by default."""
    return ItemDraft(
        event,
        view.ts or draft.ts,
        view.request_id or draft.request_id,
        view.agent or draft.agent,
        draft.meta if view.meta is NO_META else view.meta,
        item=item,
    )


def _within(event: Event, limits: Limits, item: RedactedItem) -> Event:
    """Return the event, with one text in place of too many small pieces."""
    if item.size * _MOST_REPEATS < limits.event_bytes:
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
    """Return the event with one text in place of its pieces, or None without pieces.

    A blob can hold the text if it is too long.
    """
    for kind, name in _FIELD_OF_PIECES.items():
        if not isinstance(event, kind):
            continue
        pieces = getattr(event, name)
        if isinstance(pieces, list | dict):
            return event.model_copy(update={name: canonical(pieces).decode()})
    return None


def _with_rest_of_item(
    meta: Meta, clean: JsonObject, payloads: Sequence[JsonObject], limits: Limits
) -> Meta:
    """Return ``meta`` with the parts of the item that its events do not contain."""
    value = skeleton(clean["value"], payloads, most=limits.event_bytes // 2)
    native = {**clean, "value": value, "n": len(payloads)}
    return meta.model_copy(update={"native": native})


def _evolved(state: SessionState, redacted: Sequence[RedactedEvent]) -> SessionState:
    """Return the state after these events; raises InvalidEvent for an invalid id."""
    for clean in redacted:
        if isinstance(clean.event, ToolCall):
            # Redaction may have changed its id: check that the new one is valid.
            accepted_next(state, clean.event)
        state = evolve(state, clean.event)
    return state


class _AllPresent(Exception):
    """The stream has every draft of an order already, under the same keys."""

    def __init__(self, first_seq: int, last_seq: int) -> None:
        super().__init__(first_seq, last_seq)
        self.first_seq = first_seq
        self.last_seq = last_seq


def _stale(order: Order, expected: int, actual: int) -> StaleSession:
    """Return the error for a stream with newer events than the writer expected."""
    return StaleSession(order.stream.session_id, expected=expected, actual=actual)


def _checked(order: Order) -> Order:
    """Return the order with ``plain`` set; raises InvalidEvent for an invalid order."""
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
    """Whether two events are equal; a result may lack the name of its tool."""
    if isinstance(stored, ToolResult) and isinstance(other, ToolResult):
        name = stored.tool_name if other.tool_name is None else other.tool_name
        other = other.model_copy(update={"tool_name": name})
    if stored.type != other.type:
        return False
    return canonical(stored.payload()) == canonical(other.payload())


def as_given(stored: Envelope) -> Event:
    """Return the event as the caller gave it: calls have the ids of their provider."""
    event = stored.payload
    call_id = stored.meta.call_id
    if call_id is None or not isinstance(event, ToolCall | ToolResult):
        return event
    return event.model_copy(update={"call_id": call_id})


def superseded(stored: Envelope, other: Event) -> bool:
    """Whether the stored event has the other event's type and was redacted again.

    Then their contents cannot be compared.  Only the idempotency key, or the place in a
    transcript, shows that they are one event.
    """
    return stored.type == other.type and "before" in stored.redaction


class Heads:
    """The head of each stream that this process saw last.

    A head may be old.  The log checks the head of each append, and refuses an old one.
    """

    def __init__(self) -> None:
        self._heads: OrderedDict[StreamId, ports.Head] = OrderedDict()
        self._lock = forkable_lock()
        self._listeners: dict[StreamId, list[Callable[[], object]]] = {}

    @contextmanager
    def listening(
        self, stream: StreamId, notify: Callable[[], object]
    ) -> Iterator[None]:
        """In the block, call ``notify`` for each new head; in any thread."""
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
        """Return the head that was seen last; None if the stream had no events."""
        head = self._heads.get(stream)  # atomic, so it needs no lock
        if head is None or head.state.head_seq == 0:
            return None
        return head

    def correct(self, head: ports.Head) -> None:
        """Remember a head that was just read, also if it is older than the last one."""
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
            if len(self._heads) > _MOST_HEADS:
                self._heads.popitem(last=False)
            if self._listeners:
                listeners = tuple(self._listeners.get(stream, ()))
        for notify in listeners:
            notify()


# A value of these types is one event to append, although some of them are iterable.
_SINGLE_TYPES: Final = (Event, Draft, str, bytes, Mapping)


def draft_fields(
    ts: datetime | None,
    request_id: str | None,
    agent: str | None,
    meta: Meta | Mapping[str, object] | None,
) -> DraftFields:
    """Return the fields of a ``Draft`` that all events of one append share."""
    return ts, request_id, agent, Meta.of(meta) if meta else NO_META


def drafts_of(
    events: Appendable | Sequence[Appendable], fields: DraftFields
) -> tuple[Draft, ...]:
    """Return a draft for each event.  A draft among the events keeps its fields.

    Raises InvalidEvent for a value that is not an event, and for a ts without a time
    zone.
    """
    if isinstance(events, _SINGLE_TYPES) or not isinstance(events, Iterable):
        return (_draft(events, fields),)
    return tuple([_draft(event, fields) for event in events])


def _draft(value: object, fields: DraftFields) -> Draft:
    """Return the draft of a value; raises the errors of ``drafts_of``."""
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
    """Let the log's own thread write the request; None if the log has none."""
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
        with suppress(RuntimeError):  # the loop is closed, so nothing waits for it
            loop.call_soon_threadsafe(settle, outcome)

    if not log.append_soon(request, done):
        return None
    return await written


def _characters(value: Any, most: int) -> int:
    """Return about how many characters a value has; counting stops above ``most``."""
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
