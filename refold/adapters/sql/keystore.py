"""Wrapped keys in a database of their own: a file of mode 0600, or any URL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.schema import CreateSchema

from refold.adapters.keys.master import create_private, remark_on_mode
from refold.adapters.keys.store import PEPPER, KeyPlace, UserEntry
from refold.adapters.sql import memory
from refold.adapters.sql.tables import described
from refold.domain.errors import Erased, InvalidConfiguration, KeyUnavailable
from refold.domain.ports import JUNK

SCHEMA = "refold_keys"
T = TypeVar("T")
_Row: TypeAlias = dict[str, object]
_OF_USER, _ERASED = -1, 0  # where a session's key has its version


_SESSION: Final = "user_ref session_ref"
_KEY: Final = "wrapped:bytes created_at:big"
_TABLES: Final = {
    "settings": ("name", "value:bytes"),
    "user_keys": ("user_ref", "epoch:int wrapped:bytes? created_at:big"),
    "session_keys": (_SESSION, _KEY),
    "rotated_session_keys": (f"{_SESSION} version:int", _KEY),
    "held_keys": (f"{_SESSION} version:int", _KEY),
    "erased_sessions": (_SESSION, "erased_at:big"),
}


class KeyTables:
    """The tables, in a schema of their own where the engine has schemas.

    An erased user's row keeps its hash and epoch, and nothing else.  What replaces a
    session's first key is in ``rotated``; ``held`` are keys put aside, those of users
    with the session ``""`` and version 0.
    """

    def __init__(self, *, schema: bool) -> None:
        self.metadata = sa.MetaData(schema=SCHEMA if schema else None)
        (
            self.settings,
            self.users,
            self.sessions,
            self.rotated,
            self.held,
            self.erased,
        ) = (described(self.metadata, name, *of) for name, of in _TABLES.items())
        # What a new session waits for: to build a query anew costs more than to run it.
        changed = self.settings, self.users, self.sessions, self.rotated
        self.insert = {table.name: sa.insert(table) for table in changed}
        self.pepper = _locked(self.settings, "name", "value")
        self.wrapped = _locked(self.users, "user_ref", "wrapped")
        self.standing = sa.union_all(*self._standing())

    def _standing(self) -> Iterator[Any]:
        """A version, an epoch and a wrapped key for all that is known of a session."""
        fixed, user = sa.literal_column, self.users.c
        of_user = user.user_ref == sa.bindparam("user")
        yield sa.select(fixed(str(_OF_USER)), user.epoch, user.wrapped).where(of_user)
        for table, version, key in (
            (self.sessions, fixed("1"), self.sessions.c.wrapped),
            (self.rotated, self.rotated.c.version, self.rotated.c.wrapped),
            (self.erased, fixed(str(_ERASED)), fixed("NULL")),
        ):
            of_user = table.c.user_ref == sa.bindparam("user")
            mine = table.c.session_ref == sa.bindparam("session")
            yield sa.select(version, fixed("1"), key).where(of_user, mine)


def _locked(table: sa.Table, name: str, value: str) -> Any:
    """The value of a row, which nobody changes before the transaction ends."""
    query = sa.select(table.c[value]).where(table.c[name] == sa.bindparam(name))
    return query.with_for_update(read=True)


GENERATION: Final = "generation"
_USER: Final = ("", 0)


class SqlKeyStore:
    """Where wrapped keys are kept, in a database apart from the events they open.

    Users and sessions are named by keyed hashes.  What adds, takes away or replaces
    keys is durable before it returns; of two that add the same key at once one wins,
    and both are given the winner's.  A session has one key, or several by version
    while it is sealed anew.  What was erased leaves its keyed hash, and its key cannot
    be added again.
    """

    def __init__(self, url: str) -> None:
        (self._engine, self.readonly), self._pid = _engine(url), os.getpid()
        self._t = KeyTables(schema=self._engine.dialect.name != "sqlite")
        metadata = self._t.metadata
        # Each statement by itself, without the round trips of a transaction.
        level = {"isolation_level": "AUTOCOMMIT"} if metadata.schema else {}
        self._alone = self._engine.execution_options(refold_begin="", **level)
        if self.readonly:
            return
        with self._writing() as connection:
            if metadata.schema:
                lock = "SELECT pg_advisory_xact_lock(7881629)"
                connection.exec_driver_sql(lock)
                connection.execute(CreateSchema(metadata.schema, if_not_exists=True))
            metadata.create_all(connection)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

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
        settings = self._t.settings.c
        query = sa.select(settings.value).where(settings.name == name)
        found = self._read(query, lambda row: _octets(row[0]))
        return found[0] if found else None

    def remember(self, name: str, value: bytes) -> None:
        """Keep the value under that name, in place of another."""
        with self._writing() as connection:
            self._put(connection, name, value)

    def _put(self, connection: sa.Connection, name: str, value: bytes) -> None:
        settings = self._t.settings
        here = sa.update(settings).where(settings.c.name == name)
        if not connection.execute(here.values(value=value)).rowcount:
            connection.execute(sa.insert(settings).values(name=name, value=value))

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
        self._add([(self._t.settings, {"name": name, "value": value})])
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
        rows: list[tuple[sa.Table, _Row]] = [(self._t.users, row)]
        if session is not None:
            rows.append((self._t.sessions, _of_session(user_ref, *session, now)))
        added = self._add(rows, self._t.pepper, {"name": PEPPER}, pepper)
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
        found = dict(self._read(self._t.standing, _versioned, refs))
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
        row = _of_session(user_ref, session_ref, wrapped, now)
        table = self._t.sessions if version == 1 else self._t.rotated
        row |= {} if version == 1 else {"version": version}
        known = self._t.wrapped, {"user_ref": user_ref}
        if self._add([(table, row)], *known, under) is None:
            return None
        # None if the user was erased since: who asks then is told so by the user's key.
        return self.session_keys(user_ref, session_ref).get(version)

    def _add(
        self,
        rows: Iterable[tuple[sa.Table, _Row]],
        known: Any = None,
        named: Mapping[str, str] | None = None,
        expected: bytes = b"",
    ) -> bool | None:
        """Add the rows; False if the first is there, None if ``known`` is another."""
        with self._guarded(), suppress(IntegrityError), self._begun() as connection:
            if known is not None:
                found = connection.execute(known, named).scalar()
                if found is None or _octets(found) != expected:
                    return None
            for table, row in rows:
                connection.execute(self._t.insert[table.name], row)
            return True
        return False

    def surplus(
        self, user_ref: str | None = None, session_ref: str | None = None
    ) -> int:
        """How many keys there are beyond one for each session of these."""
        wanted = {"user_ref": user_ref, "session_ref": session_ref}
        keys = sa.union_all(
            *(
                sa.select(table.c.user_ref, table.c.session_ref).where(
                    *(table.c[k] == ref for k, ref in wanted.items() if ref is not None)
                )
                for table in (self._t.sessions, self._t.rotated)
            )
        ).subquery()
        each = sa.select(keys.c.user_ref, keys.c.session_ref).distinct().subquery()
        every, sessions = (
            sa.select(sa.func.count()).select_from(some).scalar_subquery()
            for some in (keys, each)
        )
        return self._read(sa.select(every - sessions), lambda row: int(row[0]))[0]

    def destroy_sessions(self, user_ref: str, session_ref: str, *, before: int) -> int:
        """Destroy the session's keys of lower versions for good; returns how many."""
        rotated = self._t.rotated
        with self._writing() as connection:
            mine = _of(rotated, user_ref, [session_ref])
            gone = sa.delete(rotated).where(*mine, rotated.c.version < before)
            found = connection.execute(gone).rowcount
            if before > 1:
                first = self._t.sessions
                gone = sa.delete(first).where(*_of(first, user_ref, [session_ref]))
                found += connection.execute(gone).rowcount
            return found

    def hold(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> int:
        """Put keys aside, of a user or of sessions; returns how many.

        They are not found any more, until ``release`` puts them back.
        """
        with self._writing() as connection:
            held = [
                {"user_ref": user_ref, "session_ref": place[0], "version": place[1]}
                | {"wrapped": wrapped, "created_at": now}
                for place, wrapped in self._found(connection, user_ref, sessions)
            ]
            if held:
                connection.execute(sa.insert(self._t.held), held)
            self._take(connection, user_ref, sessions, now)
            return self._counted(connection, len(held))

    def release(self, user_ref: str, sessions: Sequence[str] | None) -> int:
        """Put back what was put aside; returns how many."""
        t, held = self._t, self._t.held
        mine = _of(held, user_ref, sessions)
        if sessions is None:  # but for sessions that were put aside alone
            alone = sa.select(t.erased.c.session_ref)
            alone = alone.where(t.erased.c.user_ref == user_ref)
            mine.append(held.c.session_ref.not_in(alone))
        with self._writing() as connection:
            rows = connection.execute(sa.select(held).where(*mine)).mappings().all()
            for row in rows:
                key = dict(row)
                version = key.pop("version")
                if (row["session_ref"], version) == _USER:
                    back: Any = sa.update(t.users).where(t.users.c.user_ref == user_ref)
                    back = back.values(wrapped=row["wrapped"])
                elif version == 1:
                    back = sa.insert(t.sessions).values(key)
                else:
                    back = sa.insert(t.rotated).values(dict(row))
                connection.execute(back)
            if sessions is not None:
                gone = sa.delete(t.erased).where(*_of(t.erased, user_ref, sessions))
                connection.execute(gone)
            connection.execute(sa.delete(held).where(*mine))
            return self._counted(connection, len(rows))

    def destroy(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> int:
        """Destroy for good the keys of a user, or of these sessions; returns how many.

        Those put aside go too, and a user who has no key yet is known as erased.
        """
        held = self._t.held
        with self._writing() as connection:
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

    def _found(
        self, connection: sa.Connection, user_ref: str, sessions: Sequence[str] | None
    ) -> Iterator[tuple[tuple[str, int], bytes]]:
        users = self._t.users.c
        if sessions is None:
            query = sa.select(users.wrapped).where(users.user_ref == user_ref)
            wrapped = connection.execute(query.with_for_update()).scalar()
            if wrapped is not None:
                yield _USER, _octets(wrapped)
        wanted = None if sessions is None else set(sessions)
        for place, key in self._keys_of(connection, user_ref).items():
            if wanted is None or place.session_ref in wanted:
                yield place, key

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
            gone = sa.update(t.users).where(t.users.c.user_ref == user_ref)
            if not connection.execute(gone.values(wrapped=None)).rowcount:
                row = {"user_ref": user_ref, "epoch": 1, "created_at": now}
                connection.execute(sa.insert(t.users).values(row))
            return
        query = sa.select(t.erased.c.session_ref).where(t.erased.c.user_ref == user_ref)
        known = set(connection.execute(query).scalars())
        for ref in sorted(set(sessions) - known):
            row = {"user_ref": user_ref, "session_ref": ref, "erased_at": now}
            connection.execute(sa.insert(t.erased).values(row))

    def readmit(self, user_ref: str, wrapped: bytes, now: int, *, epoch: int) -> bool:
        """Give an erased user a new key; False unless ``epoch`` is the next one."""
        users = self._t.users
        erased = users.c.epoch == epoch - 1, users.c.wrapped.is_(None)
        new = sa.update(users).where(users.c.user_ref == user_ref, *erased)
        new = new.values(wrapped=wrapped, epoch=epoch, created_at=now)
        with self._writing() as connection:
            return self._counted(connection, connection.execute(new).rowcount) == 1

    def users(self, after: str = "", limit: int = 500) -> list[tuple[str, UserEntry]]:
        """Users by their keyed hashes, from behind ``after`` on."""
        users = self._t.users.c
        query = sa.select(users.user_ref, users.epoch, users.wrapped)
        query = query.where(users.user_ref > after).order_by(users.user_ref)
        return self._read(query.limit(limit), _named)

    def keys_of(self, user_ref: str) -> dict[KeyPlace, bytes]:
        """The wrapped keys of all sessions of the user."""
        with self._writing() as connection:
            return self._keys_of(connection, user_ref)

    def _keys_of(
        self, connection: sa.Connection, user_ref: str
    ) -> dict[KeyPlace, bytes]:
        first, rotated = self._t.sessions, self._t.rotated
        found: dict[KeyPlace, bytes] = {}
        for table, version in ((first, sa.literal(1)), (rotated, rotated.c.version)):
            query = sa.select(table.c.session_ref, version, table.c.wrapped)
            rows = connection.execute(query.where(table.c.user_ref == user_ref))
            found |= {
                KeyPlace(_text(row[0]), int(row[1])): _octets(row[2]) for row in rows
            }
        return found

    def held_users(self) -> list[tuple[str, UserEntry]]:
        """Users whose keys are put aside, with these keys."""
        users, held = self._t.users.c, self._t.held.c
        query = sa.select(users.user_ref, users.epoch, held.wrapped).where(
            held.user_ref == users.user_ref, held.session_ref == ""
        )
        return self._read(query, _named)

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
        users = self._t.users
        of_user = users.c.user_ref == user_ref
        with self._writing() as connection:
            query = sa.select(users.c.wrapped).where(of_user).with_for_update()
            known = connection.execute(query).scalar()
            if known is None or _octets(known) != old:
                return False
            there = self._keys_of(connection, user_ref).keys()
            if keys is not None and there != keys.keys():
                return False
            connection.execute(sa.update(users).where(of_user).values(wrapped=new))
            for table, later in ((self._t.sessions, False), (self._t.rotated, True)):
                rows = [
                    {"ref": place.session_ref, "number": place.version, "key": key}
                    for place, key in (keys or {}).items()
                    if (place.version > 1) == later
                ]
                mine = [table.c.user_ref == user_ref]
                mine.append(table.c.session_ref == sa.bindparam("ref"))
                if later:
                    mine.append(table.c.version == sa.bindparam("number"))
                new_key = (
                    sa.update(table).where(*mine).values(wrapped=sa.bindparam("key"))
                )
                if rows:
                    connection.execute(new_key, rows)
            self._counted(connection, 1)
            return True

    def counts(self) -> dict[str, int]:
        """How many users, sessions, erased users and sessions, and held keys."""
        t = self._t
        live = t.users.c.wrapped.is_not(None)
        queries = {
            "users": sa.select(sa.func.count()).where(live),
            "erased_users": sa.select(sa.func.count()).where(~live),
            "sessions": sa.select(sa.func.count()).select_from(t.sessions),
            "rotated": sa.select(sa.func.count()).select_from(t.rotated),
            "erased_sessions": sa.select(sa.func.count()).select_from(t.erased),
            "held": sa.select(sa.func.count()).select_from(t.held),
        }
        one = sa.select(*(query.scalar_subquery() for query in queries.values()))
        (found,) = self._read(one, partial(map, int))
        return dict(zip(queries, found, strict=True))

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
        settings = self._t.settings.c
        query = sa.select(settings.value).where(settings.name == GENERATION)
        known = connection.execute(query.with_for_update()).scalar()
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
        if self._pid != os.getpid():
            self._engine.dispose(close=False)
            self._pid = os.getpid()
        try:
            yield
        except SQLAlchemyError as error:
            if self.readonly:
                raise KeyUnavailable(
                    "the key store can only be read where it lies",
                    remedy="copy it to a folder that can be written, or check the "
                    "rights on the key file",
                ) from None
            raise KeyUnavailable(
                f"the key store cannot be used ({type(error).__name__})",
                remedy="check REFOLD_KEYS, or the rights on the key file",
            ) from None
        except JUNK:
            raise KeyUnavailable(
                "the key store holds what was not written by Refold",
                remedy="restore a backup of it",
            ) from None


def _of(table: sa.Table, user_ref: str, sessions: Sequence[str] | None) -> list[Any]:
    mine: list[Any] = [table.c.user_ref == user_ref]
    if sessions is not None:
        mine.append(table.c.session_ref.in_(list(sessions)))
    return mine


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


def _engine(url: str) -> tuple[sa.Engine, bool]:
    """What reaches the key store, and whether it can only be read."""
    if url == "memory://":
        return memory.engine_in_memory(), False
    try:
        parsed = sa.make_url(url)
    except ArgumentError:
        raise InvalidConfiguration(
            "REFOLD_KEYS is not a database URL: sqlite:///keys.db or postgresql://…"
        ) from None
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or ":memory:" in parsed.database or parsed.query:
            raise InvalidConfiguration("a SQLite key store is sqlite:///FILE")
        path = Path(parsed.database).absolute()
        create_private(path)
        remark_on_mode(path)
        readonly = memory.only_read(path)
        place = memory.place_of(path, readonly=readonly)
        return memory.engine_of_file(
            partial(memory.connected, place), _on_connect
        ), readonly
    if parsed.get_backend_name() in ("postgresql", "postgres"):
        url_ = parsed.set(drivername="postgresql+psycopg")
        engine = sa.create_engine(url_, pool_size=2, max_overflow=8, pool_pre_ping=True)
        return engine, False
    raise InvalidConfiguration("a key store is SQLite or PostgreSQL")


def _on_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")
