"""Where a context may be cut: never between what belongs together."""

from __future__ import annotations

from collections.abc import Sequence

from refold.projections.context.compaction import Compaction
from refold.projections.context.outline import Outline
from refold.projections.context.outline_parts import LiveSummary, Turn, Unit


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


def batch(
    outline: Outline,
    units: Sequence[Unit],
    *,
    target: int,
    reason: str,
    absorbs: Sequence[LiveSummary] = (),
    level: int = 1,
) -> Compaction | None:
    """The compaction of these oldest exchanges, and of the summaries it absorbs."""
    if not units:
        return None
    rest = outline.units[len(units) :]
    first = absorbs[0].first if absorbs else _begin(outline)
    return Compaction(
        first_seq=first,
        last_seq=rest[0].first - 1,
        target_tokens=target,
        decided_at_seq=outline.through_seq,
        tokens_before=sum(unit.tokens for unit in units)
        + sum(summary.tokens for summary in absorbs),
        reason=reason,
        turns=sum(unit.type == "user_input" for unit in units),
        level=level,
        absorbs=tuple(summary.seq for summary in absorbs),
        goes_on=rest[0].type != "user_input",
    )


def _begin(outline: Outline) -> int:
    span = outline.raw_span
    return outline.units[0].first if span is None else span[0]


def oldest_units(outline: Outline, wish: int) -> tuple[Unit, ...]:
    """The oldest exchanges that are not compacted, ``wish`` or as many as may go.

    The cut is moved as it is for turns.  The newest exchange never goes.
    """
    units = outline.units
    for count in range(min(wish, len(units) - 1), 0, -1):
        cut = units[count].first - 1
        whole = all(unit.last <= cut for unit in units[:count])
        if whole and outline.waiting.allows(cut):
            return units[:count]
    return ()
