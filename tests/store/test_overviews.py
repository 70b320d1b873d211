"""A list of sessions shows current overviews, in any order, and never too much work."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters.sql.sqlite import SqliteDatabase
from refold.domain.envelope import Draft, Meta, microseconds
from refold.domain.errors import InvalidConfiguration, InvalidEvent
from refold.domain.ids import StreamId, written
from refold.domain.ports import StoredView
from refold.projections import models
from refold.store import SessionStore
from refold.store.appends import Order
from refold.store.overviews import (
    OVERVIEW,
    SORTS,
    OverviewFilter,
    Overviews,
    Sort,
    by_day,
)

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SessionStore]:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))
    with refold.open(f"sqlite:///{tmp_path / 'refold.db'}") as opened:
        yield opened


def run(store: SessionStore, name: str, *, days: int = 0, failures: int = 0) -> None:
    session = store.session(user_id="ada", session_id=name)
    ts = NOON + timedelta(days=days)
    session.append(refold.UserInput(text=f"Fix {name}"), ts=ts)
    for number in range(failures):
        call_id = f"c{number}"
        session.append(refold.ToolCall(call_id=call_id, tool_name="bash"), ts=ts)
        result = refold.ToolResult(call_id=call_id, content="no", status="error")
        session.append(result, ts=ts)


def names(store: SessionStore, **options: object) -> list[str]:
    page = store.overviews("ada", **options)  # type: ignore[arg-type]  # as a caller
    return [session.info.session_id for session in page.sessions]


def test_the_newest_event_comes_first_and_not_the_newest_write(
    store: SessionStore,
) -> None:
    run(store, "a", days=1)
    run(store, "b", days=3)
    run(store, "c", days=2)

    assert names(store) == ["b", "c", "a"]
    assert names(store, sort="session") == ["a", "b", "c"]
    assert names(store, descending=False) == ["a", "c", "b"]


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("descending", [None, True, False])
def test_pages_of_every_order_have_each_session_once(
    store: SessionStore, sort: Sort, descending: bool | None
) -> None:
    for number in range(7):
        run(store, f"s{number}", days=number % 3, failures=number % 2)
    whole = names(store, sort=sort, descending=descending)

    paged: list[str] = []
    after: str | None = None
    while True:
        page = store.overviews(
            "ada",
            sort=sort,
            descending=descending,
            after=after,
            limit=2,
        )
        paged += [session.info.session_id for session in page.sessions]
        after = page.next
        if after is None:
            break

    assert paged == whole
    assert sorted(whole) == [f"s{number}" for number in range(7)]


def test_filters(store: SessionStore) -> None:
    run(store, "a", days=1)
    run(store, "b", days=2, failures=1)
    store.session(user_id="ada", session_id="a").label(project="Alpha")

    def matching(**fields: object) -> list[str]:
        return names(store, matching=OverviewFilter(**fields))  # type: ignore[arg-type]  # by name

    assert matching(text="fix A") == ["a"]
    assert matching(project="alpha") == ["a"]
    assert matching(failed=True) == ["b"]
    assert matching(since=NOON + timedelta(days=2)) == ["b"]
    assert matching(until=NOON + timedelta(days=2)) == ["a"]
    assert matching(state="live") == []
    assert matching(state="ended") == ["b", "a"]
    assert names(store, label={"project": "Alpha"}) == ["a"]


def test_a_session_is_live_for_an_hour_after_its_newest_event(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append(refold.UserInput(text="hi"))
    assert store.overviews("ada").sessions[0].is_live

    session.end()
    assert not store.overviews("ada").sessions[0].is_live


def test_new_events_are_folded_and_a_second_list_folds_nothing(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(store, "a")
    assert store.overviews("ada").sessions[0].overview.turns == 1
    run(store, "a")
    assert store.overviews("ada").sessions[0].overview.turns == 2

    monkeypatch.setattr(Overviews, "fold", None)
    assert store.overviews("ada").sessions[0].overview.turns == 2


def test_a_list_leaves_the_cached_names_of_streams_alone(store: SessionStore) -> None:
    for name in ("a", "ü b/c", "d"):
        run(store, name)
    store.overviews("ada")
    written.cache_clear()

    assert len(store.overviews("ada").sessions) == 3
    assert written.cache_info().currsize == 0


def test_a_long_session_goes_on_from_its_stored_fold(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append([refold.UserInput(text=f"{n}") for n in range(300)])
    store.overviews("ada")
    session.append(refold.UserInput(text="more"))
    reads: list[int] = []
    read = store.log.read

    def counted(stream: StreamId, **options: object) -> object:
        events = read(stream, **options)  # type: ignore[arg-type]  # passed on
        reads.append(len(events))
        return events

    store.log.read = counted  # type: ignore[method-assign,assignment]  # counts

    assert store.overviews("ada").sessions[0].overview.turns == 301
    assert sum(reads) == 1


def test_work_is_bounded_and_what_is_missing_is_said(store: SessionStore) -> None:
    run(store, "a", failures=2)
    run(store, "b", failures=2)
    infos = store.sessions("ada")

    listed = Overviews(store.log, now=store.clock()).of(infos, most_events=5)

    assert sorted(session.is_current for session in listed) == [False, True]
    assert store.overviews("ada").unread == 0


def test_a_session_over_the_bound_is_read_in_several_lists(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append([refold.UserInput(text=f"{n}") for n in range(600)])
    infos = store.sessions("ada")

    turns: list[tuple[int, bool]] = []
    for _ in range(3):
        (listed,) = Overviews(store.log, now=store.clock()).of(infos, most_events=256)
        turns.append((listed.overview.turns, listed.is_current))

    assert turns == [(256, False), (512, False), (600, True)]


@pytest.mark.parametrize("column", ["through_seq", "derived_seq"])
def test_a_seq_of_another_type_hides_no_list(
    store: SessionStore, tmp_path: Path, column: str
) -> None:
    run(store, "a")
    run(store, "b")
    store.overviews("ada")
    with sqlite3.connect(tmp_path / "refold.db") as database:
        database.execute(f"UPDATE views SET {column}='x' WHERE session_id='a'")

    titles = [session.overview.title for session in store.overviews("ada").sessions]

    assert titles == ["Fix b", "Fix a"]


@pytest.mark.parametrize("change", ["erase", "title"])
@pytest.mark.parametrize("descending", [False, True])
def test_a_page_goes_on_where_the_last_session_changed_or_is_gone(
    store: SessionStore, change: str, *, descending: bool
) -> None:
    for number in range(6):
        run(store, f"s{number}")
    options = {"sort": "title", "descending": descending, "limit": 2}
    whole = names(store, **{**options, "limit": None})
    first = store.overviews("ada", **options)  # type: ignore[arg-type]  # as a caller
    last = first.sessions[-1].info.session_id
    if change == "erase":
        store.erase("ada", session_id=last, reason="asked for it")
    else:
        title = "a" if descending else "z"
        store.session(user_id="ada", session_id=last).label(title=title)

    assert names(store, **options, after=first.next) == whole[2:4]


@pytest.mark.parametrize("descending", [False, True])
def test_sessions_without_a_title_come_last(
    store: SessionStore, *, descending: bool
) -> None:
    run(store, "a")
    run(store, "b")
    store.session(user_id="ada", session_id="c").append(
        refold.AgentResponse(text="hello")
    )

    listed = names(store, sort="title", descending=descending)

    assert listed == (["b", "a", "c"] if descending else ["a", "b", "c"])


def test_a_session_with_a_time_in_the_future_is_not_live(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append(refold.UserInput(text="hi"), ts=NOON.replace(year=2999))

    assert not store.overviews("ada").sessions[0].is_live


def test_new_prices_change_the_dollars_of_a_stored_overview(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "_registered", {})
    session = store.session(user_id="ada", session_id="s")
    meta = Meta(model="our-own-model", usage={"input_tokens": 1_000_000})
    draft = Draft(refold.AgentResponse(text="hi"), meta=meta)
    inputs = [Draft(refold.UserInput(text=f"{n}")) for n in range(300)]
    session.writer.append(Order(session.stream, (draft, *inputs)))
    assert store.overviews("ada").sessions[0].overview.unpriced == 1

    models.register_model(
        "our-own-model", context_tokens=1000, prices={"input": 2.0, "output": 4.0}
    )

    overview = store.overviews("ada").sessions[0].overview
    assert (overview.dollars, overview.unpriced) == (2.0, 0)


def test_a_damaged_overview_is_folded_again(store: SessionStore) -> None:
    run(store, "a")
    store.overviews("ada")
    stream = StreamId("ada", "a")
    stored = store.log.load_view(stream, OVERVIEW)
    assert stored is not None
    damaged = StoredView(1, 0, {"overview": ["x"]})
    assert store.log.save_view(stream, OVERVIEW, damaged, replaces=1)

    assert store.overviews("ada").sessions[0].overview.title == "Fix a"


def test_an_erased_session_and_internal_ones_are_not_listed(
    store: SessionStore,
) -> None:
    run(store, "a")
    run(store, "b")
    store.overviews("ada")
    store.erase("ada", session_id="a", reason="asked for it")

    assert names(store) == ["b"]
    assert store.log.view_names("ada", "a") == []


def test_days_are_grouped_in_order(store: SessionStore) -> None:
    run(store, "a", days=1)
    run(store, "b", days=1)
    run(store, "c", days=0)

    days = [
        (day, len(sessions))
        for day, sessions in by_day(store.overviews("ada").sessions)
    ]

    assert days == [("2026-02-02", 2), ("2026-02-01", 1)]


def test_an_unknown_order_and_a_wrong_place_are_refused(store: SessionStore) -> None:
    run(store, "a")
    with pytest.raises(InvalidConfiguration):
        store.overviews("ada", sort="size")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidEvent):
        store.overviews("ada", after="x~a")
    for after in ("5", "5~a", "~a", "row0.1~a", "row-1.1~a"):
        with pytest.raises(InvalidEvent):
            store.overviews("ada", sort="title", after=after)
    with pytest.raises(InvalidEvent):
        store.overviews("ada", after="row1.1~a")
    with pytest.raises(InvalidConfiguration):
        store.overviews(after="5~a")


def test_sub_agents_name_their_parent(store: SessionStore) -> None:
    run(store, "main")
    run(store, "main~agent")
    run(store, "other~agent")

    parents = {
        session.info.session_id: session.parent
        for session in store.overviews("ada").sessions
    }

    assert parents == {"main": "", "main~agent": "main", "other~agent": ""}


def test_a_page_of_the_newest_sessions_reads_no_other_session(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        run(store, f"s{number:02}", days=number, failures=1)
    store.overviews("ada")
    rows: list[int] = []
    fetch = SqliteDatabase._fetch

    def counted(database: SqliteDatabase, *arguments: Any) -> Any:
        fetched = fetch(database, *arguments)
        rows.append(len(fetched))
        return fetched

    monkeypatch.setattr(SqliteDatabase, "_fetch", counted)
    for sort in ("last", "session"):
        rows.clear()

        page = store.overviews("ada", sort=sort, limit=5)

        # The sessions of the page and the next one, their number, their overviews,
        # and their derived streams.
        assert sorted(rows) == [0, 1, 5, 6]
        assert [session.overview.failures for session in page.sessions] == [1] * 5
        assert page.total == 60


def test_a_page_of_the_newest_sessions_folds_only_these(store: SessionStore) -> None:
    for number in range(6):
        run(store, f"s{number}", days=number)

    page = store.overviews("ada", limit=2)

    assert [session.overview.title for session in page.sessions] == ["Fix s5", "Fix s4"]
    assert page.unread == 0
    assert store.log.view_names("ada", "s5")
    assert store.log.view_names("ada", "s3") == []


def test_a_label_or_a_redaction_moves_no_session_to_the_newest(
    store: SessionStore,
) -> None:
    run(store, "a", days=1)
    run(store, "b", days=2)
    store.session(user_id="ada", session_id="a").label(project="Alpha")
    store.session(user_id="ada", session_id="a").label(team="red")

    page = store.overviews("ada", limit=1)

    assert [session.info.session_id for session in page.sessions] == ["b"]
    assert page.next is not None
    (second,) = store.overviews("ada", limit=1, after=page.next).sessions
    assert second.info.session_id == "a"
    assert second.last_at == microseconds(NOON + timedelta(days=1))


def test_pages_of_a_label_have_only_its_sessions(store: SessionStore) -> None:
    for number in range(4):
        run(store, f"s{number}", days=number)
    for name in ("s0", "s2", "s3"):
        store.session(user_id="ada", session_id=name).label(team="red")

    page = store.overviews("ada", label={"team": "red"}, limit=2)

    assert [session.info.session_id for session in page.sessions] == ["s3", "s2"]
    assert page.total == 3
    rest = store.overviews("ada", label={"team": "red"}, limit=2, after=page.next)
    assert [session.info.session_id for session in rest.sessions] == ["s0"]
    assert store.overviews("nobody", label={"team": "red"}, limit=2).total == 0


def test_a_page_leaves_out_erased_and_internal_sessions(store: SessionStore) -> None:
    for number in range(3):
        run(store, f"s{number}", days=number)
    store.user("ada").opt_out()  # recorded in an internal session
    store.erase("ada", session_id="s1", reason="asked for it")

    page = store.overviews("ada", limit=5)

    assert [session.info.session_id for session in page.sessions] == ["s2", "s0"]
    assert page.total == 2


def test_a_page_names_a_parent_on_another_page(store: SessionStore) -> None:
    run(store, "main", days=1)
    run(store, "main~agent", days=2)

    (session,) = store.overviews("ada", limit=1).sessions

    assert (session.info.session_id, session.parent) == ("main~agent", "main")


def test_a_page_without_a_user_is_that_of_the_only_one(store: SessionStore) -> None:
    run(store, "a", days=1)
    run(store, "b", days=2)
    page = store.overviews(limit=1)
    assert [session.info.session_id for session in page.sessions] == ["b"]
    assert store.log.view_names("ada", "a") == []

    other = store.session(user_id="bob", session_id="c")
    other.append(refold.UserInput(text="hi"), ts=NOON + timedelta(days=3))

    page = store.overviews(limit=2)
    assert [session.info.session_id for session in page.sessions] == ["c", "b"]
    assert page.total == 3


@pytest.mark.parametrize("after", ["x~a", "nan~a", "inf~a", "5", "~a", "1e400~a"])
def test_a_page_after_no_place_is_refused(store: SessionStore, after: str) -> None:
    run(store, "a")

    with pytest.raises(InvalidEvent):
        store.overviews("ada", after=after, limit=2)
    assert store.overviews("ada", after="1e300~a", limit=2).total == 1


@pytest.mark.parametrize("name", ["a\0", "\ud800"])
def test_a_page_after_a_name_that_no_session_has_is_refused(
    store: SessionStore, name: str
) -> None:
    run(store, "a")

    with pytest.raises(InvalidEvent):
        store.overviews("ada", after=f"5~{name}", limit=2)
    with pytest.raises(InvalidEvent):
        store.overviews("ada", sort="session", after=name, limit=2)


@pytest.mark.parametrize("sort", ["last", "session"])
def test_a_page_can_have_more_sessions_than_a_database_counts(
    store: SessionStore, sort: Sort
) -> None:
    run(store, "a")

    assert names(store, sort=sort, limit=2**70) == ["a"]
