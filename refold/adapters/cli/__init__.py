"""The command line: ``refold [--db URL] COMMAND``."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from refold.adapters.cli.run import prepare_streams, run


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line with ``args``, or the process's; returns the exit code."""
    if args is not None:
        return run(args)
    prepare_streams()
    # A command drops most of its objects soon, and the search for reference cycles
    # would take a twentieth of its time.  Only the command's own process may change
    # this setting: the library runs in processes of others.
    gc.set_threshold(50_000, 20, 100)
    return run(sys.argv[1:])
