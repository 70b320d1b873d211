"""Wrapped keys in a database of their own: a file of mode 0600, or any URL."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    Engine,
    MetaData,
    Table,
    create_engine,
    delete,
    event,
    func,
    insert,
    literal,
    make_url,
    select,
    union_all,
)
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.schema import CreateSchema

from refold.adapters.keys import PEPPER
from refold.adapters.keystore import KeyPlace, UserEntry
from refold.adapters.sql.keystore_changes import GENERATION, Changes
from refold.adapters.sql.keystore_tables import KeyTables
from refold.domain.errors import Erased, InvalidConfiguration, KeyUnavailable

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
        return _kept(self.session_keys(user_ref, session_ref).get(version))

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


def create_private(path: Path, content: bytes = b"") -> bool:
    """Make the file with mode 0600 if there is none; True if it was made here.

    It appears whole or not at all, so that another process never reads half of it.
    """
    if path.exists():
        return False
    for folder in reversed(path.parents):
        folder.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True
