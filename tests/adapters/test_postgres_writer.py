"""A write past the driver's cursors happens once, or not at all."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread, Timer
from typing import NamedTuple

import psycopg
import pytest
from sqlalchemy import make_url

from refold.adapters.log import EncryptedLog
from refold.adapters.rows import Batch, BlobRow, Moved, WriteOutcome, Wrote
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.recorder import Recorder
from refold.domain.errors import StoreUnavailable
from refold.domain.events import UserInput
from refold.domain.ids import StreamId
from refold.domain.ports import Duplicate
from refold.domain.seals import Use
from refold.testing import append_to, memory_log, texts, user_inputs
from tests.support.postgres import Postgres
from tests.support.statements import Wire
from tests.support.stores import open_at


class WriterUnderTest(NamedTuple):
    """A log on PostgreSQL, its writing connection, and another client of the server."""

    log: EncryptedLog
    database: PostgresDatabase
    other: psycopg.Connection
    url: str

    def batch(self, name: str, *lines: str) -> Batch:
        """Return the next lines of that session as a batch."""
        stream = StreamId("ada", name)
        self.log.keys.session(*stream[:2], now=1)
        batch: Batch = self.log.batch(
            append_to(self.log.head(stream), *user_inputs(*lines))
        )
        return batch

    def write(self, *batches: Batch) -> list[WriteOutcome | Exception]:
        """Write the batches as one group."""
        return self.database.write_group(batches)

    def lines(self, name: str) -> list[str]:
        """Return the lines of that session."""
        return texts(self.log.read(StreamId("ada", name)))

    def backend(self) -> int:
        """The server's process that writes."""
        connection = self.database._writer._connection
        assert connection is not None
        return connection.driver.info.backend_pid


@contextmanager
def opened(url: str) -> Iterator[WriterUnderTest]:
    database = PostgresDatabase(make_url(url))
    log = memory_log(Recorder(database))
    with psycopg.connect(url, autocommit=True) as other:
        yield WriterUnderTest(log, database, other, url)
    log.close()


@pytest.fixture
def written(_postgres_store: str) -> Iterator[WriterUnderTest]:
    with opened(_postgres_store) as written:
        yield written


def begin(written: WriterUnderTest, *names: str) -> None:
    assert all(
        isinstance(outcome, Wrote)
        for outcome in written.write(*(written.batch(name, "a") for name in names))
    )


Batches = Callable[[WriterUnderTest], list[Batch]]
ALONE: Batches = lambda written: [written.batch("one", "b")]  # noqa: E731 - a case
GROUP: Batches = lambda written: [  # noqa: E731 - a case
    written.batch(name, "b") for name in ("one", "new", "two")
]
EACH_WAY = pytest.mark.parametrize("batches_of", [ALONE, GROUP], ids=["alone", "group"])


@EACH_WAY
@pytest.mark.parametrize(
    "forget", ["DISCARD ALL", "DEALLOCATE ALL"], ids=["discard", "deallocate"]
)
def test_dropped_statements_are_prepared_again(
    written: WriterUnderTest, batches_of: Batches, forget: str
) -> None:
    begin(written, "one", "two")
    written.write(*batches_of(written))
    connection = written.database._writer._connection
    assert connection is not None
    connection.driver.execute(forget)

    outcomes = written.write(*batches_of(written))

    assert [type(outcome) for outcome in outcomes] == [Wrote] * len(outcomes)
    assert written.lines("one") == ["a", "b", "b"]


@EACH_WAY
def test_a_statement_that_another_client_prepared_is_used(
    written: WriterUnderTest, batches_of: Batches
) -> None:
    begin(written, "one", "two")
    written.write(*batches_of(written))
    connection = written.database._writer._connection
    assert connection is not None
    connection._prepared.clear()

    outcomes = written.write(*batches_of(written))

    assert [type(outcome) for outcome in outcomes] == [Wrote] * len(outcomes)
    assert written.lines("one") == ["a", "b", "b"]


@EACH_WAY
def test_a_closed_connection_is_replaced(
    written: WriterUnderTest, batches_of: Batches
) -> None:
    begin(written, "one", "two")
    pid = written.backend()
    batches = batches_of(written)
    written.other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))

    outcomes = written.write(*batches)

    assert [type(outcome) for outcome in outcomes] == [Wrote] * len(outcomes)
    assert written.lines("one") == ["a", "b"]
    assert written.backend() != pid


