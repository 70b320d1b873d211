"""Citus and one PostgreSQL: the servers' cost of appends, and losses after kills.

``python -m benchmarks.citus`` starts a cluster of three servers and one PostgreSQL from
the binaries that ``REFOLD_TEST_CITUS`` names, and prints pairs of the same run.
``--kills 300`` instead lets eight writers append for that many seconds, while a worker
is killed three times and the coordinator once.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import refold
from refold.adapters.sql.citus import CitusDatabase
from refold.domain.errors import StoreUnavailable
from refold.store import SessionStore
from tests.support.citus import Cluster, binaries
from tests.support.postgres import Server
from tests.support.stores import open_at

EVENT = refold.UserInput(text="the quick fox reads the budget and finds nothing. " * 10)
USERS = 64
ROUNDS = 5
DURABLE = {"fsync": "on", "full_page_writes": "on"}
PLAN = ((0.15, 1), (0.35, 1), (0.55, 1), (0.75, 0))  # when, and which machine is killed


def processes(root: int) -> Iterator[int]:
    """A process and all below it."""
    children = defaultdict[int, list[int]](list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        children[parent].append(int(stat.parent.name))
    family = [root]
    for process in family:
        family += children[process]
    return iter(family)


def cpu(servers: Sequence[Server]) -> dict[int, int]:
    """Nanoseconds of processor time that each process of the servers has had."""
    used = {}
    for server in servers:
        for process in processes(pid(server)):
            try:
                statistics_line = Path(f"/proc/{process}/schedstat").read_text(
                    encoding="ascii"
                )
            except OSError:
                continue
            used[process] = int(statistics_line.split()[0])
    return used


def pid(server: Server) -> int:
    """The number of a server's first process."""
    process: Any = server._process  # it runs
    return int(process.pid)


class Side:
    """A store, and the servers that it is on."""

    def __init__(self, store: SessionStore, servers: Sequence[Server]) -> None:
        self._servers = servers
        users = [f"user-{number}" for number in range(USERS)]
        self._sessions = [store.session(user_id=u, session_id="s") for u in users]
        for session in self._sessions * 3:
            session.append(EVENT)

    def single(self, count: int = 1_000) -> int:
        """One event at a time."""
        for number in range(count):
            self._sessions[number % USERS].append(EVENT)
        return count

    def grouped(self, threads: int = 8, each: int = 200) -> int:
        """One event at a time, by threads, whose appends share commits."""

        def work(number: int) -> None:
            for turn in range(each):
                self._sessions[number * 4 + turn % 4].append(EVENT)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
        return threads * each

    def batch(self, count: int = 200) -> int:
        """Twenty events at a time."""
        for number in range(count):
            self._sessions[number % USERS].append([EVENT] * 20)
        return count

    def context(self, count: int = 100) -> int:
        """A context of a session."""
        for number in range(count):
            self._sessions[number % USERS].context("turn_window")
        return count

    def of_one(self, work: str) -> tuple[float, float]:
        """Milliseconds of the servers' processor time, and of time, of one call."""
        before = cpu(self._servers)
        begun = time.perf_counter()
        count = getattr(self, work)()
        took = (time.perf_counter() - begun) / count * 1e3
        after = cpu(self._servers).items()
        return sum(v - before.get(k, 0) for k, v in after) / 1e6 / count, took


def cost(folder: Path, binaries: Path) -> None:
    """Print the servers' cost of a call on each side."""
    with ExitStack() as opened:
        cluster = opened.enter_context(Cluster(binaries, **DURABLE))
        settings = {"citus.enable_statistics_collection": "off", **DURABLE}
        settings["shared_preload_libraries"] = "citus"  # as the cluster, but not used
        plain = Server(binaries, "x", settings, auth="trust")
        opened.callback(plain.close)
        places = {
            "PostgreSQL": (
                f"postgresql://postgres:x@/?host={plain.directory}",
                [plain],
            ),
            "Citus": (cluster.create_database("bench"), cluster.machines),
        }
        sides = {
            name: Side(opened.enter_context(open_at(url, folder)), servers)
            for name, (url, servers) in places.items()
        }
        for work in ("single", "grouped", "batch", "context"):
            pairs = [
                [side.of_one(work) for side in sides.values()] for _ in "x" * ROUNDS
            ]
            for place, name in enumerate(sides):
                used, took = zip(*(pair[place] for pair in pairs), strict=True)
                least = min(used)
                middle = statistics.median(used)
                print(
                    f"{work:8} {name:10} CPU of the servers {middle:.2f} ms (least "
                    f"{least:.2f}), {statistics.median(took):.2f} ms",
                    flush=True,
                )


