"""Writes what passes through the proxy into a store: requests, answers, and errors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from refold.adapters.proxy.conversation import NotRecordable, WireAnswer, WireRequest
from refold.adapters.proxy.exchange import Answer, Exchange, RecordedSession
from refold.adapters.proxy.history import (
    Digest,
    Entry,
    Item,
    Plan,
    differing_texts,
    item_of,
    plan,
)
from refold.adapters.proxy.macs import BodyMacs, body_mac as body_mac
from refold.adapters.proxy.sessions import Thread, Threads, tool_names
from refold.adapters.proxy.views import SentExtras, Views
from refold.domain import errors
from refold.domain.envelope import Draft, Meta, from_microseconds, with_id
from refold.domain.events import (
    AgentError,
    AgentResponse,
    Event,
    Item as StoredItem,
    JsonObject,
    ProviderEdit,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.domain.session import SessionState, labelling
from refold.projections.context.budget import WINDOW_TOKENS
from refold.projections.context.edits import Edited
from refold.projections.context.units import Spans, spans_of
from refold.projections.models import window_of
from refold.redaction.chokepoint import RedactedEvent, repeating
from refold.redaction.guard import Limits
from refold.redaction.learned import Learned
from refold.redaction.plan import Tagger
from refold.store.appends import Order, Receipt, Writer, as_text
from refold.store.proofs.rerun import future_envelope
from refold.store.session.session import Session
from refold.store.store import SessionStore

# A text up to this length stays in its event, so that contexts show all of it.
_LIMITS: Final = Limits(leaf_bytes=786_432, event_bytes=1_048_576)
# Another writer may append to the session at the same time.
_TRIES: Final = 4
# The most exchanges without an answer that are remembered.
_MOST_OPEN: Final = 4_096
_SENT_AGAIN: Final = "(The client sent this call again, changed.)"
_NOT_RECORDED: Final = "[refold: this content could not be recorded]"
# Codes of warnings: an event that could not be recorded, and one in another form.
NOT_RECORDED: Final = "not_recorded"
AS_TEXT: Final = "kept_as_text"


class _Prepared(NamedTuple):
    """A draft, its redacted event, and the item that it records, if it is one.

    changed: whether the redacted event shows a model something else than the item.
    """

    draft: Draft
    redacted: RedactedEvent
    item: Item | None = None
    changed: bool = False


class _Content(NamedTuple):
    """A draft of content, and the item of the request that it records."""

    draft: Draft
    item: Item | None = None


@dataclass(slots=True)
class _Open:
    """An exchange that has begun.

    thread:  None if its request was not recorded.
    seq:     of its request.
    ignored: whether it is not recorded at all.
    """

    exchange: Exchange
    thread: Thread | None = None
    seq: int = 0
    ignored: bool = False


class StoreRecorder:
    """Records exchanges for one user of a store.

    If a request cannot be recorded because the store is unavailable, it is tried once
    more at the end of its exchange.  The next request of the conversation contains
    everything, so it also records what is missing.

    session_id: the session of clients that name none; None for new ones.
    folder:     the folder in which the clients work; empty if it is unknown.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        user_id: str,
        session_id: str | None = None,
        folder: str = "",
    ) -> None:
        self._user_id = user_id
        self._threads = Threads(store, user_id, session_id, folder)
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._written: dict[str, None] = {}
        self._macs = BodyMacs()

    # The port ``Recorder``.

    def begin(self, exchange: Exchange) -> None:
        """Record a request.  Raises RefoldError."""
        opened = _Open(exchange)
        self._open[exchange.exchange_id] = opened
        while len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        try:
            self._begin(opened)
        except (NotRecordable, errors.Erased, errors.SessionClosed):
            opened.ignored = True
            raise

    def finish(self, exchange: Exchange, answer: Answer) -> None:
        """Record an answer, also a part of one, and an error.  Raises RefoldError."""
        opened = self._open.pop(exchange.exchange_id, None)
        if opened is None or opened.ignored or answer.ending == "refused":
            return
        if opened.thread is None:
            self._begin(opened)
        thread = opened.thread
        if thread is None:
            return
        thread.in_flight = max(0, thread.in_flight - 1)
        try:
            self._record_answer(thread, exchange, answer)
        except errors.RefoldError:
            self._threads.forget(thread)
            raise

    def sessions(self) -> Sequence[RecordedSession]:
        """Return the sessions that were written to, in order of their first request."""
        return [RecordedSession(self._user_id, name) for name in self._written]

    def close(self) -> None:
        """Record that exchanges without an answer were interrupted."""
        opened = [*self._open.values()]
        self._open.clear()
        for entry in opened:
            if entry.ignored or entry.thread is not None:
                continue
            try:
                self._begin(entry)
            except errors.RefoldError:
                continue  # it was reported when it began
        self._threads.forget_all()
        self._macs.forget_all()

    # Requests.

    def _begin(self, opened: _Open) -> None:
        """Record the request of an exchange."""
        exchange = opened.exchange
        if exchange.truncated:
            raise NotRecordable("it is larger than the limit of the proxy")
        wire = exchange.protocol.request(
            exchange.content(), exchange.headers, exchange.path
        )
        items = self._threads.items.of(wire.messages)
        thread = self._threads.find(wire, items)
        if wire.hint.previous_response_id and thread.head_seq:
            items = [*thread.before(wire.hint.previous_response_id), *items]
        try:
            opened.seq = self._record_request(thread, wire, items, exchange)
        except errors.RefoldError:
            self._threads.forget(thread)
            raise
        opened.thread = thread
        thread.in_flight += 1
        self._written.setdefault(thread.session_id)

    def _record_request(
        self,
        thread: Thread,
        wire: WireRequest,
        items: Sequence[Item],
        exchange: Exchange,
    ) -> int:
        """Append what is new in a request, and the request.  Returns its seq."""
        for tries_left in reversed(range(_TRIES)):
            try:
                return self._append_request(thread, wire, items, exchange)
            except errors.StaleSession:
                if not tries_left:
                    raise
                self._reread(thread)
        raise AssertionError("unreachable: the last try raises")

    def _reread(self, thread: Thread) -> None:
        """Read a thread again, after another writer appended to its session."""
        writer = thread.session.writer
        writer.heads.correct(writer.log.head(thread.session.stream))
        current = self._threads.read(thread.session, thread.group, main=thread.main)
        thread.history = current.history
        thread.views = None
        thread.head_seq = current.head_seq
        thread.prompts = current.prompts
        thread.last_text = current.last_text
        if current.head_seq:
            thread.labels = current.labels

    def _append_request(
        self,
        thread: Thread,
        wire: WireRequest,
        items: Sequence[Item],
        exchange: Exchange,
    ) -> int:
        """Append the new content of a request and the request, at once if possible."""
        state = _state(thread)
        changes = plan(thread.history, items, open_calls=set(state.open_calls))
        contents = _contents(thread, items, changes, state, exchange)
        new: list[_Prepared] = []
        is_appended = False
        if state.head_seq == 0 or not _edit_tail(thread, changes, contents):
            # The session has no key yet, or its views must be read again.
            appended = self._append(thread, contents, state) if contents else []
            _follow(thread, changes, appended)
            thread.views = None
            state = _state(thread)
            is_appended = True
        elif contents:
            new = self._prepare(thread, contents, state)
        request = self._request(thread, wire, exchange, new, state, changes)
        appended = self._write(thread, [*new, request], state)
        if not is_appended:
            _follow(thread, changes, appended[:-1])
        thread.tools = tool_names(wire)
        thread.answered = False
        return thread.head_seq

    def _request(
        self,
        thread: Thread,
        wire: WireRequest,
        exchange: Exchange,
        new: Sequence[_Prepared],
        state: SessionState,
        changes: Plan,
    ) -> _Prepared:
        """Return the event of a request behind new events, redacted.

        state: of the session before the new events.
        """
        session = thread.session
        for part in new:
            thread.largest = max(thread.largest, part.redacted.token_estimate)
        window = _window(thread, wire)
        sent = self._sent(thread, wire)
        views = thread.views
        if views is None:
            views = Views.read(session.writer.log, state, window)
            thread.views = views
        for seq, part in enumerate(new, start=state.head_seq + 1):
            _add_to_view(views, seq, part, state)
        through_seq = state.head_seq + len(new)
        request = views.request(sent, through_seq=through_seq, window=window)
        is_unchanged = sent.unchanged and not wire.warnings
        if any(part.changed for part in new):
            is_unchanged = False
        kept = [seq for seq in changes.places if seq is not None]
        if any(thread.history.entries[seq].changed for seq in kept):
            is_unchanged = False
        request = request.model_copy(
            update={"model": wire.model, "matches": is_unchanged}
        )
        meta = Meta.of(
            {
                "wire": self._wire_meta(session, wire, exchange),
                "options": wire.options,
                "warnings": list(wire.warnings),
            }
        )
        draft = Draft(
            request, ts=exchange.began_at, request_id=exchange.exchange_id, meta=meta
        )
        redacted = self._redacted_request(thread, draft, state)
        thread.last_request = redacted
        views.settle(window)
        return _Prepared(draft, redacted)

    def _sent(self, thread: Thread, wire: WireRequest) -> SentExtras:
        """Return the system prompt and the tools, redacted once while they stay."""
        before = thread.sent
        if before is not None:
            system, tools, sent = before
            if system == wire.system and tools == wire.tools:
                return sent
        sent = SentExtras.of(
            thread.session.writer, self._user_id, wire.system, wire.tools
        )
        thread.sent = (wire.system, wire.tools, sent)
        thread.last_request = None
        return sent

    def _redacted_request(
        self, thread: Thread, draft: Draft, state: SessionState
    ) -> RedactedEvent:
        """Redact a request; its extras only if the last request had others."""
        writer = thread.session.writer
        tag = writer.numbering(state.stream, state.numbers)
        learned = writer.learned(state)
        if thread.last_request is not None:
            redactor = writer.redactor.stubbing
            if learned.entries:
                redactor = redactor.learning(learned)
            redacted = repeating(thread.last_request, draft, redactor=redactor, tag=tag)
            if redacted is not None:
                return redacted
        _, redacted = _redacted(writer, state, draft, tag, learned)
        return redacted

    def _wire_meta(
        self, session: Session, wire: WireRequest, exchange: Exchange
    ) -> JsonObject:
        """Return the facts that prove which bytes a client sent."""
        return {
            "mac": self._macs.of(session, exchange.body),
            "bytes": len(exchange.body),
            "protocol": wire.protocol,
        }

    # Answers.

    def _record_answer(
        self, thread: Thread, exchange: Exchange, answer: Answer
    ) -> None:
        """Append the events of an answer."""
        wire = _wire_answer(exchange, answer)
        duration = answer.ended_at - exchange.began_at
        facts: dict[str, Any] = {
            "response_id": wire.response_id,
            "model": wire.model,
            "duration_ms": duration.total_seconds() * 1_000,
            "warnings": list(wire.warnings),
        }
        if answer.first_byte_at is not None:
            first = answer.first_byte_at - exchange.began_at
            facts["first_byte_ms"] = first.total_seconds() * 1_000
        for tries_left in reversed(range(_TRIES)):
            state = _state(thread)
            contents: list[_Content] = []
            for event in wire.events:
                item = None
                if not isinstance(event, StoredItem):
                    item = item_of(event, self._threads.digest)
                meta = _with_item(Meta.of(facts), item)
                if isinstance(event, AgentError):
                    # No request repeats it.
                    meta = meta.model_copy(update={"in_context": False})
                draft = Draft(
                    event,
                    ts=answer.ended_at,
                    request_id=exchange.exchange_id,
                    meta=meta,
                )
                contents.append(_Content(draft, item))
            if not contents:
                return
            try:
                appended = self._append(thread, contents, state)
                break
            except errors.StaleSession:
                if not tries_left:
                    raise
                self._reread(thread)
        for seq, part in appended:
            if part.item is not None:
                thread.history.add(Entry.of(seq, part.item, changed=part.changed))
            if thread.views is not None:
                _add_to_view(thread.views, seq, part, state)
        if any(_repeats_id(thread, part.draft.event) for _, part in appended):
            thread.views = None
        thread.answered = wire.complete
        if wire.response_id:
            self._threads.answered_with(thread, wire.response_id)

    # Appends.

    def _append(
        self, thread: Thread, contents: Sequence[_Content], state: SessionState
    ) -> list[tuple[int, _Prepared]]:
        """Append drafts at the head of a thread; returns them with their seqs.

        Raises StaleSession if another writer was first.
        """
        return self._write(thread, self._prepare(thread, contents, state), state)

    def _prepare(
        self, thread: Thread, contents: Sequence[_Content], state: SessionState
    ) -> list[_Prepared]:
        """Decide on drafts and redact them."""
        writer = replace(thread.session.writer, limits=_LIMITS)
        accepted = _accepted(writer, state, contents)
        return _prepared(writer, state, accepted, self._threads.digest)

    def _write(
        self, thread: Thread, prepared: Sequence[_Prepared], state: SessionState
    ) -> list[tuple[int, _Prepared]]:
        """Append redacted drafts at the head of a thread, all or none."""
        session = thread.session
        if state.head_seq != thread.head_seq:
            raise errors.StaleSession(
                session.session_id, expected=thread.head_seq, actual=state.head_seq
            )
        order = Order(
            session.stream,
            tuple(part.draft for part in prepared),
            expected_seq=thread.head_seq,
            prepared=tuple(part.redacted for part in prepared),
            unscanned="stub",
        )
        receipt = session.writer.append(order)
        return self._appended(thread, prepared, receipt)

    def _appended(
        self, thread: Thread, prepared: Sequence[_Prepared], receipt: Receipt
    ) -> list[tuple[int, _Prepared]]:
        """Remember an append; returns what was appended with its seqs."""
        thread.head_seq = receipt.last_seq
        if thread.labels:
            thread.session.writer.log.label(thread.session.stream, thread.labels)
            thread.labels = {}
        appended = list(enumerate(prepared, start=receipt.first_seq))
        for seq, part in appended:
            event = part.draft.event
            thread.heard(seq, event)
            thread.largest = max(thread.largest, part.redacted.token_estimate)
            if isinstance(event, ToolResult):
                thread.prompts.pop(event.call_id, None)
            response_id = part.draft.meta.response_id
            if response_id and part.item is not None:
                thread.ends[response_id] = seq
        return appended


