"""A store moves on to a cluster as it is, and goes on there."""

from __future__ import annotations

from pathlib import Path

import pytest

import refold
from refold.opener import move
from refold.testing.event_log import user_inputs
from tests.adapters.test_move import fill, problems, rows
from tests.support import tampered
from tests.support.tampered import Tampered


@pytest.fixture(params=["sqlite", "postgres"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Tampered:
    """A filled store on one machine, which nobody has open."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'refold.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    case = Tampered(url, tmp_path)
    fill(case)
    return case


@pytest.fixture(autouse=True)
def _recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_ACCESS_LOG", "table")


def test_every_row_is_on_the_cluster_unchanged(case: Tampered, citus_url: str) -> None:
    before = rows(case.url)

    counts = move(case.url, to=citus_url)

    assert counts == {name: len(rows_before) for name, rows_before in before.items()}
    assert rows(citus_url) == before


def test_a_store_on_a_cluster_is_not_moved_and_nothing_is_begun(
    citus_url: str, postgres_url: str, tmp_path: Path
) -> None:
    case = Tampered(citus_url, tmp_path)
    with case.store() as store:
        store.session(user_id="ada", session_id="s").append(user_inputs("x"))

    with pytest.raises(refold.InvalidConfiguration, match="a store stays on Citus"):
        move(citus_url, to=postgres_url)

    case.url = postgres_url
    with case.store():  # it was not claimed
        pass


def test_a_moved_store_verifies_appends_and_erases_on_the_cluster(
    case: Tampered, citus_url: str
) -> None:
    with case.store() as store:
        shown = store.session(user_id="ada", session_id="s-1").context(tampered.WINDOW)
    move(case.url, to=citus_url)
    case.url = citus_url

    with case.store() as store:
        session = store.session(user_id="ada", session_id="s-1")
        assert problems(store) == []
        assert session.context(tampered.WINDOW).digest == shown.digest
        assert session.append(user_inputs("once"), idempotency_key="k-1").duplicate
        assert session.append(user_inputs("after the move")).last_seq == shown.at + 1
        store.session(user_id="ivy", session_id="i-1").append(user_inputs("hello"))
        assert store.seal()
        with pytest.raises(refold.Erased):
            store.session(user_id="eve", session_id="gone").events()
        store.erasures.release("ada", "a hold", "it is over")
        assert set(store.erase("ada", "she asked").left.values()) == {0}
        assert problems(store) == []
