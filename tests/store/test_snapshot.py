"""A context is built from one read; wrong hints about that read change nothing."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

import refold
from refold.adapters.rows import EncryptedEvent, EncryptingMapper, SnapshotRows
from refold.adapters.sql.recorder import Recorder
from refold.domain.envelope import Envelope
from refold.domain.ports import PAGE
from refold.projections.context import protected
from refold.store import Session, SessionStore
from refold.testing.event_log import user_inputs
from tests.support.stores import open_at
from tests.support.talking import talk

WINDOW = "turn_window:full_turns=2,cached_turns=1"
HISTORY = (
    "history_summary:trigger_on_history_size_chars=500,"
    "history_tail_size_chars_to_exclude=300,min_tail_exchanges=1"
)


@pytest.fixture
def compacted(session: Session) -> Session:
    """A session whose view is stored, with newer events after it."""
    talk(session, 12)
    while session.compact(WINDOW) is not None:
        pass
    return talk(session, 2)


Reopened = Callable[[], AbstractContextManager[Session]]


@pytest.fixture
def reopened(store_url: str, tmp_path: Path) -> Reopened:
    """Opens the session in another store, which has cached nothing."""

    @contextmanager
    def reopen() -> Iterator[Session]:
        with open_at(store_url, tmp_path) as store:
            yield store.session(user_id="ada", session_id="s-1")

    return reopen


def set_hints(url: str, main: str, derived: str) -> None:
    """Make every stored view claim that it shows these seqs."""
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

    set_hints(store_url, main, derived)

    assert compacted.context(WINDOW).digest == before.digest


def test_the_stored_view_and_the_log_give_the_same_context(
    store: SessionStore, compacted: Session
) -> None:
    stored = compacted.context(WINDOW)

    store.log.drop_views("ada", "s-1")

    assert compacted.context(WINDOW) == stored


@pytest.mark.parametrize("more", [PAGE - 1, PAGE, PAGE + 1])
def test_a_context_shows_every_event_of_the_pages_after_the_stored_view(
    memory: SessionStore, more: int
) -> None:
    session = memory.session(user_id="ada", session_id="s-1")
    session.append(user_inputs(*map(str, range(70))))
    assert session.context("keep_all").at == 70
    session.append(user_inputs(*map(str, range(70, 70 + more))))

    view = session.context("keep_all")

    assert view.at == 70 + more
    assert str(view.messages).count("'text': ") == 70 + more


def test_damage_outside_the_context_does_not_matter(
    tmp_path: Path, sqlite_url: str
) -> None:
    with refold.open(sqlite_url) as store:
        session = talk(store.session(user_id="ada", session_id="s-1"), 12)
        while session.compact(WINDOW) is not None:
            pass
        before = session.context(WINDOW)
        damage = "UPDATE events SET body=x'00'"
        with create_engine(sqlite_url).begin() as connection:
            connection.execute(text("DROP TRIGGER events_refuse_update"))
            connection.execute(text(f"{damage} WHERE stream='main' AND seq=2"))
        set_hints(sqlite_url, "[[1, 24]]", "[]")

        assert session.context(WINDOW) == before


def test_a_missing_session_has_no_context(store: SessionStore) -> None:
    with pytest.raises(refold.SessionNotFound):
        store.session(user_id="ada", session_id="none").context(WINDOW)


def test_an_erased_session_has_no_context(
    store: SessionStore, compacted: Session
) -> None:
    store.erase("ada", "asked for", session_id="s-1")

    with pytest.raises(refold.errors.Erased):
        compacted.context(WINDOW)


@pytest.fixture
def session_with_call(store: SessionStore) -> Session:
    """A session with a call, whose rows were decrypted for a context before."""
    session = store.session(user_id="ada", session_id="s-1")
    call = refold.ToolCall(call_id="c", tool_name="ls", arguments={"deep": [{"a": 1}]})
    result = refold.ToolResult(call_id="c", content=[{"type": "text", "text": "b"}])
    session.append([refold.UserInput(text="list the files"), call, result], agent="one")
    session.context("keep_all")
    return session


@pytest.fixture
def decrypted_seqs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seqs of the rows that are decrypted from now on."""
    seqs: list[int] = []
    decrypt = EncryptingMapper._decrypt

    def recording_decrypt(mapper: EncryptingMapper, row: EncryptedEvent) -> bytes:
        seqs.append(row.seq)
        return decrypt(mapper, row)

    monkeypatch.setattr(EncryptingMapper, "_decrypt", recording_decrypt)
    return seqs