def _state(thread: Thread) -> SessionState:
    """Return the state of a session as this process saw it last."""
    session = thread.session
    head = session.writer.heads.get(session.stream)
    if head is None:
        head = session.writer.log.head(session.stream)
        if head.seq:
            session.writer.heads.put(head)
    return head.state


def _first(thread: Thread) -> list[_Content]:
    """Return the draft with the labels and the link that a session lacks."""
    if not thread.labels:
        return []
    meta: dict[str, Any] = {}
    if thread.link is not None and not thread.head_seq:
        parent: JsonObject = {
            "session_id": thread.link.session_id,
            "seq": thread.link.seq,
        }
        if thread.link.call_id:
            parent["call_id"] = thread.link.call_id
        meta["parent"] = parent
    return [_Content(Draft(labelling(thread.labels), meta=Meta.of(meta)))]


def _contents(
    thread: Thread,
    items: Sequence[Item],
    changes: Plan,
    state: SessionState,
    exchange: Exchange,
) -> list[_Content]:
    """Return the drafts that bring a session to the content of a request."""
    contents = _first(thread)
    left_out = list(changes.left_out)
    new = [
        item
        for item, seq in zip(items, changes.places, strict=True)
        if seq is None and item.event is not None
    ]
    for call_id in _called_again(new, state):
        result = ToolResult(call_id=call_id, content=_SENT_AGAIN, status="unknown")
        contents.append(_Content(Draft(result, ts=exchange.began_at)))
        left_out.append(thread.head_seq + len(contents))
    front = list(changes.front)
    for item in new[: changes.new_in_front]:
        contents += _contents_of(item, exchange)
        front.append(thread.head_seq + len(contents))
    rest = new[changes.new_in_front :]
    if changes.has_summary:
        # A summary stands directly before the edit that leaves out what it replaces.
        contents += _contents_of(rest[0], exchange)
        rest = rest[1:]
    if left_out or changes.restored or front:
        edit = ProviderEdit(
            reason=changes.reason,
            left_out=spans_of(left_out),
            restored=spans_of(changes.restored),
            in_place=spans_of(front),
        )
        contents.append(_Content(Draft(edit, ts=exchange.began_at)))
    for text, cleared in differing_texts(changes.cleared).items():
        edit = ProviderEdit(
            reason="clearing",
            cleared=spans_of(seq for seq, _ in cleared),
            cleared_text=text,
        )
        digests = {str(seq): item.digest for seq, item in cleared}
        meta = Meta.of({"wire": {"cleared": digests}})
        contents.append(_Content(Draft(edit, ts=exchange.began_at, meta=meta)))
    for item in rest:
        contents += _contents_of(item, exchange)
    return contents


