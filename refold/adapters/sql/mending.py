"""Mending rows in a database: compare, and write, while nobody can append."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, delete, insert, select, update

from refold.adapters.keeping_rows import FROZEN
from refold.adapters.recorder import HeadRow
from refold.adapters.sql.dialect import Dialect, ErrorsTranslated
from refold.domain.ids import StreamId

T = TypeVar("T")


class SqlMending:
    """MendingRows in the database of a dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect, self._t = dialect, dialect.tables
        self._errors = ErrorsTranslated(dialect)

    def put_head(self, stream: StreamId, row: HeadRow, user_ref: str) -> bool:
        heads, events, subjects = self._t.heads, self._t.events, self._t.subjects.c
        # A head that is gone says neither that its user is frozen nor that it was
        # marked as erased; a freeze or an erasure that begins now waits for this.
        user = select(subjects.status).where(subjects.ref == user_ref)
        user = user.with_for_update(read=True)
        known = select(heads.c.status).where(*_stream(heads, stream)).with_for_update()
        last = select(events.c.seq, events.c.hash).where(*_stream(events, stream))
        last = last.order_by(events.c.seq.desc()).limit(1)
        values = row._asdict()

        def attempt(connection: Connection) -> bool:
            if connection.execute(user).scalar() not in (None, "live"):
                return False
            status = connection.execute(known).scalar()
            end = connection.execute(last).one_or_none()
            if status not in (None, *FROZEN) or end is None:  # or it is frozen
                return False
            if (end.seq, bytes(end.hash)) != (row.seq, row.hash):
                return False
            if status is None:
                names = {name: getattr(stream, name) for name in stream._fields}
                connection.execute(insert(heads).values(**names, **values))
            else:
                here = _stream(heads, stream)
                connection.execute(update(heads).where(*here).values(**values))
            return True

        return self._changing(stream, attempt)

    def ends(self, stream: StreamId) -> dict[str, int]:
        return self._changing(stream, lambda c: self._ends(c, stream))

    def _ends(self, connection: Connection, stream: StreamId) -> dict[str, int]:
        """The heads, locked until the transaction ends."""
        heads = self._t.heads.c
        query = select(heads.stream, heads.seq).where(
            heads.user_id == stream.user_id, heads.session_id == stream.session_id
        )
        found = connection.execute(query.order_by(heads.stream).with_for_update())
        return {row.stream: row.seq for row in found}

    def blob_addresses(self, stream: StreamId) -> list[bytes]:
        blobs = self._t.blobs.c
        query = select(blobs.address).where(
            blobs.user_id == stream.user_id, blobs.session_id == stream.session_id
        )
        return self._changing(
            stream, lambda connection: [bytes(one) for one in connection.scalars(query)]
        )

    def delete_blobs(
        self, stream: StreamId, addresses: tuple[bytes, ...], ends: dict[str, int]
    ) -> bool:
        blobs = self._t.blobs
        theirs = blobs.c.user_id == stream.user_id

        def attempt(connection: Connection) -> bool:
            if self._ends(connection, stream) != ends:
                return False
            for address in addresses:
                here = blobs.c.address == address
                connection.execute(delete(blobs).where(theirs, here))
            return True

        return self._changing(stream, attempt)

    def _changing(self, stream: StreamId, change: Callable[[Connection], T]) -> T:
        """One transaction that can write from its first statement on."""

        def attempt() -> T:
            with self._dialect.writing(stream.user_id) as connection:
                return change(connection)

        with self._errors:
            return self._dialect.retrying(attempt)


def _stream(table: Any, stream: StreamId) -> list[Any]:
    return [getattr(table.c, name) == getattr(stream, name) for name in stream._fields]
