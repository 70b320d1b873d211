"""What must hold, beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must hold, and what was measured."""

    what: str
    measured: float | None
    least: float | None = None
    most: float | None = None
    unit: str = ""

    @property
    def holds(self) -> bool | None:
        """None: not measured in this run."""
        if self.measured is None:
            return None
        over = self.least is None or self.measured >= self.least
        return over and (self.most is None or self.measured <= self.most)
