"""token_ratio: summarizes whole turns when the model's window is nearly full."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import Field, model_validator

from refold.domain.locks import computed_once
from refold.projections.context import compaction
from refold.projections.context.compaction import Compaction
from refold.projections.context.outline import Detail, Outline
from refold.projections.context.strategy import (
    RULES,
    Manner,
    Pinning,
    Weighed,
    distance,
)
from refold.projections.models import window_of


class TokenRatio(Pinning, Weighed):
    """Summarize all but the newest turns when the window is nearly full.

    trigger_threshold:  the share of the window that needs a compaction.
    keep_recent_turns:  the newest turns, which stay raw; a user input begins a turn.
    model:              the model with the window, unless ``max_context_tokens`` is set.
    max_context_tokens: the window in tokens.
    weight:             the tokens of the model for each estimated token; by default the
                        ratio that was measured for ``model``, or 1.
    enabled:            False disables compactions.
    pin_tokens:         the most tokens of pinned exchanges behind the summary.

    The summary replaces everything before it, as the result of a tool that the agent
    called.  The current turn is never summarized.
    """

    name: ClassVar[str] = "token_ratio"
    version: ClassVar[int] = 8
    rules: ClassVar[int] = RULES
    needs: ClassVar[Detail] = "units"
    came_later: ClassVar[tuple[str, ...]] = ()

    trigger_threshold: float = Field(default=0.8, gt=0, le=1, strict=False)
    keep_recent_turns: int = Field(default=5, ge=1)
    max_context_tokens: int | None = Field(default=None, ge=1)
    enabled: bool = True

    @model_validator(mode="after")
    def _has_window(self) -> TokenRatio:
        if (self.model is None) == (self.max_context_tokens is None):
            raise ValueError("it needs either a model or max_context_tokens")
        if self.model is not None:
            window_of(self.model)
        return self

    @computed_once
    def manner(self) -> Manner:
        """The manner with the summary as the result of a tool."""
        return Manner(pin_tokens=self.pin_tokens, form="tool", window=self.window)

    @property
    def window(self) -> int:
        """The most tokens of a request.  Raises UnknownModel."""
        if self.max_context_tokens is not None:
            return self.max_context_tokens
        return window_of(self.model or "")

    @property
    def known_window(self) -> int:
        """The most tokens of a request."""
        return self.window

    @property
    def summary_tokens(self) -> int:
        """The length of the summary: a tenth of the window, from 500 to 4,000."""
        return min(4_000, max(500, self.window // 10))

    @property
    def compacts(self) -> bool:
        """Whether it is enabled."""
        return self.enabled

    def waits_for(self, outline: Outline) -> str:
        """Return the tokens in the window, and the limit."""
        if not self.enabled:
            return f"{self.name} is switched off: enabled is false"
        limit = self.window * self.trigger_threshold
        tokens = self.weighed(outline.tokens)
        return distance(self.name, tokens, "token", limit, of=self.window)

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """Compact everything before the newest turns if the window is nearly full."""
        limit = self.window * self.trigger_threshold
        tokens = self.weighed(outline.tokens)
        if not self.enabled or tokens < limit or compaction.held_back(outline, now):
            return None
        turn_begins = [
            index
            for index, unit in enumerate(outline.units)
            if unit.type == "user_input"
        ]
        older = 0
        if len(turn_begins) >= self.keep_recent_turns:
            older = turn_begins[-self.keep_recent_turns]
        return compaction.batch(
            outline,
            compaction.oldest_units(outline, older),
            target=self.summary_tokens,
            reason=f"{tokens} tokens, at most {limit:.0f} of {self.window}",
            absorbs=outline.summaries,
        )
