"""Moves: they copy the rows of a store into an empty PostgreSQL while others write.

The events of a long stream are copied in parts.  Until the last part, the head of the
copy has the seq of the last copied event, so an interrupted move continues after it.
That head also has the status of an erased stream: only then does the database let
events be deleted, which is necessary if they must be copied again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from refold.adapters.sql.database import Database
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.schema import (
    MOVED_TO,
    MOVING,
    migrate,
    put_settings,
    settings_of,
)
from refold.adapters.sql.tables import of_stream
from refold.domain.errors import InvalidConfiguration, RefoldError, StoreUnavailable

_ROWS_PER_COPY: Final = 500
_BLOBS_PER_COPY: Final = 20  # because one may be large
# Rounds of copying end when a round copied no more rows than this, or after so many.
_FEW_ROWS: Final = 1_000
_MOST_ROUNDS: Final = 10
_NOT_MOVED: Final = ("views", "leases")  # the new store makes its own


class TableOf(NamedTuple):
    """A table, and the database or key store that has it.

    database: an object with the methods ``read`` and ``change`` of ``Database``.
    """

    database: Any
    table: sa.Table


class Move:
    """The move of a store into another database.

    on_progress: called after each round with the number of rows that it copied.
    """

    def __init__(
        self,
        source: Database,
        target: PostgresDatabase,
        on_progress: Callable[[int], object] | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._on_progress = on_progress
        self._source_tables = source.tables
        self._target_tables = target.tables

    def begin(self) -> bool:
        """Claim the target, which nobody can open before the end of the move.

        Returns False if the move is complete.

        Raises StoreUnavailable, and InvalidConfiguration for a target that is not
        empty.
        """
        source_settings = settings_of(self._source)
        target_settings = settings_of(self._target)
        if "store_id" not in source_settings:
            reason = f"there is no store at {self._source.shown_name}"
            raise StoreUnavailable(reason, remedy="name another with --db")
        moved_to = source_settings.get(MOVED_TO)
        if moved_to is not None and moved_to != self._target.shown_name:
            migrate(self._source)  # raises the error that names the other database
        if not self._source.ordered:
            reason = f"{self._source.shown_name} has no order of all events to move"
            raise InvalidConfiguration(f"{reason}: a store stays on Citus")
        store_id = source_settings["store_id"]
        is_same_store = target_settings.get("store_id") == store_id
        is_moving = MOVING in target_settings
        if is_same_store and MOVED_TO in source_settings and not is_moving:
            return False
        if is_same_store and is_moving:
            return True
        migrate(self._source)
        if is_same_store or (target_settings and self._target_has_rows()):
            reason = f"{self._target.shown_name} holds a store already"
            raise InvalidConfiguration(f"{reason}: move into an empty database")
        self._advance_positions()
        migrate(self._target, moving=True)
        settings = {"store_id": store_id, MOVING: self._source.shown_name}
        self._target.change(
            None, lambda connection: put_settings(connection, self._target, settings)
        )
        return True

    def _target_has_rows(self) -> bool:
        """Whether a table of the target has rows, apart from settings."""
        for table in self._target_tables.metadata.sorted_tables:
            if table.name != "settings" and _count(TableOf(self._target, table)):
                return True
        return False

    def copy(self) -> None:
        """Copy rows, and then again new ones, until few rows are left."""
        for _ in range(_MOST_ROUNDS):
            if self._copy_changes() <= _FEW_ROWS:
                return

    def end(self, copy_keys: Callable[[], None] | None = None) -> dict[str, int]:
        """Block all writers, copy the last rows, compare, and close the old store.

        copy_keys: called before the old store is closed.

        Returns the number of rows by table.  Raises RefoldError, and leaves the old
        store open, if the copy differs.
        """

        def finish() -> dict[str, int]:
            self._copy_changes()
            counts = self._compare()
            if copy_keys is not None:
                copy_keys()
            with self._target.errors:
                self._target.flush()
            return counts

        def close(connection: sa.Connection) -> dict[str, int]:
            put_settings(connection, self._source, {MOVED_TO: self._target.shown_name})
            self._source.refuse_writes(connection, self._target.shown_name)
            return finish()  # an error or a kill rolls everything back

        # An earlier call may have been killed before it removed the mark.
        is_closed = MOVED_TO in settings_of(self._source)
        counts = finish() if is_closed else self._source.change(None, close)
        settings = self._target_tables.settings
        self._target.run(None, sa.delete(settings).where(settings.c.name == MOVING))
        return counts

    def _both(self, name: str) -> tuple[TableOf, TableOf]:
        """Return a table in the source and in the target."""
        return (
            TableOf(self._source, getattr(self._source_tables, name)),
            TableOf(self._target, getattr(self._target_tables, name)),
        )

    def _names(self) -> list[str]:
        """Return the names of the tables to move, in their order."""
        names = [
            str(table.name) for table in self._source_tables.metadata.sorted_tables
        ]
        return [name for name in names if name not in _NOT_MOVED]

    def _copy_changes(self) -> int:
        """Make the target equal to the source; returns the number of changed rows."""
        changed = self._copy_streams()
        for name in self._names():
            if name not in ("heads", "events"):
                source, target = self._both(name)
                changed += sync_table(source, target)
        self._advance_positions()
        if self._on_progress is not None:
            self._on_progress(changed)
        return changed

    def _copy_streams(self) -> int:
        """Copy missing events, each stream in order; returns the number of rows."""
        source, target = self._both("heads")
        copied = 0
        events: list[Any] = []
        heads: list[Any] = []
        for page in _pages(source):
            target_heads = _rows_with_keys_of(page, target)
            for head in page:
                target_head = target_heads.get(_stream_of(head))
                for part, head_of_part in self._parts(head, target_head):
                    events += part
                    heads.append(head_of_part)
                    if len(events) + len(heads) >= _ROWS_PER_COPY:
                        copied += self._put(events, heads)
                        events = []
                        heads = []
        copied += self._put(events, heads)
        for keys in _surplus_keys(source, target):
            for key in keys:
                self._wipe(key)
            self._target.change(None, partial(_replace, target.table, keys, []))
        return copied

    def _parts(
        self, head: Any, target_head: Any
    ) -> Iterator[tuple[Sequence[Any], Any]]:
        """Yield missing events of a stream in parts, each with the head to store.

        head:        the head of the stream in the source.
        target_head: its head in the target; None if it has none.
        """
        stream = _stream_of(head)
        is_erased = head.status == "erased"
        # An erasure deletes events without a change of the head.
        if head == target_head and not (is_erased and self._events_differ(stream)):
            return
        after = 0
        if target_head is not None:
            # During an erasure, any event may be deleted.  A rewritten stream, and one
            # that was erased and began again, has another key.
            must_restart = (
                is_erased
                or target_head.key_check != head.key_check
                or target_head.seq > head.seq
            )
            if must_restart:
                self._wipe(stream)
            else:
                after = target_head.seq
        events = self._source_tables.events
        query = sa.select(events).where(of_stream(events, stream))
        query = query.order_by(events.c.seq).limit(_ROWS_PER_COPY)
        if not is_erased:
            query = query.where(events.c.seq <= head.seq)
        page = self._source.read(None, query.where(events.c.seq > after))
        while len(page) == _ROWS_PER_COPY:
            after = page[-1].seq
            yield page, {**head._mapping, "seq": after, "status": "erased"}
            page = self._source.read(None, query.where(events.c.seq > after))
        yield page, head._mapping  # the last part, which may be empty

    def _events_differ(self, stream: Sequence[str]) -> bool:
        """Whether source and target have different numbers of events of a stream."""
        source, target = self._both("events")
        in_source = _count(source, of_stream(source.table, stream))
        return in_source != _count(target, of_stream(target.table, stream))

    def _put(self, events: Sequence[Any], heads: Sequence[Any]) -> int:
        """Store events together with their heads; returns the number of rows."""
        heads_table = self._target_tables.heads
        keys = [_key(heads_table, head) for head in heads]

        def put(connection: sa.Connection) -> None:
            if events:
                values = [dict(event._mapping) for event in events]
                connection.execute(sa.insert(self._target_tables.events), values)
            _replace(heads_table, keys, [dict(head) for head in heads], connection)

        if heads:
            self._target.change(None, put)
        return len(events) + len(heads)

    def _wipe(self, stream: Sequence[str]) -> None:
        """Delete a stream's events in the target, and mark its head as erased."""
        heads = self._target_tables.heads
        events = self._target_tables.events
        update_head = sa.update(heads).where(of_stream(heads, stream))
        self._target.run(None, update_head.values(status="erased", seq=0))
        self._target.run(None, sa.delete(events).where(of_stream(events, stream)))

    def _compare(self) -> dict[str, int]:
        """Compare the numbers of rows, and every head; returns the numbers by table."""
        counts: dict[str, int] = {}
        for name in self._names():
            source, target = self._both(name)
            counts[name] = _count(source)
            _check(name, counts[name], _count(target))
        source, target = self._both("heads")
        equal_heads = 0
        for page in _pages(source):
            target_heads = _rows_with_keys_of(page, target)
            for head in page:
                if target_heads.get(_stream_of(head)) == head:
                    equal_heads += 1
        _check("equal heads", counts["heads"], equal_heads)
        return counts

    def _advance_positions(self) -> None:
        """Make the target give new events later positions than those of moved events.

        Moved events keep their positions, because seals contain them.
        """
        if not self._target.ordered:
            return
        highest = 0
        tables = self._source_tables
        for column in (tables.events.c.position, tables.tree_heads.c.position):
            ((position,),) = self._source.read(None, sa.select(sa.func.max(column)))
            highest = max(highest, int(position or 0))
        self._target.advance_past(highest)


