"""A process that redacts a store again and is killed at one step."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, Final

import refold
from refold.adapters.keys.ring import KeyRing
from refold.adapters.sql import postgres, sqlite
from refold.adapters.sql.recorder import Recorder
from tests.support.redacting import aware

# The steps of a re-redaction in order, and whether the process dies after the step.
STEPS: Final[dict[str, tuple[tuple[Any, ...], str, bool]]] = {
    "nothing is done": ((KeyRing,), "successor", False),
    "the new key is kept": ((Recorder,), "rewrite", False),
    "rows are replaced": ((sqlite, postgres), "_replace", True),
    "all is committed": ((Recorder,), "flush", False),
    "the commit is safe": ((KeyRing,), "destroy_older", False),
    "the old key is gone": ((KeyRing,), "destroy_older", True),
}


def die(owner: Any, name: str, *, after: bool) -> None:
    """Make ``owner.name`` the last call of this process."""
    method = getattr(owner, name)

    def dying(*arguments: Any, **named: Any) -> None:
        if after:
            method(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, dying)


def main(url: str, step: str) -> None:
    """Redact the store at ``url`` again up to ``step``, then die."""
    owners, name, after = STEPS[step]
    for owner in owners:
        die(owner, name, after=after)
    with refold.open(url, redactor=aware()) as store:
        list(store.reredact())


if __name__ == "__main__":
    main(*sys.argv[1:])
