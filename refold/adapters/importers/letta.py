"""Letta's agent files: every message an agent ever had, and its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold.adapters.importers import base, messages, openai
from refold.adapters.importers.messages import Message

NAME = "letta"
_FAILED = frozenset({"failed", "error"})
_THOUGHTS = {
    "reasoning": ("thinking", "reasoning", "thinking"),
    "redacted_reasoning": ("redacted_thinking", "data", "data"),
}
_CONTEXT = "list of the messages that were in the context when the file was saved"
# Each changes as the agent goes on, so none can be an event in its past.
_LEFT_OUT = {
    "in_context_message_indices": _CONTEXT,
    "in_context_message_ids": _CONTEXT,
    "core_memory": "memory as saved; the system messages hold it",
}
_READ = frozenset({"messages", *_LEFT_OUT})


def recognises(source: base.Source) -> bool:
    """Whether this is an agent with its memory, or a file of agents."""
    found = _document(source)
    if "core_memory" in found:
        return isinstance(found.get("messages"), list)
    agents = base.sequence(found, "agents")
    return bool(agents) and all(_is_agent(agent) for agent in agents)


def read(source: base.Source) -> Iterator[base.Transcript]:
    """A transcript for each agent."""
    found = _document(source)
    if isinstance(found.get("messages"), list):
        yield _agent(source, "", found)
    elif not isinstance(found.get("agents"), list):
        raise source.failed("is not a Letta agent file: it has no messages")
    for index, agent in enumerate(base.sequence(found, "agents")):
        yield _agent(source, f"agents[{index}]", base.mapping(agent))


def _agent(source: base.Source, place: str, agent: dict[str, Any]) -> base.Transcript:
    recording = base.Recording(NAME, source.name)
    prefix = f"{place} " if place else ""
    calls = openai.UnnamedCalls()
    for message in messages.numbered(base.sequence(agent, "messages"), prefix):
        recording.take(_found(message, calls), _origin(message))
    for key, why in _LEFT_OUT.items():
        if agent.get(key):
            recording.skip(why, f"{prefix}{key}")
    if fields := sorted(agent.keys() - _READ):
        why = f"fields around the messages: {base.field_names(fields)}"
        recording.skip(why, place, note=True)
    return recording.transcript("")


def _document(source: base.Source) -> dict[str, Any]:
    """The agent file; some are JSON in a JSON text."""
    document = source.document
    if isinstance(document, str):
        document, changes = base.parsed(document)
        source.note("", changes)
    return base.mapping(document)


def _found(message: Message, calls: openai.UnnamedCalls) -> Iterator[base.Found]:
    value = message.value
    asks = value.get("role") == "assistant" or base.sequence(value, "tool_calls")
    match value.get("role"):
        case "system":
            yield messages.system(value.get("content"))
        case "user" | "summary":
            yield from messages.user(value.get("content"))
        case "tool":
            yield from _results(value)
        case "assistant" | "approval" if asks:
            yield from _assistant(message, calls)
        case "approval" if isinstance(value.get("approve"), bool):
            decision = "approved" if value["approve"] else "denied"
            yield base.Piece("hitl", {"trigger": "tool_approval", "decision": decision})
        case role:
            yield messages.of_no_role(role)


def _origin(message: Message) -> base.Origin:
    value = message.value
    of_model = value.get("role") in ("assistant", "approval")
    summary = {"summary": True} if value.get("role") == "summary" else {}
    return base.Origin(
        message.place,
        ts=base.moment(value, "created_at"),
        agent=base.text(value, "name") if of_model else None,
        model=base.text(value, "model") if of_model else None,
        response_id=message.response_id if of_model else None,
        source=message.source | summary,
    )


def _assistant(message: Message, calls: openai.UnnamedCalls) -> Iterator[base.Found]:
    content = message.value.get("content")
    yield from messages.unreadable(content)
    texts, thinking = [], []
    for index, part in enumerate(messages.parts(content)):
        if (words := messages.words(part)) is not None:
            texts.append(words)
        elif thought := _thought(part):
            thinking.append(thought)
        elif base.at(part, "type") != "tool_call":  # told again in tool_calls
            why = "part that is neither text nor thinking"
            yield base.Skipped(f"content[{index}]", why)
    made = [*messages.answered(texts, thinking), *openai.called(message, calls)]
    yield from made or [messages.EMPTY]


def _thought(part: Any) -> dict[str, Any] | None:
    if (known := _THOUGHTS.get(base.text(part, "type") or "")) is None:
        return None
    kind, held, field = known
    thought = base.text(part, held) or ""
    return {"type": kind, field: thought, "signature": base.text(part, "signature")}


def _results(value: dict[str, Any]) -> Iterator[base.Found]:
    """What a tool returned; newer files tell the returns of several calls together."""
    content = value.get("content")
    returns = [*base.each(value, "tool_returns")]
    named = [item for item in returns if base.text(item, "tool_call_id")]
    ids = [item["tool_call_id"] for item in named]
    if len(named) > 1:
        for call, item in zip(ids, named, strict=True):
            yield _result(call, item.get("func_response"), item.get("status"))
        return
    call_id = base.text(value, "tool_call_id") or next(iter(ids), None)
    if call_id is None:
        yield messages.NO_CALL
        return
    texts = messages.plain(content)
    kept = texts[0] if texts and len(texts) == 1 else content
    told = returns[0].get("status") if returns else None
    # Letta puts a tool's text into an envelope with a status.
    envelope = base.parsed(kept)[0] if isinstance(kept, str) else None
    yield _result(call_id, kept, base.text(envelope, "status") or told)


def _result(call_id: str, content: Any, status: Any) -> base.Piece:
    return messages.returned(call_id, content, failed=str(status).lower() in _FAILED)


def _is_agent(value: Any) -> bool:
    agent = base.mapping(value)
    memory = agent.keys() & {"in_context_message_ids", "block_ids"}
    return bool(memory) and isinstance(agent.get("messages"), list)
