"""A worker process whose summarizer prints that it began, and then waits.

``python -m tests.support.sharing URL LEASE`` prints ``begun``, and must be killed.
"""

from __future__ import annotations

import sys
import time

import refold
from refold.projections.context.compaction import Source, Written
from refold.store.work.workers import Worker

WINDOW = "turn_window:full_turns=1,cached_turns=1"


class Stuck:
    """A summarizer that never answers."""

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        time.sleep(600)
        raise TimeoutError


def main(url: str, lease: str) -> None:
    """Run pending compactions in the store at ``url``."""
    with refold.open(url) as store:
        Worker(store, WINDOW, summarizer=Stuck(), lease=float(lease)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
