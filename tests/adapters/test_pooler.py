"""Reads and appends are right through a pooler in transaction mode."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

import refold
from refold.adapters.log import EncryptedLog
from refold.adapters.sql.postgres import PostgresDatabase
from refold.domain.errors import StoreUnavailable
from tests.support.stores import open_at

_CONFIGURATION = """\
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
ignore_startup_parameters = extra_float_digits
"""


@pytest.fixture
def pooled_url(postgres_url: str, tmp_path: Path) -> Iterator[str]:
    """The database behind a real PgBouncer with two connections to the server."""
    program = shutil.which("pgbouncer", path=f"{os.defpath}:/usr/sbin")
    if program is None:
        pytest.fail("PgBouncer is missing: sudo apt-get install pgbouncer")
    parts = urlsplit(postgres_url)
    name = parts.username or "postgres"
    host = parse_qs(parts.query).get("host", [parts.hostname or ""])[0]
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = free.getsockname()[1]
    file = tmp_path / "pgbouncer.ini"
    port = parts.port or 5432
    file.write_text(
        _CONFIGURATION.format(
            host=host,
            port=port,
            listen=listen,
            user=name,
            password=parts.password or "none",
        )
    )
    command = [program, "-q"]
    if os.getuid() == 0:  # PgBouncer refuses to run as root
        command += ["-u", "nobody"]
        for folder in (file, tmp_path, *tmp_path.parents[:2]):
            folder.chmod(0o755)
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
    """Return when the pooler answers; fail if it ended."""
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
    names = [f"user-{number}" for number in range(4)]

    def work(name: str) -> list[str]:
        with refold.open(pooled_url) as store:
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
                wrong += [str(one) for one in session.verify().problems]
            return wrong

    open_at(pooled_url, tmp_path).close()
    with ThreadPoolExecutor(4) as pool:
        wrong = [one for found in pool.map(work, names) for one in found]

    assert wrong == []


def test_a_store_is_not_moved_through_a_pooler(pooled_url: str, tmp_path: Path) -> None:
    with open_at(pooled_url, tmp_path) as store:
        database = cast("EncryptedLog", store.log).recorder.database
        assert isinstance(database, PostgresDatabase)

        with pytest.raises(StoreUnavailable, match="connect to the server directly"):
            database.filling().__enter__()
