"""turn_window: the newest turns raw, older ones summarised in batches of turns."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar, Final

from pydantic import Field

from refold.domain.errors import UnknownStrategy
from refold.projections.context import compaction
from refold.projections.context.compaction import Compaction
from refold.projections.context.outline import Outline
from refold.projections.context.strategy import Layers, Manner, Pinning, distance

VARIABLES: Final = {
    "full_turns": "REFOLD_FULL_CONTEXT_TURNS",
    "cached_turns": "REFOLD_CACHED_CONTEXT_TURNS",
}


class TurnWindow(Pinning):
    """Keep A turns raw; when A + B are raw, summarise the B oldest in one batch.

    full_turns:            A, the turns that stay raw after a compaction.
    cached_turns:          B, the turns that one compaction takes.
    summary_tokens:        how long the summary of one batch may be.
    session_memory_tokens: when all summaries together exceed it, the two oldest fold
                           into one of the next level, until they do not.
    pin_tokens:            what pinned exchanges may take behind the summaries.
    layers:                the user, scope and notes layers before the summaries; all
                           are off until asked for.

    With K complete turns, T of them compacted, a batch is due when K - T >= A + B: of
    exactly B turns, unless a legal cut is older; one batch per check.
    """

    name: ClassVar[str] = "turn_window"
    came_later: ClassVar[tuple[str, ...]] = ("layers",)

    full_turns: int = Field(default=4, ge=1)
    cached_turns: int = Field(default=3, ge=1)
    summary_tokens: int = Field(default=600, ge=1)
    session_memory_tokens: int = Field(default=8_000, ge=1)
    layers: Layers = Layers()

    @cached_property
    def manner(self) -> Manner:
        """With its layers before the summaries of the session."""
        return Manner(pin_tokens=self.pin_tokens, layers=self.layers)

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """What is due of a layer, else a batch of turns, else a fold of summaries."""
        due = self.layers.due(outline, now)
        if due or compaction.held_back(outline, now):
            return due
        return self._batch(outline) or self._fold(outline)

    def waits_for(self, outline: Outline) -> str:
        """How many complete turns are raw, and how many are a batch."""
        raw, limit = self._raw(outline), self.full_turns + self.cached_turns
        return distance(self.name, raw, "complete turn", limit)

    def _raw(self, outline: Outline) -> int:
        return outline.complete_turns - outline.compacted_turns

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:
        """A fold of the two oldest summaries, as long as all exceed their budget.

        After what was due of a layer, all that had to wait for it.
        """
        if self.layers.behind(outline):
            return self.decide(outline, now)
        return None if compaction.held_back(outline, now) else self._fold(outline)

    def _batch(self, outline: Outline) -> Compaction | None:
        raw = self._raw(outline)
        limit = self.full_turns + self.cached_turns
        wish = self.cached_turns if raw >= limit else 0
        if not (turns := compaction.oldest_turns(outline, wish)):
            return None
        return Compaction(
            first_seq=turns[0].first,
            last_seq=turns[-1].last,
            target_tokens=self.summary_tokens,
            decided_at_seq=outline.through_seq,
            tokens_before=sum(turn.tokens for turn in turns),
            reason=f"{raw} raw turns, {limit} are a window",
            turns=len(turns),
        )

    def _fold(self, outline: Outline) -> Compaction | None:
        most, target = self.session_memory_tokens, self.summary_tokens
        return compaction.over_budget(outline, budget=most, target=target)


def from_settings(
    explicit: Mapping[str, Any], env: Mapping[str, str], settings: Mapping[str, Any]
) -> TurnWindow:
    """The strategy as configured: argument before environment, settings, default.

    Raises UnknownStrategy if a value is not what its parameter takes.
    """
    from_env = {
        param: _number(variable, env[variable])
        for param, variable in VARIABLES.items()
        if env.get(variable, "").strip() and param not in explicit
    }
    return TurnWindow(**{**settings, **from_env, **explicit})


def _number(variable: str, text: str) -> int:
    with suppress(ValueError):
        if (value := int(text)) >= 1:
            return value
    raise UnknownStrategy(f"{variable} must be a whole number of at least 1")
