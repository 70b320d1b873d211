"""Sizes in characters, as strategies that count them mean it."""

from __future__ import annotations

from refold.domain.canonical import canonical
from refold.domain.events import (
    AgentResponse,
    Event,
    Final,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.projections.context.entries import entry_of


def size_of(event: Event) -> int:
    """The characters of its text, and of the compact JSON of what is no text in it."""
    match event:
        case UserInput(text=text, attachments=attachments):
            return len(text) + sum(_json(one.model_dump()) for one in attachments)
        case AgentResponse(text=text, thinking=thinking):
            return len(text) + sum(_json(one.model_dump()) for one in thinking)
        case ToolCall(tool_name=name, arguments=arguments):
            return len(name) + _value(arguments)
        case ToolResult(content=content):
            return _value(content)
        case Final(text=text):
            return len(text)
    entry = entry_of(event)
    return len(entry.body) if entry else 0


def _value(value: object) -> int:
    return len(value) if isinstance(value, str) else _json(value)


def _json(value: object) -> int:
    return len(canonical(value).decode())
