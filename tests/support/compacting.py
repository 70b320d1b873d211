"""Processes that compact: killed at one step, or racing each other."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import refold
from refold.adapters.sql.recorder import Recorder
from refold.store.compactions import Compactor
from refold.store.contexts import Viewer
from tests.support.summarizing import Counting

WINDOW: Final = "turn_window:full_turns=1,cached_turns=1"

# The steps of a compaction in order, and whether the process dies after the step.
STEPS: Final[dict[str, tuple[type, str, bool]]] = {
    "the lease is taken": (Recorder, "take_lease", True),
    "the start is recorded": (Counting, "summarise", False),
    "the model has answered": (Counting, "summarise", True),
    "the summary is made": (Compactor, "summary", True),
    "the summary is recorded": (Viewer, "store_current", False),
    "the view is stored": (Viewer, "store_current", True),
    "all but the lease": (Recorder, "release_lease", False),
}


def die(owner: type, name: str, *, after: bool) -> None:
    """Make ``owner.name`` the last call of this process."""
    method: Callable[..., Any] = getattr(owner, name)

    def dying(*arguments: Any, **named: Any) -> None:
        if after:
            method(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, dying)


def run_until(url: str, calls: str, step: str) -> None:
    """Compact the session ``s-1`` up to ``step``, then die."""
    owner, name, after = STEPS[step]
    die(owner, name, after=after)
    with refold.open(url) as store:
        session = store.session(user_id="ada", session_id="s-1")
        session.compact(WINDOW, summarizer=Counting(Path(calls)))


def race(url: str, calls: str, threads: str, rounds: str) -> None:
    """Let ``threads`` threads compact the session ``s-1``, ``rounds`` times each."""
    with refold.open(url) as store:

        def work(_: int) -> None:
            for _ in range(int(rounds)):
                session = store.session(user_id="ada", session_id="s-1")
                session.compact(WINDOW, summarizer=Counting(Path(calls)))

        _ready()
        with ThreadPoolExecutor(int(threads)) as pool:
            list(pool.map(work, range(int(threads))))
    print("done", flush=True)  # noqa: T201  # a process speaks to its test by printing


def talk(url: str, turns: str) -> None:
    """Append that many turns to the session ``s-1``."""
    with refold.open(url) as store:
        session = store.session(user_id="ada", session_id="s-1")
        _ready()
        for turn in range(int(turns)):
            session.append(refold.UserInput(text=f"{turn} " + "word " * 30))
            session.append(refold.AgentResponse(text="word " * 30))
    print("done", flush=True)  # noqa: T201  # a process speaks to its test by printing


def _ready() -> None:
    print("ready", flush=True)  # noqa: T201  # a process speaks to its test by printing
    sys.stdin.readline()


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {
        "killed": run_until,
        "race": race,
        "talk": talk,
    }
    roles[sys.argv[1]](*sys.argv[2:])
