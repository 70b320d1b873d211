"""The time of a store, and the wall clocks that contradict other evidence of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

_HOUR: Final = 3_600_000_000  # microseconds
DAY: Final = 24 * _HOUR
# Clocks with a smaller difference agree.
TOLERANCE: Final = _HOUR
# The longest time without evidence besides the wall clock, such as a shutdown.
UNATTESTED: Final = 7 * DAY
# A clock that disagrees becomes credible after it has run correctly for this time.
SECOND_LOOK: Final = DAY


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

    def observe(self) -> Judged:
        """Check the evidence of the time, before something is deleted by its age."""


class Judged(NamedTuple):
    """The time of a store.

    disputed: whether this machine's wall clock shows another time.
    """

    now: int
    disputed: bool = False


class GivenTime:
    """The time of a clock that a program passed, without any check."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.now = clock

    def stamp(self, moment: int) -> int:
        return moment

    def observe(self) -> Judged:
        return Judged(self.now())


class Look(NamedTuple):
    """The clocks of a machine at one moment.

    wall:  the wall clock, which anybody may set; microseconds since 1970.
    boot:  an id of this start of the machine; empty if there is none.
    ticks: the microseconds since the start, by a clock that nobody can set.
    """

    wall: int
    boot: str
    ticks: int

    def passed_since(self, boot: str, ticks: int) -> int | None:
        """Return the microseconds since that tick; None after a restart."""
        if not self.boot or self.boot != boot:
            return None
        return self.ticks - ticks


class Attested(NamedTuple):
    """The known time of a store at one tick of a machine.

    other: the first look at a wall clock that disagrees, if there is one.
    """

    time: int
    boot: str
    ticks: int
    other: Look | None = None

    def at(self, look: Look) -> int:
        """Return the time of the store at a look, by the time that provably passed."""
        passed = look.passed_since(self.boot, self.ticks)
        return self.time + max(passed or 0, 0)

    def agrees(self, look: Look) -> bool:
        """Whether the wall clock may be right."""
        if look.passed_since(self.boot, self.ticks) is None:
            return -TOLERANCE <= look.wall - self.time <= UNATTESTED
        return abs(look.wall - self.at(look)) <= TOLERANCE

    def judged(self, look: Look) -> Judged:
        """Return the time at this look: that of the wall clock if it may be right."""
        if self.agrees(look):
            return Judged(look.wall)
        return Judged(self.at(look), disputed=True)

    def after(self, look: Look, *, newest: int) -> Attested:
        """Return the known time after this look.

        A wall clock that disagrees is accepted if it disagreed a day ago by the same
        difference, and no look and no write has contradicted it since.

        newest: the time of the newest event, by its writer's clock.
        """
        believed = Attested(look.wall, look.boot, look.ticks)
        if self.agrees(look):
            return believed
        time = self.at(look)
        first = self.other
        if first is not None and _goes_with(first, look):
            passed = look.passed_since(first.boot, first.ticks)
            written_since = passed is not None and newest > time - passed
            contradicted = written_since and newest < look.wall - DAY
            if not contradicted:
                lasted = look.wall - first.wall if passed is None else passed
                if lasted >= SECOND_LOOK:
                    return believed
                return Attested(time, look.boot, look.ticks, first)
        return Attested(time, look.boot, look.ticks, look)


def first_attested(look: Look, *, newest: int) -> Attested:
    """Return the known time at the first look at a store.

    newest: the time of the newest event, which is the only evidence; 0 if the store is
            empty.
    """
    if newest and look.wall - newest > UNATTESTED:
        return Attested(newest, look.boot, look.ticks, look)
    return Attested(look.wall, look.boot, look.ticks)


def _goes_with(first: Look, look: Look) -> bool:
    """Whether the wall clock has run correctly since the first look."""
    passed = look.passed_since(first.boot, first.ticks)
    if passed is None:
        return 0 <= look.wall - first.wall <= UNATTESTED
    return abs(look.wall - first.wall - passed) <= TOLERANCE
