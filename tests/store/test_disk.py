"""No byte on disk, in a log line or in an error contains a redacted value."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

import refold
from refold.store import SessionStore
from tests.support.postgres import Postgres
from tests.support.stores import open_at

PLANTED = {
    "e-mail": "grace.hopper@navy-yard.org",
    "phone": "13912345678",
    "id card": "110101199003074610",
    "card": "4111 1111 1111 1111",
    "student": "2021001234",
    "github": "ghp_Zk3vQ9xLmN7pRt2wYb5uCe8dHf4jGa6sVb1n",
    "password": "hunter2-Tr0ub4dor",
    "url": "s3cr3t-pa55",
    "pem": "MIIEpAIBAAKCAQEA7bq3vQ9xLmN7pRt2wYb5uCe8dHf4jGa6s",
    "plain": "the quick brown fox is not secret but sealed",
}

PEM = "RSA PRIVATE KEY"


def fill(store: SessionStore) -> None:
    lines = [
        f"mail {PLANTED['e-mail']}, 电话 {PLANTED['phone']}",
        f"身份证 {PLANTED['id card']} 学号：{PLANTED['student']}",
        f"卡号 {PLANTED['card']}",
        f"GITHUB_TOKEN={PLANTED['github']} password={PLANTED['password']}",
        f"postgres://app:{PLANTED['url']}@db/x",
        f"-----BEGIN {PEM}-----\n{PLANTED['pem']}\n-----END {PEM}-----",
        PLANTED["plain"],
    ]
    session = store.session(user_id="ada", session_id="s-1")
    session.append([refold.UserInput(text=line) for line in lines])
    long = "\n".join(lines * 400)
    session.append(
        [
            refold.ToolCall(call_id="c", tool_name="t", arguments={"a": {"b": lines}}),
            refold.ToolResult(call_id="c", content=long),
        ],
        idempotency_key="key",
    )
    while session.compact("turn_window:full_turns=1,cached_turns=1"):
        pass
    session.record_request(session.context())
    session.strategies.catch_up()
    for event in session.history.pages():
        assert event.redacted
    with pytest.raises(refold.InvalidEvent):
        session.append(refold.ToolResult(call_id="x", content=long))


def places_with_planted_values(folder: Path) -> list[tuple[str, str]]:
    hits = []
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            hits += [
                (path.name, name)
                for name, value in PLANTED.items()
                if value.encode() in content or value.encode("utf-16-le") in content
            ]
    return hits


def test_no_file_of_sqlite_contains_planted_values(
    sqlite_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    with open_at(sqlite_url, tmp_path) as store:
        fill(store)
        assert list(tmp_path.glob("*-wal"))
        assert places_with_planted_values(tmp_path) == []

    assert places_with_planted_values(tmp_path) == []
    printed = caplog.text + "".join(capfd.readouterr())
    assert [name for name, value in PLANTED.items() if value in printed] == []


def test_no_file_of_postgresql_contains_planted_values(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    url = own_postgres.create_database("disk")
    with open_at(url, tmp_path) as store:
        fill(store)
    driver = url.replace("postgresql://", "postgresql+psycopg://")
    with create_engine(driver, poolclass=NullPool).connect() as connection:
        folder = connection.execute(text("SHOW data_directory")).scalar_one()
        connection.execute(text("CHECKPOINT"))

    assert list(Path(folder).rglob("pg_wal"))
    assert places_with_planted_values(Path(folder)) == []
    assert places_with_planted_values(tmp_path) == []
