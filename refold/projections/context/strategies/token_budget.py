"""token_budget: as many of the newest exchanges as fit."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from refold.domain.envelope import Envelope
from refold.projections.context.compaction import oldest_units
from refold.projections.context.outline import Detail, Outline, OutlineBuilder
from refold.projections.context.strategy import Shown, Weighed, everything, with_input


class TokenBudget(Weighed):
    """Drop the oldest exchanges while all cost more than ``max_tokens``.

    model, weight: count tokens as this model does, or so many times as estimated.

    The newest exchange and the newest user input are sent whatever they cost; an
    exchange that waits for a result is not dropped, nor is anything behind it.
    """

    name: ClassVar[str] = "token_budget"
    needs: ClassVar[Detail] = "units"
    stable_prefix: ClassVar[bool] = False

    max_tokens: int = Field(default=16_000, ge=1)

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Forget what is over the budget: it is not sent again."""
        builder.take(envelope)
        over = self.weighed(builder.raw_tokens) > self.max_tokens
        if over and len(builder.units) > 1:
            builder.begin(self._within_budget(builder.outline()))

    def _within_budget(self, outline: Outline) -> Outline:
        open_ = {call.exchange for call in outline.thread.open}
        wish, over = 0, outline.raw_tokens - int(self.max_tokens / self.weight)
        for unit in outline.units:
            if over <= 0 or unit.first in open_:
                break
            wish, over = wish + 1, over - unit.tokens
        gone = oldest_units(outline, wish)
        return outline._replace(
            units=outline.units[len(gone) :],
            raw_tokens=outline.raw_tokens - sum(unit.tokens for unit in gone),
            cleared=gone[-1].first if gone else outline.cleared,
        )

    def show(self, outline: Outline) -> Shown:
        """What fits: all, while nothing was dropped."""
        if not outline.cleared:
            return everything(outline)
        first = outline.units[0].first
        return Shown(with_input(outline, ((first, outline.through_seq),)))
