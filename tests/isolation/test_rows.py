"""In SQL, no role reaches rows or columns without a right, in any table."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Table
from sqlalchemy.types import Integer, LargeBinary

from refold.adapters.sql import tables
from refold.adapters.sql.queries import SCHEMA
from refold.adapters.sql.roles import RIGHTS
from tests.isolation.conftest import Template
from tests.support.postgres import Postgres
from tests.support.roles import Walled, set_up, walled

ALL: Final[dict[str, Table]] = {
    table.name: table
    for table in tables.build(SCHEMA, rowid=False).metadata.tables.values()
}
# How a row names its user: by name, or by a keyed hash in records of erasures.
WHOSE: Final = {
    name: next(column for column in ("user_id", "user_ref") if column in table.c)
    for name, table in ALL.items()
    if {"user_id", "user_ref"} & set(table.c.keys())
}
# Signed heads and hashes without names, and settings of the store.
OF_NOBODY: Final = ("leaves", "settings", "tree_heads")
# Records that every role may add, and none may change.
ADDED_TO: Final = ("audit",)
Rows = list[tuple[Any, ...]]
Driver = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture(scope="module")
def filled(postgres: Postgres, walled_template: Template) -> Iterator[Walled]:
    """A row of ada and one of bob in every table."""
    name = f"rows_{uuid.uuid4().hex[:12]}"
    url = postgres.create_database(name, like=walled_template.name)
    with psycopg.connect(url) as owner:
        for table in ALL.values():
            for number, user in enumerate(("ada", "bob"), start=1):
                owner.execute(*insert(table, row_of(table, user, number)))
    yield walled(url, walled_template.users)
    postgres.drop_database(name)


def row_of(table: Table, user: str, number: int) -> dict[str, Any]:
    """Return a row with a value in every column."""
    row: dict[str, Any] = {}
    for column in table.c:
        if isinstance(column.type, Integer):
            row[column.name] = number
        elif isinstance(column.type, LargeBinary):
            row[column.name] = f"{user} {number}".encode()
        else:
            row[column.name] = f"{user} {number}"
    fixed = {"user_id": user, "user_ref": user, "status": "open"}
    return {name: fixed.get(name, value) for name, value in row.items()}


def insert(table: Table, row: dict[str, Any]) -> tuple[sql.Composed, list[Any]]:
    columns = sql.SQL(", ").join(map(sql.Identifier, row))
    marks = sql.SQL(", ").join(sql.Placeholder() * len(row))
    query = sql.SQL("INSERT INTO {} ({}) VALUES ({})")
    return query.format(identifier(table), columns, marks), list(row.values())


def identifier(table: Table) -> sql.Identifier:
    return sql.Identifier(SCHEMA, table.name)


def rows(driver: Driver, table: Table, columns: str = "*") -> Rows:
    query = sql.SQL("SELECT " + columns + " FROM {} ORDER BY 1, 2")
    return driver.execute(query.format(identifier(table))).fetchall()


def stored_rows(walled: Walled, table: Table) -> Rows:
    with psycopg.connect(walled.owner, autocommit=True) as owner:
        return rows(owner, table)


def as_bob(driver: Driver) -> None:
    driver.execute("SELECT set_config('refold.user_id', 'bob', false)")


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_table_has_rights_and_is_walled(filled: Walled, name: str) -> None:
    assert any(name in tables for tables in RIGHTS.values()), f"no right to {name}"
    with psycopg.connect(filled.owner) as owner:
        query = "SELECT relrowsecurity FROM pg_class WHERE oid = %s::regclass"
        assert owner.execute(query, (f"{SCHEMA}.{name}",)).fetchone() == (True,)


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_connection_without_a_user_sees_no_rows(filled: Walled, name: str) -> None:
    if name in OF_NOBODY:
        return
    with psycopg.connect(filled.app, autocommit=True) as app:
        try:
            seen = rows(app, ALL[name])
        except psycopg.errors.InsufficientPrivilege:
            seen = []
    assert seen == []


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_connection_sees_only_its_users_rows(filled: Walled, name: str) -> None:
    with psycopg.connect(filled.app, autocommit=True) as app:
        as_bob(app)
        if name in OF_NOBODY:
            assert len(rows(app, ALL[name])) >= 2
        elif name in WHOSE:
            seen = rows(app, ALL[name], f"{WHOSE[name]}, 1")
            assert {row[0] for row in seen} == {"bob"}
        else:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                rows(app, ALL[name])


def test_the_user_is_forgotten_with_the_transaction(filled: Walled) -> None:
    with psycopg.connect(filled.app) as app:
        app.execute("SELECT set_config('refold.user_id', 'bob', true)")
        assert rows(app, ALL["events"])
        app.commit()

        assert rows(app, ALL["events"]) == []


def attempts(table: Table) -> Iterator[tuple[Any, ...]]:
    """Yield statements that add a row of ada, and that change each column."""
    whole = identifier(table)
    yield insert(table, row_of(table, "ada", 7))
    for column in table.c:
        value = row_of(table, "ada", 8)[column.name]
        change = sql.SQL("UPDATE {} SET {} = %s")
        yield change.format(whole, sql.Identifier(column.name)), [value]
    yield sql.SQL("DELETE FROM {}").format(whole), []
    yield sql.SQL("TRUNCATE {}").format(whole), []


@contextmanager
def trying(filled: Walled, url: str, user: str | None) -> Iterator[Driver]:
    """A transaction in which the owner has become another user; it is rolled back."""
    with psycopg.connect(filled.owner) as owner:
        become(owner, url)
        if user is not None:
            owner.execute("SELECT set_config('refold.user_id', %s, true)", (user,))
        yield owner
        owner.rollback()


def become(owner: Driver, url: str) -> None:
    role = sql.Identifier(url.split("//")[1].split(":")[0])
    owner.execute(sql.SQL("SET LOCAL ROLE {}").format(role))


def succeeds(owner: Driver, query: Any, values: Any) -> bool:
    """Whether the query is not refused; any error except a refusal is raised."""
    try:
        with owner.transaction():
            owner.execute(query, values)
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


@pytest.mark.parametrize("user", ["bob", None])
@pytest.mark.parametrize("name", sorted(ALL))
def test_no_role_changes_a_row_of_another_user(
    filled: Walled, name: str, user: str | None
) -> None:
    table = ALL[name]
    before = of_ada(stored_rows(filled, table), table)

    for attempt in list(attempts(table))[name in ADDED_TO :]:
        with trying(filled, filled.app, user) as owner:
            succeeds(owner, *attempt)
            owner.execute("RESET ROLE")

            assert of_ada(rows(owner, table), table) == before, attempt


def of_ada(all_rows: Rows, table: Table) -> Rows:
    """Return ada's rows, or all rows of a table without users."""
    if table.name not in WHOSE:
        return all_rows
    at = [column.name for column in table.c].index(WHOSE[table.name])
    return [row for row in all_rows if row[at] == "ada"]


