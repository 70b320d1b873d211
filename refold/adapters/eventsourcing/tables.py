"""The tables of applications, and how they are named: ``es_``, application, purpose."""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal, TypeAlias

from eventsourcing.persistence import ProgrammingError
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    insert,
    select,
)

Originators: TypeAlias = Literal["uuid", "text"]
_PLAIN: Final = re.compile("[a-z0-9_]{1,40}")
_PURPOSE: Final = re.compile("(?!keys$|positions$)[a-z0-9]{1,16}")
_WHOLE: Final = BigInteger().with_variant(Integer(), "sqlite")


def application_key(application: str) -> str:
    """The part of table names that stands for an application; empty for no name.

    Case does not count, as in the library.  What is too long for a name of a table
    or has other characters than letters, digits and ``_`` ends in a digest, so that
    no two applications share their tables.
    """
    name = application.lower()
    if not name or _PLAIN.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{re.sub('[^a-z0-9_]+', '_', name)[:31]}_{digest}"


def table_name(application: str, purpose: str) -> str:
    """The name of an application's table for this purpose, at most 63 bytes.

    ``purpose`` has up to 16 lower-case letters and digits: with a ``_`` in it, the
    table could be that of another application.

    Raises ProgrammingError for any other purpose.
    """
    if not _PURPOSE.fullmatch(purpose):
        raise ProgrammingError(
            f"{purpose!r} cannot be part of the name of a table: take 1 to 16 "
            "lower-case letters and digits, but not 'keys' or 'positions'"
        )
    return "_".join(filter(None, ("es", application_key(application), purpose)))


def events(
    metadata: MetaData, name: str, *, originators: Originators, sequenced: bool
) -> Table:
    """Events or snapshots; ``sequenced``: each has its place in the application."""
    place = Column("notification_id", _WHOLE, primary_key=True, autoincrement=False)
    key = ("originator_id", "originator_version")
    return Table(
        name,
        metadata,
        *((place,) if sequenced else ()),
        Column(
            "originator_id",
            Uuid() if originators == "uuid" else Text(),
            nullable=False,
        ),
        Column("originator_version", BigInteger, nullable=False),
        Column("topic", Text, nullable=False),
        Column("state", LargeBinary, nullable=False),
        UniqueConstraint(*key) if sequenced else PrimaryKeyConstraint(*key),
    )


def tracking(metadata: MetaData, name: str) -> Table:
    """How far each upstream application was followed."""
    return Table(
        name,
        metadata,
        Column("application_name", Text, primary_key=True),
        Column("notification_id", BigInteger, nullable=False),
    )


def positions(metadata: MetaData) -> Table:
    """The last notification id that was given out, for each table of events.

    A row is written at every insert; room in its page keeps the table small.
    """
    return Table(
        "es_positions",
        metadata,
        Column("name", Text, primary_key=True),
        Column("last_id", BigInteger, nullable=False),
        postgresql_with={"fillfactor": 10},
    )


def keys(metadata: MetaData) -> Table:
    """The wrapped key of each application."""
    return Table(
        "es_keys",
        metadata,
        Column("name", Text, primary_key=True),
        Column("wrapped", LargeBinary, nullable=False),
    )


def has_count(connection: Connection, positions: Table, events: Table) -> bool:
    """Whether the ids of ``events`` are counted."""
    query = select(positions.c.last_id).where(positions.c.name == events.name)
    return connection.execute(query).first() is not None


def begin_count(connection: Connection, positions: Table, events: Table) -> None:
    """Count the ids of ``events`` from now on, after those it has."""
    if has_count(connection, positions, events):
        return
    last = select(func.coalesce(func.max(events.c.notification_id), 0))
    values = {
        "name": events.name,
        "last_id": connection.execute(last).scalar_one(),
    }
    connection.execute(insert(positions).values(values))
