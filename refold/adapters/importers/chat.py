"""Lists of chat messages, however a file holds them, and whose messages they are.

A file holds one list of messages, one object with ``messages``, a list of such
objects, or one such object or one message a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, TypeAlias

from refold.adapters.importers.base import mapping, sequence, text
from refold.adapters.importers.source import Line, Source

Dialect: TypeAlias = Literal["openai", "anthropic"]

_SESSION_KEYS = ("session_id", "conversation_id", "thread_id", "id")
_READ_KEYS = frozenset({*_SESSION_KEYS, "messages", "system", "model"})
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_AGENT_FILE = "core_memory"  # such messages have more to them: a format of their own
_OPENAI_ROLES = frozenset({"tool", "function"})
_OPENAI_KEYS = ("tool_calls", "function_call", "tool_call_id", "refusal")
_OPENAI_PARTS = frozenset({"image_url", "input_audio", "file", "refusal"})
_ANTHROPIC_BLOCKS = frozenset(
    {
        "compaction",
        "container_upload",
        "document",
        "image",
        "mcp_tool_use",
        "redacted_thinking",
        "search_result",
        "server_tool_use",
        "thinking",
        "tool_use",
    }
)


@dataclass(frozen=True, slots=True)
class Message:
    """A message as the file has it; ``index`` is its place in its conversation."""

    place: str
    index: int
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of one session; ``header`` is the object around them."""

    place: str
    messages: Iterable[Message]
    header: dict[str, Any] = field(default_factory=dict)

    @property
    def session(self) -> Any:
        """What the file calls the session, if it says."""
        return next(
            (self.header[key] for key in _SESSION_KEYS if key in self.header), ""
        )

    @property
    def unread(self) -> int:
        """How many fields beside the messages have no place in a transcript."""
        return len(self.header.keys() - _READ_KEYS)


def conversations(source: Source) -> Iterator[Conversation]:
    """The conversations of a file, in its order; none if it holds no chat."""
    if source.is_lines:
        yield from _of_lines(source.lines())
        return
    document = source.document
    if isinstance(document, dict) and "role" in document and "messages" not in document:
        yield from _of_lines(iter([Line(1, document)]))
    elif isinstance(document, dict) or _is_chat(document):
        yield from _of_value("", document)
    else:
        for index, item in enumerate(sequence(document)):
            yield from _of_value(f"[{index}]", item)


def dialect(source: Source) -> Dialect | None:
    """Whose messages these are, or None if that cannot be told.

    Tool calls, their results and files tell; failing those, a ``system`` beside the
    messages tells the Messages API.  What fits both, text alone, is read as OpenAI's.
    """
    found: set[Dialect] = set()
    aside = chatting = False
    for conversation in conversations(source):
        if _AGENT_FILE in conversation.header:
            return None
        aside |= "system" in conversation.header
        for message in conversation.messages:
            if text(message.value.get("role")) not in _ROLES:
                return None
            chatting = True
            aside &= message.value["role"] not in ("system", "developer")
            found |= _evidence(message.value)
    if not chatting or len(found) > 1:
        return None
    return next(iter(found), "anthropic" if aside else "openai")


def _of_lines(lines: Iterator[Line]) -> Iterator[Conversation]:
    first = next(lines, None)
    if first is None:
        return
    everything = chain([first], lines)
    if isinstance(first.value, list) or "messages" in mapping(first.value):
        for line in everything:
            yield from _of_value(f"line {line.number}", line.value)
    else:
        messages = (
            Message(f"line {line.number}", index, mapping(line.value))
            for index, line in enumerate(everything)
        )
        yield Conversation("", messages)


def _of_value(place: str, value: Any) -> Iterator[Conversation]:
    """One conversation; of what is none, one whose only message cannot be read."""
    prefix = f"{place} " if place else ""
    header = mapping(value)
    if isinstance(header.get("messages"), list):
        yield Conversation(place, _numbered(header["messages"], prefix), header)
    elif _is_chat(value):
        yield Conversation(place, _numbered(value, prefix))
    elif place:
        yield Conversation(place, [Message(place, 0, {})])


def _is_chat(value: Any) -> bool:
    items = sequence(value)
    return bool(items) and all("role" in mapping(item) for item in items)


def _numbered(messages: list[Any], prefix: str = "") -> list[Message]:
    return [
        Message(f"{prefix}messages[{index}]", index, mapping(value))
        for index, value in enumerate(messages)
    ]


def _evidence(message: dict[str, Any]) -> set[Dialect]:
    """What a message shows of whose it is."""
    found: set[Dialect] = set()
    by_key = any(message.get(key) for key in _OPENAI_KEYS)
    if message["role"] in _OPENAI_ROLES or by_key:
        found.add("openai")
    for part in sequence(message.get("content")):
        kind = text(mapping(part).get("type")) or ""
        if kind in _OPENAI_PARTS:
            found.add("openai")
        elif kind in _ANTHROPIC_BLOCKS or kind.endswith("tool_result"):
            found.add("anthropic")
    return found
