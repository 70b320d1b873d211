"""Moving a store: its rows into an empty PostgreSQL, as they are, while others write.

A head is put there with the last of its events; before that it stands there as erased,
at the last event there, which lets its events be deleted if they must be copied anew.
So who was killed goes on from what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

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

_ROWS: Final = 500  # at once
_BLOBS: Final = 20  # at once: one may be large
_REST: Final = 1_000  # rows that are left for the last step, if writers allow it
_ROUNDS: Final = 10
_AGAIN: Final = ("views", "leases")  # not moved: whoever needs them makes them again


# A database or a key store, and one of its tables: both have ``read`` and ``change``.
Place: TypeAlias = tuple[Any, sa.Table]


class Move:
    """The move of a store into a database; ``told`` hears of rows copied in a round."""

    def __init__(
        self, source: Database, target: PostgresDatabase, told: Callable[[int], object]
    ) -> None:
        self._source, self._target, self._told = source, target, told
        self._from, self._to = source.tables, target.tables

    def begin(self) -> bool:
        """Claim the database, which is not opened until the end; False if it is done.

        Raises StoreUnavailable, and InvalidConfiguration for one that is not empty.
        """
        ours, theirs = settings_of(self._source), settings_of(self._target)
        if "store_id" not in ours:
            what = f"there is no store at {self._source.what}"
            raise StoreUnavailable(what, remedy="name another with --db")
        if ours.get(MOVED_TO, self._target.what) != self._target.what:
            migrate(self._source)  # says where it is
        if not self._source.ordered:
            what = f"{self._source.what} has no order of all events to move"
            raise InvalidConfiguration(f"{what}: a store stays on Citus")
        mine = theirs.get("store_id") == ours["store_id"]
        if mine and MOVED_TO in ours and MOVING not in theirs:
            return False
        if not (mine and MOVING in theirs):
            migrate(self._source)
            every = self._to.metadata.sorted_tables if theirs else ()
            filled = (_count((self._target, t)) for t in every if t.name != "settings")
            if mine or any(filled):
                what = f"{self._target.what} holds a store already"
                raise InvalidConfiguration(f"{what}: move into an empty database")
            self._pass_positions()
            migrate(self._target, moving=True)
            marks = {"store_id": ours["store_id"], MOVING: self._source.what}
            self._target.change(
                None, lambda connection: put_settings(connection, self._target, marks)
            )
        return True

    def copy(self) -> None:
        """Copy what is there, and again what came meanwhile, until that is little."""
        rounds = (self._round() for _ in range(_ROUNDS))
        next((done for done in rounds if done <= _REST), None)

    def end(self, also: Callable[[], object]) -> dict[str, int]:
        """Keep all writers out, copy the rest, compare, and close the old store.

        ``also`` is done before that.  Returns how many rows there are, by table.
        Raises RefoldError, and leaves the old store open, if both differ.
        """

        def finished() -> dict[str, int]:
            self._round()
            counts = self._compared()
            also()
            with self._target.errors:
                self._target.flush()
            return counts

        def closed(connection: sa.Connection) -> dict[str, int]:
            put_settings(connection, self._source, {MOVED_TO: self._target.what})
            self._source.refuse_writes(connection, self._target.what)
            return finished()  # undone as a whole if that raises, or is killed

        done = MOVED_TO in settings_of(self._source)  # killed before the last line
        counts = finished() if done else self._source.change(None, closed)
        mark = self._to.settings.c.name == MOVING
        self._target.run(None, sa.delete(self._to.settings).where(mark))
        return counts

    def _both(self, name: str) -> tuple[Place, Place]:
        ours, theirs = getattr(self._from, name), getattr(self._to, name)
        return (self._source, ours), (self._target, theirs)

    def _names(self) -> list[str]:
        found = (str(table.name) for table in self._from.metadata.sorted_tables)
        return [name for name in found if name not in _AGAIN]

    def _round(self) -> int:
        """Make the target what the source is now; returns how many rows that took."""
        done = self._streams()
        for name in self._names():
            if name not in ("heads", "events"):
                done += level(*self._both(name))
        self._pass_positions()
        self._told(done)
        return done

    def _streams(self) -> int:
        """Copy the events that are not there yet, each stream in order."""
        here, there = self._both("heads")
        done, rows, ends = 0, list[Any](), list[Any]()
        for page in _pages(here):
            known = _known(there, page)
            for head in page:
                for events, end in self._pieces(head, known.get(tuple(head[:3]))):
                    rows += events
                    ends.append(end)
                    if len(rows) + len(ends) >= _ROWS:
                        done += self._put(rows, ends)
                        rows, ends = [], []
        done += self._put(rows, ends)
        for keys in _gone(here, there):
            for key in keys:
                self._wipe(key)
            self._target.change(None, partial(_replace, there[1], keys, []))
        return done

    def _pieces(self, head: Any, there: Any) -> Iterator[tuple[Sequence[Any], Any]]:
        """Events with the head that is put with them, a part at a time."""
        erased = head.status == "erased"
        if head == there and not (
            erased and len({*self._counts("events", head[:3])}) > 1
        ):
            return
        # Of what is being erased any events may be gone; what was rewritten, and what
        # was erased and began again, has another key.
        anew = there is None or erased or there.key_check != head.key_check
        if there is not None and (anew := anew or there.seq > head.seq):
            self._wipe(head[:3])
        events, after = self._from.events, 0 if anew else there.seq
        query = sa.select(events).where(of_stream(events, head[:3]))
        query = query.order_by(events.c.seq).limit(_ROWS)
        if not erased:
            query = query.where(events.c.seq <= head.seq)
        while page := self._source.read(None, query.where(events.c.seq > after)):
            if len(page) < _ROWS:
                break
            after = page[-1].seq
            yield page, {**head._mapping, "seq": after, "status": "erased"}
        yield page, head._mapping

    def _counts(self, name: str, stream: Sequence[str] = ()) -> list[int]:
        """How many rows there are here and there, of the stream or of all."""
        return [
            _count(place, *([of_stream(place[1], stream)] if stream else ()))
            for place in self._both(name)
        ]

    def _put(self, rows: Sequence[Any], ends: Sequence[Any]) -> int:
        """Put events and the heads that they end at, together."""
        events, heads = self._to.events, self._to.heads
        keys = [_key(heads, end) for end in ends]

        def put(connection: sa.Connection) -> None:
            if rows:
                connection.execute(sa.insert(events), [dict(r._mapping) for r in rows])
            _replace(heads, keys, [dict(end) for end in ends], connection)

        if ends:
            self._target.change(None, put)
        return len(rows) + len(ends)

    def _wipe(self, stream: Sequence[str]) -> None:
        """Delete a stream's events there; its head stays, as erased."""
        heads, events = self._to.heads, self._to.events
        mark = sa.update(heads).where(of_stream(heads, stream))
        self._target.run(None, mark.values(status="erased", seq=0))
        self._target.run(None, sa.delete(events).where(of_stream(events, stream)))

    def _compared(self) -> dict[str, int]:
        """How many rows each table has here and there, after comparing every head."""
        found: dict[str, int] = {}
        for name in self._names():
            found[name], there = self._counts(name)
            _check(name, found[name], there)
        ours, theirs = self._both("heads")
        same = 0
        for page in _pages(ours):
            known = _known(theirs, page)
            same += sum(known.get(tuple(head[:3])) == head for head in page)
        _check("equal heads", found["heads"], same)
        return found

    def _pass_positions(self) -> None:
        """Seals are over positions, so they stay; what comes later is behind them."""
        if not self._target.ordered:
            return
        places = self._from.events.c.position, self._from.tree_heads.c.position
        found = [self._source.read(None, sa.select(sa.func.max(p))) for p in places]
        self._target.pass_position(max(int(rows[0][0] or 0) for rows in found))


