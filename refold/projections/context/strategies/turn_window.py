"""turn_window: keeps the newest turns raw, and summarizes older ones in batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, NamedTuple

from pydantic import Field

from refold.domain.errors import UnknownStrategy
from refold.domain.locks import computed_once
from refold.projections.context import compaction
from refold.projections.context.compaction import Compaction
from refold.projections.context.outline import Outline
from refold.projections.context.strategy import (
    RULES,
    Layers,
    Manner,
    Pinning,
    distance,
)

# The environment variables of parameters.
VARIABLES: Final = {
    "full_turns": "REFOLD_FULL_CONTEXT_TURNS",
    "cached_turns": "REFOLD_CACHED_CONTEXT_TURNS",
}


class TurnWindow(Pinning):
    """Keep A turns raw; when A + B are raw, summarize the B oldest in one batch.

    full_turns:            A, the turns that stay raw after a compaction.
    cached_turns:          B, the turns that one compaction covers.
    summary_tokens:        the length of the summary of a batch.
    session_memory_tokens: the most tokens of all summaries.  Over it, the two oldest
                           fold into one of the next level.
    pin_tokens:            the most tokens of pinned exchanges after the summaries.
    layers:                the memory layers before the summaries.

    With K complete turns, T of them compacted, a compaction is needed if
    K - T >= A + B.  It covers exactly B turns; or fewer if a cut is allowed only
    earlier, or more if it is allowed only later.  One check makes one batch.
    """

    name: ClassVar[str] = "turn_window"
    version: ClassVar[int] = 8
    rules: ClassVar[int] = RULES
    came_later: ClassVar[tuple[str, ...]] = ("layers",)

    full_turns: int = Field(default=4, ge=1)
    cached_turns: int = Field(default=3, ge=1)
    summary_tokens: int = Field(default=600, ge=1)
    session_memory_tokens: int = Field(default=8_000, ge=1)
    layers: Layers = Layers()

    @computed_once
    def manner(self) -> Manner:
        """The manner with the memory layers before the summaries."""
        return Manner(pin_tokens=self.pin_tokens, layers=self.layers)

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """Compact a memory layer, or a batch of turns, or fold summaries."""
        layer = self.layers.decide(outline, now)
        if layer or compaction.held_back(outline, now):
            return layer
        return self._batch(outline) or self._fold(outline)

    def waits_for(self, outline: Outline) -> str:
        """Return the number of complete raw turns, and the size of the window."""
        raw_turns = self._raw_turns(outline)
        return distance(self.name, raw_turns, "complete turn", self._window)

    @property
    def _window(self) -> int:
        """The number of complete raw turns that needs a compaction."""
        return self.full_turns + self.cached_turns

    def _raw_turns(self, outline: Outline) -> int:
        return outline.complete_turns - outline.compacted_turns

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:
        """Fold the two oldest summaries while all summaries exceed their budget.

        After a compaction of a layer, everything that waited for it is checked.
        """
        if self.layers.wrote_newest_summary(outline):
            return self.decide(outline, now)
        if compaction.held_back(outline, now):
            return None
        return self._fold(outline)

    def _batch(self, outline: Outline) -> Compaction | None:
        raw_turns = self._raw_turns(outline)
        if raw_turns < self._window:
            return None
        turns = compaction.oldest_turns(
            outline, self.cached_turns, at_most=raw_turns - self.full_turns
        )
        if not turns:
            return None
        return Compaction(
            first_seq=turns[0].first,
            last_seq=turns[-1].last,
            target_tokens=self.summary_tokens,
            decided_at_seq=outline.through_seq,
            tokens_before=sum(turn.tokens for turn in turns),
            reason=f"{raw_turns} raw turns, {self._window} are a window",
            turns=len(turns),
        )

    def _fold(self, outline: Outline) -> Compaction | None:
        return compaction.over_budget(
            outline, budget=self.session_memory_tokens, target=self.summary_tokens
        )


def nothing_saved() -> dict[str, int]:
    """Return no numbers: nobody saved any."""
    return {}


def from_settings(
    explicit: Mapping[str, Any],
    env: Mapping[str, str],
    settings: Mapping[str, Any],
    saved: Callable[[], Mapping[str, int]] = nothing_saved,
) -> TurnWindow:
    """Return the configured strategy.

    explicit: parameters that override the environment, which overrides ``saved``.
    saved:    returns the numbers of turns that the user saved, which override
              ``settings``.  It is not called if both numbers are overridden.

    Raises UnknownStrategy for invalid values.
    """
    overriding: dict[str, Any] = {**_from_env(env, explicit), **explicit}
    params = dict(settings)
    if not VARIABLES.keys() <= overriding.keys():
        params.update(saved())
    params.update(overriding)
    return TurnWindow(**params)


def _from_env(env: Mapping[str, str], explicit: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of turns in the environment that no parameter overrides."""
    from_env: dict[str, int] = {}
    for param, variable in VARIABLES.items():
        text = env.get(variable, "")
        if text.strip() and param not in explicit:
            from_env[param] = _number(variable, text)
    return from_env


class TurnNumber(NamedTuple):
    """A number of turns that applies to a user, and the setting that decides it."""

    value: int
    decided_by: Literal["environment", "saved", "file", "default"]


def numbers(
    env: Mapping[str, str], settings: Mapping[str, Any], saved: Mapping[str, int]
) -> dict[str, TurnNumber]:
    """Return the numbers that apply if a call names none, by the name of the parameter.

    Raises UnknownStrategy for invalid values.
    """
    strategy = from_settings({}, env, settings, lambda: saved)
    from_env = _from_env(env, {})
    applying: dict[str, TurnNumber] = {}
    for param in VARIABLES:
        value = getattr(strategy, param)
        if param in from_env:
            applying[param] = TurnNumber(value, "environment")
        elif param in saved:
            applying[param] = TurnNumber(value, "saved")
        elif param in settings:
            applying[param] = TurnNumber(value, "file")
        else:
            applying[param] = TurnNumber(value, "default")
    return applying


def _number(variable: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise UnknownStrategy(f"{variable} must be a whole number of at least 1")
    return number
