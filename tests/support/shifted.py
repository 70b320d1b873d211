"""The ``refold`` command in a process whose clock is so many seconds wrong."""

from __future__ import annotations

import sys
import time
from typing import Final

from refold.adapters.cli import main

_time, _time_ns = time.time, time.time_ns


def shift(seconds: int) -> None:
    """Let this process's clock be ``seconds`` ahead."""
    time.time = lambda: _time() + seconds
    time.time_ns = lambda: _time_ns() + seconds * 1_000_000_000


_ARGUMENTS: Final = sys.argv[1:]

if __name__ == "__main__":
    shift(int(_ARGUMENTS[0]))
    sys.exit(main(_ARGUMENTS[1:]))
