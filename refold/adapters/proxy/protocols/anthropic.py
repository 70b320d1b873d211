"""The Messages API of Anthropic, with its beta features."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from refold.adapters.importers import base, messages as blocks
from refold.adapters.importers.response import events_of
from refold.adapters.proxy.conversation import (
    Role,
    WireAnswer,
    WireMessage,
    WireRequest,
)
from refold.adapters.proxy.protocols import clients, errors
from refold.adapters.proxy.protocols.answers import (
    answer_of,
    call_input,
    received,
)
from refold.adapters.proxy.protocols.beginnings import Beginnings, Frame
from refold.adapters.proxy.protocols.reading import (
    EMPTY_MESSAGE,
    FIELDS_LEFT_OUT,
    NOT_CONVERTED,
    Conversions,
    Notes,
    UserEvents,
    endpoint,
    storable,
    without_secrets,
)
from refold.domain.events import (
    AgentError,
    Event,
    Item,
    JsonObject,
    SystemPrompt,
    ToolResult,
)

NAME: Final = "anthropic-messages"
LAST_LINES: Final[tuple[bytes, ...]] = (b"event: message_stop",)
# A client's own header, which it sends as the first block of the system prompt.  It
# differs from request to request.
_HEADER: Final = "x-anthropic-billing-header:"
# Fields of a message that its events record, or that clients repeat from an answer.
_MESSAGE_FIELDS: Final = frozenset(
    {"content", "id", "model", "role", "stop_reason", "stop_sequence", "type", "usage"}
)
# Fields of a file that its attachment records.
_FILE_FIELDS: Final = frozenset({"cache_control", "source", "title", "type"})
_FILE_TYPES: Final = frozenset(
    {"container_upload", "document", "image", "search_result"}
)
# Fields of an answer that its events record, or that have no value for a record.
_ANSWER_FIELDS: Final = frozenset(
    {
        "container",
        "content",
        "context_management",
        "id",
        "model",
        "role",
        "stop_reason",
        "type",
        "usage",
    }
)
_DIRECT: Final = {"type": "direct"}


def matches(method: str, path: str) -> bool:
    """Whether a request is for a message."""
    return method == "POST" and endpoint(path).endswith("/messages")


def request(body: bytes, headers: Mapping[str, str], path: str) -> WireRequest:  # noqa: ARG001  # as all protocols
    """Return a request as events.  Raises NotRecordable."""
    content = _BEGINNINGS.read(body, _Reading)
    frame = content.frame
    options = dict(frame.options)
    settings = content.settings()
    if settings:
        options["message_settings"] = storable(settings)
    return WireRequest(
        protocol=NAME,
        model=base.text(frame.fields, "model"),
        system=frame.system,
        tools=frame.tools,
        messages=content.messages(),
        options=options,
        hint=clients.hint(headers, frame.fields),
        stream=frame.fields.get("stream") is True,
        warnings=content.notes().warnings(),
    )


def _frame(fields: JsonObject, notes: Notes) -> Frame:
    """Return the fields of a body besides its messages."""
    options = without_secrets(fields, "messages", "model", "stream", "system", "tools")
    return Frame(
        fields=fields,
        system=_system(fields.get("system"), options, notes),
        tools=tuple(storable(tool) for tool in base.each(fields, "tools")),
        options=options,
        notes=notes,
    )


def _system(system: Any, options: JsonObject, notes: Notes) -> str | None:
    """Return the text of the system prompt.

    The options get the lengths and the other fields of its blocks, as ``claude.layout``
    returns them, and the texts that clients send as headers.
    """
    if isinstance(system, str):
        return system
    texts: list[str] = []
    layout: list[Any] = []
    headers: list[Any] = []
    for block in base.sequence(system):
        text = blocks.text_of(block)
        if text is None:
            notes.add(NOT_CONVERTED, "system: block that is no text")
        elif text.startswith(_HEADER):
            headers.append(text)
        else:
            texts.append(text)
            entry: JsonObject = {"characters": len(text)}
            for name, value in base.mapping(block).items():
                if name not in ("type", "text"):
                    entry[name] = value
            layout.append(entry)
    if layout:
        options["system_blocks"] = storable(layout)
    if headers:
        options["system_headers"] = headers
    return "\n\n".join(texts) if texts else None


def _message(message: Any, place: str, notes: Notes) -> WireMessage:
    """Return a message as events."""
    fields = base.mapping(message)
    role = fields.get("role")
    content = fields.get("content")
    parts = [content] if isinstance(content, str) else base.sequence(content)
    wire_role: Role = "user"
    if role == "assistant":
        wire_role = "assistant"
        events = _assistant(parts, place, notes)
    elif role == "user":
        events = _user(parts, place, notes)
    elif role == "system":
        wire_role = "system"
        events = _system_message(parts, place, notes)
    else:
        notes.add(NOT_CONVERTED, f"{place}: message of an unknown role")
        events = (_item("message", message),)
    if not events and role != "system":  # an empty one only has settings
        notes.add(EMPTY_MESSAGE, place)
    return WireMessage(wire_role, events)


def _settings(message: Any) -> JsonObject:
    """Return the fields of a message besides its content, such as an effort."""
    if not isinstance(message, dict) or message.keys() <= _MESSAGE_FIELDS:
        return {}
    return {name: message[name] for name in message if name not in _MESSAGE_FIELDS}


class _Reading:
    """Reads the messages of a request, each without the others."""

    key: Hashable = None
    settles = True
    system: str | None = None
    tools: Sequence[Any] = ()

    def __init__(self, _: Frame) -> None:
        pass

    def copy(self) -> _Reading:
        """Return the same, as it has no state."""
        return self

    def take(self, message: Any, place: str, notes: Notes) -> tuple[WireMessage, ...]:
        """Return a message as events."""
        convert = partial(_message, message, place, notes)
        return (_CONVERSIONS.message(message, notes, convert),)

    def end(self, _: Notes) -> tuple[WireMessage, ...]:
        """Return no further messages."""
        return ()


_BEGINNINGS: Final = Beginnings(NAME, frame=_frame, settings=_settings)
_CONVERSIONS: Final = Conversions()


def _item(kind: str, value: Any) -> Item:
    """Return an event with content that no other event can represent."""
    return Item(format=NAME, kind=kind, value=value)


def _kind(part: Any) -> str:
    """Return the type of a block; ``block`` without one."""
    return base.text(part, "type") or "block"


def _user(parts: list[Any], place: str, notes: Notes) -> tuple[Event, ...]:
    """Return the inputs and results in a user's message."""
    events = UserEvents()
    for index, part in enumerate(parts):
        text = blocks.text_of(part)
        if text is not None:
            events.text(text)
            continue
        block = _normal(part)
        kind = _kind(block)
        if kind == "tool_result" and base.text(block, "tool_use_id"):
            events.event(_result(block))
            continue
        file = blocks.attachment(block) if kind in _FILE_TYPES else None
        if file is not None:
            events.file(file)
            if kind in ("document", "image"):
                unknown = block.keys() - _FILE_FIELDS
                if unknown:
                    names = base.field_names(sorted(unknown))
                    notes.add(FIELDS_LEFT_OUT, f"{kind}: {names}")
        else:
            notes.add(NOT_CONVERTED, f"{place}.content[{index}]: {base.shown(kind)}")
            events.event(_item(kind, block))
    return events.events()