def test_a_context_decrypts_only_new_rows(
    session_with_call: Session, decrypted_seqs: list[int]
) -> None:
    before = session_with_call.context("keep_all")
    session_with_call.append(refold.AgentResponse(text="done"))

    view = session_with_call.context("keep_all")

    assert view.messages[:-1] == before.messages
    assert decrypted_seqs == [4]


def test_changes_of_one_reader_are_invisible_to_others(
    session_with_call: Session,
) -> None:
    session_with_call.context("keep_all")  # now its rows are cached
    shown = str(session_with_call.context("keep_all").messages)

    for message in session_with_call.context("keep_all").messages:
        for block in message["content"]:
            block.get("input", {"deep": [{}]})["deep"][0]["a"] = "changed"
            if isinstance(block.get("content"), list):
                block["content"][0]["text"] = "changed"

    assert str(session_with_call.context("keep_all").messages) == shown


def test_cached_rows_give_the_same_events(session_with_call: Session) -> None:
    read = session_with_call.events()

    session_with_call.context("keep_all")
    cached = session_with_call.writer.log.snapshot(
        session_with_call.stream, "keep_all"
    ).new

    assert [event.to_json() for event in cached] == [event.to_json() for event in read]
    assert [event.blobs for event in cached] == [event.blobs for event in read]


def test_a_row_changed_after_caching_is_not_shown_from_the_cache(
    tmp_path: Path, sqlite_url: str
) -> None:
    with refold.open(sqlite_url) as store:
        session = talk(store.session(user_id="ada", session_id="s-1"), 2)
        session.context("keep_all")
        with create_engine(sqlite_url).begin() as connection:
            connection.execute(text("DROP TRIGGER events_refuse_update"))
            connection.execute(text("UPDATE events SET body=x'0100' WHERE seq=2"))

        with pytest.raises(refold.errors.CorruptEvent):
            session.context("keep_all")


