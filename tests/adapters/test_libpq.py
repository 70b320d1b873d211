"""Statements that bypass the driver's cursors fail with the server's errors."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from refold.adapters.sql import libpq
from refold.adapters.sql.libpq import Command, PreparedConnection, Statement


@pytest.fixture
def connection(postgres_url: str) -> Iterator[PreparedConnection]:
    """A connection with two tables, one of which refers to the other."""
    with psycopg.connect(postgres_url, autocommit=True) as driver:
        driver.execute("CREATE TEMP TABLE parent (id int PRIMARY KEY)")
        driver.execute(
            "CREATE TEMP TABLE child (id int REFERENCES parent "
            "DEFERRABLE INITIALLY DEFERRED)"
        )
        yield PreparedConnection(driver)


def without_parent() -> Command:
    """Return a statement whose commit fails."""
    return Statement.of("INSERT INTO child VALUES (:id)", ["id:int"]), [1]


@pytest.mark.parametrize("others", [0, 1])
def test_a_commit_that_fails_in_a_pipeline_has_the_error_of_the_server(
    connection: PreparedConnection, others: int
) -> None:
    select: Command = (Statement.of("SELECT 1"), [])

    with pytest.raises(psycopg.errors.ForeignKeyViolation) as raised:
        connection.pipeline([[without_parent()], *[[select]] * others])

    assert raised.value.sqlstate == "23503"
    connection.close_if_busy()
    assert connection.driver.closed


def test_a_server_that_ends_in_a_pipeline_is_an_error_of_the_driver(
    connection: PreparedConnection,
) -> None:
    end = Statement.of("SELECT pg_terminate_backend(pg_backend_pid())")
    select = Statement.of("SELECT 1")

    with pytest.raises(psycopg.OperationalError):
        connection.pipeline([[(end, []), (select, []), (select, [])]])

    connection.close_if_busy()
    assert connection.driver.closed


def test_names_of_values_may_end_with_digits(connection: PreparedConnection) -> None:
    statement = Statement.of("SELECT :id, :id2::int", ["id:int", "id2:int"])

    assert connection.rows(connection.run(statement, [1, 2])) == [(1, 2)]


def test_a_colon_in_a_literal_is_no_value(connection: PreparedConnection) -> None:
    statement = Statement.like("SELECT ':x' || ?", ["a"])

    assert connection.rows(connection.run(statement, ["a"])) == [(":xa",)]


def test_a_connection_remembers_a_bounded_number_of_statements(
    connection: PreparedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libpq, "_MOST_SEEN", 3)

    for number in range(10):
        connection.run(Statement.of(f"SELECT {number}"), [])

    assert len(connection._seen) <= 3
