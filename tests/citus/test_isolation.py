"""On Citus each role can do its work, and reaches no row of another user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

import refold
from refold.adapters.sql import tables
from refold.adapters.sql.citus import CitusDatabase
from refold.adapters.sql.schema import migrate
from tests.isolation.test_roles_at_work import (
    test_an_agent_works_as_the_app_role_alone as test_an_agent_works,
    test_connections_serve_one_user_after_another as test_connections_serve_many,
    test_each_of_the_other_roles_does_its_work as test_the_others_do_their_work,
    test_groups_of_several_users_share_commits as test_groups_share_commits,
    test_reads_of_an_agent_are_counted as test_reads_are_counted,
    test_the_owner_works_as_before as test_the_owner_works,
)
from tests.isolation.test_wall import (
    test_a_dropped_statement_is_sent_again_for_the_same_user as test_a_forgotten_query,
    test_a_prepared_query_works_for_another_user as test_a_prepared_query,
    test_a_query_that_fails_leaves_no_user_behind as test_a_query_that_fails,
    test_a_query_without_its_user_gets_no_rows as test_a_forgetful_query,
    test_a_write_that_fails_leaves_no_user_behind as test_a_write_that_fails,
)
from tests.support.citus import Cluster
from tests.support.roles import Walled, set_up, users, walled as walled_at
from tests.support.stores import open_at
from tests.support.talking import talk

__all__ = [
    "test_a_forgetful_query",
    "test_a_forgotten_query",
    "test_a_prepared_query",
    "test_a_query_that_fails",
    "test_a_write_that_fails",
    "test_an_agent_works",
    "test_connections_serve_many",
    "test_groups_share_commits",
    "test_reads_are_counted",
    "test_the_others_do_their_work",
    "test_the_owner_works",
]

OF_USERS = [
    table.fullname
    for table in tables.build("refold", rowid=False).metadata.sorted_tables
    if "user_id" in table.c
]


@pytest.fixture
def walled(citus_url: str, cluster: Cluster) -> Iterator[Walled]:
    """An empty store whose roles are set up."""
    database = CitusDatabase(make_url(citus_url))
    migrate(database)
    database.close()
    set_up(cluster, citus_url, "citus")
    with users(cluster, citus_url) as names:
        yield walled_at(citus_url, names)


@pytest.fixture
def dialect(walled: Walled, tmp_path: Path) -> Iterator[CitusDatabase]:
    """As the app role, in a database with events of ada and of bob."""
    live(walled, tmp_path)
    dialect = CitusDatabase(make_url(walled.app))
    yield dialect
    dialect.close()


def live(walled: Walled, folder: Path) -> None:
    with open_at(walled.app, folder) as store:
        for user in ("ada", "bob", "eve"):
            session = talk(store.session(user_id=user, session_id="s-1"), 2)
            session.append(refold.UserInput(text="x" * 80_000), idempotency_key="k")
            session.context("turn_window")
            session.label(topic="one")


@contextmanager
def as_bob(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody in the app role who names bob, as Refold does."""
    with psycopg.connect(url) as app:
        app.execute("SET citus.propagate_set_commands = 'local'")
        app.execute("SET LOCAL refold.user_id = 'bob'")
        yield app


def test_a_connection_sees_only_the_rows_of_its_user(
    walled: Walled, tmp_path: Path
) -> None:
    live(walled, tmp_path)

    seen = dict[str, set[str]]()
    for table in OF_USERS:
        query = f"SELECT user_id FROM {table}"
        with psycopg.connect(walled.app) as app:
            assert app.execute(query).fetchall() == []  # type: ignore[arg-type, unused-ignore]  # no user's text
        with as_bob(walled.app) as app:
            seen[table] = {user for (user,) in app.execute(query)}  # type: ignore[arg-type, unused-ignore]  # the same

    assert {table for table, users in seen.items() if users} >= {
        f"refold.{name}" for name in ("heads", "events", "blobs", "receipts", "labels")
    }
    assert all(users <= {"bob"} for users in seen.values())


