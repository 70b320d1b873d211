"""OpenAI's chat messages, as fine-tuning files, benchmarks and logs hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from refold.adapters.importers import base, messages
from refold.domain.events import JsonObject

NAME = "openai"
_TEXTS = ("text", "input_text", "output_text", "refusal")


def recognises(source: base.Source) -> bool:
    """Whether these are chat messages, and nothing in them is another's."""
    return messages.dialect(source) == "openai"


def read(source: base.Source) -> Iterator[base.Transcript]:
    """A transcript for each list of messages."""
    for conversation in messages.conversations(source):
        recording = base.Recording(NAME, source.name)
        origin = base.Origin("", model=base.text(conversation.header, "model"))
        record(recording, conversation.messages, origin)
        skip_header(recording, conversation)
        yield recording.transcript(base.session_name(conversation.session))


def skip_header(recording: base.Recording, conversation: messages.Conversation) -> None:
    """Name what is around the messages, and no part of a transcript."""
    if conversation.unread:
        names = base.field_names(conversation.unread)
        why = f"fields around the messages: {names}"
        recording.skip(why, conversation.place, note=True)


def record(
    recording: base.Recording, chat: Iterable[messages.Message], origin: base.Origin
) -> None:
    """Take the events of these messages; ``origin`` is what they all share."""
    calls = UnnamedCalls()
    for message in chat:
        recording.take(found(message, calls), origin_of(message, origin))


class UnnamedCalls:
    """Finds the call that a result answers where a file has no call ids.

    The ids are made of the call's place; a result answers the oldest call of its tool.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[str, str | None]] = []

    def made(self, call_id: str, call: dict[str, Any]) -> str:
        """Remember a call that was given ``call_id``."""
        self._waiting.append((call_id, base.text(call, "name")))
        return call_id

    def answered(self, name: str | None) -> str | None:
        """The id of the call of tool ``name``, or of any if that is not said."""
        for index, (call_id, tool) in enumerate(self._waiting):
            if name is None or name == tool:
                del self._waiting[index]
                return call_id
        return None


def found(message: messages.Message, calls: UnnamedCalls) -> Iterator[base.Found]:
    """The events of one message."""
    match message.value.get("role"):
        case "system" | "developer":
            yield messages.system_message(message.value.get("content"))
        case "user":
            yield from user(message.value.get("content"))
        case "assistant":
            yield from assistant(message, calls)
        case "tool" | "function":
            yield result(message.value, calls)
        case role:
            yield messages.of_no_role(role)


def origin_of(message: messages.Message, shared: base.Origin) -> base.Origin:
    """What the events of one message share."""
    value, source = message.value, message.source
    name = base.text(value, "name")
    ts = base.moment(value.get("timestamp", value.get("created_at")))
    shared = replace(shared, place=message.place, ts=ts, source=source)
    if not message.of_model:
        if name and value.get("role") == "user":
            source["name"] = name
        return replace(shared, model=None)
    return replace(
        shared,
        agent=name,
        model=base.text(value, "model") or shared.model,
        response_id=message.response_id,
        usage=base.mapping(value, "usage") or None,
    )


def user(content: Any) -> Iterator[base.Found]:
    """The input in a user's message, with its files."""
    if isinstance(content, str):
        yield messages.said([content])
    elif not isinstance(content, list):
        yield base.Skipped("", messages.CANNOT_READ)
    else:
        why = "part that is neither text, image nor file"
        yield from messages.heard([*enumerate(content)], _words, _file, why)


def assistant(message: messages.Message, calls: UnnamedCalls) -> Iterator[base.Found]:
    """The response in a model's message, then its calls."""
    value = message.value
    content, refused = value.get("content"), base.text(value, "refusal")
    yield from messages.unreadable(content)
    texts = []
    for index, part in enumerate(messages.parts(content)):
        if (words := _words(part)) is not None:
            texts.append(words)
        else:
            yield base.Skipped(f"content[{index}]", "part that is not text")
    if not isinstance(content, str | list):
        texts.append(base.text(value, "audio", "transcript") or "")
    texts.append(refused or "")
    thinking = messages.thought(base.text(value, "reasoning_content"))
    reason = "refusal" if refused else base.text(value, "finish_reason")
    said = messages.answered(texts, thinking, stop_reason=reason)
    yield from [*said, *called(message, calls)] or [messages.EMPTY]


