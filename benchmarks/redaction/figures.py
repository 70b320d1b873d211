"""What a run measured, as data: for the tables, the plot and the file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from benchmarks.checks import Check
from benchmarks.redaction.score import Count, Score

Half = Literal["development", "held out"]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How one tool did on one half of one set of labelled data."""

    data: str
    half: Half
    tool: str
    score: Score

    def plain(self, *, misses: bool) -> dict[str, Any]:
        """As JSON; what was missed only of what rules may be tuned to."""
        told: dict[str, Any] = {
            "data": self.data,
            "half": self.half,
            "tool": self.tool,
            "total": _counted(self.score.total),
            "types": {k: _counted(c) for k, c in sorted(self.score.types.items())},
        }
        if misses and self.half == "development":
            told |= {"missed": self.score.missed, "false": self.score.false}
        return told


@dataclass(slots=True)
class Figures:
    """All of one run.

    speed: by corpus, then by who ran: megabytes a second of processor time.
    noise: by tool, then by kind of noise: false positives.
    """

    machine: dict[str, str] = field(default_factory=dict)
    speed: dict[str, dict[str, float]] = field(default_factory=dict)
    small_event_us: dict[str, float] = field(default_factory=dict)
    adversarial_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    accuracy: list[Accuracy] = field(default_factory=list)
    cases: dict[str, dict[str, str]] = field(default_factory=dict)
    case_count: int = 0
    noise: dict[str, dict[str, int]] = field(default_factory=dict)
    noise_bytes: dict[str, int] = field(default_factory=dict)
    code: dict[str, Any] = field(default_factory=dict)
    laws: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def per_megabyte(self, tool: str) -> float:
        """False positives of ``tool`` in a megabyte of noise."""
        return sum(self.noise[tool].values()) / self.noise_bytes[tool] * 1e6

    def find(self, data: str, half: Half, tool: str) -> Score | None:
        """The score of ``tool``, or None if it was not measured."""
        for entry in self.accuracy:
            if (entry.data, entry.half, entry.tool) == (data, half, tool):
                return entry.score
        return None

    def plain(self, *, misses: bool) -> dict[str, Any]:
        """As JSON."""
        names = (
            *("machine", "speed", "small_event_us", "adversarial_ms", "cases"),
            *("case_count", "noise", "noise_bytes", "code", "laws"),
        )
        told: dict[str, Any] = {name: getattr(self, name) for name in names}
        told["accuracy"] = [entry.plain(misses=misses) for entry in self.accuracy]
        told["checks"] = [asdict(c) | {"holds": c.holds} for c in self.checks]
        return told


def _counted(count: Count) -> dict[str, float]:
    return asdict(count) | {
        "missed": count.missed,
        "recall": round(count.recall, 4),
        "precision": round(count.precision, 4),
    }
