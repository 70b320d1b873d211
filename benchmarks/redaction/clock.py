"""Time on one core, by the processor's own count."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keep this process on one core, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass
class Race(Generic[_Item]):
    """Several ways to do the same work, timed in turn: a busy machine slows all.

    Each has items of its own: a slow one gets a sample.  What counts is the best round.
    """

    size: Callable[[_Item], int]
    _runners: dict[str, tuple[Callable[[_Item], object], Sequence[_Item]]] = field(
        default_factory=dict
    )

    def enter(
        self, name: str, work: Callable[[_Item], object], items: Sequence[_Item]
    ) -> None:
        """Let ``name`` run ``work`` over ``items`` in each round."""
        self._runners[name] = (work, items)

    def run(self, rounds: int) -> Mapping[str, float]:
        """Bytes a second of each, best of ``rounds``."""
        best = dict.fromkeys(self._runners, 0.0)
        for _ in range(rounds):
            for name, (work, items) in self._runners.items():
                spent = seconds(work, items)
                best[name] = max(best[name], sum(map(self.size, items)) / spent)
        return best


def seconds(work: Callable[[_Item], object], items: Sequence[_Item]) -> float:
    """Seconds of processor time that ``work`` takes over all ``items``."""
    start = time.process_time()
    for item in items:
        work(item)
    return max(time.process_time() - start, 1e-9)


def sample(
    items: Sequence[_Item], size: Callable[[_Item], int], most: int
) -> list[_Item]:
    """Items from all over, about ``most`` bytes in all."""
    step = max(1, sum(map(size, items)) // most)
    return [*items[step // 2 :: step]] or [*items[:1]]
