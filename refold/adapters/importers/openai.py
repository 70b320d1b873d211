"""OpenAI's chat messages, as in fine-tuning files, benchmarks, and logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from refold.adapters.importers import base, messages
from refold.domain.events import JsonObject

NAME = "openai"
# By the type of a call, its arguments stand in one of these fields.
_ARGUMENTS = ("arguments", "input", "action", "operation")
_TEXT_TYPES = ("text", "input_text", "output_text", "refusal")


def recognises(source: base.Source) -> bool:
    """Whether these are chat messages without parts of another API."""
    return messages.dialect(source) == "openai"


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield a transcript for each list of messages."""
    for conversation in messages.conversations(source):
        recording = base.Recording(NAME, source.name)
        origin = base.Origin("", model=base.text(conversation.header, "model"))
        record(recording, conversation.messages, origin)
        skip_header(recording, conversation)
        yield recording.transcript(base.session_name(conversation.session))


def skip_header(recording: base.Recording, conversation: messages.Conversation) -> None:
    """Report the fields around the messages, which are not imported."""
    if conversation.unread:
        names = base.field_names(conversation.unread)
        why = f"fields around the messages: {names}"
        recording.skip(why, conversation.place, note=True)


def record(
    recording: base.Recording, chat: Iterable[messages.Message], origin: base.Origin
) -> None:
    """Record the events of these messages; all of them share ``origin``."""
    calls = UnnamedCalls()
    for message in chat:
        recording.take(pieces_of(message, calls), origin_of(message, origin))


class UnnamedCalls:
    """Finds the call that a result answers in files without call ids.

    An id is derived from the call's place.  A result answers the oldest call of its
    tool.
    """

    def __init__(self) -> None:
        # The id and the tool of each call without a result.
        self._waiting: list[tuple[str, str | None]] = []

    def add(self, call_id: str, call: dict[str, Any]) -> str:
        """Remember a call under this id, and return the id."""
        self._waiting.append((call_id, base.text(call, "name")))
        return call_id

    def take(self, tool: str | None) -> str | None:
        """Remove the oldest call of this tool, or of any tool; return its id."""
        for index, (call_id, called_tool) in enumerate(self._waiting):
            if tool is None or tool == called_tool:
                del self._waiting[index]
                return call_id
        return None


def pieces_of(
    message: messages.Message, calls: UnnamedCalls
) -> Iterator[base.PieceOrSkipped]:
    """Yield the events of one message."""
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
            yield messages.unknown_role(role)


def origin_of(message: messages.Message, shared: base.Origin) -> base.Origin:
    """The origin of the events of one message.

    shared: the origin of all messages, which it extends.
    """
    value = message.value
    source = message.source
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


def user(content: Any) -> Iterator[base.PieceOrSkipped]:
    """Yield the input of a user's message, with its files."""
    if isinstance(content, str):
        yield messages.user_input([content])
    elif not isinstance(content, list):
        yield base.Skipped("", messages.CANNOT_READ)
    else:
        why = "part that is neither text, image nor file"
        yield from messages.user_parts([*enumerate(content)], text_of, file_of, why)


def assistant(
    message: messages.Message, calls: UnnamedCalls
) -> Iterator[base.PieceOrSkipped]:
    """Yield the response of a model's message, then its calls."""
    value = message.value
    content = value.get("content")
    refusal = base.text(value, "refusal")
    yield from messages.unreadable(content)
    texts: list[str] = []
    for index, part in enumerate(messages.parts(content)):
        text = text_of(part)
        if text is None:
            yield base.Skipped(f"content[{index}]", "part that is not text")
        else:
            texts.append(text)
    if not isinstance(content, str | list):
        texts.append(base.text(value, "audio", "transcript") or "")
    texts.append(refusal or "")
    thinking = messages.thinking_blocks(base.text(value, "reasoning_content"))
    reason = "refusal" if refusal else base.text(value, "finish_reason")
    response = messages.response(texts, thinking, stop_reason=reason)
    yield from [*response, *tool_calls(message, calls)] or [messages.EMPTY]


def tool_calls(
    message: messages.Message, calls: UnnamedCalls
) -> Iterator[base.PieceOrSkipped]:
    """Yield the tool calls of a model's message."""
    value = message.value
    place = f"call:{message.index}"
    if not isinstance(value.get("tool_calls"), list | None):
        yield base.Skipped("tool_calls", "not a list of calls")
    for index, call in enumerate(base.each(value, "tool_calls")):
        function = base.mapping(call, "function") or base.mapping(call, "custom")
        call_id = base.text(call, "id") or calls.add(f"{place}:{index}", function)
        yield from call_of(call_id, function, f"tool_calls[{index}]")
    if value.get("function_call"):
        function = base.mapping(value, "function_call")
        yield from call_of(calls.add(place, function), function, "function_call")


