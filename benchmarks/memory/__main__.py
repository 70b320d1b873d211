"""``python -m benchmarks.memory``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.memory.run import Options, run


def main() -> int:
    """Read the options and run; returns 1 if something that must hold does not."""
    parser = argparse.ArgumentParser(prog="benchmarks.memory", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few events")
    parser.add_argument("--data", type=Path, help="a folder of transcripts")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--markdown", type=Path, help="fill the results of this page")
    given = parser.parse_args()
    return run(Options(given.quick, given.data, given.json, given.markdown))


if __name__ == "__main__":
    sys.exit(main())
