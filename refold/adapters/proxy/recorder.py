"""Writes what passes through the proxy into a store: requests, answers, and errors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, NamedTuple

from refold.adapters.proxy.captured import (
    Completion,
    adopt,
    captured_events,
    completion_of_answer,
    left_out_by_late_request,
    rest_of_answer,
    without_unsigned_thinking,
)
from refold.adapters.proxy.conversation import NotRecordable, WireAnswer, WireRequest
from refold.adapters.proxy.exchange import (
    Answer,
    Exchange,
    RecordedSession,
    RedactedRequest,
)
from refold.adapters.proxy.hiding import Hiding
from refold.adapters.proxy.history import (
    Entry,
    Item,
    Plan,
    are_in_order,
    calls_of_results,
    differing_arguments,
    differing_texts,
    identity,
    item_of,
    plan,
    recorded_call_id,
    response_id_of,
)
from refold.adapters.proxy.macs import BodyMacs, body_mac as body_mac
from refold.adapters.proxy.parts import Redact, Rest, is_order
from refold.adapters.proxy.sessions import (
    Thread,
    Threads,
    beginning_of_system,
    tool_names,
)
from refold.adapters.proxy.views import SentExtras, Views
from refold.domain import errors
from refold.domain.envelope import Draft, Envelope, Meta, from_microseconds, with_id
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
from refold.domain.session import SessionState, labelling, repeats_id
from refold.projections.context.budget import WINDOW_TOKENS
from refold.projections.context.edits import Edit, applied, edit_of, edits_in
from refold.projections.context.units import spans_of
from refold.projections.models import window_of
from refold.redaction.chokepoint import RedactedEvent, repeating
from refold.redaction.guard import Limits
from refold.redaction.learned import Learned
from refold.redaction.plan import Tagger
from refold.store.appends import Order, Receipt, Writer, as_text
from refold.store.history import History as StoredHistory
from refold.store.proofs.rerun import future_envelope
from refold.store.session.session import Session
from refold.store.store import SessionStore
from refold.store.vault import Numbering

# A text up to this length stays in its event, so that contexts show all of it.
_LIMITS: Final = Limits(leaf_bytes=786_432, event_bytes=1_048_576)
# Another writer may append to the session at the same time.
_TRIES: Final = 4
# The most exchanges without an answer that are remembered.
_MOST_OPEN: Final = 4_096
_SENT_AGAIN: Final = "(The client sent this call again, changed.)"
# Marks the order of the rest of an answer, which no request repeats.
_OF_REST: Final = {"of_rest": True}
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

    def entry(self, seq: int, item: Item) -> Entry:
        """Return the entry of its item, which was appended at ``seq``."""
        recorded_id = recorded_call_id(self.draft.event, self.draft.meta)
        return Entry.of(seq, item, changed=self.changed, recorded_id=recorded_id)


class _Content(NamedTuple):
    """A draft of content, and the item of the request that it records."""

    draft: Draft
    item: Item | None = None


@dataclass(slots=True)
class _Open:
    """An exchange that has begun.

    thread:   None if its request was not recorded.
    seq:      of its request.
    ignored:  whether it is not recorded at all.
    redacted: what the provider gets; None for the client's bytes.
    """

    exchange: Exchange
    thread: Thread | None = None
    seq: int = 0
    ignored: bool = False
    redacted: RedactedRequest | None = None


class _FoundMore(Exception):
    """Redaction found a value that the body for the provider still contains."""


class StoreRecorder:
    """Records exchanges for one user of a store.

    If a request cannot be recorded because the store is unavailable, it is tried once
    more at the end of its exchange.  The next request of the conversation contains
    everything, so it also records what is missing.

    session_id: the session of clients that name none; None for new ones.
    folder:     the folder in which the clients work; empty if it is unknown.
    redacts_upstream: whether providers get placeholders in place of values.

    Raises InvalidConfiguration if the policy of the store gives placeholders no numbers
    that could stand for values.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        user_id: str,
        session_id: str | None = None,
        folder: str = "",
        redacts_upstream: bool = False,
    ) -> None:
        if redacts_upstream and not store.writer.redactor.numbering.numbered:
            raise errors.InvalidConfiguration(
                "values cannot be hidden from a provider under this policy: its "
                "placeholders have labels or pseudonyms in place of numbers"
            )
        self._user_id = user_id
        self._redacts_upstream = redacts_upstream
        self._threads = Threads(
            store, user_id, session_id, folder, numbered=redacts_upstream
        )
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._written: dict[str, int] = {}  # requests by session id
        self._macs = BodyMacs()

    # The port ``Recorder``.

    def begin(self, exchange: Exchange) -> RedactedRequest | None:
        """Record a request; returns what the provider gets.  Raises RefoldError."""
        opened = _Open(exchange)
        self._open[exchange.exchange_id] = opened
        while len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        try:
            self._begin(opened)
        except (NotRecordable, errors.SessionClosed):
            opened.ignored = True
            raise
        except errors.Erased:
            opened.ignored = True
            # The user's key may be erased, too; a readmitted user has another.
            self._threads.forget_all()
            raise
        return opened.redacted

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
            self._record_answer(thread, opened, answer)
        except Exception:
            self._threads.forget(thread)
            raise

    def sessions(self) -> Sequence[RecordedSession]:
        """Return the sessions that were written to, in order of their first request."""
        return [
            RecordedSession(self._user_id, session_id, requests)
            for session_id, requests in self._written.items()
        ]

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
        content = exchange.content()
        wire = exchange.protocol.request(content, exchange.headers, exchange.path)
        items = self._threads.items.of(wire.messages)
        thread = self._threads.find(wire, items)
        try:
            if self._redacts_upstream:
                self._record_redacted(thread, wire, items, opened, content)
            else:
                with_earlier = _with_earlier(thread, wire, items)
                opened.seq = self._record_request(thread, wire, with_earlier, exchange)
        except Exception:
            # The thread in memory may differ from the store.
            self._threads.forget(thread)
            raise
        opened.thread = thread
        thread.in_flight += 1
        requests = self._written.get(thread.session_id, 0)
        self._written[thread.session_id] = requests + 1

    def _record_redacted(
        self,
        thread: Thread,
        wire: WireRequest,
        items: Sequence[Item],
        opened: _Open,
        content: bytes,
    ) -> None:
        """Record a request with placeholders in place of its values.

        The log gets what the provider gets.  Its items are still compared by the
        digests of what the client sent, since the client repeats the values.

        content: the decompressed body of the client.
        """
        exchange = opened.exchange
        for _ in range(_TRIES):
            state = _state(thread)
            if thread.hiding is None:
                thread.hiding = Hiding(thread.session.writer, state.stream)
            numbers = _numbers(thread, state)
            learned = thread.session.writer.learned(state)
            body, thread.numbers = thread.hiding.hidden(content, numbers, learned)
            sent = exchange.protocol.request(body, exchange.headers, exchange.path)
            sent = sent._replace(hint=wire.hint)
            new_items = _as_sent(items, self._threads.items.of(sent.messages))
            sent_items = _with_earlier(thread, wire, new_items)
            placeholders = thread.hiding.placeholders
            redacted = RedactedRequest(wire.protocol, body, placeholders)
            try:
                opened.seq = self._append_request(
                    thread, sent, sent_items, exchange, redacted
                )
            except _FoundMore:
                thread.views = None  # they may have events that were not appended
            except errors.StaleSession:
                self._reread(thread)
            else:
                opened.redacted = redacted
                return
        raise NotRecordable("its values could not be replaced")

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
        # The other writer may have given the same numbers to other values.
        thread.numbers = None
        if thread.hiding is not None:
            thread.hiding = Hiding(writer, thread.session.stream)
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
        redacted: RedactedRequest | None = None,
    ) -> int:
        """Append the new content of a request and the request, at once if possible.

        redacted: what the provider gets; None for the client's bytes.

        Raises _FoundMore if it contains a value that redaction finds.
        """
        state = _state(thread)
        completion: Completion | None = None
        if thread.history.captured or thread.history.leads:
            redact = _redacting(thread, state)
            items = without_unsigned_thinking(thread.history, items, redact)
            completion = completion_of_answer(thread.history, items, redact)
            adopt(thread.history, items, redact, self._threads.digest)
        if completion is not None or thread.history.in_parts:
            items = thread.history.without_orders(
                items, completed=None if completion is None else completion.item
            )
        open_calls = thread.history.calls_by_recorded_id(state.open_calls)
        changes = plan(thread.history, items, open_calls=set(open_calls.values()))
        contents = _contents(thread, items, changes, state, exchange, completion)
        new: list[_Prepared] = []
        is_appended = False
        if state.head_seq == 0 or not _can_edit_tail(thread, changes, contents):
            # The session has no key yet, or its views must be read again.
            appended = self._append(thread, contents, state) if contents else []
            _follow(thread, items, changes, appended)
            thread.views = None
            state = _state(thread)
            is_appended = True
        elif contents:
            new = self._prepare(thread, contents, state)
            _edit_tail(thread, new, state)
        sent_bytes = exchange.body if redacted is None else redacted.body
        request = self._request(
            thread, wire, items, exchange, sent_bytes, new, state, changes
        )
        appended = self._write(thread, [*new, request], state)
        if not is_appended:
            _follow(thread, items, changes, appended[:-1])
        thread.tools = tool_names(wire)
        thread.system = beginning_of_system(wire)
        thread.answered = False
        return thread.head_seq

    def _without_captured(
        self,
        thread: Thread,
        contents: list[_Content],
        state: SessionState,
        seq: int,
        response_id: str | None,
    ) -> tuple[list[_Content], list[int]]:
        """Return the events of an answer that no other writer has appended.

        Also returns the seqs of the others that contexts do not show, because the
        request was recorded after them.

        seq:         of the request.
        response_id: of the answer.
        """
        history = thread.history
        if not history.captured and not history.leads:
            return contents, []
        items = [content.item for content in contents if content.item is not None]
        redact = _redacting(thread, state)
        digest = self._threads.digest
        events = [content.draft.event for content in contents]
        answer_and_rest = rest_of_answer(
            history, events, redact, after=seq, response_id=response_id
        )
        if answer_and_rest is not None:
            answer, rest = answer_and_rest
            entries_of_parts = [
                history.entries[part.seq]
                for part in answer.parts
                if part.seq in history.entries
            ]
            left_out = left_out_by_late_request(history, entries_of_parts, after=seq)
            first = history.entries.get(answer.first_seq)
            rest_contents = _contents_of_rest(contents, rest, first)
            named = [_with_name(content, answer.name) for content in rest_contents]
            return named, left_out
        captured = captured_events(
            history, items, redact, digest, after=seq, response_id=response_id
        )
        left_out = left_out_by_late_request(history, captured, after=seq)
        entries = iter(captured)
        missing: list[_Content] = []
        is_in_parts = False
        for content in contents:
            entry = None if content.item is None else next(entries)
            if entry is not None:
                is_in_parts = is_in_parts or bool(entry.parts)
            elif not (is_in_parts and is_order(content.draft.event)):
                missing.append(content)
        return missing, left_out

    def _request(
        self,
        thread: Thread,
        wire: WireRequest,
        items: Sequence[Item],
        exchange: Exchange,
        sent_bytes: bytes,
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
        sent = self._sent(thread, wire, state)
        views = thread.views
        if views is None:
            history = thread.history
            views = Views.read(
                session.writer.log,
                state,
                window,
                seqs=history.seqs_of_view(),
                front=history.front_of_view(),
            )
            thread.views = views
        for seq, part in enumerate(new, start=state.head_seq + 1):
            _add_to_view(views, seq, part, state)
        through_seq = state.head_seq + len(new)
        request = views.request(sent, through_seq=through_seq, window=window)
        is_unchanged = sent.unchanged and not wire.warnings and are_in_order(items)
        if any(part.changed for part in new):
            is_unchanged = False
        if _results_of_earlier_calls(items, changes):
            is_unchanged = False
        history = thread.history
        # The edits among the new events have all content of these events.
        rewritten = {
            seq for seq, item in changes.cleared if item.type != "agent_response"
        }
        for place in changes.places:
            if place is None:
                continue
            entry = history.entries[place]
            # Most entries are neither changed nor in parts: no call for each of them.
            is_changed = entry.changed
            if entry.parts and not is_changed:
                is_changed = history.has_text_behind_call(entry)
            if (is_changed and place not in rewritten) or entry.recorded_id:
                is_unchanged = False
                break
        request = request.model_copy(
            update={"model": wire.model, "matches": is_unchanged}
        )
        meta = Meta.of(
            {
                "wire": self._wire_meta(session, wire, sent_bytes),
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

    def _sent(
        self, thread: Thread, wire: WireRequest, state: SessionState
    ) -> SentExtras:
        """Return the system prompt and the tools, redacted once while they stay."""
        before = thread.sent
        if before is not None:
            system, tools, sent = before
            if system == wire.system and tools == wire.tools:
                return sent
        numbering: Numbering | None = None
        if thread.hiding is not None:
            numbering = thread.hiding.numbering(_numbers(thread, state))
        sent = SentExtras.of(
            thread.session.writer,
            self._user_id,
            wire.system,
            wire.tools,
            numbering=numbering,
        )
        if numbering is not None:
            _keep_numbers(thread, numbering)
        thread.sent = (wire.system, wire.tools, sent)
        thread.last_request = None
        return sent

    def _redacted_request(
        self, thread: Thread, draft: Draft, state: SessionState
    ) -> RedactedEvent:
        """Redact a request; its extras only if the last request had others."""
        writer = thread.session.writer
        tag = _tag(thread, state)
        learned = writer.learned(state)
        if thread.last_request is not None:
            redactor = writer.redactor.stubbing
            if learned.entries:
                redactor = redactor.learning(learned)
            redacted = repeating(thread.last_request, draft, redactor=redactor, tag=tag)
            if redacted is not None:
                return redacted
        _, redacted = _redacted(writer, state, draft, tag, learned)
        _keep_numbers(thread, tag)
        return redacted

    def _wire_meta(
        self, session: Session, wire: WireRequest, sent_bytes: bytes
    ) -> JsonObject:
        """Return the facts that prove which bytes a provider got."""
        return {
            "mac": self._macs.of(session, sent_bytes),
            "bytes": len(sent_bytes),
            "protocol": wire.protocol,
        }

    # Answers.

    def _record_answer(self, thread: Thread, opened: _Open, answer: Answer) -> None:
        """Append the events of an answer."""
        exchange = opened.exchange
        wire = _wire_answer(exchange, answer)
        if not wire.events:
            return
        client_events = _client_events(opened, answer, wire)
        duration = answer.ended_at - exchange.began_at
        facts: dict[str, Any] = {
            "response_id": wire.response_id,
            "model": wire.model,
            "duration_ms": _milliseconds(duration),
            "warnings": list(wire.warnings),
        }
        if answer.first_byte_at is not None:
            first = answer.first_byte_at - exchange.began_at
            facts["first_byte_ms"] = _milliseconds(first)
        of_answer = Meta.of(facts)
        for tries_left in reversed(range(_TRIES)):
            state = _state(thread)
            contents: list[_Content] = []
            for event, client_event in zip(wire.events, client_events, strict=True):
                item = None
                if not isinstance(event, StoredItem):
                    item = item_of(client_event, self._threads.digest)
                if item is not None and client_event is not event:
                    item = item._replace(event=event)
                meta = _with_item(of_answer, item)
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
            contents, left_out = self._without_captured(
                thread, contents, state, opened.seq, wire.response_id
            )
            if left_out:
                edit = ProviderEdit(
                    restored=spans_of(thread.history.with_silent(left_out))
                )
                contents.insert(0, _Content(Draft(edit, ts=answer.ended_at)))
            appended: list[tuple[int, _Prepared]] = []
            if not contents:
                break
            try:
                appended = self._append(thread, contents, state, is_sent=False)
                break
            except errors.StaleSession:
                if not tries_left:
                    raise
                self._reread(thread)
        if left_out:
            thread.history.restore(left_out)
            thread.views = None
        for seq, part in appended:
            if part.item is not None and part.item.continues:
                thread.history.complete(part.item, seq, changed=part.changed)
            elif part.item is not None:
                thread.history.add(part.entry(seq, part.item))
            elif part.draft.meta.in_context:
                thread.history.add_silent(seq, part.redacted.event)
            if thread.views is not None:
                _add_to_view(thread.views, seq, part, state)
        if left_out and thread.history.newest_captured is not None:
            self._reread(thread)  # the restored parts become one entry
        thread.answered = wire.complete
        if wire.response_id:
            self._threads.answered_with(thread, wire.response_id)

    # Appends.

    def _append(
        self,
        thread: Thread,
        contents: Sequence[_Content],
        state: SessionState,
        *,
        is_sent: bool = True,
    ) -> list[tuple[int, _Prepared]]:
        """Append drafts at the head of a thread; returns them with their seqs.

        is_sent: whether the provider gets their content.

        Raises StaleSession if another writer was first.
        """
        prepared = self._prepare(thread, contents, state, is_sent=is_sent)
        return self._write(thread, prepared, state)

    def _prepare(
        self,
        thread: Thread,
        contents: Sequence[_Content],
        state: SessionState,
        *,
        is_sent: bool = True,
    ) -> list[_Prepared]:
        """Decide on drafts and redact them."""
        writer = replace(thread.session.writer, limits=_LIMITS)
        accepted = _accepted(writer, state, contents)
        return _prepared(thread, writer, state, accepted, is_sent=is_sent)

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
            numbers=thread.numbers,
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
            response_id = response_id_of(part.draft.meta)
            if response_id and part.item is not None:
                thread.ends[response_id] = seq
        return appended


def _with_earlier(
    thread: Thread, wire: WireRequest, items: Sequence[Item]
) -> Sequence[Item]:
    """Return the items of a request behind those of the response that it continues."""
    if wire.hint.previous_response_id and thread.head_seq:
        return [*thread.before(wire.hint.previous_response_id), *items]
    return items


def _as_sent(items: Sequence[Item], sent: Sequence[Item]) -> list[Item]:
    """Return the items of a client with the events that the provider gets.

    Raises NotRecordable if these are not the same items.
    """
    if [item.type for item in items] != [item.type for item in sent]:
        raise NotRecordable("it has another form with placeholders")
    return [
        item._replace(event=other.event, lead=other.lead)
        for item, other in zip(items, sent, strict=True)
    ]


def _client_events(opened: _Open, answer: Answer, wire: WireAnswer) -> Sequence[Event]:
    """Return the events of an answer as the client gets it, with values."""
    if opened.redacted is None or not answer.body:
        return wire.events
    stream = opened.redacted.revealing(answer.headers.get("content-type", ""))
    body = stream.feed(answer.body) + stream.end()
    revealed = _wire_answer(opened.exchange, replace(answer, body=body))
    types = [event.type for event in wire.events]
    if [event.type for event in revealed.events] != types:
        return wire.events
    return revealed.events


def _milliseconds(duration: timedelta) -> float:
    """Return a duration in milliseconds, to the microsecond.

    Without rounding, it could have digits of an error, which look like a long number.
    It is 0 if the clock was set back.
    """
    return max(0.0, round(duration.total_seconds() * 1_000, 3))


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
    completion: Completion | None,
) -> list[_Content]:
    """Return the drafts that bring a session to the content of a request.

    completion: the rest of the answer that another writer began to append.
    """
    contents = _first(thread)
    if completion is not None:
        contents += _contents_of_completion(completion, exchange)
    left_out = thread.history.with_silent(changes.left_out)
    restored = thread.history.with_silent(changes.restored)
    recorded_ids = _recorded_ids(thread, items, changes, state)
    new: list[Item] = []
    new_contents: list[list[_Content]] = []
    of_earlier_calls = _results_of_earlier_calls(items, changes)
    for index in of_earlier_calls:
        contents += _contents_of(items[index], exchange, recorded_ids.get(index))
    for index, item in enumerate(items):
        if index in of_earlier_calls:
            continue
        if changes.places[index] is None and item.event is not None:
            new.append(item)
            new_contents.append(_contents_of(item, exchange, recorded_ids.get(index)))
    answered = {items[index].call_id for index in of_earlier_calls}
    for call_id in _called_again(new, state):
        if call_id in answered:
            continue
        result = ToolResult(call_id=call_id, content=_SENT_AGAIN, status="unknown")
        contents.append(_Content(Draft(result, ts=exchange.began_at)))
        left_out.append(thread.head_seq + len(contents))
    front = thread.history.with_silent(changes.front)
    for parts in new_contents[: changes.new_in_front]:
        start = thread.head_seq + len(contents) + 1
        # The beginning of an answer without text comes with it.
        front += range(start, start + len(parts))
        contents += parts
    rest = new_contents[changes.new_in_front :]
    if changes.has_summary:
        # A summary stands directly before the edit that leaves out what it replaces.
        contents += rest[0]
        rest = rest[1:]
    if left_out or restored or front:
        edit = ProviderEdit(
            reason=changes.reason,
            left_out=spans_of(left_out),
            restored=spans_of(restored),
            in_place=spans_of(front),
        )
        contents.append(_Content(Draft(edit, ts=exchange.began_at)))
    for text, cleared in differing_texts(changes.cleared).items():
        seqs: list[int] = []
        for seq, _ in cleared:
            seqs += thread.history.entries[seq].seqs
        edit = ProviderEdit(
            reason="clearing", cleared=spans_of(seqs), cleared_text=text
        )
        contents.append(_edit_of_content(edit, cleared, exchange))
    for seq, item in changes.cleared:
        if isinstance(item.event, ToolCall):
            edit = differing_arguments(_shown_call(thread, seq, state), item.event)
            edit = edit.model_copy(update={"cleared": ((seq, seq),)})
            contents.append(_edit_of_content(edit, [(seq, item)], exchange))
    for parts in rest:
        contents += parts
    return contents


def _recorded_ids(
    thread: Thread, items: Sequence[Item], changes: Plan, state: SessionState
) -> dict[int, str]:
    """Return the ids by which the session knows the calls of new results.

    The ids are by the index of the result.  They are only needed if an id came again
    while a call with the same id waited: the session has the later call under another.
    """
    if not repeats_id(state):
        return {}
    open_calls = thread.history.calls_by_recorded_id(state.open_calls)
    id_of = {seq: call_id for call_id, seq in open_calls.items()}
    recorded_ids: dict[int, str] = {}
    for index, call_index in calls_of_results(items).items():
        call_seq = changes.places[call_index]
        if changes.places[index] is None and call_seq in id_of:
            recorded_ids[index] = id_of[call_seq]
    return recorded_ids


def _results_of_earlier_calls(items: Sequence[Item], changes: Plan) -> list[int]:
    """Return the indices of new results that must stand before new calls.

    They answer calls of the session with an id that a new call has, too.  Contexts show
    results behind their calls, wherever they are in the log.
    """
    if changes.has_edit:
        return []
    new_call_ids: set[str] = set()
    for item, place in zip(items, changes.places, strict=True):
        if place is None and item.type == "tool_call":
            new_call_ids.add(item.call_id)
    if not new_call_ids:
        return []
    indices: list[int] = []
    for index, call_index in calls_of_results(items).items():
        is_new = changes.places[index] is None and items[index].event is not None
        is_of_earlier_call = changes.places[call_index] is not None
        if is_new and is_of_earlier_call and items[index].call_id in new_call_ids:
            indices.append(index)
    return indices


def _edit_of_content(
    edit: ProviderEdit, cleared: Iterable[tuple[int, Item]], exchange: Exchange
) -> _Content:
    """Return the draft of an edit, with the digests of what contexts show from now on.

    cleared: the seqs whose content it changes, each with the item that was sent.
    """
    digests = {str(seq): item.digest for seq, item in cleared}
    meta = Meta.of({"wire": {"cleared": digests}})
    return _Content(Draft(edit, ts=exchange.began_at, meta=meta))


def _shown_call(thread: Thread, seq: int, state: SessionState) -> ToolCall:
    """Return a call of the session as contexts show it."""
    shown = None if thread.views is None else thread.views.in_tail(seq)
    if shown is None:
        # A fork has events of its origin.
        history = StoredHistory.of(thread.session.writer.log, state)
        seqs = (seq, *thread.history.entries[seq].edits)
        call, *edits = history.read_spans(spans_of(seqs))
        shown = applied(edits_in(edits)).cleared_form(call) or call
    if not isinstance(shown.payload, ToolCall):
        raise AssertionError(f"seq {seq} is no call")
    return shown.payload


def _called_again(new: Sequence[Item], state: SessionState) -> list[str]:
    """Return the ids of new calls that wait for a result in the session already."""
    call_ids = dict.fromkeys(item.call_id for item in new if item.type == "tool_call")
    return [call_id for call_id in call_ids if call_id in state.open_calls]


def _contents_of(
    item: Item, exchange: Exchange, recorded_id: str | None = None
) -> list[_Content]:
    """Return the drafts of a new item of a request.

    recorded_id: of the call that a result answers; None for the id in the request.
    """
    contents: list[_Content] = []
    if item.lead is not None:
        contents.append(_Content(Draft(item.lead, ts=exchange.began_at)))
    if item.event is not None:
        meta = _with_item(Meta(), item)
        draft = Draft(item.event, ts=exchange.began_at, meta=meta)
        if recorded_id is not None and isinstance(item.event, ToolResult):
            answer = item.event.model_copy(update={"call_id": recorded_id})
            draft = with_id(draft, answer)
        contents.append(_Content(draft, item))
    return contents


def _contents_of_completion(
    completion: Completion, exchange: Exchange
) -> list[_Content]:
    """Return the drafts with the rest of an answer that a request contains."""
    item = completion.item
    if item.event is None:
        return []
    meta = Meta.of({"response_id": completion.name})
    draft = Draft(item.event, ts=exchange.began_at, meta=_with_item(meta, item))
    contents = [_Content(draft, item)]
    if completion.order is not None:
        meta = meta.model_copy(update={"wire": _OF_REST})
        order = Draft(completion.order, ts=exchange.began_at, meta=meta)
        contents.append(_Content(order))
    return contents


def _contents_of_rest(
    contents: Iterable[_Content], rest: Rest, entry: Entry | None
) -> list[_Content]:
    """Return the contents of an answer that another writer has not appended.

    entry: of the texts and thinking that the other writer appended.
    """
    call_ids = [*rest.call_ids]
    missing: list[_Content] = []
    for content in contents:
        event = content.draft.event
        if isinstance(event, AgentResponse):
            if rest.response is not None:
                response = event.model_copy(
                    update={
                        "text": rest.response.text,
                        "thinking": rest.response.thinking,
                    }
                )
                item = content.item
                if item is not None:
                    item = item._replace(event=response)
                    if entry is not None and entry.type == "agent_response":
                        item = item._replace(continues=entry.seq)
                        entry.changed = rest.stored_is_redacted
                draft = replace(content.draft, event=response)
                missing.append(_Content(draft, item))
        elif isinstance(event, ToolCall):
            if event.call_id in call_ids:
                call_ids.remove(event.call_id)
                missing.append(content)
        elif is_order(event):
            if rest.order is not None:
                meta = content.draft.meta.model_copy(update={"wire": _OF_REST})
                draft = replace(content.draft, event=rest.order, meta=meta)
                missing.append(_Content(draft))
        else:
            missing.append(content)
    return missing


def _with_name(content: _Content, name: str) -> _Content:
    """Return a part of an answer with the id that its other parts have in the log.

    Contexts show parts with the same id as one message.
    """
    meta = content.draft.meta
    if meta.response_id == name:
        return content
    fields: JsonObject = {"response_id": name}
    if meta.response_id is not None:
        wire = (meta.model_extra or {}).get("wire") or {}
        fields["wire"] = {**wire, "response_id": meta.response_id}
    draft = replace(content.draft, meta=meta.model_copy(update=fields))
    return content._replace(draft=draft)


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
    items: Sequence[Item],
    changes: Plan,
    appended: Sequence[tuple[int, _Prepared]],
) -> None:
    """Bring the history in memory to the content of a request."""
    history = thread.history
    # By the identity of an item, of which a request may have several.
    new: dict[int, list[int]] = {}
    edits: dict[int, tuple[int, _Prepared]] = {}  # by the seq whose content they change
    for seq, part in appended:
        if part.item is not None and part.item.continues:
            history.complete(part.item, seq, changed=part.changed)
        elif part.item is not None:
            history.put(part.entry(seq, part.item))
            new.setdefault(id(part.item), []).append(seq)
        elif part.draft.meta.in_context and not isinstance(
            part.redacted.event, ToolResult
        ):
            # Contexts leave out a result that only ends a call.
            history.add_silent(seq, part.redacted.event)
        event = part.redacted.event
        if isinstance(event, ProviderEdit):
            for first, last in event.cleared:
                for cleared in range(first, last + 1):
                    edits[cleared] = (seq, part)
    for seq, item in changes.cleared:
        edit_seq, edit = edits[seq]
        history.clear(seq, item, edit_seq, changed=edit.changed)
    shown: list[int] = []
    new_seqs: list[int] = []
    for item, place in zip(items, changes.places, strict=True):
        if place is not None:
            shown.append(place)
            continue
        seqs = new.get(id(item))
        if not seqs:
            continue
        new_seq = seqs.pop(0)
        shown.append(new_seq)
        new_seqs.append(new_seq)
    history.front.update(changes.front, new_seqs[: changes.new_in_front])
    history.shown = shown


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


def _can_edit_tail(thread: Thread, changes: Plan, contents: Sequence[_Content]) -> bool:
    """Whether the views can follow a change; otherwise they must be read again."""
    views = thread.views
    if views is None:
        return not contents
    for content in contents:
        event = content.draft.event
        if content.item is None and isinstance(event, ToolResult):
            return False  # it closes a call that may be settled
    if not changes.has_edit:
        return True
    if changes.restored or changes.front or changes.new_in_front:
        return False
    if changes.has_summary:
        return False
    changed = {*changes.left_out, *(seq for seq, _ in changes.cleared)}
    for seq in [*changed]:
        changed.update(thread.history.entries[seq].seqs)
    return views.has_in_tail(changed)


def _edit_tail(thread: Thread, new: Sequence[_Prepared], state: SessionState) -> None:
    """Apply the edits among new events to the views, as the log will have them.

    state: of the session before the new events.
    """
    edits: list[Edit] = []
    blobs: dict[str, bytes] = {}
    for seq, part in enumerate(new, start=state.head_seq + 1):
        if not isinstance(part.redacted.event, ProviderEdit):
            continue
        edit = edit_of(_future(part, seq, state))
        if edit is not None:
            edits.append(edit)
            blobs |= {blob.sha256: blob.data for blob in part.redacted.blobs}
    if edits and thread.views is not None:
        thread.views.edit(applied(edits), blobs)


def _add_to_view(views: Views, seq: int, part: _Prepared, state: SessionState) -> None:
    """Add an event to the views as the log will have it."""
    blobs = {blob.sha256: blob.data for blob in part.redacted.blobs}
    views.add(_future(part, seq, state), blobs)


def _future(part: _Prepared, seq: int, state: SessionState) -> Envelope:
    """Return an event as the log will have it."""
    redacted = part.redacted
    ts = from_microseconds(redacted.ts)
    return future_envelope(redacted, seq, state.stream, ts)


def _numbers(thread: Thread, state: SessionState) -> Mapping[str, int]:
    """Return the table of numbered placeholders for the next events of a thread."""
    return state.numbers if thread.numbers is None else thread.numbers


def _redacting(thread: Thread, state: SessionState) -> Redact:
    """Return the function that redacts an event as its session would record it."""
    writer = thread.session.writer

    def redact(event: Event) -> Event:
        tag = _tag(thread, state)
        learned = writer.learned(state)
        _, redacted = _redacted(writer, state, Draft(event), tag, learned)
        return redacted.event

    return redact


def _tag(thread: Thread, state: SessionState) -> Tagger:
    """Return the tagger for the next events of a thread.

    In a request with placeholders, each of them may stand for a value of the session.
    """
    numbers = _numbers(thread, state)
    if thread.hiding is not None:
        return thread.hiding.numbering(numbers)
    return thread.session.writer.numbering(state.stream, numbers)


def _keep_numbers(thread: Thread, tag: Tagger, *, is_sent: bool = True) -> None:
    """Keep the numbers that a tagger gave, for the next events.

    is_sent: whether the provider gets what was redacted.

    Raises _FoundMore if it would get a new value.
    """
    if not isinstance(tag, Numbering):
        return
    thread.numbers = tag.known
    if thread.hiding is not None and thread.hiding.add(tag) and is_sent:
        raise _FoundMore


def _prepared(
    thread: Thread,
    writer: Writer,
    state: SessionState,
    contents: Sequence[_Content],
    *,
    is_sent: bool,
) -> list[_Prepared]:
    """Redact drafts; an event that cannot be recorded becomes a note that says so.

    is_sent: whether the provider gets their content.
    """
    tag = _tag(thread, state)
    learned = writer.learned(state)
    prepared: list[_Prepared] = []
    for draft, item in contents:
        draft, redacted = _redacted(writer, state, draft, tag, learned)
        learned.learn(redacted.secrets, state.head_seq + len(prepared) + 1)
        is_changed = False
        if item is not None and redacted.event is not item.event:
            is_changed = not _shows_the_same(redacted.event, item.event)
        elif isinstance(draft.event, ProviderEdit):
            is_changed = _new_content(redacted.event) != _new_content(draft.event)
        prepared.append(_Prepared(draft, redacted, item, is_changed))
    _keep_numbers(thread, tag, is_sent=is_sent)
    return prepared


def _redacted(
    writer: Writer, state: SessionState, draft: Draft, tag: Tagger, learned: Learned
) -> tuple[Draft, RedactedEvent]:
    """Redact a draft.  Raises KeyUnavailable, Erased, InvalidEvent."""
    for attempt in _attempts(draft):
        try:
            redacted = writer.redacted(
                attempt,
                user_id=state.stream.user_id,
                now=writer.clock(),
                unscanned="stub",
                tag=tag,
                learned=learned,
            )
        except (errors.EventTooLarge, errors.RedactionFailed) as error:
            refusal = error
        else:
            return attempt, redacted
    raise refusal


def _attempts(draft: Draft) -> Iterator[Draft]:
    """Yield a draft, then its event in forms that lose more and more of the content."""
    yield draft
    text = as_text(draft.event)
    if text is not None:
        yield replace(draft, event=text, meta=draft.meta.warned(AS_TEXT))
    note = _note(draft.event)
    if note is not None:
        yield replace(draft, event=note, meta=draft.meta.warned(NOT_RECORDED))


def _shows_the_same(stored: Event, event: Event | None) -> bool:
    """Whether a stored event shows a model the same as the event of a request."""
    if event is None:
        return False
    return identity(stored) == identity(event)


def _new_content(edit: Event) -> object:
    """Return the content that contexts show from an edit on."""
    if not isinstance(edit, ProviderEdit):
        return None
    return edit.cleared_text, edit.arguments, edit.without_arguments


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
        case ProviderEdit(arguments=arguments) if arguments is not None:
            return event.model_copy(update={"arguments": _NOT_RECORDED})
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
