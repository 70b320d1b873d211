"""One append at a time, and a hundred events in one."""

from __future__ import annotations

from functools import partial

from benchmarks.store import stages
from benchmarks.store.contestant import Contestant
from benchmarks.store.field import Field, Scale
from benchmarks.store.figures import Figures
from benchmarks.store.racing import Subject, Way, race
from benchmarks.store.raw import File

SINGLE, BATCH = "one append", "batch of 100"
_HUNDRED = 100
_SESSIONS = ("single", "batch")


async def appends(field: Field, figures: Figures, scale: Scale) -> None:
    """Both, and where the time of one append goes."""
    await field.begin(*_SESSIONS)
    await _single(field, figures, scale)
    await _batch(field, figures, scale)
    figures.stages += stages.stages(field.engine, field.ours, scale.rounds)


async def _single(field: Field, figures: Figures, scale: Scale) -> None:
    file = File(field.engine.folder)
    others = [
        Way(other.name, partial(other.append, "single")) for other in field.others
    ]
    subject = Subject(SINGLE, field.engine.name)
    ways = [*others, Way(file.name, file.append)]
    ours = Way(field.ours.name, partial(field.ours.append, "single"))
    try:
        figures.figures += await race(subject, ours, ways, scale.rounds)
    finally:
        file.close()


async def _batch(field: Field, figures: Figures, scale: Scale) -> None:
    subject = Subject(BATCH, field.engine.name, events=_HUNDRED)
    ways = [_hundred(other) for other in field.others]
    figures.figures += await race(subject, _hundred(field.ours), ways, scale.batches)


def _hundred(contestant: Contestant) -> Way:
    def work(number: int) -> object:
        first = number * _HUNDRED
        return contestant.batch("batch", range(first, first + _HUNDRED))

    return Way(contestant.name, work)
