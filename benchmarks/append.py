"""One append, all promises kept, against a raw INSERT of the same bytes, interleaved.

    python -m benchmarks.append [--events 400]

Prints, for SQLite (FULL and NORMAL) and PostgreSQL (durable), the median of the
ratios of neighbouring pairs, and microseconds for orientation.  PostgreSQL is the
server of the tests with fsync switched on, or ``REFOLD_TEST_POSTGRES``.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

import refold
from tests.support.postgres import Postgres

TEXT = (
    "The build fails in module %d because the linker cannot find a symbol that the "
    "last change renamed; see line 42 of src/lib/parser.c.  "
)


def payload(number: int) -> str:
    """About 2 KB of ordinary text, different each time."""
    return "".join(TEXT % (number * 100 + line) for line in range(15))


def paired(ours: Callable[[int], object], raw: Callable[[int], object], n: int) -> None:
    """Time both in turn and print the median ratio."""
    ratios, own, other = [], [], []
    for number in range(n):
        start = time.perf_counter()
        raw(number)
        middle = time.perf_counter()
        ours(number)
        end = time.perf_counter()
        other.append(middle - start)
        own.append(end - middle)
        ratios.append(own[-1] / other[-1])
    print(
        f"ratio {statistics.median(ratios):5.2f}   ours "
        f"{statistics.median(own) * 1e6:7.0f} µs   raw "
        f"{statistics.median(other) * 1e6:7.0f} µs"
    )


def sqlite(folder: Path, level: str, n: int) -> None:
    """Refold on SQLite against the sqlite3 module."""
    raw = sqlite3.connect(folder / f"raw-{level}.db", isolation_level=None)
    raw.execute("PRAGMA journal_mode=WAL")
    raw.execute(f"PRAGMA synchronous={level}")
    raw.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, u, s, seq, body)")
    url = f"sqlite:///{folder / f'ours-{level}.db'}?synchronous={level}"
    with refold.open(url) as store:
        session = store.session("ada", "s")
        print(f"SQLite {level:7}", end=" ")
        paired(
            lambda i: session.append(refold.UserInput(text=payload(i))),
            lambda i: raw.execute(
                "INSERT INTO events (u, s, seq, body) VALUES (?, ?, ?, ?)",
                ("ada", "s", i, payload(i).encode()),
            ),
            n,
        )
    raw.close()


def postgresql(server: Postgres, folder: Path, n: int) -> None:
    """Refold on PostgreSQL against psycopg, prepared, one round trip."""
    url = server.create_database("bench")
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute("ALTER SYSTEM SET fsync = on")
        raw.execute("SELECT pg_reload_conf()")
        raw.execute("CREATE TABLE raw (u text, s text, seq int, body bytea)")
        with refold.open(url, keys=f"sqlite:///{folder / 'keys.db'}") as store:
            session = store.session("ada", "s")
            print("PostgreSQL    ", end=" ")
            paired(
                lambda i: session.append(refold.UserInput(text=payload(i))),
                lambda i: raw.execute(
                    "INSERT INTO raw VALUES (%s, %s, %s, %b)",
                    ("ada", "s", i, payload(i).encode()),
                    prepare=True,
                ),
                n,
            )


def main() -> None:
    """Run all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=400)
    events = parser.parse_args().events
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["REFOLD_HOME"] = str(folder / "home")
        for level in ("FULL", "NORMAL"):
            sqlite(folder, level, events)
        with Postgres.given() or Postgres.start() as server:
            postgresql(server, folder, events)


if __name__ == "__main__":
    main()
