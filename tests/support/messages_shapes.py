"""The answers of the Messages API: messages, errors, the events of a stream."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

Block: TypeAlias = dict[str, Any]
_ERRORS = {
    400: ("invalid_request_error", "Invalid request"),
    401: ("authentication_error", "invalid x-api-key"),
    403: ("permission_error", "Your API key does not have permission"),
    404: ("not_found_error", "Not found"),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your rate limit"),
    500: ("api_error", "Internal server error"),
    529: ("overloaded_error", "Overloaded"),
}
_CHUNK = 12
_ids = itertools.count(1)


def new_id(prefix: str) -> str:
    return f"{prefix}_{next(_ids):024d}"


@dataclass(frozen=True, slots=True)
class Request:
    """One request as received; ``headers`` have names in lower case."""

    path: str
    headers: Mapping[str, str]
    body: Block


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; the functions below create it."""

    status: int = 200
    body: Block | bytes = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    instead: Literal["silence", "hang_up"] | None = None
    cut: int | None = None
    cut_error: Block | bytes | None = None

    def broken(self, *, after: int, error: Reply | None = None) -> Reply:
        """Return this reply as a stream that ends after that many events."""
        body = error.body if error else None
        return replace(self, cut=after, cut_error=body)


Answer: TypeAlias = Callable[[Request], Reply]


def text(words: str) -> Block:
    return {"type": "text", "text": words, "citations": None}


def thinking(thoughts: str, *, signature: str = "c2lnbmF0dXJl") -> Block:
    return {"type": "thinking", "thinking": thoughts, "signature": signature}


def tool_use(
    name: str, arguments: Mapping[str, Any], *, call_id: str | None = None
) -> Block:
    return {
        "type": "tool_use",
        "id": call_id or new_id("toolu"),
        "name": name,
        "input": dict(arguments),
        "caller": {"type": "direct"},
    }


def message(
    *blocks: str | Block,
    stop_reason: str | None = None,
    usage: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Reply:
    """Return a message of the assistant; ``fields`` replace others (``model``).

    The model is the request's, and the usage an estimate except for given fields.
    """
    content = [text(block) if isinstance(block, str) else block for block in blocks]
    uses_tool = any(block["type"] == "tool_use" for block in content)
    body: Block = {
        "id": new_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": None,
        "content": content,
        "stop_reason": stop_reason or ("tool_use" if uses_tool else "end_turn"),
        "stop_sequence": None,
        "stop_details": None,
        "usage": dict(usage or {}),
    }
    return Reply(body={**body, **fields})


def refusal(*blocks: str | Block, category: str | None = None) -> Reply:
    """Return a message that classifiers stopped; the text before that stays in it."""
    why = {"type": "refusal", "category": category, "explanation": None}
    return message(*blocks, stop_reason="refusal", stop_details=why)


def error(
    status: int,
    words: str | None = None,
    *,
    kind: str | None = None,
    retry_after: float | None = None,
) -> Reply:
    """Return an error; ``retry_after`` is in seconds, and may be a fraction."""
    usual, default_words = _ERRORS.get(status, ("api_error", "Internal server error"))
    headers = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
    body = {"type": kind or usual, "message": words or default_words}
    return Reply(status, {"type": "error", "error": body}, headers)


def overloaded(*, retry_after: float | None = None) -> Reply:
    return error(529, retry_after=retry_after)


def rate_limited(*, retry_after: float | None = None) -> Reply:
    return error(429, retry_after=retry_after)


def silence() -> Reply:
    return Reply(instead="silence")


def hang_up() -> Reply:
    return Reply(instead="hang_up")


def raw(body: bytes, *, status: int = 200, **headers: str) -> Reply:
    """Return any bytes; ``headers`` are written with ``_`` for ``-``."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, body, names)


def events(body: Block) -> Iterator[Block]:
    """Yield the events that stream a message, in order."""
    usage = body["usage"]
    begun: Block = {"content": [], "stop_reason": None, "stop_details": None}
    started = {**body, **begun, "usage": {**usage, "output_tokens": 1}}
    yield {"type": "message_start", "message": started}
    for index, block in enumerate(body["content"]):
        start, deltas = _pieces(block)
        yield {"type": "content_block_start", "index": index, "content_block": start}
        if not index:
            yield {"type": "ping"}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop_fields = ("stop_reason", "stop_sequence", "stop_details")
    counts = {name: n for name, n in usage.items() if name.endswith("_tokens")}
    stop = {name: body[name] for name in stop_fields}
    yield {"type": "message_delta", "delta": stop, "usage": counts}
    yield {"type": "message_stop"}


def _pieces(block: Block) -> tuple[Block, list[Block]]:
    """Return the beginning of a block, and the deltas that complete it."""
    match block["type"]:
        case "text":
            words = _deltas("text_delta", "text", block["text"])
            return {**block, "text": ""}, words
        case "thinking":
            thoughts = _deltas("thinking_delta", "thinking", block["thinking"])
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [*thoughts, signed]
        case "tool_use":
            written = json.dumps(block["input"], ensure_ascii=False)
            arguments = _deltas("input_json_delta", "partial_json", written)
            begun = {"type": "input_json_delta", "partial_json": ""}
            return {**block, "input": {}}, [begun, *arguments]
        case _:  # such as redacted thinking, which is sent in one piece
            return block, []


def _deltas(kind: str, name: str, whole: str) -> list[Block]:
    starts = range(0, len(whole), _CHUNK)
    return [{"type": kind, name: whole[at : at + _CHUNK]} for at in starts]


def estimate(value: Any) -> int:
    """Estimate the tokens of a JSON value, as the server does."""
    return len(json.dumps(value, ensure_ascii=False)) // 4 + 1
