"""How much each session weighs, so that none outvotes the others or the present."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# A session weighs at most as much as two others: of three, which are the fewest that
# may say anything, none then has more than half of the weight.
_OTHERS: Final = 2


def weights(counts: Sequence[int]) -> list[float]:
    """What each session weighs, given how many verdicts of each there are.

    As many as it has, but at most twice the median of the other sessions'; one session
    by itself weighs 1.
    """
    if len(counts) == 1:
        return [1.0]
    ordered = sorted(counts)
    places = {count: place for place, count in enumerate(ordered)}
    return [
        min(float(count), _OTHERS * _median_without(ordered, places[count]))
        for count in counts
    ]


def _median_without(ordered: Sequence[int], place: int) -> float:
    """The median of all but the one at ``place``."""

    def rest(index: int) -> int:
        return ordered[index if index < place else index + 1]

    left = len(ordered) - 1
    return (rest((left - 1) // 2) + rest(left // 2)) / 2


def mean(values: Sequence[float], weighed: Sequence[float]) -> float:
    """The weighted mean; 0 of nothing."""
    whole = sum(weighed)
    pairs = zip(values, weighed, strict=True)
    return sum(value * weight for value, weight in pairs) / whole if whole else 0.0


def effective(weighed: Sequence[float]) -> float:
    """How many sessions of equal weight would say it as surely; 0 of nothing.

    L. Kish, Survey Sampling (Wiley, 1965): the square of the sum by the sum of squares.
    """
    squares = sum(weight * weight for weight in weighed)
    return sum(weighed) ** 2 / squares if squares else 0.0
