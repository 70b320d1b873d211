"""Connections of a pool that are lent when the pool closes all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Engine, event

if TYPE_CHECKING:
    from sqlalchemy.pool import ConnectionPoolEntry

# In the notes of a connection: how often all connections were closed before.
_DISPOSALS: Final = "refold_disposals"


def close_when_returned(pool: Engine) -> None:
    """Have connections that are lent when ``pool`` closes all others closed later.

    SQLAlchemy would leave them open until they are garbage.
    """
    disposals = 0

    def note_disposal(_: Engine) -> None:
        nonlocal disposals
        disposals += 1

    def note_connection(_: Any, record: ConnectionPoolEntry) -> None:
        record.info[_DISPOSALS] = disposals

    def close_old(driver: Any, record: ConnectionPoolEntry) -> None:
        if driver is not None and record.info.get(_DISPOSALS) != disposals:
            record.invalidate()

    event.listen(pool, "engine_disposed", note_disposal)
    event.listen(pool, "connect", note_connection)
    event.listen(pool, "checkin", close_old)
