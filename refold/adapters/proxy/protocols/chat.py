"""Messages in the form of a chat completion, as several protocols have them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from refold.adapters.importers import base, exit_codes, openai
from refold.adapters.importers.response import events_of
from refold.adapters.proxy.conversation import Role, WireAnswer, WireMessage
from refold.adapters.proxy.protocols import openai_shared
from refold.adapters.proxy.protocols.answers import answer_of, call_input, stop_reason
from refold.adapters.proxy.protocols.reading import (
    EMPTY_MESSAGE,
    FIELDS_LEFT_OUT,
    NOT_CONVERTED,
    Conversions,
    DerivedIds,
    Notes,
    UserEvents,
)
from refold.domain.events import (
    AgentError,
    Event,
    Item,
    JsonObject,
    SystemPrompt,
    ToolResult,
)

_SYSTEM: Final = ("developer", "system")
_RESULT: Final = ("function", "tool")
# Fields of messages that their events record.
_MESSAGE_FIELDS: Final = frozenset(
    {
        "content",
        "function_call",
        "reasoning",
        "reasoning_content",
        "refusal",
        "role",
        "tool_call_id",
        "tool_calls",
    }
)
# Fields of the model's messages that are kept as an item.
_ITEM_FIELDS: Final = ("annotations", "audio", "images", "reasoning_details")
# Fields of an answer that its events record, or that mean nothing in a record.
_ANSWER_FIELDS: Final = frozenset(
    {
        "choices",
        "created",
        "id",
        "model",
        "object",
        "service_tier",
        "system_fingerprint",
        "usage",
    }
)
_CHOICE_FIELDS: Final = frozenset({"delta", "finish_reason", "index", "message"})
# By protocol, the messages that were read last.
_CONVERSIONS: Final[dict[str, Conversions]] = {}
_CALL_FIELDS: Final = frozenset({"custom", "function", "id", "index", "type"})


class Reading:
    """Reads the messages of a request, in their order.

    form:   the name of the protocol.
    adapt:  returns a message of the protocol as one of a chat completion.
    system: the first message, if it is of the system or the developer.
    """

    key: Hashable = None
    settles = True
    tools: Sequence[Any] = ()

    def __init__(self, form: str, adapt: Callable[[Any], Any]) -> None:
        self.system: str | None = None
        self._form = form
        self._adapt = adapt
        self._has_messages = False
        self._ids = DerivedIds()
        self._conversions = _CONVERSIONS.setdefault(form, Conversions())

    def copy(self) -> Reading:
        """Return a reading that continues independently from here."""
        reading = Reading(self._form, self._adapt)
        reading.system = self.system
        reading._has_messages = self._has_messages
        reading._ids = self._ids.copy()
        return reading

    def end(self, _: Notes) -> tuple[WireMessage, ...]:
        """Return no further messages: each is complete at once."""
        return ()

    def take(self, message: Any, place: str, notes: Notes) -> tuple[WireMessage, ...]:
        """Take the next message; returns it unless it is the system prompt."""
        message = self._adapt(message)
        role = base.text(message, "role")
        if role in _SYSTEM and not self._has_messages and self.system is None:
            notes_of_prompt = Notes()
            content = base.at(message, "content")
            text = openai_shared.system_text(content, place, notes_of_prompt)
            if text is not None:
                self.system = text
                notes.add_all(notes_of_prompt)
                return ()
        self._has_messages = True
        call_id = base.text(message, "tool_call_id")
        is_unnamed = role in _RESULT and call_id is None
        if is_unnamed:
            call_id = self._ids.of_result(base.text(message, "name"), None)
        convert = partial(self._converted, message, role, call_id, place, notes)
        if is_unnamed:
            # The same message may answer another call elsewhere.
            key = [call_id, message]
            return (self._conversions.message(key, notes, convert),)
        if role == "assistant" and self._ids.continues_answer:
            converted = convert()  # its ids follow those of the message before it
        else:
            converted = self._conversions.message(message, notes, convert)
        self._ids.take(converted)
        return (converted,)

    def _converted(
        self,
        message: Any,
        role: str | None,
        call_id: str | None,
        place: str,
        notes: Notes,
    ) -> WireMessage:
        """Return a message as events.

        call_id: of the call that a result answers.
        """
        wire_role: Role = "user"
        content = base.at(message, "content")
        events: tuple[Event, ...]
        if role in _SYSTEM:
            wire_role = "system"
            text = openai_shared.system_text(content, place, notes)
            events = ()
            if text is not None:
                events = (SystemPrompt(text=text, where="conversation"),)
        elif role == "user":
            inputs = UserEvents()
            openai_shared.add_user_parts(inputs, content, self._form, place, notes)
            events = inputs.events()
        elif role == "assistant":
            wire_role = "assistant"
            blocks = _blocks(message, self._ids.continued(), place, notes)
            events = tuple(events_of({"content": blocks})) if blocks else ()
            events = (*events, *_items(message, self._form))
        elif role in _RESULT:
            events = (self._result(message, call_id, place, notes),)
        else:
            notes.add(NOT_CONVERTED, f"{place}: message of an unknown role")
            events = (Item(format=self._form, kind="message", value=message),)
        _note_fields(message, notes)
        if not events:
            notes.add(EMPTY_MESSAGE, place)
        return WireMessage(wire_role, events)

    def _result(
        self, message: dict[str, Any], call_id: str | None, place: str, notes: Notes
    ) -> Event:
        """Return the result in a message, or the message itself as an item."""
        tool = base.text(message, "name")
        if call_id is None:
            notes.add(NOT_CONVERTED, f"{place}: result that names no call")
            return Item(format=self._form, kind="tool_result", value=message)
        content = message.get("content")
        return ToolResult(
            call_id=call_id,
            tool_name=tool,
            content="" if content is None else content,
            status="error" if exit_codes.states_failure(content) else "ok",
        )


def _note_fields(message: Any, notes: Notes) -> None:
    """Note the fields of a message that no event records."""
    unknown: list[str] = []
    for name, value in base.mapping(message).items():
        if name == "name" and base.text(message, "role") in _RESULT:
            continue
        if name.startswith("_"):  # a client's own, which no model reads
            continue
        if name not in _MESSAGE_FIELDS and name not in _ITEM_FIELDS and value:
            unknown.append(name)
    if unknown:
        notes.add(FIELDS_LEFT_OUT, f"messages: {base.field_names(unknown)}")


def _blocks(
    message: Mapping[str, Any], ids: DerivedIds, place: str, notes: Notes
) -> list[Any]:
    """Return a message of the model as blocks of the Messages API."""
    blocks: list[Any] = []
    reasoning = base.text(message, "reasoning_content") or base.text(
        message, "reasoning"
    )
    if reasoning:
        blocks.append({"type": "thinking", "thinking": reasoning})
    content = message.get("content")
    parts = [content] if isinstance(content, str) else base.sequence(content)
    for index, part in enumerate(parts):
        text = openai.text_of(part)
        if text:
            blocks.append({"type": "text", "text": text})
        elif text is None:
            kind = base.text(part, "type") or "part"
            notes.add(NOT_CONVERTED, f"{place}.content[{index}]: {base.shown(kind)}")
            blocks.append(part if base.text(part, "type") else {"type": kind})
    if content is None:
        transcript = base.text(message, "audio", "transcript")
        if transcript:
            blocks.append({"type": "text", "text": transcript})
    refusal = base.text(message, "refusal")
    if refusal:
        blocks.append({"type": "text", "text": refusal})
    for call in base.each(message, "tool_calls"):
        blocks.append(_call(call, ids, notes))
    if message.get("function_call"):
        call = {"function": message["function_call"]}
        blocks.append(_call(call, ids, notes))
    return blocks


def _call(call: dict[str, Any], ids: DerivedIds, notes: Notes) -> JsonObject:
    """Return a call as a block; further fields of it stay."""
    function = base.mapping(call, "function") or base.mapping(call, "custom")
    tool = base.text(function, "name") or ""
    arguments = openai.arguments_in(function)
    block: JsonObject = {
        "type": "tool_use",
        "id": ids.of_call(tool, base.text(call, "id")),
        "name": tool,
        "input": call_input(arguments, notes),
    }
    for name, value in call.items():
        if name not in _CALL_FIELDS and value is not None:
            block[name] = value
    return block


def _items(message: Any, form: str) -> list[Event]:
    """Return the content of a message that no other event represents."""
    items: list[Event] = []
    for name in _ITEM_FIELDS:
        value = base.at(message, name)
        if value:
            items.append(Item(format=form, kind=name, value=value))
    return items


def answer(
    completion: dict[str, Any],
    form: str,
    notes: Notes,
    *,
    complete: bool,
    error: AgentError | None = None,
) -> WireAnswer:
    """Return the answer for a completion; its first choice is the response."""
    choices = list(base.each(completion, "choices"))
    choice = choices[0] if choices else {}
    message = base.mapping(choice, "message")
    blocks = _blocks(message, DerivedIds(), "message", notes)
    rest = _rest(completion, _ANSWER_FIELDS)
    rest |= _rest(choice, _CHOICE_FIELDS)
    rest |= _rest(message, _MESSAGE_FIELDS.union(_ITEM_FIELDS))
    if len(choices) > 1:
        rest["choices"] = [*choices[1:]]
    items = _items(message, form)
    if rest:
        items.append(Item(format=form, kind="response", value=rest))
    reason = choice.get("finish_reason")
    if base.text(message, "refusal"):
        reason = "refusal"
    usage = openai_shared.usage_of(
        completion.get("usage"), completion.get("service_tier")
    )
    whole: JsonObject = {
        "id": completion.get("id"),
        "model": completion.get("model"),
        "content": blocks,
        "stop_reason": stop_reason(reason, blocks),
        "usage": usage,
    }
    return answer_of(whole, form, notes, complete=complete, error=error, items=items)


def _rest(value: Mapping[str, Any], known: frozenset[str]) -> JsonObject:
    """Return the fields of an object that are not known, and that say something."""
    return {
        name: field
        for name, field in value.items()
        if name not in known and field not in (None, [], {}, "")
    }
