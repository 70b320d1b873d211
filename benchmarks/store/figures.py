"""What a run measured, as data: for the tables, the plot and the file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.checks import Check

OURS = "refold"


@dataclass(frozen=True, slots=True)
class Figure:
    """How one contestant did one subject on one engine.

    seconds: the median of one operation, which is of ``events`` events.
    ratio:   how often as long Refold took, the median of neighbouring pairs; None for
             Refold itself, and where nothing was raced.
    size:    how long the session was, where that matters.
    """

    subject: str
    engine: str
    who: str
    seconds: float
    events: int = 1
    ratio: float | None = None
    size: int = 0

    @property
    def rate(self) -> float:
        """Events a second."""
        return self.events / self.seconds

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"events_per_second": round(self.rate, 1)}


@dataclass(frozen=True, slots=True)
class Stages:
    """Where the time of one append goes: medians in microseconds by stage."""

    engine: str
    when: str
    micros: dict[str, float]


@dataclass(slots=True)
class Figures:
    """All of one run.

    sizes:  by engine, then by who: bytes of one event with all indexes.
    memory: by engine, then by what was done: megabytes at the peak.
    summaries: by engine, then by how it was counted: their share of the log.
    rows:   by engine and length: of how many rows a context is made.
    notes:  what was left out, and why.
    """

    conditions: dict[str, str] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    stages: list[Stages] = field(default_factory=list)
    sizes: dict[str, dict[str, float]] = field(default_factory=dict)
    memory: dict[str, dict[str, float]] = field(default_factory=dict)
    summaries: dict[str, dict[str, float]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def find(self, subject: str, engine: str, who: str, size: int = 0) -> Figure | None:
        """That figure, if it was measured."""
        wanted = (subject, engine, who, size)
        for figure in self.figures:
            if (figure.subject, figure.engine, figure.who, figure.size) == wanted:
                return figure
        return None

    def note(self, said: str) -> None:
        """Say once that something is missing."""
        if said not in self.notes:
            self.notes.append(said)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "conditions": self.conditions,
            "figures": [figure.plain() for figure in self.figures],
            "stages": [asdict(stages) for stages in self.stages],
            "sizes": self.sizes,
            "memory": self.memory,
            "summaries": self.summaries,
            "rows": self.rows,
            "notes": self.notes,
            "checks": [asdict(c) | {"holds": c.holds} for c in self.checks],
        }
