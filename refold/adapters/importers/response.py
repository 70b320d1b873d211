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
# The order of kinds of blocks that contexts restore without a record of the order.
_RANKS: Final = {"thinking": 0, "text": 1, "call": 2}


def events_of(message: JsonObject) -> list[Event]:
    """Return the events of a complete response.

    They are the response with its texts and thinking, its tool calls, and a
    ``provider_edit`` if the API sent anything else.  Blocks that only the provider can
    read are stored byte for byte.
    """
    content = _blocks(message)
    kinds_of_blocks = [_kind(block) for block in content]
    others: list[JsonObject] = []
    calls: list[Event] = []
    for kind, block in zip(kinds_of_blocks, content, strict=True):
        if kind == "block":
            others.append(block)
        elif kind == "call":
            call = kinds.ToolCall(
                call_id=block["id"],
                tool_name=block["name"],
                arguments=block.get("input", {}),
            )
            calls.append(call)
    edits = sequence(message, "context_management", "applied_edits")
    events: list[Event] = [_response(message, message.get("stop_reason")), *calls]
    container = message.get("container")
    if not isinstance(container, dict):
        container = None
    order = None
    if _needs_order(kinds_of_blocks, content):
        order = _order(kinds_of_blocks, content)
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


def _kind(block: Mapping[str, Any]) -> str:
    """Return the kind of a block: ``thinking``, ``text``, ``call``, or ``block``.

    The last is a block that only the provider can read.
    """
    if block.get("type") in _THINKING:
        return "thinking"
    if blocks.text_of(block) is not None:
        return "text"
    return "call" if _is_call(block) else "block"


def _needs_order(kinds_of_blocks: Sequence[str], content: Sequence[JsonObject]) -> bool:
    """Whether the order of the blocks must be recorded to restore the content.

    It need not be if thinking comes first, then text, then calls, and no block has
    fields that the events of the response lack.
    """
    rank = 0
    for kind, block in zip(kinds_of_blocks, content, strict=True):
        if kind == "block" or _RANKS[kind] < rank or block.get("citations"):
            return True
        if kind == "call" and _extra_call_fields(block) not in ({}, _DIRECT):
            return True
        rank = _RANKS[kind]
    return False


def _order(
    kinds_of_blocks: Sequence[str], content: Sequence[JsonObject]
) -> tuple[JsonObject, ...]:
    """Return the order of the blocks, with numbers for those that events contain.

    Text blocks are in it themselves.  Each other block is numbered among its kind:
    thinking, calls, and the rest.
    """
    numbers: Counter[str] = Counter()
    order: list[JsonObject] = []
    for kind, block in zip(kinds_of_blocks, content, strict=True):
        if kind == "text":
            order.append(block)
            continue
        entry: JsonObject = {kind: numbers[kind]}
        if kind == "call":
            entry |= _extra_call_fields(block)
        order.append(entry)
        numbers[kind] += 1
    return tuple(order)


def _extra_call_fields(block: JsonObject) -> JsonObject:
    """Return the fields of a call other than its id, its tool, and its arguments."""
    if block.keys() <= _RECORDED_CALL_FIELDS:
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
    thinking: list[Any] = []
    for block in _blocks(message):
        if block.get("type") in _THINKING:
            thinking.append(blocks.thinking_of(block))
        else:
            texts.append(blocks.text_of(block) or "")
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


def _blocks(message: JsonObject) -> list[dict[str, Any]]:
    """Return the blocks of a message, without values that are no objects."""
    content: Any = message.get("content") or []
    return [block for block in content if isinstance(block, dict)]
