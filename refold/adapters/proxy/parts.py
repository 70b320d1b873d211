"""Joins the parts of an answer that another writer appended one by one.

Claude Code and Codex write thinking, texts, and calls of an answer as separate entries,
and a capture appends them so.  A request repeats the answer as one message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from refold.adapters.importers.response import events_of
from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentResponse,
    Event,
    Item,
    JsonObject,
    ProviderEdit,
    Request,
    StateUpdate,
    Thinking,
    ToolCall,
)
from refold.domain.ids import provider_response_id

# Returns an event as the session would record it.
Redact = Callable[[Event], Event]


@dataclass(slots=True)
class CapturedAnswer:
    """The responses and calls of an answer that follow one another in the log.

    A capture or an import appended the first of them.

    name:  the provider's id of the answer, or the id that the writer gave it.
    parts: the responses and calls, in order.
    is_followed: whether another answer comes next, without an input or result between.
    """

    name: str
    parts: list[Envelope] = field(default_factory=list)
    is_followed: bool = False

    @property
    def response_id(self) -> str:
        """The provider's id of the answer; empty if the writer does not know it."""
        return provider_response_id(self.name)

    @property
    def responses(self) -> list[Envelope]:
        """Its parts with texts and thinking."""
        return [part for part in self.parts if isinstance(part.payload, AgentResponse)]

    @property
    def first_seq(self) -> int:
        """The seq of its first part."""
        return self.parts[0].seq


def captured_answers(
    envelopes: Iterable[Envelope], *, is_of_proxy: Callable[[Envelope], bool]
) -> list[CapturedAnswer]:
    """Return the answers that another writer than the proxy began to append.

    The proxy may have appended the rest of such an answer.
    """
    answers: list[CapturedAnswer] = []
    current: CapturedAnswer | None = None
    for envelope in envelopes:
        event = envelope.payload
        if not envelope.meta.in_context or isinstance(
            event, Item | Request | StateUpdate
        ):
            continue
        if isinstance(event, ProviderEdit) and event.spans:
            continue
        if not isinstance(event, AgentResponse | ToolCall):
            current = None
            continue
        name = envelope.meta.response_id
        of_proxy = is_of_proxy(envelope)
        if current is None or current.name != name:
            if current is not None:
                current.is_followed = True
            current = None
            if name and not of_proxy:
                current = CapturedAnswer(name)
                answers.append(current)
        if current is None:
            continue
        current.parts.append(envelope)
        if of_proxy and isinstance(event, AgentResponse):
            current = None  # the proxy appends all texts and thinking that are missing
    return answers


def joined(responses: Iterable[Event]) -> AgentResponse:
    """Return the responses of one answer as one."""
    texts: list[str] = []
    thinking: list[Thinking] = []
    for response in responses:
        if isinstance(response, AgentResponse):
            texts.append(response.text)
            thinking += response.thinking
    return AgentResponse(text="".join(texts), thinking=tuple(thinking))


class Rest(NamedTuple):
    """The part of an answer that the session does not have.

    response: its texts and thinking; None without any.
    order:    the event with the order of its blocks; None if it is not needed.
    call_ids: of its calls.
    stored_is_redacted: whether redaction changed the part that the session has.
    """

    response: AgentResponse | None
    order: ProviderEdit | None
    call_ids: tuple[str, ...]
    stored_is_redacted: bool


def rest_of(
    events: Sequence[Event], captured: CapturedAnswer, redact: Redact
) -> Rest | None:
    """Return the part of an answer that the session does not have.

    events: the response of the whole answer, its calls, and the order of its blocks.

    Returns None if the session has something else than the beginning of the answer, or
    if the answer has blocks of the provider.
    """
    blocks = _blocks_of_answer(events)
    if blocks is None:
        return None
    stored_is_redacted = False
    rest = blocks
    for part in captured.parts:
        for stored in _blocks_of(part.payload):
            if not rest:
                return None
            left = _left_of(rest[0], stored)
            if left is None:
                lefts = (
                    _left_of(block, stored) for block in _redacted(rest[0], redact)
                )
                left = next((found for found in lefts if found is not None), None)
                stored_is_redacted = True
            if left is None:
                return None
            rest = [*left, *rest[1:]]
    response: AgentResponse | None = None
    order: ProviderEdit | None = None
    call_ids: list[str] = []
    message: JsonObject = {"content": [*rest]}
    for event in events_of(message):
        if isinstance(event, AgentResponse) and (event.text or event.thinking):
            response = event
        elif isinstance(event, ProviderEdit):
            order = event
        elif isinstance(event, ToolCall):
            call_ids.append(event.call_id)
    return Rest(response, order, tuple(call_ids), stored_is_redacted)


def is_order(event: Event | None) -> bool:
    """Whether an event has nothing but the order of an answer's blocks."""
    if not isinstance(event, ProviderEdit) or event.spans:
        return False
    has_more = event.blocks or event.edits or event.container
    return event.content is not None and not has_more


def _blocks_of(event: Event) -> list[JsonObject]:
    """Return a response or a call as blocks of the Messages API."""
    blocks: list[JsonObject] = []
    if isinstance(event, AgentResponse):
        for thinking in event.thinking:
            blocks.append(thinking.model_dump(exclude_none=True))
        if event.text:
            blocks.append({"type": "text", "text": event.text})
    elif isinstance(event, ToolCall):
        blocks.append(
            {
                "type": "tool_use",
                "id": event.call_id,
                "name": event.tool_name,
                "input": event.arguments,
            }
        )
    return blocks


def _blocks_of_answer(events: Sequence[Event]) -> list[JsonObject] | None:
    """Return the blocks of a whole answer in its order.

    Returns None if it has blocks of the provider.
    """
    in_order: list[JsonObject] = []
    calls: list[JsonObject] = []
    thinking: list[JsonObject] = []
    order: Sequence[JsonObject] | None = None
    for event in events:
        if isinstance(event, ProviderEdit):
            if not is_order(event):
                return None
            order = event.content
            continue
        blocks = _blocks_of(event)
        in_order += blocks
        if isinstance(event, ToolCall):
            calls += blocks
        elif isinstance(event, AgentResponse):
            thinking += [block for block in blocks if block["type"] != "text"]
    if order is None:
        return in_order
    return [_ordered_block(entry, thinking, calls) for entry in order]


def _ordered_block(
    entry: JsonObject,
    thinking: Sequence[JsonObject],
    calls: Sequence[JsonObject],
) -> JsonObject:
    """Return the block that an entry of ``ProviderEdit.content`` stands for."""
    match entry:
        case {"thinking": int(number)}:
            return thinking[number]
        case {"call": int(number), **fields}:
            return {**calls[number], **fields}
    return entry


def _left_of(block: JsonObject, stored: JsonObject) -> list[JsonObject] | None:
    """Return what the session does not have of a block; empty if it has the block.

    Neighboring texts of an answer may be one block here, and several in the session.  A
    call may have further fields here.

    Returns None if the session has another block.
    """
    if all(block.get(name) == value for name, value in stored.items()):
        return []
    if stored["type"] != "text" or block["type"] != "text":
        return None
    text = str(block["text"])
    beginning = str(stored["text"])
    if not text.startswith(beginning):
        return None
    return [{**block, "text": text.removeprefix(beginning)}]


def _redacted(block: JsonObject, redact: Redact) -> list[JsonObject]:
    """Return a block as the session would record it; empty if it would be dropped."""
    blocks: list[JsonObject] = []
    for event in events_of({"content": [block]}):
        blocks += _blocks_of(redact(event))
    return blocks
