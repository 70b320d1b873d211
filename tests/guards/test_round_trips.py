"""The listed number of statements and round trips of each operation is exact.

A number that falls is good news, and is updated; one that rises needs a reason.
PostgreSQL counts on the wire, with everything prepared: BEGIN and COMMIT are counted,
and the statements that a driver sends by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pytest

import refold
from refold.adapters.verification import PAGE
from refold.store import Session, SessionStore
from refold.testing.event_log import user_inputs
from tests.support import files
from tests.support.eventsourcing import factory, stored_event
from tests.support.statements import Listener, Recording, Traced, Wire
from tests.support.stores import open_at
from tests.support.talking import talk

WINDOW: Final = "turn_window:full_turns=2,cached_turns=1"
WARM: Final = 8  # a driver prepares what it has run a few times


class Cost(NamedTuple):
    """Statements on SQLite; statements and round trips on PostgreSQL."""

    sqlite: int
    postgres: int
    trips: int


APPEND: Final = {
    # SQLite: BEGIN, the head, the event, COMMIT.  PostgreSQL: one statement does all.
    "one event": Cost(4, 1, 1),
    "one event from asyncio": Cost(4, 1, 1),
    # SQLite runs a prepared statement once for each event.
    "a hundred events": Cost(103, 1, 1),
    # SQLite looks for the key in the same transaction, and adds it.
    "one event with a key": Cost(6, 1, 1),
    # A refusal is explained by receipt and last hash, then the event is read and
    # compared.
    "a retry with a key": Cost(4, 4, 4),
}
READ: Final = {
    "a page of events": Cost(2, 2, 2),  # the head first: an erased session has no page
    "a context whose view is current": Cost(1, 1, 1),
    "a context with a few new events": Cost(1, 1, 1),
    "a context without a view": Cost(1, 1, 1),
    # One more statement reads the blobs of all its images.
    "a context with images": Cost(2, 2, 2),
    # The head says that there was a request, which says the strategy.
    "a context of the last strategy": Cost(3, 3, 3),
    "a preparation with nothing due": Cost(1, 1, 1),
    "the newest event": Cost(1, 1, 1),
}
# The head, the views that are behind, the state of the session, and the view.
# And one for each page of events: sessions, streams, heads, re-redacted events, names
# of views; sealed heads, rows that no hash of the chain covers, receipts.
# Of each stream also its last event, so that a concurrent append is no fault.
VERIFY: Final = Cost(12, 12, 12)
# The sessions, the head, the derived stream, which is empty (so the head says whether
# the session was erased), and the events.  A rebuild that writes nothing needs no
# further statement for each summary.
DRY_REBUILD: Final = Cost(5, 5, 5)
STORE_VIEW: Final = Cost(6, 4, 4)
# With what the key store is asked, on PostgreSQL one there too: it tries a connection
# each time that it takes it out.  It is read before and after it is written.
FIRST: Final = {
    "of a user": Cost(15, 15, 15),
    # The user's key is read too: it is never made in place of one that was lost.
    "of a session": Cost(16, 17, 17),
}


class Counted(NamedTuple):
    """A store and what listens to it."""

    store: SessionStore
    ear: Listener
    postgres: bool
    url: str

    def costs(self, operation: Callable[[], Any], *, before: Any = None) -> Recording:
        """Return the cost of ``operation`` once warm, without that of ``before``."""
        for _ in range(WARM):
            if before is not None:
                before()
            operation()
        if before is not None:
            before()
        with self.ear.listen() as heard:
            operation()
        return heard

    def check(self, heard: Recording, cost: Cost) -> None:
        """Compare what was heard to what is written down."""
        expected = cost[1:] if self.postgres else (cost.sqlite, 0)
        assert heard.counts == expected, [
            statement.text for statement in heard.statements
        ]


@pytest.fixture(params=["sqlite", "postgresql"])
def counted(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Counted]:
    """An empty store on each engine in turn, and what listens to it."""
    if request.param == "sqlite":
        traced = Traced(monkeypatch)
        url = f"sqlite:///{tmp_path / 'refold.db'}"
        with open_at(url, tmp_path) as store:
            yield Counted(store, traced, postgres=False, url=url)
        return
    wire = Wire(request.getfixturevalue("postgres_url"))
    with open_at(wire.url, tmp_path) as store:
        yield Counted(store, wire, postgres=True, url=wire.url)
    wire.close()


@pytest.fixture
def session(counted: Counted) -> Session:
    """A session of that store that was compacted, its view as new as its head."""
    session = talk(counted.store.session(user_id="ada", session_id="s-1"), 12)
    while session.compact(WINDOW) is not None:
        pass
    return session


@pytest.mark.parametrize("case", APPEND)
def test_an_append(counted: Counted, session: Session, case: str) -> None:
    keys = (f"key {number}" for number in count())
    events = user_inputs("x")
    appends: dict[str, Callable[[], Any]] = {
        "one event": lambda: session.append(events),
        "one event from asyncio": lambda: asyncio.run(session.append_async(events)),
        "a hundred events": lambda: session.append(events * 100),
        "one event with a key": lambda: session.append(
            events, idempotency_key=next(keys)
        ),
        "a retry with a key": lambda: session.append(events, idempotency_key="again"),
    }

    heard = counted.costs(appends[case])

    counted.check(heard, APPEND[case])


@pytest.mark.parametrize("case", FIRST)
def test_a_first_append(counted: Counted, case: str) -> None:
    number = count()
    keys = counted.url if counted.postgres else None

    def first() -> None:
        user = f"user {next(number)}" if case == "of a user" else "ada"
        store.session(user_id=user, session_id=f"s {next(number)}").append(
            user_inputs("x")
        )

    with refold.open(counted.url, keys=keys) as store:
        heard = counted.costs(first)

    counted.check(heard, FIRST[case])


def image(seed: int) -> refold.UserInput:
    """An input with an image that is larger than an event may be."""
    data = files.encoded(files.png(Random(seed), size=100_000))
    attachment = refold.events.Attachment(
        kind="image", media_type="image/png", data=data
    )
    return refold.UserInput(text="see", attachments=(attachment,))


@pytest.mark.parametrize("case", READ)
def test_a_read(counted: Counted, session: Session, case: str) -> None:
    short = talk(counted.store.session(user_id="ada", session_id="short"), 3)
    before = None
    if case.endswith("new events"):
        before = lambda: talk(session, 1)  # noqa: E731  # as short as the others
    if case.endswith("last strategy"):
        session.record_request(session.context(WINDOW))
    if case.endswith("with images"):
        short.append([image(seed) for seed in range(3)])
    reads: dict[str, Callable[[], Any]] = {
        "a page of events": lambda: session.events(after=5, limit=10),
        "a context whose view is current": lambda: session.context(WINDOW),
        "a context with a few new events": lambda: session.context(WINDOW),
        "a context without a view": lambda: short.context(WINDOW),
        "a context with images": lambda: short.context(WINDOW),
        "a context of the last strategy": lambda: session.context(),
        "a preparation with nothing due": lambda: session.prepare(WINDOW),
        "the newest event": lambda: session.writer.log.read(
            session.stream, limit=1, newest=True
        ),
    }

    heard = counted.costs(reads[case], before=before)

    counted.check(heard, READ[case])


def test_a_view_that_is_stored_anew(counted: Counted, session: Session) -> None:
    heard = counted.costs(session.strategies.catch_up, before=lambda: talk(session, 1))

    counted.check(heard, STORE_VIEW)


@pytest.mark.parametrize("events", [PAGE - 1, 3 * PAGE - 1])
def test_a_proof(counted: Counted, events: int) -> None:
    session = counted.store.session(user_id="ada", session_id="s-1")
    session.append(user_inputs("x") * events)

    heard = counted.costs(session.verify)

    pages = events // PAGE + 1  # the last one is not full
    counted.check(heard, Cost(*(cost + pages for cost in VERIFY)))


@pytest.mark.parametrize("turns", [12, 24])
def test_a_rebuild_that_writes_nothing(counted: Counted, turns: int) -> None:
    talk(counted.store.session(user_id="ada", session_id="s-1"), turns)

    def rebuild() -> None:
        (result,) = counted.store.rebuild(WINDOW, dry_run=True)
        assert result.compactions > turns // 4

    counted.check(counted.costs(rebuild), DRY_REBUILD)


# SQLite: BEGIN, the notification ids, an INSERT for each event, COMMIT.  PostgreSQL:
# one statement does all.
SAVE: Final = Cost(6, 1, 1)


def test_a_save_of_three_events_by_an_application(counted: Counted) -> None:
    recorder = factory(counted.url, "App").application_recorder()

    def save() -> None:
        recorder.insert_events([stored_event(), stored_event(), stored_event()])

    counted.check(counted.costs(save), SAVE)
    recorder.database.close()
