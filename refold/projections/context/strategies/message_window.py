"""message_window: batches of messages before a tail, with cooldown and hard limit."""

from __future__ import annotations

from datetime import datetime
from itertools import accumulate
from typing import ClassVar

from pydantic import Field, model_validator

from refold.domain.envelope import from_microseconds, microseconds
from refold.projections.context import compaction, strategy
from refold.projections.context.compaction import Compaction, batch, oldest_units
from refold.projections.context.outline import Detail, Outline
from refold.projections.context.strategy import Pinning, Shown


class MessageWindow(Pinning):
    """Keep a tail of messages raw; summarise what is before it in batches.

    context_size:             the most raw messages sent; while compactions fail, older
                              ones are left out, and how many is said.
    compression_window_size:  so many messages before the tail are a batch.
    tail_keep_size:           how many of the newest messages stay raw.
    compression_cooldown_sec: after so long any number of them is a batch.
    compression_hard_limit:   so many are tried once even right after a failure, and
                              then after the cooldown at the latest.
    summary_tokens:           how long the summary of one batch may be.
    session_memory_tokens:    what all summaries may cost before the oldest fold.
    pin_tokens:               what pinned exchanges may take behind the summaries.
    """

    name: ClassVar[str] = "message_window"
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
        """What is before the tail, if it is many, or the last batch is long ago."""
        delta = self._delta(outline)
        held = compaction.held_back(outline, now, at_most=self.compression_cooldown_sec)
        # Right after a failure it is tried once more, not with every message.
        if held and (delta < self.compression_hard_limit or outline.failures > 1):
            return None
        if reason := self._reason(outline, delta, now):
            sums = accumulate(unit.messages for unit in outline.units)
            units = oldest_units(outline, sum(total <= delta for total in sums))
            if units:
                return batch(outline, units, target=self.summary_tokens, reason=reason)
        return self._fold(outline)

    def waits_for(self, outline: Outline) -> str:
        """How many messages are before the tail, and how many are a batch."""
        delta, last = max(0, self._delta(outline)), self.tail_keep_size
        return strategy.distance(self.name, delta, "message", self._least, last=last)

    @property
    def _least(self) -> int:
        return min(self.compression_window_size, self.compression_hard_limit)

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:
        """A fold of the two oldest summaries, as long as all exceed their budget."""
        return None if compaction.held_back(outline, now) else self._fold(outline)

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:  # noqa: ARG002  # a fixed time
        """When the cooldown ends, if anything is before the tail."""
        since_ = self._since(outline)
        if self._delta(outline) <= 0 or since_ is None:
            return None
        return from_microseconds(since_ + self.compression_cooldown_sec * 1_000_000)

    def show(self, outline: Outline) -> Shown:
        """The newest messages; those over ``context_size`` are left out and counted."""
        count = 0
        for index in range(len(outline.units) - 1, -1, -1):
            count += outline.units[index].messages
            if count > self.context_size and index + 1 < len(outline.units):
                return strategy.since(outline, index + 1)
        return strategy.everything(outline)

    def _delta(self, outline: Outline) -> int:
        return outline.messages - self.tail_keep_size - outline.compacted_messages

    def _since(self, outline: Outline) -> int | None:
        at = outline.compacted_at
        return outline.began_at if at is None else at

    def _reason(self, outline: Outline, delta: int, now: datetime) -> str:
        if delta <= 0:
            return ""
        least, cooldown = self._least, self.compression_cooldown_sec
        if delta >= least:
            return f"{delta} messages before the tail, {least} are a batch"
        since_ = self._since(outline)
        if since_ is not None and microseconds(now) - since_ >= cooldown * 1_000_000:
            return f"{delta} messages before the tail, no batch for {cooldown} s"
        return ""

    def _fold(self, outline: Outline) -> Compaction | None:
        most, target = self.session_memory_tokens, self.summary_tokens
        return compaction.over_budget(outline, budget=most, target=target)
