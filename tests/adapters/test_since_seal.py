"""Events after the newest seal are proved alone, starting at the sealed head."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.store import SessionStore
from tests.support.nested import problems_of
from tests.support.sealing import anchor_file, append_to_each
from tests.support.tampered import Tampered


@pytest.fixture(params=["sqlite", "postgresql"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Tampered:
    """A store with three sealed events in each of two sessions, and two new ones."""
    kind = {"sqlite": "_sqlite_store", "postgresql": "_postgres_store"}[request.param]
    case = Tampered(request.getfixturevalue(kind), tmp_path)
    with case.store() as store:
        for _ in range(3):
            append_to_each(store, "old", "grown")
        store.seal()
        append_to_each(store, "grown", "grown")
    return case


def checked(store: SessionStore) -> tuple[int, list[tuple[str, int | None]]]:
    """Return the number of checked events, and each problem with its seq."""
    proved = [verified for _, verified in store.verify_since_seal()]
    problems = [p for verified in proved for p in verified.problems]
    problems += store.seals.verify(newest=True).problems
    looked = sum(verified.events for verified in proved)
    return looked, [(problem.code, problem.seq) for problem in problems]


def test_only_new_events_are_checked(case: Tampered) -> None:
    with case.store() as store:
        assert checked(store) == (2, [])
        store.seal()

        assert checked(store) == (0, [])


def test_a_changed_new_event_is_found(case: Tampered) -> None:
    case.do("UPDATE events SET token_estimate=77 WHERE session_id='grown' AND seq=4")

    with case.store() as store:
        assert checked(store) == (2, [("chain", 4)])


def test_a_missing_new_event_is_found(case: Tampered) -> None:
    case.do("DELETE FROM events WHERE session_id='grown' AND seq=4")

    with case.store() as store:
        assert checked(store)[1] == [("gap", 4)]


def test_new_events_must_continue_the_sealed_ones(case: Tampered) -> None:
    case.do("DELETE FROM events WHERE session_id='grown' AND seq=3")

    with case.store() as store:
        assert ("seal", 3) in checked(store)[1]


def test_earlier_events_need_a_full_proof(case: Tampered) -> None:
    case.do("UPDATE events SET token_estimate=77 WHERE session_id='old' AND seq=2")

    with case.store() as store:
        assert checked(store) == (2, [])
        assert "chain" in [problem.code for problem in problems_of(store.verify())]


def test_a_changed_leaf_is_found(case: Tampered) -> None:
    case.do("DELETE FROM leaves WHERE leaf=0")

    with case.store() as store:
        assert ("leaf", 0) in checked(store)[1]


def test_a_tree_head_that_the_anchor_lacks_is_found(case: Tampered) -> None:
    anchor_file().write_bytes(b"")

    with case.store() as store:
        assert checked(store) == (2, [("anchor", None)])


def test_a_store_without_seals_is_proved_completely(
    store: SessionStore,
) -> None:
    append_to_each(store, "one", "one", "two")

    assert checked(store) == (3, [])
