"""``python -m benchmarks.redaction``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.redaction.run import Options, run


def main() -> int:
    """Read the options and run; returns 1 if something that must hold does not."""
    parser = argparse.ArgumentParser(prog="benchmarks.redaction", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small corpora, 1 round")
    parser.add_argument("--data", type=Path, help="a folder of labelled data")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plot", type=Path, help="draw the figures as a PNG")
    parser.add_argument("--markdown", type=Path, help="fill the results of this page")
    parser.add_argument("--laws", type=int, help="how many generated cases")
    parser.add_argument("--misses", action="store_true", help="list what was missed")
    given = parser.parse_args()
    options = Options(
        quick=given.quick,
        data=given.data,
        json=given.json,
        plot=given.plot,
        markdown=given.markdown,
        laws=given.laws,
        misses=given.misses,
    )
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
