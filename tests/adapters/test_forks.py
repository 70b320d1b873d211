"""Every event that a forked process acknowledges is in the store."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from typing import cast

import pytest

import refold
from refold.adapters.log import EncryptedLog
from refold.adapters.seals import FileAnchor
from refold.domain.ids import StreamId
from refold.domain.locks import computed_once, forkable_lock
from refold.store.compactions import HeldLease
from tests.support import warm
from tests.support.stores import open_at, prepare


def run_history(history: str, url: str, folder: Path, *more: str) -> list[str]:
    """Return the output lines of a history of ``tests.support.forked``.

    Fails if one of its processes failed, or the store lacks an acknowledged event.
    """
    prepare(url, folder)
    process = warm.module("tests.support.forked", history, url, *more)
    printed, errors = process.communicate()
    lines = printed.splitlines()

    assert process.returncode == 0, errors
    assert [line for line in lines if line.startswith("failed")] == [], errors
    with open_at(url, folder) as store:
        for line in lines:
            if line.startswith("wrote"):
                check_written(store, line)
        problems = [verified.problems for _, verified in store.verify()]
        assert [
            session_problems for session_problems in problems if session_problems
        ] == []
    return lines


def check_written(store: refold.SessionStore, line: str) -> None:
    """Check that the store has exactly the events that the line counts."""
    words = line.split()
    session_id = " ".join(words[1:-1])
    count = int(words[-1])
    session = store.session(user_id=f"user {session_id}", session_id=session_id)
    try:
        stored = session.head().seq
    except refold.SessionNotFound:
        stored = 0
    assert (session_id, stored) == (session_id, count)


def refusals_in(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("refused")]


@pytest.mark.parametrize("history", ["daemon", "closing", "workers"])
def test_a_forked_process_loses_nothing_that_it_acknowledged(
    history: str, store_url: str, tmp_path: Path
) -> None:
    lines = run_history(history, store_url, tmp_path)

    assert refusals_in(lines) == []
    assert all(line.endswith(" 4") for line in lines)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing_lose_nothing(
    method: str, store_url: str, tmp_path: Path
) -> None:
    lines = run_history("processes", store_url, tmp_path, method)

    assert sorted(lines) == ["wrote before 4", "wrote process 0 4", "wrote process 1 4"]


@pytest.mark.parametrize("history", ["busy", "forkers", "loops"])
def test_parent_and_child_continue_after_a_fork_during_other_writes(
    history: str, store_url: str, tmp_path: Path
) -> None:
    lines = run_history(history, store_url, tmp_path)

    assert refusals_in(lines) == []
    assert len([line for line in lines if line.startswith("wrote child")]) >= 4


def test_a_child_of_a_fork_in_c_is_refused_and_harms_nothing(
    sqlite_url: str, tmp_path: Path
) -> None:
    lines = run_history("unseen", sqlite_url, tmp_path)

    append, opening = refusals_in(lines)
    assert "was open when this process was forked" in append
    assert "was open when this process was forked" in opening
    assert "start the process with spawn or forkserver" in opening
    written = [line for line in lines if line.startswith("wrote")]
    assert written == ["wrote before 4", "wrote child 0", "wrote after 4"]


def test_a_worker_that_a_server_in_c_forks_is_refused(
    sqlite_url: str, tmp_path: Path
) -> None:
    lines = run_history("hosted", sqlite_url, tmp_path)

    assert "was open when this process was forked" in refusals_in(lines)[0]
    written = [line for line in lines if line.startswith("wrote")]
    assert written == ["wrote before 4", "wrote child 0", "wrote after 4"]


def test_a_child_of_a_fork_in_c_opens_its_own_connections_to_a_server(
    postgres_url: str, tmp_path: Path
) -> None:
    lines = run_history("unseen", postgres_url, tmp_path)

    written = [line for line in lines if line.startswith("wrote")]
    assert "wrote after 4" in written
    assert [line for line in lines if "keys.db was open" in line]


@pytest.mark.parametrize("history", ["held", "within"])
def test_a_fork_inside_a_transaction_is_refused_in_the_child_and_ends(
    history: str, sqlite_url: str, tmp_path: Path
) -> None:
    lines = run_history(history, sqlite_url, tmp_path)

    assert "was open when this process was forked" in refusals_in(lines)[-1]
    written = [line for line in lines if line.startswith("wrote")]
    assert written == ["wrote before 4", "wrote child 0", "wrote after 4"]


@pytest.mark.parametrize("history", ["held", "within"])
def test_a_child_never_uses_its_parents_connection_to_a_server(
    history: str, postgres_url: str, tmp_path: Path
) -> None:
    lines = run_history(history, postgres_url, tmp_path)

    written = [line for line in lines if line.startswith("wrote")]
    assert written == ["wrote before 4", "wrote child 4", "wrote after 4"]


def test_a_signal_handler_may_append_while_a_fork_waits(
    sqlite_url: str, tmp_path: Path
) -> None:
    lines = run_history("signals", sqlite_url, tmp_path)

    assert lines == ["wrote handler 2"]


def test_a_child_of_a_fork_in_c_that_closes_a_store_leaves_its_parents_connection(
    postgres_url: str, tmp_path: Path
) -> None:
    lines = run_history("abandoned", postgres_url, tmp_path)

    assert lines == ["wrote before 4", "wrote after 4"]


def test_a_file_that_another_library_had_open_is_refused_in_the_child(
    sqlite_url: str, tmp_path: Path
) -> None:
    lines = run_history("looking", sqlite_url, tmp_path)

    assert "was open when this process was forked" in refusals_in(lines)[0]


def test_reads_that_the_parent_counted_are_written_once(
    store_url: str, tmp_path: Path
) -> None:
    lines = run_history("counting", store_url, tmp_path)

    assert "read 3" in lines


def test_a_fork_waits_for_no_lock_of_a_thread_that_waits_for_the_fork(
    sqlite_url: str,
) -> None:
    command = [sys.executable, "-m", "tests.support.hooked", sqlite_url]
    printed = subprocess.run(
        command, cwd=warm.ROOT, capture_output=True, text=True, check=True
    )

    assert printed.stdout == "appended 2\n"


def test_a_child_does_not_keep_the_lock_of_an_anchor(tmp_path: Path) -> None:
    anchor = FileAnchor(tmp_path / "anchor.jsonl")
    end_child, ends_child = os.pipe()
    with anchor.held():
        child = os.fork()
        if not child:
            os.close(ends_child)
            os.read(end_child, 1)
            os._exit(0)

    with (tmp_path / "anchor.jsonl.lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(ends_child)
    os.waitpid(child, 0)


def test_a_child_that_leaves_the_work_of_its_parent_keeps_the_parents_lease(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        leases = store.log.leases
        stream = StreamId("", "", "seal")
        hold = HeldLease.take(leases, stream, clock=store.clock, sec=60)
        assert hold is not None
        with hold:
            child = 0
            try:
                child = os.fork()
                if not child:
                    raise SystemExit
            except SystemExit:
                hold.__exit__()
                os._exit(0)
            os.waitpid(child, 0)

            assert leases.holding(stream, clock=store.clock).left > 0


def test_a_property_can_be_computed_in_a_child_while_the_parent_computes_it() -> None:
    class Slow:
        def __init__(self) -> None:
            self.computes = Event()
            self.done = Event()
            self.waits = True

        @computed_once
        def value(self) -> int:
            if self.waits:
                self.computes.set()
                self.done.wait()
            return 1

    slow = Slow()
    thread = Thread(target=lambda: slow.value)
    thread.start()
    slow.computes.wait()
    child = os.fork()
    if not child:
        slow.waits = False
        signal.alarm(10)  # a child that is stuck is killed
        os._exit(slow.value - 1)
    _, status = os.waitpid(child, 0)
    slow.done.set()
    thread.join()

    assert status == 0


def test_a_child_finds_no_lock_that_a_thread_of_its_parent_held() -> None:
    lock = forkable_lock()
    holding = Event()
    done = Event()

    def hold() -> None:
        with lock:
            holding.set()
            done.wait()

    thread = Thread(target=hold)
    thread.start()
    holding.wait()
    child = os.fork()
    if not child:
        os._exit(0 if lock.acquire(blocking=False) else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()

    assert status == 0


def test_a_child_closes_a_store_that_a_thread_of_its_parent_was_writing(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        group = cast("EncryptedLog", store.log).recorder._group
        group._has_leader = True  # as while a thread of this process writes
        child = os.fork()
        if not child:
            store.close()
            os._exit(0)
        group._has_leader = False

        _, status = os.waitpid(child, 0)
    assert status == 0


def test_a_store_in_memory_is_copied_by_a_fork() -> None:
    with refold.open("memory://") as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.UserInput(text="before"))
        child = os.fork()
        if not child:
            receipt = session.append(refold.UserInput(text="child"))
            os._exit(receipt.last_seq)
        _, status = os.waitpid(child, 0)
        receipt = session.append(refold.UserInput(text="parent"))

    assert os.waitstatus_to_exitcode(status) == 2
    assert receipt.last_seq == 2
