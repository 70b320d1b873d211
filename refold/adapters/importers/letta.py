"""Letta's agent files: all messages of an agent, and its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold.adapters.importers import base, messages, openai
from refold.adapters.importers.messages import Message

NAME = "letta"
_FAILED = frozenset({"failed", "error"})
# By a part's type: the type of the block, the part's field, and the block's field.
_THINKING = {
    "reasoning": ("thinking", "reasoning", "thinking"),
    "redacted_reasoning": ("redacted_thinking", "data", "data"),
}
_CONTEXT = "list of the messages that were in the context when the file was saved"
# Fields that change while the agent runs, so they are no events of its past.
_LEFT_OUT = {
    "in_context_message_indices": _CONTEXT,
    "in_context_message_ids": _CONTEXT,
    "core_memory": "memory as saved; the system messages hold it",
}
_READ = frozenset({"messages", *_LEFT_OUT})


def recognises(source: base.Source) -> bool:
    """Whether this is an agent with its memory, or a file of agents."""
    document = _document(source)
    if "core_memory" in document:
        return isinstance(document.get("messages"), list)
    agents = base.sequence(document, "agents")
    return bool(agents) and all(_is_agent(agent) for agent in agents)


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield a transcript for each agent."""
    document = _document(source)
    if isinstance(document.get("messages"), list):
        yield _agent(source, "", document)
    elif not isinstance(document.get("agents"), list):
        raise source.failed("is not a Letta agent file: it has no messages")
    for index, agent in enumerate(base.sequence(document, "agents")):
        yield _agent(source, f"agents[{index}]", base.mapping(agent))


def _agent(source: base.Source, place: str, agent: dict[str, Any]) -> base.Transcript:
    recording = base.Recording(NAME, source.name)
    prefix = f"{place} " if place else ""
    calls = openai.UnnamedCalls()
    for message in messages.numbered(base.sequence(agent, "messages"), prefix):
        recording.take(_pieces(message, calls), _origin(message))
    for key, why in _LEFT_OUT.items():
        if agent.get(key):
            recording.skip(why, f"{prefix}{key}")
    if fields := sorted(agent.keys() - _READ):
        why = f"fields around the messages: {base.field_names(fields)}"
        recording.skip(why, place, note=True)
    return recording.transcript("")


def _document(source: base.Source) -> dict[str, Any]:
    """The agent file; some versions are JSON in a JSON text."""
    document = source.document
    if isinstance(document, str):
        document, changes = base.parsed(document)
        source.note("", changes)
    return base.mapping(document)


def _pieces(message: Message, calls: openai.UnnamedCalls) -> Iterator[base.Found]:
    value = message.value
    is_response = value.get("role") == "assistant" or base.sequence(value, "tool_calls")
    match value.get("role"):
        case "system":
            yield messages.system(value.get("content"))
        case "user" | "summary":
            yield from messages.user(value.get("content"))
        case "tool":
            yield from _results(value)
        case "assistant" | "approval" if is_response:
            yield from _assistant(message, calls)
        case "approval" if isinstance(value.get("approve"), bool):
            decision = "approved" if value["approve"] else "denied"
            yield base.Piece("hitl", {"trigger": "tool_approval", "decision": decision})
        case role:
            yield messages.unknown_role(role)


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
    texts: list[str] = []
    thinking: list[dict[str, Any]] = []
    for index, part in enumerate(messages.parts(content)):
        text = messages.text_of(part)
        block = _thinking_block(part)
        if text is not None:
            texts.append(text)
        elif block is not None:
            thinking.append(block)
        elif base.at(part, "type") != "tool_call":  # tool_calls repeats these
            why = "part that is neither text nor thinking"
            yield base.Skipped(f"content[{index}]", why)
    pieces = [*messages.response(texts, thinking), *openai.tool_calls(message, calls)]
    yield from pieces or [messages.EMPTY]


def _thinking_block(part: Any) -> dict[str, Any] | None:
    names = _THINKING.get(base.text(part, "type") or "")
    if names is None:
        return None
    kind, part_field, block_field = names
    return {
        "type": kind,
        block_field: base.text(part, part_field) or "",
        "signature": base.text(part, "signature"),
    }


def _results(value: dict[str, Any]) -> Iterator[base.Found]:
    """Yield the results of a message; in newer files it may have several."""
    returns = [*base.each(value, "tool_returns")]
    with_ids = [item for item in returns if base.text(item, "tool_call_id")]
    if len(with_ids) > 1:
        for item in with_ids:
            yield _result(
                item["tool_call_id"], item.get("func_response"), item.get("status")
            )
        return
    call_id = base.text(value, "tool_call_id")
    if call_id is None and with_ids:
        call_id = with_ids[0]["tool_call_id"]
    if call_id is None:
        yield messages.NO_CALL
        return
    content = value.get("content")
    texts = messages.only_texts(content)
    if texts and len(texts) == 1:
        content = texts[0]
    status = returns[0].get("status") if returns else None
    if isinstance(content, str):
        # Letta wraps the text of a tool in JSON with a status.
        wrapper, _ = base.parsed(content)
        status = base.text(wrapper, "status") or status
    yield _result(call_id, content, status)


def _result(call_id: str, content: Any, status: Any) -> base.Piece:
    return messages.tool_result(call_id, content, failed=str(status).lower() in _FAILED)


def _is_agent(value: Any) -> bool:
    agent = base.mapping(value)
    memory = agent.keys() & {"in_context_message_ids", "block_ids"}
    return bool(memory) and isinstance(agent.get("messages"), list)
