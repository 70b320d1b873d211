"""No connection to a SQLite file outlives its store, and a child uses none of them."""

import gc
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import make_url

from refold.adapters.sql import files, forks
from refold.adapters.sql.files import Connections, FileConnection, WatchedFile
from refold.adapters.sql.keystore import SqlKeyStore
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.sqlite import SqliteDatabase
from refold.adapters.sql.urls import SqliteUrl, url_of_file
from refold.domain.errors import IncompatibleStore, KeyUnavailable, StoreUnavailable
from refold.opener import open_store

MORE_THAN_STAY: Final = files._IDLE + 3


class ConnectionsHolder:
    """Releases its connections before a fork, as stores do."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self.prepared: list[FileConnection] = []
        self.connections = Connections(WatchedFile(path), self.prepared.append)
        forks.register(self)

    def close_before_fork(self) -> None:
        self.connections.close()

    def leave_to_parent(self, *, in_use: bool) -> None:  # the port's name
        self.connections.forget()


@pytest.fixture
def holder(tmp_path: Path) -> ConnectionsHolder:
    return ConnectionsHolder(tmp_path / "file.db")


def open_descriptors(path: Path) -> list[str]:
    """Return the names of this process's descriptors of the file and its neighbors."""
    gc.collect()
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # the descriptor of the listing itself
            continue
        if name.startswith(str(path)):
            names.append(name)
    return names


def status_of_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked child, and return the child's exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, waited = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(waited)


def test_a_connection_is_used_again(holder: ConnectionsHolder) -> None:
    for _ in range(3):
        with holder.connections.use(holder) as connection:
            connection.execute("SELECT 1")

    assert len(holder.prepared) == 1


def test_few_idle_connections_stay_open(holder: ConnectionsHolder) -> None:
    uses = [holder.connections.use(holder) for _ in range(MORE_THAN_STAY)]
    for use in uses:
        use.__enter__()

    for use in uses:
        use.__exit__(None, None, None)

    closed = [connection.is_closed for connection in holder.prepared]
    assert closed.count(False) == files._IDLE


def test_a_connection_in_use_during_close_is_closed_after_its_use(
    holder: ConnectionsHolder,
) -> None:
    with holder.connections.use(holder) as connection:
        holder.connections.close()
        assert connection.execute("SELECT 1").fetchone() == (1,)

    assert connection.is_closed
    with holder.connections.use(holder) as fresh:
        assert fresh is not connection


