"""Exchanges as pieces of API messages, before neighbours of one role are merged."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from refold.domain.canonical import text_digest
from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentResponse,
    ProviderEdit,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.domain.tokens import MESSAGE_OVERHEAD, estimate, estimate_text
from refold.projections.context.text import (
    Block,
    Numbered,
    Role,
    call_input,
    cut_middle,
    entry_of,
    result_block,
    text_block,
    thinking_blocks,
    user_blocks,
    value_text,
)
from refold.projections.context.units import Exchange
from refold.projections.context.view import Message, Origin, ViewSpan

_POINTER = "\n(… {{}} characters left out; the log has them all at seq {} …)\n"


def shorten(blocks: Numbered, limit: int) -> Numbered:
    """``blocks``, each with its seq, with their texts cut to ``limit`` tokens in all.

    Each text keeps its share.  Thinking and images stay as they are.
    """
    sizes = [_size(block) for _, block in blocks]
    total = sum(sizes)
    if total <= limit:
        return blocks
    return [
        (seq, _cut(block, limit * size // total, seq))
        for (seq, block), size in zip(blocks, sizes, strict=True)
    ]


def shown_tokens(blocks: Numbered) -> int:
    """What shortened blocks cost; of an image, what its text costs."""
    return sum(estimate(block) for _, block in blocks)


def cut_to(text: str, tokens: int, seq: int | None) -> str:
    """Head and tail of ``text`` in about ``tokens``, and a pointer between them."""
    size = estimate_text(text)
    if size <= tokens:
        return text
    mark = _POINTER.format(seq)
    keep = max(len(text) * tokens // size, len(mark) + 40)
    short = cut_middle(text, keep, mark)
    while estimate_text(short) > tokens and keep > len(mark) + 40:
        keep = max(keep * 9 // 10, len(mark) + 40)
        short = cut_middle(text, keep, mark)
    return short


def _size(block: Block) -> int:
    """The tokens of what can be cut in a block."""
    return sum(estimate_text(text) for text in _texts(block))


def _texts(block: Block) -> list[str]:
    match block:
        case {"type": "text", "text": str(text)}:
            return [text]
        case {"type": "tool_use", "input": arguments}:
            return [value_text(arguments)]
        case {"type": "tool_result", "content": str(text)}:
            return [text]
        case {"type": "tool_result", "content": list(parts)}:
            return [text for part in parts for text in _texts(part)]
    return []


def _cut(block: Block, tokens: int, seq: int | None) -> Block:
    size = _size(block)
    if size <= tokens:
        return block
    match block:
        case {"type": "text", "text": str(text)}:
            return {**block, "text": cut_to(text, tokens, seq)}
        case {"type": "tool_use", "input": arguments}:
            return {**block, "input": _cut_input(arguments, tokens, seq)}
        case {"type": "tool_result", "content": str(text)}:
            return {**block, "content": cut_to(text, tokens, seq)}
        case {"type": "tool_result", "content": list(parts)}:
            cut = [_cut(part, tokens * _size(part) // size, seq) for part in parts]
            return {**block, "content": cut}
    return block


def _cut_input(arguments: Any, tokens: int, seq: int | None) -> dict[str, Any]:
    return {"arguments": cut_to(value_text(arguments), tokens, seq)}


_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")
_ID_LENGTH: Final = 64
_NAME_LENGTH: Final = 128
_SUFFIX: Final = 8


class ToolIds:
    """Gives each call of one view its id, in the order in which they are shown."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, call_id: str, seq: int) -> str:
        """An id for the call recorded at ``seq``: its call_id, if that can be."""
        legal = _legal(call_id, _ID_LENGTH)
        chosen, number = legal, 0
        while chosen in self._taken:
            suffix = f"_{seq}" if not number else f"_{seq}_{number}"
            chosen, number = legal[: _ID_LENGTH - len(suffix)] + suffix, number + 1
        self._taken.add(chosen)
        return chosen


def tool_name(name: str) -> str:
    """The name of a tool as the API takes it."""
    return _legal(name, _NAME_LENGTH) if name else "unnamed"


def _legal(text: str, length: int) -> str:
    """``text`` if it is legal; else made so, with a digest that keeps it apart."""
    clean = _ILLEGAL.sub("_", text)
    if clean == text and 0 < len(text) <= length:
        return text
    return f"{clean[: length - _SUFFIX - 1]}_{text_digest(text)[:_SUFFIX]}"


@dataclass(frozen=True, slots=True)
class Piece:
    """Blocks of one role, what they cost, and what they stand for."""

    role: Role
    blocks: Numbered
    tokens: int
    span: ViewSpan


