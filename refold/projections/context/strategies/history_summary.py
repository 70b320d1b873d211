"""history_summary: one summary, with an abridged history, replaces a long head."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import accumulate
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, JsonValue, model_validator

from refold.domain.canonical import load_packaged_toml
from refold.domain.envelope import Envelope, from_microseconds, microseconds
from refold.domain.errors import UnknownStrategy
from refold.domain.events import AgentResponse, Span, ToolCall
from refold.domain.locks import computed_once
from refold.projections.context import compaction
from refold.projections.context.compaction import Compaction, Notes
from refold.projections.context.limits import Limits
from refold.projections.context.outline import Detail, Outline, OutlineBuilder
from refold.projections.context.strategy import (
    RULES,
    Layers,
    Manner,
    Pinning,
    distance,
)
from refold.projections.context.units import Spans, Unit, joined


class HistorySummary(Pinning):
    """Summarize the head of a history that is too long; its tail stays raw.

    trigger_on_history_size_chars: the size that needs a compaction; 0 disables it.
    trigger_on_history_size_chars_when_cache_expiring: the size that needs one shortly
                        before the provider's cache expires, when a new prefix costs
                        least; 0 disables it.
    history_tail_size_chars_to_exclude: the size of the tail, which consists of the
                        newest exchanges, at least ``min_tail_exchanges``.
    cache_ttl_ms:       the time from the last call until the cache expires.
    buffer_time_before_cache_expiration_ms: the lower trigger applies during this time
                        before the cache expires.
    summary_version:    only summaries of this version count.
    prompt:             the model's prompt; with an empty one, no model is called.
    abridged:           the limits of the abridged history.
    acknowledgement_text: the agent's answer to its summary.
    node_template:      the text of the summary, with ``{summary}`` and optionally
                        ``{abridged_history}``; empty uses Refold's form.
    second_guard:       the treatment of a head over ``second_guard_chars``: ``fold``
                        summarizes it part by part, ``truncate`` omits the oldest parts
                        and records which.
    exclude_agents:     the agents without summaries.  While the newest response is of
                        such an agent, nothing is compacted.
    summary_tokens:     the length of a model's summary.
    pin_tokens:         the most tokens of pinned exchanges behind the summary.
    memories:           the rules for the agent's notes, if views show them.
    """

    name: ClassVar[str] = "history_summary"
    version: ClassVar[int] = 9
    rules: ClassVar[int] = RULES
    names_repetitions: ClassVar[bool] = True
    came_later: ClassVar[tuple[str, ...]] = ("memories", "node_template")
    earlier_defaults: ClassVar[Mapping[str, tuple[int, JsonValue]]] = {
        "acknowledgement_text": (6, "I have read the summary and go on from there.")
    }
    needs: ClassVar[Detail] = "units"

    trigger_on_history_size_chars: int = Field(default=50_000, ge=0)
    trigger_on_history_size_chars_when_cache_expiring: int = Field(default=30_000, ge=0)
    history_tail_size_chars_to_exclude: int = Field(default=5_000, ge=0)
    min_tail_exchanges: int = Field(default=1, ge=1)
    cache_ttl_ms: int = Field(default=300_000, ge=0)
    buffer_time_before_cache_expiration_ms: int = Field(default=30_000, ge=0)
    summary_version: int = Field(default=3, ge=1)
    prompt: str = ""
    abridged: Limits = Limits()
    acknowledgement_text: str = Field(
        default="I have read the summary and continue from there.", min_length=1
    )
    second_guard: Literal["fold", "truncate"] = "fold"
    second_guard_chars: int = Field(default=800_000, ge=3)
    exclude_agents: tuple[str, ...] = Field(default=(), strict=False)
    summary_tokens: int = Field(default=2_000, ge=1)
    memories: Notes | None = None
    node_template: str = ""

    @model_validator(mode="after")
    def _fits(self) -> HistorySummary:
        if self.node_template and "{summary}" not in self.node_template:
            raise ValueError("node_template must contain {summary}")
        if self.buffer_time_before_cache_expiration_ms > self.cache_ttl_ms:
            raise ValueError(
                "buffer_time_before_cache_expiration_ms is over cache_ttl_ms"
            )
        return self

    @computed_once
    def _layers(self) -> Layers:
        return Layers(notes=self.memories)

    @computed_once
    def manner(self) -> Manner:
        """The manner with notes before the summary, and an abridged history in it."""
        return Manner(
            form="acknowledged",
            acknowledgement=self.acknowledgement_text,
            pin_tokens=self.pin_tokens,
            layers=self._layers,
            prompt=self.prompt,
            history=self.abridged,
            template=self.node_template,
        )

    def remember(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Update the memory layers, and remember whether the agent is excluded."""
        super().remember(builder, envelope)
        is_agents = isinstance(envelope.payload, AgentResponse | ToolCall)
        if self.exclude_agents and is_agents:
            builder.excluded = envelope.agent in self.exclude_agents

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """Compact notes that are too many, or the head if the history is too long."""
        if outline.excluded:
            return None
        notes = self._layers.decide(outline, now)
        if notes or compaction.held_back(outline, now):
            return notes
        reason = self._reason(outline, now)
        return self._head(outline, reason) if reason else None

    def waits_for(self, outline: Outline) -> str:
        """Return the size of the history, and the size that needs a compaction."""
        if outline.excluded:
            return f"{self.name} makes no summaries for the agent that runs now"
        limit = self.trigger_on_history_size_chars
        if not limit:
            return f"{self.name} compacts by no size: its trigger is 0"
        return distance(self.name, _total_chars(outline.units), "character", limit)

    def press(self, outline: Outline, over: int, most: int) -> Compaction | None:
        """Return a compaction that makes room, or None for an excluded agent."""
        if outline.excluded:
            return None
        return super().press(outline, over, most)

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:
        """Compact the rest of a head that was too long for one summary."""
        if self._layers.wrote_newest_summary(outline):
            return self.decide(outline, now)
        is_same_check = outline.decided_at == outline.through_seq
        if not is_same_check or compaction.held_back(outline, now):
            return None
        return self._head(outline, "more of the same head")

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:
        """Return the time before the cache expires, if the history is long enough."""
        limit = self.trigger_on_history_size_chars_when_cache_expiring
        if not limit or outline.called_at is None or outline.excluded:
            return None
        if _total_chars(outline.units) < limit:
            return None
        due_at = outline.called_at + self._buffer_begins_ms * 1_000
        return from_microseconds(due_at) if due_at > microseconds(now) else None

    @property
    def _buffer_begins_ms(self) -> int:
        """The time from a call until the lower trigger applies."""
        return self.cache_ttl_ms - self.buffer_time_before_cache_expiration_ms

    def _reason(self, outline: Outline, now: datetime) -> str:
        """Return the reason for a compaction, or an empty text."""
        chars = _total_chars(outline.units)
        limit = self.trigger_on_history_size_chars
        if limit and chars >= limit:
            return f"{chars} characters, {limit} are too many"
        limit = self.trigger_on_history_size_chars_when_cache_expiring
        if limit and chars >= limit and outline.called_at is not None:
            age_ms = (microseconds(now) - outline.called_at) / 1_000
            if self._buffer_begins_ms <= age_ms < self.cache_ttl_ms:
                return f"{chars} characters, {limit} are too many as the cache expires"
        return ""

    def _head(self, outline: Outline, reason: str) -> Compaction | None:
        """Return the compaction of the head, within the second guard."""
        before_tail = self._units_before_tail(outline)
        units = compaction.oldest_units(outline, before_tail)
        limit = self.second_guard_chars
        omitted: Spans = ()
        if _total_chars(units) > limit:
            if self.second_guard == "fold":
                fitting = bisect_right(
                    [*accumulate(unit.chars for unit in units)], limit
                )
                units = compaction.oldest_units(
                    outline, max(fitting, 1), at_most=before_tail
                )
            else:
                omitted = _truncated(units, limit)
        decision = compaction.batch(
            outline,
            units,
            target=self.summary_tokens,
            reason=reason,
            absorbs=outline.summaries,
        )
        if decision is None or not omitted:
            return decision
        return replace(decision, omitted=omitted)

    def _units_before_tail(self, outline: Outline) -> int:
        """Return the number of the oldest units that do not belong to the tail."""
        tail_chars = 0
        before = len(outline.units)
        newest_first = reversed(list(exchanges(outline.units)))
        for count, exchange in enumerate(newest_first):
            tail_chars += _total_chars(exchange)
            fits = tail_chars < self.history_tail_size_chars_to_exclude
            if not fits and count >= self.min_tail_exchanges:
                return before
            before -= len(exchange)
        return 0