def sync_table(source: TableOf, target: TableOf) -> int:
    """Make a table of the target equal to the source; returns how many rows changed.

    Blobs are compared by size and time, because each is written only once.
    """
    changed = 0
    is_of_blobs = source.table.name == "blobs"
    batch_size = _BLOBS_PER_COPY if is_of_blobs else _ROWS_PER_COPY
    for page in _pages(source):
        target_rows = _rows_with_keys_of(page, target)
        different: list[tuple[Any, ...]] = []
        for row in page:
            key = _key(source.table, row)
            if target_rows.get(key) != row:
                different.append(key)
        for start in range(0, len(different), batch_size):
            keys = different[start : start + batch_size]
            query = sa.select(source.table).where(_among(source.table, keys))
            rows = [dict(row._mapping) for row in source.database.read(None, query)]
            target.database.change(None, partial(_replace, target.table, keys, rows))
            changed += len(rows)
    for keys in _surplus_keys(source, target):
        target.database.change(None, partial(_replace, target.table, keys, []))
        changed += len(keys)
    return changed


def _surplus_keys(source: TableOf, target: TableOf) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the keys of rows that only the target has, if the counts differ."""
    if _count(source) == _count(target):
        return
    for page in _pages(target):
        source_rows = _rows_with_keys_of(page, source)
        keys = [_key(target.table, row) for row in page]
        yield [key for key in keys if key not in source_rows]


def _replace(
    table: sa.Table, keys: Sequence[Any], rows: Sequence[Any], connection: sa.Connection
) -> None:
    """Delete the rows with these keys, then insert ``rows``."""
    connection.execute(sa.delete(table).where(_among(table, keys)))
    if rows:
        connection.execute(sa.insert(table), rows)


def _select(table: sa.Table) -> Any:
    """Return the query for the rows of a table, in the form in which they are compared.

    A blob has the length of its text instead of the text.  The settings of a move are
    left out.
    """
    columns: list[Any] = []
    for column in table.c:
        if table.name == "blobs" and column.name == "body":
            columns.append(sa.func.length(column))
        else:
            columns.append(column)
    query = sa.select(*columns)
    if table.name == "settings":
        query = query.where(table.c.name.not_in((MOVED_TO, MOVING)))
    return query


def _pages(source: TableOf) -> Iterator[Sequence[Any]]:
    """Yield the rows of a table in pages, in the order of their keys."""
    columns = list(source.table.primary_key)
    query = _select(source.table).order_by(*columns).limit(_ROWS_PER_COPY)
    page = source.database.read(None, query)
    while page:
        yield page
        last_key: list[Any] = []
        for column, value in zip(columns, _key(source.table, page[-1]), strict=True):
            last_key.append(sa.literal(value, column.type))
        is_after = sa.tuple_(*columns) > sa.tuple_(*last_key)
        page = source.database.read(None, query.where(is_after))


def _rows_with_keys_of(
    page: Sequence[Any], other: TableOf
) -> dict[tuple[Any, ...], Any]:
    """Return the rows of the other table that have the keys of these rows, by key."""
    keys = [_key(other.table, row) for row in page]
    query = _select(other.table).where(_among(other.table, keys))
    rows = {}
    for row in other.database.read(None, query):
        rows[_key(other.table, row)] = row
    return rows


def _stream_of(head: Any) -> tuple[str, str, str]:
    """Return the key of a head's stream: its user, session, and name."""
    user_id, session_id, stream, *_ = head
    return (user_id, session_id, stream)


def _key(table: sa.Table, row: Any) -> tuple[Any, ...]:
    """Return the primary key of a row."""
    values = getattr(row, "_mapping", row)
    return tuple(values[column.name] for column in table.primary_key)


def _among(table: sa.Table, keys: Sequence[Any]) -> Any:
    """Return the condition for rows with these keys."""
    return sa.tuple_(*table.primary_key).in_(keys)


def _count(source: TableOf, *where: Any) -> int:
    """Return the number of rows that meet the conditions."""
    query = _select(source.table)
    query = query.with_only_columns(sa.func.count(), maintain_column_froms=True)
    ((number,),) = source.database.read(None, query.where(*where))
    return int(number)


def _check(subject: str, here: int, there: int) -> None:
    """Raise RefoldError if the numbers of the source and the target differ.

    here:  the number of the source.
    there: the number of the target.
    """
    if here != there:
        raise RefoldError(
            f"the copy differs ({subject}: {here} here, {there} there), so the store "
            "is still here: see `refold verify`, and move it again"
        )
