"""Storage receives only redacted events that the mapper encrypted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, TypeAlias

import pytest
from eventsourcing.persistence import (
    EventStore,
    InfrastructureFactoryError,
    IntegrityError,
    StoredEvent,
)
from sqlalchemy import make_url

import refold
from refold.adapters.log import EncryptedLog, LogFactory
from refold.adapters.rows import (
    Batch,
    EncryptedEvent,
    EncryptingMapper,
    HeadRow,
    PlacedEvent,
)
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.recorder import Recorder
from refold.adapters.sql.sqlite import SqliteDatabase
from refold.adapters.streams import head_of
from refold.domain.chain import GENESIS
from refold.domain.envelope import Draft, Envelope
from refold.domain.ids import StreamId
from refold.domain.ports import Append, Appended, Scope
from refold.redaction.chokepoint import RedactedEvent
from refold.store.session.imports import extend
from refold.testing import ADA, append_to, memory_log, user_inputs, write
from tests.support.redacting import MAIL, aware, unaware
from tests.support.stores import ROOT, open_at

COLUMNS = (ADA, 1, "user_input", 1, bytes(16), 1, 1)


@pytest.fixture
def log(store_url: str) -> Iterator[EncryptedLog]:
    sqlite = store_url.startswith("sqlite")
    url = make_url(store_url)
    dialect = SqliteDatabase(url) if sqlite else PostgresDatabase(url)
    log = memory_log(Recorder(dialect))
    yield log
    log.close()


def redacted() -> RedactedEvent:
    (event,) = append_to(memory_log().head(ADA), *user_inputs("a")).events
    assert isinstance(event, RedactedEvent)
    return event


def test_only_redaction_creates_a_redacted_event() -> None:
    with pytest.raises(TypeError, match="only redaction"):
        RedactedEvent(refold.UserInput(), 1, 1, b"{}", {}, (), object())
    with pytest.raises(TypeError):
        replace(redacted(), passed=None)


def test_only_the_mapper_creates_an_encrypted_event() -> None:
    with pytest.raises(TypeError, match="use encrypted_event"):
        EncryptedEvent(
            str(ADA), 1, "user_input/1", b"x", COLUMNS, GENESIS, b"", object()
        )


class Lookalike:
    type = "user_input"
    schema_version = 1
    ts = 1
    token_estimate = 1
    data = b'{"payload": {"text": "secret"}}'
    blobs = ()


LOOKALIKE: Any = Lookalike()
KEY: Any = None


@pytest.mark.parametrize(
    "event",
    [
        refold.UserInput(text="secret"),
        PlacedEvent(LOOKALIKE, COLUMNS, GENESIS, KEY),
        LOOKALIKE,
        b"secret",
    ],
    ids=["event", "placed", "lookalike", "bytes"],
)
def test_the_mapper_encrypts_only_redacted_events(event: Any) -> None:
    mapper = EncryptingMapper(memory_log().keys)

    with pytest.raises(TypeError, match="passed redaction"):
        mapper.to_stored_event(event)


def test_a_subclass_of_a_redacted_event_is_no_redacted_event() -> None:
    class Subclassed(RedactedEvent):
        def __post_init__(self) -> None:
            pass

    subclassed = Subclassed(refold.UserInput(), 1, 1, LOOKALIKE.data, {}, (), None)
    placed = PlacedEvent(subclassed, COLUMNS, GENESIS, KEY)

    with pytest.raises(TypeError, match="passed redaction"):
        EncryptingMapper(memory_log().keys).to_stored_event(placed)


def test_a_recorder_accepts_only_encrypted_events_with_their_head(
    log: EncryptedLog,
) -> None:
    raw: Any = StoredEvent(str(ADA), 1, "user_input/1", b"secret")
    no_batch: Any = "x"
    head = HeadRow(1, GENESIS, "open", b"", b"", 1, 1, 1)

    with pytest.raises(TypeError):
        log.recorder.insert_events([raw])
    with pytest.raises(TypeError):
        Batch(ADA, 0, GENESIS, head, (raw,))
    with pytest.raises(TypeError):
        log.recorder.insert_events([raw], batch=no_batch)
    assert log.recorder.stats(Scope(), now=0)["events"] == 0


def test_encrypted_events_belong_to_one_stream(
    log: EncryptedLog,
) -> None:
    write(log, ADA, *user_inputs("a"))
    (row,) = log.recorder.select_events(ADA)
    head = log.recorder.head_row(ADA)
    assert head is not None

    with pytest.raises(TypeError):
        Batch(StreamId("bob", "s"), 0, GENESIS, head, (row,))


def test_events_are_inserted_in_one_place_for_each_engine_and_by_a_move() -> None:
    inserts = re.compile(r"INSERT INTO \S*events|insert\(\S*events")
    places = {
        path.relative_to(ROOT).as_posix(): len(inserts.findall(path.read_text()))
        for path in (ROOT / "refold").rglob("*.*")
        if path.suffix in (".py", ".sql") and inserts.search(path.read_text())
    }

    assert places == {
        "refold/adapters/sql/data/sqlite.sql": 1,
        "refold/adapters/sql/data/postgres.sql": 1,
        "refold/adapters/sql/data/citus.sql": 1,
        # Rows of a store, into one that no process can open.
        "refold/adapters/sql/move.py": 1,
        # Events of other applications, in tables of their own.
        "refold/adapters/sql/data/applications.sql": 4,
    }


def test_the_library_reads_envelopes_through_its_own_interfaces(
    log: EncryptedLog,
) -> None:
    write(log, ADA, *user_inputs("a", "b", "c"))
    store: EventStore[str] = LogFactory(log.recorder, log.keys).event_store()

    events: list[Any] = list(store.get(str(ADA), gt=1))
    newest: list[Any] = list(store.get(str(ADA), desc=True, limit=1))

    assert [event.payload.text for event in events] == ["b", "c"]
    assert [event.seq for event in newest] == [3]


def test_an_event_of_a_newer_version_is_refused_by_the_reader(
    log: EncryptedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log, ADA, *user_inputs("a"))
    monkeypatch.setattr(refold.UserInput, "version", 0)

    with pytest.raises(refold.errors.CorruptEvent, match="upgrade Refold"):
        log.read(ADA)


def test_the_library_inserts_through_its_own_interface(log: EncryptedLog) -> None:
    write(log, ADA, *user_inputs("a"))
    request = append_to(log.head(ADA), *user_inputs("b"))
    batch = log.batch(request)

    assert log.recorder.insert_events(batch.events, batch=batch) is None
    assert log.head(ADA).seq == 2
    late = log.batch(request)
    with pytest.raises(IntegrityError):
        log.recorder.insert_events(late.events, batch=late)


def test_notifications_come_in_order_with_rising_ids(log: EncryptedLog) -> None:
    write(log, ADA, *user_inputs("a", "b"))
    write(log, StreamId("bob", "s"), *user_inputs("c"))
    recorder = log.recorder

    # Not at once: a transaction elsewhere on the server delays the tail.
    with recorder.subscribe(gt=0) as subscription:
        notifications = [next(subscription) for _ in range(3)]
    ids = [notification.id for notification in notifications]

    assert [notification.originator_version for notification in notifications] == [
        1,
        2,
        1,
    ]
    assert ids == sorted(set(ids))
    assert recorder.max_notification_id() == ids[-1]
    after = recorder.select_notifications(ids[0], 10, inclusive_of_start=False)
    assert [notification.id for notification in after] == ids[1:]
    assert recorder.select_notifications(1, 10, topics=("final/1",)) == []


def test_a_follower_misses_nothing_while_others_write(log: EncryptedLog) -> None:
    writers = [
        Thread(target=pour, args=(log, StreamId("ada", f"s-{number}")))
        for number in range(4)
    ]
    with log.recorder.subscribe(gt=0) as subscription:
        for writer in writers:
            writer.start()
        seen = [next(subscription) for _ in range(4 * 40)]
        for writer in writers:
            writer.join()

    places = [(n.originator_id, n.originator_version) for n in seen]
    assert len(set(places)) == 160
    for number in range(4):
        own = [seq for stream, seq in places if stream == f"ada/s-{number}/main"]
        assert own == list(range(1, 41))


def pour(log: EncryptedLog, stream: StreamId) -> None:
    for _ in range(20):
        write(log, stream, *user_inputs("x", "y"))


def test_the_factory_returns_nothing_that_bypasses_the_library(
    log: EncryptedLog,
) -> None:
    factory = LogFactory(log.recorder, log.keys)

    assert type(factory.mapper()) is EncryptingMapper
    assert factory.application_recorder() is log.recorder
    for wrong in (
        lambda: factory.mapper(mapper_class=EncryptingMapper),
        lambda: factory.aggregate_recorder("snapshots"),
        factory.tracking_recorder,
        factory.process_recorder,
    ):
        with pytest.raises(InfrastructureFactoryError):
            wrong()


Places: TypeAlias = set[tuple[StreamId, int, bytes]]


class Seam(NamedTuple):
    """The rows that passed the library's interfaces: stream, seq and ciphertext."""

    mapped: Places
    inserted: Places
    selected: Places
    opened: Places
    envelopes: list[Any]

    @classmethod
    def watch(cls, patch: pytest.MonkeyPatch) -> Seam:
        """Record everything that passes from now on."""
        seam = cls(set(), set(), set(), set(), [])

        def watch(kind: Any, name: str, note: Callable[[Any, Any], object]) -> None:
            method = getattr(kind, name)

            def watched(self: Any, *arguments: Any, **options: Any) -> Any:
                result = method(self, *arguments, **options)
                note(arguments[0], result)
                return result

            patch.setattr(kind, name, watched)

        def rows(places: Places) -> Callable[[Any], None]:
            return lambda rows: places.update(
                (r.columns[0], r.seq, r.state) for r in rows
            )

        note_mapped, note_inserted, note_selected, note_opened = map(rows, seam[:4])
        mapper = EncryptingMapper
        watch(mapper, "to_stored_event", lambda _, row: note_mapped([row]))
        watch(mapper, "to_domain_event", lambda row, _: note_opened([row]))
        watch(Recorder, "insert_events", lambda events, _: note_inserted(events))
        watch(Recorder, "select_events", lambda _, rows_read: note_selected(rows_read))
        watch(
            Recorder,
            "snapshot",
            lambda _, snapshot: [*map(note_selected, snapshot[2:])],
        )
        proved = Envelope.proved.__func__  # type: ignore[attr-defined]  # a class method

        def noted(kind: Any, *arguments: Any) -> Envelope:
            seam.envelopes.append(arguments)
            envelope: Envelope = proved(kind, *arguments)
            return envelope

        patch.setattr(Envelope, "proved", classmethod(noted))
        return seam


