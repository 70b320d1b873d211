"""The gain of two processes: rebuilding and proving by an executor, and two workers.

``python -m benchmarks.store.spreading [URL] [SESSIONS] [ROUNDS]`` prints the ratios of
pairs of one run: one process against two, against Dask, and against two workers.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from itertools import count

import refold
from benchmarks.store import payloads
from refold.store import SessionStore
from refold.store.work.jobs import process_pool

EVENTS = 500
# Each round writes the summaries of a strategy that no other round had.
STRATEGY = "turn_window:full_turns=2,cached_turns=2,summary_tokens={}"


def fill(store: SessionStore, sessions: int) -> None:
    """So many sessions of 500 events, of four users."""
    for number in range(sessions):
        session = store.session(user_id=f"u-{number % 4}", session_id=f"s-{number}")
        for turn in payloads.conversation(EVENTS):
            session.append(turn)


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


@contextmanager
def dask() -> Iterator[Executor]:
    """Dask's executor over two processes of this machine."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(  # type: ignore[no-untyped-call]  # it ships no types
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
        ) as cluster,
        Client(cluster) as client,  # type: ignore[no-untyped-call]  # the same
    ):
        yield client.get_executor(retries=2)


def by_workers(url: str, spec: str, number: int, sessions: int) -> float:
    """Seconds until so many workers have rebuilt all, from their first piece on."""
    command = [sys.executable, "-m", "refold", "--db", url, "worker", "--json"]
    command += ["--do", "rebuild", "--rebuild", spec]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(number)]
    first = None
    for _ in range(sessions):
        _one_line(started)
        first = first or time.perf_counter()
    took = time.perf_counter() - (first or 0)
    for process in started:
        process.terminate()
        process.wait()
    return took


def _one_line(started: list[subprocess.Popen[bytes]]) -> None:
    import selectors

    with selectors.DefaultSelector() as ready:
        for process in started:
            ready.register(process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]  # a pipe
        key, _ = ready.select()[0]
        os.read(key.fd, 1)  # the rest of the line is read below
        while os.read(key.fd, 1) != b"\n":
            pass


class Measured:
    """A store with sessions, and what is done with all of them."""

    def __init__(self, store: SessionStore, rounds: int) -> None:
        self._store = store
        self._rounds = rounds
        self._specs = count(200)

    def rebuild(self, executor: Executor | None) -> None:
        """Make the summaries of one more strategy."""
        done = list(self._store.rebuild(self.spec(), executor=executor))
        if not all(result.compactions and not result.problem for result in done):
            raise SystemExit("a session was not rebuilt")

    def verify(self, executor: Executor | None) -> None:
        """Prove all."""
        list(self._store.verify(executor=executor))

    def spec(self) -> str:
        """A strategy that was not asked for yet."""
        return STRATEGY.format(next(self._specs))

    def race(self, work_name: str, executor: Executor) -> list[tuple[float, float]]:
        """Seconds without the executor and with it, in pairs."""
        work = getattr(self, work_name)
        alone = partial(work, None)
        together = partial(work, executor)
        return [(seconds(alone), seconds(together)) for _ in range(self._rounds)]


def main(url: str = "", sessions: str = "40", rounds: str = "3") -> None:
    """Print what was measured."""
    many = int(sessions)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["REFOLD_HOME"] = folder
        url = url or f"sqlite:///{folder}/bench.db"
        with refold.open(url, make_key=True) as store:
            fill(store, many)
            measured = Measured(store, int(rounds))
            for name, make in (
                ("two processes", partial(process_pool, 2)),
                ("dask", dask),
            ):
                with make() as executor:
                    measured.verify(executor)  # each of its processes opens the store
                    for work in ("rebuild", "verify"):
                        _tell(f"{work}, {name}", measured.race(work, executor))
            pairs = []
            for _ in range(int(rounds)):
                single = by_workers(url, measured.spec(), 1, many)
                pairs.append((single, by_workers(url, measured.spec(), 2, many)))
            _tell("rebuild, two workers", pairs)


def _tell(title: str, pairs: list[tuple[float, float]]) -> None:
    ratio = statistics.median(single / two for single, two in pairs)
    alone = statistics.median(single for single, _ in pairs)
    sys.stdout.write(f"{title:28} {ratio:5.2f} × (alone {alone:.2f} s)\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
