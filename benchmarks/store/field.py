"""Who takes part on one engine, and how much work they are given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks.store.contestant import Contestant
from benchmarks.store.engines import NORMAL, Engine
from benchmarks.store.figures import Figures
from benchmarks.store.ours import Refold
from benchmarks.store.peers import peers
from benchmarks.store.raw import RawPostgres, RawSqlite, raw


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything.

    events:  of an import, of the longest session, of a rebuild.
    rounds:  pairs of single appends; ``batches`` those of a hundred.
    each:    appends of each of the sessions at once, in each of ``loads`` rounds.
    reads:   pairs of full reads, at most; ``contexts`` those of contexts, which are
             also made under that many ``strategies``.
    footprints: what is done in a process of its own, to see its memory.
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

    @classmethod
    def quick(cls, events: int | None = None) -> Scale:
        """Enough to see that all runs."""
        return cls(
            *(events or 2_000, 8, 2, 2),
            loads=2,
            reads=1,
            contexts=2,
            strategies=2,
            footprints=("idle",),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of sessions that are read: a hundredth, a tenth, and all."""
        found = (self.events // 100, self.events // 10, self.events)
        return tuple(sorted({max(20, size) for size in found}))


@dataclass(frozen=True, slots=True)
class Field:
    """Ours, the driver, and the peers; each with an empty database of its own."""

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
async def field(engine: Engine, figures: Figures) -> AsyncIterator[Field]:
    """Everyone who can be measured on this engine.

    The peers do not run with NORMAL: none of them sets it.
    """
    found = [] if engine.name == NORMAL else await peers(engine, figures)
    made = Field(engine, Refold(engine), raw(engine), found)
    try:
        await made.raw.open()
        yield made
    finally:
        for contestant in (made.ours, *made.others):
            await contestant.close()
