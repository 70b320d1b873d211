"""Ollama's own API; its other API is that of OpenAI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.adapters.importers import base
from refold.adapters.proxy.conversation import NotRecordable, WireAnswer, WireRequest
from refold.adapters.proxy.protocols import chat, clients, errors, openai_shared
from refold.adapters.proxy.protocols.answers import failed
from refold.adapters.proxy.protocols.beginnings import Beginnings, Frame
from refold.adapters.proxy.protocols.reading import (
    FIELDS_LEFT_OUT,
    Notes,
    body_of,
    endpoint,
    without_secrets,
)
from refold.adapters.proxy.protocols.streams import json_lines
from refold.domain.events import AgentError, JsonObject

NAME: Final = "ollama"
LAST_LINES: Final[tuple[bytes, ...]] = ()
_CHAT: Final = "/api/chat"
_GENERATE: Final = "/api/generate"
# The media types of images, by the start of their base64.
_IMAGES: Final = {
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
    "iVBOR": "image/png",
}
# Fields of an answer with texts that a stream cuts.
_PIECES: Final = ("content", "thinking")
# Fields of the last chunk that belong to the usage.
_USAGE: Final = (
    "total_duration",
    "load_duration",
    "prompt_eval_duration",
    "eval_duration",
)
_ANSWER_FIELDS: Final = frozenset(
    {
        *_USAGE,
        "context",
        "created_at",
        "done",
        "done_reason",
        "eval_count",
        "message",
        "model",
        "prompt_eval_count",
        "response",
        "thinking",
    }
)


def matches(method: str, path: str) -> bool:
    """Whether a request is for a message or a text."""
    return method == "POST" and endpoint(path).endswith((_CHAT, _GENERATE))


def request(body: bytes, headers: Mapping[str, str], path: str) -> WireRequest:
    """Return a request as events.

    Raises NotRecordable, also for a request that only loads or unloads a model.
    """
    if endpoint(path).endswith(_CHAT):
        content = _BEGINNINGS.read(body, _begin)
        has_messages = bool(content.parts)
    else:
        notes = Notes()
        fields = body_of(body, notes)
        messages = _prompt(fields, notes)
        content = _BEGINNINGS.read_messages(_frame(fields, notes), messages, _begin)
        has_messages = bool(messages)
    if not has_messages:
        raise NotRecordable("it has no messages, so it only loads a model")
    frame = content.frame
    return WireRequest(
        protocol=NAME,
        model=base.text(frame.fields, "model"),
        system=content.reading.system,
        tools=frame.tools,
        messages=content.messages(),
        options=frame.options,
        hint=clients.hint(headers, frame.fields),
        stream=frame.fields.get("stream") is not False,
        warnings=content.notes().warnings(),
    )


def _begin(_: Frame) -> chat.Reading:
    """Return a new reading."""
    return chat.Reading(NAME, _as_chat)


def _frame(fields: JsonObject, notes: Notes) -> Frame:
    """Return the fields of a body besides its messages."""
    return Frame(
        fields=fields,
        system=None,
        tools=tuple(openai_shared.tool_of(tool) for tool in base.each(fields, "tools")),
        options=without_secrets(
            fields,
            "context",
            "images",
            "messages",
            "model",
            "prompt",
            "stream",
            "system",
            "tools",
        ),
        notes=notes,
    )


_BEGINNINGS: Final = Beginnings(NAME, frame=_frame)


def _prompt(fields: dict[str, Any], notes: Notes) -> list[Any]:
    """Return the messages that a prompt stands for.

    The numbers in ``context`` stand for an earlier history, which is not known.
    """
    if fields.get("context"):
        notes.add(FIELDS_LEFT_OUT, "context")
    prompt = base.text(fields, "prompt")
    images = base.sequence(fields, "images")
    if prompt is None and not images:
        return []
    messages: list[Any] = []
    system = base.text(fields, "system")
    if system is not None:
        messages.append({"role": "system", "content": system})
    messages.append({"role": "user", "content": prompt or "", "images": images})
    return messages


def _as_chat(message: Any) -> Any:
    """Return a message in the form of a chat completion."""
    if not isinstance(message, dict):
        return message
    converted: JsonObject = {}
    for name, value in message.items():
        if name == "thinking":
            converted["reasoning_content"] = value
        elif name == "tool_name":
            converted["name"] = value
        elif name != "images":
            converted[name] = value
    images = base.sequence(message, "images")
    if images:
        content: list[Any] = []
        if base.text(message, "content"):
            content.append({"type": "text", "text": message["content"]})
        content += [_image(image) for image in images]
        converted["content"] = content
    return converted


def _image(image: Any) -> Any:
    """Return an image as a part of a chat completion."""
    if not isinstance(image, str):
        return image
    media_type = ""
    for start, name in _IMAGES.items():
        if image.startswith(start):
            media_type = name
    url = f"data:{media_type};base64,{image}"
    return {"type": "image_url", "image_url": {"url": url}}


def answer(
    status: int, headers: Mapping[str, str], body: bytes, *, complete: bool
) -> WireAnswer:
    """Return an answer as events; a whole answer is a single line."""
    if errors.is_error(status):
        return failed(errors.error_of(status, headers, body, NAME), complete=complete)
    notes = Notes()
    joined = _Joined()
    for chunk in json_lines(body, notes):
        joined.take(chunk)
    if not joined.begun:
        if joined.error is not None:
            return failed(joined.error)
        if complete:
            return failed(errors.unreadable(status, headers, body, NAME))
    return chat.answer(
        joined.completion(), NAME, notes, complete=joined.complete, error=joined.error
    )


class _Joined:
    """The lines of an answer, joined to a completion."""

    def __init__(self) -> None:
        self.begun = False
        self.complete = False
        self.error: AgentError | None = None
        self._fields: JsonObject = {}
        self._texts: dict[str, list[str]] = {}
        self._message: JsonObject = {}
        self._calls: list[Any] = []

    def take(self, chunk: dict[str, Any]) -> None:
        """Take the next line."""
        if chunk.get("error"):
            self.error = errors.error_in(chunk, NAME)
            return
        self.begun = True
        for name, value in chunk.items():
            if name not in ("message", "response", "thinking"):
                self._fields[name] = value
        message = base.mapping(chunk, "message")
        if not message:  # of /api/generate
            message = {"content": chunk.get("response")}
            message["thinking"] = chunk.get("thinking")
        for name, value in message.items():
            if name in _PIECES and isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            elif name == "tool_calls":
                self._calls += base.sequence(value)
            elif value is not None:
                self._message[name] = value
        if chunk.get("done") is True:
            self.complete = True

    def completion(self) -> JsonObject:
        """Return the completion, as far as it came."""
        message: JsonObject = {**self._message}
        for name, pieces in self._texts.items():
            message[name] = "".join(pieces)
        if self._calls:
            message["tool_calls"] = self._calls
        usage: JsonObject = {}
        for name, count in (
            ("prompt_tokens", "prompt_eval_count"),
            ("completion_tokens", "eval_count"),
        ):
            if type(self._fields.get(count)) is int:
                usage[name] = self._fields[count]
        for name in _USAGE:
            if usage and name in self._fields:
                usage[name] = self._fields[name]
        choice: JsonObject = {
            "finish_reason": self._fields.get("done_reason"),
            "message": _as_chat(message),
        }
        rest: JsonObject = {}
        for name, value in self._fields.items():
            if name not in _ANSWER_FIELDS:
                rest[name] = value
        model = self._fields.get("model")
        return {**rest, "model": model, "choices": [choice], "usage": usage}