@EACH_WAY
def test_a_writer_disconnected_during_a_write_asks_for_the_outcome(
    written: WriterUnderTest, batches_of: Batches
) -> None:
    begin(written, "one", "two")
    batches = batches_of(written)
    pid = written.backend()
    lock = "SELECT 1 FROM refold.heads WHERE session_id='one' FOR UPDATE"
    cut = "SELECT pg_terminate_backend(%s, 5000)"
    with psycopg.connect(written.url) as holder:
        holder.execute(lock)

        def release_lock() -> None:
            holder.execute(cut, (pid,))
            holder.commit()

        timer = Timer(0.3, release_lock)
        timer.start()
        outcomes = written.write(*batches)
        timer.join()

    assert [type(outcome) for outcome in outcomes] == [Wrote] * len(outcomes)
    assert written.lines("one") == ["a", "b"]


@EACH_WAY
def test_a_refused_commit_is_not_reported_as_written(
    written: WriterUnderTest, batches_of: Batches
) -> None:
    begin(written, "one", "two")
    batches = batches_of(written)
    written.other.execute(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'no'; END $$"
    )
    written.other.execute(
        "CREATE CONSTRAINT TRIGGER no AFTER INSERT ON refold.events DEFERRABLE "
        "INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.session_id = 'one') "
        "EXECUTE FUNCTION no()"
    )

    first, *rest = written.write(*batches)

    assert isinstance(first, StoreUnavailable)
    assert [type(outcome) for outcome in rest] == [Wrote] * len(rest)
    assert written.lines("one") == ["a"]


@EACH_WAY
def test_ctrl_c_during_a_write_ends_it_and_affects_no_later_one(
    written: WriterUnderTest, batches_of: Batches
) -> None:
    begin(written, "one", "two")
    batches = batches_of(written)
    lock = "SELECT 1 FROM refold.heads WHERE session_id='one' FOR UPDATE"
    # A process started in the background ignores it unless set otherwise.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with written.other.transaction():
            written.other.execute(lock)
            timer = Timer(0.3, signal.raise_signal, (signal.SIGINT,))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                written.write(*batches)
            timer.join()
    finally:
        signal.signal(signal.SIGINT, before)

    (outcome,) = written.write(written.batch("one", "later"))

    assert isinstance(outcome, Wrote)
    assert written.lines("one") == ["a", "later"]


def with_idempotency_key(batch: Batch, key: bytes) -> Batch:
    first = batch.events[0].seq
    last = batch.events[-1].seq
    receipts = (Use(key, first, last),)
    return replace(batch, append_receipt_address=key, receipts=receipts)


def test_each_batch_of_a_group_has_its_own_outcome(written: WriterUnderTest) -> None:
    begin(written, "goes on", "moved", "used", "with blob")
    used = with_idempotency_key(written.batch("used", "b"), b"key")
    written.write(used)
    blob = BlobRow(b"address", b"sealed", 6)
    batches = [
        replace(written.batch("with blob", "b"), blobs=(blob,)),
        written.batch("moved", "b"),
        with_idempotency_key(written.batch("used", "c"), b"key"),
        written.batch("new", "b", "c"),
        written.batch("goes on", "b", "c"),
        with_idempotency_key(written.batch("goes on", "d"), b"other"),
    ]
    written.write(written.batch("moved", "sooner"))

    outcomes = written.write(*batches)

    assert [type(outcome) for outcome in outcomes] == [
        Wrote,
        Moved,
        Duplicate,
        Wrote,
        Wrote,
        Moved,
    ]
    assert outcomes[2] == Duplicate(2, 2)
    assert written.lines("goes on") == ["a", "b", "c"]
    assert written.lines("moved") == ["a", "sooner"]
    assert written.lines("new") == ["b", "c"]
    assert written.lines("with blob") == ["a", "b"]


def test_events_of_one_group_have_distinct_positions(written: WriterUnderTest) -> None:
    names = [f"s{number}" for number in range(9)]
    begin(written, *names)
    written.write(*(written.batch(name, "b", "c") for name in [*names, "new"]))

    # A transaction of another test on the same server delays the newest positions.
    with written.log.recorder.subscribe(gt=0) as subscription:
        places = [next(subscription).id for _ in range(9 + 9 * 2 + 2)]

    assert len(set(places)) == len(places)
    assert places == sorted(places)


