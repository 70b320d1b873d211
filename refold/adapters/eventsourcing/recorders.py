"""The library's recorders over SQL, the same for SQLite and PostgreSQL."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from eventsourcing import persistence

from refold.adapters.eventsourcing.database import (
    EventsDatabase,
    EventsTable,
    Execute,
    Row,
    Write,
    quoted_name,
)
from refold.adapters.keys.ring import decrypt, encrypt
from refold.adapters.rows import pack, unpack
from refold.adapters.sql.queries import statements
from refold.adapters.sql.recorder import Following
from refold.domain.errors import KeyUnavailable
from refold.domain.locks import computed_once
from refold.opener import master_key

Originators: TypeAlias = Literal["uuid", "text"]
_PLAIN: Final = re.compile("[a-z0-9_]{1,40}")
# With an empty application name, these would be es_keys and es_positions.
_PURPOSE: Final = re.compile("(?!keys$|positions$)[a-z0-9]{1,16}")


def application_part(application: str) -> str:
    """Return the part of table names for an application; empty for an empty name.

    The case does not matter, as in the library.  A name that is too long, or has other
    characters than letters, digits and ``_``, ends in a digest, so that no two
    applications share tables.
    """
    name = application.lower()
    if not name or _PLAIN.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{re.sub('[^a-z0-9_]+', '_', name)[:31]}_{digest}"


def table_name(application: str, purpose: str) -> str:
    """Return the name of an application's table, at most 63 bytes.

    purpose: 1 to 16 lower-case letters and digits.  With a ``_`` in it, the table could
             be that of another application.

    Raises ProgrammingError for any other purpose.
    """
    if not _PURPOSE.fullmatch(purpose):
        raise persistence.ProgrammingError(
            f"{purpose!r} cannot be part of the name of a table: take 1 to 16 "
            "lower-case letters and digits, but not 'keys' or 'positions'"
        )
    return "_".join(filter(None, ("es", application_part(application), purpose)))


_KEY_CONTEXT: Final = b"refold application key"
_FORMAT: Final = b"\x01"


class Vault:
    """Encrypts the states of one table's events with its application's key."""

    def __init__(
        self, database: EventsDatabase, keys: sa.Table, application: str, purpose: str
    ) -> None:
        self._database = database
        self._keys = keys
        self._application = application
        self._purpose = purpose

    def seal(self, event: persistence.StoredEvent) -> bytes:
        """Compress and encrypt an event's state, bound to its place and topic.

        Raises OperationalError if there is no key.
        """
        return _FORMAT + encrypt(
            self._cipher, pack(event.state), self._row_context(event)
        )

    def open(self, row: Sequence[Any]) -> tuple[Any, int, str, bytes]:
        """Return an event's id, version, topic and decrypted state.

        Raises DataError if it was encrypted for another row or with another key.
        """
        id_, version, topic, state = row
        sealed = persistence.StoredEvent(id_, version, topic, bytes(state))
        try:
            if sealed.state[:1] != _FORMAT:
                raise InvalidTag
            plain = decrypt(self._cipher, sealed.state[1:], self._row_context(sealed))
            return id_, version, topic, unpack(plain)
        except (InvalidTag, ValueError):
            raise persistence.DataError(
                f"version {version} of {id_} does not open with the key of its "
                f"application: the row in {self._purpose} was changed, or is of "
                "another database"
            ) from None

    def _row_context(self, event: persistence.StoredEvent) -> bytes:
        """Return the place of the event's row, to which the encrypted state is bound.

        The lengths of the id and topic are included, so that two rows never give the
        same bytes.
        """
        id_ = str(event.originator_id).encode()
        topic = event.topic.encode()
        numbers = (event.originator_version, len(id_), len(topic))
        return b"%d %d %d " % numbers + id_ + topic + self._purpose.encode()

    def exists(self, connection: sa.Connection) -> bool:
        """Whether the application has a key."""
        return connection.execute(self._query()).first() is not None

    def make(self, connection: sa.Connection, events: sa.Table) -> None:
        """Make the key if there is none; the caller holds the lock of the schema.

        Raises KeyUnavailable if there are ``events``, which were written with a key.
        """
        if self.exists(connection):
            return
        if connection.execute(sa.select(events.c.topic).limit(1)).first() is not None:
            raise self._lost()
        any_key = connection.execute(sa.select(self._keys.c.name).limit(1)).first()
        # A new master key could not unwrap the keys that exist.
        master = master_key(self._database.url, create=any_key is None)
        wrapped = master.wrap(os.urandom(32), _KEY_CONTEXT)
        values = {"name": self._application, "wrapped": wrapped}
        connection.execute(sa.insert(self._keys).values(values))

    @computed_once
    def _cipher(self) -> AESGCM:
        """Return the cipher with the application's key."""
        with self._database.errors():
            rows = self._database.read(self._query())
            if not rows:
                raise self._lost()
            master = master_key(self._database.url, create=False)
            return AESGCM(master.unwrap(bytes(rows[0].wrapped), _KEY_CONTEXT))

    def _query(self) -> sa.Select[Any]:
        keys = self._keys.c
        return sa.select(keys.wrapped).where(keys.name == self._application)

    def _lost(self) -> KeyUnavailable:
        return KeyUnavailable(
            f"the key of application {self._application!r} is not in es_keys",
            remedy="restore that table from the backup of its events",
        )


