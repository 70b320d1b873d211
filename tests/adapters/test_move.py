"""A move copies a store exactly, even during writes and kills, and closes it."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import func, select

import refold
from refold.adapters.sql import move as moving
from refold.adapters.sql.database import Database
from refold.adapters.sql.keystore import SqlKeyStore
from refold.adapters.sql.postgres import PostgresDatabase
from refold.opener import _database, move
from refold.store import SessionStore
from refold.store.exports import CopyRecords
from refold.testing.event_log import user_inputs
from tests.support import tampered, warm
from tests.support.postgres import Postgres
from tests.support.stores import lines
from tests.support.tampered import Tampered, log_of
from tests.support.waiting import until

DERIVED_TABLES = ("views", "leases")


def fill(case: Tampered) -> None:
    """Fill a store: all kinds of rows, a held erasure, consent, the access log."""
    tampered.fill(case)
    with case.store() as store:
        ada = store.session(user_id="ada", session_id="s-1")
        ada.fork(3, session_id="s-1-fork").append(user_inputs("elsewhere"))
        store.session(user_id="gus", session_id="held").append(user_inputs("not yet"))
        store.erase("gus", "he asked", grace=timedelta(days=1))
        store.session(user_id="hal", session_id="h-1").append(user_inputs("hello"))
        store.session(user_id="hal", session_id="h-2").append(user_inputs("hello"))
        store.erase("hal", "he asked", session_id="h-2")
        CopyRecords(store.writer, "events", "stdout").record("hal")
        store.seal()


@pytest.fixture(scope="module")
def _filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("filled")
    before = dict(os.environ)
    os.environ["REFOLD_ACCESS_LOG"] = "table"
    fill(Tampered(f"sqlite:///{folder / 'refold.db'}", folder))
    yield folder
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def case(_filled: Path, tmp_path: Path) -> Tampered:
    """A copy of a filled store on SQLite that no process has open."""
    shutil.copytree(_filled, tmp_path, dirs_exist_ok=True)
    copied = Tampered(f"sqlite:///{tmp_path / 'refold.db'}", tmp_path)
    with copied.store():
        return copied


def rows(url: str) -> dict[str, set[tuple[Any, ...]]]:
    """Return every row of a store except derived ones, by table."""
    database = _database(url)
    try:
        return {
            table.name: {tuple(row) for row in database.read(None, select(table))}
            for table in database.tables.metadata.sorted_tables
            if table.name not in DERIVED_TABLES
        }
    finally:
        database.close()


def problems(store: SessionStore) -> list[Any]:
    problems: list[Any] = []
    for _, verified in store.verify():
        problems += verified.problems
    return problems


def test_every_row_is_copied_unchanged(case: Tampered, postgres_url: str) -> None:
    before = rows(case.url)

    counts = move(case.url, to=postgres_url)

    assert counts == {name: len(table_rows) for name, table_rows in before.items()}
    assert all(before.values()), "a table is not put to the test"
    assert rows(postgres_url) == before


def test_a_moved_store_verifies_appends_and_erases(
    case: Tampered, postgres_url: str
) -> None:
    with case.store() as store:
        shown = store.session(user_id="ada", session_id="s-1").context(tampered.WINDOW)
        certificates = store.erasures.certificates()
    move(case.url, to=postgres_url)
    case.url = postgres_url

    with case.store() as store:
        session = store.session(user_id="ada", session_id="s-1")
        assert problems(store) == []
        assert session.context(tampered.WINDOW).digest == shown.digest
        assert session.append(user_inputs("once"), idempotency_key="k-1").duplicate
        assert session.append(user_inputs("after the move")).last_seq == shown.at + 1
        assert list(store.sessions("ada", label={"project": "tea"}))
        assert store.erasures.certificates() == certificates
        with pytest.raises(refold.errors.Frozen):
            store.session(user_id="fay", session_id="cold").append(user_inputs("more"))
        with pytest.raises(refold.Erased):
            store.session(user_id="eve", session_id="gone").events()
        store.erasures.restore("gus", "a mistake")
        assert store.session(user_id="gus", session_id="held").events()
        assert store.seal()
        store.erasures.release("ada", "a hold", "it is over")
        assert set(store.erase("ada", "she asked").left.values()) == {0}
        assert problems(store) == []


def test_a_follower_gets_new_events_after_the_moved_ones(
    case: Tampered, postgres_url: str
) -> None:
    move(case.url, to=postgres_url)
    case.url = postgres_url
    with case.store() as store:
        recorder = log_of(store).recorder
        last = max(row[0] for row in rows(case.url)["events"])
        # A transaction of another test on the same server delays the newest positions.
        until(lambda: recorder.max_notification_id() == last, "the moved events")

        store.session(user_id="ada", session_id="new").append(user_inputs("a", "b"))

        notifications = until(
            lambda: recorder.select_notifications(last, 10, inclusive_of_start=False),
            "the notifications of the two events",
        )
        assert [note.originator_version for note in notifications] == [1, 2]


def test_the_old_store_names_the_new_one(case: Tampered, postgres_url: str) -> None:
    with case.store() as store:
        writer = store.session(user_id="ada", session_id="s-1")
        before = rows(case.url)

        move(case.url, to=postgres_url)

        with pytest.raises(refold.StoreUnavailable, match="was moved to postgresql://"):
            writer.append(user_inputs("too late"))
        with pytest.raises(refold.StoreUnavailable, match="was moved to postgresql://"):
            store.session(user_id="new", session_id="s").append(user_inputs("too late"))
        with pytest.raises(refold.StoreUnavailable, match="was moved to postgresql://"):
            store.erase("hal", "he asked")
    with (
        pytest.raises(refold.StoreUnavailable, match="was moved to postgresql://"),
        case.store(),
    ):
        pass
    left = rows(case.url)
    assert {row[0] for row in left.pop("settings") - before.pop("settings")} == {
        "moved_to"
    }
    assert left == before


def test_a_repeated_move_does_nothing(case: Tampered, postgres_url: str) -> None:
    move(case.url, to=postgres_url)
    with Tampered(postgres_url, case.folder).store() as store:
        store.session(user_id="ada", session_id="new").append(user_inputs("since then"))
    before = rows(postgres_url)

    assert move(case.url, to=postgres_url) == {}

    assert rows(postgres_url) == before


def test_a_moved_store_cannot_be_moved_elsewhere(
    case: Tampered, postgres_url: str, postgres: Postgres
) -> None:
    move(case.url, to=postgres_url)
    other = postgres.create_database("elsewhere")

    with pytest.raises(refold.StoreUnavailable, match="was moved to postgresql://"):
        move(case.url, to=other)

    postgres.drop_database("elsewhere")


def test_an_interrupted_move_does_not_resume_once_the_store_is_elsewhere(
    case: Tampered, postgres_url: str, postgres: Postgres
) -> None:
    other = postgres.create_database("elsewhere")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        move(case.url, to=other, on_progress=interrupt)
    move(case.url, to=postgres_url)

    with pytest.raises(refold.StoreUnavailable, match="was moved to postgresql://"):
        move(case.url, to=other)

    with pytest.raises(refold.StoreUnavailable, match="being moved"):
        Tampered(other, case.folder).store().__enter__()
    postgres.drop_database("elsewhere")


def test_a_database_with_another_store_is_refused_and_unchanged(
    case: Tampered, postgres_url: str
) -> None:
    with Tampered(postgres_url, case.folder).store() as store:
        store.session(user_id="zoe", session_id="s").append(user_inputs("mine"))
    target = rows(postgres_url)
    source = rows(case.url)

    with pytest.raises(refold.InvalidConfiguration, match="into an empty database"):
        move(case.url, to=postgres_url)

    assert rows(postgres_url) == target
    assert rows(case.url) == source


def test_a_store_is_not_moved_onto_itself(case: Tampered, postgres_url: str) -> None:
    move(case.url, to=postgres_url)
    before = rows(postgres_url)

    with pytest.raises(refold.InvalidConfiguration, match="into an empty database"):
        move(postgres_url, to=postgres_url)

    assert rows(postgres_url) == before


def test_an_empty_store_is_not_moved_onto_itself(
    case: Tampered, postgres_url: str
) -> None:
    case.url = postgres_url
    with case.store():
        pass

    with pytest.raises(refold.InvalidConfiguration, match="into an empty database"):
        move(postgres_url, to=postgres_url)

    with case.store() as store:
        store.session(user_id="ada", session_id="s").append(user_inputs("still here"))


def test_a_missing_store_is_not_moved(tmp_path: Path, postgres_url: str) -> None:
    with pytest.raises(refold.StoreUnavailable, match="there is no store"):
        move(f"sqlite:///{tmp_path / 'none.db'}", to=postgres_url)


def test_a_half_moved_store_cannot_be_opened(
    case: Tampered, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(moving, "_check", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            move(case.url, to=postgres_url)

    with (
        pytest.raises(refold.StoreUnavailable, match="being moved"),
        Tampered(postgres_url, case.folder).store(),
    ):
        pass
    with case.store() as store:  # the old one was not closed
        store.session(user_id="ada", session_id="new").append(user_inputs("still here"))


def test_a_copy_that_differs_is_not_the_store(
    case: Tampered, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = moving.Move._compare

    def tampering(mover: moving.Move) -> dict[str, int]:
        heads = mover._target_tables.heads
        mover._target.run(None, heads.update().values(seq=heads.c.seq + 1))
        return compared(mover)

    monkeypatch.setattr(moving.Move, "_compare", tampering)

    with pytest.raises(refold.RefoldError, match="the copy differs \\(equal heads: "):
        move(case.url, to=postgres_url)

    monkeypatch.undo()
    before = rows(case.url)
    case.url = postgres_url
    assert move(f"sqlite:///{case.folder / 'refold.db'}", to=postgres_url)
    assert rows(postgres_url) == before


def test_the_last_step_outlasts_the_idle_timeout_of_the_server(
    postgres_url: str, tmp_path: Path
) -> None:
    with Tampered(postgres_url, tmp_path).store():
        pass
    database = _database(postgres_url)
    with database.writing() as connection:
        connection.exec_driver_sql("SET idle_in_transaction_session_timeout = '10s'")

        database.refuse_writes(connection, "elsewhere")

        shown = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout")
        assert shown.scalar() == "0"
        connection.rollback()
    database.close()


def test_two_concurrent_moves_are_one(
    case: Tampered, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = list[Any]()

    def second(_: int) -> None:
        if not refused:
            with pytest.raises(refold.StoreUnavailable, match="another process") as it:
                move(case.url, to=postgres_url)
            refused.append(it)

    assert move(case.url, to=postgres_url, on_progress=second)

    assert refused


def count_changes(url: str, to: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of times that a move changes a database."""
    count = 0

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            return real(*arguments, **options)

        return change

    with monkeypatch.context() as patched:
        for kind in (Database, PostgresDatabase):
            patched.setattr(kind, "change", counting(vars(kind)["change"]))
        move(url, to=to)
    return count


