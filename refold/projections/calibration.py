"""How many tokens each feature of a text is worth, learned from recorded usage.

The weights are a linear estimate, corrected after each request (a Kalman filter): by
much while little is known, by less the more was seen.  It starts from what was
measured for the model's tokenizer, is sure of the proportions between the weights and
less sure of their size.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from refold.projections.models import DEFAULT_TOKENIZER
from refold.projections.text_features import Features

# Shares of a weight: of all together, and of each alone.
_UNSURE_TOGETHER: Final = 0.4
_UNSURE_ALONE: Final = 0.25
# What a request costs beside what is recorded of it, in tokens.
_UNSURE_BESIDE: Final = 2_000.0
# What no weights explain: the share by which requests differ from their estimate.
_NOISE: Final = 0.05
# A weight below this share of its start is noise: it would make text cost nothing.
_LEAST: Final = 0.2


@dataclass(frozen=True, slots=True)
class Weights:
    """Tokens for one of each feature, and how sure that is.

    seen: how many requests were learned from.
    """

    values: tuple[float, ...]
    spread: tuple[tuple[float, ...], ...]
    start: tuple[float, ...]
    seen: int = 0

    @property
    def beside(self) -> float:
        """What every request cost beside what is recorded of it."""
        return max(0.0, self.values[-1])

    def tokens(self, features: Features) -> float:
        """What a text of these features costs; more text never costs less."""
        each = zip(self.values, self.start, features[:-1], strict=False)
        return features.frame + sum(
            max(value, _LEAST * start) * count for value, start, count in each
        )

    def learned(self, features: Features, tokens: int) -> Weights:
        """The weights after a request that cost ``tokens``, which is above 0."""
        # In shares of what it cost, or long requests would drown the short ones.
        seen = [count / tokens for count in features[:-1]] + [1 / tokens]
        moved = [_dot(row, seen) for row in self.spread]
        doubt = _dot(seen, moved) + _NOISE**2
        wrong = 1 - features.frame / tokens - _dot(seen, self.values)
        values = (
            v + m * wrong / doubt for v, m in zip(self.values, moved, strict=True)
        )
        spread = (
            tuple(cell - a * b / doubt for cell, b in zip(row, moved, strict=True))
            for row, a in zip(self.spread, moved, strict=True)
        )
        return Weights(tuple(values), tuple(spread), self.start, self.seen + 1)


def starting(tokenizer: str) -> Weights:
    """The weights measured for ``tokenizer``; of one not measured, the default's."""
    known = measured()
    start = (*known.get(tokenizer, known[DEFAULT_TOKENIZER]), 0.0)
    together = [_UNSURE_TOGETHER * weight for weight in start]
    alone = [(_UNSURE_ALONE * max(weight, 0.05)) ** 2 for weight in start]
    alone[-1] = _UNSURE_BESIDE**2
    spread = tuple(
        tuple(
            a * b + (alone[row] if row == column else 0.0)
            for column, b in enumerate(together)
        )
        for row, a in enumerate(together)
    )
    return Weights(start, spread, start)


@cache
def measured() -> Mapping[str, tuple[float, ...]]:
    """The weights of each measured tokenizer, in the order of the features."""
    text = (files("refold") / "data" / "tokenizers.toml").read_text("utf-8")
    return {
        name: tuple(float(weights[field]) for field in Features._fields[:-1])
        for name, weights in tomllib.loads(text).items()
    }


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
