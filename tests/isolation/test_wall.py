"""Row security holds if a query forgets its user, fails, or loses its connection."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

import refold
from refold.adapters.sql.database import ErrorsTranslated
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.schema import migrate
from tests.support import roles
from tests.support.postgres import Postgres
from tests.support.roles import Walled
from tests.support.stores import open_at
from tests.support.talking import talk

FORGETFUL = "SELECT DISTINCT user_id FROM refold.events"


@pytest.fixture
def dialect(walled: Walled, tmp_path: Path) -> Iterator[PostgresDatabase]:
    """The app role's connection to a database with events of ada and of bob."""
    with open_at(walled.app, tmp_path) as store:
        for user in ("ada", "bob"):
            talk(store.session(user_id=user, session_id="s-1"), 2)
    dialect = PostgresDatabase(make_url(walled.app))
    yield dialect
    dialect.close()


def test_a_query_without_its_user_gets_no_rows(dialect: PostgresDatabase) -> None:
    assert dialect.fetch("bob", FORGETFUL, ()) == [("bob",)]
    assert dialect.fetch("ada", FORGETFUL, ()) == [("ada",)]
    assert dialect.fetch("", FORGETFUL, ()) == []
    with dialect.reading("bob") as connection:
        assert connection.execute(text(FORGETFUL)).all() == [("bob",)]
    with dialect.writing("ada") as connection:
        assert connection.execute(text(FORGETFUL)).all() == [("ada",)]


def test_a_prepared_query_works_for_another_user(dialect: PostgresDatabase) -> None:
    for _ in range(10):
        for user in ("ada", "bob"):
            assert dialect.fetch(user, FORGETFUL, ()) == [(user,)]


def test_a_dropped_statement_is_sent_again_for_the_same_user(
    dialect: PostgresDatabase,
) -> None:
    for _ in range(3):
        dialect.fetch("ada", FORGETFUL, ())
    with dialect.writing("bob") as connection:
        connection.exec_driver_sql("DEALLOCATE ALL")

    assert dialect.fetch("ada", FORGETFUL, ()) == [("ada",)]


def test_a_query_that_fails_leaves_no_user_behind(dialect: PostgresDatabase) -> None:
    for _ in range(8):
        with (
            pytest.raises(refold.StoreUnavailable, match="DivisionByZero"),
            ErrorsTranslated(dialect.translate),
        ):
            dialect.fetch("ada", "SELECT 1 / 0", ())

        assert dialect.fetch("", FORGETFUL, ()) == []
        assert dialect.fetch("bob", FORGETFUL, ()) == [("bob",)]


def test_a_write_that_fails_leaves_no_user_behind(dialect: PostgresDatabase) -> None:
    with pytest.raises(ZeroDivisionError), dialect.writing("ada"):
        _ = 1 / 0

    with dialect.writing("") as connection:
        assert connection.execute(text(FORGETFUL)).all() == []


def test_row_security_holds_after_a_restart_of_the_server(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    url = own_postgres.create_database(f"own_{uuid.uuid4().hex[:8]}")
    database = PostgresDatabase(make_url(url))
    migrate(database)
    database.close()
    roles.set_up(own_postgres, url)
    with roles.users(own_postgres) as users:
        app = roles.walled(url, users).app
        with open_at(app, tmp_path) as store:
            session = talk(store.session(user_id="ada", session_id="s-1"), 2)
            own_postgres.restart()

            assert len(session.events()) == 4
            session.append(refold.UserInput(text="on"))
            assert store.sessions("ada")[0].head_seq == 5
            with pytest.raises(refold.StoreUnavailable, match="one user at a time"):
                store.sessions(internal=True)
