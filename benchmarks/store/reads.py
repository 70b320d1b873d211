"""Reading: a whole session, and the context of one that is still growing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import orjson

from benchmarks.store import payloads
from benchmarks.store.field import Field, Scale
from benchmarks.store.figures import Figures
from benchmarks.store.racing import Subject, Way, race
from refold.projections.context.view import View
from refold.store import Session

FULL_READ, CONTEXT, LENGTH = "full read", "context", "context, by length"
STRATEGY = "turn_window"
# Its memory is full in a short session already, as that of the others is not: what it
# shows is as much at either length.
STEADY = "turn_window:session_memory_tokens=1500"
STRATEGIES = (
    STRATEGY,
    STEADY,
    "message_window",
    "hybrid",
    "history_summary",
    "recursive_summary",
)
_OF_MAIN = ("raw", "stub", "pinned")
# Beyond so many events a session is compacted under the first two strategies only.
_MOST = 10_000
_LONG = 2
_TURNS = 5


async def reads(field: Field, figures: Figures, scale: Scale) -> None:
    """Sizes on the disk too, as soon as everyone holds the same."""
    await _full(field, figures, scale)
    await _contexts(field, figures, scale)


async def _full(field: Field, figures: Figures, scale: Scale) -> None:
    everyone = (field.ours, *field.others)
    empty = {one.name: one.stored() for one in everyone}
    for size in scale.sizes:
        for one in everyone:
            if size <= one.most:
                await one.fill(f"r-{size}", size)
    for one in everyone:
        if one.name != "langgraph":  # filled with one checkpoint: not how it is used
            held = sum(size for size in scale.sizes if size <= one.most)
            grown = one.stored() - empty[one.name]
            figures.sizes.setdefault(field.engine.name, {})[one.name] = grown / held
    for size in scale.sizes:
        session = f"r-{size}"
        ways = [
            Way(other.name, partial(_read, other.read, session))
            for other in field.others
            if size <= other.most
        ]
        subject = Subject(FULL_READ, field.engine.name, events=size, size=size)
        ours = Way(field.ours.name, partial(_read, field.ours.read, session))
        rounds = max(1, min(scale.reads, 500_000 // size))
        figures.figures += await race(subject, ours, ways, rounds)


def _read(read: Callable[[str], Any], session: str, _: int) -> Any:
    return read(session)


async def _contexts(field: Field, figures: Figures, scale: Scale) -> None:
    small, *_, long_ = scale.sizes
    engine, all_ = field.engine.name, STRATEGIES[: scale.strategies]
    for size in scale.sizes:
        strategies = all_ if size <= _MOST else all_[:_LONG]
        session = _grown(field, f"c-{size}", size, strategies)
        view = session.context(STRATEGY)
        count = figures.rows[f"{engine}, {size:,} events"] = _rows(view)
        rows = partial(_newest, field.raw.newest, f"c-{size}", count)
        subject = Subject(CONTEXT, engine, size=size)
        ours, raw = _context(field, f"c-{size}", STRATEGY), Way(field.raw.name, rows)
        figures.figures += await race(subject, ours, [raw], scale.contexts)
    for place, strategy in enumerate(all_):
        reached = long_ if place < _LONG else _longest(scale)
        ways = [_context(field, f"c-{size}", strategy) for size in (reached, small)]
        subject = Subject(f"{LENGTH}: {strategy}", engine, size=reached)
        figures.figures += await race(subject, ways[0], ways[1:], scale.contexts)


def _newest(newest: Callable[[str, int], Any], session: str, count: int, _: int) -> Any:
    return newest(session, count)


def _longest(scale: Scale) -> int:
    return max(size for size in scale.sizes if size <= max(_MOST, scale.sizes[0]))


def _context(field: Field, session: str, strategy: str) -> Way:
    found = field.ours.session(session)
    return Way(session, lambda _: found.context(strategy))


def _grown(field: Field, name: str, size: int, strategies: tuple[str, ...]) -> Session:
    """A session as if these strategies always ran; the driver has its payloads."""
    session = field.ours.session(name)
    turns = payloads.conversation(size)
    while some := [event for turn in islice(turns, _TURNS) for event in turn]:
        session.append(some)
        field.raw.put(name, [orjson.dumps(event.payload()) for event in some])
    for strategy in strategies:
        list(field.ours.store.rebuild(strategy, session.user_id, name))
        session.context(strategy)
    session.catch_up()
    return session


def _rows(view: View) -> int:
    """How many rows a view is made of: events it shows, and its summaries."""
    shown = sum(
        span.last - span.first + 1
        for span in view.spans
        if span.kind in _OF_MAIN and span.first and span.last
    )
    return shown + sum(span.summary is not None for span in view.spans)
