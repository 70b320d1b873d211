"""Lists and searches read little for each session, and none that stops the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import refold
from refold.adapters.log import EncryptedLog
from refold.domain import errors
from refold.domain.ids import StreamId
from refold.domain.ports import SessionInfo
from refold.projections.overview import Overview
from refold.store import SessionStore
from refold.store.overviews import (
    EVERY_SESSION,
    MOST_UNREADABLE,
    OVERVIEW,
    OverviewFilter,
    Overviews,
    titles_of,
)
from refold.store.work.indexing import index_session
from refold.store.work.workers import STUCK_SEC, Worker
from tests.support.compacting import WINDOW
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


def lose_key(store: SessionStore, session_id: str, *, user_id: str = "ada") -> None:
    keys = log_of(store).keys
    table = keys.store.tables["session_keys"]
    ref = keys.session_ref(user_id, session_id)
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


def say(store: SessionStore, session_id: str, count: int) -> StreamId:
    """Append this many inputs to a session of ada."""
    session = store.session(user_id="ada", session_id=session_id)
    session.append([refold.UserInput(text=f"tea {number}") for number in range(count)])
    return StreamId("ada", session_id)


def append_after_heads(
    store: SessionStore,
    other: SessionStore,
    stream: StreamId,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let another process append and index an event after ``store`` read its heads."""
    heads = list(store.log.listed_heads("ada"))
    say(other, stream.session_id, 1)
    index_session(other.log, stream, now=other.clock())
    monkeypatch.setattr(store.log, "listed_heads", lambda *_, **__: heads)


def overview_seq(store: SessionStore, stream: StreamId) -> int:
    view = store.log.load_view(stream, OVERVIEW)
    assert view is not None
    return view.through_seq


def test_a_sorted_page_marks_a_session_that_was_read_in_part(db: str) -> None:
    with refold.open(db) as store:
        say(store, "long", 1000)
        overviews = Overviews(store.log, now=store.clock())

        selection = overviews.select(
            "ada", sort="title", matching=EVERY_SESSION, most_events=600
        )
        (session,) = overviews.of_entries(selection.entries, selection)

        assert selection.unread == {("ada", "long")}
        assert session.overview.events == 600
        assert not session.is_current
        assert session.is_readable


