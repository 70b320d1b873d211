"""Nothing reaches storage but what redaction passed and the mapper sealed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from threading import Thread
from typing import Any, ClassVar
from uuid import UUID

import pytest
from eventsourcing.persistence import (
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
from refold.domain.chain import GENESIS, Header
from refold.domain.ids import StreamId
from refold.domain.ports import Scope
from refold.redaction.chokepoint import RedactedEvent
from refold.testing import ADA, append_to, memory_log, said, write
from tests.support.stores import ROOT

HEADER = Header(ADA, 1, "user_input", 1, UUID(int=1), 1, 1)


@pytest.fixture
def log(store_url: str) -> Iterator[EncryptedLog]:
    sqlite, url = store_url.startswith("sqlite"), make_url(store_url)
    dialect = SqliteDatabase(url) if sqlite else PostgresDatabase(url)
    log = memory_log(Recorder(dialect))
    yield log
    log.close()


def redacted() -> RedactedEvent:
    (event,) = append_to(memory_log().head(ADA), *said("a")).events
    assert isinstance(event, RedactedEvent)
    return event


def test_nobody_but_redaction_makes_a_redacted_event() -> None:
    with pytest.raises(TypeError, match="only redaction"):
        RedactedEvent(refold.UserInput(), 1, 1, {}, (), object())
    with pytest.raises(TypeError):
        replace(redacted(), passed=None)


def test_nobody_but_the_mapper_makes_a_sealed_event() -> None:
    with pytest.raises(TypeError, match="only the encrypting mapper"):
        EncryptedEvent(
            str(ADA), 1, "user_input/1", b"x", HEADER, GENESIS, b"", object()
        )


class Lookalike:
    type, schema_version, ts, token_estimate = "user_input", 1, 1, 1
    content: ClassVar[dict[str, Any]] = {"payload": {"text": "secret"}}
    blobs = ()


LOOKALIKE: Any = Lookalike()
KEY: Any = None


@pytest.mark.parametrize(
    "event",
    [
        refold.UserInput(text="secret"),
        PlacedEvent(LOOKALIKE, HEADER, GENESIS, KEY),
        LOOKALIKE,
        b"secret",
    ],
    ids=["event", "placed", "lookalike", "bytes"],
)
def test_the_mapper_seals_only_what_passed_redaction(event: Any) -> None:
    mapper = EncryptingMapper(memory_log().keys)

    with pytest.raises(TypeError, match="passed redaction"):
        mapper.to_stored_event(event)


def test_a_subclass_of_a_redacted_event_is_no_redacted_event() -> None:
    class Mine(RedactedEvent):
        def __post_init__(self) -> None:
            pass

    mine = Mine(refold.UserInput(), 1, 1, {"payload": {"text": "secret"}}, (), None)
    placed = PlacedEvent(mine, HEADER, GENESIS, KEY)

    with pytest.raises(TypeError, match="passed redaction"):
        EncryptingMapper(memory_log().keys).to_stored_event(placed)


def test_a_recorder_takes_only_sealed_events_with_their_head(log: EncryptedLog) -> None:
    raw: Any = StoredEvent(str(ADA), 1, "user_input/1", b"secret")
    head = HeadRow(1, GENESIS, "open", b"", b"", 1, 1, 1)

    with pytest.raises(TypeError):
        log.recorder.insert_events([raw])
    with pytest.raises(TypeError):
        Batch(ADA, 0, GENESIS, head, (raw,))
    with pytest.raises(TypeError):
        log.recorder.insert_events([raw], batch="x")
    assert log.recorder.stats(Scope(), now=0)["events"] == 0


def test_sealed_events_are_for_the_stream_they_were_sealed_for(
    log: EncryptedLog,
) -> None:
    write(log, ADA, *said("a"))
    (row,) = log.recorder.select_events(ADA)
    head = log.recorder.head_row(ADA)
    assert head is not None

    with pytest.raises(TypeError):
        Batch(StreamId("bob", "s"), 0, GENESIS, head, (row,))


def test_events_are_inserted_in_one_place_for_each_engine() -> None:
    inserts = re.compile(r"INSERT INTO \S*events|insert\(\S*events")
    places = {
        path.relative_to(ROOT).as_posix(): len(inserts.findall(path.read_text()))
        for path in (ROOT / "refold").rglob("*.py")
        if inserts.search(path.read_text())
    }

    assert places == {
        "refold/adapters/sql/sqlite.py": 1,
        "refold/adapters/sql/postgres.py": 1,
    }


def test_the_library_reads_envelopes_through_its_own_interfaces(
    log: EncryptedLog,
) -> None:
    write(log, ADA, *said("a", "b", "c"))
    store = LogFactory(log.recorder, log.keys).event_store()

    events: list[Any] = list(store.get(str(ADA), gt=1))
    newest: list[Any] = list(store.get(str(ADA), desc=True, limit=1))

    assert [event.payload.text for event in events] == ["b", "c"]
    assert [event.seq for event in newest] == [3]


def test_the_library_inserts_through_its_own_interface(log: EncryptedLog) -> None:
    write(log, ADA, *said("a"))
    request = append_to(log.head(ADA), *said("b"))
    batch = log.batch(request)

    assert log.recorder.insert_events(batch.events, batch=batch) is None
    assert log.head(ADA).seq == 2
    late = log.batch(request)
    with pytest.raises(IntegrityError):
        log.recorder.insert_events(late.events, batch=late)


def test_notifications_come_in_order_with_rising_ids(log: EncryptedLog) -> None:
    write(log, ADA, *said("a", "b"))
    write(log, StreamId("bob", "s"), *said("c"))
    recorder = log.recorder

    # Not at once: a transaction elsewhere on the server holds the tail back.
    with recorder.subscribe(gt=0) as subscription:
        found = [next(subscription) for _ in range(3)]
    ids = [notification.id for notification in found]

    assert [n.originator_version for n in found] == [1, 2, 1]
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
        write(log, stream, *said("x", "y"))


def test_the_factory_hands_out_nothing_that_goes_around(log: EncryptedLog) -> None:
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