@dataclass(frozen=True, slots=True)
class Press:
    """Turns exchanges into pieces.

    limit: the most tokens that one message may take.
    asked: the questions that human decisions may refer to, by their seq.
    cleared: whether a result is told as a stub, ``inputs``: its call without arguments.
    back:  the provider's own blocks that it is given back, by the response's seq.
    ids:   the tool ids given so far in this view.
    """

    limit: int
    asked: Mapping[int, str] = field(default_factory=dict)
    cleared: Callable[[Envelope], bool] = lambda _: False
    inputs: bool = False
    back: Mapping[int, Numbered] = field(default_factory=dict)
    ids: ToolIds = field(default_factory=ToolIds)

    def pieces(self, exchange: Exchange, *, partial: bool = False) -> list[Piece]:
        """The pieces of an exchange; none if it holds nothing to show.

        partial: the exchange may lack events that the log has, so a call without a
                 result is told as text: it may have one.
        """
        if isinstance(exchange[0].payload, AgentResponse | ToolCall):
            return self._response(exchange, partial=partial)
        (envelope,) = exchange
        if isinstance(envelope.payload, UserInput):
            blocks: Numbered = [
                (envelope.seq, block) for block in user_blocks(envelope.payload)
            ]
            return self._piece("user", blocks, exchange)
        entry = entry_of(envelope.payload, self.asked)
        if entry is None or not (entry.body.strip() or any(entry.attributes.values())):
            return []
        blocks = [(envelope.seq, text_block(entry.text(seq=envelope.seq)))]
        return self._piece(entry.role, blocks, exchange)

    def _response(self, events: Sequence[Envelope], *, partial: bool) -> list[Piece]:
        calls = _calls(events)
        told = [called for called in calls if partial and called.result is None]
        made = [called for called in calls if called not in told]
        ids = [self.ids.take(call.call_id, place.seq) for place, call, _ in made]
        blocks: Numbered = [
            *_said(events[0]),
            *(_told(called) for called in told),
            *(self._use(id_, called) for id_, called in zip(ids, made, strict=True)),
        ]
        blocks = [*_thought(events[0]), *blocks] if blocks else []
        back = self.back.get(events[0].seq, [])
        own = [event for event in events if not isinstance(event.payload, ToolResult)]
        pieces = self._piece("assistant", [*back, *blocks], own)
        if back and pieces:
            more = estimate([block for _, block in back])
            pieces[0] = replace(pieces[0], tokens=pieces[0].tokens + more)
        for id_, called in zip(ids, made, strict=True):
            pieces += self._answer(id_, called)
        return pieces

    def _answer(self, id_: str, called: Called) -> list[Piece]:
        if called.result is None:
            place = ViewSpan("raw", called.envelope.seq, called.envelope.seq)
            return [Piece("user", [(None, result_block(id_, None))], 0, place)]
        envelope, result = called.result
        if self.cleared(envelope):
            return [_cleared(id_, envelope)]
        block = result_block(id_, result)
        return self._piece("user", [(envelope.seq, block)], [envelope])

    def _use(self, id_: str, called: Called) -> tuple[int | None, Block]:
        call, result = called.call, called.result
        emptied = self.inputs and result is not None and self.cleared(result[0])
        return called.envelope.seq, {
            "type": "tool_use",
            "id": id_,
            "name": tool_name(call.tool_name),
            "input": {} if emptied else call_input(call.arguments),
        }

    def _piece(
        self, role: Role, blocks: Numbered, events: Sequence[Envelope]
    ) -> list[Piece]:
        if not blocks:
            return []
        tokens = sum(event.token_estimate for event in events)
        span = ViewSpan("raw", events[0].seq, events[-1].seq)
        if tokens > self.limit:
            shown = shorten(blocks, self.limit)
            if shown is not blocks:
                tokens, span = shown_tokens(shown), span._replace(kind="stub")
                blocks = shown
        return [Piece(role, blocks, tokens + MESSAGE_OVERHEAD, span)]


def given_back(rows: Sequence[Envelope], kinds: Collection[str]) -> dict[int, Numbered]:
    """The provider's own blocks of these types, by the seq of their response.

    Those of an event in which something was redacted are left out.
    """
    found: dict[int, Numbered] = {}
    if not kinds:
        return found
    response = None
    for envelope in rows:
        match envelope.payload:
            case AgentResponse():
                response = envelope.seq
            case ProviderEdit(blocks=blocks) if response and _as_it_came(envelope):
                kept = [
                    block
                    for block in blocks
                    if block.get("type") in kinds and _whole(block)
                ]
                if kept:
                    found[response] = [(envelope.seq, block) for block in kept]
    return found


class Called(NamedTuple):
    """A call where it is recorded, and its result where that is."""

    envelope: Envelope
    call: ToolCall
    result: tuple[Envelope, ToolResult] | None = None


