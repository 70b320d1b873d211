"""A process that rebuilds, and kills itself before a given line of code."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

import refold
from refold.store import appends as writing, contexts as viewing
from refold.store.work import rebuilds as rebuilding

_WATCHED = {str(module.__file__) for module in (rebuilding, viewing, writing)}


class Mortal:
    """Counts the executed lines of a rebuild; dies before line ``last``."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.count = 0

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in _WATCHED:
            return None
        if event == "line":
            self.count += 1
            if self.count == self.last:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


def main(url: str, strategy: str, last: str) -> None:
    """Rebuild every session of the store; print the number of executed lines."""
    mortal = Mortal(int(last))
    with refold.open(url) as store:
        sys.settrace(mortal.trace)
        for _ in store.rebuild(strategy):
            pass
        sys.settrace(None)
    sys.stdout.write(f"{mortal.count}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