def write(url: str, number: int, out: Path, until: float) -> None:
    """Append for four users; each acknowledged append is a line of their file."""
    with refold.open(url) as store:
        threads = [
            Thread(target=_write, args=(store, f"w{number}-{k}", out, until))
            for k in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _write(store: SessionStore, user: str, out: Path, until: float) -> None:
    session = store.session(user_id=user, session_id="s")
    at = 0
    with (out / user).open("w", encoding="ascii") as journal:
        while time.time() < until:
            event = refold.UserInput(text=f"{at} {'x' * 300}")
            try:
                session.append(event, idempotency_key=str(at))
            except StoreUnavailable:
                continue
            journal.write(f"{time.time():.4f} {at}\n")
            at += 1


def kills(folder: Path, binaries: Path, seconds: float) -> None:
    """Print the losses of eight writers, and for how long the others waited."""
    out = folder / "out"
    out.mkdir()
    with Cluster(binaries, **DURABLE) as cluster:
        url = cluster.create_database("kills")
        with open_at(url, folder) as store:
            store.session(user_id="first", session_id="s").append(EVENT)
        begun = time.time()
        work = [sys.executable, "-m", "benchmarks.citus", "--write"]
        until = str(begun + seconds)
        writers = [
            subprocess.Popen([*work, url, str(n), str(out), until]) for n in range(2)
        ]
        killed = []
        for part, machine in PLAN:
            time.sleep(max(0.0, begun + seconds * part - time.time()))
            killed.append((machine, *_killed(cluster, machine)))
        for writer in writers:
            writer.wait()
        with open_at(url, folder) as store:
            judge(store, out, killed)


def _killed(cluster: Cluster, machine: int) -> tuple[float, float]:
    """Kill all processes of a machine; when that was, and when it was up again."""
    server = cluster.machines[machine]
    begun = time.time()
    for process in list(processes(pid(server))):
        os.kill(process, signal.SIGKILL)
    server.halt(signal.SIGKILL)
    Path(server.directory, "data", "postmaster.pid").unlink(missing_ok=True)
    time.sleep(4)  # it stays away for a while
    cluster.start_again(machine)
    return begun, time.time()


def judge(
    store: SessionStore, out: Path, killed: Sequence[tuple[int, float, float]]
) -> None:
    """Compare the acknowledged events with the stored ones."""
    log: Any = store.log
    database: CitusDatabase = log.recorder.database
    database._read_shards()
    # Citus numbers workers in the order in which they were added.
    workers = sorted({machine for _, machine in database._shards})
    counts = defaultdict[str, int](int)
    waits = defaultdict[str, float](float)
    journals = {file.name: file.read_text().splitlines() for file in out.iterdir()}
    for user, lines in journals.items():
        session = store.session(user_id=user, session_id="s")
        events = [
            (e.seq, str(e.payload.payload()["text"]).split()[0])
            for e in session.history.pages()
        ]
        there = [text for _, text in events]
        acknowledged = {x.split()[1] for x in lines}
        counts["acknowledged"] += len(lines)
        counts["lost"] += len(acknowledged - {*there})
        counts["twice"] += len(there) - len({*there})
        counts["gaps"] += [seq for seq, _ in events] != [*range(1, len(events) + 1)]
        times = [float(line.split()[0]) for line in lines]
        for machine, begun, up in killed:
            own = not machine or workers[machine - 1] == database.machine(user)
            whose = f"{'own' if own else 'other'} users of machine {machine}"
            user_times = [begun, *(t for t in times if begun < t < up), up]
            longest = max(b - a for a, b in pairwise(user_times))
            waits[whose] = max(waits[whose], longest)
    counts["problems"] = sum(len(proved.problems) for _, proved in store.verify())
    store.seal()
    sealed = store.verify_seals()
    counts["problems"] += len(sealed.problems) if sealed else 1
    print(dict(counts))
    for whose, seconds in sorted(waits.items()):
        print(f"{whose} waited {seconds:.2f} s at most")


def main() -> None:
    """Measure."""
    asks = argparse.ArgumentParser(description=__doc__)
    asks.add_argument("--kills", type=float, metavar="SECONDS")
    asks.add_argument("--write", nargs=4, help=argparse.SUPPRESS)
    asked = asks.parse_args()
    if asked.write:
        url, number, out, until = asked.write
        return write(url, int(number), Path(out), float(until))
    where = binaries()
    if where is None:
        raise SystemExit("set REFOLD_TEST_CITUS: see docs/how-to/citus.md")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["REFOLD_HOME"] = f"{folder}/home"
        work: Callable[[Path, Path], None]
        work = partial(kills, seconds=asked.kills) if asked.kills else cost
        work(Path(folder), where)
    return None


if __name__ == "__main__":
    main()
