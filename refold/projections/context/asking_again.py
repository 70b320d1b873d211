"""Asking a strategy again what it decided once: whether and by which rule it would."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from refold.domain.events import Summary
from refold.projections.context.compaction import Compaction
from refold.projections.context.outline import Outline
from refold.projections.context.strategy import Strategy


class Asked(NamedTuple):
    """What a strategy says when it is asked again what it decided once.

    same:   whether it is the compaction that was recorded.
    reason: the rule that made it due, with its numbers.
    clock:  the time it was asked at; ``clock_mattered`` is whether it decides otherwise
            at another.
    """

    same: bool
    reason: str = ""
    clock: datetime | None = None
    clock_mattered: bool = False
    decided: Compaction | None = None


def ask_again(
    strategy: Strategy, outline: Outline, summary: Summary, clocks: Sequence[datetime]
) -> Asked:
    """Ask for the compaction that ``summary`` records, with the outline it rests on.

    clocks: the times at which it may have been decided, the likeliest first; it is
            then asked a day before and after them, to learn whether time matters.
    """
    asked = ((now, _same(strategy, outline, summary, now)) for now in clocks)
    same = [(now, made) for now, made in asked if made]
    if not same:
        decided = strategy.decide(outline, clocks[0]) if clocks else None
        reason = decided.reason if decided else ""
        return Asked(False, reason, clocks[0] if clocks else None, decided=decided)
    now, made = same[0]
    day = timedelta(days=1)
    probes = (*clocks, min(clocks) - day, max(clocks) + day)
    mattered = not all(_same(strategy, outline, summary, other) for other in probes)
    return Asked(True, made.reason, now, mattered, made)


def _same(
    strategy: Strategy, outline: Outline, summary: Summary, now: datetime
) -> Compaction | None:
    """What the strategy decides now, if that is what ``summary`` records."""
    for ask in (strategy.decide, strategy.follow_up):
        made = ask(outline, now)
        if made is not None and _recorded(made) == _decided(summary):
            return made
    return None


def _recorded(made: Compaction) -> tuple[object, ...]:
    span = (made.first_seq, made.last_seq, made.decided_at_seq)
    return (*span, made.absorbs, made.level, made.omitted, made.tokens_before)


def _decided(summary: Summary) -> tuple[object, ...]:
    span = (summary.first_seq, summary.last_seq, summary.decided_at_seq)
    more = (summary.level, summary.omitted, summary.tokens_before)
    return (*span, summary.absorbs, *more)
