"""``python -m benchmarks.store``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.store.engines import ENGINES
from benchmarks.store.run import PARTS, Options, run


def main() -> int:
    """Read the options and run; returns 1 if something that must hold does not."""
    parser = argparse.ArgumentParser(prog="benchmarks.store", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fraction of the work")
    parser.add_argument("--only", action="append", choices=list(PARTS), default=[])
    parser.add_argument("--engine", action="append", choices=list(ENGINES), default=[])
    parser.add_argument("--events", type=int, help="of the longest session")
    parser.add_argument("--data", type=Path, help="a folder of transcripts")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plot", type=Path, help="draw the figures as a PNG")
    parser.add_argument("--markdown", type=Path, help="fill the results of this page")
    given = vars(parser.parse_args())
    return run(Options(engines=given.pop("engine"), **given))


if __name__ == "__main__":
    sys.exit(main())
