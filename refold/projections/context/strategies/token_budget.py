"""token_budget: views show the newest exchanges that fit."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from refold.domain.envelope import Envelope
from refold.projections.context.compaction import oldest_units
from refold.projections.context.outline import Detail, Outline, OutlineBuilder
from refold.projections.context.strategy import Shown, Weighed, everything, with_input


class TokenBudget(Weighed):
    """Drop the oldest exchanges while all of them exceed ``max_tokens``.

    model, weight: count tokens as this model does, or as so many times the estimate.

    Views always show the newest exchange and the newest user input.  An exchange that
    waits for a result is not dropped, and neither are the exchanges after it.
    """

    name: ClassVar[str] = "token_budget"
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
            if surplus <= 0 or unit.first in open_exchanges:
                break
            surplus -= unit.tokens
            wish += 1
        dropped = oldest_units(outline, wish)
        if not dropped:
            return outline
        return outline._replace(
            units=outline.units[len(dropped) :],
            raw_tokens=outline.raw_tokens - sum(unit.tokens for unit in dropped),
            cleared=dropped[-1].first,
        )

    def show(self, outline: Outline) -> Shown:
        """Show the exchanges that fit, or everything if none was dropped."""
        if not outline.cleared:
            return everything(outline)
        first = outline.units[0].first
        return Shown(with_input(outline, ((first, outline.through_seq),)))
