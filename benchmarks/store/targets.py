"""What must hold, and whether it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.checks import Check
from benchmarks.store.appends import BATCH, SINGLE
from benchmarks.store.engines import FULL, NORMAL, POSTGRES
from benchmarks.store.figures import OURS, Figures
from benchmarks.store.folds import CHAIN, FOLD, FOLD_2, VERIFY
from benchmarks.store.imports import BULK, IMPORT
from benchmarks.store.load import ASYNCIO, THREADS
from benchmarks.store.raw import RAW, RawAsyncio
from benchmarks.store.reads import CONTEXT, LENGTH, STEADY
from benchmarks.store.transcripts import TAU

_MEGABYTES = 150


def checks(figures: Figures, *, timed: bool) -> list[Check]:
    """Each promise beside its measurement; times only where they mean something."""
    engines = dict.fromkeys(figure.engine for figure in figures.figures)
    made = [
        check
        for engine in (*engines, *(e for e in figures.sizes if e not in engines))
        for part in (_appends, _load, _bulk, _reads, _folds, _sizes)
        for check in part(figures, engine)
    ]
    if timed:
        return made
    return [replace(check, measured=None) for check in made]


def _appends(figures: Figures, engine: str) -> Iterator[Check]:
    single = {POSTGRES: 1.5, FULL: 1.8, NORMAL: 3.0}[engine]
    batch = {POSTGRES: 2.5, FULL: 4.5, NORMAL: 6.0}[engine]
    raw = _ratio(figures, SINGLE, engine, RAW)
    yield Check(f"{engine}: one append, to the driver's", raw, most=single, unit="×")
    peers = {
        POSTGRES: {"openai-agents": 4.0, "google-adk": 9.0},
        FULL: {"openai-agents": 8.0, "google-adk": 8.0},
    }
    for peer, least in peers.get(engine, {}).items():
        faster = _faster(figures, SINGLE, engine, peer)
        yield Check(
            f"{engine}: one append, faster than {peer}", faster, least=least, unit="×"
        )
    raw = _ratio(figures, BATCH, engine, RAW)
    yield Check(f"{engine}: batch of 100, to the driver's", raw, most=batch, unit="×")


def _load(figures: Figures, engine: str) -> Iterator[Check]:
    shares = {ASYNCIO: 1.0, THREADS: 0.7}
    rates = {FULL: (8_000, 5_000), NORMAL: (10_000, 6_000)}
    for place, (subject, share) in enumerate(shares.items()):
        if engine == POSTGRES:
            found = [
                faster
                for who in (RAW, RawAsyncio.name)
                if (faster := _faster(figures, subject, engine, who)) is not None
            ]
            yield Check(
                f"{engine}: {subject}, of the faster of 16 raw",
                min(found, default=None),
                least=share,
                unit="×",
            )
        else:
            rate = _rate(figures, subject, engine)
            least = rates[engine][place]
            yield Check(f"{engine}: {subject}", rate, least=least, unit="events/s")


def _bulk(figures: Figures, engine: str) -> Iterator[Check]:
    if engine != FULL:
        rate = _rate(figures, IMPORT, engine)
        yield Check(f"{engine}: import", rate, least=20_000, unit="events/s")
    if engine == POSTGRES:
        share = _faster(figures, IMPORT, engine, BULK)
        yield Check(f"{engine}: import, of COPY", share, least=0.28, unit="×")


def _reads(figures: Figures, engine: str) -> Iterator[Check]:
    found = [figure for figure in figures.figures if figure.engine == engine]
    for figure in found:
        if figure.subject != CONTEXT:
            continue
        if engine == POSTGRES and figure.who == RAW:
            what = f"{engine}: context at {figure.size:,}, to a SELECT of its rows"
            yield Check(what, figure.ratio, most=2.5, unit="×")
        if engine == NORMAL and figure.who == OURS:
            what = f"{engine}: context at {figure.size:,}"
            yield Check(what, figure.seconds * 1000, most=0.4, unit="ms")
    for figure in found:
        by_length = figure.subject == f"{LENGTH}: {STEADY}"
        if by_length and figure.ratio and engine != FULL:
            what = f"{engine}: context at {figure.size:,}, to that of a short session"
            yield Check(what, figure.ratio, most=1.3, unit="×")


def _folds(figures: Figures, engine: str) -> Iterator[Check]:
    if engine == FULL:  # it reads as NORMAL does
        return
    least = 75_000 if engine == NORMAL else 50_000
    yield Check(
        f"{engine}: {FOLD}", _rate(figures, FOLD, engine), least=least, unit="events/s"
    )
    if engine == POSTGRES:
        two = _ratio(figures, FOLD, engine, FOLD_2)
        yield Check(f"{engine}: 2 jobs, faster than 1", two, least=1.4, unit="×")
    chain = figures.find(VERIFY, engine, CHAIN)
    rate = chain.rate if chain else None
    yield Check(f"{engine}: {CHAIN}", rate, least=120_000, unit="events/s")
    rate = _rate(figures, VERIFY, engine)
    yield Check(f"{engine}: {VERIFY}", rate, least=80_000, unit="events/s")
    for what, peak in figures.memory.get(engine, {}).items():
        if what != "idle":
            yield Check(f"{engine}: memory of {what}", peak, most=_MEGABYTES, unit="MB")


def _sizes(figures: Figures, engine: str) -> Iterator[Check]:
    if engine == FULL:  # its file is that of NORMAL
        return
    sizes = figures.sizes.get(engine, {})
    json = sizes.get(f"{TAU}, JSON")
    share = sizes[TAU] / json if json else None
    most = 0.6 if engine == POSTGRES else 0.45
    yield Check(f"{engine}: storage of {TAU}, of its JSON", share, most=most, unit="×")


def _ratio(figures: Figures, subject: str, engine: str, who: str) -> float | None:
    figure = figures.find(subject, engine, who)
    return figure.ratio if figure else None


def _faster(figures: Figures, subject: str, engine: str, who: str) -> float | None:
    ratio = _ratio(figures, subject, engine, who)
    return 1 / ratio if ratio else None


def _rate(figures: Figures, subject: str, engine: str) -> float | None:
    figure = figures.find(subject, engine, OURS)
    return figure.rate if figure else None
