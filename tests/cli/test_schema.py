"""``refold schema`` prints the SQL for an administrator, without opening a database."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from refold.adapters.sql.schema import roles, schema
from tests.cli.conftest import Refold
from tests.support.postgres import Postgres
from tests.support.roles import alone


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_the_schema_of_an_engine(refold: Refold, engine: str, tmp_path: Path) -> None:
    ran = refold("schema", "--engine", engine)

    assert ran.code == 0
    assert ran.out.startswith(f"-- The tables of Refold on {engine}.")
    assert "CREATE TABLE" in ran.out
    assert list(tmp_path.iterdir()) == []


def test_the_engine_defaults_to_that_of_the_store(refold: Refold) -> None:
    ran = refold("--db", "postgresql://nobody@192.0.2.1/none", "schema", "--json")

    assert ran.json() == {"engine": "postgresql", "statements": schema("postgresql")}


def test_schema_prints_the_roles_for_programs(refold: Refold) -> None:
    ran = refold("schema", "--roles", "--engine", "postgresql", "--json")

    assert ran.json() == {"engine": "postgresql", "statements": roles()}


def test_the_roles_of_citus_need_its_worker_machines(refold: Refold) -> None:
    ran = refold("schema", "--roles", "--engine", "citus")

    assert "CREATE ROLE refold_app LOGIN" in ran.out
    assert "(SELECT current_setting" not in ran.out


def test_the_schema_of_citus_says_that_tables_must_be_spread(refold: Refold) -> None:
    ran = refold("schema", "--engine", "citus")

    assert ran.out.endswith("-- Then spread them: refold schema --spread\n")


def test_the_big_tables_are_partitioned(refold: Refold) -> None:
    ran = refold("schema", "--engine", "postgresql", "--partitions", "4", "--json")

    assert ran.json()["statements"] == schema("postgresql", partitions=4)
    assert (
        sum("PARTITION OF" in statement for statement in ran.json()["statements"]) == 16
    )


def test_the_number_of_partitions_is_bounded(refold: Refold) -> None:
    args = ("schema", "--engine", "postgresql", "--partitions")

    assert refold(*args, "1024").code == 0
    assert refold(*args, "1025").code == 2
    assert refold(*args, "9" * 20).code == 2


def test_spreading_needs_citus(refold: Refold, postgres_url: str) -> None:
    ran = refold("--db", postgres_url, "schema", "--spread")

    assert ran.code == 1
    assert "has no Citus: CREATE EXTENSION" in ran.err


@pytest.mark.parametrize("more", [("--roles",), ("--partitions", "2")])
def test_spreading_tables_does_nothing_else(
    refold: Refold, postgres_url: str, more: tuple[str, ...]
) -> None:
    ran = refold("--db", postgres_url, "schema", "--spread", *more)

    assert ran.code == 2
    assert "use --spread without" in ran.err


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_printed_sql_runs_unchanged(
    refold: Refold, store_url: str, postgres: Postgres
) -> None:
    printed = refold("schema", "--roles", "--engine", "postgresql").out

    with alone(postgres), psycopg.connect(store_url, autocommit=True) as owner:
        for _ in range(2):
            owner.execute(printed)
        walled = owner.execute(
            "SELECT bool_and(relrowsecurity) FROM pg_class WHERE relkind = 'r' "
            "AND relnamespace = 'refold'::regnamespace"
        )

        assert walled.fetchone() == (True,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--roles"], "sqlite has no roles: --roles is for PostgreSQL"),
        (["--spread"], "--spread needs a PostgreSQL database: see --db"),
        (
            ["--partitions", "2"],
            "sqlite has no partitions: --partitions is for PostgreSQL",
        ),
    ],
)
def test_options_of_another_engine_are_refused(
    refold: Refold, options: list[str], message: str
) -> None:
    ran = refold("schema", *options)

    assert ran.code == 2
    assert ran.err == f"refold: {message}\n"


def test_a_store_in_memory_has_no_schema(refold: Refold) -> None:
    ran = refold("--db", "memory://", "schema")

    assert ran.code == 2
    assert "--engine" in ran.err