def rows_in(store: refold.SessionStore) -> Places:
    """Return every row of the database, read without the library."""
    database: Any = store.log.recorder.database  # type: ignore[attr-defined]  # a store over SQL
    query = "SELECT user_id, session_id, stream, seq, body FROM {events}"
    stored = database.fetch("", query, ())
    return {(StreamId(*row[:3]), row[3], bytes(row[4])) for row in stored}


WINDOW = "turn_window:full_turns=1,cached_turns=1"


def appends(store: refold.SessionStore) -> None:
    session = store.session(user_id="ada", session_id="s-1")
    session.append([refold.UserInput(text=f"{MAIL} {n}") for n in range(3)])
    session.append(refold.AgentResponse(text="yes"), idempotency_key="k")
    asyncio.run(session.append_async(refold.UserInput(text="later")))
    session.append(refold.AgentResponse(text="yes"))
    session.compact(WINDOW)
    session.fork(2, session_id="s-2").append(refold.UserInput(text="else"))


def imports(store: refold.SessionStore) -> None:
    drafts = [Draft(refold.UserInput(text=f"{n}")) for n in range(3)]
    extend(store.session(user_id="ada", session_id="s-3"), drafts, where="a file")


WRITES = {"append": appends, "import": imports}
READS: dict[str, Callable[[refold.SessionStore], object]] = {
    "read": lambda store: store.session(user_id="ada", session_id="s-1").events(),
    "context": lambda store: store.session(user_id="ada", session_id="s-1").context(
        WINDOW
    ),
    "verify": lambda store: list(store.verify()),
    "rebuild": lambda store: list(store.rebuild("turn_window:full_turns=2")),
    "redact again": lambda store: list(store.reredact()),
}


