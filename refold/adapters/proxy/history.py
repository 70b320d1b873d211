"""Compares a request with a session, and plans how the session follows it.

A request carries the whole history.  The session has most of it already, so only new
content is appended.  If the client left something out, put a summary in the place of
earlier messages, or cleared results, ``provider_edit`` events record that.  Afterwards,
the context of the session has the same content as the request, in the same order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from refold.adapters.proxy.conversation import WireMessage
from refold.adapters.proxy.parts import (
    CapturedAnswer,
    captured_answers,
    is_order,
    joined,
)
from refold.domain import events as kinds
from refold.domain.canonical import canonical, repaired
from refold.domain.envelope import Envelope, Meta
from refold.domain.events import EditReason, Event, JsonObject
from refold.domain.ids import provider_response_id
from refold.projections.context.edits import Edited, applied, edits_in
from refold.projections.context.units import is_among

# Returns the keyed digest of an identity.
Digest = Callable[[bytes], str]
_DIGEST_BYTES: Final = 16
# Calls and results, which may have another content than the event that they continue.
MATCHED_BY_ID: Final = ("tool_call", "tool_result")
# The most messages whose items are remembered, and the most bytes of their content.
_MOST_MESSAGES: Final = 10_000
_MOST_BYTES: Final = 32 << 20
# The digits of a digest.  Redaction takes no word of letters for a number.
_LETTERS: Final = str.maketrans("0123456789abcdef", "abcdefghijklmnop")
# Content of the model that may stand between the calls of one answer.
_WITHIN_ANSWER: Final = ("agent_response", "item", "provider_edit")
# Fewer equal events behind new ones are a coincidence, such as a second "yes".
_SHORTEST_TAIL: Final = 2
# The most runs of old items behind new ones that are tried.
_MOST_TAILS: Final = 24


def digest_with(key: bytes) -> Digest:
    """Return the function that makes keyed digests with the key of a user."""

    def digest(data: bytes) -> str:
        keyed = blake2b(data, key=key[:64], digest_size=_DIGEST_BYTES)
        return keyed.hexdigest().translate(_LETTERS)

    return digest


def identity(event: Event) -> list[Any] | None:
    """Return the part of an event that a request repeats.

    Two events with the same identity show a model the same.  Returns None for an event
    that shows it nothing, such as a response without text and signed thinking.
    """
    match event:
        case kinds.UserInput(text=text, attachments=attachments):
            files = [file.model_dump(exclude_none=True) for file in attachments]
            return ["user", text, files]
        case kinds.AgentResponse(text=text):
            thinking = _signed_thinking(event)
            if not text.strip() and not thinking:
                return None
            # Contexts show it without the white space at its end.
            return ["agent", text.rstrip(), thinking]
        case kinds.ToolCall(call_id=call_id, tool_name=tool, arguments=arguments):
            return ["call", call_id, tool, arguments]
        case kinds.ToolResult(call_id=call_id, content=content, status=status):
            return ["result", call_id, status, content]
        case kinds.ProviderEdit(blocks=blocks, content=content):
            if event.spans or not (blocks or content):
                return None
            return ["blocks", blocks, content]
        case kinds.SystemPrompt(text=str(text), where="conversation"):
            return ["system", text]
        case kinds.Item(format=form, kind=kind, value=value):
            return ["item", form, kind, value]
    return None


def _signed_thinking(response: kinds.AgentResponse) -> list[JsonObject]:
    """Return the thinking that a request must repeat unchanged."""
    signed: list[JsonObject] = []
    for thinking in response.thinking:
        if thinking.signature or thinking.data:
            signed.append(thinking.model_dump(exclude_none=True))
    return signed


def digest_of(digest: Digest, value: list[Any]) -> str:
    """Return the keyed digest of an identity, also of one that JSON cannot hold."""
    try:
        return digest(canonical(value))
    except TypeError:
        return digest(canonical(repaired(value)[0]))


class Item(NamedTuple):
    """A part of a request: an event, or an event of the session that it continues.

    type:    of the event.
    digest:  the keyed digest of its identity.
    bare:    of a response with signed thinking, the digest without it; else empty.
    call_id: of a call or a result; else empty.
    event:   None for an event that the session has and the request does not repeat.
    lead:    a response without text, which begins the answer that the event is in.
    continues: the seq of the entry whose answer the event completes; 0 for none.
    """

    type: str
    digest: str
    bare: str = ""
    call_id: str = ""
    event: Event | None = None
    lead: Event | None = None
    continues: int = 0


def item_of(event: Event, digest: Digest) -> Item | None:
    """Return the item of an event; None for an event that shows a model nothing."""
    value = identity(event)
    if value is None:
        return None
    bare = ""
    if value[0] == "agent" and value[2]:
        bare = digest_of(digest, ["agent", value[1], []])
    call_id = ""
    if isinstance(event, kinds.ToolCall | kinds.ToolResult):
        call_id = event.call_id
    return Item(event.type, digest_of(digest, value), bare, call_id, event)


class Items:
    """Makes the items of messages, and remembers those of the last requests.

    A protocol returns the same message for the same content, so most messages of a
    request were seen before.
    """

    def __init__(self, digest: Digest, *, most_bytes: int = _MOST_BYTES) -> None:
        self.digest = digest
        self._most_bytes = most_bytes
        self._by_message: OrderedDict[int, _Remembered] = OrderedDict()
        self.remembered_bytes = 0

    def of(self, messages: Iterable[WireMessage]) -> list[Item]:
        """Return the items of the messages of a request."""
        items: list[Item] = []
        for message in messages:
            # The id stays that of the message as long as the message is remembered.
            remembered = self._by_message.get(id(message))
            if remembered is None:
                remembered = self._remember(message)
            items += remembered.items
        return items

    def _remember(self, message: WireMessage) -> _Remembered:
        """Make the items of a message, and forget the oldest messages."""
        byte_count = 0

        def counted(data: bytes) -> str:
            nonlocal byte_count
            byte_count += len(data)
            return self.digest(data)

        items = _items_of(message, counted)
        remembered = _Remembered(message, items, byte_count)
        self._by_message[id(message)] = remembered
        self.remembered_bytes += byte_count
        while (
            self.remembered_bytes > self._most_bytes
            or len(self._by_message) > _MOST_MESSAGES
        ):
            _, oldest = self._by_message.popitem(last=False)
            self.remembered_bytes -= oldest.byte_count
        return remembered


class _Remembered(NamedTuple):
    """A message, its items, and the bytes of its content."""

    message: WireMessage
    items: list[Item]
    byte_count: int


def _items_of(message: WireMessage, digest: Digest) -> list[Item]:
    """Return the items of a message."""
    items: list[Item] = []
    lead: Event | None = None
    for event in message.events:
        item = item_of(event, digest)
        if item is not None:
            items.append(item._replace(lead=lead) if lead else item)
            lead = None
        elif isinstance(event, kinds.AgentResponse):
            lead = event
    return items


@dataclass(slots=True)
class Entry:
    """An event of the session that a request may repeat.

    digest:  as in ``Item``, of what contexts show in its place.
    digests: its digest and its former ones.
    bare:    as in ``Item``.
    tool:    of a call.
    status:  of a result.
    changed: whether contexts show it redacted or cut.
    recorded_id: of a call or a result, its call id in the log if that is not the
             provider's; else empty.
    response_id: the provider's id of its answer; empty if it is not known.
    edits:   the seqs of the edits that change its content.
    parts:   the seqs of all responses of its answer, if another writer appended them
             one by one; else empty.
    """

    seq: int
    type: str
    digest: str
    digests: frozenset[str]
    bare: str = ""
    call_id: str = ""
    tool: str = ""
    status: str = ""
    changed: bool = False
    recorded_id: str = ""
    response_id: str = ""
    edits: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()

    @property
    def seqs(self) -> tuple[int, ...]:
        """The seqs of the events with its content."""
        return self.parts or (self.seq,)

    @classmethod
    def of(
        cls, seq: int, item: Item, *, changed: bool = False, recorded_id: str = ""
    ) -> Entry:
        """Return the entry of an item that was appended at ``seq``."""
        event = item.event
        status = event.status if isinstance(event, kinds.ToolResult) else ""
        tool = event.tool_name if isinstance(event, kinds.ToolCall) else ""
        return cls(
            seq=seq,
            type=item.type,
            digest=item.digest,
            digests=frozenset({item.digest}),
            bare=item.bare,
            call_id=item.call_id,
            tool=tool,
            status=status,
            changed=changed,
            recorded_id=recorded_id,
        )

    def item(self) -> Item:
        """Return the item of a request that continues this event."""
        return Item(self.type, self.digest, self.bare, self.call_id)


@dataclass(slots=True)
class History:
    """The conversation of a session, as far as comparisons need it.

    entries: by seq, also those that contexts leave out.
    shown:   the seqs that contexts show, in their order.
    front:   the seqs that contexts show before all others (``in_place``).
    digests: those of all entries, also their former ones.
    silent:  the seqs of events that no request repeats, such as the beginning of an
             answer without text, each with the seq of the entry that it belongs to;
             None if it belongs to none.  A fork has the seq 0 and negative ones.
    leads:   of these, the beginnings of answers whose first entry comes next.
    last:    the seq of the newest entry; None before the first.
    captured: the seqs of events that another writer appended, such as a capture.
    captured_answers: the answers that another writer began to append.
    in_parts: the seqs of the entries with several responses of an answer.
    """

    entries: dict[int, Entry] = field(default_factory=dict)
    shown: list[int] = field(default_factory=list)
    front: set[int] = field(default_factory=set)
    digests: set[str] = field(default_factory=set)
    silent: dict[int, int | None] = field(default_factory=dict)
    leads: list[int] = field(default_factory=list)
    last: int | None = None
    captured: set[int] = field(default_factory=set)
    captured_answers: list[CapturedAnswer] = field(default_factory=list)
    in_parts: set[int] = field(default_factory=set)

    @property
    def newest_captured(self) -> CapturedAnswer | None:
        """The newest answer that another writer began to append."""
        return self.captured_answers[-1] if self.captured_answers else None

    def add(self, entry: Entry) -> None:
        """Add an event that was appended to the end."""
        self.put(entry)
        self.shown.append(entry.seq)

    def put(self, entry: Entry) -> None:
        """Add an event that contexts may show anywhere."""
        self.entries[entry.seq] = entry
        self.digests |= entry.digests
        self.last = entry.seq
        for seq in self.leads:
            self.silent[seq] = entry.seq
        self.leads.clear()
        if entry.bare:
            self.digests.add(entry.bare)

    def adopt(self, entry: Entry, item: Item) -> None:
        """Note that an event of another writer records an item of a request."""
        entry.digest = item.digest
        entry.digests |= {item.digest}
        entry.bare = item.bare
        self.digests.add(item.digest)
        if item.bare:
            self.digests.add(item.bare)

    def complete(self, item: Item, seq: int, *, changed: bool) -> None:
        """Note that the event at ``seq`` has the rest of an answer.

        item:    of the whole answer.
        changed: whether contexts show the rest redacted or cut.
        """
        entry = self.entries[item.continues]
        self.adopt(entry, item)
        entry.changed = entry.changed or changed
        entry.parts = (*entry.seqs, seq)
        self.silent[seq] = entry.seq
        self.captured.discard(entry.seq)
        self.in_parts.add(entry.seq)

    def has_text_behind_call(self, entry: Entry) -> bool:
        """Whether a response of an answer in parts came after one of its calls.

        Contexts show such an answer in several exchanges, unlike the client.
        """
        for seq in range(entry.parts[0], entry.parts[-1]):
            between = self.entries.get(seq)
            if between is not None and between.type == "tool_call":
                return True
        return False

    def without_orders(
        self, items: Sequence[Item], *, completed: Item | None = None
    ) -> Sequence[Item]:
        """Return items without the orders of answers that were appended in parts.

        The log has the order of these parts, so it needs no event with it.

        completed: an answer, the rest of which is appended with this request.
        """
        of_parts: set[str] = set()
        if completed is not None:
            of_parts.add(completed.digest)
        for seq in self.in_parts:
            of_parts |= self.entries[seq].digests
        needed: list[Item] = []
        is_of_parts = False
        for item in items:
            if item.type == "agent_response":
                is_of_parts = item.digest in of_parts
            if not (is_of_parts and is_order(item.event)):
                needed.append(item)
        return needed

    def add_silent(self, seq: int, event: object) -> None:
        """Add an event that contexts may show, and that no request repeats."""
        if isinstance(event, kinds.Request | kinds.StateUpdate):
            return
        if isinstance(event, kinds.ProviderEdit) and event.spans:
            return
        self.silent[seq] = self.last
        if isinstance(event, kinds.AgentResponse):
            self.silent[seq] = None
            self.leads.append(seq)

    def with_silent(self, seqs: Iterable[int]) -> list[int]:
        """Return seqs, and those of the silent events that belong to them."""
        chosen = set(seqs)
        if not chosen:
            return []
        silent = [seq for seq, owner in self.silent.items() if owner in chosen]
        return sorted(chosen.union(silent))

    def seqs_of_view(self) -> list[int]:
        """Return the seqs of the events that contexts show, and of their edits."""
        shown = set(self.with_silent(self.shown))
        shown.update(seq for seq, owner in self.silent.items() if owner is None)
        for seq in self.shown:
            shown.update(self.entries[seq].edits)
        return sorted(shown)

    def front_of_view(self) -> list[int]:
        """Return the seqs that contexts show before all others."""
        return self.with_silent(self.front.intersection(self.shown))

    def restore(self, seqs: Iterable[int]) -> None:
        """Let contexts show events again that they left out."""
        self.shown = self.order([*self.shown, *seqs])

    def clear(self, seq: int, item: Item, edit_seq: int, *, changed: bool) -> None:
        """Note that contexts show an event with the content of an item from now on.

        edit_seq: of the edit that records this.
        changed:  whether the edit is redacted or cut.
        """
        entry = self.entries[seq]
        entry.digest = item.digest
        entry.digests |= {item.digest}
        entry.bare = ""
        entry.edits = (*entry.edits, edit_seq)
        if entry.type != "agent_response":  # its text stays as it was
            entry.changed = changed
        self.digests.add(item.digest)

    @classmethod
    def of(cls, envelopes: Sequence[Envelope], digest: Digest) -> History:
        """Read the history of a session from its log.

        An event that the proxy recorded has the digest of its original in its meta.
        For any other, the digest of the stored form is used.
        """
        edited = applied(edits_in(envelopes))
        history = cls()
        cleared_digests: dict[int, list[str]] = {}
        for envelope in envelopes:
            for seq, cleared in cleared_in(envelope).items():
                cleared_digests.setdefault(seq, []).append(cleared)
        answers = captured_answers(envelopes, is_of_proxy=is_of_proxy)
        history.captured_answers = answers
        parts = _joined_parts(answers, edited)
        for envelope in envelopes:
            if not envelope.meta.in_context:
                continue
            responses = parts.get(envelope.seq)
            if responses and responses[0].seq < envelope.seq:
                history.silent[envelope.seq] = responses[0].seq
                continue
            entry = _entry_of(responses or [envelope], digest)
            if entry is None:
                history.add_silent(envelope.seq, envelope.payload)
                continue
            _clear(entry, responses or [envelope], edited, cleared_digests, digest)
            history.put(entry)
            if entry.parts:
                history.in_parts.add(entry.seq)
            if not any(is_of_proxy(part) for part in responses or [envelope]):
                history.captured.add(entry.seq)
            if is_among(edited.in_place, entry.seq):
                history.front.add(entry.seq)
        history.shown = history.order(
            seq for seq in history.entries if not is_among(edited.left_out, seq)
        )
        return history

    def matches(self, entry: Entry, item: Item) -> bool:
        """Whether an item is an event of the session, also with another content.

        The content may be cleared.  A call may have other arguments than the model's:
        clients add defaults, and people change commands.  An id can come again with
        another call, so arguments that another event has are not such a change.
        """
        if entry.digest == item.digest or _is_cleared(entry, item):
            return True
        if not _is_same_call(entry, item):
            return False
        return item.digest in entry.digests or item.digest not in self.digests

    def may_have(self, item: Item) -> bool:
        """Whether an event of the session may match an item."""
        return item.digest in self.digests or item.type in MATCHED_BY_ID

    def begins_with_left_out(self, items: Sequence[Item]) -> bool:
        """Whether the first item may be an event that a late request left out.

        Another writer appended it before the request was recorded.
        """
        if not items or not self.captured or not self.may_have(items[0]):
            return False
        newest_shown = self.shown[-1] if self.shown else 0
        return any(
            seq > newest_shown and self.matches(self.entries[seq], items[0])
            for seq in self.captured
        )

    def calls_by_recorded_id(self, recorded_ids: Iterable[str]) -> dict[str, int]:
        """Return the seq of the newest call with each of these ids in the log.

        The calls of a fork's origin have the seqs that the fork gives them.
        """
        wanted = set(recorded_ids)
        seqs: dict[str, int] = {}
        for seq, entry in reversed(self.entries.items()):
            if not wanted:
                break
            recorded_id = entry.recorded_id or entry.call_id
            if entry.type == "tool_call" and recorded_id in wanted:
                wanted.remove(recorded_id)
                seqs[recorded_id] = seq
        return seqs

    def found(self, items: Sequence[Item]) -> tuple[int, ...]:
        """Return the seqs of the first items that the log has in this order."""
        if not items:
            return ()
        if not self.may_have(items[0]):
            return ()
        return _subsequence(self, sorted(self.entries), items)

    def in_order(self, items: Sequence[Item]) -> tuple[int, ...]:
        """Return the seqs of the first items that contexts show in this order.

        The client may have left out events between them.
        """
        return _subsequence(self, self.shown, items)

    def order(self, seqs: Iterable[int]) -> list[int]:
        """Return seqs in the order in which contexts show them."""
        return sorted(seqs, key=lambda seq: (seq not in self.front, seq))


def _joined_parts(
    answers: Iterable[CapturedAnswer], edited: Edited
) -> dict[int, list[Envelope]]:
    """Return the responses of the answers that have several, by the seq of each.

    Contexts show all or none of them.
    """
    parts: dict[int, list[Envelope]] = {}
    for answer in answers:
        responses = answer.responses
        left_out = {is_among(edited.left_out, part.seq) for part in responses}
        if len(responses) < 2 or len(left_out) > 1:
            continue
        if identity(joined(_events(responses))) is not None:
            for response in responses:
                parts[response.seq] = responses
    return parts


def _events(envelopes: Iterable[Envelope]) -> list[Event]:
    return [envelope.payload for envelope in envelopes]


def _entry_of(envelopes: Sequence[Envelope], digest: Digest) -> Entry | None:
    """Return the entry of a stored event; None if no request repeats it.

    envelopes: the event, or all responses of an answer.
    """
    envelope = envelopes[0]
    # If the proxy appended the rest of an answer, that has the digests of the whole.
    wire = wire_of(envelopes[-1])
    if wire.get("of_rest"):
        return None  # the order of the rest of an answer, which only contexts need
    recorded = wire.get("item")
    if envelope.type == "item" and recorded is None:
        return None  # it belongs to an answer, or to another writer
    item = item_of(_shown_as_one(envelopes), digest)
    if item is None:
        return None
    is_changed = False
    if isinstance(recorded, str):
        is_changed = recorded != item.digest
        item = item._replace(digest=recorded, bare=str(wire.get("bare") or ""))
    recorded_id = recorded_call_id(envelope.payload, envelope.meta)
    entry = Entry.of(envelope.seq, item, changed=is_changed, recorded_id=recorded_id)
    entry.response_id = response_id_of(envelope.meta)
    if len(envelopes) > 1:
        entry.parts = tuple(part.seq for part in envelopes)
    return entry


def _shown_as_one(envelopes: Sequence[Envelope]) -> Event:
    """Return an event as it was sent; several responses of an answer are one event."""
    if len(envelopes) > 1:
        return joined(_events(envelopes))
    return as_sent(envelopes[0])


def recorded_call_id(event: Event, meta: Meta) -> str:
    """Return the call id in the log; an empty text if it is the provider's."""
    if meta.call_id is None or not isinstance(event, kinds.ToolCall | kinds.ToolResult):
        return ""
    return event.call_id


