"""Reads and appends are correct through a pooler in transaction mode."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

import refold
from refold.adapters.log import EncryptedLog
from refold.adapters.sql.keystore import SqlKeyStore
from refold.adapters.sql.libpq import PsycopgConnection
from refold.adapters.sql.postgres import PostgresDatabase
from refold.domain.errors import InvalidConfiguration, StoreUnavailable
from refold.store import SessionStore
from tests.support.stores import open_at

_CONFIGURATION = """\
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = 2
ignore_startup_parameters = extra_float_digits
"""


@pytest.fixture
def pooled_url(postgres_url: str, tmp_path: Path) -> Iterator[str]:
    """The database behind a real PgBouncer in transaction mode."""
    with pooler(postgres_url, tmp_path, mode="transaction") as url:
        yield url


@contextmanager
def pooler(postgres_url: str, folder: Path, *, mode: str) -> Iterator[str]:
    """Start a real PgBouncer with two connections to the server, and yield its URL."""
    program = shutil.which("pgbouncer", path=f"{os.defpath}:/usr/sbin")
    if program is None:
        pytest.fail("PgBouncer is missing: sudo apt-get install pgbouncer")
    parts = urlsplit(postgres_url)
    name = parts.username or "postgres"
    host = parse_qs(parts.query).get("host", [parts.hostname or ""])[0]
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = free.getsockname()[1]
    file = folder / "pgbouncer.ini"
    port = parts.port or 5432
    file.write_text(
        _CONFIGURATION.format(
            host=host,
            port=port,
            listen=listen,
            user=name,
            password=parts.password or "none",
            mode=mode,
        )
    )
    command = [program, "-q"]
    if os.getuid() == 0:  # PgBouncer refuses to run as root
        command += ["-u", "nobody"]
        for place in (file, folder, *folder.parents[:2]):
            place.chmod(0o755)
    process = subprocess.Popen(
        [*command, file], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    url = f"postgresql://{name}@127.0.0.1:{listen}{parts.path}"
    try:
        _wait_for(url, process)
        yield url
    finally:
        process.terminate()
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the pooler answers; fail if it ended."""
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError as error:
            if process.poll() is not None or "refused" not in str(error):
                pytest.fail(f"PgBouncer does not answer: {error}")
        else:
            return


def test_clients_of_a_pooler_read_their_own_rows(
    pooled_url: str, tmp_path: Path
) -> None:
    open_at(pooled_url, tmp_path).close()

    assert _wrong_reads(pooled_url) == []


def test_clients_of_a_pooler_that_cannot_be_detected_name_it_in_the_url(
    pooled_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a pooler passes on the id of the server's process."""
    monkeypatch.setattr(PostgresDatabase, "_named_process", _servers_process)
    url = f"{pooled_url}?pooler=transaction"
    with open_at(pooled_url, tmp_path) as store:
        assert not _is_pooled(store)
    with open_at(url, tmp_path) as store:
        assert _is_pooled(store)

    assert _wrong_reads(url) == []


def _servers_process(_database: PostgresDatabase, driver: PsycopgConnection) -> int:
    row = driver.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


def _is_pooled(store: SessionStore) -> bool:
    """Whether the store prepares no statement on the connection that it reads with."""
    database = cast("EncryptedLog", store.log).recorder.database
    assert isinstance(database, PostgresDatabase)
    with database._connected() as driver:
        return driver.prepare_threshold is None


def test_a_pooler_in_session_mode_is_like_a_direct_connection(
    postgres_url: str, tmp_path: Path
) -> None:
    with pooler(postgres_url, tmp_path, mode="session") as pooled:
        url = f"{pooled}?pooler=session"
        with open_at(url, tmp_path) as store:
            assert not _is_pooled(store)
            session = store.session(user_id="ada", session_id="s")
            session.append(refold.UserInput(text="a"))
            database = cast("EncryptedLog", store.log).recorder.database
            assert isinstance(database, PostgresDatabase)
            with database._connected() as driver:
                row = driver.execute("SHOW transaction_isolation").fetchone()
            assert row == ("read committed",)
            with database.lock_for_move():  # as ``refold move`` does
                pass
            assert len(session.events()) == 1


@pytest.mark.parametrize("value", ["statement", "transaction&pooler=session"])
def test_another_mode_of_a_pooler_is_refused(value: str, tmp_path: Path) -> None:
    url = f"postgresql://ada@127.0.0.1:1/agents?pooler={value}"

    with pytest.raises(InvalidConfiguration, match="is transaction or session"):
        open_at(url, tmp_path)


def test_a_key_store_is_not_reached_through_a_pooler(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{postgres_url}&pooler=transaction"

    with pytest.raises(InvalidConfiguration, match="connect it to its server directly"):
        SqlKeyStore(url)


def _wrong_reads(url: str) -> list[str]:
    """Return rows of other users that four clients of a pooler read."""

    def work(name: str) -> list[str]:
        with refold.open(url) as store:
            session = store.session(user_id=name, session_id="s")
            for number in range(5):
                session.append(refold.UserInput(text=f"{name} {number}"))
            wrong = []
            for _ in range(20):
                texts = [
                    getattr(event.payload, "text", "") for event in session.events()
                ]
                if texts != [f"{name} {number}" for number in range(5)]:
                    wrong.append(f"{name} read {texts}")
                if [info.user_id for info in store.sessions(name)] != [name]:
                    wrong.append(f"{name} read sessions of others")
                wrong += [str(problem) for problem in session.verify().problems]
            return wrong

    names = [f"user-{number}" for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, names))
    return list(chain.from_iterable(results))


def test_a_store_is_not_moved_through_a_pooler(pooled_url: str, tmp_path: Path) -> None:
    with open_at(pooled_url, tmp_path) as store:
        database = cast("EncryptedLog", store.log).recorder.database
        assert isinstance(database, PostgresDatabase)

        with pytest.raises(StoreUnavailable, match="connect to the server directly"):
            database.lock_for_move().__enter__()
