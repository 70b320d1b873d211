"""The schema: its statements in print, and the upgrade steps of a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import uuid4

from refold.adapters.sql import queries, sqlite as sqlite_engine
from refold.adapters.sql.database import STORE_MOVED, Database, error_if_moved
from refold.adapters.sql.queries import SCHEMA
from refold.adapters.sql.sqlite import APPLICATION_ID
from refold.adapters.sql.urls import EngineName
from refold.domain.errors import IncompatibleStore, StoreUnavailable

if TYPE_CHECKING:
    from sqlalchemy import Connection, MetaData

_SQL: Final = queries.statements("recorder")
# Names in ``settings``: where the store was moved to, and where it is moved from.
MOVED_TO: Final = "moved_to"
MOVING: Final = "moving_from"

BIG: Final = ("events", "blobs", "receipts", "seals")  # may be partitioned by user


def schema(engine: EngineName, *, partitions: int = 0) -> list[str]:
    """Return the statements for the tables, indexes and triggers of an empty database.

    The result is the same as that of the upgrade steps.

    partitions: the number of partitions of each big table on PostgreSQL, each with the
                rows of some users.  0 makes plain tables.
    """
    from refold.adapters.sql import tables

    if engine == "sqlite":
        from sqlalchemy.dialects import sqlite

        metadata = tables.build(None, rowid=True).metadata
        mark = f"PRAGMA application_id={APPLICATION_ID}"
        create = _create_statements(metadata, sqlite.dialect())
        return _trimmed([mark, *create, *sqlite_engine.GUARDS])
    from sqlalchemy.dialects import postgresql

    from refold.adapters.sql import postgres as postgresql_engine

    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's
    metadata = tables.build(SCHEMA, rowid=False).metadata
    statements = [f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"]
    statements += _create_statements(metadata, dialect, partitions=partitions)
    statements += postgresql_engine.GUARDS
    # Partitions inherit the triggers for rows, but not the one for TRUNCATE.
    for number in range(partitions):
        partition = f".events_{number} "
        refuse_truncate = postgresql_engine.REFUSE_TRUNCATE
        statements.append(refuse_truncate.replace(".events ", partition))
    return _trimmed(statements)


def roles(engine: EngineName = "postgresql") -> list[str]:
    """Return the statements for the roles, grants and policies of PostgreSQL.

    They run in one transaction.  Running them again changes nothing.
    """
    from refold.adapters.sql import citus, roles as postgres_roles, tables

    metadata = tables.build(SCHEMA, rowid=False).metadata
    statements = postgres_roles.statements(metadata)
    if engine == "citus":
        statements = citus.policies(statements)
    return _trimmed(["BEGIN", *statements, "COMMIT"])


def _create_statements(
    metadata: MetaData, dialect: Any, *, partitions: int = 0
) -> Iterator[str]:
    """Yield the statements that create each table and its indexes, sorted by name."""
    from sqlalchemy.schema import CreateIndex, CreateTable

    for table in sorted(metadata.tables.values(), key=lambda table: table.name):
        create = str(CreateTable(table).compile(dialect=dialect))
        if partitions and table.name in BIG:
            yield f"{create.rstrip()} PARTITION BY HASH (user_id)"
            name = table.fullname
            for number in range(partitions):
                values = f"WITH (MODULUS {partitions}, REMAINDER {number})"
                yield (
                    f"CREATE TABLE {name}_{number} PARTITION OF {name} "
                    f"FOR VALUES {values}"
                )
        else:
            yield create
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            yield str(CreateIndex(index).compile(dialect=dialect))


def _trimmed(statements: list[str]) -> list[str]:
    """Return the statements without the spaces that SQLAlchemy leaves at line ends."""
    trimmed: list[str] = []
    for statement in statements:
        lines = statement.strip().splitlines()
        trimmed.append("\n".join(line.rstrip() for line in lines))
    return trimmed


Step: TypeAlias = "Callable[[Connection, Database], None]"


def first(connection: Connection, database: Database) -> None:
    """Create all tables, and let events refuse UPDATE and DELETE."""
    metadata = database.tables.metadata
    if database.name == "sqlite":
        from refold.adapters.sql import compiled

        compiled.create_missing(connection, metadata)
    else:
        metadata.create_all(connection)
    database.guard_events(connection)


def leases_have_periods(connection: Connection, database: Database) -> None:
    """Add ``leases.period``.  Older leases get the period 0 and are free at once."""
    from sqlalchemy import inspect

    leases = database.tables.leases
    columns = inspect(connection).get_columns(leases.name, schema=leases.schema)
    if not any(column["name"] == "period" for column in columns):
        connection.exec_driver_sql(
            f"ALTER TABLE {leases} ADD COLUMN period BIGINT DEFAULT '0' NOT NULL"
        )


def exports_are_recorded(connection: Connection, database: Database) -> None:
    """Create ``exports``.  Older exports have no record."""
    database.tables.exports.create(connection, checkfirst=True)


# A later change of the schema is a new step at the end.  Steps are never edited.
STEPS: Final[tuple[Step, ...]] = (first, leases_have_periods, exports_are_recorded)


def migrate(
    database: Database, *, steps: tuple[Step, ...] = STEPS, moving: bool = False
) -> str:
    """Upgrade the database by the steps that it lacks, in one transaction.

    moving: whether `refold move` fills the database now.

    Returns the store's id, which never changes.

    Raises IncompatibleStore if the database belongs to a newer Refold or to another
    program, StoreUnavailable if it cannot be reached or the store was moved away.
    """
    with database.errors:
        values = database.stored_settings()
        if not moving:
            _refuse_moved(values, database.shown_name)
        version, store_id = _version(values)
        if store_id and version == len(steps):
            return store_id
        is_new = not version and not store_id
        if is_new and steps is STEPS:
            # SQLite creates all tables at once.  PostgreSQL takes each step below.
            version, store_id = _version(database.create(_marks(len(steps), "")))
            if version == len(steps):
                return store_id
        engine = database.engine().execution_options(refold_begin="IMMEDIATE")
        with engine.begin() as connection:
            database.lock_schema(connection)
            database.prepare(connection)
            version, store_id = _version(database.settings_in(connection))
            _check_version(version, len(steps))
            for step in steps[version:]:
                step(connection, database)
            database.spread(connection, new=not version)
            marks = _marks(len(steps), store_id)
            put_settings(connection, database, marks)
            return marks["store_id"]


def _marks(version: int, store_id: str) -> dict[str, str]:
    """Return the settings of a store with this schema; a new store gets an id."""
    return {"schema_version": str(version), "store_id": store_id or str(uuid4())}


def settings_of(database: Database) -> dict[str, str]:
    """Return the settings of the store in the database; empty without a store."""
    with database.errors:
        return database.stored_settings()


def _refuse_moved(values: dict[str, str], destination: str) -> None:
    """Raise StoreUnavailable if the store was moved away, or is being moved here."""
    if MOVED_TO in values:
        error = error_if_moved(f"{STORE_MOVED}{values[MOVED_TO]}")
        if error is not None:
            raise error
    if MOVING in values:
        raise StoreUnavailable(
            f"a store is being moved to {destination} from {values[MOVING]}",
            remedy="run `refold move` again, which ends that",
        )


def _version(values: dict[str, str]) -> tuple[int, str]:
    """Return the number of steps that the database has taken, and the store's id."""
    try:
        version = int(values.get("schema_version", 0))
    except ValueError:
        raise IncompatibleStore(
            "the database does not say which schema it has: restore a backup of it"
        ) from None
    return version, values.get("store_id", "")


def _check_version(version: int, newest: int) -> None:
    if version > newest:
        raise IncompatibleStore(
            f"the database has schema {version}, this Refold knows up to {newest}: "
            "upgrade Refold"
        )


def put_settings(
    connection: Connection, database: Database, values: dict[str, str]
) -> None:
    """Insert or replace these settings of the store."""
    rows = [{"name": name, "value": value} for name, value in values.items()]
    connection.execute(database.statement(_SQL["put_setting"]), rows)
