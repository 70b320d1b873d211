"""Work on an executor gives the same result as in one process, on any executor."""

from __future__ import annotations

import errno
import gc
import json
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from distributed import Client, LocalCluster
from tornado import netutil, tcpserver

import refold
from refold.store import SessionStore
from refold.store.work import jobs
from refold.store.work.jobs import process_pool, spread
from tests.support.jobs import (
    AlwaysDies,
    DiesOnce,
    NamesItsProcess,
    count,
    fail,
    parent,
    setting,
)
from tests.support.nested import problems_of
from tests.support.rebuilding import WINDOW, append_turns, derived_events, rebuild
from tests.support.stores import open_at, prepare
from tests.support.waiting import PATIENCE_SEC

NAMES = "abcde"
UNAWARE = 'version = 1\npacks = ["secrets"]\n'
MAIL = "ada.lovelace@example.com"


@contextmanager
def dask(*, processes: bool) -> Iterator[Executor]:
    """The executor of a cluster of two workers, on this machine alone.

    If another process takes the port that the system chose, the cluster chooses another
    one, and leaves the first socket to the garbage collector.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
        with _dask_executor(processes=processes) as executor:
            yield executor
        gc.collect()


@contextmanager
def _dask_executor(*, processes: bool) -> Iterator[Executor]:
    with (
        LocalCluster(  # type: ignore[no-untyped-call]  # it ships no types
            n_workers=2,
            threads_per_worker=1,
            processes=processes,
            host="127.0.0.1" if processes else None,
            dashboard_address="127.0.0.1:0",  # None would use port 8787
        ) as cluster,
        Client(cluster) as client,  # type: ignore[no-untyped-call]  # the same
    ):
        yield client.get_executor(retries=2)


@contextmanager
def executor_of(kind: str) -> Iterator[Executor]:
    """Yield an executor of this kind."""
    if kind == "dask":
        with dask(processes=False) as executor:
            yield executor
    else:
        with ThreadPoolExecutor(2) if kind == "threads" else process_pool(2) as pool:
            yield pool


@pytest.mark.parametrize("processes", [True, False])
def test_a_cluster_chooses_another_port_if_one_is_taken(
    monkeypatch: pytest.MonkeyPatch, processes: bool
) -> None:
    taken: list[int] = []

    def bind_sockets(port: int, *place: Any, **options: Any) -> list[socket.socket]:
        sockets: list[socket.socket] = real(port, *place, **options)
        if len(taken) < 2:
            taken.append(sockets[0].getsockname()[1])
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return sockets

    real = netutil.bind_sockets
    monkeypatch.setattr(netutil, "bind_sockets", bind_sockets)
    monkeypatch.setattr(tcpserver, "bind_sockets", bind_sockets)

    with dask(processes=processes) as executor:
        assert executor.submit(len, "text").result() == 4
    assert len(taken) == 2


@pytest.fixture
def processes() -> Iterator[Executor]:
    with process_pool(2) as pool:
        yield pool


@pytest.fixture
def store(store_url: str, tmp_path: Path) -> Iterator[SessionStore]:
    with open_at(store_url, tmp_path) as store:
        for name in NAMES:
            append_turns(store.session(user_id="ada", session_id=name), 6)
        yield store


def records(store: SessionStore) -> list[Any]:
    of = (store.session(user_id="ada", session_id=name) for name in NAMES)
    return [derived_events(session, WINDOW) for session in of]


def expected_records(store: SessionStore) -> list[Any]:
    """Rebuild every session alone, and return all records."""
    append_turns(store.session(user_id="ada", session_id="one"), 6)
    rebuild(store, WINDOW, session_id="one")
    entries = derived_events(store.session(user_id="ada", session_id="one"), WINDOW)
    assert entries
    return [entries] * len(NAMES)


def exported(folder: Path) -> Any:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    return sorted((file["path"], file["sha256"]) for file in manifest["files"])


@pytest.mark.each_engine
@pytest.mark.parametrize("kind", ["threads", "processes", "dask"])
def test_an_executor_gives_the_same_result_as_one_process(
    store: SessionStore, kind: str, tmp_path: Path
) -> None:
    out = tmp_path / "processes"
    alone = tmp_path / "alone"
    expected = expected_records(store)

    with executor_of(kind) as executor:
        rebuilt = list(store.rebuild(WINDOW, executor=executor))
        verified = [
            (info.session_id, result)
            for info, result in store.verify(executor=executor)
        ]
        store.export_user("ada", out, executor=executor)
        imported = store.import_transcript([out], user_id="bob", executor=executor)

    assert sorted(item.session_id for item in rebuilt) == [*NAMES, "one"]
    assert records(store) == expected
    assert dict(verified) == {
        info.session_id: result for info, result in store.verify("ada")
    }
    store.export_user("ada", alone)
    assert exported(out) == exported(alone)
    assert {item.session_id: item.events for item in imported} == dict.fromkeys(
        [*NAMES, "one"], 12
    )


def test_the_longest_sessions_begin_first(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="z")
    append_turns(session, 3)

    with ThreadPoolExecutor(1) as executor:
        spy = Mock(wraps=executor)
        list(store.verify(executor=spy))

    sizes = [call.args[-1].head_seq for call in spy.submit.mock_calls]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


@pytest.mark.each_engine
@pytest.mark.parametrize("kind", ["threads", "processes", "dask"])
def test_processes_seal_ranges_of_streams(
    store: SessionStore, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "refold.store.store._STREAMS_AT_ONCE", 2
    )  # sessions of each range
    looked = list[int]()

    with executor_of(kind) as executor:
        spy = Mock(wraps=executor)
        head = store.seal(executor=spy, progress=looked.append)
        again = store.seal(sweep=True, executor=spy)

    assert head is not None
    assert (head.size, again) == (len(NAMES), head)
    parts = [len(call.args[-1]) for call in spy.submit.mock_calls]
    assert parts == [2, 2, 1]
    assert sorted(looked) == [1, 2, 2]
    assert not any(True for _ in store.seals.unsealed())
    proved = store.verify_seals()
    assert proved is not None
    assert not proved.problems


def test_processes_find_and_replace_missed_values(
    store_url: str, tmp_path: Path, processes: Executor
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(UNAWARE)
    prepare(store_url, tmp_path)
    with refold.open(store_url, policy=policy) as store:
        for name in NAMES:
            session = store.session(user_id="ada", session_id=name)
            session.append(refold.UserInput(text=f"write to {MAIL}"))

    with refold.open(store_url) as store:
        exposed = list(store.recheck(executor=processes))
        replaced = list(store.reredact(executor=processes))
        left = [report.exposures for report in store.recheck()]

    assert sorted(report.session.session_id for report in exposed) == list(NAMES)
    assert all(report.exposures for report in exposed)
    assert all(report.applied is not None for report in replaced)
    assert left == [[]] * len(NAMES)
    assert MAIL not in str(exposed)


@pytest.mark.each_engine
def test_a_killed_dask_worker_loses_nothing(store: SessionStore) -> None:
    expected = expected_records(store)

    with dask(processes=True) as executor:
        rebuilt = list(store.rebuild(WINDOW, summarizer=DiesOnce(), executor=executor))

    assert (Path(os.environ["REFOLD_HOME"]) / "died").exists()
    assert [report.problem for report in rebuilt] == [""] * (len(NAMES) + 1)
    assert records(store) == expected
    assert problems_of(store.verify()) == []


@pytest.mark.each_engine
def test_another_process_repeats_the_work_of_a_killed_one(
    store: SessionStore, processes: Executor
) -> None:
    expected = expected_records(store)

    rebuilt = list(store.rebuild(WINDOW, summarizer=DiesOnce(), executor=processes))

    assert (Path(os.environ["REFOLD_HOME"]) / "died").exists()
    assert [report.problem for report in rebuilt] == [""] * (len(NAMES) + 1)
    assert records(store) == expected


def test_work_that_kills_every_process_is_given_up(
    store: SessionStore, processes: Executor
) -> None:
    with pytest.raises(refold.StoreUnavailable, match="a process died: run it again"):
        list(store.rebuild(WINDOW, summarizer=AlwaysDies(), executor=processes))


@pytest.mark.each_engine
def test_the_next_run_finishes_the_work_of_a_killed_process(
    store: SessionStore,
) -> None:
    expected = expected_records(store)
    killed = pytest.raises(
        refold.StoreUnavailable, match="a process died: run it again"
    )

    with killed, ProcessPoolExecutor(2, get_context("spawn")) as executor:
        list(store.rebuild(WINDOW, summarizer=DiesOnce(), executor=executor))
    with process_pool(2) as executor:
        rebuilt = list(store.rebuild(WINDOW, executor=executor))

    assert [report.problem for report in rebuilt] == [""] * (len(NAMES) + 1)
    assert records(store) == expected


def test_an_executor_works_after_one_of_its_processes_died(
    store: SessionStore, processes: Executor
) -> None:
    with pytest.raises(refold.StoreUnavailable, match="a process died"):
        list(store.rebuild(WINDOW, summarizer=AlwaysDies(), executor=processes))

    head = store.seal(executor=processes)

    assert head is not None
    assert not any(True for _ in store.seals.unsealed())


@pytest.mark.each_engine
def test_cancelled_work_continues(store: SessionStore) -> None:
    expected = expected_records(store)
    with process_pool(2) as executor:
        running = store.rebuild(WINDOW, executor=executor)
        next(running)
        running.close()  # type: ignore[attr-defined]  # it is a generator

    with process_pool(2) as executor:
        rebuilt = list(store.rebuild(WINDOW, executor=executor))

    assert records(store) == expected
    assert sum(
        report.there_before + report.compactions for report in rebuilt
    ) == 2 * len(rebuilt)


def test_progress_names_every_session(store: SessionStore, processes: Executor) -> None:
    progress: dict[str, int] = {}

    for executor in (None, processes):
        list(
            store.rebuild(
                WINDOW,
                executor=executor,
                progress=lambda info, n: progress.update({info.session_id: n}),
            )
        )

        assert progress == dict.fromkeys(NAMES, 12)
        progress.clear()


def test_an_error_of_a_process_is_raised_unchanged(
    store: SessionStore, processes: Executor
) -> None:
    with pytest.raises(refold.StaleSession) as raised:
        list(spread(store, fail, [1, 1], processes))

    assert (raised.value.expected, raised.value.actual) == (1, 2)
    assert "is at seq 2, expected 1" in str(raised.value)


class BrokenPool(Executor):
    """An executor whose only process dies, and which then takes no more items."""

    def __init__(self) -> None:
        self._first: Future[Any] = Future()
        self._first.set_running_or_notify_cancel()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **extras: Any) -> Any:
        if self._first.done():
            raise BrokenExecutor("no process is left")
        self._first.set_exception(BrokenExecutor("the process died"))
        return self._first


def test_an_item_whose_process_died_is_passed_to_after_stop(
    store: SessionStore,
) -> None:
    in_progress: list[object] = []

    with pytest.raises(refold.StoreUnavailable):
        list(spread(store, fail, [1], BrokenPool(), after_stop=in_progress.extend))

    assert len(in_progress) == 1


def test_an_interrupt_of_after_stop_leaves_no_shared_store(
    store: SessionStore,
) -> None:
    def interrupt(_ended: object) -> None:
        raise KeyboardInterrupt

    before = dict(jobs._open_stores)

    with pytest.raises(KeyboardInterrupt):
        list(spread(store, fail, [1], BrokenPool(), after_stop=interrupt))

    assert jobs._open_stores == before


def ids_of_writers(store: SessionStore) -> set[str]:
    return {str(entry.get("text")) for entries in records(store) for entry in entries}


def test_two_executors_may_share_the_work_of_one_store(store: SessionStore) -> None:
    with ThreadPoolExecutor(1) as executor:
        first, second = (spread(store, count, [1], executor) for _ in "ab")
        assert [next(first), next(second)] == [1, 1]

        assert [*first, *second] == []


def test_work_is_written_by_other_processes(
    store: SessionStore, processes: Executor
) -> None:
    list(store.rebuild(WINDOW, summarizer=NamesItsProcess(), executor=processes))

    by = ids_of_writers(store)
    assert by
    assert f"process {os.getpid()}" not in by


def test_a_process_has_the_environment_in_which_its_pool_was_created(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []
    for value in ("first", "second"):
        monkeypatch.setenv("REFOLD_OF_A_TEST", value)
        with process_pool(1) as executor:
            seen += spread(store, setting, ["REFOLD_OF_A_TEST"], executor)

    assert seen == ["first", "second"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the server")
def test_processes_are_forked_by_a_server_that_has_imported_refold(
    store: SessionStore,
) -> None:
    parents = set()
    for _ in range(2):
        with process_pool(2) as executor:
            parents |= set(spread(store, parent, [1, 2, 3], executor))

    assert len(parents) == 1
    assert parents != {os.getpid()}


POOL_AFTER_A_FORK = """
import os
from refold.store.work.jobs import process_pool
with process_pool(1) as executor:
    executor.submit(os.getpid).result()
