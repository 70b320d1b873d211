"""The command line: ``refold [--db URL] COMMAND``."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from refold.adapters.cli.run import mend_streams, run


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line with ``args``, or the process's; returns the exit code."""
    if args is not None:
        return run(args)
    mend_streams()
    # Here alone, never in the library: a process of ours makes much that is not kept,
    # and to look through all there is for circles takes a twentieth of its time.
    gc.set_threshold(50_000, 20, 100)
    return run(sys.argv[1:])
