"""Writers that meet share a commit, and none of them suffers from another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from refold.adapters.recorder import Wrote
from refold.adapters.sql.grouping import MOST, GroupCommit


class Recording:
    """A database that writes when it is let, and remembers what came together."""

    def __init__(self) -> None:
        self.groups: list[list[Any]] = []
        self.entered, self.gate = Event(), Event()

    def __call__(self, batches: Sequence[Any]) -> list[Any]:
        self.groups.append(list(batches))
        self.entered.set()
        assert self.gate.wait(10)
        return [ValueError(b) if b == "bad" else Wrote(b) for b in batches]


def started(work: Callable[[], None]) -> Thread:
    thread = Thread(target=work)
    thread.start()
    return thread


def test_who_comes_alone_is_written_alone() -> None:
    database = Recording()
    database.gate.set()
    group = GroupCommit(database)

    for name in "abc":
        assert group.write(name) == Wrote(name)  # type: ignore[arg-type]
    assert database.groups == [["a"], ["b"], ["c"]]


def queue_up(
    group: GroupCommit, database: Recording, names: Sequence[str]
) -> dict[str, object]:
    """Write ``first``, and ``names`` while it is being written."""
    results: dict[str, object] = {}

    def write(name: str) -> None:
        try:
            results[name] = group.write(name)  # type: ignore[arg-type]
        except ValueError as error:
            results[name] = error

    threads = [started(lambda: write("first"))]
    assert database.entered.wait(10)
    threads += [started(lambda name=name: write(name)) for name in names]  # type: ignore[misc]
    while len(group._queue) < len(names):
        pass
    database.gate.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    return results


def test_those_who_come_meanwhile_share_the_next_commit() -> None:
    database = Recording()

    results = queue_up(GroupCommit(database), database, [f"{n}" for n in range(10)])

    assert [len(group) for group in database.groups] == [1, 10]
    assert all(isinstance(result, Wrote) for result in results.values())


def test_a_group_is_bounded() -> None:
    database = Recording()

    queue_up(GroupCommit(database), database, [f"{n}" for n in range(MOST + 5)])

    assert [len(group) for group in database.groups] == [1, MOST, 5]


def test_the_failure_of_one_is_its_own() -> None:
    database = Recording()

    results = queue_up(GroupCommit(database), database, ["a", "bad", "b"])

    assert isinstance(results.pop("bad"), ValueError)
    assert all(isinstance(result, Wrote) for result in results.values())


def test_a_leader_that_dies_leaves_the_lead_to_the_next() -> None:
    calls = []

    def write(batches: Sequence[Any]) -> list[Any]:
        calls.append(list(batches))
        if len(calls) == 1:
            raise KeyboardInterrupt
        return [Wrote(batch) for batch in batches]

    group = GroupCommit(write)
    with pytest.raises(KeyboardInterrupt):
        group.write("a")  # type: ignore[arg-type]

    assert group.write("b") == Wrote("b")  # type: ignore[arg-type]


def test_a_waiter_that_is_interrupted_passes_the_lead_on() -> None:
    database, meet = Recording(), Barrier(2)
    group = GroupCommit(database)
    waits: list[Any] = []

    class Interrupted(Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(self)
            super().wait(timeout)
            raise KeyboardInterrupt

    leader = started(lambda: (group.write("first"), None)[1])  # type: ignore[arg-type]
    assert database.entered.wait(10)

    def interrupted() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("refold.adapters.sql.grouping.Event", Interrupted)
            with pytest.raises(KeyboardInterrupt):
                group.write("second")  # type: ignore[arg-type]
        meet.wait(10)

    waiter = started(interrupted)
    while not waits:
        pass
    database.gate.set()
    meet.wait(10)
    for thread in (leader, waiter):
        thread.join(10)

    assert group.write("third") == Wrote("third")  # type: ignore[arg-type]
    assert ["second"] not in database.groups
