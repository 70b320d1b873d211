"""The test cases that the library ships for persistence modules pass, unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from eventsourcing.persistence import Tracking
from eventsourcing.tests import application, persistence, projection
from eventsourcing.utils import Environment
from sqlalchemy import BigInteger, Column, Table, Text, insert, select, update

from refold.adapters.eventsourcing import (
    Factory,
    SqlAggregateRecorder,
    SqlApplicationRecorder,
    SqlProcessRecorder,
    SqlTrackingRecorder,
)
from tests.support.eventsourcing import (
    MODULE,
    OnPostgres,
    OnSqlite,
    environment,
    factory,
)


class Made:
    """Makes recorders of an application named App, and closes them after the test."""

    url: str

    @pytest.fixture(autouse=True)
    def _closing(self) -> Iterator[None]:
        self._factories: list[Factory] = []
        yield
        for made_factory in self._factories:
            made_factory.close()

    def factory(self) -> Factory:
        self._factories.append(factory(self.url, "App"))
        return self._factories[-1]


class Aggregates(Made):
    def create_recorder(self) -> SqlAggregateRecorder:
        return self.factory().aggregate_recorder()


class Snapshots(Made):
    def create_recorder(self) -> SqlAggregateRecorder:
        return self.factory().aggregate_recorder("snapshots")


class Applications(Made):
    def create_recorder(self) -> SqlApplicationRecorder:
        return self.factory().application_recorder()


class Trackings(Made):
    def create_recorder(self) -> SqlTrackingRecorder:
        recorder = self.factory().tracking_recorder()
        assert type(recorder) is SqlTrackingRecorder
        return recorder


class Processes(Made):
    def create_recorder(self) -> SqlProcessRecorder:
        return self.factory().process_recorder()


class Subscribing:
    optional_test_insert_subscribe: Any

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class TestAggregatesOnSqlite(
    Aggregates, OnSqlite, persistence.AggregateRecorderTestCase
): ...


class TestAggregatesOnPostgres(
    Aggregates, OnPostgres, persistence.AggregateRecorderTestCase
): ...


class TestSnapshotsOnSqlite(
    Snapshots, OnSqlite, persistence.AggregateRecorderTestCase
): ...


class TestSnapshotsOnPostgres(
    Snapshots, OnPostgres, persistence.AggregateRecorderTestCase
): ...


class TestApplicationsOnSqlite(
    Subscribing,
    Applications,
    OnSqlite,
    persistence.ApplicationRecorderTestCase[SqlApplicationRecorder],
): ...


class TestApplicationsOnPostgres(
    Subscribing,
    Applications,
    OnPostgres,
    persistence.ApplicationRecorderTestCase[SqlApplicationRecorder],
): ...


class TestNonInterleavingOnSqlite(
    Applications, OnSqlite, persistence.NonInterleavingNotificationIDsBaseCase
): ...


class TestNonInterleavingOnPostgres(
    Applications, OnPostgres, persistence.NonInterleavingNotificationIDsBaseCase
): ...


class TestTrackingOnSqlite(
    Trackings, OnSqlite, persistence.TrackingRecorderTestCase
): ...


class TestTrackingOnPostgres(
    Trackings, OnPostgres, persistence.TrackingRecorderTestCase
): ...


class TestProcessesOnSqlite(
    Processes, OnSqlite, persistence.ProcessRecorderTestCase
): ...


class TestProcessesOnPostgres(
    Processes, OnPostgres, persistence.ProcessRecorderTestCase
): ...


class Counts(SqlTrackingRecorder, projection.EventCountersView):
    """The view that the library's cases ask for: two counters."""

    def define_tables(self) -> None:
        super().define_tables()
        self.counts = Table(
            self.table_name("counts"),
            self.metadata,
            Column("kind", Text, primary_key=True),
            Column("count", BigInteger, nullable=False),
        )

    def get_created_event_counter(self) -> int:
        return self._count("created")

    def get_subsequent_event_counter(self) -> int:
        return self._count("subsequent")

    def incr_created_event_counter(self, tracking: Tracking) -> None:
        self._increment("created", tracking)

    def incr_subsequent_event_counter(self, tracking: Tracking) -> None:
        self._increment("subsequent", tracking)

    def _count(self, kind: str) -> int:
        counts = self.counts.c
        rows = self.database.read(select(counts.count).where(counts.kind == kind))
        return int(rows[0][0]) if rows else 0

    def _increment(self, kind: str, tracking: Tracking) -> None:
        counts = self.counts
        more = update(counts).where(counts.c.kind == kind)
        with self.transaction(tracking) as connection:
            if not connection.execute(more.values(count=counts.c.count + 1)).rowcount:
                connection.execute(insert(counts).values(kind=kind, count=1))


class Factories:
    """The requirements of the library's test cases of a factory."""

    url: str

    def setUp(self) -> None:  # the library's
        self.env: Environment = environment(self.url, "App")
        super().setUp()  # type: ignore[misc]  # the case's

    def expected_factory_class(self) -> type[Factory]:
        return Factory

    def expected_aggregate_recorder_class(self) -> type[SqlAggregateRecorder]:
        return SqlAggregateRecorder

    def expected_application_recorder_class(self) -> type[SqlApplicationRecorder]:
        return SqlApplicationRecorder

    def expected_tracking_recorder_class(self) -> type[SqlTrackingRecorder]:
        return SqlTrackingRecorder

    def tracking_recorder_subclass(self) -> type[SqlTrackingRecorder]:
        return Counts

    def expected_process_recorder_class(self) -> type[SqlProcessRecorder]:
        return SqlProcessRecorder


class TestFactoryOnSqlite(
    Factories, OnSqlite, persistence.InfrastructureFactoryTestCase[Factory]
): ...


class TestFactoryOnPostgres(
    Factories, OnPostgres, persistence.InfrastructureFactoryTestCase[Factory]
): ...


class Views(Made):
    def construct_event_counters_view(self) -> Counts:
        view = self.factory().tracking_recorder(Counts)
        assert type(view) is Counts
        return view


class TestViewOnSqlite(Views, OnSqlite, projection.EventCountersViewTestCase): ...


class TestViewOnPostgres(Views, OnPostgres, projection.EventCountersViewTestCase): ...


class TestProjectionOnSqlite(
    OnSqlite, projection.AggregateEventCountersProjectionTestCase
):
    view_class = Counts


class TestProjectionOnPostgres(
    OnPostgres, projection.AggregateEventCountersProjectionTestCase
):
    view_class = Counts


class TestEventSourcedProjectionOnSqlite(
    OnSqlite, projection.EventSourcedProjectionTestCase
): ...


class TestEventSourcedProjectionOnPostgres(
    OnPostgres, projection.EventSourcedProjectionTestCase
): ...


class Example:
    expected_factory_topic: ClassVar = f"{MODULE}:Factory"


class TestExampleOnSqlite(
    Example, OnSqlite, application.ExampleApplicationTestCase
): ...


class TestExampleOnPostgres(
    Example, OnPostgres, application.ExampleApplicationTestCase
): ...


@pytest.mark.filterwarnings("default")  # one case asks for a deprecated name
class TestApplicationOnSqlite(OnSqlite, application.ApplicationTestCase): ...


@pytest.mark.filterwarnings("default")  # the same
class TestApplicationOnPostgres(OnPostgres, application.ApplicationTestCase): ...
