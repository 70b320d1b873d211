"""The views of a session's requests, which grow with the session.

A request carries the whole history, and its view has a digest of all messages.  To
render them again for each request would take time that grows with the history.  So only
the newest exchange and the events behind it are rendered.  The messages before them are
settled: of these, only the state of the digest is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

from refold.domain.canonical import canonical, digest, text_digest
from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentResponse,
    JsonObject,
    Request,
    ToolCall,
    ToolResult,
)
from refold.domain.ports import EventLog
from refold.domain.session import SessionState
from refold.domain.stubs import digests_in
from refold.domain.tokens import estimate, estimate_text
from refold.projections.context.budget import ExtraArgs, Extras
from refold.projections.context.edits import Edit, Edited, applied, edit_of, edits_in
from refold.projections.context.render import OPENING, render
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategy import Strategy
from refold.projections.context.text import Message, text_block
from refold.projections.context.units import (
    Exchange,
    Spans,
    arrange,
    holds,
    spans_of,
)
from refold.projections.context.view import View
from refold.store.appends import Writer
from refold.store.contexts import redact_parts
from refold.store.history import History, WithBlobs
from refold.store.vault import Numbering

# Contexts show everything that a client sent.
KEEP_ALL: Final[Strategy] = KeepAll()
# Messages are settled once the tail has more events.
_LONGEST_TAIL: Final = 10
_START: Final = b'{"messages":['
_BEGINS_EXCHANGE: Final = (AgentResponse, ToolCall)


class SentExtras(NamedTuple):
    """The system prompt and the tools of a request, redacted.

    handed:    as a request records them.
    tokens:    their cost in a view.
    unchanged: whether redaction changed nothing.
    """

    system: str | None
    handed: dict[str, str]
    system_digest: str | None
    tools_digest: str | None
    tokens: int
    unchanged: bool

    @classmethod
    def of(
        cls,
        writer: Writer,
        user_id: str,
        system: str | None,
        tools: Sequence[JsonObject],
        *,
        numbering: Numbering | None = None,
    ) -> SentExtras:
        """Redact what a client sent.  Raises InvalidEvent, RedactionFailed.

        numbering: numbers the values; None if they get no numbers.
        """
        arguments: ExtraArgs = {"tools": tools}
        if system is not None and system.strip():
            arguments["system"] = system
        parts = redact_parts(writer, user_id, arguments, numbering=numbering)
        extras: Extras = parts.extras
        text = extras.system
        return cls(
            system=text,
            handed=extras.dump(),
            system_digest=None if text is None else text_digest(text),
            tools_digest=digest(extras.tools) if extras.tools else None,
            tokens=estimate_text(text or "") + estimate(extras.tools),
            unchanged=text == arguments.get("system") and extras.tools == tuple(tools),
        )


@dataclass(slots=True)
class Views:
    """The views of one session, for its next requests.

    settled:  the state of the digest after the messages that change no more.
    count:    the number of these messages.
    tokens:   their cost.
    call_ids: the ids that the calls have in them.
    tail:     the events behind them, as contexts show them.
    front:    the events in the tail that contexts show before all others.
    blobs:    of images and documents in the tail.
    rendered: the tail as it was rendered last, and for which window; None if the tail
              is another one since then.
    """

    settled: Any = field(default_factory=lambda: sha256(_START))
    count: int = 0
    tokens: int = 0
    call_ids: set[str] = field(default_factory=set)
    tail: list[Envelope] = field(default_factory=list)
    front: Spans = ()
    blobs: dict[str, bytes] = field(default_factory=dict)
    rendered: tuple[int, View] | None = None

    @classmethod
    def read(
        cls,
        log: EventLog,
        state: SessionState,
        window: int,
        *,
        seqs: Iterable[int],
        front: Iterable[int],
    ) -> Views:
        """Read the views of a session from its log.

        window: the tokens of the model's window; a message over a quarter is shortened.
        seqs:   of the events that contexts show, and of the edits of their content.
        front:  of the events that contexts show before all others.
        """
        events = History.of(log, state).read_spans(spans_of(seqs))
        edited = applied(edits_in(events))
        shown = [
            edited.cleared_form(envelope) or envelope
            for envelope in events
            if _is_shown(envelope)
        ]
        whole = WithBlobs.read(log, shown)
        views = cls(tail=whole.events, front=spans_of(front), blobs=dict(whole.blobs))
        views.settle(window)
        return views

    def add(self, envelope: Envelope, blobs: Mapping[str, bytes]) -> None:
        """Add an event that contexts show behind all others."""
        if _is_shown(envelope):
            self.tail.append(envelope)
            self.rendered = None
            self.blobs.update(blobs)

    def has_in_tail(self, seqs: Collection[int]) -> bool:
        """Whether all events with these seqs are in the tail."""
        return {envelope.seq for envelope in self.tail}.issuperset(seqs)

    def in_tail(self, seq: int) -> Envelope | None:
        """Return an event of the tail, as contexts show it; None if it is not there."""
        for envelope in self.tail:
            if envelope.seq == seq:
                return envelope
        return None

    def edit(self, edited: Edited, blobs: Mapping[str, bytes]) -> None:
        """Apply edits to the tail.

        blobs: of the edits.
        """
        shown = [edited.shown(envelope) for envelope in self.tail]
        self.tail = [envelope for envelope in shown if envelope is not None]
        self.rendered = None
        self.blobs.update(blobs)

    def request(self, sent: SentExtras, *, through_seq: int, window: int) -> Request:
        """Return the event that records a request with all messages."""
        view = self._rendered(window)
        messages = self._messages(view)
        state = self.settled.copy()
        _write(state, messages, count=self.count)
        state.update(b'],"system":' + canonical(sent.system) + b"}")
        return Request(
            strategy=KEEP_ALL.ref,
            through_seq=through_seq,
            digest=state.hexdigest(),
            tokens=sent.tokens + self.tokens + view.tokens,
            system_digest=sent.system_digest,
            tools_digest=sent.tools_digest,
            handed=sent.handed,
            window_tokens=window,
        )

    def settle(self, window: int) -> None:
        """Settle the messages before the newest exchange."""
        if len(self.tail) <= _LONGEST_TAIL:
            return  # to settle costs more than to render some events once more
        exchanges = arrange(self.tail)
        newest = _newest_answer(exchanges)
        if not newest or newest[0] is exchanges[0][0]:
            return
        if any(holds(self.front, envelope.seq) for envelope in newest):
            return
        view = self._rendered(window)
        index = _message_of(view, {envelope.seq for envelope in newest})
        skipped = len(view.messages) - len(self._messages(view))
        if index is None or index <= skipped:
            return
        cut = newest[0].seq
        if self._has_late_result(exchanges, cut):
            return
        tail = [
            envelope
            for envelope in self.tail
            if envelope.seq >= cut and not holds(self.front, envelope.seq)
        ]
        messages = view.messages[skipped:index]
        _write(self.settled, messages, count=self.count)
        self.count += index - skipped
        self.call_ids.update(_call_ids(messages))
        self.tail = tail
        self.rendered = None
        self.front = ()
        self.blobs = {
            sha: self.blobs[sha]
            for envelope in tail
            for sha in digests_in(envelope.payload)
            if sha in self.blobs
        }
        self.tokens += view.tokens - self._rendered(window).tokens

    def _has_late_result(self, exchanges: Iterable[Exchange], cut: int) -> bool:
        """Whether a result from this seq on stands elsewhere in contexts.

        A result may come after a later response: contexts show it as late, or in an
        exchange before this seq.
        """
        for exchange in exchanges:
            first = exchange[0]
            last_seq = exchange[-1].seq
            if holds(self.front, last_seq):
                continue
            if first.seq >= cut and isinstance(first.payload, ToolResult):
                return True
            if first.seq < cut < last_seq:
                return True
        return False

    def _rendered(self, window: int) -> View:
        """Render the tail alone."""
        if self.rendered is not None and self.rendered[0] == window:
            return self.rendered[1]
        outline = KEEP_ALL.read(KEEP_ALL.begin(), self.tail)
        if self.front:
            edit = Edit(at=outline.through_seq, in_place=self.front)
            outline = outline._replace(edits=(edit,))
        extras = Extras(window_tokens=window)
        view = render(
            KEEP_ALL,
            outline,
            self.tail,
            extras=extras,
            read=self.blobs.get,
            taken_ids=self.call_ids,
        )
        self.rendered = (window, view)
        return view

    def _messages(self, view: View) -> list[Message]:
        """Return the messages of the tail, without the opening that only it needs."""
        if self.count and view.messages and view.messages[0]["content"] == _OPENING:
            return view.messages[1:]
        return view.messages


def _newest_answer(exchanges: Sequence[Exchange]) -> list[Envelope]:
    """Return the events of the newest answer and of its results.

    Another writer may have appended its thinking, texts, and calls one by one, each
    with the id of the response.  A response behind results is another answer, also if
    the provider uses an id again.
    """
    newest: list[Envelope] = []
    response_id: str | None = None
    for exchange in reversed(exchanges):
        first = exchange[0]
        is_of_answer = isinstance(first.payload, _BEGINS_EXCHANGE)
        if newest:
            has_same_id = bool(response_id) and first.meta.response_id == response_id
            has_result = isinstance(exchange[-1].payload, ToolResult)
            if not is_of_answer or not has_same_id or has_result:
                break
        elif not is_of_answer:
            continue
        newest = [*exchange, *newest]
        response_id = first.meta.response_id
    return newest


_OPENING: Final = [text_block(OPENING)]
_NEVER_SHOWN: Final = frozenset({"request", "state"})


def _is_shown(envelope: Envelope) -> bool:
    """Whether contexts may show the event."""
    return envelope.type not in _NEVER_SHOWN and edit_of(envelope) is None


def _write(state: Any, messages: Sequence[Message], *, count: int) -> None:
    """Add messages to the state of a digest.

    count: the number of messages in it.
    """
    for index, message in enumerate(messages, start=count):
        if index:
            state.update(b",")
        state.update(canonical(message))


def _call_ids(messages: Iterable[Message]) -> Iterator[str]:
    """Yield the ids of the calls in messages."""
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            continue
        for block in content:
            if block["type"] == "tool_use":
                yield block["id"]


def _message_of(view: View, seqs: Collection[int]) -> int | None:
    """Return the index of the message that begins with one of these events."""
    for index in reversed(range(len(view.messages))):
        first = view.origins[index][0].seq
        if first in seqs and view.messages[index]["role"] == "assistant":
            return index
    return None
