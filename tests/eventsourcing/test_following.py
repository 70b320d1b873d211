"""Projections of the library follow the log of sessions, exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from eventsourcing.dispatch import singledispatchmethod
from eventsourcing.domain import Aggregate
from eventsourcing.persistence import Tracking
from eventsourcing.projection import Projection, ProjectionRunner
from sqlalchemy import BigInteger, Column, Table, Text, insert, select

import refold
from refold.adapters.eventsourcing import SessionLog, SqlTrackingRecorder
from tests.support.eventsourcing import MODULE
from tests.support.stores import open_at
from tests.support.waiting import until


class Calls(SqlTrackingRecorder):
    """Which tools were called in which session."""

    def define_tables(self) -> None:
        super().define_tables()
        self.calls = Table(
            self.table_name("calls"),
            self.metadata,
            Column("position", BigInteger, primary_key=True, autoincrement=False),
            Column("session_id", Text, nullable=False),
            Column("tool", Text, nullable=False),
        )

    def add(self, session_id: str, tool: str, tracking: Tracking) -> None:
        values = {"session_id": session_id, "tool": tool}
        with self.transaction(tracking) as connection:
            at = tracking.notification_id
            connection.execute(insert(self.calls).values(position=at, **values))

    def all(self) -> list[tuple[str, str]]:
        calls = self.calls.c
        query = select(calls.session_id, calls.tool).order_by(calls.position)
        return [tuple(row) for row in self.database.read(query)]


class ToolCalls(Projection[Calls]):
    name = "toolcalls"
    topics = ("tool_call/1",)

    @singledispatchmethod
    def process_event(self, domain_event: Any, tracking: Tracking) -> None:
        envelope = domain_event
        self.view.add(envelope.session_id, envelope.payload.tool_name, tracking)


@pytest.fixture
def url(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PERSISTENCE_MODULE", MODULE)
    monkeypatch.setenv("REFOLD_DB", store_url)
    with open_at(store_url, tmp_path) as store:
        call(store, "s-1", "bash")
    return store_url


def call(store: refold.SessionStore, session_id: str, tool: str) -> None:
    session = store.session(user_id="ada", session_id=session_id)
    session.append(
        [
            refold.UserInput(text="call +86 138 0013 8000"),
            refold.ToolCall(call_id=tool, tool_name=tool),
            refold.ToolResult(call_id=tool, content="done"),
        ]
    )


def run() -> ProjectionRunner[SessionLog, Calls]:
    return ProjectionRunner(
        application_class=SessionLog, projection_class=ToolCalls, view_class=Calls
    )


def seen_until(runner: ProjectionRunner[SessionLog, Calls], count: int) -> Any:
    """Wait for that many calls; a stopped runner raises the error that stopped it."""

    def seen() -> Any:
        runner.run_forever(timeout=0.01)
        calls = runner.view.all()
        return calls if len(calls) >= count else None

    return until(seen, f"{count} calls", state=runner.view.all)


def test_a_runner_follows_sessions_and_resumes_where_it_stopped(
    url: str, tmp_path: Path
) -> None:
    with run() as runner, open_at(url, tmp_path) as store:
        assert seen_until(runner, 1) == [("s-1", "bash")]
        call(store, "s-2", "read")
        assert seen_until(runner, 2) == [("s-1", "bash"), ("s-2", "read")]
        runner.view.database.close()

    with open_at(url, tmp_path) as store:
        call(store, "s-1", "edit")
    with run() as runner:
        seen = seen_until(runner, 3)
        runner.view.database.close()

    assert seen == [("s-1", "bash"), ("s-2", "read"), ("s-1", "edit")]


def test_a_follower_gets_redacted_envelopes(url: str) -> None:
    with SessionLog() as app, app.recorder.subscribe(gt=0) as subscription:
        envelope: Any = app.mapper.to_domain_event(next(subscription))

    assert isinstance(envelope, refold.Envelope)
    assert envelope.redacted
    assert isinstance(envelope.payload, refold.UserInput)
    assert "138 0013" not in envelope.payload.text


def test_an_application_cannot_write_into_the_log(url: str, tmp_path: Path) -> None:
    with SessionLog() as app:
        with pytest.raises(TypeError, match="session"):
            app.save(Aggregate())  # type: ignore[arg-type]  # of another kind of id
        # A subscription waits while a transaction of another test hides the event.
        with app.recorder.subscribe(gt=0) as subscription:
            notification = next(subscription)
        with pytest.raises(TypeError):
            app.recorder.insert_events([notification])

    with open_at(url, tmp_path) as store:
        assert len(store.session(user_id="ada", session_id="s-1").events()) == 3
