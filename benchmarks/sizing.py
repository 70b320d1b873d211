"""The cost of an event, a session and a user: bytes, and CPU of one process.

``python -m benchmarks.sizing --events 1000000`` fills a store of SQLite and runs an
operator's queries.  The sizing page shows the results.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import refold
from refold.store import SessionStore

EVENTS_PER_SESSION = 100
SESSIONS_PER_USER = 2
EVENTS_PER_APPEND = 50
WINDOW = "turn_window:full_turns=8,cached_turns=4"
WORDS = "The build fails where the linker asks for a symbol that nobody defines. "


def turn(number: int) -> list[Any]:
    """Five events, of 150 to 600 characters."""
    call = f"call-{number}"
    return [
        refold.UserInput(text=f"{number}: {WORDS * 2}"),
        refold.ToolCall(call_id=call, tool_name="bash", arguments={"command": "make"}),
        refold.ToolResult(call_id=call, content=f"{number} {WORDS * 8}"),
        refold.AgentResponse(text=f"done {number}: {WORDS * 3}"),
        refold.AgentResponse(text=f"next {number}: {WORDS}"),
    ]


def fill(store: SessionStore, begin: int, sessions: int) -> None:
    """Append that many sessions, each in batches."""
    for index in range(begin, begin + sessions):
        names = {
            "user_id": f"user-{index // SESSIONS_PER_USER}",
            "session_id": f"s-{index}",
        }
        session = store.session(**names)
        events = [event for n in range(EVENTS_PER_SESSION // 5) for event in turn(n)]
        for start in range(0, EVENTS_PER_SESSION, EVENTS_PER_APPEND):
            session.append(events[start : start + EVENTS_PER_APPEND])


def used(work_name: str, count: int, unit: str, work: Callable[[], object]) -> None:
    """Print the CPU that ``work`` takes, per item."""
    begun = time.process_time()
    since = time.perf_counter()
    work()
    cpu = time.process_time() - begun
    wall = time.perf_counter() - since
    each = cpu / max(count, 1) * 1e6
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    timed = f"{cpu:9.2f} s of CPU {wall:9.2f} s {most:6.0f} MiB at most"
    print(f"{work_name:28} {timed} {each:10.1f} us {unit}", flush=True)


def drained(items: Iterable[object]) -> int:
    """Return the number of stored rows."""
    return sum(1 for _ in items)


def main() -> None:
    """Fill a store, and measure."""
    asks = argparse.ArgumentParser(description=__doc__)
    asks.add_argument("--events", type=int, default=100_000)
    asks.add_argument("--folder", type=Path)
    asked = asks.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        os.environ["REFOLD_HOME"] = f"{folder}/home"
        run(Path(folder), asked.events // EVENTS_PER_SESSION)


def run(folder: Path, sessions: int) -> None:
    """Print a line for each operation."""
    events = sessions * EVENTS_PER_SESSION
    place = folder / "refold.db"
    with refold.open(f"sqlite:///{place}") as store:
        used("append", events, "an event", lambda: fill(store, 0, sessions))
        used("seal", sessions, "a session", store.seal)
        new = max(1, sessions // 100)
        fill(store, sessions, new)
        listed = lambda: drained(store.sessions(limit=sessions))  # noqa: E731  # ``used`` calls it
        used("list the sessions", sessions, "a session", listed)
        chosen = [
            store.session(user_id=f"user-{n // SESSIONS_PER_USER}", session_id=f"s-{n}")
            for n in range(0, sessions, max(1, sessions // 200))
        ]
        used(
            "a context without a view", len(chosen), "a context", lambda: shown(chosen)
        )
        prepared(chosen)
        used(
            "a context by a stored view",
            len(chosen),
            "a context",
            lambda: shown(chosen),
        )
        used("prove what is new", events, "an event", lambda: since_seal(store))
        used("prove all chains", events, "an event", lambda: proved(store, True))
        used("prove all", events, "an event", lambda: proved(store, False))
        used("prove the tree", sessions, "a session", store.verify_seals)
        used("erase a user", 1, "a user", lambda: store.erase("user-0", "asked"))
        keys = sum(file.stat().st_size for file in folder.glob("home/**/*.db*"))
        total = sum(file.stat().st_size for file in folder.glob("refold.db*"))
    there = events + new * EVENTS_PER_SESSION
    print(f"{there} events: {total / there:.0f} bytes an event;")
    print(f"{sessions} sessions: {keys / sessions:.0f} bytes of keys a session")


def shown(sessions: Iterable[Any]) -> None:
    """Read a context of each."""
    for session in sessions:
        session.context(WINDOW)


def prepared(sessions: Iterable[Any]) -> None:
    """Run pending compactions, and store a view of each."""
    for session in sessions:
        session.prepare(WINDOW)
        session.catch_up()


def since_seal(store: SessionStore) -> None:
    """Verify the events after the newest seal."""
    drained(store.verify_since_seal())
    store.seals.verify(newest=True)


def proved(store: SessionStore, chain_only: bool) -> None:
    """Prove every session."""
    for info, verified in store.verify(chain_only=chain_only):
        if verified.problems:
            raise SystemExit(f"{info.session_id}: {verified.problems[0].detail}")


if __name__ == "__main__":
    main()