def test_the_attempts_would_change_unprotected_rows(filled: Walled) -> None:
    table = ALL["views"]
    before = of_ada(stored_rows(filled, table), table)

    for attempt in attempts(table):
        with trying(filled, filled.owner, None) as owner:
            assert succeeds(owner, *attempt)
            assert of_ada(rows(owner, table), table) != before


@pytest.mark.parametrize("name", sorted(ALL))
def test_an_auditor_sees_everything_and_changes_nothing(
    filled: Walled, name: str
) -> None:
    with trying(filled, filled.auditor, None) as owner:
        assert rows(owner, ALL[name]) == stored_rows(filled, ALL[name])

        tried = list(attempts(ALL[name]))[name in ADDED_TO :]
        assert [attempt for attempt in tried if succeeds(owner, *attempt)] == []


READS: Final = {
    "app": ("bob", []),
    "writer": (None, ["heads.state"]),
    "sealer": (None, []),
}


@pytest.mark.parametrize("role", READS)
def test_only_roles_that_need_ciphertext_can_read_it(filled: Walled, role: str) -> None:
    user, needs = READS[role]
    encrypted = ("events.body", "blobs.body", "views.body", "heads.state")
    with trying(filled, getattr(filled, role), user) as owner:
        readable = []
        for column in encrypted:
            table, name = column.split(".")
            query = f"SELECT {name} FROM refold.{table} WHERE user_id = 'ada'"
            if succeeds(owner, query, []) and owner.execute(query).fetchall():
                readable.append(column)

    assert readable == needs


