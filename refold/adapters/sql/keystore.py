"""Wrapped keys in a database of their own: a file of mode 0600, or any URL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.schema import CreateSchema

from refold.adapters.keys.master import create_private, warn_of_mode
from refold.adapters.keys.store import KeyPlace, UserEntry
from refold.adapters.sql import files, forks
from refold.adapters.sql.forks import FileId
from refold.adapters.sql.tables import refusals, statements
from refold.domain.errors import (
    Erased,
    InvalidConfiguration,
    KeyUnavailable,
    remedy_for,
)
from refold.domain.locks import forkable_lock
from refold.domain.ports import JUNK

SCHEMA = "refold_keys"
T = TypeVar("T")
_Row: TypeAlias = dict[str, object]
_OF_USER, _ERASED = -1, 0  # where a session's key has its version
_SQL: Final = statements("keystore")


class KeyTables:
    """The tables, in a schema of their own where the engine has schemas.

    users:    the row of an erased user keeps the keyed hash and the epoch alone.
    sessions: the first key of each session.
    rotated:  the later keys of a session, by version.
    held:     keys that an erasure has set aside.  A user's has the session ``""`` and
              the version 0.
    erased:   sessions that were erased.
    """

    def __init__(self, *, schema: bool) -> None:
        self.metadata = sa.MetaData(schema=SCHEMA if schema else None)
        self.settings = self._settings()
        self.users = self._users()
        self.sessions = self._sessions()
        self.rotated = self._with_version("rotated_session_keys")
        self.held = self._with_version("held_keys")
        self.erased = self._erased()
        self._names = {
            table.name: str(table) for table in self.metadata.tables.values()
        }
        # Keep what was read as it is; SQLite has one writer anyway.
        self._names["shared"] = "FOR SHARE" if schema else ""
        self._names["locked"] = "FOR UPDATE" if schema else ""
        self.said = cache(self._said)

    def _settings(self) -> sa.Table:
        return sa.Table(
            "settings",
            self.metadata,
            sa.Column("name", sa.Text, primary_key=True),
            sa.Column("value", sa.LargeBinary, nullable=False),
        )

    def _users(self) -> sa.Table:
        return sa.Table(
            "user_keys",
            self.metadata,
            sa.Column("user_ref", sa.Text, primary_key=True),
            sa.Column("epoch", sa.Integer, nullable=False),
            sa.Column("wrapped", sa.LargeBinary),
            sa.Column("created_at", sa.BigInteger, nullable=False),
        )

    def _sessions(self) -> sa.Table:
        return sa.Table(
            "session_keys",
            self.metadata,
            sa.Column("user_ref", sa.Text, primary_key=True),
            sa.Column("session_ref", sa.Text, primary_key=True),
            sa.Column("wrapped", sa.LargeBinary, nullable=False),
            sa.Column("created_at", sa.BigInteger, nullable=False),
        )

    def _with_version(self, name: str) -> sa.Table:
        """A table of session keys, with several versions of a key."""
        return sa.Table(
            name,
            self.metadata,
            sa.Column("user_ref", sa.Text, primary_key=True),
            sa.Column("session_ref", sa.Text, primary_key=True),
            sa.Column("version", sa.Integer, primary_key=True),
            sa.Column("wrapped", sa.LargeBinary, nullable=False),
            sa.Column("created_at", sa.BigInteger, nullable=False),
        )

    def _erased(self) -> sa.Table:
        return sa.Table(
            "erased_sessions",
            self.metadata,
            sa.Column("user_ref", sa.Text, primary_key=True),
            sa.Column("session_ref", sa.Text, primary_key=True),
            sa.Column("erased_at", sa.BigInteger, nullable=False),
        )

    def _said(self, name: str, of: str = "") -> sa.TextClause:
        """The statement of that name."""
        return sa.text(_SQL[name].format(**self._names, of=of))


GENERATION: Final = "generation"
_USER: Final = ("", 0)


def _allowed() -> None:
    """Nothing forbids it."""


class SqlKeyStore:
    """Where wrapped keys are kept, in a database apart from the events they open.

    Users and sessions are named by keyed hashes.  What adds, takes away or replaces
    keys is durable before it returns; of two that add the same key at once one wins,
    and both are given the winner's.  A session has one key, or several by version
    while it is sealed anew.  What was erased leaves its keyed hash, and its key cannot
    be added again.
    """

    def __init__(self, url: str) -> None:
        self._place = _place_of(url)
        self._t = KeyTables(schema=self._place.schema)
        self._made: tuple[sa.Engine, sa.Engine] | None = None
        self._making = forkable_lock()
        forks.register(self)
        if self.readonly:
            return
        metadata = self._t.metadata
        with self._writing() as connection:
            if metadata.schema:
                lock = "SELECT pg_advisory_xact_lock(7881629)"
                connection.exec_driver_sql(lock)
                connection.execute(CreateSchema(metadata.schema, if_not_exists=True))
            metadata.create_all(connection)

    @property
    def readonly(self) -> bool:
        """Whether it can be read where it lies, and not written."""
        return self._place.readonly

    @property
    def file(self) -> FileId | None:
        """The file that is open, if the keys are in one."""
        return self._place.file

    def _engines(self) -> tuple[sa.Engine, sa.Engine]:
        """What reaches the key store, made on first use: in transactions, and without.

        The second sends each statement by itself, and no round trips for a transaction.
        """
        forks.notice()
        made = self._made
        if made is None:
            with self._making:  # a second engine would be closed by nobody
                made = self._made
                if made is None:
                    made = self._made = self._make_engines()
        return made

    def _make_engines(self) -> tuple[sa.Engine, sa.Engine]:
        engine = self._place.engine(self)
        options: dict[str, Any] = {"refold_begin": ""}
        if self._place.schema:
            options["isolation_level"] = "AUTOCOMMIT"
        return engine, engine.execution_options(**options)

    @property
    def _engine(self) -> sa.Engine:
        return self._engines()[0]

    @property
    def _alone(self) -> sa.Engine:
        return self._engines()[1]

    def close(self) -> None:
        """Close all connections."""
        use = forks.begin_use(self)  # a fork waits until all are closed
        try:
            if self._made is not None:
                self._engine.dispose()
        finally:
            forks.end_use(use)

    def close_before_fork(self) -> None:
        """Close the connections to a file; the next use opens new ones."""
        if self._place.file is not None and self._made is not None:
            self._engine.dispose()

    def leave_to_parent(self, *, in_use: bool) -> None:  # noqa: ARG002  # the place says it
        """Begin without connections, in a forked child."""
        if self._place.left_to_parent():
            self._made = None

    @property
    def tables(self) -> dict[str, sa.Table]:
        """All of them, by name."""
        return {table.name: table for table in self._t.metadata.sorted_tables}

    def read(self, _: object, query: Any) -> list[Any]:
        """All rows of a query."""
        return self._read(query, lambda row: row)

    def change(self, _: object, change: Callable[[sa.Connection], T]) -> T:
        """Do ``change`` in a transaction that can write."""
        with self._writing() as connection:
            return change(connection)

    def get_setting(self, name: str) -> bytes | None:
        """The value of that name."""
        query = self._t.said("setting")
        found = self._read(query, lambda row: _octets(row[0]), {"name": name})
        return found[0] if found else None

    def remember(self, name: str, value: bytes) -> None:
        """Keep the value under that name, in place of another."""
        with self._writing() as connection:
            self._put(connection, name, value)

    def _put(self, connection: sa.Connection, name: str, value: bytes) -> None:
        row = {"name": name, "value": value}
        connection.execute(self._t.said("put_setting"), row)

    def remembered(self, prefix: str) -> dict[str, bytes]:
        """What is kept under names that begin so, by what follows in them."""
        settings = self._t.settings.c
        query = sa.select(settings.name, settings.value)
        query = query.where(settings.name.startswith(prefix, autoescape=True))
        found = self._read(query, lambda row: (row[0][len(prefix) :], _octets(row[1])))
        return dict(found)

    def forget_names(self, prefix: str) -> None:
        """Keep nothing any more under names that begin so."""
        settings = self._t.settings
        with self._writing() as connection:
            begins = settings.c.name.startswith(prefix, autoescape=True)
            connection.execute(sa.delete(settings).where(begins))

    def add_setting(self, name: str, value: bytes) -> bytes:
        """Keep the value unless there is one of that name; gives the one kept."""
        self._add([("add_setting", {"name": name, "value": value})])
        kept = self.get_setting(name)
        if kept is None:
            raise KeyUnavailable("a new key was not kept", remedy="check the key store")
        return kept

    def swap_setting(self, name: str, old: bytes, new: bytes) -> bool:
        """Replace the value if it is ``old``."""
        settings = self._t.settings.c
        return self._swap(self._t.settings, new, settings.name == name, old=old)

    def generation(self) -> int:
        """Counts what was taken away or replaced.

        An older key store, put in the place of this one, is known by it.
        """
        with self._guarded():
            return int(self.get_setting(GENERATION) or b"0")

    def reach(self, generation: int) -> None:
        """Raise the generation to this, if it is lower."""
        with self._writing() as connection:
            self._raise(connection, lambda known: max(known, generation))

    def get_user(self, user_ref: str) -> UserEntry | None:
        """The user of that hash."""
        return self.standing(user_ref, "")[0]

    def add_user(
        self,
        user_ref: str,
        wrapped: bytes,
        now: int,
        *,
        pepper: bytes,
        session: tuple[str, bytes] | None = None,
    ) -> UserEntry | None:
        """Keep a user's first key; None if ``pepper`` is not the wrapped one any more.

        It is wrapped anew first when the master key is replaced, so nothing is added
        under a master key that goes.  ``session`` is the hash and the key of a first
        session, which goes with the user's key and is not kept without it.
        """
        row: _Row = {"user_ref": user_ref, "epoch": 1, "wrapped": wrapped}
        row["created_at"] = now
        rows = [("add_user", row)]
        if session is not None:
            rows.append(("add_session", _of_session(user_ref, *session, now)))
        added = self._add(rows, "pepper", pepper)
        if added is None:
            return None
        return UserEntry(1, wrapped) if added else self.get_user(user_ref)

    def standing(
        self, user_ref: str, session_ref: str
    ) -> tuple[UserEntry | None, dict[int, bytes]]:
        """The user, and the session's keys by version, both of one moment.

        Raises Erased if the session was erased.
        """
        refs = {"user": user_ref, "session": session_ref}
        found = dict(self._read(self._t.said("standing"), _versioned, refs))
        if _ERASED in found:
            raise Erased("the session")
        user = found.pop(_OF_USER, None)
        return user, {version: key.wrapped or b"" for version, key in found.items()}

    def session_keys(self, user_ref: str, session_ref: str) -> dict[int, bytes]:
        """The session's keys by version.  Raises Erased if it was erased."""
        return self.standing(user_ref, session_ref)[1]

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
        """Keep a session's key; None if the user's wrapped key is not ``under``."""
        row = _of_session(user_ref, session_ref, wrapped, now) | {"version": version}
        if self._add([(_adding(version), row)], "wrapped", under) is None:
            return None
        # None if the user was erased since: who asks then is told so by the user's key.
        return self.session_keys(user_ref, session_ref).get(version)

    def _add(
        self,
        rows: Sequence[tuple[str, _Row]],
        known: str | None = None,
        expected: bytes = b"",
    ) -> bool | None:
        """Add the rows; False if the first is there, None if ``known`` is another."""
        with self._guarded(), suppress(IntegrityError), self._begun() as connection:
            if known is not None:
                found = connection.execute(self._t.said(known), rows[0][1]).scalar()
                if found is None or _octets(found) != expected:
                    return None
            for name, row in rows:
                connection.execute(self._t.said(name), row)
            return True
        return False

    def surplus(
        self, user_ref: str | None = None, session_ref: str | None = None
    ) -> int:
        """How many keys there are beyond one for each session of these."""
        given = {"user_ref": user_ref, "session_ref": session_ref}
        refs = {name: ref for name, ref in given.items() if ref is not None}
        of = " AND ".join(f"{name}=:{name}" for name in refs) or "true"
        query = self._t.said("surplus", of)
        return self._read(query, lambda row: int(row[0]), refs)[0]

    def destroy_sessions(self, user_ref: str, session_ref: str, *, before: int) -> int:
        """Destroy the session's keys of lower versions for good; returns how many."""
        values = {"user": user_ref, "session": session_ref, "before": before}
        gone = [self._t.said(name) for name in ("drop_first", "drop_rotated")]
        with self._writing() as connection:
            return sum(connection.execute(one, values).rowcount for one in gone)

    def hold(
        self,
        user_ref: str,
        sessions: Sequence[str] | None,
        now: int,
        *,
        allowed: Callable[[], None] = _allowed,
    ) -> int:
        """Put keys aside, of a user or of sessions; returns how many.

        They are not found any more, until ``release`` puts them back.  ``allowed``
        raises, once no other can write here, if that must not be.
        """
        with self._writing() as connection:
            allowed()
            held = [
                {"user_ref": user_ref, "session_ref": place[0], "version": place[1]}
                | {"wrapped": wrapped, "created_at": now}
                for place, wrapped in self._found(connection, user_ref, sessions)
            ]
            if held:
                connection.execute(sa.insert(self._t.held), held)
            self._take(connection, user_ref, sessions, now)
            return self._counted(connection, len(held))

    def aside(self, user_ref: str, sessions: Sequence[str] | None) -> int:
        """How many keys of a user, or of these sessions, are put aside."""
        held = self._t.held
        query = sa.select(sa.func.count()).select_from(held)
        query = query.where(*_of(held, user_ref, sessions))
        return self._read(query, lambda row: int(row[0]))[0]

    def release(
        self,
        user_ref: str,
        sessions: Sequence[str] | None,
        *,
        allowed: Callable[[], None] = _allowed,
    ) -> int:
        """Put back what was put aside; returns how many.

        ``allowed`` is as in ``hold``.
        """
        t, held = self._t, self._t.held
        mine = _of(held, user_ref, sessions)
        if sessions is None:  # but for sessions that were put aside alone
            alone = sa.select(t.erased.c.session_ref)
            alone = alone.where(t.erased.c.user_ref == user_ref)
            mine.append(held.c.session_ref.not_in(alone))
        with self._writing() as connection:
            allowed()
            rows = connection.execute(sa.select(held).where(*mine)).mappings().all()
            for row in rows:
                of_user = (row["session_ref"], row["version"]) == _USER
                back = "restore_user" if of_user else _adding(row["version"])
                connection.execute(t.said(back), dict(row))
            if sessions is not None:
                gone = sa.delete(t.erased).where(*_of(t.erased, user_ref, sessions))
                connection.execute(gone)
            connection.execute(sa.delete(held).where(*mine))
            return self._counted(connection, len(rows))

    def destroy(
        self,
        user_ref: str,
        sessions: Sequence[str] | None,
        now: int,
        *,
        allowed: Callable[[], None] = _allowed,
    ) -> int:
        """Destroy for good the keys of a user, or of these sessions; returns how many.

        Those put aside go too, and a user who has no key yet is known as erased.
        ``allowed`` as in ``hold``.
        """
        held = self._t.held
        with self._writing() as connection:
            allowed()
            gone = len(list(self._found(connection, user_ref, sessions)))
            aside = sa.delete(held).where(*_of(held, user_ref, sessions))
            gone += connection.execute(aside).rowcount
            self._take(connection, user_ref, sessions, now)
            self._counted(connection, gone)
        if self._t.metadata.schema:  # SQLite overwrites by itself (``secure_delete``)
            with self._guarded(), self._alone.connect() as connection:
                for table in (self._t.users, self._t.sessions, self._t.rotated, held):
                    connection.exec_driver_sql(f"VACUUM {table.fullname}")
        return gone

    def clean(self) -> list[str]:
        """Replace what the planner of a server knows of keys; see ``statistics``.

        Returns the columns whose old statistics stay; none of a file, which has none.
        """
        if not self._t.metadata.schema:
            return []
        from refold.adapters.sql import statistics

        names = [table.fullname for table in self._t.metadata.sorted_tables]
        with self._guarded(), self._alone.connect() as connection:
            return statistics.replace(connection, SCHEMA, names)

    def _found(
        self, connection: sa.Connection, user_ref: str, sessions: Sequence[str] | None
    ) -> Iterator[tuple[tuple[str, int], bytes]]:
        if sessions is None:
            wrapped = self._locked_key(connection, user_ref)
            if wrapped is not None:
                yield _USER, _octets(wrapped)
        wanted = None if sessions is None else set(sessions)
        for place, key in self._keys_of(connection, user_ref).items():
            if wanted is None or place.session_ref in wanted:
                yield place, key

    def _locked_key(self, connection: sa.Connection, user_ref: str) -> Any:
        user = {"user_ref": user_ref}
        return connection.execute(self._t.said("locked_key"), user).scalar()

    def _take(
        self,
        connection: sa.Connection,
        user_ref: str,
        sessions: Sequence[str] | None,
        now: int,
    ) -> None:
        """Take the keys out, and leave the hash of whose they were."""
        t = self._t
        for table in (t.sessions, t.rotated):
            connection.execute(sa.delete(table).where(*_of(table, user_ref, sessions)))
        if sessions is None:
            connection.execute(t.said("erase_user"), {"user": user_ref, "at": now})
            return
        gone = [
            {"user": user_ref, "session": ref, "at": now} for ref in sorted(sessions)
        ]
        if gone:
            connection.execute(t.said("erase_session"), gone)

    def readmit(self, user_ref: str, wrapped: bytes, now: int, *, epoch: int) -> bool:
        """Give an erased user a new key; False unless ``epoch`` is the next one."""
        values = {"user": user_ref, "wrapped": wrapped, "now": now}
        values |= {"epoch": epoch, "before": epoch - 1}
        with self._writing() as connection:
            new = connection.execute(self._t.said("readmit"), values)
            return self._counted(connection, new.rowcount) == 1

    def users(self, after: str = "", limit: int = 500) -> list[tuple[str, UserEntry]]:
        """Users by their keyed hashes, from behind ``after`` on."""
        values = {"after": after, "limit": limit}
        return self._read(self._t.said("users"), _named, values)

    def keys_of(self, user_ref: str) -> dict[KeyPlace, bytes]:
        """The wrapped keys of all sessions of the user."""
        with self._writing() as connection:
            return self._keys_of(connection, user_ref)

    def _keys_of(
        self, connection: sa.Connection, user_ref: str
    ) -> dict[KeyPlace, bytes]:
        rows = connection.execute(self._t.said("keys_of"), {"user": user_ref})
        return {KeyPlace(_text(row[0]), int(row[1])): _octets(row[2]) for row in rows}

    def held_users(self) -> list[tuple[str, UserEntry]]:
        """Users whose keys are put aside, with these keys."""
        return self._read(self._t.said("held_users"), _named)

    def swap_held(self, user_ref: str, old: bytes, new: bytes) -> bool:
        """Replace a user's key that is put aside, if it is ``old``."""
        return self._swap(
            self._t.held, new, *_of(self._t.held, user_ref, [""]), old=old
        )

    def swap_user(
        self,
        user_ref: str,
        old: bytes,
        new: bytes,
        keys: Mapping[KeyPlace, bytes] | None = None,
    ) -> bool:
        """Replace a user's key and, if given, those of all sessions, or nothing.

        False if the user's is not ``old``, or there are other keys than these.
        """
        with self._writing() as connection:
            known = self._locked_key(connection, user_ref)
            if known is None or _octets(known) != old:
                return False
            there = self._keys_of(connection, user_ref).keys()
            if keys is not None and there != keys.keys():
                return False
            user = {"user_ref": user_ref, "wrapped": new}
            connection.execute(self._t.said("restore_user"), user)
            for name, later in (("wrap_first", False), ("wrap_rotated", True)):
                rows = [
                    {"user": user_ref, "wrapped": wrapped, **place._asdict()}
                    for place, wrapped in (keys or {}).items()
                    if (place.version > 1) == later
                ]
                if rows:
                    connection.execute(self._t.said(name), rows)
            self._counted(connection, 1)
            return True

    def counts(self) -> dict[str, int]:
        """How many users, sessions, erased users and sessions, and held keys."""
        return self._read(self._t.said("counts"), lambda row: dict(row._mapping))[0]

    def _swap(self, table: sa.Table, new: bytes, *where: Any, old: bytes) -> bool:
        """Replace the value or the key of a row, if it is ``old``."""
        value = table.c.value if table is self._t.settings else table.c.wrapped
        changed = sa.update(table).where(*where, value == old).values({value: new})
        with self._writing() as connection:
            return self._counted(connection, connection.execute(changed).rowcount) == 1

    def _counted(self, connection: sa.Connection, changed: int) -> int:
        """Count the generation up if anything was changed; gives ``changed``."""
        if changed:
            self._raise(connection, lambda known: known + 1)
        return changed

    def _raise(self, connection: sa.Connection, raised: Callable[[int], int]) -> None:
        known = connection.execute(self._t.said("locked_generation")).scalar()
        self._put(connection, GENERATION, b"%d" % raised(int(known or b"0")))

    def _read(
        self, query: Any, opened: Callable[[Any], T], named: Any = None
    ) -> list[T]:
        """What each row says."""
        with self._guarded(), self._alone.connect() as connection:
            return [opened(row) for row in connection.execute(query, named).all()]

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """A transaction that writes what follows from what it reads."""
        with self._guarded(), self._begun() as connection:
            yield connection

    def _begun(self) -> AbstractContextManager[sa.Connection]:
        mode = "DEFERRED" if self.readonly else "IMMEDIATE"
        return self._engine.execution_options(refold_begin=mode).begin()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            if self.readonly:
                raise KeyUnavailable(
                    "the key store can only be read where it lies",
                    remedy="copy it to a folder that can be written, or check the "
                    "rights on the key file",
                ) from None
            reason, remedy = _refusal(error)
            raise KeyUnavailable(reason, remedy=remedy) from None
        except JUNK:
            raise KeyUnavailable(
                "the key store holds what was not written by Refold",
                remedy="restore a backup of it",
            ) from None