def as_sent(envelope: Envelope) -> Event:
    """Return the event with the call id that the provider gave."""
    event = envelope.payload
    call_id = envelope.meta.call_id
    if call_id is None or not isinstance(event, kinds.ToolCall | kinds.ToolResult):
        return event
    return event.model_copy(update={"call_id": call_id})


def _clear(
    entry: Entry,
    envelopes: Sequence[Envelope],
    edited: Edited,
    digests: Mapping[int, Sequence[str]],
    digest: Digest,
) -> None:
    """Give an entry the digest of its cleared form, if contexts show it cleared.

    envelopes: the event, or all responses of an answer.
    digests:   by seq, those that the edits of the proxy recorded.
    """
    shown: list[Envelope] = []
    edits: set[int] = set()
    for envelope in envelopes:
        cleared = edited.cleared_form(envelope)
        shown.append(cleared or envelope)
        if cleared is not None:
            edits.update(edit.at for edit in edited.cleared[envelope.seq])
    if not edits:
        return
    entry.edits = tuple(sorted(edits))
    item = item_of(_shown_as_one(shown), digest)
    shown_digest = item.digest if item else ""
    recorded = digests.get(entry.seq, ())
    entry.digest = recorded[-1] if recorded else shown_digest
    entry.digests |= {*recorded, entry.digest}
    entry.bare = ""
    if entry.type != "agent_response":
        entry.changed = entry.digest != shown_digest


