"""token_budget: views show the newest exchanges that fit."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from refold.domain.envelope import Envelope
from refold.domain.events import Span
from refold.projections.context.compaction import oldest_units
from refold.projections.context.outline import Detail, Outline, OutlineBuilder
from refold.projections.context.strategy import (
    RULES,
    Shown,
    Weighed,
    everything,
    with_input,
)
from refold.projections.context.units import joined


class TokenBudget(Weighed):
    """Drop the oldest exchanges while all of them exceed ``max_tokens``.

    model, weight: the model whose tokens are counted, or the factor of the estimate.

    Views always show the newest exchange, the newest user input, and the exchanges that
    wait for a result; ``over_budget`` says by how much these exceed ``max_tokens``.
    In version 1, the exchanges after one that waits are not dropped either.
    """

    name: ClassVar[str] = "token_budget"
    version: ClassVar[int] = 5
    rules: ClassVar[int] = RULES
    needs: ClassVar[Detail] = "units"
    stable_prefix: ClassVar[bool] = False

    max_tokens: int = Field(default=16_000, ge=1)

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Forget exchanges over the budget, which views will not show again."""
        builder.take(envelope)
        is_over = self.weighed(builder.raw_tokens) > self.max_tokens
        if is_over and len(builder.units) > 1:
            builder.begin(self._within_budget(builder.outline()))

    def _within_budget(self, outline: Outline) -> Outline:
        open_exchanges = {call.exchange for call in outline.thread.open}
        surplus = outline.raw_tokens - int(self.max_tokens / self.weight)
        wish = 0
        for unit in outline.units:
            is_open = unit.first in open_exchanges
            if surplus <= 0 or (is_open and self.rules < 2):
                break
            if not is_open:
                surplus -= unit.tokens
            wish += 1
        oldest = oldest_units(outline, wish, at_most=len(outline.units))
        still_open = [unit for unit in oldest if unit.first in open_exchanges]
        dropped = [unit for unit in oldest if unit.first not in open_exchanges]
        if not dropped:
            return outline
        following = outline.units[len(oldest) :]
        waiting = outline.waiting
        if self.rules >= 2:
            waiting = waiting.forgetting(following[0].first)
        dropped_tokens = sum(unit.tokens for unit in dropped)
        return outline._replace(
            units=(*still_open, *following),
            raw_tokens=outline.raw_tokens - dropped_tokens,
            dropped_tokens=outline.dropped_tokens + dropped_tokens,
            cleared=max(outline.cleared, dropped[-1].first),
            waiting=waiting,
        )

    def over_limits(self, tokens: int, raw_tokens: int) -> int:
        """Return by how many tokens ``max_tokens`` or the window is exceeded."""
        return max(self.over_window(tokens), self.over(raw_tokens, self.max_tokens))

    def show(self, outline: Outline) -> Shown:
        """Show the exchanges that fit, or everything if none was dropped."""
        if not outline.cleared:
            return everything(outline)
        raw: list[Span] = []
        for unit in outline.units:
            if unit.first > outline.cleared:
                raw.append((unit.first, outline.through_seq))
                break
            raw += unit.seqs
        return Shown(with_input(outline, joined(raw)))