def test_a_killed_move_resumes_at_every_change(
    case: Tampered, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = rows(case.url)
    copy = case.folder / "kept.db"
    shutil.copy(case.folder / "refold.db", copy)
    monkeypatch.setattr(moving, "_ROWS_PER_COPY", 3)
    last = count_changes(case.url, postgres.create_database("counted"), monkeypatch)
    postgres.drop_database("counted")
    dice = random.Random(21)  # no secret
    points = {*dice.sample(range(1, last - 2), 5), last - 2, last - 1, last}

    for point in sorted(points):
        for rest in case.folder.glob("refold.db*"):
            rest.unlink()
        shutil.copy(copy, case.folder / "refold.db")
        to = postgres.create_database("killed")
        for when in ("after", "before"):
            process = warm.module("tests.support.mover", case.url, to, str(point), when)
            _, err = process.communicate()
            assert process.returncode in (-signal.SIGKILL, 0), err

        move(case.url, to=to)

        assert rows(to) == here, point
        postgres.drop_database("killed")


def test_concurrent_writers_lose_and_repeat_nothing(
    case: Tampered, postgres_url: str
) -> None:
    with case.store():
        writers = [
            warm.module("tests.support.writer", "load", case.url, name, size)
            for name, size in (("w-1", "1"), ("w-2", "7"))
        ]
        acknowledged = [int(lines(writer, 1)[0]) for writer in writers]

        move(case.url, to=postgres_url)

        for number, writer in enumerate(writers):
            out, err = writer.communicate()
            acknowledged[number] = int([str(acknowledged[number]), *out.split()][-1])
            assert "was moved to postgresql://" in err
    case.url = postgres_url
    with case.store() as store:
        for name, last in zip(("w-1", "w-2"), acknowledged, strict=True):
            events = store.session(user_id="ada", session_id=name).events()
            assert [event.seq for event in events] == list(range(1, last + 1))
        assert not [p for p in problems(store) if "w-" in str(p)]


def test_changes_between_two_rounds_are_copied(
    case: Tampered, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "_FEW_ROWS", -1)
    monkeypatch.setattr(moving, "_ROWS_PER_COPY", 3)
    acts = iter(
        (
            lambda s: s.keys.rotate_session("ada", session_id="s-1"),
            lambda s: s.erase("hal", "he asked"),
            lambda s: s.erasures.restore("gus", "a mistake"),
            lambda s: s.erasures.freeze("gus", "made up"),
            lambda s: s.session(user_id="ada", session_id="s-2").label(project="milk"),
            lambda s: s.session(user_id="ada", session_id="s-3").append(
                user_inputs("more")
            ),
            lambda s: s.seal(),
        )
    )
    with case.store() as store:

        def act_next(_: int) -> None:
            if act := next(acts, None):
                act(store)

        move(case.url, to=postgres_url, on_progress=act_next)

    assert next(acts, None) is None
    assert rows(postgres_url) == rows_without_moved(case.url)
    case.url = postgres_url
    with case.store() as store:
        assert not [p for p in problems(store) if p.code == "corrupt"]


def rows_without_moved(url: str) -> dict[str, set[tuple[Any, ...]]]:
    all_rows = rows(url)
    all_rows["settings"] = {row for row in all_rows["settings"] if row[0] != "moved_to"}
    return all_rows


def test_keys_move_to_a_shared_key_store(
    case: Tampered, postgres_url: str, postgres: Postgres
) -> None:
    keys = postgres.create_database("moved_keys")
    with case.store():
        move(case.url, to=postgres_url, keys_to=keys)

    with refold.open(postgres_url, keys=keys) as store:
        assert store.session(user_id="ada", session_id="s-1").events()
        with pytest.raises(refold.Erased):
            store.session(user_id="eve", session_id="gone").events()
        assert store.session(user_id="ada", session_id="new").append(user_inputs("x"))
    postgres.drop_database("moved_keys")


def test_keys_are_not_added_to_another_stores_keys(
    case: Tampered, postgres_url: str, tmp_path: Path
) -> None:
    others = f"sqlite:///{tmp_path / 'others.db'}"
    with refold.open(f"sqlite:///{tmp_path / 'other.db'}", keys=others) as store:
        store.session(user_id="zoe", session_id="s").append(user_inputs("mine"))

    with (
        case.store(),
        pytest.raises(refold.InvalidConfiguration, match="keys of another store"),
    ):
        move(case.url, to=postgres_url, keys_to=others)

    with case.store() as store:
        assert store.session(user_id="ada", session_id="s-1").append(
            user_inputs("here")
        )


def test_a_server_with_fewer_transactions_catches_up(
    case: Tampered, postgres_url: str, postgres: Postgres
) -> None:
    """Positions on PostgreSQL derive from the server's transaction ids."""
    move(case.url, to=postgres_url)
    database = _database(postgres_url)
    newest = database.read(None, select(func.max(database.tables.events.c.position)))
    database.close()
    ahead = (int(newest[0][0]) >> 20) + 5_000
    raised = _database(postgres_url)
    raised.advance_past(ahead << 20)  # type: ignore[attr-defined]  # PostgreSQL's
    raised.close()
    with Tampered(postgres_url, case.folder).store() as store:
        store.session(user_id="ada", session_id="s-1").append(user_inputs("far ahead"))
        before = rows(postgres_url)
    with (
        Postgres.start() as other,
        Tampered(postgres_url, case.folder).store() as writing,
    ):
        writer = writing.session(user_id="ada", session_id="s-1")
        to = other.create_database("behind")

        move(postgres_url, to=to)

        with pytest.raises(refold.StoreUnavailable, match="was moved to postgresql://"):
            writer.append(user_inputs("too late"))
        with Tampered(to, case.folder).store() as store:
            recorder = log_of(store).recorder
            last = max(row[0] for row in before["events"])
            until(lambda: recorder.max_notification_id() == last, "the moved events")
            store.session(user_id="ada", session_id="s-1").append(
                user_inputs("behind it")
            )
            until(lambda: (recorder.max_notification_id() or 0) > last, "the new event")
        assert rows(to)["heads"] != before["heads"]


def test_a_server_that_is_too_far_behind_is_refused(
    case: Tampered, postgres_url: str
) -> None:
    case.do("UPDATE tree_heads SET position = :far", far=(10**10) << 20)

    with pytest.raises(refold.errors.IncompatibleStore, match="pg_resetwal"):
        move(case.url, to=postgres_url)

    with psycopg.connect(postgres_url) as connection:
        namespace = connection.execute("SELECT to_regnamespace('refold')").fetchone()
    assert namespace == (None,)


def test_keys_are_not_copied_onto_themselves_or_into_nothing(
    case: Tampered, postgres_url: str
) -> None:
    with case.store():
        keys = os.environ["REFOLD_KEYS"]
        again = keys.replace("/keys.db", "/../home/keys.db")
        for place in (keys, again, "memory://"):
            with pytest.raises(refold.InvalidConfiguration, match="not the old one"):
                move(case.url, to=postgres_url, keys_to=place)
        with closing(SqlKeyStore(keys)) as key_store:
            assert key_store.get_setting("copying") is None
    with case.store() as store:
        store.session(user_id="ada", session_id="new").append(user_inputs("still here"))


def test_missing_keys_are_not_moved(
    case: Tampered, postgres_url: str, tmp_path: Path
) -> None:
    none = f"sqlite:///{tmp_path / 'misspelt.db'}"
    to = f"sqlite:///{tmp_path / 'moved.db'}"

    with pytest.raises(refold.KeyUnavailable, match="is empty"):
        move(case.url, to=postgres_url, keys=none, keys_to=to)

    with case.store() as store:
        store.session(user_id="ada", session_id="new").append(user_inputs("still here"))


def test_keys_that_stayed_are_not_reported_as_copied(
    case: Tampered, postgres_url: str, tmp_path: Path
) -> None:
    to = f"sqlite:///{tmp_path / 'moved.db'}"
    with case.store():
        move(case.url, to=postgres_url)

        with pytest.raises(refold.InvalidConfiguration, match="without its keys"):
            move(case.url, to=postgres_url, keys_to=to)


def test_a_finished_move_is_finished_with_its_keys(
    case: Tampered, postgres_url: str, tmp_path: Path
) -> None:
    to = f"sqlite:///{tmp_path / 'moved.db'}"
    with case.store():
        move(case.url, to=postgres_url, keys_to=to)

        assert move(case.url, to=postgres_url, keys_to=to) == {}
        assert move(case.url, to=postgres_url, keys=to, keys_to=to) == {}
    copied = SqlKeyStore(to)
    assert copied.get_setting("copying") is None
    copied.close()
