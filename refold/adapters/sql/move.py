"""Moves: they copy the rows of a store into an empty PostgreSQL while others write.

A stream gets its head with the last of its events.  Before that, the copy has a head
that is marked as erased and ends at the last copied event.  So the events can be
deleted if they must be copied again, and an interrupted move continues after them.
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

_ROWS: Final = 500  # that are copied at once
_BLOBS: Final = 20  # that are copied at once, because one may be large
_REST: Final = 1_000  # rows that the last step may have to copy
_ROUNDS: Final = 10
_NOT_MOVED: Final = ("views", "leases")  # made again where they are needed


class Place(NamedTuple):
    """One table of a database or a key store.

    database: anything with ``read`` and ``change``.
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
        self._from = source.tables
        self._to = target.tables

    def begin(self) -> bool:
        """Claim the target, which nobody can open before the end of the move.

        Returns False if the move is complete.

        Raises StoreUnavailable, and InvalidConfiguration for a target that is not
        empty.
        """
        source_settings = settings_of(self._source)
        target_settings = settings_of(self._target)
        if "store_id" not in source_settings:
            reason = f"there is no store at {self._source.what}"
            raise StoreUnavailable(reason, remedy="name another with --db")
        if source_settings.get(MOVED_TO, self._target.what) != self._target.what:
            migrate(self._source)  # raises an error that names its new place
        if not self._source.ordered:
            reason = f"{self._source.what} has no order of all events to move"
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
            reason = f"{self._target.what} holds a store already"
            raise InvalidConfiguration(f"{reason}: move into an empty database")
        self._pass_positions()
        migrate(self._target, moving=True)
        marks = {"store_id": store_id, MOVING: self._source.what}
        self._target.change(
            None, lambda connection: put_settings(connection, self._target, marks)
        )
        return True

    def _target_has_rows(self) -> bool:
        """Whether a table of the target has rows, apart from settings."""
        for table in self._to.metadata.sorted_tables:
            if table.name != "settings" and _count(Place(self._target, table)):
                return True
        return False

    def copy(self) -> None:
        """Copy rows, and then again new ones, until few rows are left."""
        for _ in range(_ROUNDS):
            if self._round() <= _REST:
                return

    def end(self, copy_keys: Callable[[], None] | None = None) -> dict[str, int]:
        """Lock out all writers, copy the rest, compare, and close the old store.

        copy_keys: called before the old store is closed.

        Returns the number of rows by table.  Raises RefoldError, and leaves the old
        store open, if the copy differs.
        """

        def finish() -> dict[str, int]:
            self._round()
            counts = self._compare()
            if copy_keys is not None:
                copy_keys()
            with self._target.errors:
                self._target.flush()
            return counts

        def close(connection: sa.Connection) -> dict[str, int]:
            put_settings(connection, self._source, {MOVED_TO: self._target.what})
            self._source.refuse_writes(connection, self._target.what)
            return finish()  # an error or a kill rolls everything back

        # An earlier call may have been killed before it removed the mark.
        is_closed = MOVED_TO in settings_of(self._source)
        counts = finish() if is_closed else self._source.change(None, close)
        mark = self._to.settings.c.name == MOVING
        self._target.run(None, sa.delete(self._to.settings).where(mark))
        return counts

    def _both(self, name: str) -> tuple[Place, Place]:
        """Return a table in the source and in the target."""
        return (
            Place(self._source, getattr(self._from, name)),
            Place(self._target, getattr(self._to, name)),
        )

    def _names(self) -> list[str]:
        """Return the names of the tables to move, in their order."""
        names = [str(table.name) for table in self._from.metadata.sorted_tables]
        return [name for name in names if name not in _NOT_MOVED]

    def _round(self) -> int:
        """Make the target equal to the source; returns the number of changed rows."""
        changed = self._copy_streams()
        for name in self._names():
            if name not in ("heads", "events"):
                source, target = self._both(name)
                changed += sync_table(source, target)
        self._pass_positions()
        if self._on_progress is not None:
            self._on_progress(changed)
        return changed

    def _copy_streams(self) -> int:
        """Copy missing events, each stream in order; returns the number of rows."""
        source, target = self._both("heads")
        copied = 0
        rows: list[Any] = []
        heads: list[Any] = []
        for page in _pages(source):
            target_heads = _same_keys(target, page)
            for head in page:
                target_head = target_heads.get(tuple(head[:3]))
                for events, end in self._parts(head, target_head):
                    rows += events
                    heads.append(end)
                    if len(rows) + len(heads) >= _ROWS:
                        copied += self._put(rows, heads)
                        rows = []
                        heads = []
        copied += self._put(rows, heads)
        for keys in _surplus_keys(source, target):
            for key in keys:
                self._wipe(key)
            self._target.change(None, partial(_replace, target.table, keys, []))
        return copied

    def _parts(
        self, head: Any, target_head: Any
    ) -> Iterator[tuple[Sequence[Any], Any]]:
        """Yield missing events of a stream in parts, each with the head to store.

        head:        of the source.
        target_head: of the target; None if it has none.
        """
        is_erased = head.status == "erased"
        if head == target_head and not (is_erased and self._events_differ(head[:3])):
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
                self._wipe(head[:3])
            else:
                after = target_head.seq
        events = self._from.events
        query = sa.select(events).where(of_stream(events, head[:3]))
        query = query.order_by(events.c.seq).limit(_ROWS)
        if not is_erased:
            query = query.where(events.c.seq <= head.seq)
        while page := self._source.read(None, query.where(events.c.seq > after)):
            if len(page) < _ROWS:
                break
            after = page[-1].seq
            yield page, {**head._mapping, "seq": after, "status": "erased"}
        yield page, head._mapping

    def _events_differ(self, stream: Sequence[str]) -> bool:
        """Whether source and target have different numbers of events of a stream."""
        source, target = self._both("events")
        in_source = _count(source, of_stream(source.table, stream))
        return in_source != _count(target, of_stream(target.table, stream))

    def _put(self, rows: Sequence[Any], ends: Sequence[Any]) -> int:
        """Store events together with their heads; returns the number of rows."""
        events = self._to.events
        heads = self._to.heads
        keys = [_key(heads, end) for end in ends]

        def put(connection: sa.Connection) -> None:
            if rows:
                values = [dict(row._mapping) for row in rows]
                connection.execute(sa.insert(events), values)
            _replace(heads, keys, [dict(end) for end in ends], connection)

        if ends:
            self._target.change(None, put)
        return len(rows) + len(ends)

    def _wipe(self, stream: Sequence[str]) -> None:
        """Delete a stream's events in the target; its head is marked as erased."""
        heads = self._to.heads
        events = self._to.events
        mark = sa.update(heads).where(of_stream(heads, stream))
        self._target.run(None, mark.values(status="erased", seq=0))
        self._target.run(None, sa.delete(events).where(of_stream(events, stream)))

    def _compare(self) -> dict[str, int]:
        """Compare the numbers of rows, and every head; returns the numbers by table."""
        counts: dict[str, int] = {}
        for name in self._names():
            source, target = self._both(name)
            counts[name] = _count(source)
            _check(name, counts[name], _count(target))
        source, target = self._both("heads")
        equal = 0
        for page in _pages(source):
            target_heads = _same_keys(target, page)
            for head in page:
                if target_heads.get(tuple(head[:3])) == head:
                    equal += 1
        _check("equal heads", counts["heads"], equal)
        return counts

    def _pass_positions(self) -> None:
        """Let the target give later positions to new events.

        Moved events keep their positions, because seals contain them.
        """
        if not self._target.ordered:
            return
        highest = 0
        for column in (self._from.events.c.position, self._from.tree_heads.c.position):
            ((position,),) = self._source.read(None, sa.select(sa.func.max(column)))
            highest = max(highest, int(position or 0))
        self._target.pass_position(highest)