def level(here: Place, there: Place) -> int:
    """Put, replace and delete rows until both are the same; returns how many.

    A blob is told from another by its size and time: each is written once.
    """
    (ours, table), (theirs, other) = here, there
    done, most = 0, _BLOBS if table.name == "blobs" else _ROWS
    for page in _pages(here):
        known = _known(there, page)
        keys = [key for row in page if known.get(key := _key(table, row)) != row]
        for some in (keys[at : at + most] for at in range(0, len(keys), most)):
            found = ours.read(None, sa.select(table).where(_among(table, some)))
            rows = [dict(row._mapping) for row in found]
            theirs.change(None, partial(_replace, other, some, rows))
            done += len(rows)
    for keys in _gone(here, there):
        theirs.change(None, partial(_replace, other, keys, []))
        done += len(keys)
    return done


def _gone(here: Place, there: Place) -> Iterator[list[tuple[Any, ...]]]:
    """The keys of rows that are there alone, if more are there."""
    if _count(here) != _count(there):
        for page in _pages(there):
            known = _known(here, page)
            yield [key for row in page if (key := _key(there[1], row)) not in known]


def _replace(
    table: sa.Table, keys: Sequence[Any], rows: Sequence[Any], connection: sa.Connection
) -> None:
    connection.execute(sa.delete(table).where(_among(table, keys)))
    if rows:
        connection.execute(sa.insert(table), rows)


def _query(table: sa.Table) -> Any:
    """Rows, but of what a blob holds only the length; none that say of a move."""
    long = table.c.body if table.name == "blobs" else None
    query = sa.select(*(sa.func.length(c) if c is long else c for c in table.c))
    if table.name == "settings":
        query = query.where(table.c.name.not_in((MOVED_TO, MOVING)))
    return query


def _pages(place: Place) -> Iterator[Sequence[Any]]:
    rows, table = place
    keys = list(table.primary_key)
    query = _query(table).order_by(*keys).limit(_ROWS)
    page = rows.read(None, query)
    while page:
        yield page
        last = zip(_key(table, page[-1]), keys, strict=True)
        behind = sa.tuple_(*(sa.literal(value, key.type) for value, key in last))
        page = rows.read(None, query.where(sa.tuple_(*keys) > behind))


def _known(place: Place, page: Sequence[Any]) -> dict[tuple[Any, ...], Any]:
    """The rows of the same keys as those of a page, by key."""
    rows, table = place
    found = _query(table).where(_among(table, [_key(table, row) for row in page]))
    return {_key(table, row): row for row in rows.read(None, found)}


def _key(table: sa.Table, row: Any) -> tuple[Any, ...]:
    values = getattr(row, "_mapping", row)
    return tuple(values[column.name] for column in table.primary_key)


def _among(table: sa.Table, keys: Sequence[Any]) -> Any:
    return sa.tuple_(*table.primary_key).in_(keys)


def _count(place: Place, *where: Any) -> int:
    rows, table = place
    query = _query(table).with_only_columns(sa.func.count(), maintain_column_froms=True)
    return int(rows.read(None, query.where(*where))[0][0])


def _check(what: str, here: int, there: int) -> None:
    if here != there:
        raise RefoldError(
            f"the copy differs ({what}: {here} here, {there} there), so the store is "
            "still here: see `refold verify`, and move it again"
        )
