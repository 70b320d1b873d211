"""The time of a store: a server's clock, or what attests it on one machine."""

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
# A machine's clock that is less wrong than this is used as it is.
_MINUTE: Final = 60_000_000
_TICKS: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
# Set where somebody knows that the clock of this machine is right.
TRUST: Final = "REFOLD_TRUST_CLOCK"


def wall() -> int:
    """The wall clock of this machine; microseconds since 1970."""
    return time.time_ns() // 1_000


def ticks() -> int:
    """Microseconds since this machine started; nobody can set this clock."""
    return time.clock_gettime_ns(_TICKS) // 1_000


@cache
def boot() -> str:
    """A name for this start of the machine; empty where the system gives none."""
    with suppress(OSError, UnicodeDecodeError):
        return _BOOT.read_text("ascii").strip()
    return ""


def look() -> Look:
    """What this machine says of the time."""
    return Look(wall(), boot(), ticks())


class ServerTime:
    """The time of a server's clock, as it was asked when a connection was made.

    A machine's clock that differs by less than a minute is used as it is.
    """

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._started: int | None = None  # when the machine did, by the server's clock

    def heard(self, moment: int) -> None:
        """The server's clock said this just now."""
        self._started = moment - ticks()

    def now(self) -> int:
        return self.stamp(wall())

    def stamp(self, moment: int) -> int:
        if self._started is None:
            self.heard(self._ask())
            return self.stamp(moment)
        # Written out: each append comes by here.
        here = self._started + time.clock_gettime_ns(_TICKS) // 1_000
        if -_MINUTE <= moment - here <= _MINUTE:
            return moment
        return here

    def observe(self) -> Judged:
        """Ask the server again."""
        self.heard(self._ask())
        return Judged(self.now())


class ObservedTime:
    """The time of a store in a file, where no other machine can be asked.

    The file has a record of the time at one tick of the machine.  By that, a wall
    clock that jumps is noticed, and nothing is deleted because of the jump: see
    ``domain/clocks.py``.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: Attested | None = None
        self._read_at = 0  # the tick when the record was read
        # When this machine started, by the record; of another start nothing follows.
        self._started: int | None = None

    def now(self) -> int:
        return self._judged(look()).now

    def stamp(self, moment: int) -> int:
        """Not before the time of the store: an early stamp would age too soon."""
        if self._started is not None:  # written out: each append comes by here
            here = self._started + time.clock_gettime_ns(_TICKS) // 1_000
            if -TOLERANCE <= moment - here <= TOLERANCE:
                return moment
        judged = self._judged(look())
        return max(moment, judged.now) if judged.disputed else moment

    def observe(self) -> Judged:
        """Keep what this look says, and judge by it."""
        if self._database.readonly:
            return self._judged(look())
        seen = look()
        known = self._database.change(NOBODY, lambda c: self._noted(c, seen))
        self._learn(known, seen)
        judged = known.judged(seen)
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
        """Read the record, and renew one that is old."""
        seen = look()
        self._read(seen)
        known = self._known
        if known is not None:
            passed = seen.passed_since(known.boot, known.ticks)
            recent = passed is not None and passed < DAY
            if recent or not known.agrees(seen):
                return
        if not self._database.readonly:
            # What keeps the file busy, or moves the store, is none of this.
            with suppress(RefoldError):
                known = self._database.change(NOBODY, lambda c: self._noted(c, seen))
                self._learn(known, seen)

    def _read(self, seen: Look) -> None:
        found = self._database.fetch(NOBODY, _SQL["setting"], (CLOCK,))
        self._learn(_loaded(found[0][0]) if found else None, seen)

    def _learn(self, known: Attested | None, seen: Look) -> None:
        self._known = known
        self._read_at = seen.ticks
        self._started = None
        if known is not None and seen.passed_since(known.boot, known.ticks) is not None:
            self._started = known.time - known.ticks

    def _judged(self, seen: Look) -> Judged:
        if self._known is None or os.environ.get(TRUST) == "1":
            return Judged(seen.wall)
        judged = self._known.judged(seen)
        if judged.disputed and seen.ticks - self._read_at > _MINUTE:
            # Another process may have found since that the clock is right.
            with suppress(RefoldError):
                self._read(seen)
            if self._known is not None:
                judged = self._known.judged(seen)
        return judged

    def _noted(self, connection: Connection, seen: Look) -> Attested:
        """Keep in the file what is known after this look."""
        ask = connection.exec_driver_sql
        newest = ask(_SQL["newest_stamp"].format(**self._database.names)).scalar() or 0
        found = ask("SELECT value FROM settings WHERE name=?", (CLOCK,)).scalar()
        known = None if found is None else _loaded(str(found))
        if os.environ.get(TRUST) == "1":
            after = Attested(seen.wall, seen.boot, seen.ticks)
        elif known is None:
            after = first_attested(seen, newest=int(newest))
        else:
            after = known.after(seen, newest=int(newest))
        values = {"name": CLOCK, "value": _dumped(after)}
        connection.execute(self._database.statement(_SQL["put_setting"]), values)
        return after


def _dumped(known: Attested) -> str:
    record: dict[str, Any] = known._asdict()
    if known.other is not None:
        record["other"] = known.other._asdict()
    return orjson.dumps(record).decode()


def _loaded(text: str) -> Attested | None:
    """The record that ``_dumped`` wrote; None for anything else."""
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
