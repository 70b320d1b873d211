"""``refold``, or a program, in a process whose wall clock is wrong by some seconds.

All clocks that ``refold`` reads are shifted, except those that cannot be set: the
monotonic clock, and the ticks since the machine started.
"""

from __future__ import annotations

import datetime
import sys
import time
from typing import Any, Final

from refold.adapters.cli import main

_REAL: Final = datetime.datetime
_CLOCKS: Final = ("time", "time_ns")


class _IsReal(type):
    """Makes ``isinstance`` accept objects of the real class for the shifted one."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _REAL)


def shift(seconds: int) -> None:
    """Move this process's wall clock ``seconds`` ahead."""
    offset = datetime.timedelta(seconds=seconds)
    real_time = time.time
    real_ns = time.time_ns
    real_read = time.clock_gettime_ns
    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: real_ns() + seconds * 1_000_000_000

    def read(clock: int) -> int:
        ahead = seconds * 1_000_000_000 if clock == time.CLOCK_REALTIME else 0
        return real_read(clock) + ahead

    time.clock_gettime_ns = read

    class Shifted(_REAL, metaclass=_IsReal):  # type: ignore[valid-type,misc]  # it is a class
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return _REAL.now(tz) + offset

        @classmethod
        def utcnow(cls) -> Any:
            return _REAL.now(datetime.UTC).replace(tzinfo=None) + offset

        @classmethod
        def today(cls) -> Any:
            return _REAL.now() + offset

    datetime.datetime = Shifted  # type: ignore[misc]  # for what is imported later
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        if not str(names.get("__name__", "")).startswith("refold"):
            continue
        if names.get("datetime") is _REAL:
            names["datetime"] = Shifted
        for clock in _CLOCKS:
            imported = names.get(clock)
            if imported is real_time or imported is real_ns:
                names[clock] = getattr(time, clock)


_ARGUMENTS: Final = sys.argv[1:]

if __name__ == "__main__":
    shift(int(_ARGUMENTS[0]))
    if _ARGUMENTS[1] == "python":
        exec(_ARGUMENTS[2])  # noqa: S102  # a program of the test
    else:
        sys.exit(main(_ARGUMENTS[1:]))
