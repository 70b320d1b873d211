"""A process that seals a store, killed at one step or racing others."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import Engine, event

import refold
from refold.adapters.seals import FileAnchor
from refold.adapters.sql.tree import Tree
from refold.domain.seals import TreeHead

# The steps of a sealing in order, and whether the process dies after the step.
STEPS: Final[dict[str, tuple[Any, str, bool]]] = {
    "nothing is done": (Tree, "ends", False),
    "the ends are read": (Tree, "add", False),
    "the leaves are written": (Tree, "_insert", True),
    "all is committed": (Tree, "add", True),
    "half a line is in the anchor": (FileAnchor, "add", False),
    "all is anchored": (FileAnchor, "add", True),
}


def die(owner: Any, name: str, *, after: bool) -> None:
    """Make ``owner.name`` the last call of this process."""
    method: Callable[..., Any] = getattr(owner, name)

    def dying(*arguments: Any, **named: Any) -> Any:
        if name == "add" and not arguments[-1]:  # there is nothing to anchor yet
            return method(*arguments, **named)
        if after:
            method(*arguments, **named)
        elif owner is FileAnchor:
            _write_half(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    setattr(owner, name, dying)


def _write_half(anchor: FileAnchor, heads: Sequence[TreeHead]) -> None:
    line = str(heads[0].to_json()).encode()
    anchor.path.parent.mkdir(parents=True, exist_ok=True)
    with anchor.path.open("ab") as file:
        file.write(line[: len(line) // 2])


def seal_until(url: str, step: str) -> None:
    """Seal the store at ``url`` up to ``step``, then die."""
    owner, name, after = STEPS[step]
    die(owner, name, after=after)
    with refold.open(url) as store:
        store.seal()


def seal_for_statements(url: str, statements: str) -> None:
    """Seal the store, and die after that many statements, including commits.

    The process ends normally if there are fewer.
    """
    left = int(statements)

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with refold.open(url) as store:
        event.listen(Engine, "after_cursor_execute", count)
        event.listen(Engine, "commit", count)  # just before it
        # Single statements that read do not pass through the engine.
        log: Any = store.log
        database = log.recorder.database
        fetch = database.fetch

        def counting_fetch(*arguments: Any) -> Any:
            rows = fetch(*arguments)
            count()
            return rows

        database.fetch = counting_fetch
        store.seal()


def race(url: str, count: str) -> None:
    """Wait for a line, then seal that many times; print the size of the tree."""
    with refold.open(url) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(int(count)):
            head = store.seal()
        print(head and head.size, flush=True)


def busy(url: str, count: str) -> None:
    """Wait for a line, then append that many times, with a key each."""
    with refold.open(url) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(int(count)):
            session = store.session(user_id="ada", session_id=f"s-{number % 4}")
            event = refold.UserInput(text=f"{number}")
            session.append(event, idempotency_key=f"k-{number}")


if __name__ == "__main__":
    {
        "killed": seal_until,
        "killed_after": seal_for_statements,
        "race": race,
        "busy": busy,
    }[sys.argv[1]](*sys.argv[2:])
