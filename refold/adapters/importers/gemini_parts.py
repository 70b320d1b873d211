"""Contents of Gemini's API: parts with texts, thoughts, calls, results, and files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from refold.adapters.importers import base, exit_codes, messages
from refold.domain.canonical import canonical
from refold.domain.events import JsonObject

_UNKNOWN: Final = "part that is neither text, thought, call, result nor file"


def parts_of(content: Any) -> list[dict[str, Any]]:
    """Return the parts of a content, which is a text, a part, or a list of both."""
    if isinstance(content, str):
        return [{"text": content}] if content else []
    if isinstance(content, dict):
        return [content]
    parts: list[dict[str, Any]] = []
    for part in base.sequence(content):
        parts.append({"text": part} if isinstance(part, str) else base.mapping(part))
    return parts


def text_of(part: dict[str, Any]) -> str | None:
    """Return the text of a part that is no thought."""
    text = part.get("text")
    if isinstance(text, str) and part.get("thought") is not True:
        return text
    return None


def file_of(part: dict[str, Any]) -> JsonObject | None:
    """Return the file in a part, as an attachment."""
    inline = base.mapping(part, "inlineData")
    data = base.text(inline, "data")
    if data is not None:
        return _attachment(inline, "data", data)
    stored = base.mapping(part, "fileData")
    url = base.text(stored, "fileUri")
    return None if url is None else _attachment(stored, "url", url)


def _attachment(file: dict[str, Any], field: str, value: str) -> JsonObject:
    media_type = base.text(file, "mimeType")
    kind = "image" if (media_type or "").startswith("image/") else "document"
    attachment: JsonObject = {"kind": kind, field: value}
    if media_type:
        attachment["media_type"] = media_type
    name = base.text(file, "displayName")
    if name:
        attachment["name"] = name
    return attachment


def user(content: Any) -> Iterator[base.PieceOrSkipped]:
    """Yield the input in a user's content, without the results of calls."""
    others: list[tuple[int, Any]] = []
    for index, part in enumerate(parts_of(content)):
        if "functionResponse" not in part:
            others.append((index, part))
    if others:
        yield from messages.user_parts(others, text_of, file_of, _UNKNOWN)


class Answer(NamedTuple):
    """The parts of a model's content.

    files: parts that only a provider can read, or files that the model made.
    """

    texts: list[str]
    thinking: list[JsonObject]
    calls: list[dict[str, Any]]
    blocks: list[JsonObject]

    def pieces(self, stop_reason: str | None = None) -> Iterator[base.PieceOrSkipped]:
        """Yield the response and the provider's blocks, without the calls."""
        yield from messages.response(self.texts, self.thinking, stop_reason=stop_reason)
        if self.blocks:
            yield base.Piece("provider_edit", {"blocks": self.blocks})


def answer(content: Any) -> Answer:
    """Return the parts of a model's content by their kind."""
    parsed = Answer([], [], [], [])
    for part in parts_of(content):
        text = part.get("text")
        call = base.mapping(part, "functionCall")
        if part.get("thought") is True and isinstance(text, str):
            block: JsonObject = {"type": "thinking", "thinking": text}
            signature = base.text(part, "thoughtSignature")
            if signature:
                block["signature"] = signature
            parsed.thinking.append(block)
        elif isinstance(text, str):
            parsed.texts.append(text)
        elif call:
            parsed.calls.append(call)
        else:
            parsed.blocks.append(part)
    return parsed


def call(call: dict[str, Any], call_id: str) -> base.Piece | base.Skipped:
    """Return a call of a function."""
    return messages.tool_call(call_id, call.get("name"), call.get("args"))


class Output(NamedTuple):
    """The content of a function's response, and whether the function failed."""

    content: Any
    failed: bool


def output(response: dict[str, Any]) -> Output:
    """Return the output in a ``functionResponse``.

    Files in it become blocks after its text.
    """
    body = base.mapping(response, "response")
    failed = False
    text: str
    if body.keys() <= {"output"}:
        text = _text(body.get("output"))
        failed = False
    elif body.keys() <= {"error"}:
        text = _text(body.get("error"))
        failed = True
    else:
        text = canonical(body).decode()
        failed = "error" in body
    if exit_codes.of_gemini(text):
        failed = True
    blocks: list[JsonObject] = []
    for part in base.each(response, "parts"):
        file = file_of(part)
        if file is not None:
            blocks.append(_block(file))
    if not blocks:
        return Output(text, failed)
    return Output([{"type": "text", "text": text}, *blocks], failed)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else canonical(value).decode()


def _block(file: JsonObject) -> JsonObject:
    """Return a file as a block of a tool's result."""
    source: JsonObject = {"type": "url", "url": file.get("url")}
    if "data" in file:
        source = {
            "type": "base64",
            "media_type": file.get("media_type"),
            "data": file["data"],
        }
    return {"type": file["kind"], "source": source}


def usage(tokens: dict[str, Any], names: dict[str, str]) -> JsonObject | None:
    """Return the usage of a response; None if the client recorded none.

    Gemini counts cached tokens in the input, and thoughts apart from the output.

    names: the client's names of the counts ``input``, ``cached``, ``output`` and
           ``thoughts``.
    """
    counts = {
        count: int(base.number(tokens, name) or 0) for count, name in names.items()
    }
    if not any(counts.values()):
        return None
    return {
        "input_tokens": max(counts["input"] - counts["cached"], 0),
        "output_tokens": counts["output"] + counts["thoughts"],
        "cache_read_input_tokens": counts["cached"],
    }
