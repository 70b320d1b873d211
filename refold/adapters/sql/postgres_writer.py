"""The one connection over which a process writes to PostgreSQL, a group at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeAlias

import psycopg

from refold.adapters.recorder import Batch, WriteOutcome
from refold.adapters.sql.postgres_append import outcome_of, send, write

Driver: TypeAlias = psycopg.Connection[Any]


class Writer:
    """Writes batches over a connection of its own, which it opens when it needs one.

    ``connect`` gives one that commits each statement.
    """

    def __init__(self, connect: Callable[[], Driver]) -> None:
        self._connect = connect
        self.forget()

    def alone(self, batch: Batch) -> WriteOutcome:
        """Write one: a statement that is a transaction, one round trip."""
        with self._connected() as driver:
            return write(driver, batch, base=0)

    def together(self, batches: Sequence[Batch]) -> list[WriteOutcome]:
        """Write all in one commit and one round trip.

        Heads are locked in sorted order, so that no two groups deadlock.
        """
        order = sorted(range(len(batches)), key=lambda index: batches[index].stream)
        with self._connected() as driver:
            sent: dict[int, psycopg.Cursor[Any]] = {}
            with driver.pipeline(), driver.transaction():
                base = 0
                for index in order:
                    sent[index] = send(driver, batches[index], base=base)
                    base += len(batches[index].events)
            return [
                outcome_of(driver, batch, sent[index])
                for index, batch in enumerate(batches)
            ]

    def forget(self) -> None:
        """Let go, in a forked child, of a connection that is its parent's."""
        self._driver: Driver | None = None
        self._lock = Lock()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._driver is not None:
                self._driver.close()
                self._driver = None

    @contextmanager
    def _connected(self) -> Iterator[Driver]:
        with self._lock:
            driver = self._driver
            if driver is None or driver.closed:
                driver = self._driver = self._connect()
            yield driver