def wire_of(envelope: Envelope) -> JsonObject:
    """Return what the proxy recorded in the meta of an event."""
    return _wire_in(envelope.meta)


def _wire_in(meta: Meta) -> JsonObject:
    wire = (meta.model_extra or {}).get("wire")
    return wire if isinstance(wire, dict) else {}


def response_id_of(meta: Meta) -> str:
    """Return the provider's id of an event's answer; empty if it is not known.

    The rest of an answer that another writer named has the provider's id besides.
    """
    recorded = _wire_in(meta).get("response_id")
    if isinstance(recorded, str):
        return recorded
    return provider_response_id(meta.response_id)


def is_of_proxy(envelope: Envelope) -> bool:
    """Whether the proxy recorded an event of a conversation."""
    return "item" in wire_of(envelope)


def cleared_in(envelope: Envelope) -> dict[int, str]:
    """Return the digests of the events that an edit of the proxy cleared, by seq."""
    cleared = wire_of(envelope).get("cleared")
    if envelope.type != "provider_edit" or not isinstance(cleared, dict):
        return {}
    return {int(seq): str(value) for seq, value in cleared.items()}


class Plan(NamedTuple):
    """How a session follows a request.

    places:   for each item of the request, the seq that has it; None if it is new.
    left_out: the seqs that contexts leave out from now on.
    restored: the seqs that contexts show again.
    cleared:  seqs whose content the client replaced, each with the item that it sent.
    front:    the seqs that contexts show before all others from now on.
    new_in_front: the number of new items that come before all others, too.
    has_summary: whether the first new item stands for everything that is left out.
    reason:   the cause of the change; empty without one.
    """

    places: tuple[int | None, ...]
    left_out: tuple[int, ...] = ()
    restored: tuple[int, ...] = ()
    cleared: tuple[tuple[int, Item], ...] = ()
    front: tuple[int, ...] = ()
    new_in_front: int = 0
    has_summary: bool = False
    reason: EditReason = ""

    @property
    def has_edit(self) -> bool:
        """Whether contexts change, apart from what is appended."""
        changed = self.left_out or self.restored or self.cleared or self.front
        return bool(changed or self.new_in_front)


