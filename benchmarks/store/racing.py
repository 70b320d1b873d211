"""Two contestants in turn, pair by pair: the ratio within a pair counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from types import CoroutineType
from typing import Any, NamedTuple

from benchmarks.report import Check
from benchmarks.store.contestants import (
    NORMAL,
    OURS,
    Contestant,
    Engine,
    RawPostgres,
    RawSqlite,
    Refold,
    raw,
)
from benchmarks.store.peers import peers


@dataclass(frozen=True, slots=True)
class Figure:
    """The result of one contestant for one subject on one engine.

    seconds: the median of one operation on ``events`` events.
    ratio:   how many times as long Refold took, the median of neighboring pairs; None
             for Refold itself, and if nothing was raced.
    size:    the length of the session, if that matters.
    cpu:     the ratio of the callers' CPU time: load hardly changes it.
    """

    subject: str
    engine: str
    who: str
    seconds: float
    events: int = 1
    ratio: float | None = None
    size: int = 0
    cpu: float | None = None

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
    """All figures of one run.

    sizes:  by engine, then by contestant: bytes of one event with all indexes.
    memory: by engine, then by operation: megabytes at the peak.
    summaries: by engine, then by counting method: their share of the log.
    rows:   by engine and length: the number of rows behind a context.
    commands: seconds of CPU of a call in this process.
    cold:   seconds of CPU of a short process above those of a bare Python, with the
            most that it may take.
    spread: by engine, then by operation: the CPU of one process, divided by that of the
            busier one of two that share the work.  Other load hardly moves it.
    notes:  the parts that were left out, and why.
    """

    conditions: dict[str, str] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    stages: list[Stages] = field(default_factory=list)
    sizes: dict[str, dict[str, float]] = field(default_factory=dict)
    memory: dict[str, dict[str, float]] = field(default_factory=dict)
    summaries: dict[str, dict[str, float]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    commands: dict[str, float] = field(default_factory=dict)
    cold: dict[str, tuple[float, float]] = field(default_factory=dict)
    spread: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def find(self, subject: str, engine: str, who: str, size: int = 0) -> Figure | None:
        """That figure, if it was measured."""
        wanted = (subject, engine, who, size)
        for figure in self.figures:
            if (figure.subject, figure.engine, figure.who, figure.size) == wanted:
                return figure
        return None

    def note(self, sentence: str) -> None:
        """Say once that something is missing."""
        if sentence not in self.notes:
            self.notes.append(sentence)

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
            "commands": self.commands,
            "cold": self.cold,
            "spread": self.spread,
            "notes": self.notes,
            "checks": [asdict(c) | {"holds": c.holds} for c in self.checks],
        }


@dataclass(frozen=True, slots=True)
class Scale:
    """The amounts of a run.

    events:  of an import, of the longest session, of a rebuild.
    first:   pairs of appends that are counted apart, before the steady state.
    rounds:  pairs of single appends; ``batches`` those of a hundred.
    each:    concurrent appends of each session, in each of ``loads`` rounds.
    reads:   pairs of full reads, at most; ``contexts`` those of contexts, which are
             also built under that many ``strategies``.
    footprints: operations that run in a separate process to measure memory.
    starts:  how often each short process is started.
    """

    events: int = 100_000
    rounds: int = 300
    batches: int = 40
    each: int = 60
    loads: int = 7
    reads: int = 15
    contexts: int = 100
    strategies: int = 6
    footprints: tuple[str, ...] = ("idle", "rebuild", "verify")
    first: int = 300
    starts: int = 7

    @classmethod
    def quick(cls, events: int | None = None) -> Scale:
        """The same pairs, fewer of them, of shorter sessions: a few minutes."""
        return cls(
            events or 8_000,
            120,
            16,
            25,
            loads=3,
            reads=3,
            contexts=40,
            strategies=2,
            starts=2,
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of sessions that are read: a hundredth, a tenth, and all."""
        candidates = (self.events // 100, self.events // 10, self.events)
        return tuple(sorted({max(20, size) for size in candidates}))


@dataclass(frozen=True, slots=True)
class Field:
    """Ours, the driver, and the peers; each with its own empty database."""

    engine: Engine
    ours: Refold
    raw: RawPostgres | RawSqlite
    peers: Sequence[Contestant]

    @property
    def others(self) -> tuple[Contestant, ...]:
        """All but ours."""
        return (self.raw, *self.peers)

    async def begin(self, *sessions: str) -> None:
        """Make these sessions with everyone."""
        for contestant in (self.ours, *self.others):
            for session in sessions:
                await contestant.begin(session)


@asynccontextmanager
async def taking_part(engine: Engine, figures: Figures) -> AsyncIterator[Field]:
    """Return all contestants that can be measured on this engine.

    The peers do not run with NORMAL: none of them sets it.
    """
    others = [] if engine.name == NORMAL else await peers(engine, figures.note)
    field = Field(engine, Refold(engine), raw(engine), others)
    try:
        await field.raw.open()
        yield field
    finally:
        for contestant in (field.ours, *field.others):
            await contestant.close()


Work = Callable[[int], Any]
_WARM = 3


@dataclass(frozen=True, slots=True)
class Way:
    """One way to do the work: called with the number of the round, or awaited."""

    who: str
    work: Work


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a race, its engine, its concurrency, and its session length."""

    name: str
    engine: str
    events: int = 1
    size: int = 0

    def figure(
        self,
        who: str,
        times: Sequence[float],
        ratio: float | None = None,
        cpu: float | None = None,
    ) -> Figure:
        """The figure of one contestant."""
        median = statistics.median(times)
        return Figure(
            self.name, self.engine, who, median, self.events, ratio, self.size, cpu
        )


class Took(NamedTuple):
    """Seconds, by the clock and of this thread's CPU."""

    wall: float
    cpu: float


async def seconds(work: Work, number: int) -> Took:
    """Return how long the work takes, awaited if it is a coroutine."""
    computed = time.thread_time()
    start = time.perf_counter()
    result = work(number)
    if isinstance(result, CoroutineType):
        await result
    return Took(time.perf_counter() - start, time.thread_time() - computed)


async def race(
    subject: Subject,
    ours: Way,
    others: Sequence[Way],
    rounds: int,
    *,
    warm: int = _WARM,
) -> list[Figure]:
    """Race ours against each of the others; the first of a pair alternates too.

    The first figure is ours, over all pairs.

    warm: the most pairs that are not counted, before the others.
    """
    own: list[float] = []
    figures = []
    for other in others:
        pairs = await _pairs(ours.work, other.work, rounds, warm)
        own += [ours_taken.wall for ours_taken, _ in pairs]
        ratio = statistics.median(
            ours_taken.wall / theirs_taken.wall for ours_taken, theirs_taken in pairs
        )
        cpus = [
            ours_taken.cpu / theirs_taken.cpu
            for ours_taken, theirs_taken in pairs
            if theirs_taken.cpu
        ]
        times = [theirs_taken.wall for _, theirs_taken in pairs]
        cpu = statistics.median(cpus) if cpus else None
        figures.append(subject.figure(other.who, times, ratio, cpu))
    if not others:
        own = [(await seconds(ours.work, number)).wall for number in range(rounds)]
    return [subject.figure(OURS, own), *figures]


async def _pairs(
    ours: Work, other: Work, rounds: int, warm: int
) -> list[tuple[Took, Took]]:
    for number in range(min(warm, rounds // 10)):
        await seconds(ours, number)
        await seconds(other, number)
    pairs = []
    for number in range(rounds):
        if number % 2:
            own_taken = await seconds(ours, number)
            other_taken = await seconds(other, number)
        else:
            other_taken = await seconds(other, number)
            own_taken = await seconds(ours, number)
        pairs.append((own_taken, other_taken))
    return pairs
