"""What a context costs in a long session, and what its summaries take of the disk.

    python -m benchmarks.contexts [--events 100000] [--transcript FILE]

Prints, for each engine and strategy, the median time of a context at so many events
against that at 1 000, measured in turn; or what a thousand compactions of a session
made of FILE's, one after another and again, take beside the log.  PostgreSQL is the
server of the tests, or ``REFOLD_TEST_POSTGRES``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

import refold
from refold.adapters.importers import read
from refold.adapters.log import SealedLog
from refold.adapters.sealing import SealedEvent
from refold.domain.events import Event, ToolCall, ToolResult
from refold.domain.ids import StreamId
from refold.projections.context.spec import parse
from refold.store import Session, SessionStore
from tests.support.postgres import Postgres

SHORT = 1_000
ROUNDS = 60
# The first with a memory that is full at either length, as the others' are not.
STRATEGIES = (
    "turn_window:session_memory_tokens=1500",
    "turn_window",
    "message_window",
    "hybrid",
    "history_summary",
    "recursive_summary",
)


def turn(number: int) -> list[Event]:
    """A turn of twenty events: six calls with their results, and an answer."""
    events: list[Event] = [refold.UserInput(text=f"look at module {number}, fix it")]
    for call in range(6):
        id_ = f"c{number}-{call}"
        events += [
            refold.AgentResponse(text="I look.", stop_reason="tool_use"),
            ToolCall(
                call_id=id_, tool_name="bash", arguments={"command": f"cat {id_}"}
            ),
            ToolResult(call_id=id_, content="def f():\n    return 1\n" * 5),
        ]
    return [*events, refold.AgentResponse(text=f"Fixed {number}; the tests pass.")]


def grown(store: SessionStore, name: str, spec: str, count: int) -> Session:
    """A session of so many events that was compacted as it grew."""
    session = store.session("bench", name)
    for number in range(count // 20):
        session.append(turn(number))
        while session.compact(spec) is not None:
            pass
    return session


def contexts(store: SessionStore, spec: str, count: int) -> str:
    """The medians at both lengths, and how large the stored view is."""
    name = spec.replace(":", "-").replace("=", "-")
    sessions = [grown(store, f"{name}-{n}", spec, n) for n in (SHORT, count)]
    seconds: list[list[float]] = [[], []]
    for session in sessions:
        session.catch_up()
    for _ in range(ROUNDS):
        for session, taken in zip(sessions, seconds, strict=True):
            start = time.perf_counter()
            session.context(spec)
            taken.append(time.perf_counter() - start)
    short, long_ = (statistics.median(taken) * 1000 for taken in seconds)
    view = store.log.load_view(sessions[1].stream, parse(spec).fingerprint)
    size = len(orjson.dumps(view.body)) if view else 0
    times = f"{short:7.2f} ms {long_:7.2f} ms   ratio {long_ / short:4.2f}"
    return f"{times}   view {size:5} B"


def storage(store: SessionStore, events: list[list[Event]], wanted: int) -> str:
    """What the summaries of a session take, compacted so often."""
    session, made = store.session("bench", "talk"), 0
    for number in itertools.count():
        session.append(_renamed(events[number % len(events)], number))
        while session.compact("turn_window") is not None:
            made += 1
        if made >= wanted:
            break
    (_, derived) = session.streams()
    sizes = [
        sum(
            len(row.state) for row in _rows(store, session.stream._replace(stream=name))
        )
        for name in ("main", derived)
    ]
    text = [
        sum(len(orjson.dumps(event.to_json())) for event in found)
        for found in (session.pages(), session.derived(derived))
    ]
    return (
        f"{made} compactions of {session.head().seq} events: summaries are "
        f"{sizes[1] / sizes[0]:.1%} of the log's bytes on disk, "
        f"{text[1] / text[0]:.1%} of them as JSON"
    )


def _rows(store: SessionStore, stream: StreamId) -> list[SealedEvent]:
    log: SealedLog = store.log  # type: ignore[assignment]  # what every store has
    return log.recorder.rows(stream)


def _renamed(events: list[Event], number: int) -> list[Event]:
    """The events with call ids that are new to the session."""
    return [
        event.model_copy(update={"call_id": f"{number}-{event.call_id}"})
        if isinstance(event, ToolCall | ToolResult)
        else event
        for event in events
    ]


def transcript(path: Path) -> list[list[Event]]:
    """The events of each session of a transcript."""
    return [[draft.event for draft in found.drafts] for found in read(path)]


@contextmanager
def engine(name: str, folder: Path) -> Iterator[str]:
    """The URL of an empty store."""
    if name == "sqlite":
        yield f"sqlite:///{folder / 'bench.db'}"
        return
    server = Postgres.given() or Postgres.start()
    try:
        yield server.create_database("contexts")
    finally:
        server.stop()


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--transcript", type=Path)
    parser.add_argument("--compactions", type=int, default=1_000)
    parser.add_argument("--engine", choices=("sqlite", "postgresql"), action="append")
    parser.add_argument("--strategy", action="append")
    asked = parser.parse_args()
    for name in asked.engine or ("sqlite", "postgresql"):
        with tempfile.TemporaryDirectory() as place:
            os.environ |= {
                "REFOLD_HOME": place,
                "REFOLD_KEYS": f"sqlite:///{place}/k.db",
            }
            with engine(name, Path(place)) as url, refold.open(url) as store:
                if asked.transcript:
                    found = transcript(asked.transcript)
                    print(name, storage(store, found, asked.compactions), flush=True)
                    continue
                for spec in asked.strategy or STRATEGIES:
                    print(
                        f"{name:10} {spec:40}",
                        contexts(store, spec, asked.events),
                        flush=True,
                    )


if __name__ == "__main__":
    main()
