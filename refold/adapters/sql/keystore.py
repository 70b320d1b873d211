"""The key store: wrapped keys in a separate database, in a private file or a server."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from refold.adapters.keys.master import create_private, warn_of_mode
from refold.adapters.keys.store import KeyPlace, UserEntry, WrappedKeys
from refold.adapters.sql import files, forks
from refold.adapters.sql.forks import FileId
from refold.adapters.sql.queries import refusals, statements
from refold.adapters.sql.urls import SqliteUrl, engine_of
from refold.domain.errors import (
    Erased,
    InvalidConfiguration,
    KeyUnavailable,
    RefoldError,
    remedy_for,
)
from refold.domain.locks import computed_once, forkable_lock
from refold.domain.ports import MALFORMED_DATA

if TYPE_CHECKING:
    import sqlalchemy as sa

    from refold.adapters.sql.key_tables import KeyTables

T = TypeVar("T")
_Row: TypeAlias = dict[str, object]
# In the rows of the statement ``user_and_session_keys``, these stand in the place of a
# session key's version.
_OF_USER: Final = -1
_ERASED: Final = 0
_SQL: Final = statements("keystore")
# A row to write, with the name of its statement.
_Write: TypeAlias = tuple[str, _Row]


GENERATION: Final = "generation"
# The session and the version of a user's key that is set aside.
_USER: Final = ("", 0)


def _no_check() -> None:
    """Allow every change."""


class SqlKeyStore:
    """Wrapped keys, in another database than the events that they decrypt.

    Users and sessions have keyed hashes.  Every change is durable before it returns.
    If two processes add the same key at once, one wins, and both get its key.  A
    session has one key, or several versions while it is encrypted again.  Erased users
    and sessions leave their keyed hashes, and their keys cannot be added again.
    """

    def __init__(self, url: str) -> None:
        self._place = _place_of(url)
        self._opened_engines: tuple[sa.Engine, sa.Engine] | None = None
        self._opening = forkable_lock()
        forks.register(self)
        if self.readonly:
            return
        if self._place.connections is not None:
            self._create_in_file(self._place.connections)
            return
        from sqlalchemy.schema import CreateSchema

        from refold.adapters.sql import compiled

        metadata = self._t.metadata
        with self._writing() as connection:
            if metadata.schema:
                lock = "SELECT pg_advisory_xact_lock(7881629)"
                connection.exec_driver_sql(lock)
                connection.execute(CreateSchema(metadata.schema, if_not_exists=True))
                metadata.create_all(connection)
            else:
                compiled.create_missing(connection, metadata)

    def _create_in_file(self, connections: files.Connections) -> None:
        """Create the tables that the file lacks."""
        with self._guarded(), connections.transaction(self) as connection:
            files.create_missing(connection, "sqlite_keys")

    @computed_once
    def _t(self) -> KeyTables:
        """The tables, for queries that SQLAlchemy builds."""
        from refold.adapters.sql.key_tables import key_tables

        return key_tables(schema=self._place.schema)

    @property
    def readonly(self) -> bool:
        """Whether the key store can only be read."""
        return self._place.readonly

    @property
    def file(self) -> FileId | None:
        """The open file, if the key store is one."""
        return self._place.file

    def _engines(self) -> tuple[sa.Engine, sa.Engine]:
        """Return the engine for transactions, and the one for single statements.

        The first use opens them.  A single statement needs no round trips for a
        transaction.
        """
        forks.notice()
        engines = self._opened_engines
        if engines is None:
            with self._opening:  # so that no other thread opens engines, too
                engines = self._opened_engines
                if engines is None:
                    engines = self._open_engines()
                    self._opened_engines = engines
        return engines

    def _open_engines(self) -> tuple[sa.Engine, sa.Engine]:
        """Open both engines over the same connections."""
        engine = self._place.engine(self)
        options: dict[str, Any] = {"refold_begin": ""}
        if self._place.schema:
            options["isolation_level"] = "AUTOCOMMIT"
        return engine, engine.execution_options(**options)

    @property
    def _transactions(self) -> sa.Engine:
        """The engine for transactions."""
        engine, _ = self._engines()
        return engine

    @property
    def _single_statements(self) -> sa.Engine:
        """The engine for single statements."""
        _, engine = self._engines()
        return engine

    def close(self) -> None:
        """Close all connections."""
        use = forks.begin_use(self)  # a fork waits until all are closed
        try:
            if self._place.connections is not None:
                self._place.connections.close()
            if self._opened_engines is not None:
                self._transactions.dispose()
        finally:
            forks.end_use(use)

    def close_before_fork(self) -> None:
        """Close the connections to a file; the next use opens new ones."""
        if self._place.connections is not None:
            self._place.connections.close()
            if self._opened_engines is not None:
                self._transactions.dispose()

    def leave_to_parent(self, *, in_use: bool) -> None:  # noqa: ARG002  # the place says it
        """Start without connections in a forked child."""
        if self._place.left_to_parent():
            self._opened_engines = None
        if self._place.connections is not None:
            self._place.connections.forget()

    @property
    def tables(self) -> dict[str, sa.Table]:
        """All tables, by name."""
        return {table.name: table for table in self._t.metadata.sorted_tables}

    def read(self, _: object, query: Any) -> list[Any]:
        """Return all rows of a query."""
        return self._read(query, lambda row: row)

    def change(self, _: object, change: Callable[[sa.Connection], T]) -> T:
        """Call ``change`` in a transaction that can write."""
        with self._writing() as connection:
            return change(connection)

    def get_setting(self, name: str) -> bytes | None:
        """Return the value of a setting; None if there is none."""
        values = self._fetch("setting", lambda row: _octets(row[0]), {"name": name})
        if not values:
            return None
        return values[0]

    def set_setting(self, name: str, value: bytes) -> None:
        """Set the value of a setting."""
        # The statement replaces a row that exists, in the tables that Refold creates.
        if not self._add([("put_setting", {"name": name, "value": value})]):
            raise _foreign()

    def _put(self, connection: sa.Connection, name: str, value: bytes) -> None:
        """Set the value of a setting in this transaction."""
        row = {"name": name, "value": value}
        connection.execute(self._t.statement("put_setting"), row)

    def settings_with(self, prefix: str) -> dict[str, bytes]:
        """Return the settings whose names begin with ``prefix``, by the other part."""
        import sqlalchemy as sa

        settings = self._t.settings.c
        query = sa.select(settings.name, settings.value)
        query = query.where(settings.name.startswith(prefix, autoescape=True))
        values = self._read(query, lambda row: (row[0][len(prefix) :], _octets(row[1])))
        return dict(values)

    def delete_settings(self, prefix: str) -> None:
        """Delete the settings whose names begin with ``prefix``."""
        import sqlalchemy as sa

        settings = self._t.settings
        with self._writing() as connection:
            begins = settings.c.name.startswith(prefix, autoescape=True)
            connection.execute(sa.delete(settings).where(begins))

    def add_setting(self, name: str, value: bytes) -> bytes:
        """Add a setting if there is none with this name; returns the stored value."""
        self._add([("add_setting", {"name": name, "value": value})])
        stored = self.get_setting(name)
        if stored is None:
            raise KeyUnavailable("a new key was not kept", remedy="check the key store")
        return stored

    def swap_setting(self, name: str, old: bytes, new: bytes) -> bool:
        """Replace the value of a setting if it is ``old``."""
        settings = self._t.settings.c
        return self._swap(self._t.settings, new, settings.name == name, old=old)

    def generation(self) -> int:
        """Return the number of keys that were removed or replaced.

        A key store from a backup has a lower one.
        """
        with self._guarded():
            return int(self.get_setting(GENERATION) or b"0")

    def reach(self, generation: int) -> None:
        """Raise the generation to this number if it is lower."""
        with self._writing() as connection:
            self._change_generation(
                connection, lambda current: max(current, generation)
            )

    def get_user(self, user_ref: str) -> UserEntry | None:
        """Return the entry of a user; None if there is none."""
        entry, _ = self.user_and_session_keys(user_ref, "")
        return entry

    def add_user(
        self,
        user_ref: str,
        wrapped: bytes,
        now: int,
        *,
        pepper: bytes,
        session: tuple[str, bytes] | None = None,
    ) -> UserEntry | None:
        """Add a user's first key; returns the stored entry.

        pepper:  the wrapped pepper, as the caller read it.  A rotation of the master
                 key wraps the pepper first.  So if the pepper has changed, the caller
                 has used an old master key: nothing is added, and None returned.
        session: the keyed hash and the key of a first session.  It is added only with
                 the user's key.
        """
        row: _Row = {
            "user_ref": user_ref,
            "epoch": 1,
            "wrapped": wrapped,
            "created_at": now,
        }
        rows: list[_Write] = [("add_user", row)]
        if session is not None:
            session_ref, session_key = session
            session_row = _session_row(user_ref, session_ref, session_key, now)
            rows.append(("add_session", session_row))
        added = self._add(rows, "pepper", pepper)
        if added is None:
            return None
        if added:
            return UserEntry(1, wrapped)
        return self.get_user(user_ref)

    def user_and_session_keys(
        self, user_ref: str, session_ref: str
    ) -> tuple[UserEntry | None, dict[int, bytes]]:
        """Return the user's entry and the session's keys by version, in one read.

        Raises Erased if the session was erased.
        """
        refs = {"user": user_ref, "session": session_ref}
        entries = dict(self._fetch("user_and_session_keys", _versioned, refs))
        if _ERASED in entries:
            raise Erased("the session")
        user = entries.pop(_OF_USER, None)
        keys = {version: entry.wrapped or b"" for version, entry in entries.items()}
        return user, keys

    def session_keys(self, user_ref: str, session_ref: str) -> dict[int, bytes]:
        """Return the session's keys by version.  Raises Erased if it was erased."""
        _, keys = self.user_and_session_keys(user_ref, session_ref)
        return keys

    def add_session(
        self,
        user_ref: str,
        session_ref: str,
        wrapped: bytes,
        now: int,
        *,
        under: bytes,
        version: int = 1,
    ) -> bytes | None:
        """Add a session's key; returns the stored key.

        Returns None if the user's wrapped key is not ``under``.
        """
        row = _session_row(user_ref, session_ref, wrapped, now)
        row["version"] = version
        statement = _statement_adding(version)
        if self._add([(statement, row)], "wrapped", under) is None:
            return None
        # None if the user was erased since.  The caller finds that out when it reads
        # the user's key.
        return self.session_keys(user_ref, session_ref).get(version)

    def _add(
        self,
        rows: Sequence[_Write],
        query: str | None = None,
        expected: bytes = b"",
    ) -> bool | None:
        """Add rows, each with the name of its statement.

        query: a query whose result must be ``expected``.

        Returns False if the first row exists, None if the query has another result.
        """
        try:
            return self._write(rows, query, expected)
        except _ExistsAlready:
            return False

    def _write(
        self,
        rows: Sequence[_Write],
        query: str | None = None,
        expected: bytes = b"",
    ) -> bool | None:
        """Write rows in one transaction, if ``query`` has the expected result.

        Returns None if it has another.  Raises _ExistsAlready for a row that exists.
        """
        connections = self._place.connections
        if connections is None:
            return self._write_with_engine(rows, query, expected)
        with self._guarded(), connections.transaction(self) as connection:
            if query is not None:
                _, first_row = rows[0]
                stored = connection.execute(_in_file(query), first_row).fetchone()
                value = None if stored is None else stored[0]
                if value is None or _octets(value) != expected:
                    return None
            try:
                for name, row in rows:
                    connection.execute(_in_file(name), row)
            except sqlite3.IntegrityError:
                raise _ExistsAlready from None
            return True

    def _write_with_engine(
        self, rows: Sequence[_Write], query: str | None, expected: bytes
    ) -> bool | None:
        """Write rows as ``_write`` does, for a key store that is no file."""
        from sqlalchemy.exc import IntegrityError

        with self._guarded(), self._begin() as connection:
            if query is not None:
                _, first_row = rows[0]
                statement = self._t.statement(query)
                value = connection.execute(statement, first_row).scalar()
                if value is None or _octets(value) != expected:
                    return None
            try:
                for name, row in rows:
                    connection.execute(self._t.statement(name), row)
            except IntegrityError:
                raise _ExistsAlready from None
            return True

    def surplus(
        self, user_ref: str | None = None, session_ref: str | None = None
    ) -> int:
        """Return the number of keys beyond one for each session.

        It counts those of a user or of a session; without one, of all.
        """
        refs: dict[str, str] = {}
        if user_ref is not None:
            refs["user_ref"] = user_ref
        if session_ref is not None:
            refs["session_ref"] = session_ref
        condition = " AND ".join(f"{name}=:{name}" for name in refs) or "true"
        query = self._t.statement("surplus", condition)
        (number,) = self._read(query, lambda row: int(row[0]), refs)
        return number

    def destroy_sessions(self, user_ref: str, session_ref: str, *, before: int) -> int:
        """Destroy the session's keys of lower versions; returns their number."""
        values = {"user": user_ref, "session": session_ref, "before": before}
        number = 0
        with self._writing() as connection:
            for name in ("drop_first", "drop_rotated"):
                result = connection.execute(self._t.statement(name), values)
                number += result.rowcount
        return number

    def hold(
        self,
        user_ref: str,
        sessions: Sequence[str] | None,
        now: int,
        *,
        allowed: Callable[[], None] = _no_check,
    ) -> int:
        """Set the keys of a user or of sessions aside; returns their number.

        Nobody can use them until ``release`` restores them.

        allowed: called when no other process can write; raises to prevent the change.
        """
        import sqlalchemy as sa

        with self._writing() as connection:
            allowed()
            rows = []
            for place, wrapped in self._keys(connection, user_ref, sessions):
                session_ref, version = place
                row = {
                    "user_ref": user_ref,
                    "session_ref": session_ref,
                    "version": version,
                    "wrapped": wrapped,
                    "created_at": now,
                }
                rows.append(row)
            if rows:
                connection.execute(sa.insert(self._t.held_keys), rows)
            self._remove(connection, user_ref, sessions, now)
            return self._count_changes(connection, len(rows))

    def aside(self, user_ref: str, sessions: Sequence[str] | None) -> int:
        """Return the number of keys of a user or of sessions that are set aside."""
        import sqlalchemy as sa

        held_keys = self._t.held_keys
        query = sa.select(sa.func.count()).select_from(held_keys)
        query = query.where(*_conditions(held_keys, user_ref, sessions))
        (number,) = self._read(query, lambda row: int(row[0]))
        return number

    def release(
        self,
        user_ref: str,
        sessions: Sequence[str] | None,
        *,
        allowed: Callable[[], None] = _no_check,
    ) -> int:
        """Restore the keys that were set aside; returns their number.

        allowed: as in ``hold``.
        """
        import sqlalchemy as sa

        held_keys = self._t.held_keys
        erased = self._t.erased
        conditions = _conditions(held_keys, user_ref, sessions)
        if sessions is None:
            # Keys of sessions that were set aside alone stay aside.
            alone = sa.select(erased.c.session_ref)
            alone = alone.where(erased.c.user_ref == user_ref)
            conditions.append(held_keys.c.session_ref.not_in(alone))
        with self._writing() as connection:
            allowed()
            query = sa.select(held_keys).where(*conditions)
            rows = connection.execute(query).mappings().all()
            for row in rows:
                if (row["session_ref"], row["version"]) == _USER:
                    name = "restore_user"
                else:
                    name = _statement_adding(row["version"])
                connection.execute(self._t.statement(name), dict(row))
            if sessions is not None:
                of_sessions = _conditions(erased, user_ref, sessions)
                connection.execute(sa.delete(erased).where(*of_sessions))
            connection.execute(sa.delete(held_keys).where(*conditions))
            return self._count_changes(connection, len(rows))

    def destroy(
        self,
        user_ref: str,
        sessions: Sequence[str] | None,
        now: int,
        *,
        allowed: Callable[[], None] = _no_check,
    ) -> int:
        """Destroy the keys of a user or of sessions for good; returns their number.

        This includes keys that are set aside.  A user without a key counts as erased
        from now on, too.

        allowed: as in ``hold``.
        """
        import sqlalchemy as sa

        held_keys = self._t.held_keys
        with self._writing() as connection:
            allowed()
            number = len(list(self._keys(connection, user_ref, sessions)))
            deletion = sa.delete(held_keys).where(
                *_conditions(held_keys, user_ref, sessions)
            )
            number += connection.execute(deletion).rowcount
            self._remove(connection, user_ref, sessions, now)
            self._count_changes(connection, number)
        if self._t.metadata.schema:  # SQLite overwrites by itself (``secure_delete``)
            with self._guarded(), self._single_statements.connect() as connection:
                for table in (
                    self._t.users,
                    self._t.sessions,
                    self._t.rotated,
                    held_keys,
                ):
                    connection.exec_driver_sql(f"VACUUM {table.fullname}")
        return number

    def clean(self) -> list[str]:
        """Replace the statistics of a server's planner about keys; see ``statistics``.

        Returns the columns whose old statistics stay.  A file has none.
        """
        if not self._t.metadata.schema:
            return []
        from refold.adapters.sql import key_tables, statistics

        names = [table.fullname for table in self._t.metadata.sorted_tables]
        with self._guarded(), self._single_statements.connect() as connection:
            return statistics.replace(connection, key_tables.SCHEMA, names)

    def _keys(
        self, connection: sa.Connection, user_ref: str, sessions: Sequence[str] | None
    ) -> Iterator[tuple[tuple[str, int], bytes]]:
        """Yield the keys of a user, or of sessions, with session and version."""
        if sessions is None:
            wrapped = self._locked_key(connection, user_ref)
            if wrapped is not None:
                yield _USER, _octets(wrapped)
        for place, key in self._keys_of(connection, user_ref).items():
            if sessions is None or place.session_ref in sessions:
                yield place, key

    def _locked_key(self, connection: sa.Connection, user_ref: str) -> Any:
        """Lock the user's row, and return the wrapped key; None if there is none."""
        user = {"user_ref": user_ref}
        return connection.execute(self._t.statement("locked_key"), user).scalar()

    def _remove(
        self,
        connection: sa.Connection,
        user_ref: str,
        sessions: Sequence[str] | None,
        now: int,
    ) -> None:
        """Remove keys, and leave the keyed hashes of their users or sessions."""
        import sqlalchemy as sa

        for table in (self._t.sessions, self._t.rotated):
            conditions = _conditions(table, user_ref, sessions)
            connection.execute(sa.delete(table).where(*conditions))
        if sessions is None:
            values = {"user": user_ref, "at": now}
            connection.execute(self._t.statement("erase_user"), values)
            return
        rows = []
        for session_ref in sorted(sessions):
            rows.append({"user": user_ref, "session": session_ref, "at": now})
        if rows:
            connection.execute(self._t.statement("erase_session"), rows)

    def readmit(self, user_ref: str, wrapped: bytes, now: int, *, epoch: int) -> bool:
        """Give an erased user a new key; False unless ``epoch`` is the next one."""
        values = {
            "user": user_ref,
            "wrapped": wrapped,
            "now": now,
            "epoch": epoch,
            "before": epoch - 1,
        }
        with self._writing() as connection:
            result = connection.execute(self._t.statement("readmit"), values)
            return self._count_changes(connection, result.rowcount) == 1

    def users(self, after: str = "", limit: int = 500) -> list[tuple[str, UserEntry]]:
        """Return users with their keyed hashes, in order, the first after ``after``."""
        values = {"after": after, "limit": limit}
        return self._fetch("users", _named, values)

    def keys_by_session(
        self, user_ref: str, session_refs: Sequence[str] | None = None
    ) -> WrappedKeys:
        """Return the wrapped keys of a user's sessions.

        session_refs: only of these sessions; None means all.
        """
        if session_refs is None:
            rows = self._fetch("keys_of", tuple, {"user": user_ref})
        else:
            rows = self._read(self._keys_among(user_ref, session_refs), tuple)
        keys = WrappedKeys({}, {})
        first = keys.first
        with self._guarded():
            for session_ref, version, wrapped in rows:
                # A list has a row for each session, and most have the right types.
                if type(wrapped) is not bytes or type(session_ref) is not str:
                    wrapped = _octets(wrapped)
                    session_ref = _text(session_ref)
                if version == 1:
                    first[session_ref] = wrapped
                else:
                    versions = keys.rotated.setdefault(session_ref, [])
                    versions.append((int(version), wrapped))
        for versions in keys.rotated.values():
            versions.sort(reverse=True)
        return keys

    def _keys_among(self, user_ref: str, session_refs: Sequence[str]) -> Any:
        """Return the query for the keys of these sessions."""
        import sqlalchemy as sa

        first = self._t.sessions
        later = self._t.rotated
        of_first = _conditions(first, user_ref, session_refs)
        of_later = _conditions(later, user_ref, session_refs)
        columns_of_first = (first.c.session_ref, sa.literal(1), first.c.wrapped)
        columns_of_later = (later.c.session_ref, later.c.version, later.c.wrapped)
        return sa.union_all(
            sa.select(*columns_of_first).where(*of_first),
            sa.select(*columns_of_later).where(*of_later),
        )

    def keys_of(self, user_ref: str) -> dict[KeyPlace, bytes]:
        """Return the wrapped keys of all sessions of the user."""
        with self._writing() as connection:
            return self._keys_of(connection, user_ref)

    def _keys_of(
        self, connection: sa.Connection, user_ref: str
    ) -> dict[KeyPlace, bytes]:
        """Return the wrapped keys of all sessions, read in this transaction."""
        keys = {}
        rows = connection.execute(self._t.statement("keys_of"), {"user": user_ref})
        for session_ref, version, wrapped in rows:
            keys[KeyPlace(_text(session_ref), int(version))] = _octets(wrapped)
        return keys

    def held_users(self) -> list[tuple[str, UserEntry]]:
        """Return the users whose keys are set aside, with these keys."""
        return self._fetch("held_users", _named)

    def swap_held(self, user_ref: str, old: bytes, new: bytes) -> bool:
        """Replace a user's key that is set aside, if it is ``old``."""
        conditions = _conditions(self._t.held_keys, user_ref, [""])
        return self._swap(self._t.held_keys, new, *conditions, old=old)

    def swap_user(
        self,
        user_ref: str,
        old: bytes,
        new: bytes,
        keys: Mapping[KeyPlace, bytes] | None = None,
    ) -> bool:
        """Replace a user's key, and the keys of all sessions if they are given.

        Replaces nothing and returns False if the user's key is not ``old``, or if there
        are keys of other sessions.
        """
        with self._writing() as connection:
            stored = self._locked_key(connection, user_ref)
            if stored is None or _octets(stored) != old:
                return False
            places = self._keys_of(connection, user_ref).keys()
            if keys is not None and places != keys.keys():
                return False
            user = {"user_ref": user_ref, "wrapped": new}
            connection.execute(self._t.statement("restore_user"), user)
            first_keys: list[_Row] = []
            later_keys: list[_Row] = []
            for place, wrapped in (keys or {}).items():
                row: _Row = {
                    "user": user_ref,
                    "wrapped": wrapped,
                    **place._asdict(),
                }
                if place.version > 1:
                    later_keys.append(row)
                else:
                    first_keys.append(row)
            if first_keys:
                connection.execute(self._t.statement("wrap_first"), first_keys)
            if later_keys:
                connection.execute(self._t.statement("wrap_rotated"), later_keys)
            self._count_changes(connection, 1)
            return True

    def counts(self) -> dict[str, int]:
        """Return the numbers of users, sessions, erased ones, and held keys."""
        statement = self._t.statement("counts")
        (counts,) = self._read(statement, lambda row: dict(row._mapping))
        return counts

    def _swap(self, table: sa.Table, new: bytes, *where: Any, old: bytes) -> bool:
        """Replace the value or the key of a row, if it is ``old``."""
        import sqlalchemy as sa

        value = table.c.value if table is self._t.settings else table.c.wrapped
        update = sa.update(table).where(*where, value == old).values({value: new})
        with self._writing() as connection:
            changed = connection.execute(update).rowcount
            return self._count_changes(connection, changed) == 1

    def _count_changes(self, connection: sa.Connection, changed: int) -> int:
        """Raise the generation by one if anything has changed; returns ``changed``."""
        if changed:
            self._change_generation(connection, lambda current: current + 1)
        return changed

    def _change_generation(
        self, connection: sa.Connection, change: Callable[[int], int]
    ) -> None:
        """Replace the generation by the result of ``change``."""
        statement = self._t.statement("locked_generation")
        current = connection.execute(statement).scalar()
        self._put(connection, GENERATION, b"%d" % change(int(current or b"0")))

    def _fetch(
        self,
        name: str,
        convert: Callable[[Any], T],
        values: Mapping[str, object] = MappingProxyType({}),
    ) -> list[T]:
        """Return the converted rows of the query with this name."""
        connections = self._place.connections
        if connections is None:
            return self._read(self._t.statement(name), convert, values)
        with self._guarded(), connections.use(self) as connection:
            rows = connection.execute(_in_file(name), dict(values)).fetchall()
            return [convert(row) for row in rows]

    def _read(
        self, query: Any, convert: Callable[[Any], T], parameters: Any = None
    ) -> list[T]:
        """Return the converted rows of a query."""
        with self._guarded(), self._single_statements.connect() as connection:
            rows = connection.execute(query, parameters).all()
            return [convert(row) for row in rows]

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """Begin a transaction in which no other process can write what it has read."""
        with self._guarded(), self._begin() as connection:
            yield connection

    def _begin(self) -> AbstractContextManager[sa.Connection]:
        """Begin a transaction that can write, if the key store can be written."""
        mode = "DEFERRED" if self.readonly else "IMMEDIATE"
        return self._transactions.execution_options(refold_begin=mode).begin()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Raise KeyUnavailable for errors of the database and for foreign values."""
        try:
            yield
        except (_ExistsAlready, RefoldError):
            raise
        except sqlite3.Error as error:
            raise self._unusable(error) from None
        except MALFORMED_DATA:
            raise _foreign() from None
        except Exception as error:
            from sqlalchemy.exc import SQLAlchemyError

            if isinstance(error, SQLAlchemyError):
                raise self._unusable(error) from None
            raise

    def _unusable(self, error: Exception) -> KeyUnavailable:
        """Return the error to raise for one of the database."""
        if self.readonly:
            return KeyUnavailable(
                "the key store is read-only",
                remedy="copy it to a folder that can be written, or check the rights "
                "on the key file",
            )
        reason, remedy = _refusal(error)
        return KeyUnavailable(reason, remedy=remedy)


class _ExistsAlready(Exception):
    """A row that was to be added exists already."""


@cache
def _in_file(name: str) -> str:
    """The statement with this name, for a file."""
    return _SQL[name].format(**_names_in_file())


@cache
def _names_in_file() -> dict[str, str]:
    """Return the names of tables, and the locks of rows, in statements for a file."""
    names = {table: table for table in statements("sqlite_keys")}  # it has no schemas
    # One writer needs no locks of rows.
    names["shared"] = ""
    names["locked"] = ""
    # The index has the keys in a random order, and few pages of a file are cached.
    names["of_user"] = "rowid IN (SELECT rowid FROM session_keys WHERE user_ref=:user)"
    return names


def _foreign() -> KeyUnavailable:
    """Return the error for a key store that another program has changed."""
    return KeyUnavailable(
        "the key store holds what was not written by Refold",
        remedy="restore a backup of it",
    )


def _refusal(error: Exception) -> tuple[str, str]:
    """Return the reason of an error, and its remedy."""
    cause = getattr(error, "orig", error)  # that of an error of SQLAlchemy
    if isinstance(cause, files.CommitFailed):
        return (
            f"the key store failed to commit ({cause}), and whether the change was "
            "written is unknown",
            "check the disk and try again: the same key is never kept twice",
        )
    if isinstance(cause, sqlite3.Error):
        for sign, (reason, remedy) in refusals("sqlite").items():
            if sign in str(cause).lower():
                return f"the key store {reason}", remedy
    return (
        f"the key store cannot be used ({type(error).__name__})",
        "check REFOLD_KEYS, or the rights on the key file",
    )


def _conditions(
    table: sa.Table, user_ref: str, sessions: Sequence[str] | None
) -> list[Any]:
    """Return the conditions for the rows of a user, or of sessions."""
    conditions: list[Any] = [table.c.user_ref == user_ref]
    if sessions is not None:
        conditions.append(table.c.session_ref.in_(list(sessions)))
    return conditions


def _statement_adding(version: int) -> str:
    """Return the name of the statement that adds a session's key of a version."""
    return "add_session" if version == 1 else "add_rotated"


