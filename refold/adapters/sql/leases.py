"""Leases as rows: each is taken by one compare-and-set, in words both engines know."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, Table, delete, text, update

from refold.domain.ids import StreamId

_FREE: Final = "held.expires_at <= :now OR held.owner = excluded.owner"
_TAKE: Final = f"""
INSERT INTO {{table}} AS held
  (user_id, session_id, stream, owner, expires_at, pending)
VALUES (:user_id, :session_id, :stream, :owner, :until, 0)
ON CONFLICT (user_id, session_id, stream) DO UPDATE SET
  owner = CASE WHEN {_FREE} THEN excluded.owner ELSE held.owner END,
  expires_at = CASE WHEN {_FREE} THEN excluded.expires_at ELSE held.expires_at END,
  pending = CASE WHEN {_FREE} THEN 0 ELSE 1 END
RETURNING owner
"""


def take(
    connection: Connection,
    table: Table,
    stream: StreamId,
    owner: str,
    now: int,
    until: int,
) -> bool:
    """Hold the lease if it is free at ``now``; if not, mark it as asked for."""
    statement = text(_TAKE.format(table=table.fullname))
    values = {**stream._asdict(), "owner": owner, "now": now, "until": until}
    return bool(connection.execute(statement, values).scalar_one() == owner)


def renew(
    connection: Connection, table: Table, stream: StreamId, owner: str, until: int
) -> bool:
    """Hold it longer, if it is still the owner's."""
    held = update(table).where(*_held(table, stream, owner))
    return connection.execute(held.values(expires_at=until)).rowcount == 1


def release(connection: Connection, table: Table, stream: StreamId, owner: str) -> bool:
    """Give it back; True if it was marked as asked for."""
    held = delete(table).where(*_held(table, stream, owner))
    pending = connection.execute(held.returning(table.c.pending)).scalar()
    return bool(pending)


def _held(table: Table, stream: StreamId, owner: str) -> tuple[Any, ...]:
    return (
        table.c.user_id == stream.user_id,
        table.c.session_id == stream.session_id,
        table.c.stream == stream.stream,
        table.c.owner == owner,
    )
