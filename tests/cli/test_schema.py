"""``refold schema`` prints what an administrator may run, and opens nothing."""

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


def test_the_engine_is_that_of_the_store(refold: Refold) -> None:
    ran = refold("--db", "postgresql://nobody@192.0.2.1/none", "schema", "--json")

    assert ran.json() == {"engine": "postgresql", "statements": schema("postgresql")}


def test_the_roles_for_programs(refold: Refold) -> None:
    ran = refold("schema", "--roles", "--engine", "postgresql", "--json")

    assert ran.json() == {"engine": "postgresql", "statements": roles()}


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_what_is_printed_can_be_run_as_it_is(
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


def test_what_knows_no_roles_is_said(refold: Refold) -> None:
    ran = refold("schema", "--roles")

    assert ran.code == 2
    assert ran.err == (
        "refold: sqlite has no roles: use --roles with --engine postgresql\n"
    )


def test_a_store_in_memory_has_no_schema(refold: Refold) -> None:
    ran = refold("--db", "memory://", "schema")

    assert ran.code == 2
    assert "--engine" in ran.err
