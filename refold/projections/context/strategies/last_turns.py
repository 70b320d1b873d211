"""last_turns: views show the newest turns and nothing else."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from refold.domain.envelope import Envelope
from refold.domain.events import UserInput
from refold.projections.context.outline import Outline, OutlineBuilder
from refold.projections.context.strategy import (
    RULES,
    Shown,
    Strategy,
    everything,
    with_input,
)


class LastTurns(Strategy):
    """Show the ``n`` newest turns, without summaries of older ones.

    It is a baseline for comparisons: it needs no model, and older turns are lost.
    """

    name: ClassVar[str] = "last_turns"
    version: ClassVar[int] = 5
    rules: ClassVar[int] = RULES
    stable_prefix: ClassVar[bool] = False

    n: int = Field(default=5, ge=1)

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Forget the turns that views will not show again."""
        builder.take(envelope)
        if isinstance(envelope.payload, UserInput):
            outline = builder.outline()
            surplus = len(outline.turns) - self.n
            if surplus > 0:
                waiting = outline.waiting
                if self.rules >= 2:
                    waiting = waiting.forgetting(outline.turns[surplus].first)
                forgotten = sum(turn.tokens for turn in outline.past[:surplus])
                builder.begin(
                    outline._replace(
                        past=outline.past[surplus:],
                        waiting=waiting,
                        dropped_tokens=outline.dropped_tokens + forgotten,
                    )
                )

    def show(self, outline: Outline) -> Shown:
        """Show the newest turns, or everything if there have been no more."""
        if outline.turn_count <= self.n:
            return everything(outline)
        span = (outline.turns[0].first, outline.through_seq)
        return Shown(with_input(outline, (span,)))
