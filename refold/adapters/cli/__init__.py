"""The command line: ``refold [--db URL] COMMAND``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from refold.adapters.cli.run import mend_streams, run


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line with ``args``, or the process's; returns the exit code."""
    if args is not None:
        return run(args)
    mend_streams()
    return run(sys.argv[1:])