def _text(value: object) -> str:
    """Return a text.  Raises TypeError, because SQLite stores bytes in any column."""
    if not isinstance(value, str):
        raise TypeError
    return value


def _octets(value: object) -> bytes:
    """Return bytes.  Raises TypeError, because SQLite stores text in any column."""
    if not isinstance(value, bytes | memoryview):
        raise TypeError
    return bytes(value)


def _entry(epoch: Any, wrapped: Any) -> UserEntry:
    """Return the entry of a user."""
    if wrapped is None:
        return UserEntry(int(epoch), None)
    return UserEntry(int(epoch), _octets(wrapped))


def _versioned(row: Any) -> tuple[int, UserEntry]:
    """Return a version and an entry."""
    version, epoch, wrapped = row
    return int(version), _entry(epoch, wrapped)


def _named(row: Any) -> tuple[str, UserEntry]:
    """Return the keyed hash of a user and the user's entry."""
    user_ref, epoch, wrapped = row
    return _text(user_ref), _entry(epoch, wrapped)


def _session_row(user_ref: str, session_ref: str, wrapped: bytes, now: int) -> _Row:
    """Return the row of a session's key."""
    return {
        "user_ref": user_ref,
        "session_ref": session_ref,
        "wrapped": wrapped,
        "created_at": now,
    }