def _called_again(new: Sequence[Item], state: SessionState) -> list[str]:
    """Return the ids of new calls that wait for a result in the session already."""
    call_ids = dict.fromkeys(item.call_id for item in new if item.type == "tool_call")
    return [call_id for call_id in call_ids if call_id in state.open_calls]


def _contents_of(item: Item, exchange: Exchange) -> list[_Content]:
    """Return the drafts of a new item of a request."""
    contents: list[_Content] = []
    if item.lead is not None:
        contents.append(_Content(Draft(item.lead, ts=exchange.began_at)))
    if item.event is not None:
        meta = _with_item(Meta(), item)
        draft = Draft(item.event, ts=exchange.began_at, meta=meta)
        contents.append(_Content(draft, item))
    return contents


def _with_item(meta: Meta, item: Item | None) -> Meta:
    """Return the meta with the digests by which a request repeats the event."""
    if item is None:
        return meta
    wire: JsonObject = {"item": item.digest}
    if item.bare:
        wire["bare"] = item.bare
    return meta.model_copy(update={"wire": wire})


def _follow(
    thread: Thread,
    changes: Plan,
    appended: Sequence[tuple[int, _Prepared]],
) -> None:
    """Bring the history in memory to the content of a request."""
    history = thread.history
    new: list[int] = []
    for seq, part in appended:
        if part.item is not None:
            history.entries[seq] = Entry.of(seq, part.item, changed=part.changed)
            new.append(seq)
    for seq, item in changes.cleared:
        entry = history.entries[seq]
        entry.digest = item.digest
        entry.bare = ""
        entry.cleared = True
    history.front.update(changes.front, new[: changes.new_in_front])
    seqs = iter(new)
    history.shown = [next(seqs) if seq is None else seq for seq in changes.places]