# Each would show rows of others if what is asked of machines forgot who asks.
ROUTES = {
    "all events": "SELECT user_id FROM refold.events",
    "one by name": "SELECT user_id FROM refold.events WHERE user_id = 'ada'",
    "an or": "SELECT user_id FROM refold.events WHERE user_id = 'ada' OR true",
    "a join": "SELECT e.user_id FROM refold.events e JOIN refold.heads h "
    "USING (user_id, session_id)",
    "a subquery": "SELECT user_id FROM refold.heads WHERE user_id IN "
    "(SELECT user_id FROM refold.events)",
    "a materialised part": "WITH found AS MATERIALIZED (SELECT user_id FROM "
    "refold.events) SELECT user_id FROM found",
    "a union": "SELECT user_id FROM refold.events UNION SELECT user_id FROM "
    "refold.blobs",
    "groups": "SELECT user_id FROM refold.events GROUP BY user_id",
    "a window": "SELECT first_value(user_id) OVER (PARTITION BY user_id) "
    "FROM refold.events",
    "a lock": "SELECT user_id FROM refold.heads WHERE user_id = 'ada' FOR SHARE",
    "the shards": "SELECT result FROM run_command_on_shards('refold.heads', "
    "'SELECT string_agg(user_id, '','') FROM %s') WHERE result <> ''",
    "the machines": "SELECT result FROM run_command_on_workers("
    "'SELECT string_agg(user_id, '','') FROM refold.heads') WHERE result <> ''",
}


@pytest.mark.parametrize("route", ROUTES)
def test_no_row_of_another_is_reached_through_the_coordinator(
    walled: Walled, tmp_path: Path, route: str
) -> None:
    live(walled, tmp_path)

    with as_bob(walled.app) as app:
        try:
            users = {str(value) for (value,) in app.execute(ROUTES[route])}  # type: ignore[arg-type, unused-ignore]  # no user's text
        except psycopg.errors.InsufficientPrivilege:
            users = set()

    assert users <= {"bob"}


@pytest.mark.parametrize("verb", ["UPDATE", "DELETE", "INSERT", "COPY", "TRUNCATE"])
def test_the_app_changes_no_event_of_anybody(
    walled: Walled, tmp_path: Path, verb: str
) -> None:
    live(walled, tmp_path)
    harm = {
        "UPDATE": "UPDATE refold.events SET body = '' WHERE user_id = 'bob'",
        "DELETE": "DELETE FROM refold.events WHERE user_id = 'bob'",
        "INSERT": "INSERT INTO refold.events SELECT * FROM refold.events "
        "WHERE user_id = 'bob'",
        "COPY": "COPY refold.events FROM PROGRAM 'true'",
        "TRUNCATE": "TRUNCATE refold.events",
    }[verb]

    with as_bob(walled.app) as app, pytest.raises(psycopg.Error):
        app.execute(harm)  # type: ignore[arg-type, unused-ignore]  # no user's text


def test_a_user_is_forgotten_with_the_transaction_on_every_machine(
    walled: Walled, tmp_path: Path
) -> None:
    live(walled, tmp_path)
    with as_bob(walled.app) as app:
        assert app.execute("SELECT 1 FROM refold.heads").fetchall()
        app.commit()

        assert app.execute("SELECT 1 FROM refold.heads").fetchall() == []


def test_a_name_that_looks_like_sql_is_a_name(walled: Walled, tmp_path: Path) -> None:
    name = "bob'; SET LOCAL refold.user_id = 'ada' --"
    live(walled, tmp_path)
    with open_at(walled.app, tmp_path) as store:
        talk(store.session(user_id=name, session_id="s-1"), 1)

        assert [session.user_id for session in store.sessions(name, internal=True)] == [
            name
        ]
        assert len(store.session(user_id=name, session_id="s-1").events()) == 2


def test_the_roles_can_be_set_up_again(walled: Walled, cluster: Cluster) -> None:
    set_up(cluster, walled.owner, "citus")

    with psycopg.connect(walled.owner) as owner:
        rows = owner.execute(
            "SELECT result FROM run_command_on_shards('refold.events', $$SELECT "
            "relrowsecurity AND EXISTS (SELECT 1 FROM pg_policy WHERE polrelid = c.oid)"
            " FROM pg_class c WHERE c.oid = '%s'::regclass$$)"
        ).fetchall()
    assert {value for (value,) in rows} == {"t"}


def test_roles_of_a_store_that_is_spread_later_are_closed_until_they_are_set_up(
    citus_url: str, cluster: Cluster, tmp_path: Path
) -> None:
    from refold.adapters.sql.postgres import PostgresDatabase

    unspread = PostgresDatabase(make_url(citus_url))
    migrate(unspread)
    unspread.close()
    set_up(cluster, citus_url)
    with users(cluster, citus_url) as names:
        walled = walled_at(citus_url, names)
        database = CitusDatabase(make_url(citus_url))
        database.spread_tables()
        database.close()
        with as_bob(walled.app) as app:
            assert app.execute("SELECT 1 FROM refold.heads").fetchall() == []

        set_up(cluster, citus_url, "citus")
        live(walled, tmp_path)
        with as_bob(walled.app) as app:
            assert app.execute("SELECT 1 FROM refold.heads").fetchall()
