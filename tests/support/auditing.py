"""Stores with an access log, and the records in it."""

from __future__ import annotations

from typing import Final

import refold
from refold.adapters.sql.access_log import AccessTable
from refold.domain.access_log import AccessRecord
from refold.store import Session, SessionStore
from refold.testing import memory_database

WINDOW: Final = "turn_window:full_turns=1,cached_turns=1"
APPENDED: Final = "session_append_event"


class Table(AccessTable):
    """An access log table in a database in memory."""

    def __init__(self) -> None:
        super().__init__(memory_database())


def records(
    store: SessionStore, user_id: str | None = None, session_id: str | None = None
) -> list[AccessRecord]:
    """Return the access records, except those of reading the access log."""
    all_records = store.access_log.records(user_id, session_id=session_id)
    return [record for record in all_records if record.event != "audit_read"]


def session_of(store: SessionStore) -> Session:
    """Return the session to which the tests append."""
    return store.session(user_id="ada", session_id="s-1")


def talk(session: Session, turns: int) -> None:
    """Append turns, enough for a compaction."""
    for number in range(turns):
        session.append(
            [
                refold.UserInput(text=f"{number} " + "word " * 40),
                refold.AgentResponse(text="word " * 90),
            ]
        )
