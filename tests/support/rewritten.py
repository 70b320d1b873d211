"""Helpers for tests of re-redaction: all readable data of a store, and tampering."""

from __future__ import annotations

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

import refold
from refold.store import SessionStore
from tests.support.nested import problems_of
from tests.support.redacting import MAIL, aware

LONG = "line\n" * 20_000 + MAIL


def readable_text(url: str) -> str:
    """Return all data that the store shows, and assert that it verifies."""
    with refold.open(url, redactor=aware()) as store:
        assert problems(store) == []
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.AgentResponse(text="on"))
        (name,) = session.history.streams()[1:]
        events = [*session.history.pages(), *session.history.derived(name)]
        return str([event.to_json() for event in events])


def problems(store: SessionStore) -> list[tuple[int | None, str]]:
    all_problems = problems_of(store.verify())
    return [(problem.seq, problem.code) for problem in all_problems]


def engine_at(url: str) -> Engine:
    driver = url.replace("postgresql://", "postgresql+psycopg://")
    return create_engine(driver, poolclass=NullPool)


def schema_prefix(url: str) -> str:
    return "refold." if url.startswith("postgresql") else ""


def tamper(url: str, *statements: str) -> None:
    """Execute statements that the triggers would refuse."""
    with engine_at(url).begin() as connection:
        if url.startswith("sqlite"):
            connection.execute(text("DROP TRIGGER IF EXISTS events_refuse_update"))
        else:
            connection.execute(text("ALTER TABLE refold.events DISABLE TRIGGER ALL"))
        for statement in statements:
            connection.execute(text(statement.replace("@", schema_prefix(url))))
