"""A store says how much it holds, how fast it grows, and which views are behind."""

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
def every(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SessionStore]:
    """A store of each engine in turn, and the one that keeps nothing."""
    if request.param == "memory":
        opened = refold.open("memory://")
    else:
        kind = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]
        opened = open_at(request.getfixturevalue(kind), tmp_path)
    with opened:
        yield opened


def test_an_empty_store_holds_nothing(every: SessionStore) -> None:
    figures = every.stats()

    counted = {k: v for k, v in figures.items() if k not in ("engine", "lag")}
    assert figures["lag"] == []
    assert {v for k, v in counted.items() if k != "database_bytes"} == {0}


def test_all_that_is_there_is_counted(every: SessionStore) -> None:
    for user, session_id in (("ada", "s-1"), ("ada", "s-2"), ("bob", "s-1")):
        talk(every.session(user_id=user, session_id=session_id), 3)
    session = every.session(user_id="ada", session_id="s-1")
    assert session.compact(WINDOW) is not None

    figures = every.stats()

    derived = sum(
        len(session.history.derived(name)) for name in session.history.streams()[1:]
    )
    assert (figures["users"], figures["sessions"]) == (2, 3)
    assert (figures["derived_streams"], figures["views"]) == (1, 1)
    assert figures["events"] == 18 + derived
    assert figures["tokens"] == sum(info.tokens for info in every.sessions())
    assert figures["event_bytes"] > 18 * 50
    assert figures["view_bytes"] > 100


def test_a_user_and_a_session_have_their_own(every: SessionStore) -> None:
    long = "a line of text. " * 10_000
    every.session(user_id="ada", session_id="s-1").append(refold.UserInput(text=long))
    talk(every.session(user_id="ada", session_id="s-2"), 1)
    talk(every.session(user_id="bob", session_id="s-1"), 4)

    ada, session = (
        every.stats("ada"),
        every.session(user_id="ada", session_id="s-2").history.stats(),
    )

    assert (ada["sessions"], ada["events"], ada["blobs"]) == (2, 3, 1)
    assert (session["sessions"], session["events"]) == (1, 2)
    assert ada["blob_bytes"] == len(long)


def test_a_session_that_is_not_there_has_no_figures(every: SessionStore) -> None:
    with pytest.raises(refold.SessionNotFound):
        every.session(user_id="ada", session_id="s-1").history.stats()


def test_rates_count_recent_events_only(every: SessionStore) -> None:
    session, now = every.session(user_id="ada", session_id="s-1"), every.clock()
    for age in (30 * HOUR, 2 * HOUR, 0):
        user_input = refold.UserInput(text="x" * 100)
        session.append(user_input, ts=from_microseconds(now - age))

    figures = every.stats()

    assert (figures["events_last_hour"], figures["events_last_day"]) == (1, 2)
    assert figures["event_bytes_last_hour"] < figures["event_bytes_last_day"]
    assert figures["event_bytes_last_day"] < figures["event_bytes"]
    assert figures["sessions_last_hour"] == 1


def test_a_view_is_behind_by_the_events_that_it_lacks(every: SessionStore) -> None:
    for name, turns in (("s-1", 0), ("s-2", 2), ("s-3", 5)):
        session = every.session(user_id="ada", session_id=name)
        talk(session, 3)
        assert session.compact(WINDOW) is not None
        talk(session, turns)

    (lag,) = every.stats()["lag"]

    assert (
        lag["fingerprint"]
        in every.session(user_id="ada", session_id="s-1").history.streams()
    )
    assert (lag["views"], lag["behind"]) == (3, 2)
    assert (lag["events"], lag["most"]) == (4 + 10, 10)


def test_those_behind_are_listed_in_pages(every: SessionStore) -> None:
    for name in ("s-1", "s-2", "s-3"):
        session = every.session(user_id="ada", session_id=name)
        talk(session, 3)
        assert session.compact(WINDOW) is not None
        talk(session, 1)
    fingerprint = session.history.streams()[1]

    first = every.log.lagging(Scope(), by=2, limit=2)
    rest = every.log.lagging(Scope(), by=2, limit=2, after=first[-1].place)

    assert [view.place for view in (*first, *rest)] == [
        Place("ada", f"s-{n}", fingerprint) for n in (1, 2, 3)
    ]
    assert {view.events for view in (*first, *rest)} == {2}
    assert every.log.lagging(Scope(), by=3, limit=9) == []
    assert every.log.lagging(Scope("bob"), by=0, limit=9) == []
    assert list(lagging(every.log, Scope("ada", "s-2"))) == [first[1]]


def test_catching_up_leaves_none_behind(every: SessionStore) -> None:
    for name in ("s-1", "s-2"):
        session = every.session(user_id="ada", session_id=name)
        talk(session, 3)
        assert session.compact(WINDOW) is not None
        talk(session, 4)

    assert every.catch_up("bob") == 0
    assert every.catch_up() == 2

    (lag,) = every.stats()["lag"]
    assert (lag["behind"], lag["events"]) == (0, 0)
    assert every.catch_up() == 0


def test_a_key_that_was_left_is_counted(every: SessionStore) -> None:
    session = every.session(user_id="ada", session_id="s-1")
    session.append(refold.UserInput(text="x"))
    keys = every.log.keys  # type: ignore[attr-defined]  # of every log there is
    used = every.log.key(StreamId("ada", "s-1"))  # type: ignore[attr-defined]  # the same
    keys.successor("ada", "s-1", of=used, now=every.clock())
    talk(every.session(user_id="bob", session_id="s-1"), 1)

    assert every.stats()["retired_keys"] == every.stats("ada")["retired_keys"] == 1
    assert session.history.stats()["retired_keys"] == 1
    assert every.stats("bob")["retired_keys"] == 0
