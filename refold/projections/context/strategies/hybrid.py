"""hybrid: all events, key events, or summaries, by two thresholds of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import ClassVar, Final, Literal

from pydantic import Field, model_validator

from refold.domain.envelope import from_microseconds, microseconds
from refold.domain.errors import counted
from refold.domain.events import Span
from refold.domain.locks import computed_once
from refold.projections.context import compaction, strategy
from refold.projections.context.compaction import Compaction, batch, oldest_units
from refold.projections.context.outline import Outline
from refold.projections.context.strategies.recursive_summary import RecursiveSummary
from refold.projections.context.strategy import RULES, Manner, Shown, Weighed
from refold.projections.context.units import Unit

KEY_EVENTS = frozenset(
    {"user_input", "tool_result", "aggregate", "final", "error", "hitl", "system"}
)

# The factor of a batch's size if more than two batches are pending.
_CATCH_UP_FACTOR: Final = 8
_RESPONSE_TYPES: Final = frozenset({"agent_response", "tool_call"})
# From these rules on, what stays raw after a compaction never triggers the next one.
_RULES_WITH_NEW_TRIGGERS: Final = 4


class Hybrid(RecursiveSummary, Weighed):
    """Show all events of a short session, key events of a longer one, then summarize.

    threshold_low:    from this number of tokens on, views show only key events and
                      plans.
    threshold_high:   from this number of tokens on, older exchanges are summarized.
    last_n_events:    the number of newest key events (user inputs, results, aggregates,
                      finals, errors, human decisions, texts of the system in the
                      conversation) that views show.  With the trigger ``tokens``, the
                      newest of them are not summarized either, while they have fewer
                      tokens than threshold_low, or than half of threshold_high if that
                      is less, and the events between them fewer than half of that.
    last_n_plans:     the number of newest plans that views show.
    keep_last:        the number of newest exchanges that are never summarized.
    trigger:          the cause of a compaction: ``tokens`` (threshold_high), ``count``
                      (``trigger_count`` events), ``idle`` (no event for
                      ``trigger_idle_sec`` seconds), or ``event`` (an event of the type
                      ``trigger_event``).
    summary_model:    the model for summaries; None uses the summarizer's own.
    every, fan_in, summary_tokens, folded_tokens: the tree of summaries, as in
                      ``recursive_summary``.
    pin_tokens:       the most tokens of pinned exchanges after the summaries.
    model, weight:    the model whose tokens are counted, or the factor of the estimate.
    """

    name: ClassVar[str] = "hybrid"
    version: ClassVar[int] = 8
    rules: ClassVar[int] = RULES
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
    def _check_thresholds(self) -> Hybrid:
        if self.threshold_low >= self.threshold_high:
            raise ValueError("threshold_low must be less than threshold_high")
        return self

    @computed_once
    def manner(self) -> Manner:
        """Return how summaries are made: the pinned tokens and the model."""
        return Manner(pin_tokens=self.pin_tokens, model=self.summary_model)

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """Compact the oldest exchanges if the trigger fires, or fold summaries."""
        if compaction.held_back(outline, now):
            return None
        reason = self._reason(outline, now)
        if reason:
            decision = self._batch(outline, reason)
            if decision is not None:
                return decision
        return self._fold(outline)

    def waits_for(self, outline: Outline) -> str:
        """Return how far away the trigger is."""
        if self.trigger == "idle":
            wait = counted(self.trigger_idle_sec, "second")
            return f"{self.name} compacts after {wait} without an event"
        if self.trigger == "event":
            return f"{self.name} compacts after an event of type {self.trigger_event}"
        if self.trigger == "tokens":
            tokens = self.weighed(outline.tokens)
            return strategy.distance(self.name, tokens, "token", self.threshold_high)
        count = _count_events(outline.units)
        return strategy.distance(self.name, count, "event", self.trigger_count)

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:
        """Continue the compaction that was decided last, else fold neighbors."""
        if compaction.held_back(outline, now):
            return None
        has_no_new_events = outline.decided_at == outline.through_seq
        decision = None
        if has_no_new_events:
            decision = self._batch(outline, "next batch of the same compaction")
        return decision or self._fold(outline)

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:  # noqa: ARG002  # a fixed time
        """Return the time at which the session will have been idle long enough."""
        if self.trigger != "idle" or len(outline.units) <= self.keep_last:
            return None
        idle = self.trigger_idle_sec * 1_000_000
        return from_microseconds(outline.units[-1].at + idle)

    def show(self, outline: Outline) -> Shown:
        """Show all events of a session below threshold_low, else its key events."""
        if self.weighed(outline.tokens) < self.threshold_low:
            return strategy.everything(outline)
        raw: list[Span] = []
        for unit in self._key_units(outline.units):
            raw += unit.seqs
        return Shown(strategy.with_input(outline, tuple(raw)))

    def _key_units(self, units: tuple[Unit, ...]) -> Iterator[Unit]:
        """Yield the units with key events, plans, and responses, the newest first.

        Nothing older than the key event that reaches ``last_n_events`` is shown, except
        plans.  A unit with several results counts as several key events.
        """
        events_left = self.last_n_events
        plans_left = self.last_n_plans
        for unit in reversed(units):
            if unit.type == "planner":
                if plans_left > 0:
                    plans_left -= 1
                    yield unit
            elif events_left > 0:
                key_events = unit.results
                if not key_events and unit.type in KEY_EVENTS:
                    key_events = 1
                if key_events or unit.type in _RESPONSE_TYPES:
                    events_left -= key_events
                    yield unit

    def _reason(self, outline: Outline, now: datetime) -> str:
        """Return the reason for a compaction, or an empty text."""
        units = outline.units
        match self.trigger:
            case "tokens":
                tokens = self.weighed(outline.tokens)
                if tokens >= self.threshold_high:
                    return f"{tokens} tokens, the threshold is {self.threshold_high}"
            case "count":
                count = _count_events(units)
                if count >= self.trigger_count:
                    return f"{count} events, the threshold is {self.trigger_count}"
            case "idle":
                seconds = self.trigger_idle_sec
                if units and microseconds(now) - units[-1].at >= seconds * 1_000_000:
                    return f"no event for {seconds} s"
            case "event":
                if any(self._triggers(outline, unit) for unit in units):
                    return f"an event of type {self.trigger_event} came"
        return ""

    def _triggers(self, outline: Outline, unit: Unit) -> bool:
        """Whether a unit is the event that the trigger waits for.

        An event that stays raw after a compaction does not trigger the next one.
        """
        if unit.type != self.trigger_event:
            return False
        if self.rules < _RULES_WITH_NEW_TRIGGERS or outline.decided_at is None:
            return True
        return unit.first > outline.decided_at

    def _batch(self, outline: Outline, reason: str) -> Compaction | None:
        """Return the compaction of the oldest units, or None if all stay raw."""
        older = self._count_older(outline.units)
        if older <= 0:
            return None
        preferred = self.every
        if older > 2 * self.every:
            # A session with a long backlog gets few large summaries.
            preferred *= _CATCH_UP_FACTOR
        elif older < 2 * self.every:
            # The rest is too little for a summary of its own.
            preferred = older
        units = oldest_units(outline, min(older, preferred), at_most=older)
        return batch(outline, units, target=self.summary_tokens, reason=reason)

    @property
    def _most_raw_tokens(self) -> float:
        """The tokens of the newest key events that are too many to stay raw."""
        if self.rules < _RULES_WITH_NEW_TRIGGERS:
            return self.threshold_low
        return min(self.threshold_low, self.threshold_high / 2)

    def _count_older(self, units: tuple[Unit, ...]) -> int:
        """Return the number of units before those that stay raw; may be negative.

        With the trigger ``tokens``, all units from the oldest of the newest key events
        on stay raw, within a share of the lower threshold: what stays must leave room
        below the upper one, or each new exchange would get a summary of its own.
        """
        raw_from = len(units)
        if self.trigger == "tokens":
            key_firsts = {unit.first for unit in self._key_units(units)}
            most = self._most_raw_tokens
            key_tokens = 0
            other_tokens = 0
            for index in range(len(units) - 1, -1, -1):
                is_key = units[index].first in key_firsts
                if is_key:
                    key_tokens += units[index].tokens
                else:
                    other_tokens += units[index].tokens
                if (
                    self.weighed(key_tokens) >= most
                    or self.weighed(other_tokens) >= most / 2
                ):
                    break
                if is_key:
                    raw_from = index
        return min(raw_from, len(units) - self.keep_last)


def _count_events(units: Iterable[Unit]) -> int:
    """Return the number of units and of the results in them."""
    return sum(1 + unit.results for unit in units)
