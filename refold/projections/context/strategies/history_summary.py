"""history_summary: a long head becomes one summary beside an abridged history."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from itertools import accumulate
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from refold.domain.canonical import shipped
from refold.domain.envelope import from_microseconds, microseconds
from refold.domain.errors import UnknownStrategy
from refold.projections.context import compaction
from refold.projections.context.abridged import Limits
from refold.projections.context.compaction import Compaction, Notes
from refold.projections.context.outline import Detail, Outline
from refold.projections.context.strategy import Layers, Manner, Pinning, distance
from refold.projections.context.units import Spans, Unit, joined


class HistorySummary(Pinning):
    """Summarise the head of a history that is too long; its tail stays raw.

    trigger_on_history_size_chars: how long it may get; 0: as long as it likes.
    trigger_on_history_size_chars_when_cache_expiring: how long while the provider's
                        cache is about to expire, when a new prefix costs least.
    history_tail_size_chars_to_exclude: the newest exchanges up to so many characters
                        are the tail, at least ``min_tail_exchanges``.
    cache_ttl_ms, buffer_time_before_cache_expiration_ms: the cache expires so long
                        after the last call; from the buffer before that on the lower
                        threshold counts.
    summary_version:    only summaries of this version count.
    prompt:             what a model is asked; empty: no model is.
    abridged:           limits of the abridged history.
    acknowledgement_text: what the agent answers to its summary.
    node_template:      how the summary is told, with ``{summary}`` in it and perhaps
                        ``{abridged_history}``; empty: as Refold does.
    second_guard:       what is done about a head over ``second_guard_chars``: ``fold``
                        summarises it part by part, ``truncate`` leaves out the oldest
                        parts and says which.
    exclude_agents:     agents that never summarise.
    summary_tokens:     how long a model's summary may be.
    pin_tokens:         what pinned exchanges may take behind the summary.
    memories:           the agent's long-term notes, if they are to be shown.
    """

    name: ClassVar[str] = "history_summary"
    came_later: ClassVar[tuple[str, ...]] = ("memories", "node_template")
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
        default="I have read the summary and go on from there.", min_length=1
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
            buffer = "buffer_time_before_cache_expiration_ms"
            raise ValueError(f"{buffer} is over cache_ttl_ms")
        return self

    @cached_property
    def _layers(self) -> Layers:
        return Layers(notes=self.memories)

    @cached_property
    def manner(self) -> Manner:
        """With the notes before its summary, and an abridged history in it."""
        return Manner(
            form="acknowledged",
            acknowledgement=self.acknowledgement_text,
            pin_tokens=self.pin_tokens,
            layers=self._layers,
            prompt=self.prompt,
            history=self.abridged,
            template=self.node_template,
        )

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """Notes that are too many, else the head if the history is over a threshold."""
        notes = self._layers.due(outline, now)
        if notes or compaction.held_back(outline, now):
            return notes
        reason = self._reason(outline, now)
        return self._head(outline, reason) if reason else None

    def waits_for(self, outline: Outline) -> str:
        """How long the history is, and how long it may get."""
        chars, most = _chars(outline), self.trigger_on_history_size_chars
        if not most:
            return f"{self.name} compacts by no size: its trigger is 0"
        return distance(self.name, chars, "character", most)

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:
        """The rest of a head that was too long for one summary."""
        if self._layers.behind(outline):
            return self.decide(outline, now)
        over = outline.decided_at != outline.through_seq
        if over or compaction.held_back(outline, now):
            return None
        return self._head(outline, "more of the same head")

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:
        """When the cache is about to expire, if the history is long enough for it."""
        least = self.trigger_on_history_size_chars_when_cache_expiring
        if outline.called_at is None or not least or _chars(outline) < least:
            return None
        buffer = self.buffer_time_before_cache_expiration_ms
        at = outline.called_at + (self.cache_ttl_ms - buffer) * 1_000
        return from_microseconds(at) if at > microseconds(now) else None

    def _reason(self, outline: Outline, now: datetime) -> str:
        chars, most = _chars(outline), self.trigger_on_history_size_chars
        if most and chars >= most:
            return f"{chars} characters, {most} are too many"
        most = self.trigger_on_history_size_chars_when_cache_expiring
        if most and chars >= most and outline.called_at is not None:
            age = (microseconds(now) - outline.called_at) / 1_000
            buffer = self.buffer_time_before_cache_expiration_ms
            if self.cache_ttl_ms - buffer <= age < self.cache_ttl_ms:
                return f"{chars} characters, {most} are too many as the cache expires"
        return ""

    def _head(self, outline: Outline, reason: str) -> Compaction | None:
        units = compaction.oldest_units(outline, self._wish(outline))
        omitted: Spans = ()
        if sum(unit.chars for unit in units) > self.second_guard_chars:
            if self.second_guard == "fold":
                sums = accumulate(unit.chars for unit in units)
                fitting = sum(total <= self.second_guard_chars for total in sums)
                units = compaction.oldest_units(outline, max(fitting, 1))
            else:
                omitted = _truncated(units, self.second_guard_chars)
        made = compaction.batch(
            outline,
            units,
            target=self.summary_tokens,
            reason=reason,
            absorbs=outline.summaries,
        )
        return replace(made, omitted=omitted) if made and omitted else made

    def _wish(self, outline: Outline) -> int:
        """How many of the oldest units are not the tail."""
        total, wish = 0, len(outline.units)
        for count, part in enumerate(reversed([*exchanges(outline.units)])):
            total += sum(unit.chars for unit in part)
            fits = total < self.history_tail_size_chars_to_exclude
            if not fits and count >= self.min_tail_exchanges:
                return wish
            wish -= len(part)
        return 0


def exchanges(units: Sequence[Unit]) -> Iterator[list[Unit]]:
    """User inputs with the responses that answer them, or a further response."""
    part: list[Unit] = []
    for unit in units:
        answers = len(part) == 1 and part[0].type == "user_input"
        if part and not (answers and unit.type != "user_input"):
            yield part
            part = []
        part.append(unit)
    if part:
        yield part


def _chars(outline: Outline) -> int:
    return sum(unit.chars for unit in outline.units)


def _truncated(units: Sequence[Unit], limit: int) -> Spans:
    """The oldest segments of a third of the limit, as the source of this rule does it.

    A segment begins when the next exchange would overflow the one before; of four or
    more, those from ``2 * ((n - 2) // 2)`` on are kept.
    """
    segments: list[list[Unit]] = [[]]
    size = 0
    for part in exchanges(units):
        chars = sum(unit.chars for unit in part)
        if size + chars > limit // 3:
            segments.append([])
            size = 0
        segments[-1] += part
        size += chars
    count = len(segments)
    gone = segments[: 2 * ((count - 2) // 2)] if count >= 4 else []
    return joined(span for part in gone for unit in part for span in unit.seqs)


# What the parameters are called in the configuration of another agent.
_NAMES: Final = shipped("refold.projections", "data", "parameters.toml")


def from_params(given: str | Mapping[str, Any]) -> HistorySummary | None:
    """The strategy that a JSON configuration of another agent's feature flags means.

    given: an object with ``history_summary_params`` (an object, or JSON as text) and
           ``history_summary_min_version``, perhaps with ``memories_params``, or the
           parameters themselves.

    None if it is switched off by an empty version.  Raises
    UnknownStrategy for what it does not know.
    """
    flags = _object(given)
    params = dict(flags)
    if "history_summary_params" in flags:
        version = flags.get("history_summary_min_version", "3")
        if version in ("", None):
            return None
        params = dict(_object(flags["history_summary_params"]))
        try:
            params["summary_version"] = int(str(version))
        except ValueError:
            why = "history_summary_min_version must be a whole number"
            raise UnknownStrategy(why) from None
        if "memories_params" in flags:
            given = _object(flags["memories_params"])
            # An empty prompt is none there.
            params["memories"] = {key: v for key, v in given.items() if v != ""}
    named, parts = _NAMES["summary"], _NAMES["abridged"]
    params = {named.get(name, name): value for name, value in params.items()}
    if abridged := _object(params.pop("abridged_history_params", {})):
        params["abridged"] = {parts.get(k, k): value for k, value in abridged.items()}
    return HistorySummary(**params)


def _object(given: object) -> Mapping[str, Any]:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except json.JSONDecodeError as error:
            place = f"line {error.lineno}, column {error.colno}"
            why = f"history_summary_params: no JSON at {place}"
            raise UnknownStrategy(why) from None
    if not isinstance(given, Mapping):
        raise UnknownStrategy("history_summary_params must be a JSON object")
    return given
