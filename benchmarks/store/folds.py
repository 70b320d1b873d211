"""Reading everything again: rebuilds and proofs, by rate and by memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

from benchmarks.store import footprint, payloads
from benchmarks.store.field import Field, Scale
from benchmarks.store.figures import Figures
from benchmarks.store.racing import Subject, Way, race
from benchmarks.store.reads import STRATEGY

FOLD, FOLD_2 = "rebuild, 1 job", "rebuild, 2 jobs"
VERIFY, CHAIN = "verify", "verify, chain only"
_SHARES = 10


async def folds(field: Field, figures: Figures, scale: Scale) -> None:
    """On one session of half of the events and ten of the other half."""
    engine, store = field.engine.name, field.ours.store
    count = _filled(field, scale.events)
    rebuild = partial(store.rebuild, STRATEGY, dry_run=True)
    chain = Way(CHAIN, lambda _: _all(store.verify(chain_only=True)))
    rounds = max(1, min(3, scale.reads))
    two = Way(FOLD_2, lambda _: _all(rebuild(jobs=2)))
    for name, work, others in (
        (FOLD, lambda _: _all(rebuild(jobs=1)), [two]),
        (VERIFY, lambda _: _all(store.verify()), [chain]),
    ):
        subject = Subject(name, engine, events=count)
        figures.figures += await race(subject, Way(name, work), others, rounds)
    figures.memory[engine] = {what: _peak(field, what) for what in scale.footprints}


def _filled(field: Field, events: int) -> int:
    """Write the sessions; returns how many events they have."""
    turns = events // 2 // payloads.TURN or 1
    for name in _names():
        share = turns if name == "long" else max(1, turns // _SHARES)
        session = field.ours.session(name)
        for numbers in payloads.chunks(share, 5):
            session.append([event for n in numbers for event in payloads.turn(n)])
    return (turns + _SHARES * max(1, turns // _SHARES)) * payloads.TURN


def _names() -> list[str]:
    return ["long", *(f"short-{number}" for number in range(_SHARES))]


def _all(results: Iterable[Any]) -> None:
    """Run through them; a problem would be a different work than what is measured."""
    for result in results:
        found = result[1] if isinstance(result, tuple) and len(result) == 2 else result
        if problems := getattr(found, "problems", None) or getattr(
            found, "problem", None
        ):
            raise AssertionError(f"the benchmark's own log has problems: {problems}")


def _peak(field: Field, what: str) -> float:
    """Megabytes at the peak of a process that does only this."""
    command = [sys.executable, footprint.__file__]
    printed = subprocess.check_output(
        [*command, field.ours.url, field.ours.keys, what, STRATEGY], text=True
    )
    return float(printed)
