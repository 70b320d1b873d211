"""The time of a store: by a server's clock, or by the evidence on one machine."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from refold.adapters.sql.database import NOBODY
from refold.adapters.sql.queries import CLOCK, statements
from refold.domain.clocks import (
    DAY,
    TOLERANCE,
    ClockReading,
    EstimatedTime,
    KnownTime,
    first_known,
)
from refold.domain.errors import RefoldError

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger("refold")
_SQL: Final = statements("recorder")
# A machine's clock with a smaller error is used as it is.
_MINUTE: Final = 60_000_000
_TICKS: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
# The environment variable that makes the clock of this machine credible.
TRUST: Final = "REFOLD_TRUST_CLOCK"


def wall() -> int:
    """Return the wall clock of this machine, in microseconds since 1970."""
    return time.time_ns() // 1_000


def ticks() -> int:
    """Return the microseconds since this machine started; this clock cannot be set."""
    return time.clock_gettime_ns(_TICKS) // 1_000


@cache
def boot() -> str:
    """Return the id of this start of the machine; empty if the system has none."""
    with suppress(OSError, UnicodeDecodeError):
        return _BOOT.read_text("ascii").strip()
    return ""


def read_clocks() -> ClockReading:
    """Read the clocks of this machine."""
    return ClockReading(wall(), boot(), ticks())


class DatabaseInFile(Protocol):
    """A SQLite database, as far as the clocks need it; see ``SqliteDatabase``."""

    shown_name: str
    readonly: bool

    @property
    def names(self) -> Mapping[str, str]:
        """The names of the tables in statements."""

    def fetch(
        self, user_id: str | None, query: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""

    def transact(self, work: Callable[[sqlite3.Connection], KnownTime]) -> KnownTime:
        """Call ``work`` in a transaction with the write lock."""


class ServerTime:
    """The time of a server's clock, read when a connection is made.

    A machine's clock that differs by less than a minute is used as it is.
    """

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        # The start of this machine, by the server's clock.
        self._started: int | None = None

    def set(self, moment: int) -> None:
        """Take over the time that the server's clock shows now."""
        self._started = moment - ticks()

    def now(self) -> int:
        return self.stamp(wall())

    def stamp(self, moment: int) -> int:
        if self._started is None:
            self.set(self._ask())
            return self.stamp(moment)
        # Each append comes here, so ``ticks`` is inlined.
        here = self._started + time.clock_gettime_ns(_TICKS) // 1_000
        if -_MINUTE <= moment - here <= _MINUTE:
            return moment
        return here

    def observe(self) -> EstimatedTime:
        """Ask the server again."""
        self.set(self._ask())
        return EstimatedTime(self.now())