def _calls(events: Sequence[Envelope]) -> list[Called]:
    calls: list[Called] = []
    waiting: dict[str, int] = {}
    for envelope in events:
        match envelope.payload:
            case ToolCall() as call:
                waiting[call.call_id] = len(calls)
                calls.append(Called(envelope, call))
            case ToolResult() as result:
                index = waiting.pop(result.call_id)
                calls[index] = calls[index]._replace(result=(envelope, result))
    return calls


def _whole(block: Mapping[str, object]) -> bool:
    """Whether the guard cut nothing out of it."""
    return not any("[refold: " in str(value) for value in block.values())


def _as_it_came(envelope: Envelope) -> bool:
    """Whether the redactor found nothing in it."""
    return not envelope.redaction.get("n")


def _thought(envelope: Envelope) -> Numbered:
    response = envelope.payload
    if not isinstance(response, AgentResponse):
        return []
    return [(envelope.seq, block) for block in thinking_blocks(response)]


def _said(envelope: Envelope) -> Numbered:
    """The response's text; the API takes none that ends in white space at the end."""
    response = envelope.payload
    if not isinstance(response, AgentResponse) or not response.text.strip():
        return []
    return [(envelope.seq, text_block(response.text.rstrip()))]


def _told(called: Called) -> tuple[int | None, Block]:
    entry = entry_of(called.call)
    seq = called.envelope.seq
    return seq, text_block(entry.text(seq=seq) if entry else called.call.tool_name)


def cleared_text(seq: int, tokens: int) -> str:
    """What stands for a result that is not shown any more, and how to read it."""
    return (
        f"[refold: the result at seq {seq}, about {tokens} tokens, was cleared here; "
        f"whole: session.events(after={seq - 1}, limit=1)]"
    )


def _cleared(id_: str, envelope: Envelope) -> Piece:
    text = cleared_text(envelope.seq, envelope.token_estimate)
    block: Block = {"type": "tool_result", "tool_use_id": id_, "content": text}
    span = ViewSpan("stub", envelope.seq, envelope.seq)
    tokens = estimate_text(text) + MESSAGE_OVERHEAD
    return Piece("user", [(envelope.seq, block)], tokens, span)


OPENING = "(The session begins with the agent.)"
ONWARD = "(The agent went on.)"
_THINKING = ("thinking", "redacted_thinking")


@dataclass(slots=True)
class Draft:
    """A message that still grows; by whole pieces.  Each block has its span."""

    role: Role
    blocks: Numbered = field(default_factory=list)
    spans: list[ViewSpan | None] = field(default_factory=list)


def assemble(pieces: Iterable[Piece]) -> list[Draft]:
    """Messages that start with the user and alternate.

    Thinking that would come behind other content of the agent is set off by a short
    user message, so that it need not be moved or dropped.
    """
    drafts: list[Draft] = []
    for piece in pieces:
        if not drafts and piece.role == "assistant":
            drafts.append(Draft("user", [(None, text_block(OPENING))], [None]))
        elif drafts and drafts[-1].role == piece.role == "assistant" and _thinks(piece):
            drafts.append(Draft("user", [(None, text_block(ONWARD))], [None]))
        if not drafts or drafts[-1].role != piece.role:
            drafts.append(Draft(piece.role))
        drafts[-1].blocks += piece.blocks
        drafts[-1].spans += [piece.span] * len(piece.blocks)
    return drafts


def insert(
    drafts: list[Draft],
    blocks: Sequence[Block],
    spans: Sequence[ViewSpan],
    user_seq: int | None,
) -> None:
    """Put what was handed in into the last user message.

    It stands before the newest user input if that is there, else after the results.
    """
    if not blocks:
        return
    if not any(draft.role == "user" for draft in drafts):
        drafts.append(Draft("user"))
    last = next(draft for draft in reversed(drafts) if draft.role == "user")
    seqs = [seq for seq, _ in last.blocks]
    if user_seq is not None and user_seq in seqs:
        at = seqs.index(user_seq)
    else:
        at = sum(block["type"] == "tool_result" for _, block in last.blocks)
    last.blocks[at:at] = [(None, block) for block in blocks]
    last.spans[at:at] = spans


def messages_of(drafts: Iterable[Draft]) -> list[Message]:
    """The drafts as the API takes them."""
    return [
        {"role": draft.role, "content": [block for _, block in draft.blocks]}
        for draft in drafts
    ]


def origins_of(drafts: Iterable[Draft]) -> tuple[tuple[Origin, ...], ...]:
    """For each draft, where each of its blocks is from."""
    return tuple(
        tuple(
            Origin(span, seq)
            for span, (seq, _) in zip(draft.spans, draft.blocks, strict=True)
        )
        for draft in drafts
    )


def _thinks(piece: Piece) -> bool:
    return bool(piece.blocks) and piece.blocks[0][1]["type"] in _THINKING
