"""No file contains a byte of an erased user: neither names nor ciphertext."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import hyperscan
import psycopg
import pytest

import refold
from refold.adapters import config
from refold.adapters.sql import sqlite as sqlite_cleaning
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.erasure.conftest import WINDOW, fill
from tests.support.operations import log_of
from tests.support.postgres import Postgres
from tests.support.stores import open_at, prepare
from tests.support.talking import talk

USER = "user-7d1f40c2"
OTHER = "other-55aa01"
SESSIONS = [f"session-9e{number:02}c3b" for number in range(12)]
PLANTED = "the quick brown planted value"


def plant(store: SessionStore) -> list[bytes]:
    """Write two users' rows alternately; return samples of USER's ciphertext."""
    fill(store, USER, "session-first-0a")
    for name in SESSIONS:
        for user in (USER, OTHER):
            session = talk(
                store.session(user_id=user, session_id=f"{user[:5]}-{name}"), 6
            )
            session.append(user_inputs(PLANTED), idempotency_key=f"key of {user}")
            session.compact(WINDOW)
    recorder = log_of(store).recorder
    samples = []
    for name in SESSIONS:
        stream = store.session(user_id=USER, session_id=f"{USER[:5]}-{name}").stream
        # Any 32 bytes from inside an encrypted event are unique.
        samples += [row.state[20:52] for row in recorder.select_events(stream)]
    assert len(samples) > 100
    return samples


def needles(samples: list[bytes]) -> list[bytes]:
    """Return every byte string that no file may contain after the erasure."""
    names = [USER, "session-first-0a", *(f"{USER[:5]}-{name}" for name in SESSIONS)]
    return [PLANTED.encode(), *(name.encode() for name in names), *samples]


def files_with(files: Iterator[Path], wanted: list[bytes]) -> dict[str, int]:
    """Return the names of files that contain a needle, with the number of needles.

    One pass searches for all needles: one after the other, 170 took 10 seconds.
    """
    literals = [b"".join(b"\\x%02x" % byte for byte in needle) for needle in wanted]
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=literals,
        ids=list(range(len(literals))),
        elements=len(literals),
        flags=[hyperscan.HS_FLAG_SINGLEMATCH] * len(literals),
    )
    numbers: set[int] = set()
    hits = {}
    for file in files:
        if file.is_file() and (content := file.read_bytes()):
            numbers.clear()
            database.scan(content, match_event_handler=lambda n, *_: numbers.add(n))
            if numbers:
                hits[file.name] = len(numbers)
    return hits


def test_every_needle_is_found_in_files(tmp_path: Path) -> None:
    wanted = [b"\0\xff.*", b"plain", b"missing", b"\n[("]
    (tmp_path / "all").write_bytes(b"some \0\xff.* and plain, plain\n[(" * 2)
    (tmp_path / "one").write_bytes(b"\0\xffx" + b"PLAIN" + b"\n[(")
    (tmp_path / "none").write_bytes(b"")

    assert files_with(tmp_path.rglob("*"), wanted) == {"all": 3, "one": 1}


def test_a_sqlite_store_contains_no_byte_of_an_erased_user(
    sqlite_url: str, tmp_path: Path
) -> None:
    with refold.open(sqlite_url) as store:
        store.session(user_id=OTHER, session_id="first").append(user_inputs("x"))
        samples = plant(store)
        store.seal()
        assert files_with(tmp_path.rglob("*"), needles(samples))

        erased = store.erase(USER, f"{USER} asked", operator=USER)

        assert files_with(tmp_path.rglob("*"), needles(samples)) == {}
        assert erased.cleaned["wal_emptied"]
        assert set(erased.files["files"].values()) == {0}
        assert erased.files["names"] >= 14
    assert files_with(tmp_path.rglob("*"), needles(samples)) == {}
    assert files_with(config.home().rglob("*"), needles(samples)) == {}


def test_an_open_reader_keeps_the_log_and_is_reported(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_cleaning, "_BUSY", 0.1)
    with refold.open(sqlite_url) as store:
        samples = plant(store)
        with (
            log_of(store).recorder.database.engine().connect() as reader
        ):  # held open for the test
            reader.exec_driver_sql("SELECT count(*) FROM events").scalar()
            erased = store.erase(USER, "asked")
            assert erased.cleaned["wal_emptied"] is False

        again = store.erase(USER, "asked")

        assert again.cleaned["wal_emptied"]
        assert files_with(tmp_path.rglob("*"), needles(samples)) == {}


def test_a_name_shared_with_others_is_not_reported_as_a_trace(sqlite_url: str) -> None:
    with refold.open(sqlite_url) as store:
        for user in (USER, OTHER):
            store.session(user_id=user, session_id="session-of-both").append(
                user_inputs("x")
            )

        erased = store.erase(USER, "asked")

        assert set(erased.files["files"].values()) == {0}
        assert not erased.cleaned["vacuum"]


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A separate server that keeps little of its log."""
    with Postgres.start(min_wal_size="32MB", max_wal_size="32MB") as started:
        yield started


