"""After a soak: compare acknowledged with stored events, and recompute every view."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from refold.domain.envelope import Envelope
from refold.store import Session, SessionStore
from tests.soak.plan import USER, Plan, journal
from tests.support.folding import unequal_views


class Place(NamedTuple):
    """Where a batch is."""

    session_id: str
    first_seq: int
    last_seq: int
    hash: str


@dataclass(slots=True)
class EventsRead:
    """The batches that are in the log, and what is wrong with how they are there."""

    places: dict[str, Place] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    events: int = 0

    def read(self, session: Session) -> None:
        """Go through the events of one session."""
        expected = 1
        name = session.session_id
        for envelope in session.history.pages():
            if envelope.seq != expected:
                self.wrong.append(f"{name}: seq {envelope.seq}, not {expected}")
            self._place(name, envelope)
            expected = envelope.seq + 1
            self.events += 1

    def _place(self, session_id: str, event: Envelope) -> None:
        text = str(event.payload.payload()["text"])
        key, _, index = text.split(" ", 1)[0].rpartition(".")
        placed = self.places.get(key)
        if int(index) == 0:
            if placed is not None:
                self.wrong.append(f"batch {key} is there twice: {placed.session_id}")
            self.places[key] = Place(session_id, event.seq, event.seq, event.hash)
            return
        follows = (session_id, event.seq - int(index), event.seq - 1)
        if placed is None or placed[:3] != follows:
            self.wrong.append(f"batch {key} is scattered at {session_id} {event.seq}")
            return
        self.places[key] = placed._replace(last_seq=event.seq, hash=event.hash)


class Checked(NamedTuple):
    """How many summaries there are, and everything that is not as promised.

    retried: appends that were acknowledged on a later attempt than they took effect.
    """

    compactions: int
    retried: int
    wrong: list[str]


def check(store: SessionStore, plan: Plan, folder: Path) -> Checked:
    """Reads all events page by page, verifies all sessions, and refolds all views."""
    events_read = EventsRead()
    sessions = [
        store.session(user_id=USER, session_id=info.session_id)
        for info in store.sessions(USER, internal=True)
    ]
    for session in sessions:
        events_read.read(session)
    wrong = [*events_read.wrong, *_acknowledged(events_read, plan, folder)]
    compactions = 0
    for _, verified in store.verify():
        compactions += verified.compactions
        wrong += [str(problem) for problem in verified.problems]
    for session in sessions:
        wrong += unequal_views(session)
        # Recomputing views costs as much as reading the log: only changed ones are.
        if session.strategies.catch_up():
            wrong += unequal_views(session)
    journals = (journal(folder / f"journal-{writer}") for writer in range(plan.writers))
    retried = sum(line.duplicate for lines in journals for line in lines)
    return Checked(compactions, retried, wrong)


def _acknowledged(events_read: EventsRead, plan: Plan, folder: Path) -> Iterator[str]:
    if events_read.events != plan.events:
        yield f"{events_read.events} events are there, {plan.events} were appended"
    for writer in range(plan.writers):
        lines = {line.number: line for line in journal(folder / f"journal-{writer}")}
        for batch in plan.batches(writer):
            line = lines.pop(batch.number, None)
            place = events_read.places.get(batch.key)
            if line is None:
                yield f"batch {batch.key} was never acknowledged"
            elif place != (*line[1:4], line.hash):
                yield f"batch {batch.key} was acknowledged as {line}, and is at {place}"
            elif place.last_seq - place.first_seq + 1 != batch.size:
                yield f"batch {batch.key} has not its {batch.size} events"
        if lines:
            yield f"writer {writer} has acknowledgements of unknown batches: {lines}"