def count_events(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of events of each read."""
    counts: list[int] = []
    read = store.log.read

    def counted(stream: Any, **options: Any) -> Any:
        page = read(stream, **options)
        counts.append(len(page))
        return page

    monkeypatch.setattr(store.log, "read", counted)
    return counts


def test_a_stored_overview_keeps_its_summaries_if_the_bound_ends_before_them(
    db: str,
) -> None:
    with refold.open(db) as store:
        stream = say(store, "short", 20)
        session = store.session(user_id="ada", session_id="short")
        for number in range(5):
            question = refold.UserInput(text=f"tea {number} " * 500)
            session.append([question, refold.AgentResponse(text="milk " * 500)])
        assert session.compact(WINDOW)
        overviews = Overviews(store.log, now=store.clock())
        overviews.of(store.sessions("ada"))
        stored = store.log.load_view(stream, OVERVIEW)
        assert stored is not None
        assert stored.derived_seq > 0
        say(store, "short", 1)
        infos = store.sessions("ada")

        (too_long,) = overviews.of(infos, most_events=31)

        assert not too_long.is_current
        assert store.log.load_view(stream, OVERVIEW) == stored
        (whole,) = overviews.of(infos)
        assert whole.is_current


@pytest.mark.parametrize("is_sorted", [False, True])
def test_a_list_reads_no_more_events_than_its_bound_of_short_sessions(
    db: str, monkeypatch: pytest.MonkeyPatch, *, is_sorted: bool
) -> None:
    with refold.open(db) as store:
        for number in range(6):
            say(store, f"s{number}", 100)
        store.overviews("ada", sort="title")
        for number in range(6):
            say(store, f"s{number}", 1)
        overviews = Overviews(store.log, now=store.clock())
        counts = count_events(store, monkeypatch)

        # Each has one new event, and no stored fold: it is read from its beginning.
        if is_sorted:
            selection = overviews.select(
                "ada", sort="title", matching=EVERY_SESSION, most_events=300
            )
            unread = len(selection.unread)
        else:
            listed = overviews.of(store.sessions("ada"), most_events=300)
            unread = sum(1 for session in listed if not session.is_current)

        assert sum(counts) == 202
        assert unread == 4


def test_reads_of_a_session_that_is_erased_in_the_meantime_use_up_the_bound(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refold.open(db) as store, refold.open(db) as other:
        say(store, "long", 2500)
        bob = store.session(user_id="bob", session_id="other")
        bob.append([refold.UserInput(text="tea")] * 600)
        read = store.log.read

        def erased_after_a_page(stream: Any, **options: Any) -> Any:
            page = read(stream, **options)
            if stream.user_id == "ada" and options["after"] == 0:
                other.erase("ada", session_id="long", reason="asked for it")
            return page

        monkeypatch.setattr(store.log, "read", erased_after_a_page)
        counts = count_events(store, monkeypatch)
        overviews = Overviews(store.log, now=store.clock())

        selection = overviews.select(
            None, sort="title", matching=EVERY_SESSION, most_events=2500
        )

        assert sum(counts) == 1600
        assert selection.left == 900


def test_titles_of_several_sessions_share_one_bound(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refold.open(db) as store:
        for number in range(4):
            say(store, f"s{number}", 100)
        overviews = Overviews(store.log, now=store.clock())
        overviews.refresh(StreamId("ada", "s3"), 100)
        say(store, "s3", 300)
        counts = count_events(store, monkeypatch)

        titles = titles_of(
            store.log,
            "ada",
            ["s0", "s1", "s2", "s3"],
            now=store.clock(),
            most_events=250,
        )

        assert sum(counts) == 200
        # The last one has its stored title, the one before it has none.
        assert titles == {"s0": "tea 0", "s1": "tea 0", "s3": "tea 0"}


def test_titles_read_a_damaged_session_within_their_bound(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refold.open(db) as store:
        for name in ("damaged", "whole"):
            say(store, name, 100)
        read = store.log.read

        def damaged(stream: Any, **options: Any) -> Any:
            if stream.session_id == "damaged":
                raise errors.CorruptEvent("ada/damaged", seq=1, reason="damaged")
            return read(stream, **options)

        monkeypatch.setattr(store.log, "read", damaged)
        names = ["damaged", "whole"]

        for most_events, titles in ((199, {}), (200, {"whole": "tea 0"})):
            assert titles == titles_of(
                store.log, "ada", names, now=store.clock(), most_events=most_events
            )


def test_a_list_reads_no_more_events_than_its_bound_if_a_stored_fold_is_gone(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refold.open(db) as store:
        stream = say(store, "long", 600)
        store.overviews("ada", sort="title")
        (fold_view,) = [
            name
            for name in store.log.view_names("ada", "long")
            if name.startswith("overview_fold")
        ]
        store.log.drop_view(stream, fold_view)
        say(store, "long", 1)
        overviews = Overviews(store.log, now=store.clock())
        counts = count_events(store, monkeypatch)

        infos = store.sessions("ada")
        lists = [overviews.of(infos, most_events=400) for _ in range(2)]

        assert [session.is_current for (session,) in lists] == [False, True]
        assert sum(counts) == 601


def test_a_sorted_page_does_not_fold_a_session_twice(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refold.open(db) as store:
        fill(store, 2)
        read = store.log.read
        reads: list[str] = []

        def damaged(stream: Any, **options: Any) -> Any:
            reads.append(stream.session_id)
            if stream.session_id == "s01":
                raise errors.CorruptEvent("ada/s01", seq=1, reason="damaged")
            return read(stream, **options)

        monkeypatch.setattr(store.log, "read", damaged)
        page = store.overviews("ada", sort="title", limit=9)

        assert sorted(reads) == ["s00", "s01"]
        readable = {
            session.info.session_id: session.is_readable for session in page.sessions
        }
        assert readable == {"s00": True, "s01": False}


@pytest.mark.parametrize("events", [100, 1000])
def test_a_list_keeps_an_overview_that_is_newer_than_its_heads(
    db: str, monkeypatch: pytest.MonkeyPatch, events: int
) -> None:
    with refold.open(db) as store, refold.open(db) as other:
        stream = say(store, "s", events)
        index_session(store.log, stream, now=store.clock())
        infos = store.sessions("ada")
        append_after_heads(store, other, stream, monkeypatch)
        reads = count_reads(store, monkeypatch)
        overviews = Overviews(store.log, now=store.clock())

        selection = overviews.select(
            "ada", sort="title", matching=EVERY_SESSION, most_events=300
        )
        (sorted_session,) = overviews.of_entries(selection.entries, selection)
        (listed,) = overviews.of(infos, most_events=300)
        overview = overviews.of_session(stream, events)

        assert reads == []
        assert selection.left == 300
        assert sorted_session.is_current
        assert listed.is_current
        assert overview is not None
        assert overview.events == events + 1
        assert overview_seq(store, stream) == events + 1


@pytest.mark.parametrize("events", [100, 1000])
def test_summaries_after_a_newer_overview_use_up_no_bound(
    db: str, monkeypatch: pytest.MonkeyPatch, events: int
) -> None:
    with refold.open(db) as store, refold.open(db) as other:
        stream = say(store, "s", events)
        append_after_heads(store, other, stream, monkeypatch)
        # Another process has written a summary since.
        monkeypatch.setattr(store.log, "derived_seqs", lambda *_: {"s": 1})

        selection = Overviews(store.log, now=store.clock()).select(
            "ada", sort="title", matching=EVERY_SESSION, most_events=300
        )

        assert selection.left == 300
        assert overview_seq(store, stream) == events + 1


def test_the_duty_index_keeps_an_overview_that_is_newer_than_its_head(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refold.open(db) as store, refold.open(db) as other:
        stream = say(store, "s", 100)
        index_session(store.log, stream, now=store.clock())
        head = store.log.head(stream)
        say(other, "s", 1)
        other.overviews("ada", sort="title", limit=3)
        monkeypatch.setattr(store.log, "head", lambda _: head)
        reads = count_reads(store, monkeypatch)

        indexed = index_session(store.log, stream, now=store.clock())

        assert indexed.events == 0
        assert reads == []
        assert overview_seq(store, stream) == 101


def test_a_fold_of_a_part_keeps_an_overview_with_more_events(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refold.open(db) as store:
        stream = say(store, "s", 200)  # too short for a stored fold
        overviews = Overviews(store.log, now=store.clock())
        overviews.refresh(stream, 200)
        say(store, "s", 1000)

        (listed,) = overviews.of(store.sessions("ada"), most_events=400)
        overviews.fold(stream, 1200, most_events=100)

        assert (listed.overview.events, listed.is_current) == (400, False)
        assert overview_seq(store, stream) == 500
        store.log.drop_view(stream, "overview_fold" + OVERVIEW.removeprefix("overview"))
        kept = overviews.fold(stream, 1200, most_events=300)
        assert kept.events == 500
        assert overview_seq(store, stream) == 500


def test_the_duty_index_reports_progress_in_a_long_session(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refold.open(db) as store:
        say(store, "long", 3000)
        worker = Worker(store, duties={"index": 60})
        seconds = [0.0]
        longest_silence = [0.0]
        monkeypatch.setattr(worker, "_now", lambda: int(seconds[0] * 1_000_000))
        worker.progressed_at = 0
        worker._next_list_at = 0
        worker._next_work_at = 0
        read = store.log.read

        def slow_read(stream: Any, **options: Any) -> Any:
            seconds[0] += STUCK_SEC / 2
            longest_silence[0] = max(longest_silence[0], worker.silent_sec())
            return read(stream, **options)

        monkeypatch.setattr(store.log, "read", slow_read)
        worker.round()

        assert worker.counts == {("index", "done"): 1}
        assert seconds[0] > 2 * STUCK_SEC
        assert longest_silence[0] <= STUCK_SEC / 2


def test_unreadable_sessions_of_several_users_are_named_with_their_user(
    db: str,
) -> None:
    with refold.open(db) as store:
        for user_id in ("ada", "bob"):
            session = store.session(user_id=user_id, session_id="s")
            session.append(refold.UserInput(text="tea"))
            lose_key(store, "s", user_id=user_id)
    with refold.open(db) as store:
        for options in ({}, {"limit": 1}, {"sort": "title", "limit": 1}):
            page = store.overviews(**options)
            assert page.unreadable == ("ada/s", "bob/s")
            assert page.unreadable_total == 2
        assert store.overviews("bob", sort="title", limit=1).unreadable == ("s",)


def test_a_page_names_at_most_100_unreadable_sessions(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = MOST_UNREADABLE + 2
    with refold.open(db) as store:
        for number in range(count):
            say(store, f"s{number:03}", 1)

        def damaged(stream: Any, **_: Any) -> Any:
            raise errors.CorruptEvent(stream.session_id, seq=1, reason="damaged")

        monkeypatch.setattr(store.log, "read", damaged)
        names = tuple(f"s{number:03}" for number in range(MOST_UNREADABLE))
        for options in ({}, {"limit": count}, {"sort": "title", "limit": 1}):
            page = store.overviews("ada", descending=False, **options)
            assert page.unreadable == names
            assert page.unreadable_total == count
