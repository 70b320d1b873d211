"""Wrapped keys in a database of their own: a file of mode 0600, or any URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
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

from refold.domain.errors import Erased, InvalidConfiguration, KeyUnavailable

_SCHEMA = "refold_keys"


class SqlKeyStore:
    """A KeyStore in a database.

    Users and sessions stand there as keyed hashes, keys only wrapped.  An erased
    user's row keeps its hash and epoch, and nothing else.  What replaces a session's
    first key is in ``rotated_session_keys``.
    """

    def __init__(self, url: str) -> None:
        self._engine, self._pid = _engine(url), os.getpid()
        metadata = MetaData(
            schema=None if self._engine.dialect.name == "sqlite" else _SCHEMA
        )
        self._settings = Table(
            "settings",
            metadata,
            Column("name", Text, primary_key=True),
            Column("value", LargeBinary, nullable=False),
        )
        self._users = Table(
            "user_keys",
            metadata,
            Column("user_ref", Text, primary_key=True),
            Column("epoch", Integer, nullable=False),
            Column("wrapped", LargeBinary),
            Column("created_at", BigInteger, nullable=False),
        )
        self._sessions = Table(
            "session_keys",
            metadata,
            Column("user_ref", Text, primary_key=True),
            Column("session_ref", Text, primary_key=True),
            Column("wrapped", LargeBinary, nullable=False),
            Column("created_at", BigInteger, nullable=False),
        )
        self._rotated = Table(
            "rotated_session_keys",
            metadata,
            Column("user_ref", Text, primary_key=True),
            Column("session_ref", Text, primary_key=True),
            Column("version", Integer, primary_key=True, autoincrement=False),
            Column("wrapped", LargeBinary, nullable=False),
            Column("created_at", BigInteger, nullable=False),
        )
        self._guarded(lambda: self._create(metadata))

    def _create(self, metadata: MetaData) -> None:
        engine = self._engine.execution_options(refold_begin="IMMEDIATE")
        with engine.begin() as connection:
            if metadata.schema:
                lock = "SELECT pg_advisory_xact_lock(7881629)"
                connection.exec_driver_sql(lock)
                connection.execute(CreateSchema(metadata.schema, if_not_exists=True))
            metadata.create_all(connection)

    def get_setting(self, name: str) -> bytes | None:
        return self._value(self._settings, "value", name=name)

    def add_setting(self, name: str, value: bytes) -> bytes:
        self._add(self._settings, {"name": name, "value": value})
        return _kept(self.get_setting(name))

    def get_user(self, user_ref: str) -> bytes | None:
        return self._value(self._users, "wrapped", user_ref=user_ref)

    def add_user(self, user_ref: str, wrapped: bytes, now: int) -> bytes:
        row = {"user_ref": user_ref, "epoch": 1, "wrapped": wrapped, "created_at": now}
        self._add(self._users, row)
        return _kept(self.get_user(user_ref))

    def session_keys(self, user_ref: str, session_ref: str) -> dict[int, bytes]:
        first, rotated = self._sessions.c, self._rotated.c
        query = union_all(
            select(literal(1).label("version"), first.wrapped).where(
                first.user_ref == user_ref, first.session_ref == session_ref
            ),
            select(rotated.version, rotated.wrapped).where(
                rotated.user_ref == user_ref, rotated.session_ref == session_ref
            ),
        )

        def fetch() -> dict[int, bytes]:
            with self._engine.connect() as connection:
                return {row[0]: bytes(row[1]) for row in connection.execute(query)}

        found: dict[int, bytes] = self._guarded(fetch)
        return found

    def add_session(
        self,
        user_ref: str,
        session_ref: str,
        wrapped: bytes,
        now: int,
        *,
        version: int = 1,
    ) -> bytes:
        row: dict[str, object] = {
            "user_ref": user_ref,
            "session_ref": session_ref,
            "wrapped": wrapped,
            "created_at": now,
        }
        if version == 1:
            self._add(self._sessions, row)
        else:
            self._add(self._rotated, {**row, "version": version})
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
                for table in (self._sessions, self._rotated)
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
        first, rotated = self._sessions, self._rotated

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

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _value(self, table: Table, column: str, **keys: str) -> bytes | None:
        query = select(table.c[column])
        for name, value in keys.items():
            query = query.where(table.c[name] == value)
        row = self._guarded(lambda: self._first(query))
        if row is not None and row[0] is None:
            raise Erased("the user")
        return bytes(row[0]) if row else None

    def _first(self, query: Any) -> Any:
        with self._engine.connect() as connection:
            return connection.execute(query.limit(1)).first()

    def _add(self, table: Table, row: Mapping[str, object]) -> None:
        def add() -> None:
            try:
                with self._engine.begin() as connection:
                    connection.execute(insert(table).values(row))
            except IntegrityError:
                return

        self._guarded(add)

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