class SqlRecorder:
    """Tables of one application in a database.

    application: its name.
    originators: the type of its aggregates' ids.
    purpose:     for a recorder of aggregates, ``events`` or ``snapshots``.
    """

    def __init__(
        self,
        database: EventsDatabase,
        application: str,
        *,
        originators: Originators = "uuid",
        purpose: str = "events",
    ) -> None:
        self.database = database
        self.application = application
        self.originators: Originators = originators
        self.purpose = purpose
        self.metadata = sa.MetaData(schema=database.schema)
        self.define_tables()

    def define_tables(self) -> None:
        """Define the tables in ``metadata``; a subclass may add some of its own."""

    def table_name(self, purpose: str) -> str:
        """Return the name of this application's table for a purpose.

        purpose: 1 to 16 lower-case letters and digits, such as "totals".

        Raises ProgrammingError for any other purpose.
        """
        return table_name(self.application, purpose)

    def create_table(self) -> None:
        """Make the tables that are missing; safe while other processes do the same."""
        self.database.create(self.metadata)


class SqlAggregateRecorder(SqlRecorder, persistence.AggregateRecorder):
    """Events or snapshots of aggregates, encrypted with the application's key."""

    def define_tables(self) -> None:
        """Define the tables of events or snapshots, of keys, and of last ids."""
        super().define_tables()
        self._positions = self._positions_table() if self.purpose == "events" else None
        self.events = self._events_table()
        self._rows = EventsTable(self.database, self.events, self._positions)
        keys = sa.Table(
            "es_keys",
            self.metadata,
            sa.Column("name", sa.Text, primary_key=True),
            sa.Column("wrapped", sa.LargeBinary, nullable=False),
        )
        application = application_part(self.application)
        self._vault = Vault(self.database, keys, application, self.purpose)

    def _positions_table(self) -> sa.Table:
        """Return the table of the last notification id of each table of events."""
        return sa.Table(
            "es_positions",
            self.metadata,
            sa.Column("name", sa.Text, primary_key=True),
            sa.Column("last_id", sa.BigInteger, nullable=False),
            # Every insert updates a row here.  With free space in the page, PostgreSQL
            # can reuse the room of old row versions, and the table stays small.
            postgresql_with={"fillfactor": 10},
        )

    def _events_table(self) -> sa.Table:
        """Return the table of events, which has notification ids, or of snapshots."""
        name = self.table_name(self.purpose)
        originator_id = sa.Column(
            "originator_id", sa.Uuid if self.originators == "uuid" else sa.Text
        )
        version = sa.Column("originator_version", sa.BigInteger)
        topic = sa.Column("topic", sa.Text, nullable=False)
        state = sa.Column("state", sa.LargeBinary, nullable=False)
        place = (originator_id, version)
        # SQLite finds rows by an integer key without an index, so that an append writes
        # one page less.  In older tables, (originator_id, originator_version) is the
        # primary key.
        is_sqlite_events = self.purpose == "events" and self.database.schema is None
        if is_sqlite_events:
            place_key: sa.Constraint = sa.UniqueConstraint(*place)
            originator_id.nullable = False
            version.nullable = False
        else:
            place_key = sa.PrimaryKeyConstraint(*place)
        table = sa.Table(name, self.metadata, *place, topic, state, place_key)
        if is_sqlite_events:
            table.append_column(
                sa.Column("notification_id", sa.Integer, primary_key=True)
            )
        elif self.purpose == "events":
            notification_id = sa.Column(
                "notification_id", sa.BigInteger, nullable=False
            )
            table.append_column(notification_id)
            table.append_constraint(sa.UniqueConstraint(notification_id))
        return table

    def create_table(self) -> None:
        """Make the tables that are missing; safe while other processes do the same.

        Raises ProgrammingError if they were made for another ORIGINATOR_ID_TYPE.
        """
        self.database.create(
            self.metadata, is_done=self._is_finished, finish=self._finish
        )
        columns = self.database.columns(self.events)
        kind = "text" if isinstance(columns.get("originator_id"), sa.Text) else "uuid"
        if kind != self.originators:
            raise persistence.ProgrammingError(
                f"{self.events.name} was made for ORIGINATOR_ID_TYPE={kind}, and this "
                f"application says {self.originators}"
            )

    def _is_finished(self, connection: sa.Connection) -> bool:
        return self._has_last_id(connection) and self._vault.exists(connection)

    def _has_last_id(self, connection: sa.Connection) -> bool:
        """Whether the last notification id is stored, or the table has no ids."""
        if self._positions is None:
            return True
        query = sa.select(self._positions.c.last_id)
        query = query.where(self._positions.c.name == self.events.name)
        return connection.execute(query).first() is not None

    def _finish(self, connection: sa.Connection) -> None:
        """Make the application's key and the row of the last id, if missing."""
        self._vault.make(connection, self.events)
        if self._positions is None or self._has_last_id(connection):
            return
        # Start after the last notification id of the existing events.
        last = sa.select(
            sa.func.coalesce(sa.func.max(self.events.c.notification_id), 0)
        )
        row = {"name": self.events.name, "last_id": connection.scalar(last)}
        connection.execute(sa.insert(self._positions).values(row))

    def insert_events(
        self, stored_events: Sequence[persistence.StoredEvent], **kwargs: Any
    ) -> Sequence[int] | None:
        """Write all events or none.

        Raises IntegrityError if one of these versions is taken, ProgrammingError for
        ids of another type than ORIGINATOR_ID_TYPE says.
        """
        self._write(stored_events, **kwargs)
        return None

    def _write(
        self,
        stored_events: Sequence[persistence.StoredEvent],
        *,
        tracking: persistence.Tracking | None = None,
        **_others: Any,
    ) -> list[int]:
        """Write all events or none; return their notification ids.

        ``_others`` are further arguments of the application's ``save``.
        """
        rows = [self._sealed(event) for event in stored_events]
        write_tracking = self._writer_of(tracking)
        if not rows and write_tracking is None:
            return []
        return self.database.insert(
            self._rows,
            rows,
            conflict=self._conflict(stored_events),
            write_first=write_tracking,
        )

    def _writer_of(self, tracking: persistence.Tracking | None) -> Write | None:
        """Return None: this recorder records no tracking.

        Raises ProgrammingError if some is given.
        """
        if tracking is not None:
            raise persistence.ProgrammingError(
                "this recorder records no tracking: use process_recorder()"
            )
        return None

    def _sealed(self, event: persistence.StoredEvent) -> Row:
        """Return the row of an event, encrypted."""
        self._check_id_type(event.originator_id)
        return Row(
            event.originator_id,
            event.originator_version,
            event.topic,
            self._vault.seal(event),
        )

    def _check_id_type(self, originator_id: UUID | str) -> None:
        """Raise ProgrammingError for an id that is not of the type in the settings."""
        if isinstance(originator_id, UUID) != (self.originators == "uuid"):
            type_name = type(originator_id).__name__
            raise persistence.ProgrammingError(
                f"an aggregate has an id of type {type_name}, but ORIGINATOR_ID_TYPE "
                f"is {self.originators}: set it to uuid or text"
            )

    def _conflict(self, events: Sequence[persistence.StoredEvent]) -> str:
        """Return the message of the error if these events cannot be written."""
        if not events:
            return "the tracking was recorded by another process"
        versions = [event.originator_version for event in events]
        return (
            f"a version from {min(versions)} to {max(versions)} of "
            f"{events[0].originator_id}, or of an aggregate saved with it, is taken in "
            f"{self.events.name}: read the aggregate again and repeat the command"
        )

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[persistence.StoredEvent]:
        """Return the events with ``gt < version <= lte``, in order or newest first.

        Raises DataError if one was changed since it was written.
        """
        self._check_id_type(originator_id)
        version = self.events.c.originator_version
        query = self._select().where(self.events.c.originator_id == originator_id)
        if gt is not None:
            query = query.where(version > gt)
        if lte is not None:
            query = query.where(version <= lte)
        query = query.order_by(version.desc() if desc else version).limit(limit)
        rows = self.database.read(query)
        return [persistence.StoredEvent(*self._vault.open(row)) for row in rows]

    def _select(self, *more: sa.ColumnElement[Any]) -> sa.Select[Any]:
        """Return a query of the columns that ``Vault.open`` takes, and of ``more``."""
        events = self.events.c
        return sa.select(
            events.originator_id,
            events.originator_version,
            events.topic,
            events.state,
            *more,
        )


