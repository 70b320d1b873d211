"""keep_all: everything is sent raw, nothing is ever compacted."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from refold.projections.context.compaction import Compaction
from refold.projections.context.outline import Detail, Outline
from refold.projections.context.strategy import Strategy


class KeepAll(Strategy):
    """Everything raw; the strategy of a session that asks for none."""

    name: ClassVar[str] = "keep_all"
    needs: ClassVar[Detail] = "counts"

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:  # noqa: ARG002  # nothing is ever due
        """None: nothing is ever due."""
        return None
