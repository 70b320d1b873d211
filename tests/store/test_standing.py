"""A context is made of one read; what was read with it on a hint changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

import refold
from refold.domain.ports import PAGE
from refold.store import Session, SessionStore
from refold.testing.event_log import said
from tests.support.talking import talk

WINDOW = "turn_window:full_turns=2,cached_turns=1"


@pytest.fixture
def compacted(session: Session) -> Session:
    """A session whose view is stored, with something new behind it."""
    talk(session, 12)
    while session.compact(WINDOW) is not None:
        pass
    return talk(session, 2)


def hinted(url: str, main: str, derived: str) -> None:
    """Say of every stored view that it shows these seqs."""
    schema, driver = ("refold.", "+psycopg") if url.startswith("postgres") else ("", "")
    engine = create_engine(url.replace("://", f"{driver}://", 1), poolclass=NullPool)
    hint = f"UPDATE {schema}views SET main_spans=:main, derived_spans=:derived"
    with engine.begin() as connection:
        connection.execute(text(hint), {"main": main, "derived": derived})


@pytest.mark.parametrize(
    ("main", "derived"),
    [("[]", "[]"), ("[[1, 3], [20, 99999]]", "[[2, 2]]"), ("[[24, 1]]", "[[9, 9]]")],
)
def test_a_wrong_hint_changes_nothing(
    compacted: Session, store_url: str, main: str, derived: str
) -> None:
    before = compacted.context(WINDOW)

    hinted(store_url, main, derived)

    assert compacted.context(WINDOW).digest == before.digest


def test_the_stored_view_and_the_log_give_the_same(
    store: SessionStore, compacted: Session
) -> None:
    stored = compacted.context(WINDOW)

    store.log.drop_views("ada", "s-1")

    assert compacted.context(WINDOW) == stored


@pytest.mark.parametrize("more", [PAGE - 1, PAGE, PAGE + 1])
def test_more_than_a_page_behind_the_view_is_all_there(
    memory: SessionStore, more: int
) -> None:
    session = memory.session("ada", "s-1")
    session.append(said(*map(str, range(70))))
    assert session.context("keep_all").at == 70
    session.append(said(*map(str, range(70, 70 + more))))

    view = session.context("keep_all")

    assert view.at == 70 + more
    assert str(view.messages).count("'text': ") == 70 + more


def test_damage_that_is_not_shown_is_no_matter(tmp_path: Path, sqlite_url: str) -> None:
    with refold.open(sqlite_url) as store:
        session = talk(store.session("ada", "s-1"), 12)
        while session.compact(WINDOW) is not None:
            pass
        before = session.context(WINDOW)
        damage = "UPDATE events SET body=x'00'"
        with create_engine(sqlite_url).begin() as connection:
            connection.execute(text("DROP TRIGGER events_refuse_update"))
            connection.execute(text(f"{damage} WHERE stream='main' AND seq=2"))
        hinted(sqlite_url, "[[1, 24]]", "[]")

        assert session.context(WINDOW) == before


def test_an_erased_or_missing_session_stands_nowhere(store: SessionStore) -> None:
    with pytest.raises(refold.SessionNotFound):
        store.session("ada", "none").context(WINDOW)