class _Place(Protocol):
    """The place of a key store.

    schema:      whether its tables have their own schema.
    connections: connections to its file, for statements that need no SQLAlchemy; None
                 for another place.
    """

    schema: bool
    readonly: bool

    @property
    def connections(self) -> files.Connections | None:
        """The connections to the file."""

    @property
    def file(self) -> FileId | None:
        """The open file, if it is one."""

    def engine(self, store: SqlKeyStore) -> sa.Engine:
        """Return an engine that connects to it."""

    def left_to_parent(self) -> bool:
        """Leave the connections to the parent, in a forked child.

        Returns False if the child has a copy of its own.
        """


class _InMemory:
    """A key store in the memory of this process."""

    schema = False
    readonly = False
    connections = None
    file = None

    def engine(self, store: SqlKeyStore) -> sa.Engine:  # noqa: ARG002  # the protocol's
        from refold.adapters.sql import memory

        return memory.engine_in_memory()

    def left_to_parent(self) -> bool:
        return False


class _InFile:
    """A key store in a SQLite file."""

    schema = False

    def __init__(self, path: Path) -> None:
        self._watched = files.WatchedFile(path)
        self.connections = files.Connections(self._watched, _on_connect)
        try:
            create_private(path)
            warn_of_mode(path)
            self.readonly = files.is_readonly(path)
            self._watched.readonly = self.readonly
        except OSError as error:
            raise KeyUnavailable(
                f"the key store {path} cannot be opened ({error.strerror})",
                remedy=remedy_for(error),
            ) from None

    @property
    def file(self) -> FileId | None:
        return self._watched.file

    def engine(self, store: SqlKeyStore) -> sa.Engine:
        from refold.adapters.sql import pools

        return pools.engine_of_file(self._watched, store, _on_connect)

    def left_to_parent(self) -> bool:
        return True


