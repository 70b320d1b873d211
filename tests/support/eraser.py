"""A process that erases, restores or rotates, and is killed at one step."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import sqlalchemy as sa

import refold
from refold.adapters.cli import main as command_line
from refold.adapters.erasure import StoredErasureSteps
from refold.adapters.sql.keystore import SqlKeyStore
from refold.store import SessionStore
from tests.support.rewriter import die

Step = tuple[Any, str, bool]
# The steps of an erasure in order, and whether the process dies after the step.
ERASING: Final[dict[str, Step]] = {
    "nothing is done": (StoredErasureSteps, "begin", False),
    "the record is kept": (StoredErasureSteps, "begin", True),
    "heads are marked": (StoredErasureSteps, "mark", True),
    "keys are destroyed": (StoredErasureSteps, "destroy_keys", True),
    "that is written down": (StoredErasureSteps, "remains", False),
    "rows are counted": (StoredErasureSteps, "delete", False),
    "some are deleted": (time, "sleep", False),  # between two transactions
    "all are deleted": (StoredErasureSteps, "certify", False),
    "it is certified": (StoredErasureSteps, "certify", True),
}
HOLDING: Final[dict[str, Step]] = {
    "heads are marked": (StoredErasureSteps, "hold_keys", False),
    "keys are put aside": (StoredErasureSteps, "hold_keys", True),
}
RESTORING: Final[dict[str, Step]] = {
    "nothing is restored": (StoredErasureSteps, "restore", False),
    "keys are back": (SqlKeyStore, "release", True),
    "heads are back": (StoredErasureSteps, "certify", False),
}
ROTATING: Final[dict[str, Step]] = {
    "the file has both keys": (StoredErasureSteps, "rotate_master", False),
    "the pepper is wrapped anew": (SqlKeyStore, "swap_setting", True),
    "one user is wrapped anew": (SqlKeyStore, "swap_user", True),
}
OF_A_USER: Final[dict[str, Step]] = {
    "the new key was not kept": (SqlKeyStore, "swap_user", False),
    "the new key is kept": (SqlKeyStore, "swap_user", True),
}

# The steps of an act with a certificate: neither of them exists, or both do.
BEFORE_CERTIFICATE: Final = "the certificate is about to be inserted"
AFTER_CERTIFICATE: Final = "both are committed"
NEW_KEY_STORED: Final = "the new key is stored"
REASON: Final = "asked"
ACTS: Final[dict[str, Callable[[SessionStore], object]]] = {
    "hold": lambda store: store.erasures.hold("ada", "case", REASON),
    "release": lambda store: store.erasures.release("ada", "case", REASON),
    "freeze": lambda store: store.erasures.freeze("ada", REASON),
    "unfreeze": lambda store: store.erasures.unfreeze("ada", REASON),
    "readmit": lambda store: store.erasures.readmit("ada", REASON),
}


def _die_at(point: str) -> None:
    """Make the process kill itself at this step."""
    if point == AFTER_CERTIFICATE:
        die(StoredErasureSteps, "_remember_certificate", after=False)
    elif point == NEW_KEY_STORED:
        die(SqlKeyStore, "readmit", after=True)
    else:
        sa.event.listen(sa.Engine, "before_cursor_execute", _die_before_certificate)


def _die_before_certificate(
    _connection: object, _cursor: object, statement: str, *_: object
) -> None:
    if re.match(r"INSERT INTO \S*certificates\b", statement):
        os.kill(os.getpid(), signal.SIGKILL)


def _erase(store: SessionStore) -> None:
    store.erase("ada", "she asked")


def _erase_with_grace(store: SessionStore) -> None:
    store.erase("ada", "she asked", grace=timedelta(days=1))


def _restore(store: SessionStore) -> None:
    store.erasures.restore("ada", "a mistake")


def _rotate_user(store: SessionStore) -> None:
    store.keys.rotate_user("ada")


WORK: Final[dict[str, tuple[dict[str, Step], Callable[[SessionStore], None]]]] = {
    "erase": (ERASING, _erase),
    "erase-with-grace": (HOLDING, _erase_with_grace),
    "restore": (RESTORING, _restore),
    "rotate-user": (OF_A_USER, _rotate_user),
}


def main(url: str, work: str, step: str) -> None:
    """Do ``work`` on the store at ``url`` up to ``step``, then die."""
    if work == "rotate-master":
        owner, name, after = ROTATING[step]
        die(owner, name, after=after)
        command_line(["--db", url, "keys", "rotate", "--master"])
        return
    if work in ACTS:
        _die_at(step)
        with refold.open(url) as store:
            ACTS[work](store)
        return
    steps, do = WORK[work]
    owner, name, after = steps[step]
    die(owner, name, after=after)
    with refold.open(url) as store:
        do(store)


if __name__ == "__main__":
    main(*sys.argv[1:])