def test_a_group_is_one_statement_and_one_round_trip(
    request: pytest.FixtureRequest,
) -> None:
    wire = Wire(request.getfixturevalue("_postgres_store"))
    names = [f"s{number}" for number in range(16)]
    with opened(wire.url) as written:
        begin(written, *names)
        for _ in range(2):
            written.write(*(written.batch(name, "b") for name in names))
        batches = [written.batch(name, "c", "d") for name in names]

        with wire.listen() as heard:
            written.write(*batches)

    assert heard.counts == (1, 1)
    wire.close()


def test_a_group_reads_no_other_head(written: WriterUnderTest) -> None:
    names = [f"s{number}" for number in range(40)]
    begin(written, *names)
    batches = [written.batch(name, "b") for name in names[:16]]
    connection = written.database._writer._connection
    assert connection is not None

    def head_reads() -> tuple[int, int]:
        connection.driver.execute("SELECT pg_stat_force_next_flush()")
        connection.driver.execute("SELECT 1")
        query = "SELECT seq_scan, n_tup_upd FROM pg_stat_user_tables"
        statistics = written.other.execute(f"{query} WHERE relname='heads'").fetchone()
        assert statistics is not None
        return statistics[0], statistics[1]

    scans, updates = head_reads()
    written.write(*batches)

    assert head_reads() == (scans, updates + 16)


def test_the_writing_connection_is_closed_with_the_store(
    written: WriterUnderTest,
) -> None:
    begin(written, "one")
    pid = written.backend()

    written.log.close()

    query = "SELECT count(*) FROM pg_stat_activity WHERE pid=%s"
    for _ in range(100):
        if written.other.execute(query, (pid,)).fetchone() == (0,):
            break
    else:
        pytest.fail("the connection is still there")


def test_reads_work_after_the_server_dropped_statements(
    written: WriterUnderTest,
) -> None:
    begin(written, "one")
    for _ in range(3):
        written.lines("one")
    with written.database.engine().connect() as connection:
        connection.exec_driver_sql("DEALLOCATE ALL")

    assert [written.lines("one") for _ in range(3)] == [["a"]] * 3


def test_a_disconnected_reader_is_replaced(written: WriterUnderTest) -> None:
    begin(written, "one")
    written.lines("one")
    others = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE "
    written.other.execute(
        f"{others} datname=current_database() AND pid<>pg_backend_pid()"
    )

    assert written.lines("one") == ["a"]


def test_a_connection_prepares_repeated_statements_up_to_a_limit(
    written: WriterUnderTest,
) -> None:
    query = "SELECT {} WHERE ?=1"
    for number in [*range(150), *range(150)]:
        written.database.fetch("ada", query.format(number), (1,))

    with written.database.engine().connect() as connection:
        prepared = connection.exec_driver_sql(
            "SELECT count(*) FROM pg_prepared_statements"
        )

        assert prepared.scalar_one() == 100


def test_a_server_that_dies_during_a_commit_leaves_the_outcome_unknown(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    url = own_postgres.create_database("lost")
    attempts = 0
    failures: list[Exception] = []
    with open_at(url, tmp_path) as store:
        session = store.session(user_id="ada", session_id="s")
        never_answer_commits(url)

        def append_until_a_commit_waits() -> None:
            nonlocal attempts
            try:
                while True:
                    attempts += 1
                    key = f"attempt {attempts}"
                    session.append(UserInput(text=key), idempotency_key=key)
            except Exception as error:  # the test examines it below
                failures.append(error)

        thread = Thread(target=append_until_a_commit_waits)
        thread.start()
        wait_for_commit(url)
        assert own_postgres._server is not None
        own_postgres._server.halt(signal.SIGQUIT)
        thread.join()

    own_postgres.run()
    with open_at(url, tmp_path) as store:
        head = store.session(user_id="ada", session_id="s").head()
    assert head.seq == attempts
    (failure,) = failures
    assert isinstance(failure, StoreUnavailable)
    assert "took effect is unknown" in str(failure)
    assert "idempotency key" in str(failure)


def never_answer_commits(url: str) -> None:
    """Make every commit wait for a replica that does not exist.

    The server's checkpointer applies the setting at a moment that no client can
    observe: commits until then still return.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        connection.execute("SELECT pg_reload_conf()")


def wait_for_commit(url: str) -> None:
    """Wait until a commit is on the server's disk and waits for the replica."""
    query = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with psycopg.connect(url, autocommit=True) as connection:
        while not connection.execute(query).fetchone():
            time.sleep(0.02)
