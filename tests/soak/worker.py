"""The processes of a soak: one appends its batches, one keeps views and compacts."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Final, TypeVar

import refold
from refold.domain.errors import KeyUnavailable, StoreUnavailable
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.store import SessionStore
from refold.store.appends import Receipt
from refold.store.work.workers import Worker
from tests.soak import plan as soak

T = TypeVar("T")
_TRIES: Final = 200
_PAUSE_SEC: Final = 0.05  # a server that restarts needs its time


def write(folder: Path, writer: int) -> None:
    """Acknowledged events are on the disk before the next batch begins."""
    plan = soak.Plan.load(folder / "plan.json")
    path = folder / f"journal-{writer}"
    _mend(path)
    done = len(soak.journal(path))
    events = 0
    with _opened() as store, path.open("a") as file:
        for batch in plan.batches(writer):
            events += batch.size
            if batch.number < done:
                continue
            if batch.number > done:
                receipt = _append(store, batch)
                line = soak.Acknowledged(batch.number, batch.session_id, *receipt)
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
            _say(str(events))
        _say("done")
        sys.stdin.read()


def _append(store: SessionStore, batch: soak.Batch) -> Receipt:
    session = store.session(user_id=soak.USER, session_id=batch.session_id)
    return _tried(lambda: session.append(batch.events(), idempotency_key=batch.key))


def _opened() -> SessionStore:
    """The store, though its server may just be restarted.

    A process that is soon killed should not compile the engine that pays off later.
    """
    redactor = Redactor(Plan(engine="stdlib"))
    return _tried(lambda: refold.open(redactor=redactor))


def _tried(work: Callable[[], T]) -> T:
    for _ in range(_TRIES):
        try:
            return work()
        except (StoreUnavailable, KeyUnavailable):
            time.sleep(_PAUSE_SEC)
    return work()


def _mend(path: Path) -> None:
    """Take away half a line that a writer left when it died."""
    if path.exists():
        text = path.read_text()
        path.write_text(text[: text.rfind("\n") + 1])


def project(folder: Path) -> None:
    """Compact and keep views until the input ends, and then once more."""
    spec = soak.Plan.load(folder / "plan.json").spec
    with _opened() as store:
        worker = Worker(store, spec, duties={"compact": 0.2})

        def wait() -> None:
            sys.stdin.read()
            worker.stop()

        Thread(target=wait, daemon=True).start()
        worker.run()
        Worker(store, spec).round()


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # a process speaks to its test by printing


if __name__ == "__main__":
    folder_ = Path(sys.argv[2])
    if sys.argv[1] == "write":
        write(folder_, int(sys.argv[3]))
    else:
        project(folder_)