@pytest.fixture
def data(server: Postgres) -> Path:
    """The directory of the server's files."""
    (host,) = parse_qs(urlsplit(server.url).query)["host"]
    return Path(host) / "data"


def test_a_vacuumed_postgresql_database_contains_no_byte_of_an_erased_user(
    server: Postgres, data: Path, tmp_path: Path
) -> None:
    url = prepare(server.create_database("scanned"), tmp_path)
    with open_at(url, tmp_path) as store:
        samples = plant(store)
        run(url, "CHECKPOINT")
        assert files_with((data / "base").rglob("*"), needles(samples))

        erased = store.erase(USER, "asked", vacuum=True)

        assert erased.cleaned["vacuum"]
        run(url, "CHECKPOINT")
        assert files_with((data / "base").rglob("*"), needles(samples)) == {}
        assert files_with(tmp_path.rglob("*"), needles(samples)) == {}
        # The write-ahead log keeps its records until its segments are used again.
        in_wal = files_with((data / "pg_wal").rglob("*"), needles(samples))
        assert in_wal
        for _ in range(200):
            if not files_with((data / "pg_wal").rglob("*"), needles(samples)):
                break
            churn(url)
        assert files_with((data / "pg_wal").rglob("*"), needles(samples)) == {}


def test_without_a_vacuum_the_remaining_steps_are_reported(
    postgres_url: str, tmp_path: Path
) -> None:
    with open_at(postgres_url, tmp_path) as store:
        store.session(user_id=USER, session_id="s").append(user_inputs("x"))

        erased = store.erase(USER, "asked")

        assert "VACUUM FULL refold.events" in erased.cleaned["advice"]


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def churn(url: str) -> None:
    """Write a segment of the log, and let the server use an old one again."""
    run(
        url,
        "CREATE TABLE IF NOT EXISTS public.churn (filler text)",
        "INSERT INTO public.churn SELECT repeat(md5(i::text), 60) "
        "FROM generate_series(1, 7000) i",
        "TRUNCATE public.churn",
        "SELECT pg_switch_wal()",
        "CHECKPOINT",
    )


APPEND_AFTER_ANOTHER_PROCESS = """
import sys, subprocess
import refold
from refold.testing.event_log import user_inputs
url, other = sys.argv[1:]
with refold.open(url) as store:
    session = store.session(user_id="ada", session_id="s")
    session.append(user_inputs("before"))
    store.session(user_id="bob", session_id="t").append(user_inputs("gone"))
    store.erase("bob", "bob asked", operator="ada")
    subprocess.run([sys.executable, "-c", other, url], check=True)
    session.append(user_inputs("after"))
    subprocess.run([sys.executable, "-c", other, url], check=True)
"""
OTHER_WRITER = """
import sys
import refold
from refold.testing.event_log import user_inputs
with refold.open(sys.argv[1]) as store:
    store.session(user_id="ada", session_id="s").append(user_inputs("other"))
"""


def test_appends_after_an_erasure_and_another_process_are_kept(
    sqlite_url: str,
) -> None:
    command = [
        sys.executable,
        "-c",
        APPEND_AFTER_ANOTHER_PROCESS,
        sqlite_url,
        OTHER_WRITER,
    ]
    subprocess.run(command, check=True)

    with refold.open(sqlite_url) as store:
        events = store.session(user_id="ada", session_id="s").events()
        texts = [event.payload.payload()["text"] for event in events]
    assert texts == ["before", "other", "after", "other"]


CLEAN_DURING_SEARCH = """
import sys, threading
import refold
from refold.testing.event_log import user_inputs
from tests.support.operations import log_of
with refold.open(sys.argv[1]) as store:
    session = store.session(user_id="ada", session_id="s")
    session.append(user_inputs("x"))
    database = log_of(store).recorder.database
    done = threading.Event()
    def search():
        while not done.is_set():
            database.found_in_files(["a name that is not there"])
    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        session.append(user_inputs("y" * 2000))
        database.clean(vacuum=False)
    done.set()
    for thread in threads:
        thread.join()
"""


def test_a_log_may_be_truncated_during_the_search(sqlite_url: str) -> None:
    subprocess.run([sys.executable, "-c", CLEAN_DURING_SEARCH, sqlite_url], check=True)
