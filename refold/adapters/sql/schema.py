"""The schema in writing: what makes it, in the order in which it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import Connection, MetaData, inspect, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from refold.adapters.sql import sqlite as sqlite_engine, tables
from refold.adapters.sql.database import MOVED, Database, EngineName, moved
from refold.adapters.sql.sqlite import APPLICATION_ID
from refold.adapters.sql.tables import SCHEMA
from refold.domain.errors import IncompatibleStore, StoreUnavailable

_SQL: Final = tables.statements("recorder")
# In ``settings``: where the store is now; from where it is being moved here.
MOVED_TO: Final = "moved_to"
MOVING: Final = "moving_from"

BIG: Final = ("events", "blobs", "receipts", "seals")  # what is divided by user


def schema(engine: EngineName, *, partitions: int = 0) -> list[str]:
    """Tables, indexes and triggers as migrations leave them in an empty database.

    ``partitions``: on PostgreSQL the big tables are in so many parts, each with the
    rows of some users; 0 is in one.
    """
    if engine == "sqlite":
        made = _made(tables.build(None, rowid=True).metadata, sqlite.dialect())
        mark = f"PRAGMA application_id={APPLICATION_ID}"
        return _neat([mark, *made, *sqlite_engine.GUARDS])
    from sqlalchemy.dialects import postgresql

    from refold.adapters.sql import postgres as postgresql_engine

    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's
    metadata = tables.build(SCHEMA, rowid=False).metadata
    made = _made(metadata, dialect, parts=partitions)
    first = f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"
    # What refuses a row is on each part as it is on the whole; this is not.
    refuse = postgresql_engine.REFUSE_TRUNCATE
    each = [refuse.replace(".events ", f".events_{n} ") for n in range(partitions)]
    return _neat([first, *made, *postgresql_engine.GUARDS, *each])


def roles(engine: EngineName = "postgresql") -> list[str]:
    """Roles, grants and policies of PostgreSQL; can be run again, in a transaction."""
    from refold.adapters.sql import citus, roles as postgres_roles

    metadata = tables.build(SCHEMA, rowid=False).metadata
    said = postgres_roles.statements(metadata)
    if engine == "citus":
        said = citus.policies(said)
    return _neat(["BEGIN", *said, "COMMIT"])


def _made(metadata: MetaData, dialect: Any, *, parts: int = 0) -> Iterator[str]:
    for table in sorted(metadata.tables.values(), key=lambda table: table.name):
        name, made = table.fullname, str(CreateTable(table).compile(dialect=dialect))
        if parts and table.name in BIG:
            yield f"{made.rstrip()} PARTITION BY HASH (user_id)"
            for n in range(parts):
                of_users = f"FOR VALUES WITH (MODULUS {parts}, REMAINDER {n})"
                yield f"CREATE TABLE {name}_{n} PARTITION OF {name} {of_users}"
        else:
            yield made
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            yield str(CreateIndex(index).compile(dialect=dialect))


def _neat(statements: list[str]) -> list[str]:
    """Without what SQLAlchemy leaves at the ends of lines."""
    return [
        "\n".join(line.rstrip() for line in statement.strip().splitlines())
        for statement in statements
    ]


Step = Callable[[Connection, Database], None]


def first(connection: Connection, dialect: Database) -> None:
    """All tables; events refuse UPDATE and DELETE."""
    dialect.tables.metadata.create_all(connection)
    dialect.guard_events(connection)


def leases_have_periods(connection: Connection, dialect: Database) -> None:
    """Leases that were taken before have the period 0: they are free at once."""
    leases = dialect.tables.leases
    columns = inspect(connection).get_columns(leases.name, schema=leases.schema)
    if not any(column["name"] == "period" for column in columns):
        connection.exec_driver_sql(
            f"ALTER TABLE {leases} ADD COLUMN period BIGINT DEFAULT '0' NOT NULL"
        )


def exports_are_recorded(connection: Connection, dialect: Database) -> None:
    """Exports that were made before have no record."""
    dialect.tables.exports.create(connection, checkfirst=True)


# What changes the schema later is a step of its own at the end; none is ever edited.
STEPS: Final[tuple[Step, ...]] = (first, leases_have_periods, exports_are_recorded)


def migrate(
    dialect: Database, *, steps: tuple[Step, ...] = STEPS, moving: bool = False
) -> str:
    """Take every step that the database has not taken, in one transaction.

    Returns the store's id, which never changes.  ``moving``: it is being moved here.

    Raises IncompatibleStore if the database is of a newer Refold or another
    program, StoreUnavailable if it cannot be reached, or the store was moved.
    """
    with dialect.errors:
        known = _known(dialect, moving=moving)
        if known and known[0] == len(steps):
            return known[1]
        engine = dialect.engine().execution_options(refold_begin="IMMEDIATE")
        with engine.begin() as connection:
            dialect.lock_schema(connection)
            dialect.prepare(connection)
            version, store_id = _version(_settings(connection, dialect))
            _check(version, len(steps))
            for step in steps[version:]:
                step(connection, dialect)
            dialect.spread(connection, new=not version)
            store_id = store_id or str(uuid4())
            marks = {"schema_version": str(len(steps)), "store_id": store_id}
            put_settings(connection, dialect, marks)
            return store_id


def _known(dialect: Database, *, moving: bool) -> tuple[int, str] | None:
    with dialect.engine().connect() as connection:
        values = _settings(connection, dialect)
    if not moving:
        _refuse_moved(values, dialect.what)
    version, store_id = _version(values)
    return (version, store_id) if store_id else None


def settings_of(dialect: Database) -> dict[str, str]:
    """What the database says of itself; nothing if there is no store in it."""
    with dialect.errors, dialect.engine().connect() as connection:
        return _settings(connection, dialect)


def _refuse_moved(values: dict[str, str], what: str) -> None:
    if gone := moved(f"{MOVED}{values[MOVED_TO]}" if MOVED_TO in values else ""):
        raise gone
    if MOVING in values:
        raise StoreUnavailable(
            f"a store is being moved to {what} from {values[MOVING]}",
            remedy="run `refold move` again, which ends that",
        )


def _settings(connection: Connection, dialect: Database) -> dict[str, str]:
    settings = dialect.tables.settings
    if not inspect(connection).has_table(settings.name, schema=settings.schema):
        return {}
    nothing = connection.exec_driver_sql(f"SELECT * FROM {settings.fullname} LIMIT 0")
    if set(nothing.keys()) != {"name", "value"}:
        return {}
    rows = connection.execute(select(settings.c.name, settings.c.value)).all()
    return {row.name: row.value for row in rows}


def _version(values: dict[str, str]) -> tuple[int, str]:
    try:
        version = int(values.get("schema_version", 0))
    except ValueError:
        raise IncompatibleStore(
            "the database does not say which schema it has: restore a backup of it"
        ) from None
    return version, values.get("store_id", "")


def _check(version: int, newest: int) -> None:
    if version > newest:
        raise IncompatibleStore(
            f"the database has schema {version}, this Refold knows up to {newest}: "
            "upgrade Refold"
        )


def put_settings(
    connection: Connection, dialect: Database, marks: dict[str, str]
) -> None:
    """Have the database say this of itself."""
    rows = [{"name": name, "value": value} for name, value in marks.items()]
    connection.execute(dialect.statement(_SQL["put_setting"]), rows)
