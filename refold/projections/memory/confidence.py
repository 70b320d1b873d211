"""How sure a rate is: a lower bound that grows with independent sessions."""

from __future__ import annotations

from math import sqrt
from typing import Final

# One-sided, 90 %: of ten bounds nine are below what they bound.
Z: Final = 1.2816


def lower_bound(successes: float, sessions: float) -> float:
    """The lower end of Wilson's interval for ``successes`` of ``sessions``, 0 to 1.

    E. B. Wilson, Probable Inference, the Law of Succession, and Statistical Inference,
    Journal of the American Statistical Association 22 (1927), 209-212.  Partial
    successes count as their part.  Nothing is sure of nothing: 0 of 0 is 0.
    """
    if sessions <= 0:
        return 0.0
    rate, square = successes / sessions, Z * Z
    middle = rate + square / (2 * sessions)
    spread = Z * sqrt(rate * (1 - rate) / sessions + square / (4 * sessions**2))
    return max(0.0, (middle - spread) / (1 + square / sessions))


def upper_bound(successes: float, sessions: float) -> float:
    """The upper end of the same interval; of 0 of 0 nothing is sure: 1."""
    return 1.0 - lower_bound(sessions - successes, sessions) if sessions > 0 else 1.0
