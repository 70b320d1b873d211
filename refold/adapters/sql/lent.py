"""Closes connections that were in use while their engine was disposed of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Engine, event

if TYPE_CHECKING:
    from sqlalchemy.pool import ConnectionPoolEntry

# In the notes of a connection: how often its engine had been disposed of before.
_DISPOSALS: Final = "refold_disposals"


def close_when_returned(engine: Engine) -> None:
    """Close a connection at its return if ``engine.dispose()`` ran while it was lent.

    SQLAlchemy would leave it open until it is garbage.
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

    event.listen(engine, "engine_disposed", note_disposal)
    event.listen(engine, "connect", note_connection)
    event.listen(engine, "checkin", close_old)