def _accepted(
    writer: Writer, state: SessionState, contents: Sequence[_Content]
) -> list[_Content]:
    """Return the drafts with their events as the session records them.

    An event that the session refuses, such as a result without a call, becomes an
    ``item``, which contexts do not show.
    """
    user_id = state.stream.user_id
    events = [content.draft.event for content in contents]
    try:
        decided, _ = writer.decided(state, events, user_id=user_id)
    except errors.InvalidEvent:
        decided = []
        for event in events:
            try:
                (accepted,), state = writer.decided(state, [event], user_id=user_id)
            except errors.InvalidEvent:
                refused = StoredItem(
                    format="wire", kind=event.type, value=event.payload()
                )
                (accepted,), state = writer.decided(state, [refused], user_id=user_id)
            decided.append(accepted)
    accepted_contents: list[_Content] = []
    for content, event in zip(contents, decided, strict=True):
        draft = content.draft
        if isinstance(event, StoredItem) and not isinstance(draft.event, StoredItem):
            draft = replace(draft, meta=draft.meta.warned(NOT_RECORDED))
        if isinstance(event, ToolCall | ToolResult):
            draft = with_id(draft, event)
        accepted_contents.append(_Content(replace(draft, event=event), content.item))
    return accepted_contents


def _edit_tail(thread: Thread, changes: Plan, contents: Sequence[_Content]) -> bool:
    """Apply a change to the views; returns False if they must be read again."""
    views = thread.views
    if views is None:
        return not contents
    for content in contents:
        event = content.draft.event
        is_closing = content.item is None and isinstance(event, ToolResult)
        if is_closing or _repeats_id(thread, event):
            return False
    if not changes.has_edit:
        return True
    if changes.restored or changes.front or changes.new_in_front:
        return False
    if changes.has_summary:
        return False
    cleared: list[tuple[Spans, str]] = []
    for text, group in differing_texts(changes.cleared).items():
        cleared.append((spans_of(seq for seq, _ in group), text))
    edited = Edited(left_out=spans_of(changes.left_out), cleared=tuple(cleared))
    seqs = {*changes.left_out, *(seq for seq, _ in changes.cleared)}
    return views.edit(edited, seqs)