class _OnServer:
    """A key store on a PostgreSQL server."""

    schema = True
    readonly = False
    connections = None
    file = None

    def __init__(self, url: sa.URL) -> None:
        self._url = url.set(drivername="postgresql+psycopg")
        self._sockets = forks.Sockets()

    def engine(self, store: SqlKeyStore) -> sa.Engine:  # noqa: ARG002  # the protocol's
        from sqlalchemy import create_engine, event

        from refold.adapters.sql.lent import close_when_returned

        engine = create_engine(
            self._url, pool_size=2, max_overflow=8, pool_pre_ping=True
        )
        event.listen(engine, "connect", self._sockets.note)
        close_when_returned(engine)
        return engine

    def left_to_parent(self) -> bool:
        self._sockets.sever()
        return True


def _place_of(url: str) -> _Place:
    """Return the place of the key store with this URL."""
    if url == "memory://":
        return _InMemory()
    match engine_of(url):
        case "sqlite", file:
            return _in_file_at(file)
        case "postgresql", server:
            if "pooler" in server.query:
                raise InvalidConfiguration(
                    "a key store takes no ?pooler: connect it to its server directly"
                )
            return _OnServer(server)
    raise InvalidConfiguration(
        "a key store is in SQLite or PostgreSQL: set REFOLD_KEYS to sqlite:///keys.db "
        "or postgresql://…"
    )


def _in_file_at(url: SqliteUrl) -> _InFile:
    """Return the place of a key store in a file."""
    if not url.database or ":memory:" in url.database or url.query:
        raise InvalidConfiguration("a SQLite key store is sqlite:///FILE")
    return _InFile(Path(url.database).absolute())


def _on_connect(connection: files.FileConnection) -> None:
    """Prepare a new connection to a file."""
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")
