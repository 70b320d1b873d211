"""Wrapped keys in a database of their own: a file of mode 0600, or any URL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    create_engine,
    delete,
    event,
    func,
    insert,
    literal,
    make_url,
    select,
    union_all,
    update,
)
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.schema import CreateSchema

from refold.adapters.keys.master import create_private
from refold.adapters.keys.ring import PEPPER
from refold.adapters.keys.store import KeyPlace, UserEntry
from refold.adapters.sql.sqlite import engine_in_memory
from refold.domain.errors import Erased, InvalidConfiguration, KeyUnavailable

SCHEMA = "refold_keys"


class KeyTables:
    """The tables, in a schema of their own where the engine has schemas.

    An erased user's row keeps its hash and epoch, and nothing else.  What replaces a
    session's first key is in ``rotated``; ``held`` are keys put aside, those of users
    with the session ``""`` and version 0.
    """

    def __init__(self, *, schema: bool) -> None:
        self.metadata = metadata = MetaData(schema=SCHEMA if schema else None)
        self.settings = Table(
            "settings",
            metadata,
            Column("name", Text, primary_key=True),
            Column("value", LargeBinary, nullable=False),
        )
        self.users = Table(
            "user_keys",
            metadata,
            Column("user_ref", Text, primary_key=True),
            Column("epoch", Integer, nullable=False),
            Column("wrapped", LargeBinary),
            Column("created_at", BigInteger, nullable=False),
        )
        self.sessions = Table(
            "session_keys",
            metadata,
            Column("user_ref", Text, primary_key=True),
            Column("session_ref", Text, primary_key=True),
            Column("wrapped", LargeBinary, nullable=False),
            Column("created_at", BigInteger, nullable=False),
        )
        self.rotated = _versioned("rotated_session_keys", metadata)
        self.held = _versioned("held_keys", metadata)
        self.erased = Table(
            "erased_sessions",
            metadata,
            Column("user_ref", Text, primary_key=True),
            Column("session_ref", Text, primary_key=True),
            Column("erased_at", BigInteger, nullable=False),
        )


def _versioned(name: str, metadata: MetaData) -> Table:
    return Table(
        name,
        metadata,
        Column("user_ref", Text, primary_key=True),
        Column("session_ref", Text, primary_key=True),
        Column("version", Integer, primary_key=True, autoincrement=False),
        Column("wrapped", LargeBinary, nullable=False),
        Column("created_at", BigInteger, nullable=False),
    )


GENERATION: Final = "generation"
_USER: Final = ("", 0)


class Changes:
    """Changes of the key store over a connection that is in a transaction."""

    def __init__(self, tables: KeyTables, connection: Connection) -> None:
        self._t, self._connection = tables, connection

    def swap_setting(self, name: str, old: bytes, new: bytes) -> bool:
        """Replace the setting if it is ``old``."""
        settings = self._t.settings
        of_name = settings.c.name == name
        changed = self._connection.execute(
            update(settings).where(of_name, settings.c.value == old).values(value=new)
        )
        return self._counted(changed.rowcount) == 1

    def hold(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> int:
        """Put keys aside."""
        held = [
            {"user_ref": user_ref, "session_ref": place[0], "version": place[1]}
            | {"wrapped": wrapped, "created_at": now}
            for place, wrapped in self._found(user_ref, sessions)
        ]
        if held:
            self._connection.execute(insert(self._t.held), held)
        self._taken(user_ref, sessions, now)
        return self._counted(len(held))

    def release(self, user_ref: str, sessions: Sequence[str] | None) -> int:
        """Put back what was put aside."""
        t, held = self._t, self._t.held
        mine = self._of(held, user_ref, sessions)
        if sessions is None:  # but for sessions that were put aside alone
            alone = select(t.erased.c.session_ref).where(
                t.erased.c.user_ref == user_ref
            )
            mine.append(held.c.session_ref.not_in(alone))
        rows = self._connection.execute(select(held).where(*mine)).mappings().all()
        for row in rows:
            key = {name: row[name] for name in ("user_ref", "session_ref", "wrapped")}
            key["created_at"] = row["created_at"]
            if (row["session_ref"], row["version"]) == _USER:
                of_user = t.users.c.user_ref == user_ref
                self._do(update(t.users).where(of_user).values(wrapped=row["wrapped"]))
            elif row["version"] == 1:
                self._do(insert(t.sessions).values(key))
            else:
                self._do(insert(t.rotated).values(key | {"version": row["version"]}))
        if sessions is not None:
            self._do(delete(t.erased).where(*self._of(t.erased, user_ref, sessions)))
        self._do(delete(held).where(*mine))
        return self._counted(len(rows))

    def destroy(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> int:
        """Destroy keys, also those put aside."""
        held = self._t.held
        gone = len(list(self._found(user_ref, sessions)))
        gone += self._do(delete(held).where(*self._of(held, user_ref, sessions)))
        self._taken(user_ref, sessions, now)
        return self._counted(gone)

    def readmit(self, user_ref: str, wrapped: bytes, now: int, epoch: int) -> bool:
        """Give an erased user a new key."""
        users = self._t.users
        changed = self._do(
            update(users)
            .where(
                users.c.user_ref == user_ref,
                users.c.epoch == epoch - 1,
                users.c.wrapped.is_(None),
            )
            .values(wrapped=wrapped, epoch=epoch, created_at=now)
        )
        return self._counted(changed) == 1

    def swap_held(self, user_ref: str, old: bytes, new: bytes) -> bool:
        """Replace a user's key that is put aside."""
        held = self._t.held
        mine = held.c.user_ref == user_ref, held.c.session_ref == ""
        changed = update(held).where(*mine, held.c.wrapped == old).values(wrapped=new)
        return self._counted(self._do(changed)) == 1

    def swap_user(
        self,
        user_ref: str,
        old: bytes,
        new: bytes,
        keys: Mapping[KeyPlace, bytes] | None,
    ) -> bool:
        """Replace a user's key and, if given, all of its sessions' keys, or nothing."""
        users = self._t.users
        of_user = users.c.user_ref == user_ref
        query = select(users.c.wrapped).where(of_user).with_for_update()
        known = self._connection.execute(query).scalar()
        if known is None or bytes(known) != old:
            return False
        if keys is not None and set(self.keys_of(user_ref)) != set(keys):
            return False
        self._do(update(users).where(of_user).values(wrapped=new))
        self._rewrap(user_ref, keys or {})
        self._counted(1)
        return True

    def _rewrap(self, user_ref: str, keys: Mapping[KeyPlace, bytes]) -> None:
        for table, of_version in ((self._t.sessions, False), (self._t.rotated, True)):
            rows = [
                {"ref": place.session_ref, "number": place.version, "key": key}
                for place, key in keys.items()
                if (place.version > 1) == of_version
            ]
            if rows:
                self._connection.execute(_rewrapped(table, user_ref, of_version), rows)

    def keys_of(self, user_ref: str) -> dict[KeyPlace, bytes]:
        """The wrapped keys of all sessions of the user."""
        first, rotated = self._t.sessions, self._t.rotated
        found: dict[KeyPlace, bytes] = {}
        for table, version in ((first, literal(1)), (rotated, rotated.c.version)):
            query = select(table.c.session_ref, version, table.c.wrapped)
            rows = self._connection.execute(query.where(table.c.user_ref == user_ref))
            found |= {KeyPlace(row[0], row[1]): bytes(row[2]) for row in rows}
        return found

    def _found(
        self, user_ref: str, sessions: Sequence[str] | None
    ) -> Iterator[tuple[tuple[str, int], bytes]]:
        users = self._t.users
        if sessions is None:
            query = select(users.c.wrapped).where(users.c.user_ref == user_ref)
            wrapped = self._connection.execute(query.with_for_update()).scalar()
            if wrapped is not None:
                yield _USER, bytes(wrapped)
        wanted = None if sessions is None else set(sessions)
        for place, key in self.keys_of(user_ref).items():
            if wanted is None or place.session_ref in wanted:
                yield place, key

    def _taken(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> None:
        """Take the keys out, and leave the hash of whose they were."""
        t = self._t
        for table in (t.sessions, t.rotated):
            self._do(delete(table).where(*self._of(table, user_ref, sessions)))
        if sessions is not None:
            query = select(t.erased.c.session_ref).where(
                t.erased.c.user_ref == user_ref
            )
            known = set(self._connection.execute(query).scalars())
            for ref in sorted(set(sessions) - known):
                row = {"user_ref": user_ref, "session_ref": ref, "erased_at": now}
                self._do(insert(t.erased).values(row))
            return
        of_user = t.users.c.user_ref == user_ref
        row = {"user_ref": user_ref, "epoch": 1, "wrapped": None, "created_at": now}
        if not self._do(update(t.users).where(of_user).values(wrapped=None)):
            self._do(insert(t.users).values(row))

    def _of(
        self, table: Table, user_ref: str, sessions: Sequence[str] | None
    ) -> list[Any]:
        mine: list[Any] = [table.c.user_ref == user_ref]
        if sessions is not None:
            mine.append(table.c.session_ref.in_(list(sessions)))
        return mine

    def reach(self, generation: int) -> None:
        """Raise the generation to this, if it is lower."""
        self._raise(lambda known: max(known, generation))

    def _counted(self, changed: int) -> int:
        """Count the generation up if anything was changed; gives ``changed``."""
        if changed:
            self._raise(lambda known: known + 1)
        return changed

    def _raise(self, raised: Callable[[int], int]) -> None:
        settings = self._t.settings
        of_name = settings.c.name == GENERATION
        query = select(settings.c.value).where(of_name).with_for_update()
        known = self._connection.execute(query).scalar()
        value = b"%d" % raised(int(known or b"0"))
        if known is None:
            self._do(insert(settings).values(name=GENERATION, value=value))
        else:
            self._do(update(settings).where(of_name).values(value=value))

    def _do(self, statement: Any) -> int:
        return int(self._connection.execute(statement).rowcount)


def _rewrapped(table: Table, user_ref: str, of_version: bool) -> Any:
    statement = update(table).where(
        table.c.user_ref == user_ref, table.c.session_ref == bindparam("ref")
    )
    if of_version:
        statement = statement.where(table.c.version == bindparam("number"))
    return statement.values(wrapped=bindparam("key"))


T = TypeVar("T")


class SqlKeyStore:
    """A KeyStore in a database.

    Users and sessions stand there as keyed hashes, keys only wrapped.
    """

    def __init__(self, url: str) -> None:
        self._engine, self._pid = _engine(url), os.getpid()
        self._t = KeyTables(schema=self._engine.dialect.name != "sqlite")
        self._guarded(lambda: self._create(self._t.metadata))

    def _create(self, metadata: MetaData) -> None:
        with self._writing().begin() as connection:
            if metadata.schema:
                lock = "SELECT pg_advisory_xact_lock(7881629)"
                connection.exec_driver_sql(lock)
                connection.execute(CreateSchema(metadata.schema, if_not_exists=True))
            metadata.create_all(connection)

    def get_setting(self, name: str) -> bytes | None:
        settings = self._t.settings.c
        row = self._row(select(settings.value).where(settings.name == name))
        return bytes(row[0]) if row else None

    def add_setting(self, name: str, value: bytes) -> bytes:
        self._add(self._t.settings, {"name": name, "value": value})
        return _kept(self.get_setting(name))

    def swap_setting(self, name: str, old: bytes, new: bytes) -> bool:
        return self._changing(lambda c: c.swap_setting(name, old, new))

    def generation(self) -> int:
        return int(self.get_setting(GENERATION) or b"0")

    def reach(self, generation: int) -> None:
        self._changing(lambda c: c.reach(generation))

    def get_user(self, user_ref: str) -> UserEntry | None:
        users = self._t.users.c
        query = select(users.epoch, users.wrapped).where(users.user_ref == user_ref)
        row = self._row(query)
        return _entry(row) if row else None

    def add_user(
        self, user_ref: str, wrapped: bytes, now: int, *, pepper: bytes
    ) -> UserEntry | None:
        row = {"user_ref": user_ref, "epoch": 1, "wrapped": wrapped, "created_at": now}
        settings = self._t.settings.c
        known = select(settings.value).where(settings.name == PEPPER)
        if not self._add(self._t.users, row, known, pepper):
            return None
        return self.get_user(user_ref)

    def session_keys(self, user_ref: str, session_ref: str) -> dict[int, bytes]:
        first, rotated, gone = self._t.sessions, self._t.rotated, self._t.erased
        query = union_all(
            *(
                select(version, wrapped).where(
                    table.c.user_ref == user_ref, table.c.session_ref == session_ref
                )
                for table, version, wrapped in (
                    (first, literal(1).label("version"), first.c.wrapped),
                    (rotated, rotated.c.version, rotated.c.wrapped),
                    (gone, literal(0), literal(b"")),
                )
            )
        )

        def fetch() -> dict[int, bytes]:
            with self._engine.connect() as connection:
                return {row[0]: bytes(row[1]) for row in connection.execute(query)}

        found: dict[int, bytes] = self._guarded(fetch)
        if 0 in found:
            raise Erased("the session")
        return found

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
        row: dict[str, object] = {
            "user_ref": user_ref,
            "session_ref": session_ref,
            "wrapped": wrapped,
            "created_at": now,
        }
        table = self._t.sessions if version == 1 else self._t.rotated
        row |= {} if version == 1 else {"version": version}
        users = self._t.users.c
        known = select(users.wrapped).where(users.user_ref == user_ref)
        if not self._add(table, row, known, under):
            return None
        # None if the user was erased since: who asks then is told so by the user's key.
        return self.session_keys(user_ref, session_ref).get(version)

    def surplus(
        self, user_ref: str | None = None, session_ref: str | None = None
    ) -> int:
        wanted = {"user_ref": user_ref, "session_ref": session_ref}
        keys = union_all(
            *(
                select(table.c.user_ref, table.c.session_ref).where(
                    *(table.c[k] == ref for k, ref in wanted.items() if ref is not None)
                )
                for table in (self._t.sessions, self._t.rotated)
            )
        ).subquery()
        each = select(keys.c.user_ref, keys.c.session_ref).distinct().subquery()
        found = self._guarded(
            lambda: self._first(
                select(
                    select(func.count()).select_from(keys).scalar_subquery(),
                    select(func.count()).select_from(each).scalar_subquery(),
                )
            )
        )
        return int(found[0] - found[1])

    def destroy_sessions(self, user_ref: str, session_ref: str, *, before: int) -> int:
        first, rotated = self._t.sessions, self._t.rotated

        def destroy() -> int:
            with self._engine.begin() as connection:
                found = connection.execute(
                    delete(rotated).where(
                        rotated.c.user_ref == user_ref,
                        rotated.c.session_ref == session_ref,
                        rotated.c.version < before,
                    )
                ).rowcount
                if before > 1:
                    found += connection.execute(
                        delete(first).where(
                            first.c.user_ref == user_ref,
                            first.c.session_ref == session_ref,
                        )
                    ).rowcount
                return found

        destroyed: int = self._guarded(destroy)
        return destroyed

    def hold(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> int:
        return self._changing(lambda c: c.hold(user_ref, sessions, now))

    def release(self, user_ref: str, sessions: Sequence[str] | None) -> int:
        return self._changing(lambda c: c.release(user_ref, sessions))

    def destroy(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> int:
        found = self._changing(lambda c: c.destroy(user_ref, sessions, now))
        self._guarded(self._vacuum)
        return found

    def readmit(self, user_ref: str, wrapped: bytes, now: int, *, epoch: int) -> bool:
        return self._changing(lambda c: c.readmit(user_ref, wrapped, now, epoch))

    def users(self, after: str = "", limit: int = 500) -> list[tuple[str, UserEntry]]:
        users = self._t.users.c
        query = select(users.user_ref, users.epoch, users.wrapped)
        query = query.where(users.user_ref > after).order_by(users.user_ref)
        rows = self._guarded(lambda: self._rows(query.limit(limit)))
        return [(row[0], _entry(row[1:])) for row in rows]

    def keys_of(self, user_ref: str) -> dict[KeyPlace, bytes]:
        return self._changing(lambda c: c.keys_of(user_ref))

    def held_users(self) -> list[tuple[str, UserEntry]]:
        users, held = self._t.users.c, self._t.held.c
        query = select(users.user_ref, users.epoch, held.wrapped).where(
            held.user_ref == users.user_ref, held.session_ref == ""
        )
        rows = self._guarded(lambda: self._rows(query))
        return [(row[0], _entry(row[1:])) for row in rows]

    def swap_held(self, user_ref: str, old: bytes, new: bytes) -> bool:
        return self._changing(lambda c: c.swap_held(user_ref, old, new))

    def swap_user(
        self,
        user_ref: str,
        old: bytes,
        new: bytes,
        keys: Mapping[KeyPlace, bytes] | None = None,
    ) -> bool:
        return self._changing(lambda c: c.swap_user(user_ref, old, new, keys))

    def counts(self) -> dict[str, int]:
        t = self._t
        live = t.users.c.wrapped.is_not(None)
        queries = {
            "users": select(func.count()).where(live),
            "erased_users": select(func.count()).where(~live),
            "sessions": select(func.count()).select_from(t.sessions),
            "rotated": select(func.count()).select_from(t.rotated),
            "erased_sessions": select(func.count()).select_from(t.erased),
            "held": select(func.count()).select_from(t.held),
        }
        one = select(*(query.scalar_subquery() for query in queries.values()))
        return dict(zip(queries, map(int, self._row(one)), strict=True))

    def _vacuum(self) -> None:
        """Overwrite what was deleted: SQLite does so by itself (``secure_delete``)."""
        if self._engine.dialect.name == "sqlite":
            return
        own = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        with own.connect() as connection:
            for table in (
                self._t.users,
                self._t.sessions,
                self._t.rotated,
                self._t.held,
            ):
                connection.exec_driver_sql(f"VACUUM {table.fullname}")

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _row(self, query: Any) -> Any:
        return self._guarded(lambda: self._first(query))

    def _first(self, query: Any) -> Any:
        with self._engine.connect() as connection:
            return connection.execute(query.limit(1)).first()

    def _rows(self, query: Any) -> Any:
        with self._engine.connect() as connection:
            return connection.execute(query).all()

    def _add(
        self,
        table: Table,
        row: Mapping[str, object],
        known: Any = None,
        expected: bytes = b"",
    ) -> bool:
        """Add the row unless it is there; False if ``known`` is not as expected."""

        def add() -> bool:
            try:
                with self._writing().begin() as connection:
                    if known is not None:
                        shared = known.with_for_update(read=True)
                        found = connection.execute(shared).scalar()
                        if found is None or bytes(found) != expected:
                            return False
                    connection.execute(insert(table).values(row))
            except IntegrityError:
                return True
            return True

        return bool(self._guarded(add))

    def _changing(self, change: Callable[[Changes], T]) -> T:
        def attempt() -> T:
            with self._writing().begin() as connection:
                return change(Changes(self._t, connection))

        changed: T = self._guarded(attempt)
        return changed

    def _writing(self) -> Engine:
        """For transactions that write what follows from what they read."""
        return self._engine.execution_options(refold_begin="IMMEDIATE")

    def _guarded(self, action: Any) -> Any:
        if self._pid != os.getpid():
            self._engine.dispose(close=False)
            self._pid = os.getpid()
        try:
            return action()
        except SQLAlchemyError as error:
            raise KeyUnavailable(
                f"the key store cannot be used ({type(error).__name__})",
                remedy="check REFOLD_KEYS, or the rights on the key file",
            ) from None


def _entry(row: Any) -> UserEntry:
    return UserEntry(int(row[0]), None if row[1] is None else bytes(row[1]))


def _kept(value: bytes | None) -> bytes:
    if value is None:
        raise KeyUnavailable("a new key was not kept", remedy="check the key store")
    return value


def _engine(url: str) -> Engine:
    if url == "memory://":
        return engine_in_memory()
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InvalidConfiguration(
            "REFOLD_KEYS is no database URL: sqlite:///keys.db or postgresql://…"
        ) from None
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or ":memory:" in parsed.database or parsed.query:
            raise InvalidConfiguration("a SQLite key store is sqlite:///FILE")
        path = Path(parsed.database).absolute()
        create_private(path)
        engine = create_engine(
            URL.create("sqlite", database=str(path)), connect_args={"timeout": 10}
        )
        event.listen(engine, "connect", _on_connect)
        event.listen(engine, "begin", _begin)
        return engine
    if parsed.get_backend_name() in ("postgresql", "postgres"):
        url_ = parsed.set(drivername="postgresql+psycopg")
        return create_engine(url_, pool_size=2, max_overflow=8, pool_pre_ping=True)
    raise InvalidConfiguration("a key store is SQLite or PostgreSQL")


def _on_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")


def _begin(connection: Any) -> None:
    mode = connection.get_execution_options().get("refold_begin", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {mode}")
