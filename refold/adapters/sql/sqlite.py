"""SQLite: one file, WAL, one writer at a time."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from weakref import WeakValueDictionary

from refold.adapters.rows import (
    Batch,
    HeadRow,
    Heads,
    Moved,
    Rewrite,
    WriteOutcome,
    Wrote,
)
from refold.adapters.sql import files, forks, queries
from refold.adapters.sql.clocks import ObservedTime, wall
from refold.adapters.sql.database import STORE_MOVED, Database, Write, error_if_moved
from refold.domain import errors
from refold.domain.clocks import GivenTime, StoreTime
from refold.domain.ids import MAIN, StreamId
from refold.domain.locks import forkable_lock
from refold.domain.ports import Duplicate

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

    from refold.adapters.sql import memory
    from refold.adapters.sql.urls import SqliteUrl


def translated(path: str, message: str) -> errors.RefoldError:
    """Return the error for a message of SQLite about the file at ``path``."""
    lowered = message.lower()
    for sign, (reason, remedy) in queries.refusals("sqlite").items():
        if sign in lowered:
            return errors.StoreUnavailable(f"{path} {reason}", remedy=remedy)
    if "not a database" in lowered or "malformed" in lowered:
        return errors.IncompatibleStore(
            f"{path} is not a SQLite database, or is damaged: give another file, or "
            "restore it"
        )
    return errors.StoreUnavailable(
        f"{path}: {message}", remedy="see the message of SQLite"
    )


T = TypeVar("T")
# Files next to the database without locks of SQLite.
_LOGS: Final = ("-wal", "-journal")
_BUSY: Final = 5.0  # seconds
# Shorter names occur by chance in encrypted data.
_SHORTEST: Final = 6  # bytes
_READ_SIZE: Final = 1 << 20  # bytes


def _count(descriptor: int, names: set[bytes]) -> int:
    """Return how many of the names occur in a file, which others may truncate."""
    occurring: set[bytes] = set()
    offset = 0
    overlap = max(map(len, names), default=1) - 1
    while block := os.pread(descriptor, _READ_SIZE + overlap, offset):
        for name in names - occurring:
            if name in block:
                occurring.add(name)
        offset += _READ_SIZE
    return len(occurring)


class _File:
    """The only descriptor with which the stores of this process search a file.

    A process that closes any descriptor of a file loses all of its locks on the file,
    including those of SQLite.  Another process may then delete the log, and later
    appends are lost (sqlite.org/howtocorrupt.html, 2.2).  So this descriptor stays open
    as long as any of the stores.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def count(self, path: Path, names: set[bytes]) -> int:
        """Return how many of the names occur in the file."""
        with _files_lock:
            if self._descriptor is None:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                forks.plain_descriptors.add(self._descriptor)
        return _count(self._descriptor, names)

    def __del__(self) -> None:
        if self._descriptor is not None:
            forks.plain_descriptors.discard(self._descriptor)
            os.close(self._descriptor)


_files: Final = WeakValueDictionary[str, _File]()
_files_lock: Final = forkable_lock()


# Triggers let rows be replaced only while this row exists.  It is never committed.
_OPEN: Final = "INSERT INTO settings (name, value) VALUES ('rewriting', 'on')"
_CLOSE: Final = "DELETE FROM settings WHERE name='rewriting'"
_SQL: Final = queries.statements("sqlite")
GUARDS: Final = queries.guards("sqlite")
_PUT_SETTING: Final = "INSERT INTO settings (name, value) VALUES (?, ?)"
# Changes nothing, but is written to the log.
TOUCH: Final = "UPDATE settings SET value=value WHERE name='schema_version'"


def _replace(connection: sqlite3.Connection, rewrite: Rewrite) -> None:
    """Replace the session's rows, inside a transaction that holds the write lock."""
    user_id, session_id, _ = rewrite.batch.stream
    check = rewrite.batch.head.key_check
    connection.execute(_OPEN)
    rows = []
    for row in rewrite.rows:
        rows.append((row.state, row.first_digest, *row.columns[0], row.seq))
    connection.executemany(_SQL["row"], rows)
    connection.execute(_CLOSE)
    states = []
    for name, state in rewrite.states.items():
        states.append((state, check, user_id, session_id, name))
    connection.executemany(_SQL["state"], states)
    addresses = [(user_id, address) for address in rewrite.old_blob_addresses]
    connection.executemany(_SQL["drop_blob"], addresses)
    connection.execute(_SQL["drop_views"], (user_id, session_id))
    connection.execute(_SQL["reopen"], (check, user_id, session_id, MAIN))