def called(message: messages.Message, calls: UnnamedCalls) -> Iterator[base.Found]:
    """The tool calls of a model's message."""
    value, place = message.value, f"call:{message.index}"
    if not isinstance(value.get("tool_calls"), list | None):
        yield base.Skipped("tool_calls", "not a list of calls")
    for index, call in enumerate(base.each(value, "tool_calls")):
        made = base.mapping(call, "function") or base.mapping(call, "custom")
        call_id = base.text(call, "id") or calls.made(f"{place}:{index}", made)
        yield from call_of(call_id, made, f"tool_calls[{index}]")
    if value.get("function_call"):
        made = base.mapping(value, "function_call")
        yield from call_of(calls.made(place, made), made, "function_call")


def result(value: dict[str, Any], calls: UnnamedCalls) -> base.Found:
    """What a tool returned; OpenAI's messages do not say whether it failed."""
    call_id = base.text(value, "tool_call_id")
    call_id = call_id or calls.answered(base.text(value, "name"))
    if call_id is None:
        return messages.NO_CALL
    return messages.returned(call_id, value.get("content"))


def call_of(call_id: str, made: dict[str, Any], place: str) -> Iterator[base.Found]:
    """A call, its arguments read if they are the JSON of an object."""
    arguments = made.get("arguments", made.get("input"))
    if isinstance(arguments, str):
        value, changes = base.parsed(arguments)
        if isinstance(value, dict):  # else the text itself
            arguments = value
            if changes:
                yield base.Skipped(place, base.replaced(changes))
    yield base.placed(messages.called(call_id, made.get("name"), arguments), place)


def response_item(item: dict[str, Any]) -> Iterator[base.Found]:
    """The events of an item of the Responses API; none of what has no text."""
    kind, call_id = str(item.get("type") or "message"), base.text(item, "call_id")
    if kind == "message":
        yield from found(messages.Message("", 0, item), UnnamedCalls())
    elif kind == "reasoning":
        parts = item.get("summary") or item.get("content")
        told = (messages.thought(base.text(p, "text")) for p in base.sequence(parts))
        yield from messages.answered([], [*chain.from_iterable(told)])
    elif kind.endswith("_call") and call_id:
        given = item.get("arguments", item.get("input", item.get("action")))
        made = {"name": item.get("name") or kind, "arguments": given}
        yield from call_of(call_id, made, "")
    elif kind.endswith("_output") and call_id:
        yield messages.returned(call_id, item.get("output"))


def _words(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    kind = base.at(part, "type")
    words = base.at(part, "refusal" if kind == "refusal" else "text")
    return words if isinstance(words, str) and kind in _TEXTS else None


def _file(part: dict[str, Any]) -> JsonObject | None:
    match part.get("type"):
        case "image_url" | "input_image":
            url = base.text(part, "image_url") or base.text(part, "image_url", "url")
            return located("image", url) if url else None
        case "input_audio":
            media = f"audio/{base.text(part, 'input_audio', 'format') or 'unknown'}"
            data = base.text(part, "input_audio", "data")
            return {"kind": "file", "media_type": media, "data": data} if data else None
        case "file":
            data, held = (base.text(part, "file", x) for x in ("file_data", "file_id"))
            url = data or (f"file:{held}" if held else None)
            name = base.text(part, "file", "filename")
            return located("file", url, name) if url else None
    return None


def located(kind: str, url: str, name: str | None = None) -> JsonObject:
    """The attachment at ``url``; what a data URL holds is taken out of it."""
    made: JsonObject = {"kind": kind, **({"name": name} if name else {})}
    head, comma, data = url.partition(",")
    if url.startswith("data:") and comma and head.endswith(";base64"):
        media = head.removeprefix("data:").removesuffix(";base64")
        return {**made, "media_type": media or None, "data": data}
    return {**made, "url": url}
