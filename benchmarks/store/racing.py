"""Two contestants in turn, pair by pair: what counts is the ratio within a pair."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CoroutineType
from typing import Any

from benchmarks.store.figures import OURS, Figure

Work = Callable[[int], Any]
_WARM = 3


@dataclass(frozen=True, slots=True)
class Way:
    """One way to do the work: called with the number of the round, or awaited."""

    who: str
    work: Work


@dataclass(frozen=True, slots=True)
class Subject:
    """What is raced, where, how much of it at once and in how long a session."""

    name: str
    engine: str
    events: int = 1
    size: int = 0

    def figure(
        self, who: str, times: Sequence[float], ratio: float | None = None
    ) -> Figure:
        """The figure of one contestant."""
        median = statistics.median(times)
        return Figure(
            self.name, self.engine, who, median, self.events, ratio, self.size
        )


async def seconds(work: Work, number: int) -> float:
    """How long the work takes, awaited if it is a coroutine."""
    start = time.perf_counter()
    result = work(number)
    if isinstance(result, CoroutineType):
        await result
    return time.perf_counter() - start


async def race(
    subject: Subject, ours: Way, others: Sequence[Way], rounds: int
) -> list[Figure]:
    """Ours against each of the others in turn; which of a pair goes first, too.

    The first figure is ours, over all pairs.
    """
    own: list[float] = []
    figures = []
    for other in others:
        pairs = await _pairs(ours.work, other.work, rounds)
        own += [mine for mine, _ in pairs]
        ratio = statistics.median(mine / theirs for mine, theirs in pairs)
        times = [theirs for _, theirs in pairs]
        figures.append(subject.figure(other.who, times, ratio))
    if not others:
        own = [await seconds(ours.work, number) for number in range(rounds)]
    return [subject.figure(OURS, own), *figures]


async def _pairs(ours: Work, other: Work, rounds: int) -> list[tuple[float, float]]:
    for number in range(min(_WARM, rounds // 10)):
        await seconds(ours, number)
        await seconds(other, number)
    pairs = []
    for number in range(rounds):
        if number % 2:
            mine = await seconds(ours, number)
            theirs = await seconds(other, number)
        else:
            theirs = await seconds(other, number)
            mine = await seconds(ours, number)
        pairs.append((mine, theirs))
    return pairs
