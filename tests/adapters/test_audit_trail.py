"""Records are written soon, once and in order, and no append ever waits for them."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import make_url

import refold
from refold.adapters.log import EncryptedLog
from refold.adapters.sql.access_log import (
    BATCH,
    MOST,
    OVERFLOW,
    AccessNames,
    StoredTrail,
)
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.sqlite import SqliteDatabase
from refold.domain.access_log import Access, AccessRecord, AccessSink
from refold.domain.errors import StoreUnavailable
from refold.store import SessionStore
from refold.testing import memory_log
from tests.support import warm
from tests.support.auditing import Table
from tests.support.stores import lines, open_at
from tests.support.waiting import PATIENCE_SEC, until

APPENDED = "session_append_event"


class Gate(Table):
    """A sink that blocks until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.opened = threading.Event()

    def write(self, records: Sequence[AccessRecord]) -> None:
        self.asked.set()
        self.opened.wait()
        super().write(records)


class Failing(Table):
    """A sink that fails until it is repaired."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = True
        self.tries = threading.Semaphore(0)

    def write(self, records: Sequence[AccessRecord]) -> None:
        self.tries.release()
        if self.fails:
            raise StoreUnavailable("it is away", remedy="wait")
        super().write(records)


def trail(*sinks: AccessSink, most: int = MOST, every: float = 0.01) -> StoredTrail:
    log = memory_log()
    assert isinstance(log, EncryptedLog)
    ticks = iter(range(1_000_000))
    rows = sinks[0] if sinks and isinstance(sinks[0], Table) else Table()
    names = AccessNames(log.keys)
    clock = lambda: 1_700_000_000_000_000 + next(ticks)  # noqa: E731  # it is short
    return StoredTrail(sinks, rows, names, clock=clock, most=most, every=every)


def add_records(trail: StoredTrail, numbers: Sequence[int]) -> None:
    for number in numbers:
        trail.note(Access("session_load", counts={"n": number}))


def written_numbers(rows: Table) -> list[int]:
    return [record.meta.get("n", -1) for record in rows.find(limit=99_999)]


def test_flush_writes_all_records_in_order() -> None:
    rows = Table()
    audit = trail(rows, every=3600)

    add_records(audit, range(3 * BATCH + 7))
    audit.flush()

    assert written_numbers(rows) == list(range(3 * BATCH + 7))


def test_records_are_written_without_a_flush() -> None:
    gate = Gate()
    audit = trail(gate)

    add_records(audit, range(3))

    assert gate.asked.wait(PATIENCE_SEC)
    gate.opened.set()
    audit.close()
    assert written_numbers(gate) == [0, 1, 2]


def test_a_batch_does_not_wait_for_its_time() -> None:
    gate = Gate()
    audit = trail(gate, every=3600)

    add_records(audit, range(BATCH))

    assert gate.asked.wait(PATIENCE_SEC)
    gate.opened.set()
    audit.close()


def test_close_writes_waiting_records_and_ends_the_thread() -> None:
    rows = Table()
    audit = trail(rows, every=3600)
    add_records(audit, range(5))

    audit.close()
    audit.close()
    add_records(audit, [99])

    assert written_numbers(rows) == [0, 1, 2, 3, 4]
    assert "refold-audit" not in {thread.name for thread in threading.enumerate()}


def test_no_caller_waits_for_a_blocked_sink() -> None:
    gate = Gate()
    audit = trail(gate, most=10)
    add_records(audit, [0])
    assert gate.asked.wait(PATIENCE_SEC)

    add_records(audit, range(1, 101))

    gate.opened.set()
    audit.close()
    records = gate.find(limit=999)
    assert written_numbers(gate) == [*range(11), -1]
    assert (records[-1].event, records[-1].meta) == (OVERFLOW, {"lost": 90})
    assert (records[-1].status, records[-1].level) == ("error", "ERROR")


def test_a_failed_write_is_repeated_with_the_same_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing = Failing()
    other = Table()
    audit = trail(failing, other)
    add_records(audit, range(4))
    for _ in range(3):
        assert failing.tries.acquire(timeout=PATIENCE_SEC)
    add_records(audit, range(4, 8))

    failing.fails = False
    audit.close()

    assert written_numbers(failing) == written_numbers(other) == list(range(8))
    assert caplog.text.count("audit records wait") == 1


def test_close_reports_records_that_cannot_be_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    audit = trail(Failing())
    add_records(audit, range(4))

    audit.close()

    assert "4 audit records could not be written" in caplog.text


def test_records_of_one_moment_keep_their_order() -> None:
    rows = Table()
    log = memory_log()
    audit = StoredTrail([rows], rows, AccessNames(log.keys), clock=lambda: 1)

    add_records(audit, range(50))
    audit.close()

    assert written_numbers(rows) == list(range(50))


def test_a_record_made_during_another_is_kept() -> None:
    rows = Table()
    log = memory_log()
    within = iter([7])

    def clock() -> int:
        add_records(audit, list(within))  # as the garbage collector may
        return 1

    audit = StoredTrail([rows], rows, AccessNames(log.keys), clock=clock)

    add_records(audit, [1])
    audit.close()

    assert sorted(written_numbers(rows)) == [1, 7]


def test_records_of_concurrent_threads_are_all_written() -> None:
    rows = Table()
    audit = trail(rows)

    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(lambda n: add_records(audit, range(n, n + 50)), range(0, 400, 50))
        )
    audit.close()

    assert sorted(written_numbers(rows)) == list(range(400))


def test_concurrent_flushes_all_return() -> None:
    rows = Table()
    audit = trail(rows)

    def work(number: int) -> None:
        add_records(audit, [number])
        audit.flush()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(200)))

    assert sorted(written_numbers(rows)) == list(range(200))
    audit.close()


def test_an_append_does_not_wait_for_its_record() -> None:
    gate = Gate()
    with refold.open("memory://", access_log=gate) as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.UserInput(text="x"))
        assert gate.asked.wait(PATIENCE_SEC)

        for _ in range(20):
            session.append(refold.UserInput(text="x"))

        assert gate.find(limit=99) == []
        gate.opened.set()
    assert len(gate.find(limit=99)) == 21


def count_appended(store: SessionStore, session_id: str) -> int:
    records = store.access_log.records("ada", session_id=session_id)
    return sum(record.event == APPENDED for record in records)


def test_kill_9_loses_only_the_newest_records(store_url: str, tmp_path: Path) -> None:
    with open_at(store_url, tmp_path) as store:
        writer = warm.module("tests.support.audit_writer", "load", store_url)
        acknowledged = int(lines(writer, 30)[-1])

        def recorded() -> bool:
            nonlocal acknowledged
            acknowledged = int(lines(writer, 1)[-1])
            return bool(list(store.access_log.records()))

        until(recorded, "the first record")

        writer.send_signal(signal.SIGKILL)
        writer.communicate()

        appended_records = [
            record for record in store.access_log.records() if record.event == APPENDED
        ]
        versions = [record.state_version for record in appended_records]
        assert versions == list(range(1, len(versions) + 1))
        assert (
            len(store.session(user_id="ada", session_id="s").events()) >= acknowledged
        )
        assert acknowledged - len(versions) <= MOST + BATCH
        store.session(user_id="ada", session_id="s").append(refold.UserInput(text="on"))
        assert [proof for _, proof in store.verify() if proof.problems] == []


def test_a_process_that_ends_without_closing_loses_nothing(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path):
        pass
    code = "import sys; from tests.support.audit_writer import end; end(sys.argv[1])"
    ran = run_plain_python(code, store_url)

    assert ran == ""
    with open_at(store_url, tmp_path) as store:
        assert count_appended(store, "s") == 3


def run_plain_python(code: str, *arguments: str) -> str:
    """Return the stderr of a separate interpreter that ends normally."""
    import subprocess
    import sys

    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=warm.ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stderr


def test_a_forked_child_writes_only_its_own_records(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path):
        pass
    forking = warm.module("tests.support.audit_writer", "fork", store_url)

    _, errors = forking.communicate()

    assert forking.returncode == 0, errors
    with open_at(store_url, tmp_path) as store:
        assert count_appended(store, "parent") == 2
        assert count_appended(store, "child") == 1


def test_the_destination_of_the_log_is_set_by_words(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with refold.open("memory://", access_log=f"table, file:{path}") as store:
        store.session(user_id="ada", session_id="s").append(refold.UserInput(text="x"))
        assert len(list(store.access_log.records())) == 1

    assert len(path.read_text().splitlines()) == 2  # reading it is the second record


@pytest.mark.parametrize(
    "word", ["tables", "file:", "on", "table;log", "file:/no/dir/x"]
)
def test_an_unknown_destination_is_refused(word: str) -> None:
    with pytest.raises(refold.InvalidConfiguration, match="audit"):
        refold.open("memory://", access_log=word)


def test_lines_go_to_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "refold.audit")
    with refold.open("memory://", access_log="log") as store:
        store.session(user_id="ada", session_id="s").append(refold.UserInput(text="x"))

    assert [record.name for record in caplog.records] == ["refold.audit"]


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_record_does_not_change_the_durability_of_appends(
    store_url: str,
) -> None:
    dialect = SqliteDatabase(make_url(store_url))
    level = "PRAGMA synchronous"

    with dialect.writing_relaxed() as connection:
        assert connection.exec_driver_sql(level).scalar() == 1
    with pytest.raises(ZeroDivisionError), dialect.writing_relaxed():
        _ = 1 // 0

    with dialect.engine().connect() as connection:
        assert connection.exec_driver_sql(level).scalar() == 2
    dialect.close()


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_record_does_not_wait_for_the_servers_disk(store_url: str) -> None:
    dialect = PostgresDatabase(make_url(store_url))
    level = "SHOW synchronous_commit"

    with dialect.writing_relaxed() as connection:
        assert connection.exec_driver_sql(level).scalar() == "off"

    with dialect.engine().connect() as connection:
        assert connection.exec_driver_sql(level).scalar() == "on"
    dialect.close()
