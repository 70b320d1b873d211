"""List the points that are left to do before a release and that no test can check.

``python -m tests.release.checklist`` prints the list.  With ``--tag TAG``, as in the
release's workflow, each open point that a machine can see is an error.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

import refold
from tests.support.warm import ROOT
from tools import public_api

BY_HAND = (
    "the changelog describes every change of the public API and of the stores",
    "a schema change has a step in STEPS, and a golden store of the last release",
    "figures in README and benchmarks were measured with this version",
    "someone followed the tutorial with only the wheel and the built pages",
)


def open_points(changelog: str, pyproject: str, version: str) -> list[str]:
    """Return what a machine can see to be unfinished."""
    points: list[str] = []
    newest = re.search(r"^## \[(.+?)\] – (.+)$", changelog, re.MULTILINE)
    if newest is None or newest[1] != version:
        points.append(f"CHANGELOG.md does not begin with version {version}")
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", newest[2]):
        points.append(f"CHANGELOG.md has no date for {version}: {newest[2]}")
    if "github.com/OWNER/" in pyproject:
        points.append("pyproject.toml names no owner of the repository: replace OWNER")
    return points


def main(arguments: Sequence[str]) -> int:
    """Print the list; return 1 if a tag is released with open points."""
    parser = argparse.ArgumentParser(prog="python -m tests.release.checklist")
    parser.add_argument("--tag", help="the tag of the release")
    tag = parser.parse_args(arguments).tag
    points = open_points(
        (ROOT / "CHANGELOG.md").read_text("utf-8"),
        (ROOT / "pyproject.toml").read_text("utf-8"),
        refold.__version__,
    )
    if public_api.DUMP.read_text("utf-8") != public_api.dump(public_api.load()):
        points.append(
            "tools/public_api.txt is not of this version: run "
            "`python -m tools.public_api`"
        )
    if tag is not None and tag != f"v{refold.__version__}":
        points.append(f"the tag {tag} is not v{refold.__version__}")
    for point in points:
        print(f"open: {point}")
    if tag is None:
        for point in BY_HAND:
            print(f"by hand: {point}")
    return 1 if tag is not None and points else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
