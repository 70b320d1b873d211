"""What tests of re-redaction share: a look at all that a store gives away, and harm."""

from __future__ import annotations

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

import refold
from refold.store import SessionStore
from tests.support.redacting import MAIL, aware

LONG = "line\n" * 20_000 + MAIL


def read(url: str) -> str:
    """All that the store gives away, and that it is whole."""
    with refold.open(url, redactor=aware()) as store:
        assert problems(store) == []
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.AgentResponse(text="on"))
        (name,) = session.history.streams()[1:]
        events = [*session.history.pages(), *session.history.derived(name)]
        return str([event.to_json() for event in events])


def problems(store: SessionStore) -> list[tuple[int | None, str]]:
    all_problems = [
        problem for _, verified in store.verify() for problem in verified.problems
    ]
    return [(problem.seq, problem.code) for problem in all_problems]


def raw(url: str) -> Engine:
    driver = url.replace("postgresql://", "postgresql+psycopg://")
    return create_engine(driver, poolclass=NullPool)


def prefix(url: str) -> str:
    return "refold." if url.startswith("postgresql") else ""


def tamper(url: str, *statements: str) -> None:
    """Change what the triggers would not let anybody change."""
    with raw(url).begin() as connection:
        if url.startswith("sqlite"):
            connection.execute(text("DROP TRIGGER IF EXISTS events_refuse_update"))
        else:
            connection.execute(text("ALTER TABLE refold.events DISABLE TRIGGER ALL"))
        for statement in statements:
            connection.execute(text(statement.replace("@", prefix(url))))