def plan(history: History, items: Sequence[Item], *, open_calls: set[int]) -> Plan:
    """Plan how the session gets the same content as the request.

    As much as possible of what the session has stays.  If the client only left
    something out, or went back to an earlier message, the rest stays in its place.  If
    it put new messages before old ones, as a compaction does, the new ones and those
    before them come to the front.  Where neither is possible, the rest is appended
    again.

    open_calls: the seqs of calls of the session that have no result.
    """
    shared, cleared = _shared_beginning(history, items)
    if shared == len(history.shown) and not history.begins_with_left_out(
        items[shared:]
    ):
        places = _places(history.shown, items)
        if _new_are_answerable(history, items[shared:], open_calls):
            return Plan(places, cleared=cleared)
    # Parallel calls end in any order, which need not be that of the request.
    paired = _order_of_pairs(history.entries[seq] for seq in history.shown)
    order = _order_of_pairs(items)
    changes = _best_plan(
        replace(history, shown=[history.shown[index] for index in paired]),
        [items[index] for index in order],
        open_calls,
    )
    return _in_order_of(changes, order) or _changed(history, items, [])


def _best_plan(history: History, items: Sequence[Item], open_calls: set[int]) -> Plan:
    """Return the plan that appends the fewest items.

    The results in the history and among the items stand behind their calls.
    """
    shared, _ = _shared_beginning(history, items)
    best: Plan | None = None
    for candidate in _candidates(history, items, shared, open_calls):
        pairs_agree = _is_answerable(items, candidate.places, open_calls)
        if not pairs_agree or not _has_order(history, items, candidate):
            continue
        if best is None or _kept(candidate) > _kept(best):
            best = candidate
    # The shared beginning, or as much of it as leaves calls and results together.
    fewest_kept = 0 if best is None else _kept(best)
    for length in range(shared, fewest_kept, -1):
        candidate = _changed(history, items, history.shown[:length])
        pairs_agree = _is_answerable(items, candidate.places, open_calls)
        if pairs_agree and _has_order(history, items, candidate):
            return candidate
    return best or _changed(history, items, [])


