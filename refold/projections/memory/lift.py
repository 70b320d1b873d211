"""Lift: how sessions in which a model was shown an item ended, against the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

from refold.domain.events import JsonObject
from refold.projections.memory.confidence import lower_bound, upper_bound
from refold.projections.memory.families import untainted
from refold.projections.memory.shown import Shown


@dataclass(frozen=True, slots=True)
class Lift:
    """What goes with an item's being shown.  It is no proof that it is the cause.

    shown, without: sessions of the same scenarios that ended, with it and without.
    success:        the mean of how those with it ended, ``otherwise`` of the others.
    low, high:      between them the difference lies, at 80 %.
    iterations:     means of reflections with it; ``iterations_otherwise`` without.
    """

    memory_id: str
    shown: int
    without: int
    success: float | None
    otherwise: float | None
    low: float | None
    high: float | None
    iterations: float | None
    iterations_otherwise: float | None

    @property
    def difference(self) -> float | None:
        if self.success is None or self.otherwise is None:
            return None
        return self.success - self.otherwise

    def to_json(self) -> JsonObject:
        found: JsonObject = {name: getattr(self, name) for name in self.__slots__}
        return {**found, "difference": self.difference}


def lifts(shown: Iterable[Shown]) -> list[Lift]:
    """Of every item that any of these sessions was shown, those shown most first.

    Sessions that are tainted, or of which nothing says how they ended, say nothing.
    """
    known = [one for one in untainted(shown) if one.success is not None]
    names = sorted({name for one in known for name in one.advised})
    found = [_lift(name, known) for name in names]
    return sorted(found, key=lambda lift: (-lift.shown, lift.memory_id))


def _lift(name: str, known: Sequence[Shown]) -> Lift:
    scenarios = {one.scenario for one in known if name in one.advised}
    same = [one for one in known if one.scenario in scenarios]
    ours = [one for one in same if name in one.advised]
    others = [one for one in same if name not in one.advised]
    low, high = _interval(ours, others)
    return Lift(
        memory_id=name,
        shown=len(ours),
        without=len(others),
        success=_mean([one.success or 0.0 for one in ours]),
        otherwise=_mean([one.success or 0.0 for one in others]),
        low=low,
        high=high,
        iterations=_mean([float(one.iterations) for one in ours]),
        iterations_otherwise=_mean([float(one.iterations) for one in others]),
    )


def _interval(
    ours: Sequence[Shown], others: Sequence[Shown]
) -> tuple[float | None, float | None]:
    """R. G. Newcombe, Interval estimation for the difference between independent
    proportions, Statistics in Medicine 17 (1998), 873-890, his method 10.
    """
    if not ours or not others:
        return None, None
    (p, low, high), (q, below, above) = _rate(ours), _rate(others)
    return (
        round(p - q - sqrt((p - low) ** 2 + (above - q) ** 2), 6),
        round(p - q + sqrt((high - p) ** 2 + (q - below) ** 2), 6),
    )


def _rate(some: Sequence[Shown]) -> tuple[float, float, float]:
    good = sum(one.success or 0.0 for one in some)
    return good / len(some), lower_bound(good, len(some)), upper_bound(good, len(some))


def _mean(values: Sequence[float]) -> float | None:
    return round(fmean(values), 6) if values else None
