"""Erasing in a database: marks on heads, and deleting in bounded steps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Table,
    delete,
    false,
    func,
    insert,
    literal_column,
    select,
    update,
)

from refold.adapters.erasing_rows import Subject
from refold.adapters.sql.dialect import Dialect
from refold.adapters.sql.erasure_records import Records
from refold.adapters.tree import Tree
from refold.domain.erasure import Remains, Whose
from refold.domain.merkle import leaf_hash, root_of

_AT_ONCE: Final = 2_000  # rows of one transaction
_PAUSE: Final = 0.5  # of the time that a transaction took: others have the disk then
_SESSIONS: Final = 200  # whose hashes are read at once


class SqlErasing(Records):
    """ErasingRows in the database of a dialect."""

    def __init__(self, dialect: Dialect, tree: Tree | None) -> None:
        super().__init__(dialect)
        self._tree = tree

    def unowned_blobs(self, user_id: str) -> bool:
        blobs = self._t.blobs.c
        query = select(blobs.size).where(*self._unowned(user_id)).limit(1)
        return bool(self._all(user_id, query, tuple))

    def own_blobs(
        self, user_id: str, session_id: str, addresses: Sequence[bytes]
    ) -> None:
        blobs = self._t.blobs

        def attempt(connection: Connection) -> None:
            for start in range(0, len(addresses), _SESSIONS):
                some = blobs.c.address.in_(addresses[start : start + _SESSIONS])
                owned = update(blobs).where(*self._unowned(user_id), some)
                connection.execute(owned.values(session_id=session_id))

        self._changing(user_id, attempt)

    def _unowned(self, user_id: str) -> tuple[Any, ...]:
        blobs = self._t.blobs.c
        return blobs.user_id == user_id, blobs.session_id.is_(None)

    def mark(self, whose: Whose) -> None:
        self._changing(whose.user_id, lambda c: self._mark(c, whose))

    def _mark(self, connection: Connection, whose: Whose) -> None:
        heads = self._t.heads
        mine = _of(heads, whose)
        order = (heads.c.user_id, heads.c.session_id, heads.c.stream)
        locked = (
            select(heads.c.seq)
            .where(*mine)
            .order_by(*order)
            .with_for_update(key_share=True)
        )
        marked = (
            update(heads)
            .where(*mine, heads.c.status != "erased")
            .values(before=heads.c.status, status="erased")
        )
        # Twice: a stream that began while the lock was waited for is seen by the
        # second, and with the main heads marked no other can begin.
        for _ in range(2):
            connection.execute(locked).all()
            connection.execute(marked)

    def unmark(self, whose: Whose, subjects: Sequence[Subject]) -> None:
        heads = self._t.heads
        back = (
            update(heads)
            .where(*_of(heads, whose), heads.c.before.is_not(None))
            .values(status=heads.c.before, before=None)
        )
        table = self._t.subjects

        def attempt(connection: Connection) -> None:
            connection.execute(back)
            for subject in subjects:
                if subject.ref == subject.user_ref:
                    self._put(connection, subject._replace(status="live"))
                else:
                    connection.execute(delete(table).where(table.c.ref == subject.ref))

        self._changing(whose.user_id, attempt)

    def adopt(self, whose: Whose) -> None:
        events, heads = self._t.events, self._t.heads
        names = ("user_id", "session_id", "stream")
        of_events, of_heads = (
            select(*(table.c[name] for name in names)).where(*_of(table, whose))
            for table in (events, heads)
        )
        lost = of_events.except_(of_heads)
        nothing = {"seq": 0, "hash": b"", "status": "erased", "state": b""}
        nothing |= {"key_check": b"", "tokens": 0, "created_at": 0, "updated_at": 0}
        found = self._all(whose.user_id, lost, tuple)
        rows = [dict(zip(names, row, strict=True)) | nothing for row in found]
        if rows:
            self._changing(whose.user_id, lambda c: c.execute(insert(heads), rows))

    def remains(self, whose: Whose) -> Remains:
        counts = self.left(whose)
        leaves = map(leaf_hash, self._hashes(whose))
        return Remains(counts, counts["events"], root_of(leaves))

    def _hashes(self, whose: Whose) -> Iterator[bytes]:
        """The hashes of all events, in the order of session, stream and seq."""
        events, heads = self._t.events.c, self._t.heads.c
        query = select(heads.session_id).where(*_of(self._t.heads, whose)).distinct()
        names = sorted(self._all(whose.user_id, query, lambda row: str(row[0])))
        for start in range(0, len(names), _SESSIONS):
            some = Whose(whose.user_id, tuple(names[start : start + _SESSIONS]))
            columns = events.session_id, events.stream, events.seq, events.hash
            query = select(*columns).where(*_of(self._t.events, some))
            for row in sorted(self._all(whose.user_id, query, tuple)):
                yield bytes(row[3])

    def left(self, whose: Whose) -> dict[str, int]:
        found = {}
        for table in self._theirs():
            query = select(func.count()).select_from(table).where(*_of(table, whose))
            found[str(table.name)] = int(self._all(whose.user_id, query, tuple)[0][0])
        return found

    def _theirs(self) -> list[Table]:
        """Every table that has rows of users, whoever added it."""
        tables = self._t.metadata.sorted_tables
        return [table for table in tables if "user_id" in table.c]

    def delete(self, whose: Whose, erasure: str) -> Iterator[tuple[str, int]]:
        self._forget_leaves(whose, erasure)
        # As long as a row is there, the head says that it is erased.
        tables = sorted(self._theirs(), key=lambda table: table is self._t.heads)
        for table in tables:
            while True:
                started = time.monotonic()
                number = self._delete_some(table, whose)
                if not number:
                    break
                yield str(table.name), number
                time.sleep((time.monotonic() - started) * _PAUSE)

    def _forget_leaves(self, whose: Whose, erasure: str) -> None:
        """Tell the tree whose leaves are whose no more."""
        if self._tree is not None:
            for session in (None,) if whose.sessions is None else whose.sessions:
                self._tree.forget(whose.user_id, session, erasure)

    def _delete_some(self, table: Table, whose: Whose) -> int:
        place: Any = literal_column(self._dialect.place)
        some = select(place).select_from(table).where(*_of(table, whose))
        doomed = delete(table).where(self._dialect.among(some.limit(_AT_ONCE)))
        done = self._changing(whose.user_id, lambda c: c.execute(doomed))
        return int(done.rowcount)

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        with self._errors:
            return self._dialect.clean(vacuum=vacuum)

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """Look for the names that nobody else's sessions have."""
        if not self._dialect.searchable:
            return {"files": {}, "names": 0, "too_short": 0}
        heads = self._t.heads.c
        query = select(heads.session_id).where(heads.session_id.in_(list(names)))
        with self._dialect.reading() as connection:
            others = set(connection.execute(query.distinct()).scalars())
        return self._dialect.found_in_files([n for n in names if n not in others])

    def tree_head(self) -> dict[str, Any] | None:
        newest = None if self._tree is None else self._tree.newest()
        return newest.head.to_json() if newest else None


def _of(table: Table, whose: Whose) -> list[Any]:
    """The conditions for rows of ``whose``; a table that knows no sessions has none."""
    mine: list[Any] = [table.c.user_id == whose.user_id]
    if whose.sessions is None:
        return mine
    if "session_id" not in table.c:
        return [false()]
    return [*mine, table.c.session_id.in_(list(whose.sessions))]