REFUSED: Final = {
    "writer": (
        "UPDATE refold.events SET body = ''",
        "UPDATE refold.events SET type = 'x'",
        "DELETE FROM refold.events",
        "DELETE FROM refold.heads",
        "UPDATE refold.heads SET session_id = 'x'",
        "UPDATE refold.heads SET status = 'erased'",
        "UPDATE refold.subjects SET epoch = 9",
        "INSERT INTO refold.subjects VALUES ('x', 'y', 'live', 1)",
        "INSERT INTO refold.subjects VALUES ('x', 'x', 'erased', 1)",
        "SELECT user_id FROM refold.blobs",
        "SELECT 1 FROM refold.views",
        "SELECT 1 FROM refold.erasures",
    ),
    "sealer": (
        "INSERT INTO refold.events (seq) VALUES (1)",
        "UPDATE refold.heads SET updated_at = 1",
        "UPDATE refold.leaves SET hash = ''",
        "UPDATE refold.tree_heads SET root = ''",
        "DELETE FROM refold.seals",
    ),
    "eraser": (
        "UPDATE refold.events SET type = 'x'",
        "UPDATE refold.events SET hash = ''",
        "UPDATE refold.certificates SET body = ''",
        "DELETE FROM refold.certificates",
        "UPDATE refold.leaves SET hash = ''",
        "DELETE FROM refold.leaves",
    ),
}


@pytest.mark.parametrize(
    ("role", "query"), [(role, query) for role in REFUSED for query in REFUSED[role]]
)
def test_a_role_can_do_no_more_than_its_work(
    filled: Walled, role: str, query: str
) -> None:
    with trying(filled, getattr(filled, role), None) as owner:
        assert not succeeds(owner, query, [])


def test_a_writer_cannot_reopen_a_session_under_erasure(filled: Walled) -> None:
    with psycopg.connect(filled.owner) as owner:
        owner.execute("UPDATE refold.heads SET status = 'erased'")
        become(owner, filled.writer)

        reopened = owner.execute("UPDATE refold.heads SET status = 'open'")

        assert reopened.rowcount == 0
        owner.rollback()


def test_a_reading_role_inherits_no_right_to_write(filled: Walled) -> None:
    with psycopg.connect(filled.app, autocommit=True) as app:
        as_bob(app)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            app.execute(*insert(ALL["events"], row_of(ALL["events"], "bob", 7)))
        app.execute("SET ROLE refold_writer")

        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            app.execute("SELECT body FROM refold.events")


def test_setting_up_the_roles_can_be_repeated(
    filled: Walled, postgres: Postgres
) -> None:
    before = catalogue(filled.owner)

    set_up(postgres, filled.owner)

    assert catalogue(filled.owner) == before
    assert before["policies"]


def catalogue(url: str) -> dict[str, list[str]]:
    """Return every policy, and every grant on our tables and their columns."""
    asked = {
        "policies": "SELECT * FROM pg_policies WHERE schemaname = 'refold'",
        "tables": "SELECT * FROM information_schema.role_table_grants "
        "WHERE table_schema = 'refold'",
        "columns": "SELECT * FROM information_schema.role_column_grants "
        "WHERE table_schema = 'refold'",
    }
    with psycopg.connect(url) as owner:
        return {
            name: sorted(map(str, owner.execute(query).fetchall()))
            for name, query in asked.items()
        }
