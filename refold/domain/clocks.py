"""The time of a store, by which data is deleted, and how far it trusts wall clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

_HOUR: Final = 3_600_000_000  # microseconds
DAY: Final = 24 * _HOUR
# Two clocks agree if they differ by at most this.
TOLERANCE: Final = _HOUR
# After a restart, nothing shows how long the machine was off.  The wall clock is
# trusted if it says that at most this much time has passed.
LONGEST_GAP: Final = 7 * DAY
# A disputed wall clock is trusted after it has run correctly for this time.
TRUSTED_AFTER: Final = DAY


class StoreTime(Protocol):
    """The time of a store, independent of the wall clock of a single machine.

    It determines the age of everything that is deleted by age: keys in a grace period,
    unused sessions, blobs, records of the access log, values that sessions keep.
    """

    def now(self) -> int:
        """Return the time for ages, in microseconds since 1970."""

    def stamp(self, moment: int) -> int:
        """Return the time to store for a write.

        moment: the time of the write by this machine's clock.
        """

    def observe(self) -> EstimatedTime:
        """Compare the clocks once more, and return the time for ages.

        It is called before something is deleted because of its age.
        """


class EstimatedTime(NamedTuple):
    """The time of a store, as far as its clocks show it.

    now:      microseconds since 1970.
    disputed: whether the wall clock of this machine shows another time.
    """

    now: int
    disputed: bool = False


class GivenTime:
    """The time of a clock that a program passed, without any check."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.now = clock

    def stamp(self, moment: int) -> int:
        return moment

    def observe(self) -> EstimatedTime:
        return EstimatedTime(self.now())


class ClockReading(NamedTuple):
    """The clocks of a machine at one moment.

    wall:  the wall clock, which anybody may set; microseconds since 1970.
    boot:  an id of this start of the machine; empty if there is none.
    ticks: the microseconds since the start, by a clock that nobody can set.
    """

    wall: int
    boot: str
    ticks: int

    def passed_since(self, boot: str, ticks: int) -> int | None:
        """Return the microseconds since an earlier reading; None after a restart.

        boot, ticks: the fields of the earlier reading.
        """
        if not self.boot or self.boot != boot:
            return None
        return self.ticks - ticks


class KnownTime(NamedTuple):
    """The time of a store at its last reading of the clocks.

    time:     the time of the store, in microseconds since 1970, at the tick ``ticks``
              of the start ``boot`` of a machine.
    disputed: the first reading of a wall clock that shows another time and may become
              trusted; None if there is none.
    """

    time: int
    boot: str
    ticks: int
    disputed: ClockReading | None = None

    def time_at(self, reading: ClockReading) -> int:
        """Return the time of the store at a later reading, by the ticks since this one.

        After a restart, it is the time of this record.  The wall clock has no effect.
        """
        passed = reading.passed_since(self.boot, self.ticks)
        return self.time + max(passed or 0, 0)

    def agrees_with(self, reading: ClockReading) -> bool:
        """Whether the wall clock shows a time that is possible by this record."""
        if reading.passed_since(self.boot, self.ticks) is None:
            return -TOLERANCE <= reading.wall - self.time <= LONGEST_GAP
        return abs(reading.wall - self.time_at(reading)) <= TOLERANCE

    def estimate(self, reading: ClockReading) -> EstimatedTime:
        """Return the time of the wall clock if this record agrees with it.

        Else the time is counted from the record, and the wall clock is disputed.
        """
        if self.agrees_with(reading):
            return EstimatedTime(reading.wall)
        return EstimatedTime(self.time_at(reading), disputed=True)

    def after(self, reading: ClockReading, *, newest: int) -> KnownTime:
        """Return the record to store after this reading.

        A disputed wall clock becomes trusted when it has run correctly for a day.  The
        day starts again if the clock is set once more, or if an event was written since
        whose time is more than a day before the wall clock: another clock is in use.

        newest: the time of the newest event, by its writer's clock.
        """
        trusted = KnownTime(reading.wall, reading.boot, reading.ticks)
        if self.agrees_with(reading):
            return trusted
        time = self.time_at(reading)
        first = self.disputed
        if first is None or not _runs_correctly(first, reading):
            return KnownTime(time, reading.boot, reading.ticks, reading)
        passed = reading.passed_since(first.boot, first.ticks)
        if passed is None:
            # After a restart, only the wall clock itself shows how long it has run.
            passed = reading.wall - first.wall
        else:
            time_of_first = time - passed
            is_written_since = newest > time_of_first
            if is_written_since and newest < reading.wall - DAY:
                return KnownTime(time, reading.boot, reading.ticks, reading)
        if passed >= TRUSTED_AFTER:
            return trusted
        return KnownTime(time, reading.boot, reading.ticks, first)


def first_known(reading: ClockReading, *, newest: int) -> KnownTime:
    """Return the record to store after the first reading in a store.

    newest: the time of the newest event; 0 if the store is empty.  No other evidence
            shows whether the wall clock is right.
    """
    if newest and reading.wall - newest > LONGEST_GAP:
        return KnownTime(newest, reading.boot, reading.ticks, reading)
    return KnownTime(reading.wall, reading.boot, reading.ticks)


def _runs_correctly(first: ClockReading, later: ClockReading) -> bool:
    """Whether the wall clock advanced, between two readings, as the ticks did.

    After a restart, it must have advanced by at most ``LONGEST_GAP``.
    """
    advanced = later.wall - first.wall
    passed = later.passed_since(first.boot, first.ticks)
    if passed is None:
        return 0 <= advanced <= LONGEST_GAP
    return abs(advanced - passed) <= TOLERANCE