def _order_of_pairs(parts: Iterable[Item | Entry]) -> list[int]:
    """Return the indices of parts in an order with each result behind its call.

    Contexts show them so in any case, wherever the results are in the log.
    """
    listed = list(parts)
    call_of = calls_of_results(listed)
    results: dict[int, list[int]] = {}  # by the index of the call
    order: list[int] = []
    for index in range(len(listed)):
        if index in call_of:
            results.setdefault(call_of[index], []).append(index)
        else:
            order.append(index)
    paired: list[int] = []
    for index in order:
        paired.append(index)
        paired += results.get(index, ())
    return paired


def calls_of_results(parts: Iterable[Item | Entry]) -> dict[int, int]:
    """Return the index of the call that each result answers, by the result's index.

    An id may come again, in a later answer or in the same one.  A result belongs to the
    newest answer with its id, and there to the first call that waits for a result.
    Nothing but content of the model stands between the calls of one answer.
    """
    call_of: dict[int, int] = {}
    # By id, the calls of the newest answer, of which only the last may have a result.
    calls: dict[str, list[int]] = {}
    answer_of: dict[str, int] = {}  # by id, the number of that answer
    answer = 0
    for index, part in enumerate(parts):
        if part.type == "tool_call":
            if answer_of.get(part.call_id) == answer:
                calls[part.call_id].append(index)
            else:
                calls[part.call_id] = [index]
                answer_of[part.call_id] = answer
            continue
        if part.type not in _WITHIN_ANSWER:
            answer += 1
        if part.type == "tool_result" and part.call_id in calls:
            waiting = calls[part.call_id]
            call_of[index] = waiting[0]
            if len(waiting) > 1:
                del waiting[0]
    return call_of


