"""Letta's agent files: all messages of an agent, and its configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from refold.adapters.importers import base, messages, openai
from refold.adapters.importers.messages import Message
from refold.domain.canonical import canonical, repaired, text_digest
from refold.domain.envelope import Mark

NAME = "letta"
_FAILED = frozenset({"failed", "error"})
# By a part's type: the type of the block, the part's field, and the block's field.
_THINKING = {
    "reasoning": ("thinking", "reasoning", "thinking"),
    "redacted_reasoning": ("redacted_thinking", "data", "data"),
}
# Lists of the messages in the context, by their ids or by their places in the file.
_IN_CONTEXT: Final = "in_context_message_ids"
_IN_CONTEXT_INDICES: Final = "in_context_message_indices"
_CONTEXT = "list of the messages that were in the context when the file was saved"
# Fields that change while the agent runs, so they are no events of its past.
_LEFT_OUT = {
    _IN_CONTEXT_INDICES: _CONTEXT,
    _IN_CONTEXT: _CONTEXT,
    "core_memory": "memory as saved; the system messages contain it",
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
    """Return the transcript of an agent; ``place`` is the agent's in the file."""
    recording = base.Recording(NAME, source.name)
    prefix = f"{place} " if place else ""
    calls = openai.UnnamedCalls()
    in_context = _in_context(agent)
    keys: list[str] = []
    prompts: set[int] = set()
    for message in messages.numbered(base.sequence(agent, "messages"), prefix):
        key = _key(len(keys), message.value)
        if message.value.get("role") == "system":
            prompts.add(len(keys))
        keys.append(key)
        origin = _origin(message)
        if in_context is not None:  # the edit below names the message by its key
            origin = replace(origin, key=key)
        recording.take(_pieces(message, calls), origin)
    if in_context is not None:
        mark = _mark(keys, in_context, prompts)
        if mark.keys:
            name = _IN_CONTEXT if agent.get(_IN_CONTEXT) else _IN_CONTEXT_INDICES
            edit = base.Origin(f"{prefix}{name}", key=_edit_key(mark))
            recording.mark(mark, edit, "removal")
    for name, why in _LEFT_OUT.items():
        is_applied = name in (_IN_CONTEXT, _IN_CONTEXT_INDICES) and in_context
        if agent.get(name) and not is_applied:
            recording.skip(why, f"{prefix}{name}")
    fields = sorted(agent.keys() - _READ)
    if fields:
        why = f"fields around the messages: {base.field_names(fields)}"
        recording.skip(why, place, note=True)
    return recording.transcript("")


def _in_context(agent: dict[str, Any]) -> list[int] | None:
    """Return the places of the messages in the context when the file was saved.

    They are in the order of the context.  Returns None if they are unclear: without a
    list, if the list names messages that the file lacks, or if messages have no ids.
    """
    agent_messages = base.sequence(agent, "messages")
    named = base.sequence(agent, _IN_CONTEXT)
    if named:
        ids = [base.text(message, "id") for message in agent_messages]
        place_of = {id_: place for place, id_ in enumerate(ids) if id_ is not None}
        if len(place_of) < len(ids) or not place_of.keys() >= set(named):
            return None
        return [place_of[id_] for id_ in named]
    places = base.sequence(agent, _IN_CONTEXT_INDICES)
    is_clear = len(set(map(str, places))) == len(places)
    for place in places:
        if type(place) is not int or not 0 <= place < len(agent_messages):
            is_clear = False
    return places if places and is_clear else None


def _mark(keys: Sequence[str], in_context: Sequence[int], prompts: set[int]) -> Mark:
    """Return the edit that leaves the context with these messages, in their order.

    keys:    of all messages.
    prompts: the places of the system messages, which precede all others anyway.
    """
    shown = set(in_context)
    left_out = [key for place, key in enumerate(keys) if place not in shown]
    # The summary of a compaction is newer than the messages after it.
    in_place: list[str] = []
    others = [place for place in in_context if place not in prompts]
    for index, place in enumerate(others):
        if any(later < place for later in others[index + 1 :]):
            in_place.append(keys[place])
    return Mark(left_out=tuple(left_out), in_place=tuple(in_place))


def _key(place: int, message: dict[str, Any]) -> str:
    """Return the key of a message's events: by its id, or by its place and content."""
    message_id = base.text(message, "id")
    if message_id is not None:
        return f"{NAME}\0{message_id}"
    names = ("role", "content", "tool_calls", "tool_call_id", "created_at")
    content = [message.get(name) for name in names]
    digest = text_digest(canonical(repaired(content)[0]).decode())
    return f"{NAME}\0{place}\0{digest}"


def _edit_key(mark: Mark) -> str:
    """The key of the edit that changes these messages."""
    if not mark.in_place:
        return f"{NAME}\0without\0{text_digest(chr(0).join(mark.left_out))}"
    parts = (*mark.left_out, "", *mark.in_place)
    return f"{NAME}\0context\0{text_digest(chr(0).join(parts))}"


def _document(source: base.Source) -> dict[str, Any]:
    """The agent file; some versions are JSON in a JSON text."""
    document = source.document
    if isinstance(document, str):
        document, changes = base.parsed(document)
        source.note("", changes)
    return base.mapping(document)


def _pieces(
    message: Message, calls: openai.UnnamedCalls
) -> Iterator[base.PieceOrSkipped]:
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
    """Return the fields that the events of a message share."""
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


def _assistant(
    message: Message, calls: openai.UnnamedCalls
) -> Iterator[base.PieceOrSkipped]:
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
    """Return a part with thinking as a block; None for another part."""
    names = _THINKING.get(base.text(part, "type") or "")
    if names is None:
        return None
    kind, part_field, block_field = names
    return {
        "type": kind,
        block_field: base.text(part, part_field) or "",
        "signature": base.text(part, "signature"),
    }


def _results(value: dict[str, Any]) -> Iterator[base.PieceOrSkipped]:
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
    """Return the event of a result."""
    return messages.tool_result(call_id, content, failed=str(status).lower() in _FAILED)


def _is_agent(value: Any) -> bool:
    """Whether a value has the messages and the memory of an agent."""
    agent = base.mapping(value)
    memory = agent.keys() & {"in_context_message_ids", "block_ids"}
    return bool(memory) and isinstance(agent.get("messages"), list)
