"""keep_all: everything is sent raw, nothing is ever compacted."""

from __future__ import annotations

from typing import ClassVar

from refold.projections.context.outline import Detail
from refold.projections.context.strategy import Strategy


class KeepAll(Strategy):
    """Everything raw; the strategy of a session that asks for none."""

    name: ClassVar[str] = "keep_all"
    needs: ClassVar[Detail] = "counts"