class ObservedTime:
    """The time of a store in a file, for which there is no server to ask.

    The file records the time at one tick of the machine.  A wall clock that jumps
    contradicts that record, and nothing is deleted because of the jump; the rules are
    in ``domain/clocks.py``.
    """

    def __init__(self, database: DatabaseInFile) -> None:
        self._database = database
        self._record: KnownTime | None = None
        self._read_at = 0  # the tick when the record was read
        # The start of this machine, by the record; None for a record before a restart.
        self._started: int | None = None

    def now(self) -> int:
        return self._estimate(read_clocks()).now

    def stamp(self, moment: int) -> int:
        """Return the moment, but never one before a disputed clock's store time.

        Data with an early stamp would be deleted too soon.
        """
        if self._started is not None:  # ``ticks`` is inlined: each append comes here
            here = self._started + time.clock_gettime_ns(_TICKS) // 1_000
            if -TOLERANCE <= moment - here <= TOLERANCE:
                return moment
        estimate = self._estimate(read_clocks())
        return max(moment, estimate.now) if estimate.disputed else moment

    def observe(self) -> EstimatedTime:
        """Record the clocks, and return the time; warn about a disputed wall clock."""
        if self._database.readonly:
            return self._estimate(read_clocks())
        reading = read_clocks()
        record = self._database.transact(lambda c: self._write_record(c, reading))
        self._use(record, reading)
        estimate = record.estimate(reading)
        if estimate.disputed:
            log.warning(
                "the clock of this machine cannot be right: it differs by %d days from "
                "the time that %s has recorded. Ages are measured by the recorded time "
                "until the clock has run correctly for a day; if it is right, set %s=1",
                abs(reading.wall - estimate.now) // DAY,
                self._database.shown_name,
                TRUST,
            )
        return estimate

    def open(self) -> None:
        """Read the record, and renew it if it is old."""
        reading = read_clocks()
        self._read(reading)
        record = self._record
        if record is not None:
            passed = reading.passed_since(record.boot, record.ticks)
            is_recent = passed is not None and passed < DAY
            if is_recent or not record.agrees_with(reading):
                return
        if not self._database.readonly:
            # A busy file or a moved store fails at the next write with its own error.
            with suppress(RefoldError):
                record = self._database.transact(
                    lambda c: self._write_record(c, reading)
                )
                self._use(record, reading)

    def _read(self, reading: ClockReading) -> None:
        rows = self._database.fetch(NOBODY, _SQL["setting"], (CLOCK,))
        self._use(_loaded(rows[0][0]) if rows else None, reading)

    def _use(self, record: KnownTime | None, reading: ClockReading) -> None:
        """Estimate the time by this record from now on."""
        self._record = record
        self._read_at = reading.ticks
        self._started = None
        if record is None:
            return
        if reading.passed_since(record.boot, record.ticks) is not None:
            self._started = record.time - record.ticks

    def _estimate(self, reading: ClockReading) -> EstimatedTime:
        if self._record is None or os.environ.get(TRUST) == "1":
            return EstimatedTime(reading.wall)
        estimate = self._record.estimate(reading)
        if estimate.disputed and reading.ticks - self._read_at > _MINUTE:
            # Another process may have established that the clock is right.
            with suppress(RefoldError):
                self._read(reading)
            if self._record is not None:
                estimate = self._record.estimate(reading)
        return estimate

    def _write_record(
        self, connection: sqlite3.Connection, reading: ClockReading
    ) -> KnownTime:
        """Write the known time after this reading to the file, and return it."""
        names = self._database.names
        newest_stamp = _SQL["newest_stamp"].format(**names)
        stamps = connection.execute(newest_stamp).fetchone()
        newest = 0 if stamps is None else stamps[0] or 0
        query = "SELECT value FROM settings WHERE name=?"
        row = connection.execute(query, (CLOCK,)).fetchone()
        record = None if row is None else _loaded(str(row[0]))
        if os.environ.get(TRUST) == "1":
            after = KnownTime(reading.wall, reading.boot, reading.ticks)
        elif record is None:
            after = first_known(reading, newest=int(newest))
        else:
            after = record.after(reading, newest=int(newest))
        values = {"name": CLOCK, "value": _dumped(after)}
        connection.execute(_SQL["put_setting"].format(**names), values)
        return after


def _dumped(known_time: KnownTime) -> str:
    record: dict[str, Any] = {
        "time": known_time.time,
        "boot": known_time.boot,
        "ticks": known_time.ticks,
        "other": None,
    }
    if known_time.disputed is not None:
        record["other"] = known_time.disputed._asdict()
    return orjson.dumps(record).decode()


def _loaded(text: str) -> KnownTime | None:
    """Read the record that ``_dumped`` wrote; None for any other text."""
    with suppress(ValueError, TypeError, KeyError):
        record = orjson.loads(text)
        disputed: ClockReading | None = None
        if record["other"] is not None:
            disputed = ClockReading(**record["other"])
        return KnownTime(
            time=int(record["time"]),
            boot=str(record["boot"]),
            ticks=int(record["ticks"]),
            disputed=disputed,
        )
    return None
