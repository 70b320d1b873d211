"""Summaries fold into summaries of the next level, so that memory keeps its budget."""

from __future__ import annotations

from itertools import groupby

from refold.projections.context.compaction import Compaction
from refold.projections.context.outline import Outline
from refold.projections.context.outline_parts import LiveSummary


def over_budget(outline: Outline, *, budget: int, target: int) -> Compaction | None:
    """A fold of the two oldest summaries, if all together cost more than ``budget``."""
    total = outline.summary_tokens
    if total <= budget or len(outline.summaries) < 2:
        return None
    return _fold(
        outline,
        outline.summaries[:2],
        min(target, budget),
        f"{total} tokens of summaries, at most {budget}",
    )


def side_by_side(outline: Outline, *, fan_in: int, target: int) -> Compaction | None:
    """A fold of the oldest ``fan_in`` summaries of one level that are neighbours."""
    for level, run in groupby(outline.summaries, lambda summary: summary.level):
        alike = list(run)
        if len(alike) >= fan_in:
            reason = f"{len(alike)} summaries of level {level}, {fan_in} are folded"
            return _fold(outline, alike[:fan_in], target, reason)
    return None


def _fold(
    outline: Outline,
    summaries: list[LiveSummary] | tuple[LiveSummary, ...],
    target: int,
    reason: str,
) -> Compaction:
    return Compaction(
        first_seq=summaries[0].first,
        last_seq=summaries[-1].last,
        target_tokens=target,
        decided_at_seq=outline.through_seq,
        tokens_before=sum(summary.tokens for summary in summaries),
        reason=reason,
        level=max(summary.level for summary in summaries) + 1,
        absorbs=tuple(summary.seq for summary in summaries),
    )