def _refusal(error: SQLAlchemyError) -> tuple[str, str]:
    """What a key store could not do, and what to do about it."""
    cause = error.orig if isinstance(error, DBAPIError) else None
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


def _of(table: sa.Table, user_ref: str, sessions: Sequence[str] | None) -> list[Any]:
    mine: list[Any] = [table.c.user_ref == user_ref]
    if sessions is not None:
        mine.append(table.c.session_ref.in_(list(sessions)))
    return mine


def _adding(version: int) -> str:
    """What adds a session's key of that version."""
    return "add_session" if version == 1 else "add_rotated"


def _text(value: object) -> str:
    """SQLite keeps bytes where a text should be, and sorts them behind all texts."""
    if not isinstance(value, str):
        raise TypeError
    return value


def _octets(value: object) -> bytes:
    """SQLite keeps texts and numbers where bytes should be."""
    if not isinstance(value, bytes | memoryview):
        raise TypeError
    return bytes(value)


def _entry(row: Any) -> UserEntry:
    return UserEntry(int(row[0]), None if row[1] is None else _octets(row[1]))


def _versioned(row: Any) -> tuple[int, UserEntry]:
    return int(row[0]), _entry(row[1:])


def _of_session(user_ref: str, session_ref: str, wrapped: bytes, now: int) -> _Row:
    row = {"user_ref": user_ref, "session_ref": session_ref}
    return {**row, "wrapped": wrapped, "created_at": now}


