"""The cost of a short process before it does its work.

``make bench-cold``: the CPU of a process above that of a Python that does nothing, the
minimum of several runs.  Each row has a limit; with another tree as the argument
(``ARGS=/path/to/tree``), its processes run in turn with ours.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from refold.adapters.capture_hook import MODULE
from refold.adapters.capture_state import CaptureState, absolute

ROUNDS: Final = 7
_HERE: Final = Path(__file__).parent.parent
_APPEND: Final = """
import sys, refold
with refold.open(sys.argv[1]) as store:
    session = store.session(user_id="ada", session_id="s-1")
    for number in range(int(sys.argv[2])):
        session.append(refold.UserInput(text=f"{number}: {sys.argv[3]}"))
"""
_OPEN: Final = "import sys, refold; refold.open(sys.argv[1]).close()"
_REDACT: Final = "import refold; refold.redact('mail ada@example.org, please')"
_PROSE: Final = "The quick fox reads the budget of the third quarter. " * 40


@dataclass(frozen=True, slots=True)
class Row:
    """A process to measure.

    limit: the most seconds of CPU above a bare Python.
    """

    name: str
    command: tuple[str, ...]
    limit: float


class NewStores(NamedTuple):
    """The URLs of stores that do not exist yet, by the process that creates each."""

    open: str
    one_append: str
    many_appends: str


def rows(stored: str, new: NewStores, folder: str) -> list[Row]:
    """The processes.

    stored: the URL of a store with one event.
    folder: the folder of a capture.
    """
    python = sys.executable
    refold = (python, "-m", "refold", "--db", stored)
    session = ("--user", "ada", "--session", "s-1")
    append = (python, "-c", _APPEND)
    hook = (python, "-P", "-m", MODULE, "claude-code", "--user", "ada")
    return [
        Row("import refold", (python, "-c", "import refold"), 0.02),
        Row("open a new store", (python, "-c", _OPEN, new.open), 0.30),
        Row("open, one append", (*append, new.one_append, "1", "Hello"), 0.35),
        Row("open, 500 appends", (*append, new.many_appends, "500", _PROSE), 0.55),
        Row("refold sessions", (*refold, "sessions", "--user", "ada"), 0.35),
        Row("refold log", (*refold, "log", *session), 0.35),
        Row("refold context", (*refold, "context", *session), 0.35),
        Row("redact a line", (python, "-c", _REDACT), 0.30),
        Row("hook, nothing to do", (*hook, "--folder", folder, "--db", stored), 0.06),
    ]


class Tree:
    """A tree of Refold's sources, with the files of the processes that run it."""

    def __init__(self, path: Path, work: Path) -> None:
        self._path = path
        self._work = work
        self._stores = 0
        self._stored = f"sqlite:///{work}/stored.db"
        work.mkdir()
        store_one_event = (sys.executable, "-c", _APPEND, self._stored, "1", "Hello")
        self.cpu(store_one_event)
        # Compiled rules are part of an installation.  Older trees have no such command.
        warm = (sys.executable, "-m", "refold", "warm")
        subprocess.run(warm, check=False, capture_output=True, env=self.environment())

    def rows(self) -> list[Row]:
        """The processes of one round, which use their own stores."""
        self._stores += 1
        prefix = f"sqlite:///{self._work}/new-{self._stores}"
        new = NewStores(
            open=f"{prefix}.db",
            one_append=f"{prefix}-one.db",
            many_appends=f"{prefix}-many.db",
        )
        return rows(self._stored, new, str(self._work))

    def capture(self) -> CaptureState:
        """The capture whose lock leaves the hook nothing to do."""
        return CaptureState.of(
            url=absolute(self._stored),
            user_id="ada",
            client="claude-code",
            folder=self._work,
        )

    def cpu(self, command: Sequence[str]) -> float:
        """The seconds of CPU that a process of this tree takes."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True, env=self.environment())
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        user = after.ru_utime - before.ru_utime
        return user + after.ru_stime - before.ru_stime

    def environment(self) -> Mapping[str, str]:
        """The environment of its processes."""
        return {
            **os.environ,
            "REFOLD_HOME": str(self._work),
            "REFOLD_CACHE": str(self._work / "cache"),
            "PYTHONPATH": str(self._path),
        }


def starts(
    rounds: int, paths: Sequence[Path] = (_HERE,)
) -> list[tuple[Row, list[float]]]:
    """Each process, and its seconds of CPU above a bare Python in each tree.

    rounds: how often each process runs; the least counts.
    paths:  the trees, which take turns.
    """
    best: dict[tuple[str, int], float] = {}
    bare: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        trees = [
            Tree(path, Path(folder) / str(number)) for number, path in enumerate(paths)
        ]
        for tree in trees:
            os.environ["REFOLD_HOME"] = tree.environment()["REFOLD_HOME"]
            tree.capture().acquire()
        for _ in range(rounds):
            bare.append(trees[0].cpu((sys.executable, "-c", "pass")))
            in_turn = zip(*(tree.rows() for tree in trees), strict=True)
            for same_row in in_turn:
                for number, row in enumerate(same_row):
                    key = row.name, number
                    seconds = trees[number].cpu(row.command)
                    best[key] = min(best.get(key, seconds), seconds)
        return [
            (row, [best[row.name, number] - min(bare) for number in range(len(paths))])
            for row in trees[0].rows()
        ]


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns 1 if a limit is missed."""
    missed = 0
    for row, figures in starts(ROUNDS, [_HERE, *map(Path, arguments)]):
        columns = "".join(f"{seconds:8.3f}" for seconds in figures)
        print(f"{row.name:22}{columns}   at most {row.limit:.2f}")
        if figures[0] > row.limit:
            missed += 1
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
