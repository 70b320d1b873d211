"""Tables that an operator has divided by user, natively: the same promises hold."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

import refold
from refold import SessionStore, UserInput
from tests.support.stores import prepare

USERS = [f"u-{number}" for number in range(12)]
DIVIDED = ("events", "heads", "blobs", "receipts", "views", "accesses", "seals")
LONG = "The quick fox reads the budget and finds nothing in it. " * 4_000


def divide(url: str, table: str, by: str) -> None:
    """Make a table anew in four parts, with the rows that it has."""
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


def live(store: SessionStore) -> None:
    for user in USERS:
        session = store.session(user_id=user, session_id="s")
        session.append(UserInput(text=f"{user}: {LONG}"), idempotency_key="k")
        session.append(UserInput(text="more"))
        session.context("turn_window")


@pytest.fixture
def divided(postgres_url: str, tmp_path: Path) -> str:
    url = prepare(postgres_url, tmp_path)
    with refold.open(url, access_log="table") as store:
        live(store)
    for table in DIVIDED:
        divide(postgres_url, table, "user_id")
    divide(postgres_url, "audit", "record_id")
    return url


def test_an_erasure_takes_nothing_of_others(divided: str) -> None:
    with refold.open(divided, access_log="table") as store:
        erased = store.erase(USERS[0], "asked")

        assert not any(erased.left.values())
        for user in USERS[1:]:
            session = store.session(user_id=user, session_id="s")
            assert not session.verify().problems
            (cut, *_) = session.events()
            (sha256,) = cut.blobs
            assert session.blob(sha256) is not None


def test_the_access_log_loses_nothing_of_others(divided: str) -> None:
    with refold.open(divided, access_log="table") as store:
        before = {user: len([*store.access_log.records(user)]) for user in USERS}

        store.erase(USERS[0], "asked")

        for user in USERS[1:]:
            assert len([*store.access_log.records(user)]) >= before[user] > 0


def test_sessions_go_on(divided: str) -> None:
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
