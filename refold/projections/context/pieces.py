"""Exchanges as pieces of API messages, before neighbours of one role are merged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentResponse,
    ProviderEdit,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.domain.tokens import MESSAGE_OVERHEAD, estimate, estimate_text
from refold.projections.context.blocks import (
    Block,
    Numbered,
    call_input,
    result_block,
    text_block,
    thinking_blocks,
    user_blocks,
)
from refold.projections.context.entries import Role, entry_of
from refold.projections.context.exchanges import Exchange
from refold.projections.context.shorten import shorten, shown_tokens
from refold.projections.context.tool_ids import ToolIds, tool_name
from refold.projections.context.view import ViewSpan


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
        if exchange.kind == "response":
            return self._response(exchange.events, partial=partial)
        (envelope,) = exchange.events
        if isinstance(envelope.payload, UserInput):
            blocks: Numbered = [
                (envelope.seq, block) for block in user_blocks(envelope.payload)
            ]
            return self._piece("user", blocks, exchange.events)
        entry = entry_of(envelope.payload, self.asked)
        if entry is None or not (entry.body.strip() or any(entry.attributes.values())):
            return []
        blocks = [(envelope.seq, text_block(entry.text(seq=envelope.seq)))]
        return self._piece(entry.role, blocks, exchange.events)

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
