"""token_ratio: whole turns go once a share of the model's window is full."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import ClassVar

from pydantic import Field, model_validator

from refold.projections.context import compaction
from refold.projections.context.compaction import Compaction
from refold.projections.context.outline import Detail, Outline
from refold.projections.context.strategy import Manner, Pinning, Weighed, distance
from refold.projections.models import window_of


class TokenRatio(Pinning, Weighed):
    """Summarise all but the newest turns when the window is nearly full.

    trigger_threshold:  the share of the window that makes it due.
    keep_recent_turns:  so many of the newest turns stay raw; an input opens one.
    model:              whose window it is; or ``max_context_tokens`` says it.
    weight:             how many tokens of the model an estimated one is; left out,
                        what was measured for ``model``, else 1.
    enabled:            False: nothing is ever due.
    pin_tokens:         what pinned exchanges may take behind the summary.

    The summary takes the place of all before it, as the result of a tool that the
    agent called.  The turn that goes on is never summarised.
    """

    name: ClassVar[str] = "token_ratio"
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

    @cached_property
    def manner(self) -> Manner:
        """With the summary told as the result of a tool."""
        return Manner(pin_tokens=self.pin_tokens, form="tool", window=self.window)

    @property
    def window(self) -> int:
        """How many tokens a request may have.  Raises UnknownModel."""
        if self.max_context_tokens is not None:
            return self.max_context_tokens
        return window_of(self.model or "")

    @property
    def summary_tokens(self) -> int:
        """How long the summary may be: a tenth of the window, within bounds."""
        return min(4_000, max(500, self.window // 10))

    @property
    def compacts(self) -> bool:
        """Whether it is switched on."""
        return self.enabled

    def waits_for(self, outline: Outline) -> str:
        """How full the window is, and what is too full."""
        if not self.enabled:
            return f"{self.name} is switched off: enabled is false"
        limit = self.window * self.trigger_threshold
        tokens = self.weighed(outline.tokens)
        return distance(self.name, tokens, "token", limit, of=self.window)

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """All before the newest turns, if the window is full to the threshold."""
        limit = self.window * self.trigger_threshold
        tokens = self.weighed(outline.tokens)
        if not self.enabled or tokens < limit or compaction.held_back(outline, now):
            return None
        units, recent = outline.units, self.keep_recent_turns
        inputs = [i for i, unit in enumerate(units) if unit.type == "user_input"]
        older = inputs[-recent] if len(inputs) >= recent else 0
        return compaction.batch(
            outline,
            compaction.oldest_units(outline, older),
            target=self.summary_tokens,
            reason=f"{tokens} tokens, at most {limit:.0f} of {self.window}",
            absorbs=outline.summaries,
        )
