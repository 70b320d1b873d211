"""``make soak``: a soak on a server of its own; it says how far it is, and what it did.

It takes minutes and some GB of the directory for temporary files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from time import monotonic

from tests.soak.plan import Plan
from tests.soak.run import Report, Soak
from tests.support.postgres import Postgres

_TOLD: int = 50  # as many lines of progress


def main(arguments: list[str] | None = None) -> int:
    """Run a soak as the arguments say; 1 if anything is wrong after it."""
    usual = Plan()
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    for name in ("seed", "events", "sessions", "processes"):
        parser.add_argument(f"--{name}", type=int, default=getattr(usual, name))
    plan = Plan(**vars(parser.parse_args(arguments)))
    reported = 0

    def tell(report: Report) -> None:
        nonlocal reported
        if report.acknowledged * _TOLD >= reported * plan.events:
            reported = report.acknowledged * _TOLD // plan.events + 1
            sys.stdout.write(f"{report.acknowledged:>9} events {report.harms}\n")
            sys.stdout.flush()

    begin = monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="refold-soak-") as folder,
        Postgres.start() as server,
    ):
        report = Soak(plan, server, Path(folder)).run(tell)
    return _sum_up(report, monotonic() - begin)


def _sum_up(report: Report, seconds: float) -> int:
    for memory in report.memory:
        sys.stdout.write(
            f"{memory.process}: {memory.start:.0f} MiB at the start, "
            f"{memory.early:.0f} after a fifth, {memory.end:.0f} at the end\n"
        )
    for wrong in report.wrong[:20]:
        sys.stdout.write(f"wrong: {wrong}\n")
    plan = report.plan
    sys.stdout.write(
        f"seed {plan.seed}: {report.acknowledged} events acknowledged, "
        f"{report.retried} appends at a second attempt, {report.compactions} "
        f"compactions, {report.harms}, {report.worked_sec:.0f} s and "
        f"{seconds - report.worked_sec:.0f} s to check; "
        f"{len(report.wrong)} things are wrong\n"
    )
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