_POLL_SEC: Final = 0.1  # pause of a subscription that has read all events


class SqlApplicationRecorder(SqlAggregateRecorder, persistence.ApplicationRecorder):
    """Events of an application in the order in which they were committed.

    Notification ids have no gaps, even after refused events, and no id is used twice.
    """

    def insert_events(
        self, stored_events: Sequence[persistence.StoredEvent], **kwargs: Any
    ) -> Sequence[int] | None:
        """Write all events or none; returns their notification ids.

        Raises the same errors as the recorder of aggregates.
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
    ) -> Sequence[persistence.Notification]:
        """At most ``limit`` events with ids from ``start`` to ``stop``, in order.

        Raises DataError if one was changed since it was written.
        """
        id_ = self.events.c.notification_id
        query = self._select(id_)
        if start is not None:
            query = query.where(id_ >= start if inclusive_of_start else id_ > start)
        if stop is not None:
            query = query.where(id_ <= stop)
        if topics:
            query = query.where(self.events.c.topic.in_(topics))
        return [
            persistence.Notification(*self._vault.open(row[:4]), row[4])
            for row in self.database.read(query.order_by(id_).limit(limit))
        ]

    def max_notification_id(self) -> int | None:
        """Return the highest notification id of an event, None without events."""
        query = sa.select(sa.func.max(self.events.c.notification_id))
        ((last,),) = self.database.read(query)
        return None if last is None else int(last)

    def subscribe(
        self, gt: int | None = None, topics: Sequence[str] = ()
    ) -> persistence.Subscription[persistence.ApplicationRecorder]:
        """Follow the events with ids above ``gt``, of these topics or of all."""
        return Following(self, gt, topics, every=_POLL_SEC)


class SqlTrackingRecorder(SqlRecorder, persistence.TrackingRecorder):
    """The progress in following upstream applications; the base class of views.

    A view adds its tables in ``define_tables``, and changes them in
    ``transaction(tracking)``.
    """

    def define_tables(self) -> None:
        """Define the table of progress."""
        super().define_tables()
        self.tracking = sa.Table(
            self.table_name("tracking"),
            self.metadata,
            sa.Column("application_name", sa.Text, primary_key=True),
            sa.Column("notification_id", sa.BigInteger, nullable=False),
        )
        track = statements("applications")["track"].format(
            table=quoted_name(self.tracking)
        )
        self._track_statement = track.replace("?", self.database.placeholder)

    @contextmanager
    def transaction(self, tracking: persistence.Tracking) -> Iterator[sa.Connection]:
        """Begin a transaction that also records ``tracking``.

        Raises IntegrityError if that is not ahead of the recorded progress.
        """
        track = partial(self._track, tracking=tracking)
        with self.database.transaction(track) as connection:
            yield connection

    def insert_tracking(self, tracking: persistence.Tracking) -> None:
        """Record progress.  Raises IntegrityError if it is not ahead."""
        with self.transaction(tracking):
            pass

    def _track(self, execute: Execute, *, tracking: persistence.Tracking) -> None:
        """Record progress in a transaction.

        Raises IntegrityError if the recorded progress is as far, or farther.
        """
        values = (tracking.application_name, tracking.notification_id)
        if execute(self._track_statement, values).fetchone() is None:
            raise persistence.IntegrityError(
                f"notification {tracking.notification_id} of "
                f"{tracking.application_name}, or a later one, was already processed"
            )

    def max_tracking_id(self, application_name: str) -> int | None:
        """Return the last notification id of the application that was processed.

        Returns None if none was.
        """
        columns = self.tracking.c
        query = sa.select(columns.notification_id).where(
            columns.application_name == application_name
        )
        rows = self.database.read(query)
        return int(rows[0][0]) if rows else None


class SqlProcessRecorder(
    SqlTrackingRecorder, SqlApplicationRecorder, persistence.ProcessRecorder
):
    """Events of an application, recorded with the progress that caused them."""

    def _writer_of(self, tracking: persistence.Tracking | None) -> Write | None:
        return None if tracking is None else partial(self._track, tracking=tracking)