def test_threads_that_return_connections_during_close_leave_none_open(
    holder: ConnectionsHolder,
) -> None:
    ended = threading.Event()

    def use_connections() -> None:
        while not ended.is_set():
            with holder.connections.use(holder) as connection:
                connection.execute("SELECT 1")

    threads = [threading.Thread(target=use_connections) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        holder.connections.close()
    ended.set()
    for thread in threads:
        thread.join()

    holder.connections.close()

    assert all(connection.is_closed for connection in holder.prepared)


def test_a_child_forked_during_a_use_does_not_get_the_connection_of_its_parent(
    holder: ConnectionsHolder,
) -> None:
    # The thread that forks is the user, so the fork does not wait for the use.
    use = holder.connections.use(holder)
    connection = use.__enter__()

    def return_and_borrow() -> None:
        use.__exit__(None, None, None)
        opened_in_parent = "was open when this process was forked"
        with (
            pytest.raises(StoreUnavailable, match=opened_in_parent),
            holder.connections.borrowed(),
        ):
            pass

    status = status_of_child(return_and_borrow)

    assert status == 0
    assert connection.execute("SELECT 1").fetchone() == (1,)
    use.__exit__(None, None, None)
    with holder.connections.use(holder) as again:
        assert again is connection


def test_a_connection_that_cannot_be_prepared_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    path.touch()
    opened: list[FileConnection] = []

    def refuse(connection: FileConnection) -> None:
        opened.append(connection)
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        files.connect(WatchedFile(path), refuse)

    assert [connection.is_closed for connection in opened] == [True]


@pytest.mark.parametrize("content", [b"no database " * 100, b"x" * 4096])
def test_a_file_that_is_no_database_leaves_no_open_descriptor(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(content)

    for _ in range(3):
        with pytest.raises(IncompatibleStore):
            open_store(path)
        with pytest.raises(KeyUnavailable):
            SqlKeyStore(url_of_file(path))

    assert open_descriptors(path) == []
    assert path.read_bytes() == content


def test_an_engine_closes_a_connection_that_cannot_be_prepared(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    database = SqliteDatabase(SqliteUrl(str(path), {}))
    opened: list[FileConnection] = []

    def refuse(connection: FileConnection) -> None:
        opened.append(connection)
        raise OSError("the disk is gone")

    database._on_connect = refuse  # type: ignore[method-assign]  # no connection is made

    with pytest.raises(OSError, match="the disk is gone"):
        database.engine().connect()

    assert [connection.is_closed for connection in opened] == [True]
    database.close()


def test_threads_that_open_a_new_store_look_at_its_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = SqliteDatabase(SqliteUrl(str(tmp_path / "agent.db"), {}))
    looks: list[str] = []
    identify = database._identify

    def note() -> None:
        looks.append(threading.current_thread().name)
        identify()

    monkeypatch.setattr(database, "_identify", note)
    start = threading.Barrier(4)

    def read() -> None:
        start.wait()
        database.stored_settings()

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    start.wait()
    with database.engine().connect():
        pass
    for thread in threads:
        thread.join()

    assert len(looks) == 1
    database.close()


def test_a_fork_does_not_wait_for_a_thread_that_waits_for_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = SqliteDatabase(SqliteUrl(str(tmp_path / "agent.db"), {}))
    begun: list[int] = []
    begin_use = forks.begin_use

    def note_thread(holder: forks.Holder) -> forks.Use:
        # Threads of other tests may still close their own stores.
        if holder is database:
            begun.append(threading.get_ident())
        return begin_use(holder)

    monkeypatch.setattr(forks, "begin_use", note_thread)
    reader = threading.Thread(target=database.stored_settings)
    with database._making:
        reader.start()
        assert status_of_child(lambda: None) == 0
    reader.join()

    # One use to find the file, begun with the lock, and another to read it.
    assert begun == [reader.ident, reader.ident]
    database.close()


def test_a_key_that_exists_already_loads_no_sqlalchemy(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    code = (
        "import sys; from refold.adapters.sql.keystore import SqlKeyStore;"
        "store = SqlKeyStore(sys.argv[1]);"
        "store.add_setting('pepper', b'1'); store.add_setting('pepper', b'2');"
        "print('sqlalchemy' in sys.modules, store.get_setting('pepper'))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, url_of_file(path)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.split() == ["False", "b'1'"]


def test_a_setting_that_the_tables_refuse_is_an_error_of_the_key_store(
    tmp_path: Path,
) -> None:
    store = SqlKeyStore(url_of_file(tmp_path / "keys.db"))

    with pytest.raises(KeyUnavailable, match="not written by Refold"):
        store.set_setting("name", None)  # type: ignore[arg-type]  # what the test passes on purpose

    store.close()


def test_a_connection_to_a_server_in_use_is_closed_when_it_is_returned(
    postgres_url: str,
) -> None:
    database = PostgresDatabase(make_url(postgres_url))

    def dispose() -> None:  # as after an error of another connection
        database.engine().dispose()

    for close in (dispose, database.close):
        with database._connected() as driver, database._connected() as other:
            close()
            assert not driver.closed

        assert driver.closed
        assert other.closed


def test_a_connection_of_an_engine_over_a_file_is_closed_when_it_is_returned(
    tmp_path: Path,
) -> None:
    database = SqliteDatabase(make_url(url_of_file(tmp_path / "refold.db")))

    with database.engine().connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        database.engine().dispose()
        driver.execute("SELECT 1")

    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        driver.execute("SELECT 1")
    database.close()


def test_a_connection_to_a_server_is_lent_again(postgres_url: str) -> None:
    database = PostgresDatabase(make_url(postgres_url))

    with database._connected() as driver:
        pass
    with database._connected() as same:
        pass

    assert same is driver
    assert not driver.closed
    database.close()
    assert driver.closed


def test_a_connection_of_a_key_store_on_a_server_is_closed_too(
    postgres_url: str,
) -> None:
    keys = SqlKeyStore(postgres_url)

    with keys._transactions.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        keys.close()
        assert not driver.closed

    assert driver.closed
