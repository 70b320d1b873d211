"""Prints the outcome of a soak."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

_MOST_PROBLEMS = 20  # problems that are printed


def summarize(
    title: str, seconds: float, counts: Counter[str], wrong: Sequence[str]
) -> int:
    """Print the first problems, and one line of counts; return the exit code.

    title: what was run, such as ``200 histories``.
    """
    for line in wrong[:_MOST_PROBLEMS]:
        sys.stdout.write(f"{line}\n")
    listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    sys.stdout.write(
        f"{title} in {seconds:.0f} s: {listed}; {len(wrong)} things are wrong\n"
    )
    return 1 if wrong else 0
