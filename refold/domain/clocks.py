"""How far a machine's wall clock can be believed, by what else attests the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

_HOUR: Final = 3_600_000_000  # microseconds
DAY: Final = 24 * _HOUR
# Two clocks that differ by less agree.
TOLERANCE: Final = _HOUR
# So much may pass while a machine is off, and nothing but its wall clock says so.
UNATTESTED: Final = 7 * DAY
# A clock that disagrees is believed once it went right for so long.
SECOND_LOOK: Final = DAY


class StoreTime(Protocol):
    """What time it is for a store, whatever the wall clock of one machine says.

    Whatever is deleted by its age is judged by it: what a grace holds back, unused
    sessions, whole texts, records of the access log, values that sessions keep.
    """

    def now(self) -> int:
        """The time by which ages are judged; microseconds since 1970."""

    def stamp(self, moment: int) -> int:
        """The time to keep of a write, made at ``moment`` by this machine's clock."""

    def observe(self) -> Judged:
        """Ask what attests the time, before something is deleted by its age."""


class Judged(NamedTuple):
    """The time of a store.  ``disputed``: this machine's wall clock says another."""

    now: int
    disputed: bool = False


class GivenTime:
    """The time of a clock that a program handed in: it is believed."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.now = clock

    def stamp(self, moment: int) -> int:
        return moment

    def observe(self) -> Judged:
        return Judged(self.now())


class Look(NamedTuple):
    """What a machine says of the time at one moment.

    wall:  its wall clock, which anybody may set; microseconds since 1970.
    boot:  a name for this start of the machine; empty where none is known.
    ticks: microseconds since it started, by a clock that cannot be set.
    """

    wall: int
    boot: str
    ticks: int

    def passed_since(self, boot: str, ticks: int) -> int | None:
        """Microseconds since that tick; None if the machine was started again."""
        if not self.boot or self.boot != boot:
            return None
        return self.ticks - ticks


class Attested(NamedTuple):
    """The time of a store as it was known at one tick of a machine.

    other: the first look at a wall clock that says another time, if there is one.
    """

    time: int
    boot: str
    ticks: int
    other: Look | None = None

    def at(self, look: Look) -> int:
        """The time of the store at a look, by what has provably passed."""
        passed = look.passed_since(self.boot, self.ticks)
        return self.time + max(passed or 0, 0)

    def agrees(self, look: Look) -> bool:
        """Whether the wall clock says what can be true."""
        if look.passed_since(self.boot, self.ticks) is None:
            return -TOLERANCE <= look.wall - self.time <= UNATTESTED
        return abs(look.wall - self.at(look)) <= TOLERANCE

    def judged(self, look: Look) -> Judged:
        """The time at this look: the wall clock's, if it can be true."""
        if self.agrees(look):
            return Judged(look.wall)
        return Judged(self.at(look), disputed=True)

    def after(self, look: Look, *, newest: int) -> Attested:
        """What is known after this look.

        A wall clock that disagrees is believed if it disagreed a day ago by as much,
        and neither a look nor a write says otherwise since then.

        newest: when the newest event was written, by its writer's clock.
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
    """What is known at the first look at a store; ``newest`` is 0 if it is empty.

    The newest event is all that says how much time has passed since it was written.
    """
    if newest and look.wall - newest > UNATTESTED:
        return Attested(newest, look.boot, look.ticks, look)
    return Attested(look.wall, look.boot, look.ticks)


def _goes_with(first: Look, look: Look) -> bool:
    """Whether the wall clock has gone right since the first look."""
    passed = look.passed_since(first.boot, first.ticks)
    if passed is None:
        return 0 <= look.wall - first.wall <= UNATTESTED
    return abs(look.wall - first.wall - passed) <= TOLERANCE