child = os.fork()
if child == 0:
    with process_pool(1) as executor:
        pid = executor.submit(os.getpid).result()
    os._exit(0 if pid != os.getpid() else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_creates_its_own_pool() -> None:
    subprocess.run(
        [sys.executable, "-c", POOL_AFTER_A_FORK], check=True, timeout=PATIENCE_SEC
    )


@pytest.mark.parametrize("how", [{"url": "memory://"}, {"redactor": "own"}])
def test_a_store_that_only_this_process_can_open_is_worked_on_here(
    how: dict[str, Any], store_url: str, tmp_path: Path
) -> None:
    # It never gets a process.
    executor = process_pool(2)
    executor.shutdown()
    redactor = refold.redaction.Redactor() if "redactor" in how else None
    url = how.get("url", prepare(store_url, tmp_path))

    with refold.open(url, redactor=redactor) as store:
        for name in NAMES:
            append_turns(store.session(user_id="ada", session_id=name), 6)
        list(store.rebuild(WINDOW, summarizer=NamesItsProcess(), executor=executor))

        assert ids_of_writers(store) == {f"process {os.getpid()}"}


def test_another_process_opens_the_store_with_its_anchor_and_settings(
    sqlite_url: str, tmp_path: Path
) -> None:
    anchor = tmp_path / "anchor.jsonl"
    with refold.open(sqlite_url, anchor=anchor, shared_memory=True) as store:
        assert store.open_again is not None
        with store.open_again() as other:
            other.session(user_id="ada", session_id="s").append(
                refold.UserInput(text="hello")
            )
            other.seal()

            other.memory.shared()  # raises if shared memory is disabled
    assert anchor.exists()
