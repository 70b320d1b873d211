"""Where a context may be cut: never between what belongs together."""

from __future__ import annotations

from refold.projections.context.outline import Outline
from refold.projections.context.outline_parts import Turn


def oldest_turns(outline: Outline, wish: int) -> tuple[Turn, ...]:
    """The oldest turns that are not compacted, ``wish`` of them or as many as may go.

    The cut behind them moves to the older side until it parts no result from its call
    and no decision from its question.  A call without a result, or a question without
    a decision, does not move it: its exchange goes whole, and stays raw behind the
    summary.  The newest turn never goes.
    """
    for count in range(min(wish, len(outline.past)), 0, -1):
        if outline.waiting.allows(outline.past[count - 1].last):
            return outline.past[:count]
    return ()