def _result(block: JsonObject) -> ToolResult:
    """Return the result in a block."""
    content = block.get("content")
    return ToolResult(
        call_id=block["tool_use_id"],
        content="" if content is None else content,
        status="error" if block.get("is_error") is True else "ok",
    )


def _system_message(parts: list[Any], place: str, notes: Notes) -> tuple[Event, ...]:
    """Return a message of the client that stands between the others."""
    texts: list[str] = []
    events: list[Event] = []
    for index, part in enumerate(parts):
        text = blocks.text_of(part)
        if text is not None:
            texts.append(text)
        else:
            kind = _kind(part)
            notes.add(NOT_CONVERTED, f"{place}.content[{index}]: {base.shown(kind)}")
            events.append(_item(kind, _normal(part)))
    joined = "\n\n".join(text for text in texts if text)
    if joined:
        events.insert(0, SystemPrompt(text=joined, where="conversation"))
    return tuple(events)


def _assistant(parts: list[Any], place: str, notes: Notes) -> tuple[Event, ...]:
    """Return a response, its calls, and blocks of the provider."""
    content: list[Any] = []
    items: list[Event] = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
        elif base.text(part, "type"):
            content.append(_normal(part))
        else:
            notes.add(NOT_CONVERTED, f"{place}.content[{index}]: block without a type")
            items.append(_item("block", part))
    if not content:
        return tuple(items)
    return (*events_of({"content": content}), *items)


def _normal(block: Any) -> Any:
    """Return a block without fields that move or that mean nothing.

    ``cache_control`` moves from request to request, also within results.
    """
    if not isinstance(block, dict):
        return block
    normal: JsonObject = {}
    for name, value in block.items():
        if name == "cache_control" or (name == "caller" and value == _DIRECT):
            continue
        if name == "citations" and not value:
            continue
        if name == "content" and isinstance(value, list):
            value = [_normal(part) for part in value]
        normal[name] = value
    return normal


def answer(
    status: int, headers: Mapping[str, str], body: bytes, *, complete: bool
) -> WireAnswer:
    """Return an answer as events."""
    notes = Notes()
    message = received(
        status,
        headers,
        body,
        NAME,
        notes,
        complete=complete,
        content="content",
        stream=_Stream(notes),
    )
    if isinstance(message, WireAnswer):
        return message
    return _answer(message.value, notes, complete=message.complete, error=message.error)


