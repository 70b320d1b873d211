"""Sealing a session anew on SQLite: what replaces rows, and its door."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from refold.adapters.recorder import Batch, HeadRow, Rewrite, WriteOutcome, Wrote
from refold.domain.errors import StoreUnavailable
from refold.domain.ids import MAIN, StreamId

Write = Callable[[sqlite3.Connection, Batch], WriteOutcome]

# While this row is there, and it is there in no committed state, rows may be replaced.
_OPEN: Final = "INSERT INTO settings (name, value) VALUES ('rewriting', 'on')"
_CLOSE: Final = "DELETE FROM settings WHERE name='rewriting'"
_KEPT: Final = (
    *("position", "user_id", "session_id", "stream", "seq", "type", "ts", "event_id"),
    *("token_estimate", "schema_version", "hash"),
)
GUARDS: Final = (
    "DROP TRIGGER IF EXISTS events_refuse_update",
    "DROP TRIGGER IF EXISTS events_refuse_delete",
    f"""
CREATE TRIGGER events_refuse_update BEFORE UPDATE ON events WHEN NOT (
  EXISTS (SELECT 1 FROM settings WHERE name='rewriting')
  AND {" AND ".join(f"NEW.{name} IS OLD.{name}" for name in _KEPT)}
  AND length(NEW.first_digest) IS 32
  AND NEW.first_digest IS coalesce(OLD.first_digest, NEW.first_digest))
BEGIN SELECT RAISE(ABORT, 'refold: events are immutable, UPDATE is refused'); END
""",
    """
CREATE TRIGGER events_refuse_delete BEFORE DELETE ON events WHEN NOT EXISTS (
  SELECT 1 FROM heads h WHERE h.user_id=OLD.user_id AND h.session_id=OLD.session_id
    AND h.stream=OLD.stream AND h.status='erased')
BEGIN SELECT RAISE(ABORT, 'refold: events are immutable, DELETE is refused'); END
""",
)
# Changes nothing, and has to be written all the same.
TOUCH: Final = "UPDATE settings SET value=value WHERE name='schema_version'"
_HEADS = "SELECT stream, {} FROM heads WHERE user_id=? AND session_id=?".format(
    ", ".join(HeadRow._fields)
)
_ROW = """
UPDATE events SET body=?, first_digest=?
WHERE user_id=? AND session_id=? AND stream=? AND seq=?
"""
_STATE = """
UPDATE heads SET state=?, key_check=? WHERE user_id=? AND session_id=? AND stream=?
"""
_REOPEN = """
UPDATE heads SET status='open', key_check=?
WHERE user_id=? AND session_id=? AND stream=?
"""
_DROP_BLOB = "DELETE FROM blobs WHERE user_id=? AND address=?"
_DROP_VIEWS = "DELETE FROM views WHERE user_id=? AND session_id=?"


def heads(connection: sqlite3.Connection, stream: StreamId) -> dict[str, HeadRow]:
    """The heads of the session, by the name of their stream."""
    found = connection.execute(_HEADS, stream[:2])
    return {name: HeadRow(*columns) for name, *columns in found}


def rewrite(connection: sqlite3.Connection, what: Rewrite, write: Write) -> None:
    """Replace the session's rows, inside a transaction that holds the write lock."""
    user_id, session_id, _ = what.batch.stream
    check = what.batch.head.key_check
    connection.execute(_OPEN)
    values = [
        (row.state, row.first_digest, *row.header.stream, row.header.seq)
        for row in what.rows
    ]
    connection.executemany(_ROW, values)
    connection.execute(_CLOSE)
    states = what.states.items()
    connection.executemany(
        _STATE, [(state, check, user_id, session_id, name) for name, state in states]
    )
    addresses = [(user_id, address) for address in what.blobs]
    connection.executemany(_DROP_BLOB, addresses)
    connection.execute(_DROP_VIEWS, (user_id, session_id))
    connection.execute(_REOPEN, (check, user_id, session_id, MAIN))
    if not isinstance(write(connection, what.batch), Wrote):
        raise StoreUnavailable(
            "the head moved while its session was sealed anew", remedy="try again"
        )