def sync_table(source: Place, target: Place) -> int:
    """Make a table of the target equal to the source; returns how many rows changed.

    Blobs are compared by size and time, because each is written only once.
    """
    changed = 0
    batch_size = _BLOBS if source.table.name == "blobs" else _ROWS
    for page in _pages(source):
        target_rows = _same_keys(target, page)
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


def _surplus_keys(source: Place, target: Place) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the keys of rows that only the target has, if the counts differ."""
    if _count(source) == _count(target):
        return
    for page in _pages(target):
        source_rows = _same_keys(source, page)
        keys = [_key(target.table, row) for row in page]
        yield [key for key in keys if key not in source_rows]


def _replace(
    table: sa.Table, keys: Sequence[Any], rows: Sequence[Any], connection: sa.Connection
) -> None:
    """Replace the rows with these keys."""
    connection.execute(sa.delete(table).where(_among(table, keys)))
    if rows:
        connection.execute(sa.insert(table), rows)


def _query(table: sa.Table) -> Any:
    """Return the query for a table's rows.

    For blobs, it selects the length of the text.  The settings of a move are left out.
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


def _pages(place: Place) -> Iterator[Sequence[Any]]:
    """Yield the rows of a table in pages, in the order of their keys."""
    keys = list(place.table.primary_key)
    query = _query(place.table).order_by(*keys).limit(_ROWS)
    page = place.database.read(None, query)
    while page:
        yield page
        values = zip(_key(place.table, page[-1]), keys, strict=True)
        last = sa.tuple_(*(sa.literal(value, key.type) for value, key in values))
        page = place.database.read(None, query.where(sa.tuple_(*keys) > last))


def _same_keys(place: Place, page: Sequence[Any]) -> dict[tuple[Any, ...], Any]:
    """Return the rows with the keys of these rows, by key."""
    keys = [_key(place.table, row) for row in page]
    query = _query(place.table).where(_among(place.table, keys))
    rows = {}
    for row in place.database.read(None, query):
        rows[_key(place.table, row)] = row
    return rows


def _key(table: sa.Table, row: Any) -> tuple[Any, ...]:
    """Return the primary key of a row."""
    values = getattr(row, "_mapping", row)
    return tuple(values[column.name] for column in table.primary_key)


def _among(table: sa.Table, keys: Sequence[Any]) -> Any:
    """Return the condition for rows with these keys."""
    return sa.tuple_(*table.primary_key).in_(keys)


def _count(place: Place, *where: Any) -> int:
    """Return the number of rows that meet the conditions."""
    query = _query(place.table)
    query = query.with_only_columns(sa.func.count(), maintain_column_froms=True)
    ((number,),) = place.database.read(None, query.where(*where))
    return int(number)


def _check(subject: str, here: int, there: int) -> None:
    """Raise RefoldError if the copy has another number."""
    if here != there:
        raise RefoldError(
            f"the copy differs ({subject}: {here} here, {there} there), so the store "
            "is still here: see `refold verify`, and move it again"
        )
