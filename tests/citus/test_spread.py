"""A store is spread when it is made, or later with what it has; by user, and whole."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

import refold
from refold.adapters.sql import tables
from refold.adapters.sql.citus import CitusDatabase, _hashed
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.schema import migrate
from refold.domain.ports import Problem
from refold.store import SessionStore
from tests.support.citus import WORKERS, Cluster
from tests.support.nested import problems_of
from tests.support.operations import log_of
from tests.support.stores import open_at, prepare
from tests.support.talking import talk

USERS = [f"u-{number}" for number in range(20)]
OF_USERS = {
    table.fullname
    for table in tables.build("refold", rowid=False).metadata.tables.values()
    if "user_id" in table.c
}
LONG = "a line of text. " * 5_000


def live(store: SessionStore) -> None:
    for user in USERS:
        session = talk(store.session(user_id=user, session_id="s"), 3)
        session.append(refold.UserInput(text=LONG), idempotency_key="k")


def problems(store: SessionStore) -> list[Problem]:
    in_sessions = problems_of(store.verify())
    return [*in_sessions, *store.seals.verify().problems]


def spread(url: str) -> set[str]:
    """The tables that are spread by user, all alike."""
    with psycopg.connect(url) as server:
        rows = server.execute(
            "SELECT logicalrelid::text, colocationid FROM pg_dist_partition "
            "WHERE partmethod = 'h'"
        ).fetchall()
    assert len({group for _, group in rows}) <= 1
    return {name for name, _ in rows}


def test_a_new_store_is_spread(citus_url: str, tmp_path: Path) -> None:
    with open_at(citus_url, tmp_path) as store:
        live(store)
        store.seal()

        assert isinstance(log_of(store).recorder.database, CitusDatabase)
        assert problems(store) == []
    assert spread(citus_url) == OF_USERS


@pytest.fixture
def unspread_store_url(citus_url: str, tmp_path: Path) -> str:
    """A store that was made before the database had machines, with sealed events."""
    database = PostgresDatabase(make_url(prepare(citus_url, tmp_path)))
    migrate(database)
    database.close()
    with refold.open(citus_url) as store:
        live(store)
        store.seal()
    return citus_url


def test_tables_that_are_not_spread_work_unchanged(unspread_store_url: str) -> None:
    with refold.open(unspread_store_url) as store:
        database = log_of(store).recorder.database

        assert type(database) is PostgresDatabase
        assert problems(store) == []
    assert spread(unspread_store_url) == set()


def test_a_store_with_data_is_spread_with_its_data(
    unspread_store_url: str, cluster: Cluster
) -> None:
    database = CitusDatabase(make_url(unspread_store_url))
    names = database.spread_tables()
    again = database.spread_tables()
    database.close()

    assert set(names) >= OF_USERS
    assert again == []
    assert spread(unspread_store_url) == OF_USERS
    with refold.open(unspread_store_url) as store:
        for user in USERS:
            assert store.session(user_id=user, session_id="s").append(
                refold.UserInput(text="on")
            )
        store.seal()
        assert problems(store) == []
        erased = store.erase(USERS[0], "asked")
        assert not any(erased.left.values())


def test_no_copy_is_left_in_another_place(unspread_store_url: str) -> None:
    database = CitusDatabase(make_url(unspread_store_url))
    database.spread_tables()
    database.close()

    with psycopg.connect(unspread_store_url) as server:
        for name in OF_USERS:
            size = server.execute("SELECT pg_relation_size(%s)", (name,)).fetchone()
            assert size == (0,), name


def test_the_shards_refuse_the_same_changes_as_their_table(
    citus_url: str, tmp_path: Path, cluster: Cluster
) -> None:
    with open_at(citus_url, tmp_path) as store:
        live(store)
        assert log_of(store).recorder.database.unguarded() == []
        with psycopg.connect(citus_url, autocommit=True) as server:
            for harm in (
                "DELETE FROM refold.events",
                "UPDATE refold.events SET ts = 1",
                "UPDATE refold.events SET ts = 1 WHERE user_id = 'u-1'",
                "TRUNCATE refold.events",
            ):
                with pytest.raises(psycopg.Error, match="immutable"):
                    server.execute(harm)  # type: ignore[arg-type, unused-ignore]  # no user's text
            (harmed,) = server.execute(
                "SELECT count(*) FROM run_command_on_shards('refold.events', "
                "'ALTER TABLE %s DISABLE TRIGGER USER') WHERE success"
            ).fetchone() or (0,)
        assert harmed
        assert log_of(store).recorder.database.unguarded() == ["a shard of events"]


def test_a_user_is_searched_only_on_the_users_machine(
    citus_url: str, tmp_path: Path
) -> None:
    with open_at(citus_url, tmp_path) as store:
        database = log_of(store).recorder.database
        assert isinstance(database, CitusDatabase)
        names = [*USERS, "", "ä", "é" * 7, "中文" * 9, "x" * 500]
        with psycopg.connect(citus_url) as server:
            for user in names:
                place = server.execute(
                    "SELECT hashtext(%s), groupid FROM pg_dist_placement WHERE "
                    "shardid = get_shard_id_for_distribution_column('refold.heads', "
                    "%s::text)",
                    (user, user),
                ).fetchone()
                assert place == (_hashed(user), database.machine(user))
        assert len({database.machine(user) for user in names}) == WORKERS


def test_sizes_are_those_of_all_machines(citus_url: str, tmp_path: Path) -> None:
    with open_at(citus_url, tmp_path) as store:
        before = store.stats()["database_bytes"]
        live(store)
        after = store.stats()

    assert after["users"] == after["sessions"] == after["blobs"] == len(USERS)
    assert after["events"] == 7 * len(USERS)
    assert after["database_bytes"] - before > after["event_bytes"] > 0
