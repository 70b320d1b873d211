"""The Responses API of OpenAI."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from refold.adapters.importers import base, codex, exit_codes, openai
from refold.adapters.importers.response import events_of
from refold.adapters.proxy.conversation import (
    SessionHint,
    WireAnswer,
    WireMessage,
    WireRequest,
)
from refold.adapters.proxy.protocols import clients, errors, openai_shared
from refold.adapters.proxy.protocols.answers import (
    answer_of,
    call_input,
    received,
    stop_reason,
)
from refold.adapters.proxy.protocols.beginnings import Beginnings, Frame
from refold.adapters.proxy.protocols.reading import (
    EMPTY_MESSAGE,
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
    ProviderEdit,
    SystemPrompt,
    ToolResult,
    event_of,
)

NAME: Final = "openai-responses"
LAST_LINES: Final[tuple[bytes, ...]] = (
    b"event: response.completed",
    b"event: response.failed",
    b"event: response.incomplete",
)
_SYSTEM: Final = ("developer", "system")
# Items by which a client controls the provider; no model reads them.
_CONTROLS: Final = frozenset({"compaction_trigger", "configuration_update"})
# Items that a client sends, besides messages and outputs of calls.
_OF_CLIENT: Final = _CONTROLS | {"item_reference", "mcp_approval_response"}
# Items to which later items refer by their ids.
_NAMED: Final = frozenset({"mcp_approval_request"})
# The fields of an item that a client adds for itself, or that only name it.
_OF_ITEM: Final = frozenset(
    {"id", "internal_chat_message_metadata_passthrough", "phase", "status", "type"}
)
_CALL_FIELDS: Final = _OF_ITEM | frozenset(
    {"action", "arguments", "call_id", "input", "name", "operation"}
)
_ENDS: Final = frozenset(
    {
        "response.cancelled",
        "response.completed",
        "response.failed",
        "response.incomplete",
    }
)
# Fields of a response that events record, or that repeat the request.
_ANSWER_FIELDS: Final = frozenset(
    {
        "background",
        "completed_at",
        "conversation",
        "created_at",
        "error",
        "id",
        "incomplete_details",
        "include",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "model",
        "object",
        "output",
        "output_text",
        "parallel_tool_calls",
        "previous_response_id",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "status",
        "store",
        "stream",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "usage",
        "user",
    }
)


def matches(method: str, path: str) -> bool:
    """Whether a request is for a response."""
    return method == "POST" and endpoint(path).endswith("/responses")


def request(body: bytes, headers: Mapping[str, str], path: str) -> WireRequest:  # noqa: ARG001  # as all protocols
    """Return a request as events.  Raises NotRecordable."""

    def begin(frame: Frame) -> _Reading:
        return _begin(headers, frame)

    content = _BEGINNINGS.read(body, begin)
    frame = content.frame
    text: Any = frame.fields.get("input")
    if isinstance(text, str):
        content = _BEGINNINGS.read_messages(frame, [text], begin)
    more_tools = [openai_shared.tool_of(tool) for tool in content.reading.tools]
    return WireRequest(
        protocol=NAME,
        model=base.text(frame.fields, "model"),
        system=content.reading.system,
        tools=(*frame.tools, *more_tools),
        messages=content.messages(),
        options=frame.options,
        hint=_hint(headers, frame),
        stream=frame.fields.get("stream") is True,
        warnings=content.notes().warnings(),
    )


def _frame(fields: JsonObject, notes: Notes) -> Frame:
    """Return the fields of a body besides its items."""
    return Frame(
        fields=fields,
        system=base.text(fields, "instructions"),
        tools=tuple(openai_shared.tool_of(tool) for tool in base.each(fields, "tools")),
        options=without_secrets(
            fields, "input", "instructions", "model", "stream", "tools"
        ),
        notes=notes,
    )


def _hint(headers: Mapping[str, str], frame: Frame) -> SessionHint:
    """Return the session that a client names."""
    fields = frame.fields
    conversation = base.text(fields, "conversation")
    return clients.hint(
        headers,
        fields,
        previous_response_id=base.text(fields, "previous_response_id"),
        conversation=conversation or base.text(fields, "conversation", "id"),
    )


def _begin(headers: Mapping[str, str], frame: Frame) -> _Reading:
    """Return a new reading for a body with these other fields."""
    hint = _hint(headers, frame)
    has_conversation = bool(
        base.text(frame.fields, "conversation")
        or base.text(frame.fields, "conversation", "id")
    )
    is_whole = hint.previous_response_id is None and not has_conversation
    return _Reading(frame.system, hint.agent, settles=is_whole)


_BEGINNINGS: Final = Beginnings(NAME, field="input", frame=_frame)
_CONVERSIONS: Final = Conversions()


class _Reading:
    """Reads the items of a request, in their order.

    system: the instructions, or else a first message of the developer.
    tools:  those that stand among the items.
    agent:  the name of the client.
    """

    def __init__(self, system: str | None, agent: str | None, *, settles: bool) -> None:
        self.key: Hashable = (system, agent, settles)
        self.settles = settles
        self.system = system
        self.tools: Sequence[Any] = ()
        self._agent = agent
        self._has_messages = False
        # The items of the model since the last item of somebody else, each with its
        # place.
        self._output: tuple[tuple[dict[str, Any], str], ...] = ()

    def copy(self) -> _Reading:
        """Return a reading that continues independently from here."""
        reading = _Reading(self.system, self._agent, settles=self.settles)
        reading.key = self.key
        reading.tools = self.tools
        reading._has_messages = self._has_messages
        reading._output = self._output
        return reading

    def take(self, item: Any, place: str, notes: Notes) -> list[WireMessage]:
        """Take the next item; returns the messages that are complete now."""
        fields = base.mapping(item)
        kind = base.text(fields, "type") or ("message" if fields else "")
        role = base.text(fields, "role")
        if isinstance(item, str):
            fields = {"content": item}
            kind = "message"
            role = "user"
        if kind == "additional_tools":
            self.tools = (*self.tools, *base.each(fields, "tools"))
            return []
        if kind == "message" and role in _SYSTEM:
            return self._system_message(fields, place, notes)
        if kind == "agent_message" or (kind == "message" and role == "user"):
            own_notes = Notes()
            convert = partial(_inputs, fields, place, own_notes)
            message = _CONVERSIONS.message(fields, own_notes, convert)
            return self._with(message, place, own_notes, notes)
        if kind.endswith("_output") and base.text(fields, "call_id"):
            own_notes = Notes()
            convert = partial(self._result, fields)
            key = [self._agent, fields]
            message = _CONVERSIONS.message(key, own_notes, convert)
            return self._with(message, place, own_notes, notes)
        if _is_of_model(kind, role):
            self._output = (*self._output, (fields, place))
            return []
        if kind not in _CONTROLS:
            notes.add(NOT_CONVERTED, f"{place}: {base.shown(kind or 'item')}")
        event = Item(format=NAME, kind=kind, value=item)
        return self._with(WireMessage("user", (event,)), place, Notes(), notes)

    def _system_message(
        self, fields: dict[str, Any], place: str, notes: Notes
    ) -> list[WireMessage]:
        """Take a message of the developer, which may be the system prompt."""
        text = openai_shared.system_text(fields.get("content"), place, notes)
        if text is None:
            notes.add(EMPTY_MESSAGE, place)
            return []
        if self.system is None and not self._has_messages and not self._output:
            self.system = text
            return []
        convert = partial(_system_text, text)
        key = ["system", text]
        message = _CONVERSIONS.message(key, Notes(), convert)
        return self._with(message, place, Notes(), notes)

    def _result(self, item: dict[str, Any]) -> WireMessage:
        """Return the result of a call."""
        event: Event
        if self._agent == codex.NAME:
            piece = codex.returned(item)
            event = event_of(piece.type, piece.fields)
        else:
            output = item.get("output")
            event = ToolResult(
                call_id=item["call_id"],
                content="" if output is None else output,
                status="error" if exit_codes.states_failure(output) else "ok",
            )
        return WireMessage("user", (event,))

    def _with(
        self, message: WireMessage, place: str, own_notes: Notes, notes: Notes
    ) -> list[WireMessage]:
        """Return a message that is not the model's, behind the model's before it.

        own_notes: of its conversion.
        notes:     of the request.
        """
        messages = self.end(notes)
        notes.add_all(own_notes)
        if message.events:
            self._has_messages = True
            return [*messages, message]
        notes.add(EMPTY_MESSAGE, place)
        return messages

    def end(self, notes: Notes) -> list[WireMessage]:
        """Return the items of the model, up to here, as one message."""
        output = self._output
        if not output:
            return []
        own_notes = Notes()
        convert = partial(_answer_in, output, own_notes)
        items = [item for item, _ in output]
        message = _CONVERSIONS.message(items, own_notes, convert)
        notes.add_all(own_notes)
        self._output = ()
        if not message.events:
            return []
        self._has_messages = True
        return [message]


def _system_text(text: str) -> WireMessage:
    """Return a message of the developer."""
    event = SystemPrompt(text=text, where="conversation")
    return WireMessage("system", (event,))


def _inputs(fields: dict[str, Any], place: str, notes: Notes) -> WireMessage:
    """Return a message of the user."""
    inputs = UserEvents()
    openai_shared.add_user_parts(inputs, fields.get("content"), NAME, place, notes)
    return WireMessage("user", inputs.events())


def _answer_in(
    items: Iterable[tuple[dict[str, Any], str]], notes: Notes
) -> WireMessage:
    """Return items of the model as one message.

    items: each with its place.
    """
    output = _Output(notes)
    for item, place in items:
        output.take(item, place)
    return WireMessage("assistant", output.events() if output.begun else ())


def _is_of_model(kind: str, role: str | None) -> bool:
    """Whether an item with this type and this role is output of the model."""
    if kind == "message":
        return role == "assistant"
    return bool(kind) and role is None and kind not in _OF_CLIENT


class _Output:
    """Items of the model, as blocks of the Messages API.

    items:         the content that blocks do not have, as events.
    only_provider: whether only the provider can read what came so far.
    """

    def __init__(self, notes: Notes) -> None:
        self.blocks: list[Any] = []
        self.items: list[Event] = []
        self._notes = notes
        self.only_provider = True

    @property
    def begun(self) -> bool:
        """Whether it has an item."""
        return bool(self.blocks or self.items)

    def events(self) -> tuple[Event, ...]:
        """Return the events of a message in a request."""
        if self.only_provider:
            # There is no response around a compaction, for example.
            edit = ProviderEdit(blocks=tuple(self.blocks))
            return (edit, *self.items) if self.blocks else tuple(self.items)
        return (*events_of({"content": self.blocks}), *self.items)

    def take(self, item: dict[str, Any], place: str) -> None:
        """Take the next item."""
        kind = base.text(item, "type") or "message"
        if kind == "message":
            self._message(item, place)
        elif kind == "reasoning":
            self.blocks += openai.reasoning_blocks(item)
        elif kind.endswith("_call") and base.text(item, "call_id"):
            self._call(item, kind)
        else:
            self.blocks.append(_block(item, kind))
            return
        self.only_provider = False

    def _message(self, item: dict[str, Any], place: str) -> None:
        """Take the texts of a message, and their annotations."""
        content = item.get("content")
        parts = [content] if isinstance(content, str) else base.sequence(content)
        for index, part in enumerate(parts):
            text = openai.text_of(part)
            if text is None:
                kind = base.text(part, "type") or "part"
                where = f"{place}.content[{index}]"
                self._notes.add(NOT_CONVERTED, f"{where}: {base.shown(kind)}")
                self.items.append(Item(format=NAME, kind=kind, value=part))
                continue
            self.blocks.append({"type": "text", "text": text})
            for name in ("annotations", "logprobs"):
                value = base.sequence(part, name)
                if value:
                    self.items.append(Item(format=NAME, kind=name, value=value))

    def _call(self, item: dict[str, Any], kind: str) -> None:
        """Take a call; its tool is named by its type if it has no name."""
        block: JsonObject = {
            "type": "tool_use",
            "id": item["call_id"],
            "name": base.text(item, "name") or kind,
            "input": call_input(openai.arguments_in(item), self._notes),
        }
        for name, value in item.items():
            if name not in _CALL_FIELDS and value:
                block[name] = value
        self.blocks.append(block)


def _block(item: dict[str, Any], kind: str) -> JsonObject:
    """Return an item that only the provider reads, without what clients change.

    Some clients send such items back without their ids.
    """
    block: JsonObject = {}
    for name, value in item.items():
        if name == "id" and kind not in _NAMED:
            continue
        if name != "internal_chat_message_metadata_passthrough":
            block[name] = value
    return block


def answer(
    status: int, headers: Mapping[str, str], body: bytes, *, complete: bool
) -> WireAnswer:
    """Return an answer as events."""
    notes = Notes()
    response = received(
        status,
        headers,
        body,
        NAME,
        notes,
        complete=complete,
        content="output",
        stream=_Stream(notes),
    )
    if isinstance(response, WireAnswer):
        return response
    return _answer(
        response.value, notes, complete=response.complete, error=response.error
    )


def _answer(
    response: dict[str, Any],
    notes: Notes,
    *,
    complete: bool,
    error: AgentError | None = None,
) -> WireAnswer:
    """Return the answer for a response."""
    output = _Output(notes)
    for index, item in enumerate(base.each(response, "output")):
        output.take(item, f"output[{index}]")
    status = base.text(response, "status")
    if error is None and response.get("error"):
        error = errors.error_in(response, NAME)
    elif error is None and status in ("cancelled", "failed"):
        error = AgentError(code=status, message=f"the response {status}", where=NAME)
    reason = base.text(response, "incomplete_details", "reason") or status
    others: JsonObject = {}
    for name, value in response.items():
        if name not in _ANSWER_FIELDS and value not in (None, [], {}, ""):
            others[name] = value
    items = output.items
    if others:
        items = [*items, Item(format=NAME, kind="response", value=storable(others))]
    message: JsonObject = {
        "id": response.get("id"),
        "model": response.get("model"),
        "content": output.blocks,
        "stop_reason": stop_reason(reason, output.blocks),
        "usage": openai_shared.usage_of(
            response.get("usage"), response.get("service_tier")
        ),
    }
    wire = answer_of(
        message,
        NAME,
        notes,
        complete=complete,
        error=error,
        items=items,
    )
    if not output.only_provider:
        return wire
    return wire._replace(events=tuple(map(_without_order, wire.events)))


def _without_order(event: Event) -> Event:
    """Return an edit without the order of its blocks, as a request repeats it."""
    if isinstance(event, ProviderEdit):
        return ProviderEdit(blocks=event.blocks)
    return event


class _Stream:
    """Joins the events of a stream to a response.

    complete: whether the event came that ends the response.
    """

    def __init__(self, notes: Notes) -> None:
        self.complete = False
        self.error: AgentError | None = None
        self._notes = notes
        self._response: JsonObject = {}
        self._items: dict[int, _Item] = {}
        self._indexes: dict[str, int] = {}

    def take(self, name: str, event: dict[str, Any]) -> None:
        """Take the next event."""
        kind = base.text(event, "type") or name
        if "error" in (kind, name):
            self.error = errors.error_in(event, NAME)
        elif isinstance(event.get("response"), dict):
            self._response = event["response"]
            self.complete = kind in _ENDS
        elif kind == "response.output_item.added":
            self._item(event).begin(base.mapping(event, "item"))
        elif kind == "response.output_item.done":
            self._item(event).end(base.mapping(event, "item"))
        elif kind.endswith(".delta") and isinstance(event.get("delta"), str):
            self._item(event).add(kind, event)
        elif not kind.startswith(("response.", "keepalive", "[DONE]")):
            self._notes.add(NOT_CONVERTED, f"event {base.shown(kind)}")

    def _item(self, event: dict[str, Any]) -> _Item:
        """Return the item that an event is about."""
        index = event.get("output_index")
        name = base.text(event, "item_id") or base.text(event, "item", "id") or ""
        if not isinstance(index, int):
            index = self._indexes.get(name, len(self._items))
        self._indexes[name] = index
        return self._items.setdefault(index, _Item())

    def joined(self) -> JsonObject:
        """Return the response, as far as it came.

        Some servers leave out the output in the last event.
        """
        if base.sequence(self._response, "output"):
            return self._response
        output: list[Any] = []
        for index in sorted(self._items):
            output.append(self._items[index].value())
        return {**self._response, "output": output}


# By the start of the type of a delta, the field of the item that it is a part of.
_FIELDS: Final = {
    "response.custom_tool_call_input": "input",
    "response.function_call_arguments": "arguments",
    "response.mcp_call_arguments": "arguments",
    "response.code_interpreter_call_code": "code",
}
# The same for parts of lists: the field, the type of a part, and its field.
_PARTS: Final = {
    "response.output_text": ("content", "output_text", "text"),
    "response.refusal": ("content", "refusal", "refusal"),
    "response.reasoning_text": ("content", "reasoning_text", "text"),
    "response.reasoning_summary_text": ("summary", "summary_text", "text"),
}


class _Item:
    """An item of a stream: its start, the pieces of its texts, and its end."""

    def __init__(self) -> None:
        self._start: JsonObject = {}
        self._whole: JsonObject | None = None
        # The pieces by the start of the type of their deltas, and their part.
        self._texts: dict[tuple[str, int], list[str]] = {}

    def begin(self, item: dict[str, Any]) -> None:
        """Take the start of the item."""
        self._start = item

    def end(self, item: dict[str, Any]) -> None:
        """Take the whole item."""
        self._whole = item

    def add(self, kind: str, event: dict[str, Any]) -> None:
        """Add a piece of a text."""
        part = event.get("content_index", event.get("summary_index"))
        if not isinstance(part, int):
            part = 0
        key = kind.removesuffix(".delta"), part
        self._texts.setdefault(key, []).append(event["delta"])

    def value(self) -> JsonObject:
        """Return the item, as far as it came."""
        if self._whole is not None:
            return self._whole
        item: JsonObject = dict(self._start)
        if not item:
            item = {"type": "message", "role": "assistant"}
        parts: dict[str, list[Any]] = {}
        for (kind, _), pieces in sorted(self._texts.items()):
            text = "".join(pieces)
            if kind in _FIELDS:
                item[_FIELDS[kind]] = text
            elif kind in _PARTS:
                field, part_type, name = _PARTS[kind]
                part: JsonObject = {"type": part_type, name: text}
                parts.setdefault(field, []).append(part)
        return {**item, **parts}