def result(value: dict[str, Any], calls: UnnamedCalls) -> base.PieceOrSkipped:
    """The result of a tool, which failed if it states an exit code other than 0."""
    call_id = base.text(value, "tool_call_id")
    call_id = call_id or calls.take(base.text(value, "name"))
    if call_id is None:
        return messages.NO_CALL
    return messages.result_of_command(call_id, value.get("content"))


def call_of(
    call_id: str, function: dict[str, Any], place: str
) -> Iterator[base.PieceOrSkipped]:
    """Yield a call; arguments that are a JSON object in a text are parsed."""
    arguments = function.get("arguments", function.get("input"))
    if isinstance(arguments, str):
        value, changes = base.parsed(arguments)
        if isinstance(value, dict):
            arguments = value
            if changes:
                yield base.Skipped(place, base.replaced(changes))
    call = messages.tool_call(call_id, function.get("name"), arguments)
    yield base.placed(call, place)


def response_item(item: dict[str, Any]) -> Iterator[base.PieceOrSkipped]:
    """Yield the events of an item of the Responses API, if it has a text or a call."""
    kind = str(item.get("type") or "message")
    call_id = base.text(item, "call_id")
    if kind == "message":
        yield from pieces_of(messages.Message("", 0, item), UnnamedCalls())
    elif kind == "reasoning":
        parts = item.get("summary") or item.get("content")
        thinking: list[JsonObject] = []
        for part in base.sequence(parts):
            thinking += messages.thinking_blocks(base.text(part, "text"))
        yield from messages.response([], thinking)
    elif kind.endswith("_call") and call_id:
        function = {"name": item.get("name") or kind, "arguments": arguments_in(item)}
        yield from call_of(call_id, function, "")
    elif kind.endswith("_output") and call_id:
        yield messages.result_of_command(call_id, item.get("output"))


def reasoning_blocks(item: dict[str, Any]) -> list[JsonObject]:
    """Return the reasoning in an item as thinking: its texts, and its encrypted form.

    The encrypted form stands in the first block, which may have no text.
    """
    blocks: list[JsonObject] = []
    for name in ("summary", "content"):
        for part in base.each(item, name):
            blocks += messages.thinking_blocks(base.text(part, "text"))
    encrypted = base.text(item, "encrypted_content")
    if encrypted:
        first = blocks[0] if blocks else {"type": "thinking"}
        blocks[:1] = [{**first, "data": encrypted}]
    return blocks


def arguments_in(item: dict[str, Any]) -> Any:
    """Return the arguments in a call of the Responses API, whose tools name them."""
    for name in _ARGUMENTS:
        if name in item:
            return item[name]
    return None


def text_of(part: Any) -> str | None:
    """Return the text of a part of a content, else None."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or part.get("type") not in _TEXT_TYPES:
        return None
    text = part.get("refusal" if part["type"] == "refusal" else "text")
    return text if isinstance(text, str) else None


def file_of(part: dict[str, Any]) -> JsonObject | None:
    """Return the image, recording, or file in a part of a content, else None."""
    match part.get("type"):
        case "image_url" | "input_image":
            url = base.text(part, "image_url") or base.text(part, "image_url", "url")
            url = url or _stored_file(part)
            return attachment_at("image", url) if url else None
        case "input_audio":
            media_type = base.text(part, "input_audio", "format") or "unknown"
            data = base.text(part, "input_audio", "data")
            if data is None:
                return None
            return {"kind": "file", "media_type": f"audio/{media_type}", "data": data}
        case "file" | "input_file":
            file = part.get("file", part)
            url = base.text(file, "file_data") or base.text(file, "file_url")
            url = url or _stored_file(file)
            return (
                attachment_at("file", url, base.text(file, "filename")) if url else None
            )
    return None


def _stored_file(value: Any) -> str | None:
    """Return the address of a file that the provider stores, by its id, or None."""
    file_id = base.text(value, "file_id")
    return f"file:{file_id}" if file_id else None


def attachment_at(kind: str, url: str, name: str | None = None) -> JsonObject:
    """The attachment with this URL, or with the data of a data URL."""
    attachment: JsonObject = {"kind": kind}
    if name:
        attachment["name"] = name
    head, comma, data = url.partition(",")
    if url.startswith("data:") and comma and head.endswith(";base64"):
        media_type = head.removeprefix("data:").removesuffix(";base64")
        return {**attachment, "media_type": media_type or None, "data": data}
    return {**attachment, "url": url}
