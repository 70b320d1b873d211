"""The cost of an export as Parquet, and its memory, which does not grow.

``make bench-parquet``: CPU of a process for each figure, on SQLite and on PostgreSQL,
whose server is not counted.  Targets: 250,000 events/s of metadata, which needs no key,
and 18,000 of all columns; at most 24 MB more for four times the events.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import process_time
from typing import Any

import refold
from benchmarks.store import payloads
from refold.adapters.importers.dataset import Tables
from refold.domain.events import Event
from refold.opener import open_recorder
from tests.support.postgres import Postgres

USERS = 16
SESSIONS = 4
TURNS = 48
ROUNDS = 8
FEW = 4  # times fewer events
RATES = {"metadata": 250_000, "all": 18_000}
GROWTH_MB = 24.0
USAGE: dict[str, Any] = {"input_tokens": 812, "output_tokens": 64}


def turn(number: int) -> Iterator[Event]:
    """Return twenty events; each answer has its usage."""
    for event in payloads.turn(number):
        if isinstance(event, refold.AgentResponse):
            yield refold.AgentResponse(text=event.text, usage=USAGE)
        else:
            yield event


def fill(url: str, turns: int) -> None:
    """Create a store with that many turns in each session."""
    policy = refold.Policy.parse("version = 1\n")
    with refold.open(url, make_key=True, policy=policy) as store:
        for user, name in product(range(USERS), range(SESSIONS)):
            session = store.session(user_id=f"u{user:03}", session_id=f"s{name}")
            for number in range(turns):
                session.append([*turn(number)], meta={"model": "claude-sonnet-4-5"})


def export(url: str, columns: str, out: Path) -> None:
    """Export several times, to one file; print the cost of the best, and the peak."""
    store: Any = refold.open(url) if columns == "all" else None
    recorder = store.log.recorder if store else open_recorder(url)[0]
    rates = []
    for number in range(ROUNDS):
        began = process_time()
        manifest: Any = Tables(recorder, store, 1).write(out / f"{number}").manifest
        rates.append(manifest["counts"]["events"] / (process_time() - began))
    peak = getrusage(RUSAGE_SELF).ru_maxrss / 1024
    size = (
        sum(file["bytes"] for file in manifest["files"]) / manifest["counts"]["events"]
    )
    print(max(rates), peak, size)
    (store or recorder).close()


def measured(url: str, columns: str, folder: Path) -> tuple[float, float, float]:
    """Events a second of CPU, MB at most in memory, and bytes an event in the files."""
    out = tempfile.mkdtemp(dir=folder)
    command = [sys.executable, "-m", "benchmarks.parquet", url, columns, out]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rate, peak, size = map(float, printed.split())
    return rate, peak, size


def main() -> int:
    """Measure, print the figures, and exit with 1 if a target is missed."""
    missed = 0
    with tempfile.TemporaryDirectory() as name, Postgres.start() as server:
        os.environ["REFOLD_HOME"] = f"{name}/home"
        os.environ["REFOLD_KEYS"] = f"sqlite:///{name}/keys.db"
        for engine in ("sqlite", "postgresql"):
            urls = []
            for turns in (TURNS // FEW, TURNS):
                store_url = f"sqlite:///{name}/{turns}.db"
                if engine == "postgresql":
                    store_url = server.create_database(f"parquet_{turns}")
                fill(store_url, turns)
                urls.append(store_url)
            for columns, least in RATES.items():
                (_, few, _), (rate, peak, size) = (
                    measured(url, columns, Path(name)) for url in urls
                )
                if rate < least or peak - few > GROWTH_MB:
                    missed += 1
                print(
                    f"{engine}, {columns}: {rate:,.0f} events/s (at least {least:,}), "
                    f"{size:.0f} bytes an event; {peak:.0f} MB, {peak - few:.1f} more "
                    f"than for a {FEW}th of the events (at most {GROWTH_MB:g})"
                )
    return int(bool(missed))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        export(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(main())
