"""Application data is encrypted and bound to its row; it is not redacted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from eventsourcing.persistence import DataError, OperationalError, PersistenceError
from sqlalchemy import delete, select, update

from refold.adapters.eventsourcing import Factory, SqlApplicationRecorder
from tests.support.eventsourcing import stored_event

Make = Callable[..., Factory]
SECRET = b'{"note":"mail bob@build.test, or use sk-ant-api03-plain"}' * 8


def states(recorder: SqlApplicationRecorder) -> list[bytes]:
    query = select(recorder.events.c.state).order_by(recorder.events.c.notification_id)
    return [bytes(row.state) for row in recorder.database.read(query)]


def change(recorder: SqlApplicationRecorder, id_: int, **values: Any) -> None:
    events = recorder.events
    with recorder.database.transaction() as connection:
        which = events.c.notification_id == id_
        connection.execute(update(events).where(which).values(**values))


def test_a_state_is_ciphertext_on_disk_and_readable_again(make: Make) -> None:
    recorder = make().application_recorder()
    event = stored_event(state=SECRET)
    recorder.insert_events([event])

    (on_disk,) = states(recorder)

    assert b"bob" not in on_disk
    assert len(on_disk) < len(SECRET), "it is compressed before it is encrypted"
    assert recorder.select_events(event.originator_id) == [event]
    assert make().application_recorder().select_notifications(1, 9)[0].state == SECRET


def test_no_file_of_the_database_holds_a_state(tmp_path: Path, make: Make) -> None:
    recorder = make().application_recorder()
    recorder.insert_events([stored_event(state=b"a plain text")])

    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]

    assert not any(b"a plain text" in file for file in files)


def test_snapshots_are_sealed_too(make: Make) -> None:
    recorder = make().aggregate_recorder("snapshots")
    event = stored_event(state=SECRET)
    recorder.insert_events([event])

    (row,) = recorder.database.read(select(recorder.events.c.state))

    assert b"bob" not in bytes(row.state)
    assert recorder.select_events(event.originator_id) == [event]


@pytest.mark.parametrize("column", ["topic", "originator_version", "originator_id"])
def test_a_row_that_was_changed_does_not_open(make: Make, column: str) -> None:
    recorder = make().application_recorder()
    recorder.insert_events([stored_event()])
    other = {"topic": "other", "originator_version": 7, "originator_id": uuid4()}

    change(recorder, 1, **{column: other[column]})

    with pytest.raises(DataError, match="does not open"):
        recorder.select_notifications(1, 9)


@pytest.mark.parametrize("state", [b"", b"\x01", b"plain", b"\x01" + b"x" * 60])
def test_a_state_of_another_hand_does_not_open(make: Make, state: bytes) -> None:
    recorder = make().application_recorder()
    recorder.insert_events([stored_event()])

    change(recorder, 1, state=state)

    with pytest.raises(DataError, match="does not open"):
        recorder.select_notifications(1, 9)


def test_a_state_put_in_the_place_of_another_does_not_open(make: Make) -> None:
    recorder = make().application_recorder()
    first = stored_event(state=b"1000")
    recorder.insert_events([first, stored_event(2, state=b"1", of=first.originator_id)])

    change(recorder, 2, state=states(recorder)[0])

    with pytest.raises(DataError, match="version 2"):
        recorder.select_events(first.originator_id)


def test_applications_have_keys_of_their_own(make: Make) -> None:
    own, other = (make(name).application_recorder() for name in ("Mine", "Other"))
    id_ = uuid4()
    for recorder in (own, other):
        recorder.insert_events([stored_event(of=id_)])

    change(own, 1, state=states(other)[0])

    with pytest.raises(DataError):
        own.select_events(id_)


def test_a_lost_key_is_not_replaced_by_a_new_one(make: Make) -> None:
    recorder = make().application_recorder()
    recorder.insert_events([stored_event()])
    (keys,) = (t for t in recorder.metadata.tables.values() if t.name == "es_keys")
    with recorder.database.transaction() as connection:
        connection.execute(delete(keys))

    with pytest.raises(OperationalError, match="key of application 'app'"):
        make().application_recorder()
    unchecked = make(CREATE_TABLE="no").application_recorder()
    with pytest.raises(PersistenceError, match="key of application 'app'"):
        unchecked.insert_events([stored_event()])


def test_another_master_key_opens_nothing_and_writes_nothing(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make().application_recorder().insert_events([stored_event()])

    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "another home"))
    recorder = make().application_recorder()
    with pytest.raises(OperationalError, match="REFOLD_MASTER_KEY"):
        recorder.insert_events([stored_event()])
    monkeypatch.setenv("REFOLD_MASTER_KEY", "ab" * 32)
    with pytest.raises(OperationalError, match="does not open this key store"):
        recorder.select_notifications(1, 9)

    assert recorder.max_notification_id() == 1
    assert not (tmp_path / "another home").exists()


def test_events_of_applications_are_not_redacted(make: Make) -> None:
    recorder = make().application_recorder()
    id_ = UUID(int=1)
    recorder.insert_events([stored_event(state=SECRET, of=id_)])

    (event,) = recorder.select_events(id_)

    assert b"bob@build.test" in event.state
