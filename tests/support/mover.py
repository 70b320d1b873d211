"""A process that moves a store, and is killed where it changes a database."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from refold.adapters.sql.database import Database
from refold.opener import move


def main(url: str, to: str, change: str, when: str) -> None:
    """Move, and die at that change of a row or state, ``before`` or ``after`` it."""
    real, seen = Database.change, 0

    def dying(database: Database, user_id: str | None, work: Callable[..., Any]) -> Any:
        nonlocal seen
        seen += 1
        mine = seen == int(change)
        if mine and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(database, user_id, work)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    Database.change = dying  # type: ignore[method-assign, assignment]  # in a process of its own
    move(url, to=to)


if __name__ == "__main__":
    main(*sys.argv[1:])