def _answer(
    message: JsonObject,
    notes: Notes,
    *,
    complete: bool,
    error: AgentError | None = None,
) -> WireAnswer:
    """Return the answer for a message of the API."""
    content: list[Any] = []
    items: list[Event] = []
    for block in base.sequence(message, "content"):
        if base.text(block, "type"):
            content.append(_normal(block))
        else:
            notes.add(NOT_CONVERTED, "content: block without a type")
            items.append(_item("block", block))
    others: JsonObject = {}
    for name, value in message.items():
        if name not in _ANSWER_FIELDS and value is not None:
            others[name] = value
    if others:
        items.append(_item("response", others))
    normal_message: JsonObject = {**message, "content": content}
    return answer_of(
        normal_message, NAME, notes, complete=complete, error=error, items=items
    )


class _Stream:
    """Joins the events of a stream to a message."""

    def __init__(self, notes: Notes) -> None:
        self.complete = False
        self.error: AgentError | None = None
        self._notes = notes
        self._message: JsonObject = {}
        self._usage: JsonObject = {}
        self._blocks: dict[int, _Block] = {}

    def take(self, name: str, event: dict[str, Any]) -> None:
        """Take the next event."""
        kind = base.text(event, "type") or name
        index = event.get("index")
        if not isinstance(index, int):
            index = -1
        if kind == "message_start":
            self._start(base.mapping(event, "message"))
        elif kind == "content_block_start" and index >= 0:
            self._blocks[index] = _Block(base.mapping(event, "content_block"))
        elif kind == "content_block_delta" and index in self._blocks:
            self._blocks[index].add(base.mapping(event, "delta"), self._notes)
        elif kind == "message_delta":
            self._change(event)
        elif kind == "message_stop":
            self.complete = True
        elif "error" in (kind, name):
            self.error = errors.error_in(event, NAME)
        elif kind not in ("content_block_stop", "ping"):
            self._notes.add(NOT_CONVERTED, f"event {base.shown(kind)}")

    def joined(self) -> JsonObject:
        """Return the message, as far as it came."""
        content: list[Any] = []
        for index in sorted(self._blocks):
            content.append(self._blocks[index].value(self._notes))
        message: JsonObject = {**self._message, "content": content}
        if self._usage:
            message["usage"] = self._usage
        return message

    def _start(self, message: dict[str, Any]) -> None:
        """Begin with the message of the first event."""
        self._message = dict(message)
        self._usage = dict(base.mapping(message, "usage"))
        for index, block in enumerate(base.each(message, "content")):
            self._blocks[index] = _Block(block)

    def _change(self, event: dict[str, Any]) -> None:
        """Take the end of the message: its stop reason and its usage."""
        for name, value in base.mapping(event, "delta").items():
            if value is not None:
                self._message[name] = value
        for name, value in event.items():
            if name not in ("delta", "type", "usage") and value is not None:
                self._message[name] = value
        # The counts are totals, so they replace those of the start.
        for name, value in base.mapping(event, "usage").items():
            if value is not None:
                self._usage[name] = value


class _Block:
    """A block of a stream: its start, and the parts of its values."""

    def __init__(self, start: dict[str, Any]) -> None:
        self._start = start
        # By the name of a field, the texts that are joined to its value.
        self._texts: dict[str, list[str]] = {}
        self._input: list[str] = []
        self._citations: list[Any] = []
        self._values: JsonObject = {}

    def add(self, delta: dict[str, Any], notes: Notes) -> None:
        """Add a delta."""
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                self._texts.setdefault("text", []).append(text)
            case {"type": "thinking_delta", "thinking": str(text)}:
                self._texts.setdefault("thinking", []).append(text)
            case {"type": "input_json_delta", "partial_json": str(text)}:
                self._input.append(text)
            case {"type": "signature_delta", "signature": str(signature)}:
                self._values["signature"] = signature
            case {"type": "citations_delta", "citation": citation}:
                self._citations.append(citation)
            case {"type": "compaction_delta"}:
                for name, value in delta.items():
                    if name != "type":
                        self._values[name] = value
            case _:
                kind = base.text(delta, "type") or "delta"
                notes.add(NOT_CONVERTED, f"delta {base.shown(kind)}")

    def value(self, notes: Notes) -> JsonObject:
        """Return the block, as far as it came."""
        block = {**self._start, **self._values}
        for name, texts in self._texts.items():
            block[name] = (base.text(block, name) or "") + "".join(texts)
        if self._citations:
            block["citations"] = [*base.sequence(block, "citations"), *self._citations]
        arguments = "".join(self._input)
        if arguments:
            block["input"] = call_input(arguments, notes)
        return block
