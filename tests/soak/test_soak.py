"""A soak, small: processes are killed, connections cut, a server restarted twice.

``make soak`` is the same with millions of events.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

import refold
from refold.store import SessionStore
from tests.soak.check import check
from tests.soak.plan import USER, Acknowledged, Plan, journal
from tests.soak.run import Memory, Soak
from tests.support.postgres import Postgres

SMALL = Plan(seed=1, events=400, sessions=6, processes=4)


@pytest.mark.timeout(600)
def test_kills_and_cuts_lose_nothing_acknowledged(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    report = Soak(SMALL, own_postgres, tmp_path).run()

    assert report.wrong == []
    assert report.acknowledged == SMALL.events
    assert report.harms == {"kill": 4, "cut": 4, "crash": 1, "restart": 1}
    assert report.compactions > 0
    assert [memory.process for memory in report.memory] == ["write 0", "project 0"]


def test_a_plan_is_reproducible_and_appends_as_much_as_it_says() -> None:
    batches = [batch for writer in (0, 1) for batch in SMALL.batches(writer)]

    assert batches == [batch for writer in (0, 1) for batch in SMALL.batches(writer)]
    assert sum(batch.size for batch in batches) == SMALL.events
    assert len({batch.key for batch in batches}) == len(batches) > 20
    assert {1, 2, 4} < {batch.size for batch in batches}
    assert Counter(kind for _, kind in SMALL.harms())["crash"] == 1
    assert all(a[0] <= b[0] for a, b in pairwise(SMALL.harms()))
    with pytest.raises(ValueError, match="4 processes"):
        Plan(processes=3)


def written(store: SessionStore, plan: Plan, folder: Path) -> None:
    """Do what the writers of a soak do."""
    for writer in range(plan.writers):
        with (folder / f"journal-{writer}").open("w") as file:
            for batch in plan.batches(writer):
                session = store.session(user_id=USER, session_id=batch.session_id)
                receipt = session.append(batch.events(), idempotency_key=batch.key)
                line = Acknowledged(batch.number, batch.session_id, *receipt)
                file.write(json.dumps(line) + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_the_check_after_a_soak_finds_faults(folder: Path) -> None:
    plan = Plan(seed=2, events=100, sessions=1, processes=4)
    with refold.open("memory://") as store:
        written(store, plan, folder)
        session = store.session(user_id=USER, session_id="s-0000")
        while session.compact(plan.spec):
            pass
        assert check(store, plan, folder).wrong == []

        path = folder / "journal-1"
        lines = journal(path)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))
        assert "never acknowledged" in check(store, plan, folder).wrong[0]
        lines[0] = lines[0]._replace(hash="00")
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert "was acknowledged as" in check(store, plan, folder).wrong[0]
        lines[0] = lines[0]._replace(number=10_000)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert (
            "acknowledgements of unknown batches"
            in check(store, plan, folder).wrong[-1]
        )


def test_a_repeated_or_partial_batch_is_found(folder: Path) -> None:
    plan = Plan(seed=2, events=100, sessions=1, processes=4)
    with refold.open("memory://") as store:
        written(store, plan, folder)
        session = store.session(user_id=USER, session_id="s-0000")
        first = next(batch for batch in plan.batches(0) if batch.size > 1).events()
        session.append(first)
        session.append(first[1:])

        wrong = check(store, plan, folder).wrong

        assert any("is there twice" in problem for problem in wrong)
        assert any("is scattered" in problem for problem in wrong)
        assert any(
            "events are there, 100 were appended" in problem for problem in wrong
        )


def test_half_a_line_of_a_journal_was_not_acknowledged(folder: Path) -> None:
    line = json.dumps(Acknowledged(1, "s", 1, 2, "00", duplicate=False))
    (folder / "journal").write_text(f"{line}\n{line[:20]}")

    assert [line.number for line in journal(folder / "journal")] == [1]
    assert journal(folder / "none") == []


def test_growing_memory_is_distinguished_from_stable_memory() -> None:
    assert Memory("a", 50.0, 100.0, 141.0).flat
    assert not Memory("a", 50.0, 100.0, 142.0).flat