def exchanges(units: Sequence[Unit]) -> Iterator[list[Unit]]:
    """Yield each user input with the unit that answers it, and other units alone."""
    exchange: list[Unit] = []
    for unit in units:
        has_open_input = len(exchange) == 1 and exchange[0].type == "user_input"
        answers = has_open_input and unit.type != "user_input"
        if exchange and not answers:
            yield exchange
            exchange = []
        exchange.append(unit)
    if exchange:
        yield exchange


def _total_chars(units: Iterable[Unit]) -> int:
    return sum(unit.chars for unit in units)


def _truncated(units: Sequence[Unit], limit: int) -> Spans:
    """Return the seqs of the oldest segments, which the summary omits.

    A segment has about a third of ``limit``: a new one begins when the next exchange
    would exceed that.  Of n segments, four or more, those from 2 * ((n - 2) // 2) on
    are kept, as in the agent that this rule is taken from.
    """
    segments: list[list[Unit]] = [[]]
    size = 0
    for exchange in exchanges(units):
        chars = _total_chars(exchange)
        if size + chars > limit // 3:
            segments.append([])
            size = 0
        segments[-1] += exchange
        size += chars
    count = len(segments)
    if count < 4:
        return ()
    omitted: list[Span] = []
    for segment in segments[: 2 * ((count - 2) // 2)]:
        for unit in segment:
            omitted += unit.seqs
    return joined(omitted)


# The names of the parameters in the configuration of another agent.
_NAMES: Final = load_packaged_toml("refold.projections", "data", "parameters.toml")


def from_params(config: str | Mapping[str, Any]) -> HistorySummary | None:
    """Read the strategy from the feature flags of another agent, in JSON.

    config: an object with ``history_summary_params`` (an object, or JSON as text),
            ``history_summary_min_version``, and optionally ``memories_params``; or the
            parameters themselves.  Parameters that are missing or empty have their
            defaults.

    Returns None if an empty version disables it.

    Raises UnknownStrategy for unknown or invalid parameters.
    """
    flags = _object(config)
    params = dict(flags)
    if "history_summary_params" in flags:
        version = flags.get("history_summary_min_version", "3")
        if version in ("", None):
            return None
        params = dict(_object(flags["history_summary_params"]))
        try:
            params["summary_version"] = int(str(version))
        except ValueError:
            reason = "history_summary_min_version must be a whole number"
            raise UnknownStrategy(reason) from None
        if flags.get("memories_params") not in ("", None):
            memories = _object(flags["memories_params"])
            # There, an empty prompt means none.
            params["memories"] = {
                name: value for name, value in memories.items() if value != ""
            }
    params = _renamed(params, _NAMES["summary"])
    abridged = _object(params.pop("abridged_history_params", None))
    if abridged:
        params["abridged"] = _renamed(abridged, _NAMES["abridged"])
    return HistorySummary(**params)


def _renamed(params: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in params.items()}


def _object(value: object) -> Mapping[str, Any]:
    """Return an object, or the one in a JSON text; empty for None and an empty text."""
    if value is None:
        return {}
    if isinstance(value, str):
        if not value.strip():
            return {}
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            place = f"line {error.lineno}, column {error.colno}"
            reason = f"history_summary_params: no JSON at {place}"
            raise UnknownStrategy(reason) from None
    if not isinstance(value, Mapping):
        raise UnknownStrategy("history_summary_params must be a JSON object")
    return value
