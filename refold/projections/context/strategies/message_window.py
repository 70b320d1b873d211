"""message_window: summarizes messages before a tail in batches, with a cooldown."""

from __future__ import annotations

from datetime import datetime
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
    compression_window_size:  the number of messages before the tail that make a batch.
    tail_keep_size:           the number of messages in the tail.
    compression_cooldown_sec: the seconds since the last batch after which any number of
                              messages makes a batch.
    compression_hard_limit:   with this number of messages before the tail, the first
                              retry after a failure does not wait.  Later retries wait,
                              at most for the cooldown.
    summary_tokens:           the length of the summary of a batch.
    session_memory_tokens:    when all summaries have more tokens than this, the two
                              oldest are folded into one.
    pin_tokens:               the most tokens of pinned exchanges, which stay raw after
                              the summaries.
    """

    name: ClassVar[str] = "message_window"
    version: ClassVar[int] = 8
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
        waits_after_failure = compaction.held_back(
            outline, now, at_most=self.compression_cooldown_sec
        )
        if waits_after_failure:
            is_urgent = before_tail >= self.compression_hard_limit
            is_first_retry = outline.failures == 1
            if not (is_urgent and is_first_retry):
                return None
        reason = self._reason(outline, before_tail, now)
        if reason:
            units = oldest_units(outline, _units_within(outline, before_tail))
            if units:
                return batch(outline, units, target=self.summary_tokens, reason=reason)
        return self._fold(outline)

    def waits_for(self, outline: Outline) -> str:
        """Say how many messages are before the tail, and how many make a batch."""
        return strategy.distance(
            self.name,
            max(0, self._before_tail(outline)),
            "message",
            self._batch_size,
            last=self.tail_keep_size,
        )

    @property
    def _batch_size(self) -> int:
        """The number of messages before the tail that make a batch.

        A batch at the hard limit is never too small.
        """
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
        """Show the newest messages, at most ``context_size``, and count the others.

        The newest exchange is always shown.
        """
        messages = 0
        for index in range(len(outline.units) - 1, -1, -1):
            messages += outline.units[index].messages
            is_newest = index + 1 == len(outline.units)
            if messages > self.context_size and not is_newest:
                return strategy.since(outline, index + 1)
        return strategy.everything(outline)

    def _before_tail(self, outline: Outline) -> int:
        """Return the number of raw messages before the tail; negative if not full."""
        return outline.messages - self.tail_keep_size - outline.compacted_messages

    def _cooldown_begins(self, outline: Outline) -> int | None:
        """Return the time of the last compaction, or of the first event without one."""
        if outline.compacted_at is None:
            return outline.began_at
        return outline.compacted_at

    def _reason(self, outline: Outline, before_tail: int, now: datetime) -> str:
        """Return the reason for a batch, or an empty text."""
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
        """Fold the two oldest summaries if all summaries exceed their budget."""
        return compaction.over_budget(
            outline, budget=self.session_memory_tokens, target=self.summary_tokens
        )


def _units_within(outline: Outline, messages: int) -> int:
    """Return how many of the oldest exchanges have at most this many messages."""
    count = 0
    total = 0
    for unit in outline.units:
        total += unit.messages
        if total > messages:
            break
        count += 1
    return count
