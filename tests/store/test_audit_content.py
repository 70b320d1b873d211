"""No record contains any handled content."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

import refold
from refold.store import SessionStore
from tests.support.auditing import WINDOW, records, session_of, talk
from tests.support.stores import prepare

PLANTED = {
    "text": "the quick brown fox is sealed",
    "mail": "grace.hopper@navy-yard.org",
    "tool": "planted_tool_name",
    "request": "planted-request-id",
    "agent": "planted-agent",
    "key": "planted-idempotency-key",
    "user": "planted-user-ada",
    "session": "planted-session-one",
    "model": "planted-model",
    "state": "planted_state_key",
    "reason": "planted reason of an erasure",
}


def test_a_foreign_error_is_recorded_without_its_name(audited: SessionStore) -> None:
    named = type("PlantedInAName", (Exception,), {})

    class RaisesOnIteration:
        def __iter__(self) -> Iterator[Any]:
            raise named(PLANTED["text"])

    talk(session_of(audited), 1)

    with pytest.raises(named):
        session_of(audited).proofs.compare(RaisesOnIteration())

    assert records(audited)[-1].error_code == "Unexpected"


def fill(store: SessionStore) -> None:
    """Call every operation with planted values, successfully or not."""
    session = store.session(user_id=PLANTED["user"], session_id=PLANTED["session"])
    session.append(
        refold.UserInput(text=f"{PLANTED['text']} {PLANTED['mail']}"),
        request_id=PLANTED["request"],
        agent=PLANTED["agent"],
        idempotency_key=PLANTED["key"],
        meta={"model": PLANTED["model"], "tool_name": PLANTED["tool"]},
    )
    call = refold.ToolCall(
        call_id="c", tool_name=PLANTED["tool"], arguments={"a": PLANTED["text"]}
    )
    session.append([call, refold.ToolResult(call_id="c", content=PLANTED["text"])])
    session.append(refold.StateUpdate(set={PLANTED["state"]: PLANTED["text"]}))
    session.append(refold.UserInput(text=PLANTED["text"] * 4_000))
    talk(session, 4)
    session.record_request(session.prepare(WINDOW), model=PLANTED["model"])
    session.state()
    with suppress(refold.RefoldError):
        session.append(refold.ToolResult(call_id=PLANTED["tool"], content="x"))
    with suppress(refold.RefoldError):
        session.append(refold.UserInput(text="y"), idempotency_key=PLANTED["key"])
    with suppress(refold.RefoldError):
        session.context(PLANTED["text"])
    with suppress(refold.RefoldError):
        session.context(evidence=PLANTED["text"])
    with suppress(refold.RefoldError):
        store.session(user_id=PLANTED["user"], session_id=PLANTED["text"]).events()
    with suppress(refold.RefoldError):
        session.history.blob(PLANTED["text"])
    list(store.verify())
    store.erasures.hold(PLANTED["user"], "case", PLANTED["reason"])
    with suppress(refold.RefoldError):
        store.erase(PLANTED["user"], PLANTED["reason"])


def table_text(url: str) -> str:
    """Return the complete table as text, as the database stores it."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            return repr(connection.execute("SELECT * FROM audit").fetchall())
    driver = url.replace("postgresql://", "postgresql+psycopg://")
    with create_engine(driver, poolclass=NullPool).connect() as connection_:
        rows = connection_.execute(text("SELECT a::text FROM refold.audit a"))
        return repr(rows.all())


def test_no_record_contains_planted_values(
    store_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = prepare(store_url, tmp_path)
    path = tmp_path / "audit.jsonl"
    caplog.set_level(logging.INFO, "refold.audit")
    with refold.open(url, access_log=f"table,log,file:{path}") as store:
        fill(store)
        recorded = records(store)
    logged = [
        message.message for message in caplog.records if message.name == "refold.audit"
    ]

    assert len(recorded) > 20
    assert {record.status for record in recorded} == {"ok", "denied", "error"}
    for copy in (table_text(url), path.read_text(), "".join(logged), repr(recorded)):
        assert copy
        assert [name for name, value in PLANTED.items() if value in copy] == []
