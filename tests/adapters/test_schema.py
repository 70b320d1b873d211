"""The database itself refuses changes of events; Refold uses only its own schema."""

from __future__ import annotations

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, Table, UniqueConstraint, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

import refold
from refold.adapters.sql import tables
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.schema import migrate
from refold.adapters.sql.sqlite import SqliteDatabase
from tests.support import warm
from tests.support.stores import ROOT, open_at


def raw(url: str) -> Engine:
    driver = url.replace("postgresql://", "postgresql+psycopg://")
    return create_engine(driver, poolclass=NullPool)


def prefix(url: str) -> str:
    return "refold." if url.startswith("postgresql") else ""


@pytest.mark.parametrize("verb", ["UPDATE {} SET type='x'", "DELETE FROM {}"])
def test_the_database_refuses_to_change_an_event(
    store_url: str, tmp_path: Path, verb: str
) -> None:
    with open_at(store_url, tmp_path) as store:
        store.session(user_id="ada", session_id="s").append(refold.UserInput(text="x"))

        statement = verb.format(prefix(store_url) + "events")
        with (
            pytest.raises(DBAPIError, match="events are immutable"),
            raw(store_url).begin() as connection,
        ):
            connection.execute(text(statement))
        assert len(store.session(user_id="ada", session_id="s").events()) == 1


def test_postgresql_refuses_to_truncate_events(
    postgres_url: str, tmp_path: Path
) -> None:
    with (
        open_at(postgres_url, tmp_path),
        pytest.raises(DBAPIError, match="events are immutable"),
        raw(postgres_url).begin() as connection,
    ):
        connection.execute(text("TRUNCATE refold.events"))


# Tables without user data: settings, the tree, and tables with keyed hashes only.
NOBODYS = {"settings", "leaves", "tree_heads"} | {
    "subjects",
    "erasures",
    "certificates",
    "holds",
    "audit",
}


@pytest.mark.parametrize("rowid", [True, False])
def test_every_key_of_user_data_starts_with_the_user(rowid: bool) -> None:
    for table in tables.build(None, rowid=rowid).metadata.tables.values():
        if table.name in NOBODYS:
            continue
        for names in unique_keys(table):
            if names != ("position",):
                assert names[0] == "user_id", table.name


def unique_keys(table: Table) -> list[tuple[str, ...]]:
    unique = [c for c in table.constraints if isinstance(c, UniqueConstraint)]
    keys = [table.primary_key, *unique]
    return [tuple(column.name for column in key.columns) for key in keys]


def test_a_database_of_a_newer_refold_stops_it(store_url: str, tmp_path: Path) -> None:
    with open_at(store_url, tmp_path):
        pass
    with raw(store_url).begin() as connection:
        connection.execute(
            text(
                f"UPDATE {prefix(store_url)}settings SET value='99' "
                "WHERE name='schema_version'"
            )
        )

    with pytest.raises(
        refold.errors.IncompatibleStore, match=r"schema 99.*upgrade Refold"
    ):
        open_at(store_url, tmp_path)


def test_a_store_from_before_export_records_is_upgraded(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        store.session(user_id="ada", session_id="s").append(refold.UserInput(text="x"))
    with raw(store_url).begin() as connection:
        connection.execute(text(f"DROP TABLE {prefix(store_url)}exports"))
        older = f"UPDATE {prefix(store_url)}settings SET value='2'"
        connection.execute(text(f"{older} WHERE name='schema_version'"))

    with open_at(store_url, tmp_path) as store:
        store.export_user("ada", tmp_path / "out")
        plan = store.erasures.plan("ada")

    assert [copy["location"] for copy in plan.copies or ()] == [str(tmp_path / "out")]


@pytest.mark.parametrize("value", ["", "x"])
def test_a_database_without_a_schema_version_is_refused(
    store_url: str, tmp_path: Path, value: str
) -> None:
    with open_at(store_url, tmp_path):
        pass
    changed = f"UPDATE {prefix(store_url)}settings SET value=:value"
    with raw(store_url).begin() as connection:
        here = " WHERE name='schema_version'"
        connection.execute(text(changed + here), {"value": value})

    with pytest.raises(refold.errors.IncompatibleStore, match="which schema"):
        open_at(store_url, tmp_path)


def test_a_database_of_another_program_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE songs (name)")
    before = path.read_bytes()

    with pytest.raises(refold.errors.IncompatibleStore, match="another program"):
        open_at(f"sqlite:///{path}", tmp_path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.glob("other.db*")] == ["other.db"]


def test_a_schema_of_another_program_is_unchanged(
    postgres_url: str, tmp_path: Path
) -> None:
    with raw(postgres_url).begin() as connection:
        connection.execute(text("CREATE SCHEMA refold"))
        connection.execute(text("CREATE TABLE refold.songs (name text)"))

    with pytest.raises(refold.errors.IncompatibleStore, match="another program"):
        open_at(postgres_url, tmp_path)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"\x89PNG" * 900])
def test_a_file_that_is_no_database_is_reported(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)

    with pytest.raises(refold.errors.IncompatibleStore, match="not a SQLite database"):
        open_at(f"sqlite:///{path}", tmp_path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///a.db?mode=ro",
        "sqlite:///a.db?synchronous=off",
        "mysql://x/y",
        "nonsense",
        "",
    ],
)
def test_a_wrong_url_is_a_wrong_configuration(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if not url:
        with refold.open(url):
            assert (tmp_path / "refold.db").exists()
        return
    with pytest.raises(refold.InvalidConfiguration):
        refold.open(url)


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(refold.StoreUnavailable, match="folder exists"):
        open_at(f"sqlite:///{tmp_path / 'none' / 'a.db'}", tmp_path)


def test_a_missing_server_is_reported_without_the_password(tmp_path: Path) -> None:
    with pytest.raises(refold.StoreUnavailable) as caught:
        open_at("postgresql://me:pa55word@127.0.0.1:1/db", tmp_path)
    assert "pa55word" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_many_concurrent_starts_create_one_schema(
    empty_url: str, tmp_path: Path
) -> None:
    parsed = make_url(empty_url)

    def store_id(_: int) -> str:
        sqlite = empty_url.startswith("sqlite")
        dialect = SqliteDatabase(parsed) if sqlite else PostgresDatabase(parsed)
        try:
            return migrate(dialect)
        finally:
            dialect.close()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(store_id, range(8)))) == 1
    with open_at(empty_url, tmp_path) as store:
        store.session(user_id="ada", session_id="s").append(refold.UserInput(text="x"))


FULL_DISK = """
import random, resource, signal
import refold
def incompressible():
    return refold.UserInput(text="".join(random.choices("abcdefgh ", k=5000)))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with refold.open() as store:
    session = store.session(user_id="ada", session_id="s")
    session.append(refold.UserInput(text="x"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
    written = 1
    try:
        while True:
            session.append([incompressible() for _ in range(3)])
            written += 3
    except refold.RefoldError as error:
        print(written, type(error).__name__, error)
"""


def test_a_full_disk_writes_nothing_of_the_append(
    sqlite_url: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "REFOLD_DB": sqlite_url}
    ran = warm.code(FULL_DISK, cwd=ROOT, environment=environment)
    output, _ = ran.communicate()

    written, kind, _ = output.split(maxsplit=2)
    assert kind == "StoreUnavailable"
    with open_at(sqlite_url, tmp_path) as store:
        assert len(store.session(user_id="ada", session_id="s").events()) == int(
            written
        )
        assert store.session(user_id="ada", session_id="s").append(
            refold.UserInput(text="on")
        )
