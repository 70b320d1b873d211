"""Stats report stored amounts, their growth, and the views that are behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold.domain.envelope import from_microseconds
from refold.domain.ids import StreamId
from refold.domain.ports import Place, Scope
from refold.store import SessionStore
from refold.store.contexts import lagging
from tests.support.stores import open_at
from tests.support.talking import talk

WINDOW = "turn_window:full_turns=1,cached_turns=1"
HOUR = 3_600_000_000


@pytest.fixture(params=["sqlite", "postgresql", "memory"])
def store_of_each_engine(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[SessionStore]:
    """A store of each engine in turn, and one in memory."""
    if request.param == "memory":
        opened = refold.open("memory://")
    else:
        kind = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]
        opened = open_at(request.getfixturevalue(kind), tmp_path)
    with opened:
        yield opened


def test_an_empty_store_holds_nothing(store_of_each_engine: SessionStore) -> None:
    figures = store_of_each_engine.stats()

    counted = {k: v for k, v in figures.items() if k not in ("engine", "lag")}
    assert figures["lag"] == []
    assert {v for k, v in counted.items() if k != "database_bytes"} == {0}


def test_everything_stored_is_counted(store_of_each_engine: SessionStore) -> None:
    for user, session_id in (("ada", "s-1"), ("ada", "s-2"), ("bob", "s-1")):
        talk(store_of_each_engine.session(user_id=user, session_id=session_id), 3)
    session = store_of_each_engine.session(user_id="ada", session_id="s-1")
    assert session.compact(WINDOW) is not None

    figures = store_of_each_engine.stats()

    derived = sum(
        len(session.history.derived(name)) for name in session.history.streams()[1:]
    )
    assert (figures["users"], figures["sessions"]) == (2, 3)
    assert (figures["derived_streams"], figures["views"]) == (1, 1)
    assert figures["events"] == 18 + derived
    assert figures["tokens"] == sum(
        info.tokens for info in store_of_each_engine.sessions()
    )
    assert figures["event_bytes"] > 18 * 50
    assert figures["view_bytes"] > 100


def test_a_user_and_a_session_have_their_own_figures(
    store_of_each_engine: SessionStore,
) -> None:
    long = "a line of text. " * 10_000
    store_of_each_engine.session(user_id="ada", session_id="s-1").append(
        refold.UserInput(text=long)
    )
    talk(store_of_each_engine.session(user_id="ada", session_id="s-2"), 1)
    talk(store_of_each_engine.session(user_id="bob", session_id="s-1"), 4)

    ada = store_of_each_engine.stats("ada")
    session = store_of_each_engine.session(
        user_id="ada", session_id="s-2"
    ).history.stats()

    assert (ada["sessions"], ada["events"], ada["blobs"]) == (2, 3, 1)
    assert (session["sessions"], session["events"]) == (1, 2)
    assert ada["blob_bytes"] == len(long)


def test_a_missing_session_has_no_figures(store_of_each_engine: SessionStore) -> None:
    with pytest.raises(refold.SessionNotFound):
        store_of_each_engine.session(user_id="ada", session_id="s-1").history.stats()


def test_rates_count_recent_events_only(store_of_each_engine: SessionStore) -> None:
    session = store_of_each_engine.session(user_id="ada", session_id="s-1")
    now = store_of_each_engine.clock()
    for age in (30 * HOUR, 2 * HOUR, 0):
        user_input = refold.UserInput(text="x" * 100)
        session.append(user_input, ts=from_microseconds(now - age))

    figures = store_of_each_engine.stats()

    assert (figures["events_last_hour"], figures["events_last_day"]) == (1, 2)
    assert figures["event_bytes_last_hour"] < figures["event_bytes_last_day"]
    assert figures["event_bytes_last_day"] < figures["event_bytes"]
    assert figures["sessions_last_hour"] == 1


def test_a_view_is_behind_by_the_events_that_it_lacks(
    store_of_each_engine: SessionStore,
) -> None:
    for name, turns in (("s-1", 0), ("s-2", 2), ("s-3", 5)):
        session = store_of_each_engine.session(user_id="ada", session_id=name)
        talk(session, 3)
        assert session.compact(WINDOW) is not None
        talk(session, turns)

    (lag,) = store_of_each_engine.stats()["lag"]

    assert (
        lag["fingerprint"]
        in store_of_each_engine.session(
            user_id="ada", session_id="s-1"
        ).history.streams()
    )
    assert (lag["views"], lag["behind"]) == (3, 2)
    assert (lag["events"], lag["most"]) == (4 + 10, 10)


def test_views_that_are_behind_are_listed_in_pages(
    store_of_each_engine: SessionStore,
) -> None:
    for name in ("s-1", "s-2", "s-3"):
        session = store_of_each_engine.session(user_id="ada", session_id=name)
        talk(session, 3)
        assert session.compact(WINDOW) is not None
        talk(session, 1)
    fingerprint = session.history.streams()[1]

    first = store_of_each_engine.log.lagging(Scope(), by=2, limit=2)
    rest = store_of_each_engine.log.lagging(
        Scope(), by=2, limit=2, after=first[-1].place
    )

    assert [view.place for view in (*first, *rest)] == [
        Place("ada", f"s-{n}", fingerprint) for n in (1, 2, 3)
    ]
    assert {view.events for view in (*first, *rest)} == {2}
    assert store_of_each_engine.log.lagging(Scope(), by=3, limit=9) == []
    assert store_of_each_engine.log.lagging(Scope("bob"), by=0, limit=9) == []
    assert list(lagging(store_of_each_engine.log, Scope("ada", "s-2"))) == [first[1]]


def test_catching_up_leaves_none_behind(store_of_each_engine: SessionStore) -> None:
    for name in ("s-1", "s-2"):
        session = store_of_each_engine.session(user_id="ada", session_id=name)
        talk(session, 3)
        assert session.compact(WINDOW) is not None
        talk(session, 4)

    assert store_of_each_engine.catch_up("bob") == 0
    assert store_of_each_engine.catch_up() == 2

    (lag,) = store_of_each_engine.stats()["lag"]
    assert (lag["behind"], lag["events"]) == (0, 0)
    assert store_of_each_engine.catch_up() == 0


def test_an_orphaned_key_is_counted(store_of_each_engine: SessionStore) -> None:
    session = store_of_each_engine.session(user_id="ada", session_id="s-1")
    session.append(refold.UserInput(text="x"))
    keys = store_of_each_engine.log.keys  # type: ignore[attr-defined]  # of every log there is
    used = store_of_each_engine.log.key(StreamId("ada", "s-1"))  # type: ignore[attr-defined]  # the same
    keys.successor("ada", "s-1", of=used, now=store_of_each_engine.clock())
    talk(store_of_each_engine.session(user_id="bob", session_id="s-1"), 1)

    assert (
        store_of_each_engine.stats()["retired_keys"]
        == store_of_each_engine.stats("ada")["retired_keys"]
        == 1
    )
    assert session.history.stats()["retired_keys"] == 1
    assert store_of_each_engine.stats("bob")["retired_keys"] == 0