def _repeats_id(thread: Thread, event: Event) -> bool:
    """Whether the views must be read again, because a call has an earlier one's id."""
    views = thread.views
    if views is None or not isinstance(event, ToolCall):
        return False
    return event.call_id in views.call_ids


def _add_to_view(views: Views, seq: int, part: _Prepared, state: SessionState) -> None:
    """Add an event to the views as the log will have it."""
    redacted = part.redacted
    envelope = future_envelope(
        redacted, seq, state.stream, from_microseconds(redacted.ts)
    )
    blobs = {blob.sha256: blob.data for blob in redacted.blobs}
    views.add(envelope, blobs)


def _prepared(
    writer: Writer,
    state: SessionState,
    contents: Sequence[_Content],
    digest: Digest,
) -> list[_Prepared]:
    """Redact drafts; an event that cannot be recorded becomes a note that says so."""
    tag = writer.numbering(state.stream, state.numbers)
    learned = writer.learned(state)
    prepared: list[_Prepared] = []
    for draft, item in contents:
        draft, redacted = _redacted(writer, state, draft, tag, learned)
        learned.learn(redacted.secrets, state.head_seq + len(prepared) + 1)
        is_changed = False
        if item is not None and redacted.event is not item.event:
            stored = item_of(redacted.event, digest)
            is_changed = stored is None or stored.digest != item.digest
        prepared.append(_Prepared(draft, redacted, item, is_changed))
    return prepared


