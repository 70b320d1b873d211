"""Concurrent writers share a commit, and none is affected by another's failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Barrier, Event, Thread
from typing import Any

import pytest
from sqlalchemy import make_url

from refold.adapters.rows import Batch, Wrote
from refold.adapters.sql.database import MOST, GroupCommit
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.recorder import Recorder
from refold.adapters.sql.sqlite import SqliteDatabase
from refold.domain.errors import StoreUnavailable
from refold.domain.ids import StreamId
from refold.testing import append_to, memory_log, user_inputs
from tests.support.waiting import PATIENCE_SEC, until


class Recording:
    """A database that writes when the test lets it, and remembers each group."""

    def __init__(self) -> None:
        self.groups: list[list[Any]] = []
        self.entered = Event()
        self.gate = Event()

    def __call__(self, batches: Sequence[Any]) -> list[Any]:
        self.groups.append(list(batches))
        self.entered.set()
        assert self.gate.wait(PATIENCE_SEC)
        return [ValueError(b) if b == "bad" else Wrote(b) for b in batches]


def write(group: GroupCommit, name: Any) -> object:
    """Write ``name`` instead of a batch: a group does not inspect its batches."""
    return group.write(name)


def outcome_of(name: Any) -> Wrote:
    """Return the outcome of ``Recording`` for ``name``."""
    return Wrote(name)


def start_thread(work: Callable[[], object]) -> Thread:
    thread = Thread(target=work)
    thread.start()
    return thread


def test_a_single_append_is_written_alone() -> None:
    database = Recording()
    database.gate.set()
    group = GroupCommit(database)

    for name in "abc":
        assert write(group, name) == outcome_of(name)
    assert database.groups == [["a"], ["b"], ["c"]]


def queue_up(
    group: GroupCommit, database: Recording, names: Sequence[str]
) -> dict[str, object]:
    """Write ``first``, and queue ``names`` during that write."""
    results: dict[str, object] = {}

    def caller(name: str) -> None:
        try:
            results[name] = write(group, name)
        except ValueError as error:
            results[name] = error

    threads = [start_thread(partial(caller, "first"))]
    assert database.entered.wait(PATIENCE_SEC)
    threads += [start_thread(partial(caller, name)) for name in names]
    until(lambda: len(group._queue) == len(names), "all others in the queue")
    database.gate.set()
    for thread in threads:
        thread.join(PATIENCE_SEC)
        assert not thread.is_alive()
    return results


def test_batches_queued_during_a_commit_share_the_next_one() -> None:
    database = Recording()

    results = queue_up(GroupCommit(database), database, [f"{n}" for n in range(10)])

    assert [len(group) for group in database.groups] == [1, 10]
    assert all(isinstance(result, Wrote) for result in results.values())


def test_a_group_is_bounded() -> None:
    database = Recording()

    queue_up(GroupCommit(database), database, [f"{n}" for n in range(MOST + 5)])

    assert [len(group) for group in database.groups] == [1, MOST, 5]


def test_a_failed_batch_fails_alone() -> None:
    database = Recording()

    results = queue_up(GroupCommit(database), database, ["a", "bad", "b"])

    assert isinstance(results.pop("bad"), ValueError)
    assert all(isinstance(result, Wrote) for result in results.values())


def test_a_leader_that_dies_leaves_the_lead_to_the_next() -> None:
    calls = []

    def write_group(batches: Sequence[Any]) -> list[Any]:
        calls.append(list(batches))
        if len(calls) == 1:
            raise KeyboardInterrupt
        return [Wrote(batch) for batch in batches]

    group = GroupCommit(write_group)
    with pytest.raises(KeyboardInterrupt):
        write(group, "a")

    assert write(group, "b") == outcome_of("b")


def test_a_waiter_that_is_interrupted_passes_the_lead_on() -> None:
    database = Recording()
    meet = Barrier(2)
    group = GroupCommit(database)
    waits: list[Any] = []

    class Interrupted(Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(self)
            super().wait(timeout)
            raise KeyboardInterrupt

    leader = start_thread(partial(write, group, "first"))
    assert database.entered.wait(PATIENCE_SEC)

    def interrupted() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("refold.adapters.sql.database.Event", Interrupted)
            with pytest.raises(KeyboardInterrupt):
                write(group, "second")
        meet.wait(PATIENCE_SEC)

    waiter = start_thread(interrupted)
    until(lambda: waits, "the second to wait")
    database.gate.set()
    meet.wait(PATIENCE_SEC)
    for thread in (leader, waiter):
        thread.join(PATIENCE_SEC)

    assert write(group, "third") == outcome_of("third")
    assert ["second"] not in database.groups


REFUSE_BAD = {
    "sqlite": (
        "CREATE TRIGGER no BEFORE INSERT ON events WHEN NEW.session_id = 'bad' "
        "BEGIN SELECT RAISE(ABORT, 'no'); END"
    ),
    "postgresql": (
        "ALTER TABLE refold.events ADD CHECK (session_id <> 'bad') NOT VALID"
    ),
}


@pytest.mark.parametrize("begun", [False, True], ids=["first", "later"])
def test_an_unexpected_failure_in_a_database_fails_only_its_own_batch(
    store_url: str, begun: bool
) -> None:
    kind = "sqlite" if store_url.startswith("sqlite") else "postgresql"
    database = {"sqlite": SqliteDatabase, "postgresql": PostgresDatabase}[kind](
        make_url(store_url)
    )
    log = memory_log(Recorder(database))
    streams = [StreamId("ada", name) for name in ("a", "bad", "c")]

    def batches() -> list[Batch]:
        return [log.batch(append_to(log.head(s), *user_inputs("x"))) for s in streams]

    for stream in streams:
        log.keys.session(stream.user_id, stream.session_id, now=1)
    if begun:
        database.write_group(batches())
    with database.writing() as connection:
        connection.exec_driver_sql(REFUSE_BAD[kind])

    outcomes = database.write_group(batches())

    assert [type(outcome) for outcome in outcomes] == [Wrote, StoreUnavailable, Wrote]
    seqs = [log.head(stream).seq for stream in streams]
    assert seqs == ([2, 1, 2] if begun else [1, 0, 1])
    log.close()


def test_an_interrupted_leader_interrupts_no_other() -> None:
    database = Recording()
    calls: list[list[Any]] = []

    def write_group(batches: Sequence[Any]) -> list[Any]:
        calls.append(list(batches))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return database(batches)

    results: dict[str, object] = {}

    def caller(name: str) -> None:
        try:
            results[name] = write(group, name)
        except KeyboardInterrupt as error:
            results[name] = error

    group = GroupCommit(write_group)
    threads = [start_thread(partial(caller, "first"))]
    assert database.entered.wait(PATIENCE_SEC)
    for name in "abc":
        threads.append(start_thread(partial(caller, name)))
        waiting = len(threads) - 1
        until(lambda: len(group._queue) == waiting, f"{waiting} in the queue")  # noqa: B023  # awaited here
    database.gate.set()
    for thread in threads:
        thread.join(PATIENCE_SEC)

    interrupted = [n for n, r in results.items() if isinstance(r, KeyboardInterrupt)]
    assert interrupted == ["a"]
    assert results["b"] == outcome_of("b")
    assert results["c"] == outcome_of("c")
