"""What differs between engines for events: each answers these in a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias

from eventsourcing.persistence import ProgrammingError
from sqlalchemy import Connection, Table

from refold.adapters.sql.dialect import Dialect

Before: TypeAlias = Callable[[Connection], None] | None


class Row(NamedTuple):
    """One event as it is stored; ``state`` is sealed."""

    originator_id: Any
    originator_version: int
    topic: str
    state: bytes


class Bell(Protocol):
    """What a follower waits at until there may be something new."""

    longest: float
    """The longest time in seconds to wait without looking."""

    def wait(self, seconds: float) -> None:
        """Return when it rings, when there may be something new, or after that time."""
        ...

    def ring(self) -> None:
        """Wake who waits, from any thread; who comes later does not wait."""
        ...

    def close(self) -> None: ...


class EventsEngine(Protocol):
    """A database engine, as far as events of applications need it."""

    @property
    def dialect(self) -> Dialect:
        """How the store speaks to the same engine."""
        ...

    @property
    def schema(self) -> str | None:
        """Where the tables are; None: the file is the schema."""
        ...

    def prepare(self, connection: Connection) -> None:
        """Let one process at a time make tables, in a transaction that can write."""
        ...

    def transaction(self) -> AbstractContextManager[Connection]:
        """A transaction that can write from its first statement on."""
        ...

    def insert(self, table: Table, rows: Sequence[Row], *, before: Before) -> list[int]:
        """Write all rows or none; durable when it returns.

        Where the table has notification ids, returns those of the rows: consecutive,
        and visible to others in this order and no other.  ``before`` is done in the
        same transaction.

        Raises what the driver raises, or ``before``.
        """
        ...

    def bell(self, table: Table) -> Bell:
        """A bell for who follows this table."""
        ...


def columns(table: Table) -> str:
    """The columns that are written, for an INSERT."""
    return ", ".join(column.name for column in table.columns)


def is_sequenced(table: Table) -> bool:
    """Whether its rows have notification ids."""
    return "notification_id" in table.columns


def no_position(table: Table) -> ProgrammingError:
    """The error where the table's row in ``es_positions`` is missing."""
    return ProgrammingError(
        f"es_positions has no row for {table.name}: construct the application once "
        "with CREATE_TABLE=yes"
    )