def _redacted(
    writer: Writer, state: SessionState, draft: Draft, tag: Tagger, learned: Learned
) -> tuple[Draft, RedactedEvent]:
    """Redact a draft.  Raises KeyUnavailable, Erased, InvalidEvent."""
    drafts = [draft]
    text = as_text(draft.event)
    if text is not None:
        drafts.append(replace(draft, event=text, meta=draft.meta.warned(AS_TEXT)))
    note = _note(draft.event)
    if note is not None:
        drafts.append(replace(draft, event=note, meta=draft.meta.warned(NOT_RECORDED)))
    for attempt in drafts:
        try:
            redacted = writer.redacted(
                attempt,
                user_id=state.stream.user_id,
                now=writer.clock(),
                unscanned="stub",
                tag=tag,
                learned=learned,
            )
        except (errors.EventTooLarge, errors.RedactionFailed):
            if attempt is drafts[-1]:
                raise
        else:
            return attempt, redacted
    raise AssertionError("unreachable: the last attempt raises")


def _note(event: Event) -> Event | None:
    """Return the event with a note in the place of its content."""
    match event:
        case UserInput():
            return UserInput(text=_NOT_RECORDED)
        case AgentResponse(stop_reason=stop_reason, usage=usage):
            return AgentResponse(
                text=_NOT_RECORDED, stop_reason=stop_reason, usage=usage
            )
        case ToolCall(call_id=call_id, tool_name=tool_name):
            return ToolCall(
                call_id=call_id, tool_name=tool_name, arguments=_NOT_RECORDED
            )
        case ToolResult(call_id=call_id, tool_name=tool_name, status=status):
            return ToolResult(
                call_id=call_id,
                tool_name=tool_name,
                content=_NOT_RECORDED,
                status=status,
            )
        case ProviderEdit(cleared_text=text) if text:
            return event.model_copy(update={"cleared_text": _NOT_RECORDED})
        case StoredItem(format=form, kind=kind):
            return StoredItem(format=form, kind=kind)
    return None


def _window(thread: Thread, wire: WireRequest) -> int:
    """Return the window of the model, or a wider one that cuts no message.

    A view shortens a message over a quarter of the window.
    """
    window = WINDOW_TOKENS
    if wire.model:
        with suppress(errors.UnknownModel):
            window = window_of(wire.model)
    return max(window, 4 * (thread.largest + 1))


def _wire_answer(exchange: Exchange, answer: Answer) -> WireAnswer:
    """Return the events of an answer; an answer that did not arrive is an error."""
    where = exchange.protocol.NAME
    if answer.status is None:
        code = "cancelled" if answer.ending == "cancelled" else "connection"
        failure = AgentError(
            code=code,
            message=answer.error or "no answer arrived",
            where=where,
            retryable=True,
            context={"ending": answer.ending},
        )
        return WireAnswer((failure,), None, None, False)
    try:
        content = answer.content()
    except errors.RefoldError as error:
        failure = AgentError(
            code="not_decodable",
            message=str(error),
            where=where,
            context={"status": answer.status},
        )
        return WireAnswer((failure,), None, None, False)
    wire = exchange.protocol.answer(
        answer.status, answer.headers, content, complete=answer.complete
    )
    has_error = any(isinstance(event, AgentError) for event in wire.events)
    if answer.complete or has_error:
        return wire
    context: JsonObject = {"ending": answer.ending, "partial": bool(wire.events)}
    failure = AgentError(
        code="interrupted", message=answer.error, where=where, context=context
    )
    return wire._replace(events=(*wire.events, failure), complete=False)
