"""Other ways to tell a summary than as text of the user's."""

from __future__ import annotations

from refold.domain.events import Summary
from refold.domain.tokens import MESSAGE_OVERHEAD, estimate_text
from refold.projections.context.blocks import text_block
from refold.projections.context.outline_parts import LiveSummary
from refold.projections.context.pieces import Piece
from refold.projections.context.source import summary_text
from refold.projections.context.view import ViewSpan

TOOL = "memory_compress"
_BEGIN = "===== EARLIER CONVERSATION, COMPRESSED ====="
_END = "===== END OF THE COMPRESSED CONVERSATION ====="


def as_tool(live: LiveSummary, summary: Summary) -> list[Piece]:
    """The summary as what a call of ``memory_compress`` returned."""
    id_ = f"toolu_refold_{live.seq}"
    use = {"type": "tool_use", "id": id_, "name": TOOL, "input": {}}
    text = f"{_BEGIN}\n{summary_text(summary)}\n{_END}"
    result = {"type": "tool_result", "tool_use_id": id_, "content": text}
    span = ViewSpan("summary", live.first, live.last, live.seq)
    tokens = live.tokens + 2 * MESSAGE_OVERHEAD
    return [
        Piece("assistant", [(None, use)], 0, span),
        Piece("user", [(None, result)], tokens, span),
    ]


def acknowledged(text: str, live: LiveSummary) -> Piece:
    """What the agent answers to the summaries, so that the next input is the user's."""
    span = ViewSpan("summary", live.first, live.last, live.seq)
    tokens = estimate_text(text) + MESSAGE_OVERHEAD
    return Piece("assistant", [(None, text_block(text))], tokens, span)
