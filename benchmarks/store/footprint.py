"""A process that does one thing to a store and prints its peak of memory in MB."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import refold


def main(url: str, keys: str, what: str, strategy: str) -> None:
    """Open the store, ``rebuild`` or ``verify`` it or stay ``idle``, and tell."""
    with refold.open(url, keys=keys) as store:
        if what == "rebuild":
            for _ in store.rebuild(strategy, dry_run=True):
                pass
        elif what == "verify":
            for _ in store.verify():
                pass
    print(_kilobytes() / 1024)


def _kilobytes() -> int:
    """The peak of this program alone: ``getrusage`` counts its parent's, too."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main(*sys.argv[1:])