@pytest.fixture
def rows_of_view(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that views named and snapshots read, from now on."""
    numbers: list[int] = []
    read = Recorder.snapshot

    def counting_read(recorder: Recorder, *args: Any, **options: Any) -> SnapshotRows:
        rows = read(recorder, *args, **options)
        numbers.append(len(rows.shown) + len(rows.summaries))
        return rows

    monkeypatch.setattr(Recorder, "snapshot", counting_read)
    return numbers


@pytest.mark.each_engine
def test_a_further_context_reads_only_events_after_the_view(
    compacted: Session, rows_of_view: list[int], reopened: Reopened
) -> None:
    """Also while the session grows, until another view is stored."""
    first = compacted.context(WINDOW)
    again = compacted.context(WINDOW)
    talk(compacted, 1)
    grown = compacted.context(WINDOW)

    assert rows_of_view[0] > 0
    assert rows_of_view[1:] == [0, 0]
    assert again == first
    with reopened() as fresh:
        assert fresh.context(WINDOW) == grown


@pytest.mark.each_engine
def test_another_view_is_read_in_the_same_statement(
    compacted: Session, rows_of_view: list[int], reopened: Reopened
) -> None:
    compacted.context(WINDOW)
    with reopened() as other:
        talk(other, 40)
        while other.compact(WINDOW) is not None:
            pass
        newest = other.context(WINDOW)
    rows_of_view.clear()

    assert compacted.context(WINDOW) == newest
    assert len(rows_of_view) == 1
    assert rows_of_view[0] > 0


@pytest.mark.each_engine
def test_another_view_of_the_same_events_is_not_taken_for_the_cached_one(
    store: SessionStore, compacted: Session, rows_of_view: list[int]
) -> None:
    first = compacted.context(WINDOW)
    name = compacted.settings.strategy(WINDOW).fingerprint
    view = store.log.load_view(compacted.stream, name)
    assert view is not None
    rows_of_view.clear()

    # The same content, encrypted again.
    store.log.drop_views("ada", "s-1")
    assert store.log.save_view(compacted.stream, name, view, replaces=0)

    assert compacted.context(WINDOW) == first
    assert [bool(number) for number in rows_of_view] == [False, True]


@pytest.mark.parametrize("turns", [1, 30])
def test_words_of_the_user_are_shortened_once_for_a_view(
    compacted: Session,
    monkeypatch: pytest.MonkeyPatch,
    turns: int,
    reopened: Reopened,
) -> None:
    compacted.context(WINDOW)
    shortened: list[int] = []
    words_of = protected.words_of

    def counted(row: Envelope) -> protected.Words | None:
        shortened.append(row.seq)
        return words_of(row)

    monkeypatch.setattr(protected, "words_of", counted)

    for _ in range(turns):
        talk(compacted, 1)
        view = compacted.context(WINDOW)

    # A view is stored again after 64 events.
    assert len(shortened) <= len(view.protected) * (turns * 2 // 64)
    with reopened() as fresh:
        assert fresh.context(WINDOW) == view


@pytest.mark.parametrize("strategy", [WINDOW, HISTORY])
def test_a_warm_store_shows_the_same_contexts_as_a_new_one(
    session: Session, strategy: str, reopened: Reopened
) -> None:
    """After appends, compactions, pins, and contexts of other strategies."""
    for number in range(8):
        talk(session, 9)
        session.append(refold.Planner(plan=[{"content": f"step {number}"}]))
        if number % 2:
            session.compact(strategy)
        if number % 3 == 1:
            session.append(refold.Pin(seqs=(number * 4 + 1, number * 4 + 2)))
        if number == 5:
            session.context("keep_all")
        warm = [session.context(strategy) for _ in range(3)]
        with reopened() as fresh:
            assert [fresh.context(strategy)] * 3 == warm


@pytest.mark.parametrize("erased", ["s-1", None], ids=["session", "user"])
def test_an_erasure_empties_the_caches(
    store: SessionStore, session_with_call: Session, erased: str | None
) -> None:
    ring = store.log.keys  # type: ignore[attr-defined]  # a store over SQL
    cache = weakref.ref(ring.session("ada", "s-1", now=None).decrypted)
    session_with_call.context("keep_all")
    assert len(cache().rows) == 3  # type: ignore[union-attr]  # it is there

    store.erase("ada", "asked for", session_id=erased)

    assert cache() is None


def test_rows_of_only_a_few_sessions_are_cached(memory: SessionStore) -> None:
    ring = memory.log.keys  # type: ignore[attr-defined]  # a store over SQL
    for number in range(34):
        session = memory.session(user_id="ada", session_id=f"s-{number}")
        session.append(user_inputs("a"))
        session.context("keep_all")

    rows = [
        len(ring.session("ada", f"s-{number}", now=None).decrypted.rows)
        for number in range(34)
    ]

    assert rows == [0, 0, *[1] * 32]


def test_events_of_views_of_only_a_few_sessions_are_cached(
    memory: SessionStore,
) -> None:
    ring = memory.log.keys  # type: ignore[attr-defined]  # a store over SQL
    for number in range(34):
        session = memory.session(user_id="ada", session_id=f"s-{number}")
        session.append(user_inputs(*map(str, range(70))))
        for _ in range(2):
            session.context("keep_all")

    cached = [
        ring.session("ada", f"s-{number}", now=None).decrypted.shown is not None
        for number in range(34)
    ]

    assert cached == [False, False, *[True] * 32]


def test_events_of_a_large_view_are_not_cached(memory: SessionStore) -> None:
    ring = memory.log.keys  # type: ignore[attr-defined]  # a store over SQL
    session = memory.session(user_id="ada", session_id="s-1")
    session.append(user_inputs(*(f"{n} {'x' * 9000}" for n in range(70))))

    first = session.context("keep_all")

    assert session.context("keep_all") == first
    assert ring.session("ada", "s-1", now=None).decrypted.shown is None


def test_a_large_state_is_not_cached(memory: SessionStore) -> None:
    ring = memory.log.keys  # type: ignore[attr-defined]  # a store over SQL
    session = memory.session(user_id="ada", session_id="s-1")
    session.append(user_inputs(*(f"{n} {'x' * 9000}" for n in range(60))))

    session.context("keep_all")

    rows = ring.session("ada", "s-1", now=None).decrypted.rows.values()
    assert 0 < len(rows) < 60
    assert sum(len(row.state) + len(row.plain) for row in rows) < 1024 * 1024
