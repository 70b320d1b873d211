"""message_window: summarizes messages before a tail in batches, with a cooldown."""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime
from itertools import accumulate
from typing import ClassVar

from pydantic import Field, model_validator

from refold.domain.envelope import from_microseconds, microseconds
from refold.projections.context import compaction, strategy
from refold.projections.context.compaction import Compaction, batch, oldest_units
from refold.projections.context.outline import Detail, Outline
from refold.projections.context.strategy import RULES, Pinning, Shown


class MessageWindow(Pinning):
    """Keep a tail of messages raw, and summarize older ones in batches.

    context_size:             the most raw messages in a view.  If compactions fail,
                              older ones are left out, and a note counts them.
    compression_window_size:  the messages before the tail that make a batch.
    tail_keep_size:           the messages of the tail.
    compression_cooldown_sec: the seconds since the last batch after which any number of
                              messages makes a batch.
    compression_hard_limit:   the messages before the tail that allow one attempt right
                              after a failure; later attempts wait for the usual delay,
                              at most for the cooldown.
    summary_tokens:           the length of the summary of a batch.
    session_memory_tokens:    the most tokens of all summaries before the oldest fold.
    pin_tokens:               the most tokens of pinned exchanges behind the summaries.
    """

    name: ClassVar[str] = "message_window"
    version: ClassVar[int] = 3
    rules: ClassVar[int] = RULES
    needs: ClassVar[Detail] = "units"

    context_size: int = Field(default=75, ge=1)
    compression_window_size: int = Field(default=12, ge=1)
    tail_keep_size: int = Field(default=40, ge=1)
    compression_cooldown_sec: int = Field(default=900, ge=0)
    compression_hard_limit: int = Field(default=30, ge=1)
    summary_tokens: int = Field(default=600, ge=1)
    session_memory_tokens: int = Field(default=8_000, ge=1)

    @model_validator(mode="after")
    def _tail_fits(self) -> MessageWindow:
        if self.tail_keep_size >= self.context_size:
            raise ValueError("tail_keep_size must be less than context_size")
        return self

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """Compact a batch before the tail, or fold the oldest summaries."""
        before_tail = self._before_tail(outline)
        is_held_back = compaction.held_back(
            outline, now, at_most=self.compression_cooldown_sec
        )
        if is_held_back:
            is_urgent = before_tail >= self.compression_hard_limit
            if not is_urgent or outline.failures > 1:
                return None
        reason = self._reason(outline, before_tail, now)
        if reason:
            totals = accumulate(unit.messages for unit in outline.units)
            wish = bisect_right(list(totals), before_tail)
            units = oldest_units(outline, wish)
            if units:
                return batch(outline, units, target=self.summary_tokens, reason=reason)
        return self._fold(outline)

    def waits_for(self, outline: Outline) -> str:
        """Return the number of messages before the tail, and the size of a batch."""
        return strategy.distance(
            self.name,
            max(0, self._before_tail(outline)),
            "message",
            self._batch_size,
            last=self.tail_keep_size,
        )

    @property
    def _batch_size(self) -> int:
        return min(self.compression_window_size, self.compression_hard_limit)

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:
        """Fold the two oldest summaries while all summaries exceed their budget."""
        if compaction.held_back(outline, now):
            return None
        return self._fold(outline)

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:  # noqa: ARG002  # a fixed time
        """Return the end of the cooldown, if there are messages before the tail."""
        cooldown_begins = self._cooldown_begins(outline)
        if self._before_tail(outline) <= 0 or cooldown_begins is None:
            return None
        cooldown = self.compression_cooldown_sec * 1_000_000
        return from_microseconds(cooldown_begins + cooldown)

    def show(self, outline: Outline) -> Shown:
        """Show the newest messages, and count those over ``context_size``."""
        messages = 0
        for index in range(len(outline.units) - 1, -1, -1):
            messages += outline.units[index].messages
            is_newest = index + 1 == len(outline.units)
            if messages > self.context_size and not is_newest:
                return strategy.since(outline, index + 1)
        return strategy.everything(outline)

    def _before_tail(self, outline: Outline) -> int:
        """The number of raw messages before the tail; negative if it is not full."""
        return outline.messages - self.tail_keep_size - outline.compacted_messages

    def _cooldown_begins(self, outline: Outline) -> int | None:
        """The time of the last compaction, or of the first event without one."""
        if outline.compacted_at is None:
            return outline.began_at
        return outline.compacted_at

    def _reason(self, outline: Outline, before_tail: int, now: datetime) -> str:
        """The reason for a batch, or an empty text."""
        if before_tail <= 0:
            return ""
        size = self._batch_size
        if before_tail >= size:
            return f"{before_tail} messages before the tail, {size} are a batch"
        cooldown_begins = self._cooldown_begins(outline)
        if cooldown_begins is None:
            return ""
        cooldown = self.compression_cooldown_sec
        if microseconds(now) - cooldown_begins >= cooldown * 1_000_000:
            return f"{before_tail} messages before the tail, no batch for {cooldown} s"
        return ""

    def _fold(self, outline: Outline) -> Compaction | None:
        return compaction.over_budget(
            outline, budget=self.session_memory_tokens, target=self.summary_tokens
        )
