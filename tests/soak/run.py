"""A soak: processes that write and project, and are harmed after counts of events.

The seed decides what is written, which process is killed, and after how many events.
What the process is doing at that moment depends on the machine.  Nothing here waits for
time to pass.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from random import Random
from threading import Thread
from time import monotonic
from typing import Final, NamedTuple

import psycopg
from psycopg.sql import SQL

import refold
from tests.soak.check import check
from tests.soak.plan import Harm, Plan
from tests.support import warm
from tests.support.environment import environment_variables
from tests.support.postgres import Postgres

# After a fifth of the events, a process may grow by this factor, plus the slack.
GROWTH = 1.25
SLACK_MIB = 16.0
_BACKENDS: Final = SQL(
    "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
    "AND backend_type = 'client backend' ORDER BY pid"
)
Name = tuple[str, int]


class SoakFailed(Exception):
    """A process of a soak ended by itself; the message has the end of its stderr."""


class Memory(NamedTuple):
    """Resident MiB of a process at the start, after a fifth, and at the end."""

    process: str
    start: float
    early: float
    end: float

    @property
    def flat(self) -> bool:
        """Whether it grew no more than allowed."""
        return self.end <= self.early * GROWTH + SLACK_MIB


@dataclass(slots=True)
class Report:
    """The work of a soak, and the problems after it."""

    plan: Plan
    acknowledged: int = 0
    compactions: int = 0
    retried: int = 0
    worked_sec: float = 0
    harms: dict[Harm, int] = field(default_factory=dict)
    memory: list[Memory] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class _Child:
    """One process; a thread puts its lines into a queue that all processes share."""

    def __init__(self, name: Name, folder: Path, lines: SimpleQueue[_Line]) -> None:
        self.name = name
        self._killed = False
        self._process = warm.module("tests.soak.worker", name[0], folder, name[1])
        self._reader = Thread(target=self._read, args=(lines,), daemon=True)
        self._reader.start()

    def _read(self, lines: SimpleQueue[_Line]) -> None:
        for line in self._process.stdout:
            lines.put((self, line.strip()))
        lines.put((self, None))

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._killed = True
        self._process.send_signal(signal.SIGKILL)

    def let_end(self) -> None:
        """Close its input, so that it finishes its work and ends."""
        self._process.stdin.close()

    def join(self) -> str:
        """Wait for its end; returns its complaint, unless it was killed."""
        code = self._process.wait()
        self._reader.join()
        self._process.stdin.close()
        self._process.stdout.close()
        with self._process.stderr as errors:
            errors.seek(0)
            errors_written = errors.read()
        if code == 0 or self._killed:
            return ""
        return errors_written[-2000:] or f"exit {code}"

    def rss(self) -> float:
        """Its resident memory in MiB."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().split("\n"):
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise SoakFailed(f"{self.name} has no memory")


_Line = tuple[_Child, str | None]


class Soak:
    """One run on a server of its own."""

    def __init__(self, plan: Plan, server: Postgres, folder: Path) -> None:
        self._plan = plan
        self._server = server
        self._folder = folder
        self._random = Random(f"{plan.seed} victims")
        self._lines: SimpleQueue[_Line] = SimpleQueue()
        self._children: dict[Name, _Child] = {}
        self._busy: set[Name] = set()
        self._harms = plan.harms()
        self._first: dict[Name, float] = {}
        self._early: dict[Name, float] = {}
        self._done: dict[Name, int] = {}
        self.report = Report(plan)

    def run(self, report_to: Callable[[Report], object] = lambda _: None) -> Report:
        """Run the soak; ``report_to`` is called after each batch.

        Raises SoakFailed if a process ends that nobody killed.
        """
        self._plan.save(self._folder / "plan.json")
        url = self._server.create_database("soak")
        variables = {
            "REFOLD_DB": url,
            "REFOLD_KEYS": f"sqlite:///{self._folder / 'keys.db'}",
            "REFOLD_HOME": str(self._folder / "home"),
        }
        with environment_variables(variables):
            with refold.open(make_key=True):
                pass
            begin = monotonic()
            try:
                self._work(report_to)
            finally:
                for child in self._children.values():
                    child.kill()
                    child.join()
            self.report.worked_sec = monotonic() - begin
            with refold.open(make_key=True) as store:
                checked = check(store, self._plan, self._folder)
            self.report.compactions = checked.compactions
            self.report.retried = checked.retried
            self.report.wrong += checked.wrong
        return self.report

    def _work(self, report_to: Callable[[Report], object]) -> None:
        for number in range(self._plan.writers):
            self._start(("write", number))
        for number in range(self._plan.projectors):
            self._start(("project", number))
        while self._busy:
            child, line = self._lines.get()
            self._hear(child, line)
            report_to(self.report)
        self._weigh()
        for child in self._children.values():
            child.let_end()
        for name in list(self._children):
            self._ended(self._children.pop(name))

    def _start(self, name: Name) -> None:
        self._children[name] = _Child(name, self._folder, self._lines)
        if name[0] == "write":
            self._busy.add(name)

    def _hear(self, child: _Child, line: str | None) -> None:
        if line is None:
            del self._children[child.name]
            self._ended(child)
            self._start(child.name)
        elif line == "done":
            self._busy.discard(child.name)
        else:
            self._done[child.name] = int(line)
            self._advance()

    @staticmethod
    def _ended(child: _Child) -> None:
        complaint = child.join()
        if complaint:
            raise SoakFailed(f"{child.name}: {complaint}")

    def _advance(self) -> None:
        self.report.acknowledged = sum(self._done.values())
        self._first = self._first or {
            name: child.rss() for name, child in self._spared()
        }
        if self.report.acknowledged >= self._plan.events // 5 and not self._early:
            self._early = {name: child.rss() for name, child in self._spared()}
        while self._harms and self._harms[0][0] <= self.report.acknowledged:
            self._harm(self._harms.pop(0)[1])

    def _harm(self, harm: Harm) -> None:
        self.report.harms[harm] = self.report.harms.get(harm, 0) + 1
        match harm:
            case "kill":
                mortal = [name for name in self._children if name[1] > 0]
                self._children[self._random.choice(mortal)].kill()
            case "cut":
                self._cut()
            case "crash":
                self._server.restart(immediate=True)
            case "restart":
                self._server.restart(immediate=False)

    def _cut(self) -> None:
        """Close half of all connections."""
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            pids = [row[0] for row in connection.execute(_BACKENDS)]
            for pid in self._random.sample(pids, (len(pids) + 1) // 2):
                connection.execute("SELECT pg_terminate_backend(%s)", (pid,))

    def _spared(self) -> Iterator[tuple[Name, _Child]]:
        """Yield the first writer and the first projector, which are never killed."""
        return ((name, child) for name, child in self._children.items() if name[1] == 0)

    def _weigh(self) -> None:
        for name, child in self._spared():
            weights = (self._first[name], self._early[name], child.rss())
            seen = Memory(f"{name[0]} {name[1]}", *weights)
            self.report.memory.append(seen)
            if not seen.flat:
                self.report.wrong.append(f"memory grew: {seen}")
