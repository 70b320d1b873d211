"""The rows and keys that simulated processes share: a database in memory.

Every write is one transaction by itself; who else waits for it, and what dies or is
lost on the way, is the simulation's part.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import text

from refold.adapters.rows import Batch, HeadRow, WriteOutcome
from refold.adapters.sql.keystore import SqlKeyStore
from refold.adapters.sql.recorder import Recorder
from refold.domain.ids import StreamId
from refold.testing import memory_database

STREAM: Final = "user_id=:user_id AND session_id=:session_id AND stream=:stream"


class Rows(Recorder):
    """The recorder, whose writes are not grouped: that is simulated around it."""

    def __init__(self) -> None:
        super().__init__(memory_database())

    def write(self, batch: Batch) -> WriteOutcome:
        outcome = self.commit(batch)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def commit(self, batch: Batch) -> WriteOutcome | Exception:
        """Write it, if its head is where it is expected."""
        (outcome,) = self.database.write_group([batch])
        return outcome

    def leases_held(self) -> tuple[tuple[StreamId, str], ...]:
        """The leases that writes of the present task need, each with its owner."""
        return self.database.fences.held

    def check_fences(self) -> None:
        """Raise LeaseLost if another has one of them."""
        self.database.check_leases()

    def execute(self, statement: str, **values: Any) -> list[Any]:
        """What a statement gives, in a transaction of its own."""
        with self.database.writing() as connection:
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else [None] * result.rowcount

    def lease(self, stream: StreamId) -> tuple[str, int] | None:
        """Who has the lease of the stream, and until when."""
        rows = self.execute(
            f"SELECT owner, expires_at FROM leases WHERE {STREAM}", **stream._asdict()
        )
        return tuple(rows[0]) if rows else None

    def put_head(self, stream: StreamId, head: HeadRow) -> None:
        """Set the head, whatever it is."""
        columns = ", ".join(f"{name}=:{name}" for name in HeadRow._fields)
        values = {**stream._asdict(), **head._asdict()}
        self.execute(f"UPDATE heads SET {columns} WHERE {STREAM}", **values)


class Keys(SqlKeyStore):
    """The key store of all processes."""

    def __init__(self) -> None:
        super().__init__("memory://")

    def forget(self, user_ref: str, session_ref: str, version: int) -> None:
        """Take away a key of a session."""
        table, more = (
            ("session_keys", "")
            if version == 1
            else ("rotated_session_keys", f" AND version={version}")
        )
        with self._transactions.begin() as connection:
            connection.exec_driver_sql(
                f"DELETE FROM {table} WHERE user_ref=? AND session_ref=?{more}",
                (user_ref, session_ref),
            )
