"""What Claude answered, as events; and why it did not, as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import anthropic

from refold.domain.events import (
    AgentError,
    AgentResponse,
    Event,
    JsonObject,
    ProviderEdit,
    Thinking,
    ToolCall,
)

INTERRUPTED: Final = "interrupted"
_WHERE: Final = "anthropic.messages"
_THINKING: Final = ("thinking", "redacted_thinking")
_RETRYABLE: Final = frozenset({408, 409, 429})


def plain(value: Any) -> Any:
    """A response or block of the SDK as JSON, as it came; JSON as it is."""
    if isinstance(value, anthropic.BaseModel):
        return value.to_dict(mode="json")
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def events_of(message: JsonObject) -> list[Event]:
    """The events of a whole response: what was said, its calls, what the API did.

    Blocks that only the provider can read are kept byte for byte.
    """
    blocks = _blocks(message)
    calls = [block for block in blocks if block["type"] == "tool_use"]
    known = ("text", "tool_use", *_THINKING)
    others = [block for block in blocks if block["type"] not in known]
    management = message.get("context_management")
    edits = management.get("applied_edits") if isinstance(management, dict) else None
    events: list[Event] = [_response(message, message.get("stop_reason"))]
    events += [
        ToolCall(
            call_id=call["id"], tool_name=call["name"], arguments=call.get("input", {})
        )
        for call in calls
    ]
    if edits or others:
        edited: Any = edits or ()
        events.append(ProviderEdit(edits=tuple(edited), blocks=tuple(others)))
    return events


def broken_off(message: JsonObject | None, error: AgentError) -> list[Event]:
    """The events of a response that broke off: what came, and why no more did.

    Nobody is to carry out its calls, and the last may be half of one: they stand in
    the error, not as calls.
    """
    if message is None or not message.get("content"):
        return [error]
    calls: Any = [block for block in _blocks(message) if block["type"] == "tool_use"]
    if calls:
        context = {**(error.context or {}), "calls": calls}
        error = error.model_copy(update={"context": context})
    return [_response(message, INTERRUPTED), error]


def error_of(error: BaseException | None) -> AgentError:
    """Why there is no answer, or no whole one.

    Never the API's own words, which may quote the request.  None: the caller left.
    """
    if error is None:
        return _failed(INTERRUPTED, "the stream was left before its end")
    if isinstance(error, anthropic.APIStatusError):
        status = error.status_code
        code = error.type or f"http_{status}"
        context: JsonObject = {"status": status, "request_id": error.request_id}
        retryable = status in _RETRYABLE or status >= 500 or "overloaded" in code
        return _failed(code, f"HTTP {status}", retryable=retryable, context=context)
    if isinstance(error, anthropic.APITimeoutError):
        return _failed("timeout", "no answer in time", retryable=True)
    if isinstance(error, anthropic.APIConnectionError):
        return _failed("connection", "the API could not be reached", retryable=True)
    return _failed(INTERRUPTED, f"{type(error).__name__} while the model answered")


def _failed(
    code: str,
    message: str,
    *,
    retryable: bool = False,
    context: JsonObject | None = None,
) -> AgentError:
    return AgentError(
        code=code, message=message, where=_WHERE, retryable=retryable, context=context
    )


def _response(message: JsonObject, stop_reason: Any) -> AgentResponse:
    blocks, usage = _blocks(message), message.get("usage")
    return AgentResponse(
        text="".join(block["text"] for block in blocks if block["type"] == "text"),
        thinking=tuple(_thought(b) for b in blocks if b["type"] in _THINKING),
        stop_reason=stop_reason,
        usage=usage if isinstance(usage, dict) else None,
    )


def _thought(block: dict[str, Any]) -> Thinking:
    names = ("type", "thinking", "signature", "data")
    return Thinking(
        **{name: block[name] for name in names if block.get(name) is not None}
    )


def _blocks(message: JsonObject) -> list[dict[str, Any]]:
    content: Any = message.get("content") or []
    return [block for block in content if isinstance(block, dict)]
