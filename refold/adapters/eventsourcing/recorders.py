"""The library's recorders over SQL, the same for SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import UUID

from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    IntegrityError,
    Notification,
    ProcessRecorder,
    ProgrammingError,
    StoredEvent,
    Subscription,
    Tracking,
    TrackingRecorder,
)
from sqlalchemy import Connection, MetaData, Table, Text, func, select, text

from refold.adapters.eventsourcing import tables
from refold.adapters.eventsourcing.database import Database
from refold.adapters.eventsourcing.engine import Before, Row
from refold.adapters.eventsourcing.subscription import EventsSubscription
from refold.adapters.eventsourcing.tables import Originators
from refold.adapters.eventsourcing.vault import Vault

_TRACK = """
INSERT INTO {table} (application_name, notification_id) VALUES (:name, :id)
ON CONFLICT (application_name) DO UPDATE SET notification_id = excluded.notification_id
WHERE {table}.notification_id < excluded.notification_id
RETURNING notification_id
"""


class SqlRecorder:
    """Tables of one application in a database.

    ``application`` is its name, ``originators`` the type of its aggregates' ids,
    ``purpose`` what a recorder of aggregates is for: events or snapshots.
    """

    def __init__(
        self,
        database: Database,
        application: str,
        *,
        originators: Originators = "uuid",
        purpose: str = "events",
    ) -> None:
        self.database, self.application = database, application
        self.originators: Originators = originators
        self.purpose = purpose
        self.metadata = MetaData(schema=database.schema)
        self.define_tables()

    def define_tables(self) -> None:
        """Define the tables in ``metadata``; a subclass may add some of its own."""

    def table_name(self, purpose: str) -> str:
        """The name of this application's table for ``purpose``, such as ``totals``.

        Raises ProgrammingError if it is not made of 1 to 16 lower-case letters and
        digits.
        """
        return tables.table_name(self.application, purpose)

    def create_table(self) -> None:
        """Make the tables that are missing; safe while other processes do the same."""
        self.database.create(
            self.metadata, is_done=self._is_finished, finish=self._finish
        )

    def _is_finished(self, connection: Connection) -> bool:  # noqa: ARG002  # a hook
        return True

    def _finish(self, connection: Connection) -> None:
        """What is to be done once the tables are there."""


class SqlAggregateRecorder(SqlRecorder, AggregateRecorder):
    """Events or snapshots of aggregates, each sealed under the application's key."""

    def define_tables(self) -> None:
        """Events or snapshots, and the keys and counts of all applications."""
        super().define_tables()
        name, sequenced = self.table_name(self.purpose), self.purpose == "events"
        self.events: Table = tables.events(
            self.metadata, name, originators=self.originators, sequenced=sequenced
        )
        self._positions = tables.positions(self.metadata) if sequenced else None
        application = tables.application_key(self.application)
        keys = tables.keys(self.metadata)
        self._vault = Vault(self.database, keys, application, self.purpose)

    def create_table(self) -> None:
        """Make the tables that are missing; safe while other processes do the same.

        Raises ProgrammingError if they were made for another ORIGINATOR_ID_TYPE.
        """
        super().create_table()
        found = self.database.columns(self.events)
        kind = "text" if isinstance(found.get("originator_id"), Text) else "uuid"
        if kind != self.originators:
            raise ProgrammingError(
                f"{self.events.name} was made for ORIGINATOR_ID_TYPE={kind}, and this "
                f"application says {self.originators}"
            )

    def _is_finished(self, connection: Connection) -> bool:
        counted = self._positions is None or tables.has_count(
            connection, self._positions, self.events
        )
        return counted and self._vault.exists(connection)

    def _finish(self, connection: Connection) -> None:
        self._vault.make(connection, self.events)
        if self._positions is not None:
            tables.begin_count(connection, self._positions, self.events)

    def insert_events(
        self, stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> Sequence[int] | None:
        """Write all events or none.

        Raises IntegrityError if one of these versions is taken, ProgrammingError for
        ids of another type than ORIGINATOR_ID_TYPE says.
        """
        self._write(stored_events, **kwargs)
        return None

    def _write(
        self,
        stored_events: Sequence[StoredEvent],
        *,
        tracking: Tracking | None = None,
        **_others: Any,
    ) -> list[int]:
        """Returns the notification ids; what else ``save`` was given is ignored."""
        rows = [self._sealed(event) for event in stored_events]
        before = self._before(tracking)
        if not rows and before is None:
            return []
        return self.database.insert(
            self.events, rows, taken=self._taken(stored_events), before=before
        )

    def _before(self, tracking: Tracking | None) -> Before:
        """What is written before the events, in the same transaction."""
        if tracking is not None:
            raise ProgrammingError(
                "this recorder keeps no tracking: take that of process_recorder()"
            )
        return None

    def _sealed(self, event: StoredEvent) -> Row:
        self._check(event.originator_id)
        sealed = self._vault.seal(event)
        return Row(event.originator_id, event.originator_version, event.topic, sealed)

    def _check(self, originator_id: UUID | str) -> None:
        if isinstance(originator_id, UUID) != (self.originators == "uuid"):
            kind = type(originator_id).__name__
            raise ProgrammingError(
                f"an aggregate has an id of type {kind}, ORIGINATOR_ID_TYPE is "
                f"{self.originators}: set it to uuid or text"
            )

    def _taken(self, events: Sequence[StoredEvent]) -> str:
        if not events:
            return "the tracking was recorded by another process"
        versions = [event.originator_version for event in events]
        return (
            f"a version from {min(versions)} to {max(versions)} of "
            f"{events[0].originator_id}, or of an aggregate saved with it, is taken in "
            f"{self.events.name}: read the aggregate again and decide anew"
        )

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """The events with ``gt < version <= lte``, in order or newest first.

        Raises DataError if one was changed since it was written.
        """
        self._check(originator_id)
        events = self.events.c
        version = events.originator_version
        query = select(version, events.topic, events.state)
        query = query.where(events.originator_id == originator_id)
        if gt is not None:
            query = query.where(version > gt)
        if lte is not None:
            query = query.where(version <= lte)
        query = query.order_by(version.desc() if desc else version).limit(limit)
        return [
            StoredEvent(
                originator_id, row[0], row[1], self._opened(originator_id, *row)
            )
            for row in self.database.read(query)
        ]

    def _opened(
        self, originator_id: UUID | str, version: int, topic: str, state: Any
    ) -> bytes:
        return self._vault.open(originator_id, version, topic, bytes(state))


class SqlApplicationRecorder(SqlAggregateRecorder, ApplicationRecorder):
    """Events of an application in one order: that in which they were committed.

    Notification ids rise by one, whatever was refused, and are never given out again.
    """

    def insert_events(
        self, stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> Sequence[int] | None:
        """Write all events or none; returns their notification ids.

        Raises what the recorder of aggregates does.
        """
        return self._write(stored_events, **kwargs)

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """At most ``limit`` events with ids from ``start`` to ``stop``, in order.

        Raises DataError if one was changed since it was written.
        """
        events = self.events.c
        id_ = events.notification_id
        query = select(
            id_,
            events.originator_id,
            events.originator_version,
            events.topic,
            events.state,
        )
        if start is not None:
            query = query.where(id_ >= start if inclusive_of_start else id_ > start)
        if stop is not None:
            query = query.where(id_ <= stop)
        if topics:
            query = query.where(events.topic.in_(topics))
        found = self.database.read(query.order_by(id_).limit(limit))
        return [
            Notification(row[1], row[2], row[3], self._opened(*row[1:]), row[0])
            for row in found
        ]

    def max_notification_id(self) -> int | None:
        """The highest id of an event that is there, or None without any."""
        query = select(func.max(self.events.c.notification_id))
        ((last,),) = self.database.read(query)
        return None if last is None else int(last)

    def subscribe(
        self, gt: int | None = None, topics: Sequence[str] = ()
    ) -> Subscription[ApplicationRecorder]:
        """Follow the events with ids above ``gt``, of these topics or of all."""
        return EventsSubscription(self, gt, topics, self.database.bell(self.events))


class SqlTrackingRecorder(SqlRecorder, TrackingRecorder):
    """How far upstream applications were followed; the base of views kept with it.

    A view of your own adds its tables in ``define_tables``, and changes them in
    ``transaction(tracking)``.
    """

    def define_tables(self) -> None:
        """The table of progress."""
        super().define_tables()
        self.tracking: Table = tables.tracking(
            self.metadata, self.table_name("tracking")
        )

    @contextmanager
    def transaction(self, tracking: Tracking) -> Iterator[Connection]:
        """A transaction that records ``tracking`` with what is done in it, or neither.

        Raises IntegrityError if it is not ahead of what is recorded.
        """
        track = partial(self._track, tracking=tracking)
        with self.database.transaction(track) as connection:
            yield connection

    def insert_tracking(self, tracking: Tracking) -> None:
        """Record progress.  Raises IntegrityError if it is none."""
        with self.transaction(tracking):
            pass

    def _track(self, connection: Connection, *, tracking: Tracking) -> None:
        name = connection.dialect.identifier_preparer.format_table(self.tracking)
        values = {"name": tracking.application_name, "id": tracking.notification_id}
        moved = connection.execute(text(_TRACK.format(table=name)), values)
        if moved.first() is None:
            raise IntegrityError(
                f"notification {tracking.notification_id} of "
                f"{tracking.application_name} was processed already, or a later one"
            )

    def max_tracking_id(self, application_name: str) -> int | None:
        """How far this application was followed, or None if it was not."""
        columns = self.tracking.c
        found = self.database.read(
            select(columns.notification_id).where(
                columns.application_name == application_name
            )
        )
        return int(found[0][0]) if found else None


class SqlProcessRecorder(SqlTrackingRecorder, SqlApplicationRecorder, ProcessRecorder):
    """Events of an application, recorded with the progress they are the outcome of."""

    def _before(self, tracking: Tracking | None) -> Before:
        return None if tracking is None else partial(self._track, tracking=tracking)
