"""recursive_summary: a tree of summaries of exchanges."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import Field

from refold.projections.context import compaction
from refold.projections.context.compaction import Compaction, batch, oldest_units
from refold.projections.context.outline import Detail, Outline
from refold.projections.context.strategy import RULES, Pinning, distance


class RecursiveSummary(Pinning):
    """Summarize exchanges in batches, and fold neighboring summaries of one level.

    every:          the exchanges in a summary of the first level.  The last summary of
                    ``fan_in`` neighbors comes as soon as ``every`` exchanges are raw,
                    those of ``keep_last`` included, so that the neighbors can fold.
    keep_last:      the newest exchanges, which stay raw.
    fan_in:         the summaries of one level that fold into one of the next level.
    summary_tokens: the length of a summary of the first level.
    folded_tokens:  the length of a summary of a higher level.
    pin_tokens:     the most tokens of pinned exchanges after the summaries.
    """

    name: ClassVar[str] = "recursive_summary"
    version: ClassVar[int] = 8
    rules: ClassVar[int] = RULES
    needs: ClassVar[Detail] = "units"

    every: int = Field(default=10, ge=1)
    keep_last: int = Field(default=3, ge=1)
    fan_in: int = Field(default=2, ge=2)
    summary_tokens: int = Field(default=500, ge=1)
    folded_tokens: int = Field(default=800, ge=1)

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """Compact the oldest batch if there is one, or fold summaries."""
        if compaction.held_back(outline, now):
            return None
        older = len(outline.units) - self.keep_last
        if older >= self._batch_size(outline):
            decision = batch(
                outline,
                oldest_units(outline, min(self.every, older), at_most=older),
                target=self.summary_tokens,
                reason=f"{older} exchanges before the last {self.keep_last}",
            )
            if decision is not None:
                return decision
        return self._fold(outline)

    def waits_for(self, outline: Outline) -> str:
        """Return the number of older exchanges, and the size of a batch."""
        older = max(0, len(outline.units) - self.keep_last)
        size = self._batch_size(outline)
        return distance(self.name, older, "exchange", size, last=self.keep_last)

    def _batch_size(self, outline: Outline) -> int:
        """Return the number of older exchanges that make a batch."""
        smaller = self.every - self.keep_last
        neighbors = 0
        for summary in reversed(outline.summaries):
            if summary.level > 1:
                break
            neighbors += 1
        completes_fold = neighbors == self.fan_in - 1
        if completes_fold and smaller > self.keep_last:
            return smaller
        return self.every

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:
        """Fold neighboring summaries of one level while there are enough of them."""
        if compaction.held_back(outline, now):
            return None
        return self._fold(outline)

    def _fold(self, outline: Outline) -> Compaction | None:
        return compaction.side_by_side(
            outline, fan_in=self.fan_in, target=self.folded_tokens
        )
