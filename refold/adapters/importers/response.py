"""A response in the form of the Messages API, as events that can restore it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from refold.adapters.importers import messages as blocks
from refold.adapters.importers.base import sequence
from refold.domain import events as kinds
from refold.domain.events import Event, JsonObject

INTERRUPTED: Final = "interrupted"
_THINKING: Final = ("thinking", "redacted_thinking")
# The model called the tool itself, which is the usual case.
_DIRECT: Final = {"caller": {"type": "direct"}}
# The fields of a call that its ``tool_call`` event records.
_RECORDED_CALL_FIELDS: Final = frozenset({"type", "id", "name", "input"})


def events_of(message: JsonObject) -> list[Event]:
    """Return the events of a complete response.

    They are the response with its texts and thinking, its tool calls, and a
    ``provider_edit`` if the API sent anything else.  Blocks that only the provider can
    read are stored byte for byte.
    """
    content = _blocks(message)
    others: list[JsonObject] = []
    for block in content:
        if not _is_call(block) and not _is_text_or_thinking(block):
            others.append(block)
    edits = sequence(message, "context_management", "applied_edits")
    events: list[Event] = [_response(message, message.get("stop_reason"))]
    for block in content:
        if _is_call(block):
            call = kinds.ToolCall(
                call_id=block["id"],
                tool_name=block["name"],
                arguments=block.get("input", {}),
            )
            events.append(call)
    container = message.get("container")
    if not isinstance(container, dict):
        container = None
    order = _order(content) if _needs_order(content) else None
    if edits or others or order or container:
        events.append(
            kinds.ProviderEdit(
                edits=tuple(edits),
                blocks=tuple(others),
                content=order,
                container=container,
            )
        )
    return events


def _needs_order(content: Sequence[JsonObject]) -> bool:
    """Whether the order of the blocks must be recorded to restore the content.

    It need not be if thinking comes first, then text, then calls, and no block has
    fields that the events of the response lack.
    """
    ranks: list[int] = []
    for block in content:
        if block.get("citations") or _extra_call_fields(block) not in ({}, _DIRECT):
            return True
        if block.get("type") in _THINKING:
            ranks.append(0)
        elif blocks.text_of(block) is not None:
            ranks.append(1)
        elif _is_call(block):
            ranks.append(2)
        else:
            return True
    return ranks != sorted(ranks)


def _order(content: Sequence[JsonObject]) -> tuple[JsonObject, ...]:
    """Return the order of the blocks, with numbers for those that events contain.

    Text blocks are in it themselves.  Each other block is numbered among its kind:
    thinking, calls, and the rest.
    """
    numbers: Counter[str] = Counter()
    order: list[JsonObject] = []
    for block in content:
        if block.get("type") in _THINKING:
            kind = "thinking"
        elif blocks.text_of(block) is not None:
            order.append(block)
            continue
        elif _is_call(block):
            kind = "call"
        else:
            kind = "block"
        entry: JsonObject = {kind: numbers[kind], **_extra_call_fields(block)}
        order.append(entry)
        numbers[kind] += 1
    return tuple(order)


def _extra_call_fields(block: JsonObject) -> JsonObject:
    """Return the fields of a call other than its id, its tool, and its arguments."""
    if not _is_call(block):
        return {}
    return {
        name: value
        for name, value in block.items()
        if name not in _RECORDED_CALL_FIELDS and value is not None
    }


def broken_off(message: JsonObject | None, error: kinds.AgentError) -> list[Event]:
    """Return the events of an interrupted response: the part that came, and the error.

    Its calls must not be executed, and the last may be incomplete.  So the error
    contains them, and no ``tool_call`` is recorded.

    message: the part that came; None if there is none.
    """
    if message is None or not message.get("content"):
        return [error]
    calls: Any = [
        block for block in _blocks(message) if block.get("type") == "tool_use"
    ]
    context = {**(error.context or {}), "partial": True}
    if calls:
        context["calls"] = calls
    error = error.model_copy(update={"context": context})
    return [_response(message, INTERRUPTED), error]


def _response(message: JsonObject, stop_reason: Any) -> kinds.AgentResponse:
    """Return the event of a response, with its texts and its thinking."""
    texts: list[str] = []
    thinking: list[kinds.Thinking] = []
    for block in _blocks(message):
        texts.append(blocks.text_of(block) or "")
        if block.get("type") in _THINKING:
            thinking.append(kinds.Thinking.model_validate(blocks.thinking_of(block)))
    usage = message.get("usage")
    return kinds.AgentResponse(
        text="".join(texts),
        thinking=tuple(thinking),
        stop_reason=stop_reason if isinstance(stop_reason, str) else None,
        usage=usage if isinstance(usage, dict) else None,
    )


def _is_call(block: Mapping[str, Any]) -> bool:
    """Whether the block is a call that a result can refer to."""
    has_names = isinstance(block.get("id"), str) and isinstance(block.get("name"), str)
    return block.get("type") == "tool_use" and has_names and bool(block["id"])


def _is_text_or_thinking(block: Mapping[str, Any]) -> bool:
    """Whether the event of the response itself contains the block."""
    return block.get("type") in _THINKING or blocks.text_of(block) is not None


def _blocks(message: JsonObject) -> list[dict[str, Any]]:
    """Return the blocks of a message, without values that are no objects."""
    content: Any = message.get("content") or []
    return [block for block in content if isinstance(block, dict)]
