"""A process that moves a store, and is killed where it changes a database."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from refold.adapters.sql.database import Database
from refold.adapters.sql.postgres import PostgresDatabase
from refold.opener import move


def main(url: str, to: str, change: str, when: str) -> None:
    """Move, and die ``before`` or ``after`` that change of a row or state."""
    changes = 0

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def change_and_die(*arguments: Any, **options: Any) -> Any:
            nonlocal changes
            changes += 1
            is_last = changes == int(change)
            if is_last and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*arguments, **options)
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return change_and_die

    # In a separate process.
    for kind in (Database, PostgresDatabase):
        setattr(kind, "change", dying(vars(kind)["change"]))  # noqa: B010  # for mypy
    move(url, to=to)


if __name__ == "__main__":
    main(*sys.argv[1:])