def _named(row: Any) -> tuple[str, UserEntry]:
    return _text(row[0]), _entry(row[1:])


class _Place(Protocol):
    """Where a key store is, and how it is reached."""

    schema: bool  # its tables are in a schema of their own
    readonly: bool

    @property
    def file(self) -> FileId | None:
        """The file that is open, if it is one."""

    def engine(self, store: SqlKeyStore) -> sa.Engine:
        """What reaches it."""

    def left_to_parent(self) -> bool:
        """Leave, in a forked child, what is its parent's; False if it has a copy."""


class _InMemory:
    schema = False
    readonly = False
    file = None

    def engine(self, store: SqlKeyStore) -> sa.Engine:  # noqa: ARG002  # the protocol's
        from refold.adapters.sql import memory

        return memory.engine_in_memory()

    def left_to_parent(self) -> bool:
        return False


class _InFile:
    schema = False

    def __init__(self, path: Path) -> None:
        self._watched = files.WatchedFile(path)
        try:
            create_private(path)
            warn_of_mode(path)
            self.readonly = self._watched.readonly = files.only_read(path)
        except OSError as error:
            raise KeyUnavailable(
                f"the key store {path} cannot be opened ({error.strerror})",
                remedy=remedy_for(error),
            ) from None

    @property
    def file(self) -> FileId | None:
        return self._watched.file

    def engine(self, store: SqlKeyStore) -> sa.Engine:
        return files.engine_of_file(self._watched, store, _on_connect)

    def left_to_parent(self) -> bool:
        return True


