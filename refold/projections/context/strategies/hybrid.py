"""hybrid: everything, then key events, then summaries, by thresholds of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import cached_property
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from refold.domain.envelope import from_microseconds, microseconds
from refold.domain.errors import counted
from refold.projections.context import compaction, strategy
from refold.projections.context.compaction import Compaction, batch, oldest_units
from refold.projections.context.outline import Outline
from refold.projections.context.strategies.recursive_summary import RecursiveSummary
from refold.projections.context.strategy import Manner, Shown, Weighed
from refold.projections.context.units import Unit

KEY_EVENTS = frozenset(
    {"user_input", "tool_result", "aggregate", "final", "error", "hitl"}
)

_AT_ONCE = 8  # times as many exchanges, where more than twice as many are due
_SAID = frozenset({"agent_response", "tool_call"})


class Hybrid(RecursiveSummary, Weighed):
    """Send all while it is little, key events while it is more, else summaries.

    threshold_low:    from so many tokens on, only key events and plans are sent raw.
    threshold_high:   from so many on, older exchanges are summarised.
    last_n_events:    how many of the newest key events (user inputs, results,
                      aggregates, finals, errors, human decisions) are sent: behind
                      summaries too, as far as they take half of threshold_low, if
                      tokens are the trigger.
    last_n_plans:     how many of the newest plans, likewise.
    keep_last:        so many of the newest exchanges are never summarised.
    trigger:          what makes a summary due: ``tokens`` (threshold_high), ``count``
                      (``trigger_count`` events), ``idle`` (nothing new for
                      ``trigger_idle_sec`` seconds) or ``event`` (one of the type
                      ``trigger_event`` came).
    summary_model:    the model to ask, if the summarizer asks one; None: its own.
    every, fan_in, summary_tokens, folded_tokens: of the tree of summaries, as in
                      ``recursive_summary``.
    pin_tokens:       what pinned exchanges may take behind the summaries.
    model, weight:    count tokens as this model does, or so many times as estimated.
    """

    name: ClassVar[str] = "hybrid"
    stable_prefix: ClassVar[bool] = False

    threshold_low: int = Field(default=4_000, ge=1)
    threshold_high: int = Field(default=8_000, ge=1)
    last_n_events: int = Field(default=40, ge=1)
    last_n_plans: int = Field(default=3, ge=0)
    trigger: Literal["tokens", "count", "idle", "event"] = "tokens"
    trigger_count: int = Field(default=100, ge=1)
    trigger_idle_sec: int = Field(default=600, ge=1)
    trigger_event: str = "final"
    summary_model: str | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Hybrid:
        if self.threshold_low >= self.threshold_high:
            raise ValueError("threshold_low must be less than threshold_high")
        return self

    @cached_property
    def manner(self) -> Manner:
        """With the model to ask for summaries."""
        return Manner(pin_tokens=self.pin_tokens, model=self.summary_model)

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """The oldest exchanges, if the trigger says so."""
        if compaction.held_back(outline, now):
            return None
        reason = self._reason(outline, now)
        return (self._batch(outline, reason) if reason else None) or self._fold(outline)

    def waits_for(self, outline: Outline) -> str:
        """How far its trigger is."""
        if self.trigger == "idle":
            wait = counted(self.trigger_idle_sec, "second")
            return f"{self.name} compacts after {wait} without an event"
        if self.trigger == "event":
            return f"{self.name} compacts after an event {self.trigger_event}"
        return strategy.distance(self.name, *self._reached(outline))

    def _reached(self, outline: Outline) -> tuple[int, str, int]:
        """How much there is, of what, and at how much it is due."""
        if self.trigger == "tokens":
            return self.weighed(outline.tokens), "token", self.threshold_high
        count = sum(1 + unit.results for unit in outline.units)
        return count, "event", self.trigger_count

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:
        """The next batch of the same check, then folds of neighbours."""
        if compaction.held_back(outline, now):
            return None
        return self._batch(outline, "more of the same check") or self._fold(outline)

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:  # noqa: ARG002  # a fixed time
        """When the session has been idle for long enough."""
        if self.trigger != "idle" or len(outline.units) <= self.keep_last:
            return None
        idle = self.trigger_idle_sec * 1_000_000
        return from_microseconds(outline.units[-1].at + idle)

    def show(self, outline: Outline) -> Shown:
        """Everything below the lower threshold, from there on what is key."""
        if self.weighed(outline.tokens) < self.threshold_low:
            return strategy.everything(outline)
        kept = (span for unit in self._kept(outline.units) for span in unit.seqs)
        return Shown(strategy.with_input(outline, tuple(kept)))

    def _kept(self, units: tuple[Unit, ...]) -> Iterator[Unit]:
        """Key events and plans, and responses after the oldest key event."""
        key = plans = 0
        for unit in reversed(units):
            more = unit.results + (unit.type in KEY_EVENTS and not unit.results)
            if unit.type == "planner":
                plans += 1
                if plans <= self.last_n_plans:
                    yield unit
            elif key < self.last_n_events and (more or unit.type in _SAID):
                key += more
                yield unit

    def _reason(self, outline: Outline, now: datetime) -> str:
        units, idle = outline.units, self.trigger_idle_sec
        match self.trigger:
            case "tokens" | "count":
                count, what, limit = self._reached(outline)
                due, much = count >= limit, "high" if what == "token" else "due"
                reason = f"{count} {what}s, {limit} are {much}"
            case "idle":
                waited = microseconds(now) - units[-1].at if units else -1
                due = waited >= idle * 1_000_000
                reason = f"nothing new for {idle} s"
            case "event":
                due = any(unit.type == self.trigger_event for unit in units)
                reason = f"a {self.trigger_event} came"
        return reason if due else ""

    def _batch(self, outline: Outline, reason: str) -> Compaction | None:
        older = self._older(outline.units)
        # One that was away for long is caught up with by few summaries, not by many.
        at_once = self.every * (_AT_ONCE if older > 2 * self.every else 1)
        units = oldest_units(outline, min(older, at_once)) if older > 0 else ()
        return batch(outline, units, target=self.summary_tokens, reason=reason)

    def _older(self, units: tuple[Unit, ...]) -> int:
        """How many exchanges come before those that stay raw."""
        kept = {unit.first for unit in self._kept(units)}
        tokens, place, last = 0, len(units), len(units) - self.keep_last
        while self.trigger == "tokens" and place and units[place - 1].first in kept:
            tokens += units[place - 1].tokens
            if self.weighed(tokens) >= self.threshold_low / 2:
                break
            place -= 1
        return min(place, last)
