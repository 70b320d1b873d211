"""An application of the eventsourcing library on Refold, and its projections.

``python tickets.py URL`` opens tickets for problems that an agent reports in its
session.  The board of tickets follows the application, the tickets follow the session.
"""

import os
import sys
from uuid import NAMESPACE_URL, UUID, uuid5

os.environ["PERSISTENCE_MODULE"] = "refold.adapters.eventsourcing"
os.environ["REFOLD_DB"] = url = sys.argv[1]

from eventsourcing.dispatch import singledispatchmethod
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import Tracking
from eventsourcing.projection import (
    EventSourcedProjection,
    EventSourcedProjectionRunner,
    Projection,
    ProjectionRunner,
)
from eventsourcing.utils import get_topic
from sqlalchemy import Column, Table, Text, Uuid, insert, select, update

import refold
from refold.adapters.eventsourcing import SessionLog, SqlTrackingRecorder


class Ticket(Aggregate):
    """A problem that a person has to look at."""

    @event("Opened")
    def __init__(self, number: int, code: str) -> None:
        self.number = number
        self.code = code
        self.done = False

    @staticmethod
    def create_id(number: int) -> UUID:
        return uuid5(NAMESPACE_URL, f"/tickets/{number}")

    @event("Closed")
    def close(self) -> None:
        self.done = True


class Tickets(EventSourcedProjection[UUID]):
    """One ticket for each error of a session; a place in the log has one ticket."""

    topics = ("error/1",)

    def policy(self, envelope, processing) -> None:
        number = processing.tracking.notification_id
        processing.collect_events(Ticket(number, envelope.payload.code))


class Board(SqlTrackingRecorder):
    """A table of tickets, stored with the position up to which it was computed."""

    def define_tables(self) -> None:
        super().define_tables()
        self.rows = Table(
            self.table_name("board"),
            self.metadata,
            Column("id", Uuid, primary_key=True),
            Column("code", Text, nullable=False),
            Column("status", Text, nullable=False),
        )

    def put(self, ticket: UUID, code: str, tracking: Tracking) -> None:
        with self.transaction(tracking) as connection:
            values = {"id": ticket, "code": code, "status": "open"}
            connection.execute(insert(self.rows).values(values))

    def close(self, ticket: UUID, tracking: Tracking) -> None:
        with self.transaction(tracking) as connection:
            row = update(self.rows).where(self.rows.c.id == ticket)
            connection.execute(row.values(status="closed"))

    def shown(self) -> list[str]:
        columns = self.rows.c
        query = select(columns.code, columns.status).order_by(columns.code)
        return [f"{row.code}: {row.status}" for row in self.database.read(query)]


class BoardOfTickets(Projection[Board]):
    """Puts tickets on the board and closes them there."""

    name = "board"
    topics = (get_topic(Ticket.Opened), get_topic(Ticket.Closed))

    @singledispatchmethod
    def process_event(self, opened: Ticket.Opened, tracking: Tracking) -> None:
        self.view.put(opened.originator_id, opened.code, tracking)

    @process_event.register
    def closed(self, closed: Ticket.Closed, tracking: Tracking) -> None:
        self.view.close(closed.originator_id, tracking)


with refold.open(url) as store:
    session = store.session(user_id="ada", session_id="s-1")
    session.append(refold.UserInput(text="Mend the build."))
    session.append(refold.AgentError(code="timeout", where="make"))
    session.append(refold.AgentError(code="disk-full", where="make"))

with EventSourcedProjectionRunner(
    application_class=SessionLog, projection_class=Tickets
) as reports:
    reports.wait(reports.app.recorder.max_notification_id(), timeout=60)

with ProjectionRunner(
    application_class=Tickets, projection_class=BoardOfTickets, view_class=Board
) as runner:
    tickets = runner.app
    runner.wait(tickets.recorder.max_notification_id(), timeout=60)
    print(*runner.view.shown(), sep="\n")

    first = tickets.notification_log.select(start=1, limit=1)[0]
    ticket = tickets.repository.get(first.originator_id)
    ticket.close()
    (closed,) = tickets.save(ticket)
    runner.wait(closed.notification.id, timeout=60)
    print(*runner.view.shown(), sep="\n")
