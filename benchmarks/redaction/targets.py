"""What must hold, and whether it does."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.checks import Check
from benchmarks.redaction.datasets import STRUCTURED
from benchmarks.redaction.figures import Figures, Half
from benchmarks.redaction.score import Score

SENTENCES = "sentences (synth_v2)"
OWN = "own texts"
KEYS = "keys of vendors"
_LEAST_BY_TYPE = {
    "EMAIL": 0.99,
    "BANK_CARD": 0.99,
    "SSN": 0.99,
    "IP": 0.99,
    "IBAN": 0.97,
    "PHONE": 0.75,
}


def checks(figures: Figures, *, timed: bool) -> list[Check]:
    """Each promise beside its measurement; times only where they mean something."""
    speed = _speed(figures)
    return [
        *(speed if timed else (replace(check, measured=None) for check in speed)),
        *_sentences(figures, "development"),
        *_sentences(figures, "held out"),
        *_own(figures),
        *_clean(figures),
    ]


def _speed(figures: Figures) -> list[Check]:
    clean = figures.speed.get("clean", {})
    best, peer = _best(clean), clean.get("presidio")
    ratio = best / peer if best and peer else None
    mixed = figures.speed.get("mixed", {})
    worst = [max(times.values()) for times in figures.adversarial_ms.values()]
    slow = figures.speed.get("clean", {}).get("stdlib")
    small = figures.small_event_us.values()
    return [
        Check("clean text, best engine", best, least=150, unit="MB/s"),
        Check("clean text, times Presidio", ratio, least=500, unit="×"),
        Check("mixed, vectorscan", mixed.get("vectorscan"), least=60, unit="MB/s"),
        Check("JSON tool events", _best(figures.speed.get("events")), 80, unit="MB/s"),
        Check("an event of 174 bytes", min(small, default=None), most=6, unit="µs"),
        Check("standard library engine, clean", slow, least=8, unit="MB/s"),
        Check("worst of 30 adversarial", min(worst, default=None), most=150, unit="ms"),
    ]


def _best(speeds: dict[str, float] | None) -> float | None:
    ours = ("vectorscan", "stdlib")
    return max((v for k, v in (speeds or {}).items() if k in ours), default=None)


def _sentences(figures: Figures, half: Half) -> list[Check]:
    score = figures.find(SENTENCES, half, "refold")
    made = [
        Check(
            f"recall {kind}, {half}", score.types[kind].recall if score else None, least
        )
        for kind, least in _LEAST_BY_TYPE.items()
    ]
    together = _structured(score) if score else None
    precision = score.total.precision if score else None
    return [
        *made,
        Check(f"recall of structured types, {half}", together, least=0.92),
        Check(f"precision, {half}", precision, least=0.99),
    ]


def _structured(score: Score) -> float:
    counts = [score.types[kind] for kind in STRUCTURED.values()]
    return sum(c.whole for c in counts) / max(1, sum(c.spans for c in counts))


def _own(figures: Figures) -> list[Check]:
    wrong = figures.cases.get("refold")
    share = 1 - len(wrong) / figures.case_count if wrong is not None else None
    halves: tuple[Half, ...] = ("development", "held out")
    keys = {half: figures.find(KEYS, half, "refold") for half in halves}
    return [
        Check("labelled cases", share, least=0.95),
        *(
            Check(
                f"recall, keys of vendors, {half}",
                s.total.recall if s else None,
                least=0.9,
            )
            for half, s in keys.items()
        ),
    ]


def _clean(figures: Figures) -> list[Check]:
    false = figures.per_megabyte("refold") if "refold" in figures.noise else None
    changed = figures.code.get("changed_files")
    broken = figures.laws.get("broken")
    violations = sum(broken.values()) if broken is not None else None
    return [
        Check("false positives on noise", false, most=1, unit="per MB"),
        Check("code without secrets: files changed", changed, most=0),
        Check("violations of the laws", violations, most=0),
    ]
