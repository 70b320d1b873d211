"""Letta's agent files: every message an agent ever had, and its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold.adapters.importers import messages as blocks, openai
from refold.adapters.importers.base import (
    Found,
    Origin,
    Piece,
    Recording,
    Skipped,
    Source,
    Transcript,
    loads,
    mapping,
    moment,
    sequence,
    text,
)
from refold.adapters.importers.messages import Message

_FAILED = frozenset({"failed", "error"})
_THOUGHTS = {
    "reasoning": ("thinking", "reasoning", "thinking"),
    "redacted_reasoning": ("redacted_thinking", "data", "data"),
}
_CONTEXT = "which messages were in the context when the file was saved"
# Each changes as the agent goes on, so none can be an event in its past.
_LEFT_OUT = {
    "in_context_message_indices": _CONTEXT,
    "in_context_message_ids": _CONTEXT,
    "core_memory": "the memory when the file was saved: the system messages have it",
}
_READ = frozenset({"messages", *_LEFT_OUT})


class Letta:
    """Reads an agent's messages, from a file of one agent or of several."""

    name = "letta"

    def recognises(self, source: Source) -> bool:
        """Whether this is an agent with its memory, or a file of agents."""
        found = _document(source)
        if "core_memory" in found:
            return isinstance(found.get("messages"), list)
        agents = sequence(found.get("agents"))
        return bool(agents) and all(_is_agent(agent) for agent in agents)

    def read(self, source: Source) -> Iterator[Transcript]:
        """A transcript for each agent."""
        found = _document(source)
        if isinstance(found.get("messages"), list):
            yield self._agent(source, "", found)
        elif not isinstance(found.get("agents"), list):
            raise source.failed("is no Letta agent file: it has no messages")
        for index, agent in enumerate(sequence(found.get("agents"))):
            yield self._agent(source, f"agents[{index}]", mapping(agent))

    def _agent(self, source: Source, place: str, agent: dict[str, Any]) -> Transcript:
        recording = Recording(self.name, source.name)
        prefix = f"{place} " if place else ""
        calls = openai.UnnamedCalls()
        for index, value in enumerate(sequence(agent.get("messages"))):
            message = Message(f"{prefix}messages[{index}]", index, mapping(value))
            recording.take(_found(message, calls), _origin(message))
        for key, why in _LEFT_OUT.items():
            if agent.get(key):
                recording.skip(why, f"{prefix}{key}")
        more = len(agent.keys() - _READ)
        recording.skip(f"further fields ({more}): the agent's configuration", place)
        return recording.transcript("")


def _document(source: Source) -> dict[str, Any]:
    """The agent file; some are JSON in a JSON text."""
    document = source.document
    if isinstance(document, str):
        try:
            document, changes = loads(document)
        except (ValueError, RecursionError):
            return {}
        source.note("", changes)
    return mapping(document)


def _found(message: Message, calls: openai.UnnamedCalls) -> Iterator[Found]:
    value = message.value
    asks = value.get("role") == "approval" and sequence(value.get("tool_calls"))
    match value.get("role"):
        case "system":
            yield blocks.system(value.get("content"))
        case "user" | "summary":
            yield from blocks.user(value.get("content"))
        case "tool":
            yield from _results(value)
        case "assistant":
            yield from _assistant(message, calls)
        case "approval" if asks:
            yield from _assistant(message, calls)
        case "approval" if isinstance(value.get("approve"), bool):
            decision = "approved" if value["approve"] else "denied"
            yield Piece("hitl", {"trigger": "tool_approval", "decision": decision})
        case str():
            yield Skipped("", "a message of a role that is not known")
        case _:
            yield Skipped("", "no message: it is no object with a role")


def _origin(message: Message) -> Origin:
    value = message.value
    of_model = value.get("role") in ("assistant", "approval")
    response = text(value.get("id")) or f"msg:{message.index}"
    return Origin(
        message.place,
        ts=moment(value.get("created_at")),
        agent=text(value.get("name")) if of_model else None,
        model=text(value.get("model")) if of_model else None,
        response_id=response if of_model else None,
        source={
            **({"id": value["id"]} if text(value.get("id")) else {}),
            **({"summary": True} if value.get("role") == "summary" else {}),
        },
    )


def _assistant(message: Message, calls: openai.UnnamedCalls) -> Iterator[Found]:
    content = message.value.get("content")
    yield from blocks.unreadable(content)
    parts = [content] if isinstance(content, str) else sequence(content)
    texts, thinking = [], []
    for index, part in enumerate(parts):
        words, thought = blocks.plain([part]), _thought(mapping(part))
        if words is not None:
            texts += words
        elif thought is not None:
            thinking.append(thought)
        elif mapping(part).get("type") != "tool_call":  # told again in tool_calls
            yield Skipped(f"content[{index}]", "a part that is no text or thinking")
    made = [*blocks.answered(texts, thinking), *openai.called(message, calls)]
    yield from made
    if not made:
        yield Skipped("", blocks.EMPTY)


def _thought(part: dict[str, Any]) -> dict[str, Any] | None:
    known = _THOUGHTS.get(text(part.get("type")) or "")
    if known is None:
        return None
    kind, held, field = known
    return {
        "type": kind,
        field: text(part.get(held)) or "",
        "signature": text(part.get("signature")),
    }


def _results(value: dict[str, Any]) -> Iterator[Found]:
    """What a tool returned; newer files tell the returns of several calls together."""
    content = value.get("content")
    returns = [mapping(item) for item in sequence(value.get("tool_returns"))]
    named = [item for item in returns if text(item.get("tool_call_id"))]
    if len(named) > 1:
        for item in named:
            returned = item.get("func_response")
            yield _result(item["tool_call_id"], returned, item.get("status"))
        return
    call_id = text(value.get("tool_call_id")) or next(
        (item["tool_call_id"] for item in named), None
    )
    if call_id is None:
        yield Skipped("", "a result that does not name its call")
        return
    texts = blocks.plain(content)
    kept = texts[0] if texts and len(texts) == 1 else content
    told = returns[0].get("status") if returns else None
    yield _result(call_id, kept, _status(kept) or told)


def _result(call_id: str, content: Any, status: Any) -> Piece:
    failed = str(status).lower() in _FAILED
    return Piece(
        "tool_result",
        {
            "call_id": call_id,
            "content": "" if content is None else content,
            "status": "error" if failed else "ok",
        },
    )


def _status(content: Any) -> str | None:
    """The status in the envelope that Letta puts a tool's text into."""
    if not isinstance(content, str):
        return None
    try:
        envelope, _ = loads(content)
    except (ValueError, RecursionError):
        return None
    return text(mapping(envelope).get("status"))


def _is_agent(value: Any) -> bool:
    agent = mapping(value)
    memory = agent.keys() & {"in_context_message_ids", "block_ids"}
    return bool(memory) and isinstance(agent.get("messages"), list)
