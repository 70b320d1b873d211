"""Pieces become API messages: neighbours of one role merge, thinking stands first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from refold.projections.context.blocks import Block, Numbered, text_block
from refold.projections.context.entries import Role
from refold.projections.context.pieces import Piece
from refold.projections.context.view import Message, Origin, ViewSpan

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