APPLICATION_ID: Final = int.from_bytes(b"RFLD", "big")
_MARK: Final = f"PRAGMA application_id={APPLICATION_ID}"


class SqliteDatabase(Database):
    """One SQLite file.

    With ``synchronous=FULL``, commits survive a power failure.  With NORMAL, they
    survive a crash of the process, and a power failure may lose the last ones.
    """

    name = "sqlite"
    mark = "?"
    lock_against_changes = ""
    lock_against_deletion = ""
    place_column = "rowid"
    searchable = True
    each_span = _SQL["each_span"]

    def __init__(self, url: URL | SqliteUrl) -> None:
        if not url.database or url.database == ":memory:":
            raise errors.InvalidConfiguration(
                "a SQLite store needs a file: sqlite:///agent.db (memory:// keeps "
                "nothing, for tests)"
            )
        level = str(url.query.get("synchronous", "full")).upper()
        if level not in ("FULL", "NORMAL") or set(url.query) - {"synchronous"}:
            raise errors.InvalidConfiguration(
                "a SQLite URL takes only ?synchronous=full or ?synchronous=normal"
            )
        self.path = Path(url.database).absolute()
        super().__init__(str(self.path))
        self._synchronous = level
        self._watched = files.WatchedFile(self.path)
        self._readers = files.Connections(self._watched, self._on_connect)
        # Whether the file was found or created, and is a store's.
        self._is_ready = False
        self._writer: sqlite3.Connection | None = None
        self._lock: AbstractContextManager[Any] = Lock()
        forks.register(self)

    @property
    def file(self) -> forks.FileId | None:
        """The open file."""
        return self._watched.file

    def _make_pool(self) -> Engine:
        from refold.adapters.sql import pools

        if not self._is_ready:
            self._find_or_create_file()
        return pools.engine_of_file(self._watched, self, self._on_connect)

    def _ensure_open(self) -> None:
        """Find the file, or create it, unless a thread of this process has done so.

        A thread that waits here has not begun a use, so a fork does not wait for it.
        """
        with self._making:
            if not self._is_ready:
                self._find_or_create_file()

    def _find_or_create_file(self) -> None:
        """Find the file, or create it; the caller has the lock ``_making``.

        Raises IncompatibleStore for a file of another program.
        """
        use = forks.begin_use(self)
        try:
            self._look_at_file()
        finally:
            forks.end_use(use)
        self._is_ready = True

    def _look_at_file(self) -> None:
        """Create the file if there is none, and find out whether it can be written."""
        with _files_lock:
            if self.file is None:
                _create(self.path)
            self._reader = _files.setdefault(os.path.realpath(self.path), _File())
        self.readonly = files.is_readonly(self.path)
        self._watched.readonly = self.readonly
        self._identify()

    def _identify(self) -> None:
        """Raise IncompatibleStore for a file of another program, before any change."""
        if not self.path.exists() or not self.path.stat().st_size:
            return
        query = "SELECT count(*) FROM sqlite_master"
        with closing(self._watched.connect()) as connection:
            # Another process may create the store in one transaction.  Tables that are
            # read first prove that the id, which is read next, is already set.
            (table_count,) = connection.execute(query).fetchone()
            (program_id,) = connection.execute("PRAGMA application_id").fetchone()
        if program_id != APPLICATION_ID and table_count:
            raise errors.IncompatibleStore(
                f"{self.path} is the database of another program: give a new file"
            )

    def _check_writable(self) -> None:
        """Raise StoreUnavailable for a file that can only be read."""
        if self.readonly:
            raise translated(str(self.path), "readonly")

    def _on_connect(self, connection: files.FileConnection) -> None:
        """Prepare a new connection."""
        connection.isolation_level = None
        if self.readonly:
            return
        _turn_to_wal(connection)
        connection.execute(f"PRAGMA synchronous={self._synchronous}")
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute("PRAGMA secure_delete=ON")
        self._watched.note_log(connection)

    def reading(self, user_id: str | None = None) -> Connection:  # noqa: ARG002  # one file, one reader
        return self.engine().connect()

    def writing(self, user_id: str | None = None) -> AbstractContextManager[Connection]:  # noqa: ARG002  # the same
        """Begin a transaction, which has the write lock from its begin."""
        engine = self.engine().execution_options(refold_begin="IMMEDIATE")
        self._check_writable()
        return engine.begin()

    @contextmanager
    def writing_relaxed(self) -> Iterator[Connection]:
        """Begin a transaction that does not wait for the disk.

        A power failure may lose it, until the next append makes it durable, too.
        """
        engine = self.engine().execution_options(refold_begin="IMMEDIATE")
        self._check_writable()
        with engine.connect() as connection:
            driver = cast("sqlite3.Connection", connection.connection.driver_connection)
            (level,) = driver.execute("PRAGMA synchronous").fetchone()
            driver.execute("PRAGMA synchronous=NORMAL")
            try:
                with connection.begin():
                    yield connection
            finally:
                driver.execute(f"PRAGMA synchronous={level}")

    def stored_settings(self) -> dict[str, str]:
        return _settings(lambda query: self._fetch("", query, ()))

    def create(self, marks: Mapping[str, str]) -> dict[str, str]:
        """Create the tables of a new store in one transaction, with these settings.

        Returns the settings that the store then has.  If another process has created
        it since, those are the other's.
        """

        def work(connection: sqlite3.Connection) -> dict[str, str]:
            settings = _settings(lambda query: connection.execute(query).fetchall())
            if "schema_version" in settings:
                return settings
            connection.execute(_MARK)
            files.create_missing(connection, "sqlite_tables")
            for guard in GUARDS:
                connection.execute(guard)
            connection.executemany(_PUT_SETTING, list(marks.items()))
            return {**settings, **marks}

        with self.errors:
            return self._in_transaction(work)

    def transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call ``work`` in a transaction with the write lock; raises as ``change``."""

        def fenced(connection: sqlite3.Connection) -> T:
            self.check_fences(connection.execute)
            return work(connection)

        with self.errors:
            return self._in_transaction(fenced)

    def with_driver(self, work: Callable[[Any], T], *, single: bool = False) -> T:  # noqa: ARG002  # of servers
        return self._in_transaction(work)

    def has_sessions(self) -> bool:
        return bool(self._fetch("", "SELECT 1 FROM heads LIMIT 1", ()))

    def many_rows(self, table: str, condition: str) -> str:
        # An index has the rows in another order than the file.  SQLite would read the
        # page of each row by itself, since few pages fit in its cache.
        return f"rowid IN (SELECT rowid FROM {table} WHERE {condition})"

    def translate(self, error: Exception) -> errors.RefoldError | None:
        if isinstance(error, OSError) and str(error.filename).startswith(
            str(self.path)
        ):
            return errors.StoreUnavailable(
                f"{error.filename} cannot be used ({error.strerror})",
                remedy=errors.remedy_for(error),
            )
        cause = getattr(error, "orig", error)  # that of an error of SQLAlchemy
        if not isinstance(cause, sqlite3.Error):
            return None
        if isinstance(cause, files.CommitFailed):
            return files.outcome_unknown(self.path, cause)
        message = files.message_of(cause)
        return error_if_moved(message) or translated(str(self.path), message)

    def prepare(self, connection: Connection) -> None:
        """Mark the file as Refold's, after ``_identify``."""
        connection.exec_driver_sql(_MARK)

    def lock_schema(self, connection: Connection) -> None:
        """Do nothing, because every transaction begins with the write lock."""

    def guard_events(self, connection: Connection) -> None:
        """Create triggers that refuse UPDATE and DELETE."""
        for statement in GUARDS:
            connection.exec_driver_sql(statement)

    def refuse_writes(self, connection: Connection, where: str) -> None:
        """Create a trigger for each way to write each table, under the write lock."""
        message = f"{STORE_MOVED}{where}".replace("'", "''")
        for table in queries.TABLES:
            for act in ("INSERT", "UPDATE", "DELETE"):
                statement = _SQL["refuse_write"].format(
                    table=table, act=act, message=message
                )
                connection.exec_driver_sql(statement)

    def unguarded(self) -> list[str]:
        """Return triggers that differ from ours, are missing, or were added."""
        query = "SELECT name, sql FROM sqlite_master WHERE type='trigger'"
        stored = {name: sql.split() for name, sql in self._fetch("", query, ())}
        expected: dict[str, list[str]] = {}
        for statement in GUARDS:
            words = statement.split()
            if words[:1] == ["CREATE"]:
                expected[words[2]] = words
        names = stored.keys() | expected.keys()
        return sorted(name for name in names if stored.get(name) != expected.get(name))

    def write_group(self, batches: Sequence[Batch]) -> list[WriteOutcome | Exception]:
        """Write all batches in one transaction; after an error, each in its own.

        If another process keeps the file locked, all of them fail, because each would
        wait again.
        """
        try:
            return self._in_transaction(
                lambda connection: list(map(partial(_write, connection), batches))
            )
        except Exception as error:
            translated_error = self.translate(error) or error
            if len(batches) == 1 or "locked" in str(error):
                return [translated_error] * len(batches)
            return [self.write_group([batch])[0] for batch in batches]

    def hold_head(
        self, stream: StreamId, work: Callable[[HeadRow | None, Write], WriteOutcome]
    ) -> WriteOutcome:
        """Hold the write lock while ``work`` decides and writes."""

        def attempt(connection: sqlite3.Connection) -> WriteOutcome:
            self.check_fences(connection.execute)
            return work(_head(connection, stream), partial(_write_after, connection))

        return self._in_transaction(attempt)

    def rewrite(
        self,
        stream: StreamId,
        build: Callable[[Heads], Rewrite | None],
        insert: Callable[[Batch, Write], None],
    ) -> bool:
        """Hold the write lock while ``build`` decides."""

        def work(connection: sqlite3.Connection) -> bool:
            self.check_fences(connection.execute)
            heads: dict[str, HeadRow] = {}
            for name, *columns in connection.execute(_SQL["heads"], stream[:2]):
                heads[name] = HeadRow(*columns)
            rewrite = build(heads)
            if rewrite is None:
                return False
            _check_process(connection)
            _replace(connection, rewrite)
            insert(rewrite.batch, partial(_write_after, connection))
            return True

        return self._in_transaction(work)

    def flush(self) -> None:
        """Commit once with FULL, which syncs the whole write-ahead log."""

        def touch(connection: sqlite3.Connection) -> None:
            connection.execute(TOUCH)

        self._check_process()
        use = forks.begin_use(self)
        try:
            with self._lock:
                connection = self._writer or self._connect_writer()
                connection.execute("PRAGMA synchronous=FULL")
                try:
                    self._commit(connection, touch)
                finally:
                    connection.execute(f"PRAGMA synchronous={self._synchronous}")
        finally:
            forks.end_use(use)

    def _in_transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` in a transaction with the write lock."""
        if self._closed:
            self._check_process()
        if not self._is_ready:
            self._ensure_open()
        use = forks.begin_use(self)
        try:
            with self._lock:
                return self._commit(self._writer or self._connect_writer(), work)
        finally:
            forks.end_use(use)

    def _connect_writer(self) -> sqlite3.Connection:
        """Open the writing connection, which is in no pool; the caller has the lock."""
        self._check_writable()
        writer = files.connect(self._watched, self._on_connect)
        self._writer = writer
        return writer

    def _commit(
        self,
        connection: sqlite3.Connection,
        work: Callable[[sqlite3.Connection], T],
    ) -> T:
        """Run ``work`` in a transaction, if the store's file is still in its place."""
        try:
            connection.execute("BEGIN IMMEDIATE")
            if not self.in_memory:
                self._watched.check(cast("files.FileConnection", connection))
            result = work(connection)
            connection.commit()
        except BaseException:
            _roll_back(connection)
            raise
        return result

    def close_before_fork(self) -> None:
        """Close all connections before a fork; the next use opens new ones."""
        self._close_writer()
        self._close_readers()
        if self._pool is not None:
            self._pool.dispose()

    def _close_writer(self) -> None:
        """Close the writing connection."""
        writer = self._writer
        # This comes first, so that a signal handler finds no half closed writer.
        self._writer = None
        if writer is not None:
            writer.close()

    def _close_readers(self) -> None:
        """Close the connections that only read."""
        self._readers.close()

    def leave_to_parent(self, *, in_use: bool) -> None:  # noqa: ARG002  # the file says it
        """Start without connections in a forked child."""
        self._pool = None
        self._readers.forget()
        self._is_ready = False
        self._writer = None
        self._lock = Lock()

    def _forget(self) -> None:
        forks.notice()

    def _fetch(
        self,
        user_id: str | None,  # noqa: ARG002  # the same
        query: str,
        values: Sequence[Any],
    ) -> list[tuple[Any, ...]]:
        self._check_process()
        if not self._is_ready:
            self._ensure_open()
        use = forks.begin_use(self)
        try:
            with self._readers.borrowed() as connection:
                return connection.execute(query, values).fetchall()
        finally:
            forks.end_use(use)

    def settled(self) -> str:
        """Return true: with only one writer, positions are committed in order."""
        return "true"

    def among(self, places: Any, condition: Any) -> Any:  # noqa: ARG002  # it is unique
        """Return the condition that the row number is one of these."""
        from sqlalchemy import literal_column

        return literal_column(self.place_column).in_(places)

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        """Move the write-ahead log into the file, and empty it.

        SQLite overwrote deleted cells with zeros (``secure_delete``).

        vacuum: rewrite the whole file.
        """
        self._check_process()
        self._check_writable()
        use = forks.begin_use(self)
        try:
            with closing(self._watched.connect()) as connection:
                connection.isolation_level = None
                connection.execute(f"PRAGMA busy_timeout={int(_BUSY * 1000)}")
                connection.execute("PRAGMA secure_delete=ON")
                if vacuum:
                    connection.execute("VACUUM")
                checkpoint = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                busy, *_ = checkpoint.fetchone()
        finally:
            forks.end_use(use)
        return {"vacuum": vacuum, "wal_emptied": not busy}

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """Return how many of the names occur in the file and in each of its logs."""
        encoded = [name.encode() for name in names]
        searched = {name for name in encoded if len(name) >= _SHORTEST}
        counts = {self.path.name: self._reader.count(self.path, searched)}
        for end in _LOGS:
            log_file = self._watched.beside(end)
            with suppress(FileNotFoundError), log_file.open("rb") as file:
                counts[log_file.name] = _count(file.fileno(), searched)
        return {
            "files": counts,
            "names": len(searched),
            "too_short": len(names) - len(searched),
        }

    def size(self, connection: Connection) -> int:  # noqa: ARG002  # the protocol's
        """Return the bytes of the file and its write-ahead log."""
        log_file = self._watched.beside("-wal")
        size = 0
        for file in (self.path, log_file):
            if file.exists():
                size += file.stat().st_size
        return size

    def store_time(self) -> StoreTime:
        time = ObservedTime(self)
        time.open()
        return time

    def close(self) -> None:
        """Close all connections; the last process moves the log into the file."""
        use = forks.begin_use(self)  # a fork waits until all are closed
        try:
            with self._lock:
                self._close_writer()
                self._close_readers()
                super().close()
        finally:
            forks.end_use(use)


class SqliteInMemory(SqliteDatabase):
    """A SQLite database in memory, for tests and trials.  It ends with the process."""

    searchable = False
    in_memory = True

    def __init__(self) -> None:
        from refold.adapters.sql import memory

        self.path = Path("memory://")
        Database.__init__(self, "in memory")
        self._synchronous = "OFF"
        pool = memory.engine_in_memory()
        self._pool = pool
        with pool.connect() as connection:
            driver = connection.connection.driver_connection
        self._writer = cast("memory.OnlyConnection", driver)
        self._lock = cast("memory.OnePool", pool.pool)

    def store_time(self) -> StoreTime:
        """Return the clock of this process, which the database does not outlive."""
        return GivenTime(wall)

    @property
    def file(self) -> None:
        """None, because there is no file."""

    def _close_readers(self) -> None:
        """Do nothing, because the only connection is closed with its pool."""

    def _forget(self) -> None:
        """Do nothing, because a forked child has its own copy."""

    def _fetch(
        self,
        user_id: str | None,  # noqa: ARG002  # the same
        query: str,
        values: Sequence[Any],
    ) -> list[tuple[Any, ...]]:
        pooled = self.engine().raw_connection()
        try:
            driver = cast("sqlite3.Connection", pooled.driver_connection)
            return driver.execute(query, values).fetchall()
        finally:
            pooled.close()

    def _in_transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._check_process()
        connection = cast("memory.OnlyConnection", self._writer)
        with self._lock:
            connection.users += 1
            try:
                return self._commit(connection, work)
            finally:
                connection.users -= 1

    def flush(self) -> None:
        """Do nothing, because nothing survives a power failure."""

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        """Do nothing, because deleted rows were never on a disk."""
        return {"vacuum": vacuum, "wal_emptied": True}

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """Return a report without files."""
        return {"files": {}, "names": len(names), "too_short": 0}

    def size(self, connection: Connection) -> int:
        """Return the bytes of the pages."""
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        page_size = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
        return int(pages * page_size)


def _settings(fetch: Callable[[str], Sequence[tuple[Any, ...]]]) -> dict[str, str]:
    """Return the settings of a store; empty without one."""
    columns = fetch("SELECT name FROM pragma_table_info('settings')")
    if {name for (name,) in columns} != {"name", "value"}:
        return {}  # no table, or one of another program
    return dict(fetch("SELECT name, value FROM settings"))


def _create(path: Path) -> None:
    """Create an empty file that only its owner can read, unless there is a file.

    SQLite creates the files next to it with the same mode.  If this fails, SQLite
    reports the reason when it opens the file.

    Raises StoreUnavailable if files of another store remain.
    """
    files.check_nothing_left(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with suppress(OSError):
        os.close(os.open(os.path.realpath(path), flags, 0o600))


def _turn_to_wal(connection: sqlite3.Connection) -> None:
    """Turn on the write-ahead log.

    Several processes may do so at once for a new file.  SQLite then fails instead of
    waiting for them, but it does wait for a write lock.
    """
    until = monotonic() + files.BUSY_MS / 1000
    while connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or monotonic() > until:
                raise
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("COMMIT")


def _roll_back(connection: sqlite3.Connection) -> None:
    """Roll back the transaction, if one is open."""
    if isinstance(connection, forks.OwnConnection):
        connection.rollback()
    elif connection.in_transaction:
        connection.execute("ROLLBACK")


def _check_process(connection: sqlite3.Connection) -> None:
    """Raise StoreUnavailable in a child that was forked inside the transaction."""
    if isinstance(connection, forks.OwnConnection):
        connection.check_process()


def _head(connection: sqlite3.Connection, stream: StreamId) -> HeadRow | None:
    """Return the head of a stream; None if it has none."""
    row = connection.execute(_SQL["head"], stream).fetchone()
    if row is None:
        return None
    return HeadRow(*row)


def _write(connection: sqlite3.Connection, batch: Batch) -> WriteOutcome:
    """Write a batch if its receipts are new and the head is the expected one."""
    stream = batch.stream
    for receipt in batch.receipts:
        values = (*stream, receipt.address)
        stored = connection.execute(_SQL["find_receipt"], values).fetchone()
        if stored is None:
            continue
        if receipt.address == batch.append_receipt_address:
            return Duplicate(*stored)
        return Moved(_head(connection, stream))
    if batch.expected_seq:
        expected = (batch.expected_seq, batch.expected_hash, batch.head.key_check)
        head = (*batch.head, *stream, *expected)
        result = connection.execute(_SQL["move_head"], head)
    else:
        result = _begin_stream(connection, batch)
    if not result.rowcount:
        return Moved(_head(connection, stream))
    first, *more = batch.events
    row = (*stream, *first.columns[1:], first.hash, first.state)
    connection.execute(_SQL["event"], row)
    if more:
        rows = []
        for event in more:
            rows.append((*stream, *event.columns[1:], event.hash, event.state))
        connection.executemany(_SQL["event"], rows)
    if batch.blobs or batch.receipts:
        _write_blobs_and_receipts(connection, batch)
    return Wrote(batch.head)


def _write_after(connection: sqlite3.Connection, batch: Batch) -> WriteOutcome:
    """Write a batch that was built inside the transaction, if it was not forked."""
    _check_process(connection)
    return _write(connection, batch)


def _begin_stream(connection: sqlite3.Connection, batch: Batch) -> sqlite3.Cursor:
    """Insert the head of a new stream, if that is allowed.

    A main stream needs a live user, and a derived stream its main stream.  A fork needs
    an origin that is not erased.
    """
    stream = batch.stream
    refs = batch.refs
    if stream.stream == MAIN:
        connection.execute(_SQL["subject"], (refs.user, refs.user, refs.epoch))
    of_user = (refs.user, refs.epoch, refs.session)
    of_origin = (refs.origin, stream.user_id, refs.origin)
    of_main = (stream.user_id, stream.session_id, batch.head.key_check)
    values = (*batch.head, *stream, stream.stream, *of_user, *of_origin, *of_main)
    return connection.execute(_SQL["new_head"], values)


def _write_blobs_and_receipts(connection: sqlite3.Connection, batch: Batch) -> None:
    """Insert the blobs and the receipts of a batch."""
    stream = batch.stream
    now = batch.head.updated_at
    if batch.blobs:
        rows = []
        for blob in batch.blobs:
            row = (
                stream.user_id,
                blob.address,
                blob.size,
                now,
                blob.body,
                stream.session_id,
            )
            rows.append(row)
        connection.executemany(_SQL["blob"], rows)
    if batch.receipts:
        receipts = [(*stream, *receipt) for receipt in batch.receipts]
        connection.executemany(_SQL["receipt"], receipts)