@pytest.mark.parametrize("work", WRITES.values(), ids=WRITES)
def test_writes_pass_the_library(
    work: Callable[[refold.SessionStore], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with refold.open("memory://", redactor=unaware()) as store:
        seam = Seam.watch(monkeypatch)

        work(store)

        there = rows_in(store)
        assert there
        assert there <= seam.mapped
        assert there <= seam.inserted


@pytest.mark.parametrize("work", READS.values(), ids=READS)
def test_reads_pass_the_library(
    work: Callable[[refold.SessionStore], object],
    monkeypatch: pytest.MonkeyPatch,
    sqlite_url: str,
    tmp_path: Path,
) -> None:
    with open_at(sqlite_url, tmp_path, redactor=unaware()) as store:
        appends(store)
    with open_at(sqlite_url, tmp_path, redactor=aware()) as store:
        before = rows_in(store)
        seam = Seam.watch(monkeypatch)

        work(store)

        assert seam.envelopes
        assert {place[:2] for place in seam.opened} >= {
            arguments[0][:2] for arguments in seam.envelopes if is_adas(arguments)
        }
        assert seam.opened <= seam.selected
        assert rows_in(store) - before <= seam.mapped


def is_adas(arguments: Any) -> bool:
    stream: StreamId = arguments[0][0]
    return stream[1:] == ADA[1:]


def test_a_path_that_bypasses_the_library_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bypass(log: EncryptedLog, request: Append) -> object:
        if request.base.seq == 0:
            log._admit(request)
        batch = log.batch(request)
        log.recorder.write(batch)
        return Appended(head_of(request.state, batch.head))

    monkeypatch.setattr(EncryptedLog, "append", bypass)
    with refold.open("memory://", redactor=unaware()) as store:
        seam = Seam.watch(monkeypatch)

        imports(store)

        assert not rows_in(store) <= seam.inserted