def _in_order_of(changes: Plan, order: Sequence[int]) -> Plan | None:
    """Return the plan for items in their first order.

    order: the index that each item of the plan has there.

    Returns None if other new items would come to the front.
    """
    places: list[int | None] = [None] * len(order)
    for index, seq in zip(order, changes.places, strict=True):
        places[index] = seq
    new = [index for index in order if places[index] is None]
    first = changes.new_in_front + changes.has_summary
    if sorted(new[:first]) != sorted(new)[:first]:
        return None
    return changes._replace(places=tuple(places))


def _kept(candidate: Plan) -> int:
    """Return how many items a plan does not append."""
    return len(candidate.places) - candidate.places.count(None)


def _shared_beginning(
    history: History, items: Sequence[Item]
) -> tuple[int, tuple[tuple[int, Item], ...]]:
    """Return the length of the common beginning, and the results cleared in it."""
    cleared: list[tuple[int, Item]] = []
    shared = 0
    for seq, item in zip(history.shown, items, strict=False):
        entry = history.entries[seq]
        if entry.digest != item.digest:
            if not history.matches(entry, item):
                break
            cleared.append((seq, item))
        shared += 1
    return shared, tuple(cleared)


def _is_cleared(entry: Entry, item: Item) -> bool:
    """Whether the client sent the same event with less content."""
    if entry.edits:
        return False
    event = item.event
    if isinstance(event, kinds.ToolResult):
        return (
            entry.type == "tool_result"
            and entry.call_id == event.call_id
            and entry.status == event.status
            and isinstance(event.content, str)
            and bool(event.content)
        )
    return bool(entry.bare) and entry.bare == item.digest


