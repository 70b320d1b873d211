"""How much a session's word counts: a single extreme one must not move a rate far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from refold.projections.memory.shown import Shown

# The agent's own word, where neither the environment nor a human says anything.
OWN_WORD: Final = 0.5
# So many deviations from the median are usual; beyond, weight falls as distance grows.
_USUAL: Final = 3.0
# Of normal data, the standard deviation is so many median absolute deviations.
_NORMAL: Final = 1.4826
_FEWEST: Final = 5
_MEASURES: Final[tuple[Callable[[Shown], float], ...]] = (
    lambda one: one.tokens,
    lambda one: one.milliseconds,
    lambda one: len(one.walked),
    lambda one: one.iterations,
)


def weights(shown: Sequence[Shown]) -> dict[str, float]:
    """By session, what its word counts among these: 1, or less, above 0.

    A session whose tokens, time, steps or reflections are far from the median counts
    as ``_USUAL`` robust deviations over its distance: the weights of P. J. Huber,
    Robust Estimation of a Location Parameter, Annals of Mathematical Statistics 35
    (1964), 73-101, with the median absolute deviation as the scale.  Fewer than five
    sessions have no usual; where more than half are equal, the scale is a tenth of
    the median, or 1.
    """
    parts = [_measured([measure(one) for one in shown]) for measure in _MEASURES]
    return {
        one.session_id: min(part[index] for part in parts)
        * (OWN_WORD if one.own_word else 1.0)
        for index, one in enumerate(shown)
    }


def _measured(values: Sequence[float]) -> list[float]:
    if len(values) < _FEWEST:
        return [1.0] * len(values)
    middle = median(values)
    spread = _NORMAL * median(abs(value - middle) for value in values)
    scale = spread or max(1.0, abs(middle) / 10)
    return [
        min(1.0, _USUAL * scale / abs(value - middle)) if value != middle else 1.0
        for value in values
    ]
