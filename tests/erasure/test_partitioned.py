"""All promises hold for tables that an operator has partitioned by user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import refold
from refold import SessionStore, UserInput
from refold.adapters.rows import Batch, Wrote
from refold.adapters.sql.schema import BIG, roles, schema
from refold.domain.ids import StreamId
from refold.testing import append_to, texts, user_inputs
from tests.support.operations import OPERATIONS, fill, log_of
from tests.support.postgres import Postgres
from tests.support.roles import alone
from tests.support.stores import open_at, prepare

USERS = [f"u-{number}" for number in range(12)]
DIVIDED = (
    "events",
    "heads",
    "blobs",
    "receipts",
    "views",
    "accesses",
    "seals",
    "exports",
)
LONG = "The quick fox reads the budget and finds nothing in it. " * 4_000


def partition_table(url: str, table: str, by: str) -> None:
    """Replace a table by one with four partitions and the same rows."""
    whole = f"refold.{table}"
    with psycopg.connect(url) as server, server.transaction():
        triggers = server.execute(
            "SELECT pg_get_triggerdef(oid) FROM pg_trigger "
            f"WHERE tgrelid = '{whole}'::regclass AND NOT tgisinternal"
        ).fetchall()
        server.execute(f"ALTER TABLE {whole} RENAME TO {table}_whole")
        server.execute(
            f"CREATE TABLE {whole} (LIKE {whole}_whole INCLUDING ALL) "
            f"PARTITION BY HASH ({by})"
        )
        for part in range(4):
            server.execute(
                f"CREATE TABLE {whole}_{part} PARTITION OF {whole} "
                f"FOR VALUES WITH (MODULUS 4, REMAINDER {part})"
            )
        server.execute(f"INSERT INTO {whole} SELECT * FROM {whole}_whole")
        server.execute(f"DROP TABLE {whole}_whole")
        for (trigger,) in triggers:
            server.execute(trigger)
            if "TRUNCATE" in trigger:
                for part in range(4):
                    server.execute(trigger.replace(f"{whole} ", f"{whole}_{part} "))


def use_store(store: SessionStore) -> None:
    for user in USERS:
        session = store.session(user_id=user, session_id="s")
        session.append(UserInput(text=f"{user}: {LONG}"), idempotency_key="k")
        session.append(UserInput(text="more"))
        session.context("turn_window")


@pytest.fixture
def divided(postgres_url: str, tmp_path: Path) -> str:
    url = prepare(postgres_url, tmp_path)
    with refold.open(url, access_log="table") as store:
        use_store(store)
    for table in DIVIDED:
        partition_table(postgres_url, table, "user_id")
    partition_table(postgres_url, "audit", "record_id")
    return url


def test_an_erasure_deletes_nothing_of_other_users(divided: str) -> None:
    with refold.open(divided, access_log="table") as store:
        erased = store.erase(USERS[0], "asked")

        assert not any(erased.left.values())
        for user in USERS[1:]:
            session = store.session(user_id=user, session_id="s")
            assert not session.verify().problems
            (cut, *_) = session.events()
            (sha256,) = cut.blobs
            assert session.history.blob(sha256) is not None


def test_the_access_log_loses_nothing_of_other_users(divided: str) -> None:
    with refold.open(divided, access_log="table") as store:
        before = {user: len([*store.access_log.records(user)]) for user in USERS}

        store.erase(USERS[0], "asked")

        for user in USERS[1:]:
            assert len([*store.access_log.records(user)]) >= before[user] > 0


def test_sessions_continue(divided: str) -> None:
    with refold.open(divided) as store:
        for user in USERS:
            session = store.session(user_id=user, session_id="s")
            first = session.append(
                UserInput(text=f"{user}: {LONG}"), idempotency_key="k"
            )
            assert first.first_seq == 1
            assert session.append(UserInput(text="and more")).first_seq == 3
            assert len(session.context("turn_window").messages) >= 1
        assert not any(verified.problems for _, verified in store.verify())


def test_a_group_of_appends_is_written_in_one_commit(divided: str) -> None:
    with refold.open(divided) as store:
        log = log_of(store)
        batches = list[Batch]()
        for user in USERS[:6]:
            stream = StreamId(user, "s")
            batches.append(
                log.batch(append_to(log.head(stream), *user_inputs("at once")))
            )

        done = log.recorder.database.write_group(batches)

        assert [type(outcome) for outcome in done] == [Wrote] * len(batches)
        for number, user in enumerate(USERS):
            stream = StreamId(user, "s")
            more = ["at once"] if number < 6 else []
            assert texts(log.read(stream, after=2)) == more
            assert log.head(stream).seq == 2 + len(more)
    commits = "SELECT count(DISTINCT position >> 20) FROM refold.events WHERE seq = 3"
    with psycopg.connect(divided) as server:
        assert server.execute(commits).fetchone() == (1,)


@pytest.fixture
def parted(postgres_url: str, tmp_path: Path) -> Iterator[SessionStore]:
    """A store with the tables that ``refold schema --partitions`` prints."""
    with psycopg.connect(postgres_url) as server:
        for statement in schema("postgresql", partitions=3):
            server.execute(statement)
    with open_at(postgres_url, tmp_path) as store:
        yield store


def test_every_operation_runs_on_the_printed_tables(
    parted: SessionStore,
) -> None:
    fill(parted, rounds=6)

    for operation in OPERATIONS.values():
        operation(parted)

    assert not parted.seals.verify().problems
    assert not any(verified.problems for _, verified in parted.verify())


def test_partitions_refuse_the_same_changes_as_their_table(
    parted: SessionStore, postgres_url: str
) -> None:
    use_store(parted)
    with psycopg.connect(postgres_url, autocommit=True) as server:
        parts = server.execute(
            "SELECT inhparent::regclass::text, count(*) FROM pg_inherits "
            "JOIN pg_class c ON c.oid = inhrelid WHERE c.relkind = 'r' GROUP BY 1"
        ).fetchall()
        assert dict(parts) == {f"refold.{name}": 3 for name in BIG}
        for table in ("events", "events_0", "events_1", "events_2"):
            for harm in (f"DELETE FROM refold.{table}", f"TRUNCATE refold.{table}"):
                with pytest.raises(psycopg.errors.RaiseException, match="immutable"):
                    server.execute(harm)


@pytest.mark.parametrize(
    "harm",
    [
        "ALTER TABLE refold.events_1 DISABLE TRIGGER events_refuse_change",
        "DROP TRIGGER events_refuse_truncate ON refold.events_2",
    ],
)
def test_a_partition_without_its_trigger_is_reported(
    parted: SessionStore, postgres_url: str, harm: str
) -> None:
    database = log_of(parted).recorder.database
    assert database.unguarded() == []

    with psycopg.connect(postgres_url) as server:
        server.execute(harm)

    (name,) = database.unguarded()
    assert name in harm


def test_row_security_applies_to_partitions(
    parted: SessionStore, postgres_url: str, postgres: Postgres
) -> None:
    use_store(parted)
    with alone(postgres), psycopg.connect(postgres_url, autocommit=True) as server:
        for statement in roles():
            server.execute(statement)
        server.execute("SET ROLE refold_app")
        server.execute("SELECT set_config('refold.user_id', 'u-1', false)")

        assert server.execute("SELECT DISTINCT user_id FROM refold.events").fetchall()
        for part in range(3):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                server.execute(f"SELECT 1 FROM refold.events_{part}")
