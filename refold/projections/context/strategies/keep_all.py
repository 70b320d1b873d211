"""keep_all: views show all events raw, and nothing is ever compacted."""

from __future__ import annotations

from typing import ClassVar

from refold.projections.context.outline import Detail
from refold.projections.context.strategy import RULES, Strategy


class KeepAll(Strategy):
    """Show all events raw.  Sessions without another strategy use it."""

    name: ClassVar[str] = "keep_all"
    version: ClassVar[int] = 5
    rules: ClassVar[int] = RULES
    needs: ClassVar[Detail] = "counts"
