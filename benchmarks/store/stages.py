"""Where the time of one append goes, measured at the seams between the parts.

The functions at the seams are wrapped for the length of the measurement; the product
has no hook for it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import refold
from benchmarks.store import payloads
from benchmarks.store.engines import Engine
from benchmarks.store.figures import Stages
from benchmarks.store.ours import USER, Refold
from refold.store import SessionStore
from refold.store.appends import Writer

STAGES = ("validate", "redact", "encrypt", "driver", "server")
COLD, HOT = "after a commit", "hot"
_ROUNDS_WARM = 3


def stages(engine: Engine, ours: Refold, rounds: int) -> list[Stages]:
    """Medians right after a commit, and hot.

    Hot means: the same event was appended to a store in memory just before, so that
    what Python runs is in the caches, as it is not right after waiting for a disk.
    """
    with refold.open("memory://", redactor=engine.redactor) as warm:
        return [
            Stages(engine.name, COLD, _medians(ours.store, None, rounds)),
            Stages(engine.name, HOT, _medians(ours.store, warm, rounds)),
        ]


def _medians(
    store: SessionStore, warm: SessionStore | None, rounds: int
) -> dict[str, float]:
    session, taken = store.session(USER, "stages"), []
    session.append(payloads.event(0))
    with _watched(store) as tape:
        for number in range(rounds):
            if warm:
                _warm(warm, number)
            tape.clear()
            start = time.perf_counter()
            session.append(payloads.event(number))
            taken.append(_split(time.perf_counter() - start, tape))
    return {
        stage: statistics.median(each[stage] for each in taken) * 1e6
        for stage in STAGES
    }


def _warm(store: SessionStore, number: int) -> None:
    for _ in range(_ROUNDS_WARM):
        store.session(USER, "stages").append(payloads.event(number))


def _split(whole: float, tape: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Seconds by stage; what is no other's is validation and what is around it.

    Of the writing, the driver has what the thread computed, and the server the rest:
    the thread slept until the server, or the disk, had answered.
    """
    redact, _ = tape.get("redact", (0.0, 0.0))
    log, _ = tape.get("log", (0.0, 0.0))
    write, computed = tape.get("write", (0.0, 0.0))
    driver = min(write, computed)
    return {
        "validate": whole - redact - log,
        "redact": redact,
        "encrypt": log - write,
        "driver": driver,
        "server": write - driver,
    }


@contextmanager
def _watched(store: SessionStore) -> Iterator[dict[str, tuple[float, float]]]:
    """The seams wrapped; the tape has wall and processor time of the last calls."""
    tape: dict[str, tuple[float, float]] = {}
    log: Any = store.log
    seams = (
        ("redact", Writer, "redacted"),
        ("log", type(log), "append"),
        ("write", type(log.recorder), "write"),
    )
    with ExitStack() as wrapped:
        for name, owner, attribute in seams:
            timed = _timed(getattr(owner, attribute), name, tape)
            wrapped.enter_context(mock.patch.object(owner, attribute, timed))
        yield tape


def _timed(
    function: Callable[..., Any], name: str, tape: dict[str, tuple[float, float]]
) -> Callable[..., Any]:
    def timed(*arguments: Any, **named: Any) -> Any:
        computed, start = time.thread_time(), time.perf_counter()
        result = function(*arguments, **named)
        wall = time.perf_counter() - start
        before, spent = tape.get(name, (0.0, 0.0))
        tape[name] = (before + wall, spent + time.thread_time() - computed)
        return result

    return timed
