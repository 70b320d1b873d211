"""``python -m tests.simulation`` runs random histories, or prints the one of a seed.

It ends with the first history that breaks a promise, and with the command that replays
it.
"""

from __future__ import annotations

import argparse
import sys
from time import process_time

from tests.simulation.history import History


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments say; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="tell the history of this seed")
    parser.add_argument("--first", type=int, default=0, help="the first of many seeds")
    parser.add_argument("--count", type=int, default=5_000, help="how many histories")
    asked = parser.parse_args(arguments)
    if asked.seed is not None:
        return print_history(asked.seed)
    begin = process_time()
    steps = 0
    for seed in range(asked.first, asked.first + asked.count):
        history = History(seed)
        try:
            history.run()
        except BaseException as error:
            sys.stdout.write(f"seed {seed}: {type(error).__name__}: {error}\n")
            sys.stdout.write(f"replay it: {replay_command(seed)}\n")
            return 1
        steps += history.world.scheduler.steps
    seconds = process_time() - begin
    sys.stdout.write(
        f"{asked.count} histories from seed {asked.first}, {steps} steps, "
        f"{seconds:.1f} s of CPU: all promises kept\n"
    )
    return 0


def replay_command(seed: int) -> str:
    """Return the command that prints the history of this seed."""
    return f".venv/bin/python -m tests.simulation --seed {seed}"


def print_history(seed: int) -> int:
    """Run one history, and print every step of it."""
    history = History(seed)
    try:
        history.run()
    except Exception as error:
        ended = f"{type(error).__name__}: {error}"
        code = 1
    else:
        ended = "all promises kept"
        code = 0
    for now, task, *words_said in history.world.trace:
        words = " ".join(str(word) for word in words_said if word not in ("", None))
        sys.stdout.write(f"{now % 10**10 / 1e6:12.6f} {task}: {words}\n")
    for request in history.requests:
        seqs = [(receipt.first_seq, receipt.last_seq) for receipt in request.receipts]
        sys.stdout.write(f"{request.token} {request.kind}: {request.state} {seqs}\n")
    sys.stdout.write(f"seed {seed}: {ended}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
