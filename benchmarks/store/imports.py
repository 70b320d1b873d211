"""Many events at once: as ``refold import`` writes them, against COPY."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import isawaitable
from typing import Any

from benchmarks.store import payloads
from benchmarks.store.field import Field, Scale
from benchmarks.store.figures import Figures
from benchmarks.store.ours import Refold
from benchmarks.store.racing import Subject, Way, race
from refold.domain.envelope import Draft, Meta
from refold.store.sessions import extend

IMPORT = "import"
BULK = "COPY or executemany"
_SESSION = 1_000
_BATCH = 100


async def imports(field: Field, figures: Figures, scale: Scale) -> None:
    """Session after session of a thousand events; what they are made of is included."""
    size = min(_SESSION, scale.events)
    rounds = max(1, scale.events // size)
    ways = [Way(BULK, _sessions(field.raw.copy, size))]
    for peer in field.peers:
        if peer.batches and peer.name != "langgraph":  # a checkpoint is no import
            await peer.begin("import")
            ways.append(Way(peer.name, _one_session(peer.batch, size)))
    subject = Subject(IMPORT, field.engine.name, events=size)
    ours = Way(field.ours.name, _extended(field.ours, size))
    share = max(1, rounds // len(ways))
    figures.figures += await race(subject, ours, ways, share)


def _extended(ours: Refold, size: int) -> Callable[[int], Any]:
    done = _Counter()

    def work(_: int) -> object:
        number = done.next()
        drafts = [
            Draft(payloads.event(index), meta=Meta(source={"place": f"line {index}"}))
            for index in range(number * size, (number + 1) * size)
        ]
        return extend(ours.session(f"i-{number}"), drafts, where="the benchmark")

    return work


def _sessions(
    copy: Callable[[str, Sequence[int]], object], size: int
) -> Callable[[int], Any]:
    done = _Counter()

    def work(_: int) -> object:
        number = done.next()
        return copy(f"i-{number}", range(number * size, (number + 1) * size))

    return work


def _one_session(
    batch: Callable[[str, Sequence[int]], Any], size: int
) -> Callable[[int], Any]:
    done = _Counter()

    async def work(_: int) -> None:
        number = done.next()
        for first in range(number * size, (number + 1) * size, _BATCH):
            # A pipeline of a thousand inserts hangs in one of them.
            stored = batch("import", range(first, first + _BATCH))
            if isawaitable(stored):
                await stored

    return work


class _Counter:
    def __init__(self) -> None:
        self._next = -1

    def next(self) -> int:
        self._next += 1
        return self._next
