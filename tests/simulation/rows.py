"""The rows and keys that simulated processes share: a database in memory.

Every write is one transaction; the simulation adds waiting, deaths and lost answers.
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
    """The recorder, without group commits: the simulation adds those."""

    def __init__(self) -> None:
        super().__init__(memory_database())

    def write(self, batch: Batch) -> WriteOutcome:
        outcome = self.commit(batch)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def commit(self, batch: Batch) -> WriteOutcome | Exception:
        """Write a batch if its head is the expected one."""
        (outcome,) = self.database.write_group([batch])
        return outcome

    def leases_held(self) -> tuple[tuple[StreamId, str], ...]:
        """The leases that writes of the current task need, each with its owner."""
        return self.database.fences.leases

    def check_fences(self) -> None:
        """Raise LeaseLost if another owner has one of them."""
        self.database.check_leases()

    def execute(self, statement: str, **values: Any) -> list[Any]:
        """Execute a statement in its own transaction, and return its rows."""
        with self.database.writing() as connection:
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else [None] * result.rowcount

    def lease(self, stream: StreamId) -> tuple[str, int] | None:
        """Return the owner of the stream's lease, and its end."""
        rows = self.execute(
            f"SELECT owner, expires_at FROM leases WHERE {STREAM}", **stream._asdict()
        )
        return tuple(rows[0]) if rows else None

    def put_head(self, stream: StreamId, head: HeadRow) -> None:
        """Set the head unconditionally."""
        columns = ", ".join(f"{name}=:{name}" for name in HeadRow._fields)
        values = {**stream._asdict(), **head._asdict()}
        self.execute(f"UPDATE heads SET {columns} WHERE {STREAM}", **values)


class Keys(SqlKeyStore):
    """The key store of all processes."""

    def __init__(self) -> None:
        super().__init__("memory://")

    def forget(self, user_ref: str, session_ref: str, version: int) -> None:
        """Remove a key of a session."""
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
