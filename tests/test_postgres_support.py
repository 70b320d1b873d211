"""The server for the tests is real, private, and leaves nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
import sqlalchemy

from tests.support import postgres as support
from tests.support.postgres import Postgres, PostgresUnavailable
from tests.support.waiting import until


def ask(url: str, question: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(question.encode()).fetchone()
    return row[0] if row else None


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def directory_of(url: str) -> Path:
    return Path(parse_qs(urlsplit(url).query)["host"][0])


def test_the_server_is_a_postgresql_that_refold_supports(postgres_url: str) -> None:
    assert int(str(ask(postgres_url, "SHOW server_version_num"))) >= 150_000


def test_sqlalchemy_takes_the_same_url(postgres_url: str) -> None:
    url = postgres_url.replace("postgresql:", "postgresql+psycopg:", 1)
    engine = sqlalchemy.create_engine(url)

    with engine.connect() as connection:
        answer = connection.scalar(sqlalchemy.text("SELECT current_database()"))
    engine.dispose()

    assert answer == urlsplit(postgres_url).path.lstrip("/")


def test_two_databases_are_separate(postgres: Postgres, postgres_url: str) -> None:
    other = urlsplit(postgres_url).path.lstrip("/") + "_other"
    other_url = postgres.create_database(other)
    execute(postgres_url, "CREATE TABLE mine (n int)")

    assert ask(postgres_url, "SELECT to_regclass('mine')::text") == "mine"
    assert ask(other_url, "SELECT to_regclass('mine')::text") is None

    postgres.drop_database(other)


def test_a_database_in_use_can_be_dropped(postgres: Postgres) -> None:
    url = postgres.create_database("test_dropped")
    left_open = psycopg.connect(url)

    postgres.drop_database("test_dropped")

    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)
    left_open.close()


def test_every_test_starts_with_an_empty_database(empty_url: str) -> None:
    url = empty_url.replace("postgresql:", "postgresql+psycopg:", 1)
    engine = sqlalchemy.create_engine(url)

    tables = sqlalchemy.inspect(engine).get_table_names()
    engine.dispose()

    assert tables == []


@pytest.mark.parametrize("immediate", [True, False])
def test_commits_survive_a_restart(own_postgres: Postgres, immediate: bool) -> None:
    execute(own_postgres.url, "CREATE TABLE kept AS SELECT 7 AS n")
    before = ask(own_postgres.url, "SELECT pg_postmaster_start_time()::text")

    own_postgres.restart(immediate=immediate)

    assert ask(own_postgres.url, "SELECT n FROM kept") == 7
    assert ask(own_postgres.url, "SELECT pg_postmaster_start_time()::text") != before


def test_a_connection_needs_the_socket_and_the_password(
    own_postgres: Postgres,
) -> None:
    parts = urlsplit(own_postgres.url)
    guessed = parts._replace(netloc="postgres:guess@").geturl()

    assert ask(own_postgres.url, "SHOW listen_addresses") == ""
    assert directory_of(own_postgres.url).stat().st_mode & 0o077 == 0
    with pytest.raises(psycopg.OperationalError, match="password authentication"):
        psycopg.connect(guessed)


def test_stopping_removes_the_server_and_its_directory() -> None:
    server = Postgres.start()
    directory = directory_of(server.url)
    assert directory.exists()

    server.stop()
    server.stop()

    assert not directory.exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.url)


def test_a_killed_parent_leaves_neither_server_nor_directory() -> None:
    program = (
        "import signal; from tests.support.postgres import Postgres; "
        "server = Postgres.start(); server.restart(); "
        "print(server.url, flush=True); signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    url = parent.stdout.readline().decode().strip()
    client = psycopg.connect(url)

    parent.kill()
    parent.communicate()

    assert parent.returncode == -signal.SIGKILL
    until(lambda: not directory_of(url).exists(), "the directory to be removed")
    with pytest.raises(psycopg.OperationalError):
        client.execute("SELECT 1")
    client.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to drop its rights")
def test_root_starts_binaries_that_only_root_can_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binaries = support.find_binaries()
    closed = tmp_path / "closed"
    shutil.copytree(binaries.parent, closed, symlinks=True)
    closed.chmod(0o700)
    monkeypatch.setattr(support, "find_binaries", lambda: closed / binaries.name)

    with Postgres.start() as server:
        answer = ask(server.url, "SELECT 1")

    assert answer == 1
    assert closed.stat().st_mode & 0o777 == 0o700


def test_a_given_server_is_used_and_not_stopped(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(support.VARIABLE, postgres.url)

    server = Postgres.from_environment()

    assert server is not None
    with server:
        assert ask(server.create_database("test_given"), "SELECT 1") == 1
        server.drop_database("test_given")
        with pytest.raises(PostgresUnavailable, match="own_postgres"):
            server.restart()
    assert ask(postgres.url, "SELECT 1") == 1


def test_without_binaries_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(support, "_candidates", lambda: iter([Path("/nowhere")]))

    with pytest.raises(PostgresUnavailable, match=support.VARIABLE):
        Postgres.start()


def test_binaries_that_do_not_run_are_an_error_that_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binaries = tmp_path / "install" / "bin"
    binaries.mkdir(parents=True)
    for name in ("initdb", "postgres"):
        (binaries / name).write_text("#!/bin/sh\necho broken; exit 3\n")
        (binaries / name).chmod(0o755)
    directory = support._short_directory()
    monkeypatch.setattr(support, "_short_directory", lambda: directory)
    monkeypatch.setattr(support, "find_binaries", lambda: binaries)

    with pytest.raises(PostgresUnavailable, match="broken"):
        Postgres.start()

    assert not Path(directory).exists()
