"""The messages of an Inspect log, with its attachments put back in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from refold.adapters.importers import blocks
from refold.adapters.importers.base import (
    Found,
    Piece,
    Skipped,
    mapping,
    placed,
    sequence,
    text,
)
from refold.adapters.importers.openai import located
from refold.domain.events import JsonObject

_REFERENCES = ("attachment://", "tc://")
_KINDS = {"image": "image", "document": "document", "audio": "file", "video": "file"}
_OURS = frozenset({"text", "reasoning"})


class Durations(Protocol):
    """Knows how long calls took."""

    def took(self, call_id: str) -> float | None:
        """The milliseconds of a call, if the log tells."""
        ...


class Attachments:
    """The texts of a sample that its messages and events only refer to."""

    def __init__(self, texts: dict[str, Any]) -> None:
        self._texts = texts
        self._missing = 0

    def resolved(self, value: Any) -> Any:
        """``value`` with what it refers to; a reference that leads nowhere stays."""
        if isinstance(value, str):
            return self._text(value) if value.startswith(_REFERENCES) else value
        if isinstance(value, dict):
            return {key: self.resolved(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolved(item) for item in value]
        return value

    def missing(self) -> Iterator[str]:
        """Say how many references led nowhere."""
        if self._missing:
            yield f"references ({self._missing}) to attachments that are not in the log"

    def _text(self, reference: str) -> str:
        found = self._texts.get(reference.partition("://")[2])
        if isinstance(found, str):
            return found
        self._missing += 1
        return reference


def found(message: dict[str, Any], durations: Durations) -> Iterator[Found]:
    """The events of one message."""
    content = message.get("content")
    match message.get("role"):
        case "system":
            yield blocks.system(content)
        case "user":
            yield from _user(content)
        case "assistant":
            yield from _assistant(message)
        case "tool":
            yield _result(message, durations)
        case str():
            yield Skipped("", "a message of a role that is not known")
        case _:
            yield Skipped("", "no message: it is no object with a role")


def _user(content: Any) -> Iterator[Found]:
    texts, files = [], []
    parts = [content] if isinstance(content, str) else sequence(content)
    for index, part in enumerate(parts):
        words, file = blocks.plain([part]), _file(mapping(part))
        if words is not None:
            texts += words
        elif file is not None:
            files.append(file)
        else:
            yield Skipped(f"content[{index}]", "a part that is no text or file")
    if texts or files or not parts:
        yield blocks.said(texts, files)


def _assistant(message: dict[str, Any]) -> Iterator[Found]:
    content = message.get("content")
    parts = [content] if isinstance(content, str) else sequence(content)
    made: list[Found] = [*blocks.unreadable(content)]
    for is_ours, run in blocks.runs(parts, _is_ours):
        made += _response(run) if is_ours else _provider(run)
    for index, value in enumerate(sequence(message.get("tool_calls"))):
        call = mapping(value)
        call_id, name = call.get("id"), call.get("function")
        found = blocks.called(call_id, name, call.get("arguments"))
        made.append(placed(found, f"tool_calls[{index}]"))
    yield from made
    if not made:
        yield Skipped("", blocks.EMPTY)


def _response(run: list[tuple[int, Any]]) -> Iterator[Found]:
    parts = [part for _, part in run]
    texts = [words for part in parts for words in blocks.plain([part]) or ()]
    thinking = [
        _thought(part)
        for part in map(mapping, parts)
        if part.get("type") == "reasoning"
    ]
    yield from blocks.answered(texts, thinking)
    for index, part in run:
        if sequence(mapping(part).get("citations")):
            yield Skipped(f"content[{index}]", "the citations of a text, which is kept")


def _provider(run: list[tuple[int, Any]]) -> Iterator[Found]:
    """What the provider did by itself, such as a search; none of it is ours to read."""
    yield Piece("provider_edit", {"blocks": [part for _, part in run]})


def _result(message: dict[str, Any], durations: Durations) -> Found:
    call_id = text(message.get("tool_call_id"))
    if call_id is None:
        return Skipped("", "a result that does not name its call")
    error = mapping(message.get("error"))
    fields: JsonObject = {
        "call_id": call_id,
        "content": _content(message.get("content"), error),
        "status": "error" if error else "ok",
    }
    duration = durations.took(call_id)
    if duration is not None:
        fields["duration_ms"] = duration
    return Piece("tool_result", fields)


def _content(content: Any, error: dict[str, Any]) -> Any:
    """What a tool returned and, as the model is told, why it failed."""
    failure = text(error.get("message"))
    if not failure or content == failure:
        return "" if content is None else content
    return {"error": failure, "content": content} if content else failure


def _thought(part: dict[str, Any]) -> JsonObject:
    reasoning = text(part.get("reasoning")) or ""
    if part.get("redacted") is True:
        return {"type": "redacted_thinking", "data": reasoning}
    signature = text(part.get("signature"))
    return {"type": "thinking", "thinking": reasoning, "signature": signature}


def _file(part: dict[str, Any]) -> JsonObject | None:
    kind = text(part.get("type")) or ""
    url = text(part.get(kind))
    if kind not in _KINDS or url is None:
        return None
    made = located(_KINDS[kind], url)
    if text(part.get("filename")):
        made["name"] = part["filename"]
    return made


def _is_ours(part: Any) -> bool:
    return isinstance(part, str) or text(mapping(part).get("type")) in _OURS
