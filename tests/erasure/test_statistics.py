"""After ``erase --vacuum`` the planner's statistics name no erased user."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

import refold
from refold.adapters.keys.master import MasterKeyFile
from refold.adapters.sql import statistics
from refold.store import SessionStore
from tests.support.postgres import Postgres
from tests.support.stores import open_at
from tests.support.waiting import until


@pytest.mark.parametrize("others", [0, 1])
def test_statistics_name_no_erased_user(
    postgres_url: str, tmp_path: Path, others: int
) -> None:
    query = "SELECT count(*) FROM pg_stats WHERE pg_stats::text LIKE '%zelda%'"
    with open_at(postgres_url, tmp_path) as store:
        for number in range(4):
            session = store.session(user_id="zelda", session_id=f"zelda-{number % 2}")
            session.append(refold.UserInput(text="hello"))
        for number in range(others):
            session = store.session(user_id=f"bob-{number}", session_id="s")
            session.append(refold.UserInput(text="hello"))
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("ANALYZE")
            before = connection.execute(query).fetchone()
            store.erase("zelda", "asked for it", vacuum=True)
            after = connection.execute(query).fetchone()
            left = connection.execute(
                "SELECT version(), tablename, attname FROM pg_stats "
                "WHERE pg_stats::text LIKE '%zelda%'"
            ).fetchall()

    assert before is not None
    assert before[0] > 0
    assert after == (0,), left


def files_containing(connection: psycopg.Connection[Any], text: bytes) -> list[str]:
    """Return the files of this database, and of shared tables, with the text."""
    connection.execute("CHECKPOINT")
    row = connection.execute("SHOW data_directory").fetchone()
    assert row is not None
    data = Path(row[0])
    row = connection.execute(
        "SELECT oid FROM pg_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    paths = [*(data / "base" / str(row[0])).iterdir(), *(data / "global").iterdir()]
    with_text: list[str] = []
    for path in paths:
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # the server removes files of dropped tables
            continue
        if text in content:
            with_text.append(str(path.relative_to(data)))
    return with_text


def test_no_byte_of_the_servers_tables_names_an_erased_user(
    postgres_url: str, tmp_path: Path
) -> None:
    with open_at(postgres_url, tmp_path) as store:
        for number in range(40):
            name = f"quetzal-session-{number % 4}"
            session = store.session(user_id="quetzal-user", session_id=name)
            session.append(refold.UserInput(text="hello"))
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("ANALYZE")
            assert files_containing(connection, b"quetzal-user")
            assert files_containing(connection, b"quetzal-session-1")

            store.erase("quetzal-user", "asked for it", vacuum=True)

            assert files_containing(connection, b"quetzal-user") == []
            assert files_containing(connection, b"quetzal-session-") == []


def _until_it_waits(connection: psycopg.Connection[Any]) -> None:
    """Wait until an erasure in this database looks for older transactions."""
    looks = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    looks += " AND pid <> pg_backend_pid() AND query LIKE '%backend_xmin%'"
    until(lambda: connection.execute(looks).fetchone() != (0,), "it waits")


def check_erasure_waits_for(
    older: psycopg.Connection[Any],
    store: SessionStore,
    connection: psycopg.Connection[Any],
) -> None:
    """Check that an erasure waits for a transaction, and then removes all bytes."""
    with ThreadPoolExecutor() as pool:
        erasure = pool.submit(store.erase, "quetzal-user", "asked", vacuum=True)
        _until_it_waits(connection)
        assert not erasure.done()
        older.rollback()
        done = erasure.result()

    assert done.unfinished == ""
    assert files_containing(connection, b"quetzal-user") == []


def test_deleted_rows_are_removed_after_the_last_transaction_that_sees_them(
    postgres_url: str, tmp_path: Path
) -> None:
    with (
        open_at(postgres_url, tmp_path) as store,
        psycopg.connect(postgres_url, autocommit=True) as connection,
        psycopg.connect(postgres_url) as older,
    ):
        session = store.session(user_id="quetzal-user", session_id="s")
        session.append(refold.UserInput(text="hello"))
        older.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        older.execute("SELECT pg_current_snapshot()")
        check_erasure_waits_for(older, store, connection)


def test_deleted_rows_are_removed_after_an_older_transaction_of_another_database(
    postgres_url: str, postgres: Postgres, tmp_path: Path
) -> None:
    with (
        open_at(postgres_url, tmp_path) as store,
        psycopg.connect(postgres_url, autocommit=True) as connection,
        psycopg.connect(postgres.url) as other,
    ):
        session = store.session(user_id="quetzal-user", session_id="s")
        session.append(refold.UserInput(text="hello"))
        other.execute("SELECT pg_current_xact_id()")
        check_erasure_waits_for(other, store, connection)


def test_a_transaction_that_keeps_deleted_rows_is_reported(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "PATIENCE", 0.1)
    with (
        open_at(postgres_url, tmp_path) as store,
        psycopg.connect(postgres_url) as older,
    ):
        session = store.session(user_id="quetzal-user", session_id="s")
        session.append(refold.UserInput(text="hello"))
        older.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        older.execute("SELECT pg_current_snapshot()")

        done = store.erase("quetzal-user", "asked", vacuum=True)

    assert "an older transaction sees" in done.unfinished


def test_statistics_of_the_key_store_contain_no_destroyed_key(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MasterKeyFile().create()
    monkeypatch.setenv("REFOLD_KEYS", postgres_url)
    query = "SELECT count(*) FROM pg_stats WHERE schemaname = 'refold_keys'"
    query += " AND tablename = 'session_keys' AND attname IN ('wrapped', 'user_ref')"
    with refold.open(postgres_url) as store:
        for number in range(4):
            session = store.session(user_id="ada", session_id=f"s-{number}")
            session.append(refold.UserInput(text="hello"))
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("ANALYZE")
            assert connection.execute(query).fetchone() == (2,)

            done = store.erase("ada", "asked for it", vacuum=True)

            assert connection.execute(query).fetchone() == (0,)
            assert done.unfinished == ""


def test_statistics_that_stay_are_reported(postgres_url: str, tmp_path: Path) -> None:
    with open_at(postgres_url, tmp_path) as store:
        session = store.session(user_id="ada", session_id="s")
        session.append([refold.UserInput(text="hello")] * 3)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("ANALYZE")
            # An object that depends on a column prevents setting its type again.
            connection.execute("CREATE VIEW names AS SELECT user_id FROM refold.events")

            done = store.erase("ada", "asked for it", vacuum=True)

    assert "refold.events.user_id" in done.unfinished
    assert any(
        "refold.events.user_id" in column for column in done.cleaned["statistics_left"]
    )
