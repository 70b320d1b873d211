"""The time of a store: by a server's clock, or by the evidence on one machine."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from refold.adapters.sql.database import NOBODY
from refold.adapters.sql.tables import CLOCK, statements
from refold.domain.clocks import (
    DAY,
    TOLERANCE,
    Attested,
    Judged,
    Look,
    first_attested,
)
from refold.domain.errors import RefoldError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from refold.adapters.sql.database import Database

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


def look() -> Look:
    """Read the clocks of this machine."""
    return Look(wall(), boot(), ticks())


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

    def observe(self) -> Judged:
        """Ask the server again."""
        self.set(self._ask())
        return Judged(self.now())


class ObservedTime:
    """The time of a store in a file, for which there is no server to ask.

    The file records the time at one tick of the machine.  A wall clock that jumps
    contradicts that record, and nothing is deleted because of the jump; the rules are
    in ``domain/clocks.py``.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._attested: Attested | None = None
        self._read_at = 0  # the tick when the record was read
        # The start of this machine, by the record; None for a record before a restart.
        self._started: int | None = None

    def now(self) -> int:
        return self._judged(look()).now

    def stamp(self, moment: int) -> int:
        """Return the moment, but never one before a disputed clock's store time.

        Data with an early stamp would be deleted too soon.
        """
        if self._started is not None:  # ``ticks`` is inlined: each append comes here
            here = self._started + time.clock_gettime_ns(_TICKS) // 1_000
            if -TOLERANCE <= moment - here <= TOLERANCE:
                return moment
        judged = self._judged(look())
        return max(moment, judged.now) if judged.disputed else moment

    def observe(self) -> Judged:
        """Record the clocks, and return the time; warn about a disputed wall clock."""
        if self._database.readonly:
            return self._judged(look())
        seen = look()
        attested = self._database.change(NOBODY, lambda c: self._record(c, seen))
        self._use(attested, seen)
        judged = attested.judged(seen)
        if judged.disputed:
            log.warning(
                "the clock of this machine cannot be right: it differs by %d days from "
                "the time that %s knows of, by which data is kept and deleted for now. "
                "It is believed once it went right for a day, or with %s=1",
                abs(seen.wall - judged.now) // DAY,
                self._database.what,
                TRUST,
            )
        return judged

    def open(self) -> None:
        """Read the record, and renew it if it is old."""
        seen = look()
        self._read(seen)
        attested = self._attested
        if attested is not None:
            passed = seen.passed_since(attested.boot, attested.ticks)
            is_recent = passed is not None and passed < DAY
            if is_recent or not attested.agrees(seen):
                return
        if not self._database.readonly:
            # A busy file or a moved store fails at the next write with its own error.
            with suppress(RefoldError):
                attested = self._database.change(
                    NOBODY, lambda c: self._record(c, seen)
                )
                self._use(attested, seen)

    def _read(self, seen: Look) -> None:
        rows = self._database.fetch(NOBODY, _SQL["setting"], (CLOCK,))
        self._use(_loaded(rows[0][0]) if rows else None, seen)

    def _use(self, attested: Attested | None, seen: Look) -> None:
        """Judge by this record from now on."""
        self._attested = attested
        self._read_at = seen.ticks
        self._started = None
        if attested is None:
            return
        if seen.passed_since(attested.boot, attested.ticks) is not None:
            self._started = attested.time - attested.ticks

    def _judged(self, seen: Look) -> Judged:
        if self._attested is None or os.environ.get(TRUST) == "1":
            return Judged(seen.wall)
        judged = self._attested.judged(seen)
        if judged.disputed and seen.ticks - self._read_at > _MINUTE:
            # Another process may have established that the clock is right.
            with suppress(RefoldError):
                self._read(seen)
            if self._attested is not None:
                judged = self._attested.judged(seen)
        return judged

    def _record(self, connection: Connection, seen: Look) -> Attested:
        """Write the known time after this look to the file, and return it."""
        query = connection.exec_driver_sql
        newest_stamp = _SQL["newest_stamp"].format(**self._database.names)
        newest = query(newest_stamp).scalar() or 0
        value = query("SELECT value FROM settings WHERE name=?", (CLOCK,)).scalar()
        attested = None if value is None else _loaded(str(value))
        if os.environ.get(TRUST) == "1":
            after = Attested(seen.wall, seen.boot, seen.ticks)
        elif attested is None:
            after = first_attested(seen, newest=int(newest))
        else:
            after = attested.after(seen, newest=int(newest))
        values = {"name": CLOCK, "value": _dumped(after)}
        connection.execute(self._database.statement(_SQL["put_setting"]), values)
        return after


def _dumped(attested: Attested) -> str:
    record: dict[str, Any] = attested._asdict()
    if attested.other is not None:
        record["other"] = attested.other._asdict()
    return orjson.dumps(record).decode()


def _loaded(text: str) -> Attested | None:
    """Read the record that ``_dumped`` wrote; None for any other text."""
    with suppress(ValueError, TypeError, KeyError):
        record = orjson.loads(text)
        other = record["other"]
        return Attested(
            time=int(record["time"]),
            boot=str(record["boot"]),
            ticks=int(record["ticks"]),
            other=None if other is None else Look(**other),
        )
    return None
