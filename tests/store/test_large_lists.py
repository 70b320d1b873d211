"""Lists and searches read little for each session, and none that stops the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import refold
from refold.adapters.log import EncryptedLog
from refold.domain.ports import SessionInfo
from refold.projections.overview import Overview
from refold.store import SessionStore
from refold.store.overviews import OverviewFilter, Overviews
from refold.store.work.workers import Worker
from tests.support.stores import prepare

pytestmark = pytest.mark.each_engine
_SESSIONS = 40
_PAGE = 5


@pytest.fixture
def db(store_url: str, tmp_path: Path) -> str:
    return prepare(store_url, tmp_path)


def fill(store: SessionStore, sessions: int) -> None:
    for number in range(sessions):
        session = store.session(user_id="ada", session_id=f"s{number:02}")
        session.append(
            [
                refold.UserInput(text=f"Brew tea {number:02}"),
                refold.ToolCall(call_id="c", tool_name="kettle"),
                refold.ToolResult(call_id="c", content="hot", status="error"),
            ]
        )


def log_of(store: SessionStore) -> EncryptedLog:
    assert isinstance(store.log, EncryptedLog)
    return store.log


def lose_key(store: SessionStore, session_id: str) -> None:
    keys = log_of(store).keys
    table = keys.store.tables["session_keys"]
    ref = keys.session_ref("ada", session_id)
    lost = sa.delete(table).where(table.c.session_ref == ref)
    keys.store.change(None, lambda connection: connection.execute(lost))


def count_reads(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the session of each read of events."""
    sessions: list[str] = []
    read = store.log.read

    def counted(stream: Any, **options: Any) -> Any:
        sessions.append(stream.session_id)
        return read(stream, **options)

    monkeypatch.setattr(store.log, "read", counted)
    return sessions


@pytest.mark.parametrize(
    "options",
    [
        {"sort": "title"},
        {"sort": "dollars"},
        {"sort": "tokens"},
        {"matching": OverviewFilter(failed=True)},
        {"matching": OverviewFilter(text="tea")},
    ],
)
def test_a_page_makes_objects_only_of_its_own_sessions(
    db: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    with refold.open(db) as store:
        fill(store, _SESSIONS)
        store.overviews("ada")
    with refold.open(db) as store:
        loaded: list[object] = []
        infos: list[object] = []
        queries: list[str] = []
        load = Overview.load
        make_info = SessionInfo.__init__
        database = log_of(store).recorder.database
        fetch = database.fetch

        def counted_load(fields: Any) -> Overview:
            loaded.append(fields)
            return load(fields)

        def counted_info(info: SessionInfo, *args: Any, **fields: Any) -> None:
            infos.append(info)
            make_info(info, *args, **fields)

        def counted_fetch(user_id: str | None, query: str, values: Any) -> Any:
            queries.append(query)
            return fetch(user_id, query, values)

        monkeypatch.setattr(Overview, "load", counted_load)
        monkeypatch.setattr(SessionInfo, "__init__", counted_info)
        monkeypatch.setattr(database, "fetch", counted_fetch)
        reads = count_reads(store, monkeypatch)

        page = store.overviews("ada", limit=_PAGE, **options)

        assert len(page.sessions) == _PAGE
        assert page.total == _SESSIONS
        assert len(loaded) == _PAGE
        assert len(infos) == _PAGE
        assert len(queries) == 5  # heads, derived seqs and views; twice of the page
        assert reads == []


def test_pages_of_all_users_have_each_session_once(db: str) -> None:
    with refold.open(db) as store:
        for user in ("ada", "bob"):
            for number in range(3):
                session = store.session(user_id=user, session_id=f"s{number}")
                session.append(refold.UserInput(text=f"{number} {user}"))

        whole = store.overviews(sort="title", limit=4)

        titles = [session.overview.title for session in whole.sessions]
        assert titles == ["0 ada", "0 bob", "1 ada", "1 bob"]
        assert whole.total == 6


def test_a_session_without_a_key_is_named_and_the_others_are_listed(db: str) -> None:
    with refold.open(db) as store:
        fill(store, 3)
        store.overviews("ada")
        store.search("ada", "tea")
        lose_key(store, "s01")
    with refold.open(db) as store:
        for options in ({}, {"limit": 9}, {"sort": "title", "limit": 9}):
            page = store.overviews("ada", **options)

            assert page.unreadable == ("s01",)
            assert page.unread == 0
            titles = {session.overview.title for session in page.sessions}
            assert titles == {"Brew tea 00", "", "Brew tea 02"}

        result = store.search_with_total("ada", "tea", limit=9)

        assert {hit.session_id for hit in result.hits} == {"s00", "s02"}
        assert result.unreadable == ("s01",)


def test_a_session_without_a_key_uses_up_no_bound(db: str) -> None:
    with refold.open(db) as store:
        fill(store, 2)
        lose_key(store, "s01")
    with refold.open(db) as store:
        infos = store.sessions("ada")
        listed = Overviews(store.log, now=store.clock()).of(infos, most_events=3)

        titles = {session.info.session_id: session.overview.title for session in listed}
        assert titles == {"s00": "Brew tea 00", "s01": ""}


def test_after_the_duty_index_no_list_and_no_search_reads_events(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refold.open(db) as store:
        fill(store, 3)
        results: list[tuple[str, int]] = []

        def note(unit: Any, indexed: Any) -> None:
            results.append((unit.session_id, indexed.events))

        worker = Worker(store, duties={"index": 60}, done=note)
        worker.round()
        assert sorted(results) == [("s00", 3), ("s01", 3), ("s02", 3)]
        assert worker.counts == {("index", "done"): 3}

        reads = count_reads(store, monkeypatch)
        page = store.overviews("ada", sort="title", limit=9)
        store.search("ada", "coffee")

        assert [session.overview.title for session in page.sessions] == [
            "Brew tea 00",
            "Brew tea 01",
            "Brew tea 02",
        ]
        assert reads == []


def test_the_duty_index_stores_an_index_also_for_a_single_new_event(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refold.open(db) as store:
        session = store.session(user_id="ada", session_id="long")
        session.append([refold.UserInput(text=f"tea {n}") for n in range(100)])
        Worker(store, duties={"index": 60}).round()
        session.append(refold.UserInput(text="coffee"))
        Worker(store, duties={"index": 60}).round()
        again = Worker(store, duties={"index": 60})
        again.round()
        assert again.counts == {("index", "nothing"): 1}

        reads = count_reads(store, monkeypatch)
        store.overviews("ada", sort="title", limit=9)
        store.search("ada", "cocoa")

        assert reads == []


def test_the_duty_index_reports_a_session_without_a_key_and_goes_on(db: str) -> None:
    with refold.open(db) as store:
        fill(store, 3)
        lose_key(store, "s01")
    with refold.open(db) as store:
        worker = Worker(store, duties={"index": 60})
        worker.round()

        assert worker.counts == {("index", "done"): 2, ("index", "failed"): 1}
