"""Fails if the results of a benchmark were measured on another Refold.

``python -m tools.check_benchmarks``: `docs/benchmarks.md` names the commit on which it
was measured.  Since then, no file of Refold or of the benchmark may have changed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

PAGE: Final = Path("docs", "benchmarks.md")
# The files on which the figures depend.
MEASURED: Final = ("refold", "benchmarks/store", "benchmarks/cold.py")
_COMMIT: Final = re.compile(r"^Measured on commit ([0-9a-f]{7,40})[,.]", re.MULTILINE)
_REMEDY: Final = 'measure again with `make bench ARGS="--markdown docs/benchmarks.md"`'


def problem(root: Path) -> str:
    """Return why the results are old; empty if they are not."""
    named = _COMMIT.search((root / PAGE).read_text(encoding="utf-8"))
    if named is None:
        return f"{PAGE} names no commit on which it was measured: {_REMEDY}"
    commit = named[1]
    git = subprocess.run(
        ["git", "diff", "--name-only", commit, "--", *MEASURED],  # noqa: S607 - the developer's own
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if git.returncode:
        return f"{PAGE} was measured on {commit}, which is no commit here: {_REMEDY}"
    changed = git.stdout.split()
    if changed:
        return (
            f"{PAGE} was measured on {commit}, and {len(changed)} measured files have "
            f"changed since: {_REMEDY}"
        )
    return ""


if __name__ == "__main__":
    sys.exit(problem(Path(__file__).parents[1]) or 0)
