"""Unusable settings are refused with a sentence, before anything is created."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid4

import psycopg
import pytest
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate
from eventsourcing.persistence import (
    InfrastructureFactoryError,
    IntegrityError,
    OperationalError,
    PersistenceError,
    ProgrammingError,
    Tracking,
)
from hypothesis import given, strategies as st
from sqlalchemy import inspect as tables_of

import refold
from refold.adapters.eventsourcing import (
    Factory,
    SqlApplicationRecorder,
    SqlProcessRecorder,
    SqlTrackingRecorder,
)
from refold.adapters.eventsourcing.recorders import table_name
from tests.support.eventsourcing import MODULE, factory, stored_event
from tests.support.postgres import Postgres
from tests.support.stores import open_at

Make = Callable[..., Factory]


class Own(SqlApplicationRecorder): ...


@pytest.mark.parametrize(
    "url",
    ["memory://", "mysql://host/db", "nonsense", "sqlite://", "sqlite:///:memory:"],
)
def test_a_url_of_a_store_without_events_is_refused(url: str) -> None:
    with pytest.raises(InfrastructureFactoryError, match="sqlite:///"):
        factory(url)


def test_without_a_setting_the_database_is_that_of_refold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    application_factory = Factory({})
    application_factory.application_recorder().insert_events([stored_event()])
    application_factory.close()

    assert (tmp_path / "refold.db").exists()


def test_a_setting_for_one_application_is_its_own(
    empty_url: str, tmp_path: Path
) -> None:
    own = f"sqlite:///{tmp_path / 'own.db'}"

    application_factory = factory(empty_url, "Mine", MINE_REFOLD_DB=own)

    assert application_factory.database.url == own
    application_factory.close()


@pytest.mark.parametrize(
    "topic",
    [
        "refold.adapters.eventsourcing:Factory",
        "eventsourcing.sqlite:SQLiteApplicationRecorder",
        "refold.adapters.eventsourcing",
    ],
)
def test_a_recorder_of_another_module_is_refused(make: Make, topic: str) -> None:
    application_factory = make(APPLICATION_RECORDER_TOPIC=topic)

    with pytest.raises(InfrastructureFactoryError, match="derive it from that"):
        application_factory.application_recorder()


def test_a_recorder_can_be_named_by_its_topic(make: Make) -> None:
    application_factory = make(
        APPLICATION_RECORDER_TOPIC=f"{__name__}:Own", PROCESS_RECORDER_TOPIC=""
    )

    assert type(application_factory.application_recorder()).__name__ == "Own"
    assert type(application_factory.process_recorder()) is SqlProcessRecorder


def test_ids_are_of_the_type_that_was_set(make: Make) -> None:
    uuids = make("A")
    texts = make("B", ORIGINATOR_ID_TYPE="text")
    recorder = texts.application_recorder()

    recorder.insert_events([stored_event(of="order-1"), stored_event(2, of="order-1")])
    with pytest.raises(ProgrammingError, match="ORIGINATOR_ID_TYPE"):
        recorder.insert_events([stored_event(3, of="order-1"), stored_event()])
    with pytest.raises(ProgrammingError, match="ORIGINATOR_ID_TYPE"):
        uuids.application_recorder().insert_events([stored_event(of="order-1")])

    assert [e.originator_version for e in recorder.select_events("order-1")] == [1, 2]
    notifications = recorder.select_notifications(1, 9)
    assert [n.originator_id for n in notifications] == ["order-1", "order-1"]
    assert uuids.application_recorder().max_notification_id() is None


def test_a_table_keeps_the_type_of_ids_it_was_made_for(make: Make) -> None:
    make().application_recorder()

    with pytest.raises(ProgrammingError, match="made for ORIGINATOR_ID_TYPE=uuid"):
        make(ORIGINATOR_ID_TYPE="text").application_recorder()
    with pytest.raises(InfrastructureFactoryError, match="uuid or text"):
        make(ORIGINATOR_ID_TYPE="int")


def test_nothing_is_created_unless_requested(make: Make) -> None:
    recorder = make(CREATE_TABLE="no").application_recorder()

    with pytest.raises(ProgrammingError, match="CREATE_TABLE=yes"):
        recorder.insert_events([stored_event()])
    with pytest.raises(ProgrammingError, match="CREATE_TABLE=yes"):
        recorder.max_notification_id()


def test_applications_do_not_see_each_other(make: Make) -> None:
    names = ["", "App", "app_2", "Größe", "my app", "my-app", "x" * 80, "x" * 81]
    recorders = [make(name).application_recorder() for name in names]

    for number, recorder in enumerate(recorders):
        recorder.insert_events([stored_event(topic=str(number))])

    for number, recorder in enumerate(recorders):
        assert [n.topic for n in recorder.select_notifications(1, 9)] == [str(number)]
        assert recorder.events.name.startswith("es_")


@given(st.text(max_size=70), st.text(max_size=70))
def test_two_applications_never_share_a_table(first: str, second: str) -> None:
    names = [
        table_name(name, purpose)
        for name in {first.lower(), second.lower()}
        for purpose in ("events", "snapshots", "tracking")
    ]

    assert len(set(names)) == len(names)
    assert max(len(name.encode()) for name in names) <= 63
    assert not {"es_keys", "es_positions"} & set(names)


@pytest.mark.parametrize(
    "purpose", ["", "keys", "cart_events", "Cart", "x" * 17, 'a"b']
)
def test_a_purpose_that_could_collide_is_refused(purpose: str) -> None:
    with pytest.raises(ProgrammingError, match="cannot be part of the name"):
        table_name("App", purpose)


@pytest.mark.parametrize("application_first", [True, False])
def test_a_store_and_an_application_share_a_database(
    empty_url: str, tmp_path: Path, application_first: bool
) -> None:
    def use_store() -> None:
        with open_at(empty_url, tmp_path) as store:
            session = store.session(user_id="ada", session_id="s")
            session.append(refold.UserInput(text="x"))
            assert session.verify().problems == []

    def use_application() -> None:
        with factory(empty_url, "App") as application_factory:
            application_factory.application_recorder().insert_events([stored_event()])
            application_factory.close()

    steps = [use_application, use_store]
    for step in steps if application_first else reversed(steps):
        step()
    use_store()
    use_application()


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()

    with pytest.raises(OperationalError, match="another program"):
        factory(f"sqlite:///{path}", "App").application_recorder()

    assert path.read_bytes() == before


def test_a_server_that_is_not_there_is_an_error_of_the_library(tmp_path: Path) -> None:
    application_factory = factory(f"postgresql://x:secret@/db?host={tmp_path}", "App")

    with pytest.raises(OperationalError, match="cannot be reached") as caught:
        application_factory.application_recorder()
    application_factory.close()

    assert "secret" not in str(caught.value)


def test_a_closed_factory_reports_that_it_is_closed(make: Make) -> None:
    application_factory = make()
    recorder = application_factory.application_recorder()
    application_factory.close()

    with pytest.raises(OperationalError, match="was closed"):
        recorder.max_notification_id()


def test_progress_and_events_are_written_together_or_not_at_all(make: Make) -> None:
    recorder = make().process_recorder()
    event = stored_event()
    recorder.insert_events([event], tracking=Tracking("up", 1))

    with pytest.raises(IntegrityError, match="already processed"):
        recorder.insert_events([stored_event()], tracking=Tracking("up", 1))
    with pytest.raises(IntegrityError, match="is taken"):
        recorder.insert_events([event], tracking=Tracking("up", 2))

    assert recorder.max_tracking_id("up") == 1
    assert [n.id for n in recorder.select_notifications(1, 9)] == [1]


def test_tracking_is_never_dropped_silently(make: Make) -> None:
    recorder = make().application_recorder()

    with pytest.raises(ProgrammingError, match="process_recorder"):
        recorder.insert_events([stored_event()], tracking=Tracking("up", 1))

    assert recorder.max_notification_id() is None


def test_an_error_in_a_view_rolls_its_tracking_back(make: Make) -> None:
    recorder: SqlTrackingRecorder = make().tracking_recorder()

    with (
        pytest.raises(ValueError, match="mine"),
        recorder.transaction(Tracking("up", 1)),
    ):
        raise ValueError("mine")

    assert recorder.max_tracking_id("up") is None


def test_an_application_is_configured_by_its_environment(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSISTENCE_MODULE", MODULE)
    monkeypatch.setenv("REFOLD_DB", empty_url)

    with Application[UUID]() as app:
        aggregate = Aggregate()
        (recording,) = app.save(aggregate)
        assert app.repository.get(aggregate.id) == aggregate
        assert recording.notification.id == 1
        section: Any = app.notification_log["1,10"]
        assert [item.id for item in section.items] == [1]
        assert inspect.getmodule(type(app.factory)) is not None


def test_only_tables_of_applications_are_made(make: Make) -> None:
    application_factory = make()
    application_factory.process_recorder()
    application_factory.aggregate_recorder("snapshots")

    with application_factory.database.transaction() as connection:
        names = tables_of(connection).get_table_names(
            schema=application_factory.database.schema
        )

    assert sorted(name for name in names if name.startswith("es_")) == [
        "es_app_events",
        "es_app_snapshots",
        "es_app_tracking",
        "es_keys",
        "es_positions",
    ]


def test_a_role_that_may_not_make_tables_can_use_them(
    postgres_url: str, postgres: Postgres
) -> None:
    role = f"app_{uuid4().hex[:12]}"
    with factory(postgres_url, "App") as application_factory:
        application_factory.process_recorder()
        application_factory.close()
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'made-up'")
        for grant in (
            "USAGE ON SCHEMA refold_es",
            "SELECT ON ALL TABLES IN SCHEMA refold_es",
            "INSERT ON refold_es.es_app_events, refold_es.es_app_tracking",
            "UPDATE ON refold_es.es_app_tracking, refold_es.es_positions",
        ):
            owner.execute(f"GRANT {grant} TO {role}")
    parts = urlsplit(postgres_url)
    _, _, host = parts.netloc.rpartition("@")
    limited = urlunsplit(parts._replace(netloc=f"{role}:made-up@{host}"))

    with factory(limited, "App") as application_factory:
        recorder = application_factory.process_recorder()
        ids = recorder.insert_events([stored_event()], tracking=Tracking("up", 1))
        with pytest.raises(PersistenceError, match="insufficient privilege"):
            application_factory.aggregate_recorder("snapshots")
        application_factory.close()
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute(f"DROP OWNED BY {role}")
        owner.execute(f"DROP ROLE {role}")

    assert ids == [1]


def test_settings_of_the_library_that_cannot_be_used_are_refused(make: Make) -> None:
    with pytest.raises(InfrastructureFactoryError, match="CREATE_TABLE"):
        make(CREATE_TABLE="maybe")
    with pytest.raises(InfrastructureFactoryError, match="nope:Nope"):
        make(PROCESS_RECORDER_TOPIC="nope:Nope").process_recorder()