def _is_same_call(entry: Entry, item: Item) -> bool:
    """Whether both are calls of the same tool with the same id."""
    event = item.event
    return (
        isinstance(event, kinds.ToolCall)
        and entry.type == "tool_call"
        and entry.call_id == event.call_id
        and entry.tool == event.tool_name
    )


def _places(
    first: Sequence[int | None], items: Sequence[Item]
) -> tuple[int | None, ...]:
    """Return the places of items of which the first have these places."""
    return (*first, *[None] * (len(items) - len(first)))


def _candidates(
    history: History, items: Sequence[Item], shared: int, open_calls: set[int]
) -> Iterator[Plan]:
    """Yield plans, each of which may be impossible."""
    shown = history.shown
    front_length = sum(1 for seq in shown if seq in history.front)
    # Whole histories, with gaps where the client left something out.
    in_order = _subsequence(history, shown, items)
    yield _changed(history, items, in_order)
    if items and history.may_have(items[0]):
        behind = [seq for seq in history.entries if seq not in history.front]
        # The items have each result behind its call, which a left-out one need not.
        paired = _order_of_pairs(history.entries[seq] for seq in behind)
        behind = [behind[index] for index in paired]
        with_restored = _subsequence(history, [*shown[:front_length], *behind], items)
        if len(with_restored) > len(in_order):
            yield _changed(history, items, with_restored)
    # New results of old calls, with old content behind them.
    yield _changed(history, items, _with_new_results(history, items, open_calls))
    # New messages before old ones.
    for head in dict.fromkeys((in_order[:shared], in_order, ())):
        yield from _with_tail(history, items, list(head))


def _subsequence(
    history: History, seqs: Sequence[int], items: Sequence[Item]
) -> tuple[int, ...]:
    """Return the seqs of the longest beginning of the items that is among ``seqs``."""
    matched: list[int] = []
    at = 0
    for item in items:
        if not history.may_have(item):
            break
        while at < len(seqs) and not history.matches(history.entries[seqs[at]], item):
            at += 1
        if at == len(seqs):
            break
        matched.append(seqs[at])
        at += 1
    return tuple(matched)


def _with_new_results(
    history: History, items: Sequence[Item], open_calls: set[int]
) -> list[int | None]:
    """Return the places of the longest beginning of the items that the session shows.

    It may have new results of calls that wait for them: contexts show these behind
    their calls, wherever they are in the log.
    """
    places: list[int | None] = []
    call_of = calls_of_results(items)
    shown = history.shown
    start = 0
    for index, item in enumerate(items):
        at = start
        while at < len(shown) and not history.matches(history.entries[shown[at]], item):
            at += 1
        if at < len(shown):
            places.append(shown[at])
            start = at + 1
        elif index in call_of and places[call_of[index]] in open_calls:
            places.append(None)
        else:
            break
    return places


def _with_tail(
    history: History, items: Sequence[Item], head: Sequence[int]
) -> Iterator[Plan]:
    """Yield plans that keep a run of old items behind the first new ones.

    head: the seqs of the items before the new ones.
    """
    in_head = set(head)
    rest = [seq for seq in history.shown if seq not in in_head]
    by_digest: dict[str, list[int]] = {}
    for index, seq in enumerate(rest):
        by_digest.setdefault(history.entries[seq].digest, []).append(index)
    tried = 0
    for start in range(len(head) + 1, len(items)):
        for index in by_digest.get(items[start].digest, ()):
            tried += 1
            if tried > _MOST_TAILS:
                return
            tail = _subsequence(history, rest[index:], items[start:])
            is_end = bool(tail) and tail[-1] == history.shown[-1]
            if len(tail) < _SHORTEST_TAIL and not is_end:
                continue
            new_in_front = start - len(head)
            places = (
                *head,
                *[None] * new_in_front,
                *tail,
                *[None] * (len(items) - start - len(tail)),
            )
            yield _changed(history, items, places, new_in_front=new_in_front)


def _changed(
    history: History,
    items: Sequence[Item],
    kept: Sequence[int | None],
    *,
    new_in_front: int = 0,
) -> Plan:
    """Return the plan with these places; the items behind them are new."""
    places = _places(kept, items)
    seqs = {seq for seq in places if seq is not None}
    shown = set(history.shown)
    left_out = [seq for seq in history.shown if seq not in seqs]
    restored = sorted(seqs - shown)
    cleared: list[tuple[int, Item]] = []
    for seq, item in zip(places, items, strict=True):
        if seq is not None and history.entries[seq].digest != item.digest:
            cleared.append((seq, item))
    front: list[int] = []
    reason = _reason(history, places, left_out, new_in_front)
    if new_in_front:
        for seq in places[: places.index(None)]:
            if seq is not None and seq not in history.front:
                front.append(seq)
    return Plan(
        places=places,
        left_out=tuple(sorted(left_out)),
        restored=tuple(restored),
        cleared=tuple(cleared),
        front=tuple(sorted(front)),
        new_in_front=new_in_front,
        has_summary=reason == "compaction" and not seqs,
        reason=reason,
    )


