"""recursive_summary: summaries of exchanges, folded level by level into a tree."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import Field

from refold.projections.context import compaction
from refold.projections.context.compaction import Compaction, batch, oldest_units
from refold.projections.context.outline import Detail, Outline
from refold.projections.context.strategy import Pinning, distance


class RecursiveSummary(Pinning):
    """Summarise exchanges in batches; side by side, summaries fold into the next level.

    every:          exchanges in a first-level summary of about ``summary_tokens``.
    keep_last:      so many of the newest exchanges stay raw.
    fan_in:         so many summaries of a level fold into one of about
                    ``folded_tokens`` of the next.
    pin_tokens:     what pinned exchanges may take behind the summaries.
    """

    name: ClassVar[str] = "recursive_summary"
    needs: ClassVar[Detail] = "units"

    every: int = Field(default=10, ge=1)
    keep_last: int = Field(default=3, ge=1)
    fan_in: int = Field(default=2, ge=2)
    summary_tokens: int = Field(default=500, ge=1)
    folded_tokens: int = Field(default=800, ge=1)

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """The oldest batch, once that many exchanges are behind the last ones."""
        if compaction.held_back(outline, now):
            return None
        older = len(outline.units) - self.keep_last
        units = oldest_units(outline, self.every) if older >= self.every else ()
        reason = f"{older} exchanges before the last {self.keep_last}"
        made = batch(outline, units, target=self.summary_tokens, reason=reason)
        return made or self._fold(outline)

    def waits_for(self, outline: Outline) -> str:
        """How many exchanges are before the last ones, and how many are a batch."""
        older = max(0, len(outline.units) - self.keep_last)
        return distance(self.name, older, "exchange", self.every, last=self.keep_last)

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:
        """Folds, as long as summaries of one level stand side by side."""
        return None if compaction.held_back(outline, now) else self._fold(outline)

    def _fold(self, outline: Outline) -> Compaction | None:
        fan_in, target = self.fan_in, self.folded_tokens
        return compaction.side_by_side(outline, fan_in=fan_in, target=target)
