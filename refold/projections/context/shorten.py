"""A message too large for its window: head, tail, and where the rest is."""

from __future__ import annotations

from typing import Any

from refold.domain.tokens import estimate, estimate_text
from refold.projections.context.blocks import Block, Numbered
from refold.projections.context.tags import cut_middle, value_text

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
