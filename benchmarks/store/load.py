"""Sixteen sessions at once: in threads, and in tasks of one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Barrier
from typing import Any

from benchmarks.store.contestant import Contestant
from benchmarks.store.field import Field, Scale
from benchmarks.store.figures import Figures
from benchmarks.store.racing import Subject, Way, race
from benchmarks.store.raw import RawAsyncio, RawPostgres

THREADS, ASYNCIO = "16 sessions, threads", "16 sessions, asyncio"
SESSIONS = tuple(f"s{number:02}" for number in range(16))
Append = Callable[[str, int], Any]


async def load(field: Field, figures: Figures, scale: Scale) -> None:
    """Ours in both ways against everyone in the way that is theirs."""
    await field.begin(*SESSIONS)
    engine, each = field.engine.name, scale.each
    with ExitStack() as opened:
        others = [
            Way(other.name, opened.enter_context(_work(other, each)))
            for other in field.others
        ]
        beside = RawAsyncio(field.raw) if isinstance(field.raw, RawPostgres) else None
        if beside:
            for session in SESSIONS:
                await beside.begin(session)
            others.append(Way(beside.name, _in_tasks(beside.append, each)))
        threads = opened.enter_context(_in_threads(field.ours.append, each))
        for name, work in (
            (THREADS, threads),
            (ASYNCIO, _in_tasks(field.ours.append_async, each)),
        ):
            subject = Subject(name, engine, events=len(SESSIONS) * each)
            ours = Way(field.ours.name, work)
            figures.figures += await race(subject, ours, others, scale.loads)
        if beside:
            await beside.close()


@contextmanager
def _work(contestant: Contestant, each: int) -> Iterator[Callable[[int], Any]]:
    if contestant.style == "asyncio":
        yield _in_tasks(contestant.append, each)
        return
    with _in_threads(contestant.append, each) as work:
        yield work


@contextmanager
def _in_threads(append: Append, each: int) -> Iterator[Callable[[int], Any]]:
    """A thread for each session; all are there before the first round."""

    def run(session: str, number: int) -> None:
        together.wait()
        for index in range(each):
            append(session, number * each + index)

    together = Barrier(len(SESSIONS))
    with ThreadPoolExecutor(len(SESSIONS)) as pool:
        yield lambda number: list(pool.map(run, SESSIONS, [number] * len(SESSIONS)))


def _in_tasks(
    append: Callable[[str, int], Awaitable[Any]], each: int
) -> Callable[[int], Any]:
    """A task for each session."""

    async def run(session: str, number: int) -> None:
        for index in range(each):
            await append(session, number * each + index)

    async def work(number: int) -> None:
        await asyncio.gather(*(run(session, number) for session in SESSIONS))

    return work
