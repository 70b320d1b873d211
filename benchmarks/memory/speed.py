"""What extracting memory and reading advice cost, on a core, beside a raw read."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import refold
from refold.domain.events import Event
from refold.domain.ids import USER_SESSION, StreamId
from refold.store import SessionStore

USER: Final = "ada"
_TURNS, _TOOLS = 20, 60
_CALLS: Final = 6
_READS: Final = 41


@dataclass(frozen=True, slots=True)
class Speed:
    """events, items: how many there were.

    extract:  seconds of CPU to make memory of all events, decryption included;
              ``again`` of making it when no session moved on.
    advice:   milliseconds of CPU to read and choose advice for one context.
    raw:      milliseconds of CPU of one read of a head, which any read of the store is.
    """

    events: int
    items: int
    extract: float
    again: float
    advice: float
    raw: float


def speed(events: int) -> Speed:
    """Measure on SQLite, in a directory that goes away, with so many events."""
    with TemporaryDirectory() as folder, _store(Path(folder)) as store:
        sessions = max(1, events // (_TURNS * (2 * _CALLS + 2)))
        made = sum(_session(store, number) for number in range(sessions))
        extract = _cpu(lambda: store.memory.of(USER))
        again = _cpu(lambda: store.memory.of(USER))
        store.memory.advice(USER, fresh=timedelta(0))
        advice = median(_cpu(lambda: store.memory.advice(USER)) for _ in range(_READS))
        stream = StreamId(USER, USER_SESSION)
        raw = median(_cpu(lambda: store.log.head(stream)) for _ in range(_READS))
        items = len(store.memory.of(USER).items)
    return Speed(made, items, extract, again, 1e3 * advice, 1e3 * raw)


def _store(folder: Path) -> SessionStore:
    os.environ["REFOLD_HOME"] = str(folder)
    return refold.open(f"sqlite:///{folder / 'refold.db'}")


def _session(store: SessionStore, number: int) -> int:
    """A session whose paths are its own as well as others': memory grows with each."""
    session, tools = store.session(USER, f"s-{number}"), number * 7
    events: list[Event] = []
    for turn in range(_TURNS):
        events.append(refold.UserInput(text=f"look at {turn}"))
        for call in range(_CALLS):
            call_id = f"c{turn}-{call}"
            name = f"tool_{(tools + turn * call + call * call) % _TOOLS}"
            failed = (number + turn + call) % 9 == 0
            events += [
                refold.ToolCall(call_id=call_id, tool_name=name),
                refold.ToolResult(
                    call_id=call_id, content="Error: not found" if failed else "done"
                ),
            ]
        events.append(refold.AgentResponse(text="done"))
    outcome = "success" if number % 3 else "failure"
    events[-1] = refold.Final(outcome=outcome)
    session.append(events)
    return len(events)


def _cpu(work: Callable[[], object]) -> float:
    gc.collect()
    begun = time.process_time()
    work()
    return time.process_time() - begun
