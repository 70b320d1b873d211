"""The table of audit records: written a batch at a time, read by user, gone by age."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import orjson
from sqlalchemy import Connection, delete, literal_column, select, update

from refold.adapters.access_log import record_id
from refold.adapters.sql.database import NOBODY, Database
from refold.domain.access_log import AuditRecord

_AT_ONCE: Final = 2_000  # rows of one transaction
_NAMES: Final = ("user_hash", "session_hash", "request_hash", "state_version")
T = TypeVar("T")


class SqlAudit:
    """The AuditRows in the database of a dialect."""

    def __init__(self, dialect: Database) -> None:
        self._database, self._t = dialect, dialect.tables.audit
        columns = self._t.c.keys()
        marks = ", ".join([dialect.mark] * len(columns))
        self._insert = (
            f"INSERT INTO {self._t.fullname} ({', '.join(columns)}) VALUES ({marks}) "
            "ON CONFLICT DO NOTHING"
        )

    def write(self, records: Sequence[AuditRecord]) -> None:
        rows = [_row(record) for record in records]

        def attempt() -> None:
            with self._database.casual() as connection:
                connection.exec_driver_sql(self._insert, rows)

        if rows:
            self._database.attempt(attempt)

    def find(
        self,
        *,
        user: str | None = None,
        session: str | None = None,
        since: int | None = None,
        limit: int,
        after: bytes = b"",
    ) -> list[AuditRecord]:
        table = self._t
        query = select(*table.c).where(table.c.record_id > after)
        if since is not None:
            query = query.where(table.c.record_id >= record_id(since))
        for column, name in (
            (table.c.user_hash, user),
            (table.c.session_hash, session),
        ):
            if name is not None:
                query = query.where(column == name)
        query = query.order_by(table.c.record_id).limit(limit)
        return [_record(row) for row in self._database.read(NOBODY, query)]

    def purge(self, before: int) -> Iterator[int]:
        old = self._t.c.record_id < record_id(before)
        return self._each(old, lambda mine: delete(self._t).where(mine))

    def forget(self, user: str, sessions: Sequence[str] | None = None) -> int:
        found = self._t.c.user_hash == user
        if sessions is not None:
            found &= self._t.c.session_hash.in_(list(sessions))
        nothing = dict.fromkeys(_NAMES)
        changed = self._each(
            found, lambda mine: update(self._t).where(mine).values(nothing)
        )
        return sum(changed)

    def _each(self, found: Any, change: Callable[[Any], Any]) -> Iterator[int]:
        """Change what is found, some rows at a time, until there are none."""
        place: Any = literal_column(self._database.place)
        some = select(place).select_from(self._t).where(found).limit(_AT_ONCE)
        statement = change(self._database.among(some))

        def some_more(connection: Connection) -> int:
            return int(connection.execute(statement).rowcount)

        while number := self._database.change(NOBODY, some_more):
            yield number

    def close(self) -> None:
        """The database is the recorder's to close."""


def _row(record: AuditRecord) -> tuple[Any, ...]:
    """In the order of the columns, which is that of the record's fields."""
    return (*record[:-1], orjson.dumps(record.meta).decode())


def _record(row: Any) -> AuditRecord:
    counts = orjson.loads(row[-1])
    return AuditRecord._make((bytes(row[0]), *row[1:-1], counts))