class _OnServer:
    schema = True
    readonly = False
    file = None

    def __init__(self, url: sa.URL) -> None:
        self._url = url.set(drivername="postgresql+psycopg")
        self._sockets = forks.Sockets()

    def engine(self, store: SqlKeyStore) -> sa.Engine:  # noqa: ARG002  # the protocol's
        engine = sa.create_engine(
            self._url, pool_size=2, max_overflow=8, pool_pre_ping=True
        )
        event.listen(engine, "connect", self._sockets.note)
        return engine

    def left_to_parent(self) -> bool:
        self._sockets.sever()
        return True


def _place_of(url: str) -> _Place:
    """Where the key store of this URL is."""
    if url == "memory://":
        return _InMemory()
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidConfiguration(
            "REFOLD_KEYS is not a database URL: sqlite:///keys.db or postgresql://…"
        ) from None
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or ":memory:" in parsed.database or parsed.query:
            raise InvalidConfiguration("a SQLite key store is sqlite:///FILE")
        return _InFile(Path(parsed.database).absolute())
    if parsed.get_backend_name() in ("postgresql", "postgres"):
        if "pooler" in parsed.query:
            raise InvalidConfiguration(
                "a key store takes no ?pooler: connect it to its server directly"
            )
        return _OnServer(parsed)
    raise InvalidConfiguration("a key store is SQLite or PostgreSQL")


def _on_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")
