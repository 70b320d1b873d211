"""last_turns: the newest turns, and nothing else."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from refold.domain.envelope import Envelope
from refold.domain.events import UserInput
from refold.projections.context.outline import Outline, OutlineBuilder
from refold.projections.context.strategy import Shown, Strategy, everything, with_input


class LastTurns(Strategy):
    """Send the ``n`` newest turns; nothing stands for older ones.

    A baseline: it costs no summary, and forgets.
    """

    name: ClassVar[str] = "last_turns"
    stable_prefix: ClassVar[bool] = False

    n: int = Field(default=5, ge=1)

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Forget the turns that are not sent again."""
        builder.take(envelope)
        if isinstance(envelope.payload, UserInput):
            outline = builder.outline()
            if (gone := len(outline.turns) - self.n) > 0:
                builder.begin(outline._replace(past=outline.past[gone:]))

    def show(self, outline: Outline) -> Shown:
        """The newest turns: all, while there were no more."""
        if outline.turn_count <= self.n:
            return everything(outline)
        span = (outline.turns[0].first, outline.through_seq)
        return Shown(with_input(outline, (span,)))