def _reason(
    history: History,
    places: Sequence[int | None],
    left_out: Sequence[int],
    new_in_front: int,
) -> EditReason:
    """Return the likely cause of a change."""
    kept = [seq for seq in places if seq is not None]
    if new_in_front:
        return "compaction"
    if not left_out:
        return ""
    types = {history.entries[seq].type for seq in left_out}
    has_answers = "agent_response" in types or "tool_call" in types
    if not kept and has_answers and len(left_out) > len(places):
        return "compaction"
    index_of = {seq: index for index, seq in enumerate(history.shown)}
    last_kept = max((index_of.get(seq, -1) for seq in kept), default=-1)
    is_at_end = all(index_of[seq] > last_kept for seq in left_out)
    if is_at_end and None in places:
        return "rewind"
    return "removal"


def _new_are_answerable(
    history: History, new: Sequence[Item], open_calls: set[int]
) -> bool:
    """Whether each result among new items has a call among them, or an open one.

    new: the items behind everything that contexts show.
    """
    new_calls: set[str] = set()
    for item in new:
        if item.type == "tool_call":
            new_calls.add(item.call_id)
        if item.type != "tool_result" or item.call_id in new_calls:
            continue
        if _newest_call(history, item.call_id) not in open_calls:
            return False
    return True


def _newest_call(history: History, call_id: str) -> int | None:
    """Return the seq of the newest call with an id that contexts show."""
    for seq in reversed(history.shown):
        entry = history.entries[seq]
        if entry.type == "tool_call" and entry.call_id == call_id:
            return seq
    return None


def _is_answerable(
    items: Sequence[Item],
    places: Sequence[int | None],
    open_calls: set[int],
) -> bool:
    """Whether each new result has a new call, or an old one that waits for it.

    An old result with a new call is not possible either.
    """
    for index, call_index in calls_of_results(items).items():
        call_seq = places[call_index]
        if places[index] is not None:
            if call_seq is None:
                return False
        elif call_seq is not None and call_seq not in open_calls:
            return False
    return True


def are_in_order(items: Sequence[Item]) -> bool:
    """Whether results that follow one another are in the order of their calls.

    Contexts show them in that order, whatever the order in the request.
    """
    has_neighbors = False
    before = ""
    for item in items:
        if item.type == "tool_result" and before == "tool_result":
            has_neighbors = True
            break
        before = item.type
    if not has_neighbors:
        return True  # most requests; to find their calls takes longer
    call_of = calls_of_results(items)
    newest_answered = -1
    for index, item in enumerate(items):
        if item.type != "tool_result":
            newest_answered = -1
            continue
        answered = call_of.get(index, newest_answered)
        if answered < newest_answered:
            return False
        newest_answered = answered
    return True


def _has_order(history: History, items: Sequence[Item], candidate: Plan) -> bool:
    """Whether contexts will show the items in their order.

    Results are shown behind their calls wherever they are in the log.
    """
    front = history.front | set(candidate.front)
    newest = history.last or 0
    new_items = 0
    place: tuple[bool, int] | None = None
    for item, seq in zip(items, candidate.places, strict=True):
        before = place
        if seq is None:
            new_items += 1
            is_in_front = new_items <= candidate.new_in_front
            place = (not is_in_front, newest + new_items)
        else:
            place = (seq not in front, seq)
        if item.type == "tool_result":
            place = before
        elif before is not None and place <= before:
            return False
    return True


def differing_texts(
    cleared: Iterable[tuple[int, Item]],
) -> dict[str, list[tuple[int, Item]]]:
    """Group cleared events by the text that contexts show from now on.

    Calls are left out: contexts show these with other arguments.
    """
    groups: dict[str, list[tuple[int, Item]]] = {}
    for seq, item in cleared:
        event = item.event
        if isinstance(event, kinds.ToolCall):
            continue
        text = ""
        if isinstance(event, kinds.ToolResult):
            text = str(event.content)
        groups.setdefault(text, []).append((seq, item))
    return groups


def differing_arguments(
    shown: kinds.ToolCall, sent: kinds.ToolCall
) -> kinds.ProviderEdit:
    """Return the edit by which contexts show a call with the arguments that were sent.

    It has no seqs yet.

    shown: the call as contexts show it, after redaction.
    sent:  the call of the client.
    """
    before = shown.arguments
    after = sent.arguments
    if isinstance(before, str) or isinstance(after, str):
        return kinds.ProviderEdit(reason="rewriting", arguments=after)
    changed: JsonObject = {}
    for name, value in after.items():
        if name not in before or canonical([before[name]]) != canonical([value]):
            changed[name] = value
    removed = tuple(name for name in before if name not in after)
    return kinds.ProviderEdit(
        reason="rewriting", arguments=changed, without_arguments=removed or None
    )
