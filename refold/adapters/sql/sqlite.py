"""SQLite: one file, WAL, one writer at a time."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Final, TypeVar, cast
from weakref import WeakValueDictionary

from sqlalchemy import URL, Connection, Engine, literal_column, text
from sqlalchemy.exc import DBAPIError

from refold.adapters.rows import (
    Batch,
    HeadRow,
    Heads,
    Moved,
    Rewrite,
    WriteOutcome,
    Wrote,
)
from refold.adapters.sql import files, forks, memory, tables
from refold.adapters.sql.clocks import ObservedTime, wall
from refold.adapters.sql.database import MOVED, Database, Write, moved
from refold.domain import errors
from refold.domain.clocks import GivenTime, StoreTime
from refold.domain.ids import MAIN, StreamId
from refold.domain.locks import forkable_lock
from refold.domain.ports import Duplicate


def translated(path: str, said: str) -> errors.RefoldError:
    """The error for what SQLite said of the file at ``path``."""
    lowered = said.lower()
    for sign, (what, remedy) in tables.refusals("sqlite").items():
        if sign in lowered:
            return errors.StoreUnavailable(f"{path} {what}", remedy=remedy)
    if "not a database" in lowered or "malformed" in lowered:
        return errors.IncompatibleStore(
            f"{path} is not a SQLite database, or is damaged: give another file, or "
            "restore it"
        )
    return errors.StoreUnavailable(
        f"{path}: {said}", remedy="see the message of SQLite"
    )


T = TypeVar("T")
# SQLite holds no locks on these.
_LOGS: Final = ("-wal", "-journal")
_BUSY: Final = 5.0
# A shorter name stands by chance in what is encrypted.
_TELLING: Final = 6


_READ_AT_ONCE: Final = 1 << 20


def _count(descriptor: int, names: set[bytes]) -> int:
    """How many of the names stand in a file that others may cut short meanwhile."""
    found, offset = set[bytes](), 0
    overlap = max(map(len, names), default=1) - 1
    while read := os.pread(descriptor, _READ_AT_ONCE + overlap, offset):
        found |= {name for name in names - found if name in read}
        offset += _READ_AT_ONCE
    return len(found)


class _File:
    """The one descriptor by which all stores of this process read a database's file.

    A process that closes any descriptor of a file loses all its locks on it, SQLite's
    too: another one then unlinks the log from under it, and what is appended next is
    lost (sqlite.org/howtocorrupt.html, 2.2).  So this is open as long as any of them.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def count(self, path: Path, names: set[bytes]) -> int:
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


# While this row is there, and it is there in no committed state, rows may be replaced.
_OPEN: Final = "INSERT INTO settings (name, value) VALUES ('rewriting', 'on')"
_CLOSE: Final = "DELETE FROM settings WHERE name='rewriting'"
_SQL: Final = tables.statements("sqlite")
GUARDS: Final = tables.guards("sqlite")
# Changes nothing, and has to be written all the same.
TOUCH: Final = "UPDATE settings SET value=value WHERE name='schema_version'"


def _replace(connection: sqlite3.Connection, what: Rewrite) -> None:
    """Replace the session's rows, inside a transaction that holds the write lock."""
    user_id, session_id, _ = what.batch.stream
    check = what.batch.head.key_check
    connection.execute(_OPEN)
    values = [
        (row.state, row.first_digest, *row.columns[0], row.seq) for row in what.rows
    ]
    connection.executemany(_SQL["row"], values)
    connection.execute(_CLOSE)
    states = what.states.items()
    connection.executemany(
        _SQL["state"],
        [(state, check, user_id, session_id, name) for name, state in states],
    )
    addresses = [(user_id, address) for address in what.blobs]
    connection.executemany(_SQL["drop_blob"], addresses)
    connection.execute(_SQL["drop_views"], (user_id, session_id))
    connection.execute(_SQL["reopen"], (check, user_id, session_id, MAIN))


APPLICATION_ID: Final = int.from_bytes(b"RFLD", "big")


class SqliteDatabase(Database):
    """One SQLite file.

    ``synchronous`` is FULL (what is acknowledged survives a power cut) or NORMAL
    (it survives a crash of the process; a power cut may take the last commits).
    """

    name, mark, shared, kept = "sqlite", "?", "", ""
    place, searchable = "rowid", True
    each_span = _SQL["each_span"]

    def __init__(self, url: URL) -> None:
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
        super().__init__(str(self.path), tables.build(None, rowid=True))
        self._synchronous = level
        self._watched = files.WatchedFile(self.path)
        self._writer: sqlite3.Connection | None = None
        self._lock: AbstractContextManager[Any] = Lock()
        forks.register(self)

    @property
    def file(self) -> forks.FileId | None:
        """The file that is open."""
        return self._watched.file

    def _make_pool(self) -> Engine:
        use = forks.begin_use(self)
        try:
            with _files_lock:
                if self.file is None:
                    _create(self.path)
                self._reader = _files.setdefault(os.path.realpath(self.path), _File())
            self.readonly = self._watched.readonly = files.only_read(self.path)
            self._identify()
            return files.engine_of_file(self._watched, self, self._on_connect)
        finally:
            forks.end_use(use)

    def _identify(self) -> None:
        """Refuse, before anything is set or written, a file of another program."""
        if not self.path.exists() or not self.path.stat().st_size:
            return
        with closing(self._watched.connect()) as looker:
            # In this order: who makes the store now does both in one transaction.
            (tables_,) = looker.execute("SELECT count(*) FROM sqlite_master").fetchone()
            (made_by,) = looker.execute("PRAGMA application_id").fetchone()
        if made_by != APPLICATION_ID and tables_:
            raise errors.IncompatibleStore(
                f"{self.path} is the database of another program: give a new file"
            )

    def _check_writable(self) -> None:
        if self.readonly:
            raise translated(str(self.path), "readonly")

    def _on_connect(self, connection: Any, _record: object) -> None:
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
        """A transaction that has the write lock from its beginning."""
        engine = self.engine().execution_options(refold_begin="IMMEDIATE")
        self._check_writable()
        return engine.begin()

    @contextmanager
    def casual(self) -> Iterator[Connection]:
        """One that a power cut may take back: it holds the write lock for no disk's
        sake.  The next append makes it durable with itself.
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

    def has_sessions(self) -> bool:
        return bool(self._fetch("", "SELECT 1 FROM heads LIMIT 1", ()))

    def translate(self, error: Exception) -> errors.RefoldError | None:
        if isinstance(error, OSError) and str(error.filename).startswith(
            str(self.path)
        ):
            return errors.StoreUnavailable(
                f"{error.filename} cannot be used ({error.strerror})",
                remedy=errors.remedy_for(error),
            )
        cause = error.orig if isinstance(error, DBAPIError) else error
        if not isinstance(cause, sqlite3.Error):
            return None
        if isinstance(cause, files.CommitFailed):
            return files.outcome_unknown(self.path, cause)
        return moved(str(cause)) or translated(str(self.path), str(cause))

    def prepare(self, connection: Connection) -> None:
        """Mark the file as ours; that it is no other's was seen before."""
        connection.execute(text(f"PRAGMA application_id={APPLICATION_ID}"))

    def lock_schema(self, connection: Connection) -> None:
        """Nothing to do: every transaction of ours begins with the write lock."""

    def guard_events(self, connection: Connection) -> None:
        """Triggers that refuse UPDATE and DELETE."""
        for statement in GUARDS:
            connection.exec_driver_sql(statement)

    def refuse_writes(self, connection: Connection, where: str) -> None:
        """A trigger for each way to write each table; the lock is held already."""
        said = f"{MOVED}{where}".replace("'", "''")
        for table in self.tables.metadata.tables:
            for act in ("INSERT", "UPDATE", "DELETE"):
                values = {"table": table, "act": act, "said": said}
                connection.exec_driver_sql(_SQL["refuse_write"].format(**values))

    def unguarded(self) -> list[str]:
        """Triggers with another text than ours, and those that are not there."""
        query = "SELECT name, sql FROM sqlite_master WHERE type='trigger'"
        there = {name: said.split() for name, said in self._fetch("", query, ())}
        ours = {
            statement.split()[2]: statement.split()
            for statement in GUARDS
            if statement.lstrip().startswith("CREATE")
        }
        names = there.keys() | ours.keys()
        return sorted(name for name in names if there.get(name) != ours.get(name))

    def write_group(self, batches: Sequence[Batch]) -> list[WriteOutcome | Exception]:
        """One transaction for all; if one fails unexpectedly, one for each.

        A file that another process keeps locked fails them all: each would wait.
        """
        try:
            return self._in_transaction(
                lambda connection: list(map(partial(_write, connection), batches))
            )
        except Exception as error:
            ours = self.translate(error) or error
            if len(batches) == 1 or "locked" in str(error):
                return [ours] * len(batches)
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
            found = connection.execute(_SQL["heads"], stream[:2])
            what = build({name: HeadRow(*columns) for name, *columns in found})
            if what is None:
                return False
            _check_process(connection)
            _replace(connection, what)
            insert(what.batch, partial(_write_after, connection))
            return True

        return self._in_transaction(work)

    def flush(self) -> None:
        """Commit once with FULL: that syncs the write-ahead log as far as it goes."""

        def touch(connection: sqlite3.Connection) -> None:
            connection.execute(TOUCH)

        self._check_process()
        use = forks.begin_use(self)
        try:
            with self._lock:
                connection = self._writer or self._written()
                connection.execute("PRAGMA synchronous=FULL")
                try:
                    self._commit(connection, touch)
                finally:
                    connection.execute(f"PRAGMA synchronous={self._synchronous}")
        finally:
            forks.end_use(use)

    def _in_transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do ``work`` while nobody else writes: all of it, or nothing."""
        if self._closed:
            self._check_process()
        use = forks.begin_use(self)
        try:
            with self._lock:
                return self._commit(self._writer or self._written(), work)
        finally:
            forks.end_use(use)

    def _written(self) -> sqlite3.Connection:
        """What writes, which no pool looks after; the lock is held."""
        self._check_writable()
        writer = self._watched.connect()
        self._on_connect(writer, None)
        self._writer = writer
        return writer

    def _commit(
        self,
        connection: sqlite3.Connection,
        work: Callable[[sqlite3.Connection], T],
    ) -> T:
        """Do ``work`` in a transaction of the file that the store opened."""
        try:
            connection.execute("BEGIN IMMEDIATE")
            if not self.in_memory:
                self._watched.check(cast("files.FileConnection", connection))
            done = work(connection)
            connection.commit()
        except BaseException:
            _roll_back(connection)
            raise
        return done

    def close_before_fork(self) -> None:
        """Close all connections before a fork; the next use opens new ones."""
        self._close_writer()
        if self._pool is not None:
            self._pool.dispose()

    def _close_writer(self) -> None:
        writer = self._writer
        # First, so that a handler of a signal finds no writer that is half closed.
        self._writer = None
        if writer is not None:
            writer.close()

    def leave_to_parent(self, *, in_use: bool) -> None:  # noqa: ARG002  # the file says it
        """Begin without connections, in a forked child."""
        self._pool = None
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
        pooled = self.engine().raw_connection()
        try:
            driver = cast("sqlite3.Connection", pooled.driver_connection)
            return driver.execute(query, values).fetchall()
        finally:
            pooled.close()

    def settled(self) -> str:
        """Every committed row: there is one writer, so positions commit in order."""
        return "true"

    def among(self, places: Any, found: Any) -> Any:  # noqa: ARG002  # it is unique
        """The row number is one of these."""
        return literal_column(self.place).in_(places)

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        """Fold the write-ahead log into the file and empty it.

        Deleted cells were overwritten with zeros as they were deleted
        (``secure_delete``); ``vacuum`` writes all anew.
        """
        self._check_process()
        self._check_writable()
        use = forks.begin_use(self)
        try:
            with closing(self._watched.connect()) as own:
                own.isolation_level = None
                own.execute(f"PRAGMA busy_timeout={int(_BUSY * 1000)}")
                own.execute("PRAGMA secure_delete=ON")
                if vacuum:
                    own.execute("VACUUM")
                busy, *_ = own.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            forks.end_use(use)
        return {"vacuum": vacuum, "wal_emptied": not busy}

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """How often each of the names stands in the file and in its logs."""
        telling = {name.encode() for name in names if len(name.encode()) >= _TELLING}
        found = {self.path.name: self._reader.count(self.path, telling)}
        for end in _LOGS:
            log = self._watched.beside(end)
            with suppress(FileNotFoundError), log.open("rb") as opened:
                found[log.name] = _count(opened.fileno(), telling)
        return {
            "files": found,
            "names": len(telling),
            "too_short": len(names) - len(telling),
        }

    def size(self, connection: Connection) -> int:  # noqa: ARG002  # the protocol's
        """Bytes of the file and its write-ahead log."""
        log = self._watched.beside("-wal")
        return sum(file.stat().st_size for file in (self.path, log) if file.exists())

    def store_time(self) -> StoreTime:
        time = ObservedTime(self)
        time.open()
        return time

    def close(self) -> None:
        """Close all connections; the last one out folds the log into the file."""
        use = forks.begin_use(self)  # a fork waits until all are closed
        try:
            with self._lock:
                self._close_writer()
                super().close()
        finally:
            forks.end_use(use)


class SqliteInMemory(SqliteDatabase):
    """SQLite's own database in memory, for tests and trials: nothing survives it."""

    searchable, in_memory = False, True

    def __init__(self) -> None:
        self.path = Path("memory://")
        Database.__init__(self, "in memory", tables.build(None, rowid=True))
        self._synchronous = "OFF"
        self._pool = pool = memory.engine_in_memory()
        with pool.connect() as connection:
            only = connection.connection.driver_connection
        self._writer = cast("memory.OnlyConnection", only)
        self._lock = cast("memory.OnePool", pool.pool)

    def store_time(self) -> StoreTime:
        """That of this process, which nothing of it outlives."""
        return GivenTime(wall)

    @property
    def file(self) -> None:
        """There is none."""

    def _forget(self) -> None:
        """A forked child has a copy of its own."""

    def _in_transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._check_process()
        only = cast("memory.OnlyConnection", self._writer)
        with self._lock:
            only.users += 1
            try:
                return self._commit(only, work)
            finally:
                only.users -= 1

    def flush(self) -> None:
        """Nothing to do: a power cut takes it all."""

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        """Nothing to do: deleted rows were never on a disk."""
        return {"vacuum": vacuum, "wal_emptied": True}

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """There are none."""
        return {"files": {}, "names": len(names), "too_short": 0}

    def size(self, connection: Connection) -> int:
        """Bytes of its pages."""
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return int(pages * connection.exec_driver_sql("PRAGMA page_size").scalar_one())


def _create(path: Path) -> None:
    """Make an empty file that its owner alone can read, unless one is there.

    SQLite makes the files beside it with the same mode.  Where that fails, SQLite says
    why when it opens the file.

    Raises StoreUnavailable for what was left of another store.
    """
    files.check_nothing_left(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with suppress(OSError):
        os.close(os.open(os.path.realpath(path), flags, 0o600))


def _turn_to_wal(connection: sqlite3.Connection) -> None:
    """Turn on the write-ahead log; of a new file many may want that at once.

    SQLite does not wait for who is about it, but for a write lock it does.
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
    if isinstance(connection, forks.OwnConnection):
        connection.rollback()
    elif connection.in_transaction:
        connection.execute("ROLLBACK")


def _check_process(connection: sqlite3.Connection) -> None:
    """Refuse to write in a child that was forked inside the transaction."""
    if isinstance(connection, forks.OwnConnection):
        connection.check_process()


def _head(connection: sqlite3.Connection, stream: StreamId) -> HeadRow | None:
    row = connection.execute(_SQL["head"], stream).fetchone()
    return HeadRow(*row) if row else None


def _write(connection: sqlite3.Connection, batch: Batch) -> WriteOutcome:
    stream = batch.stream
    for used in batch.uses:
        place = *stream, used.address
        found = connection.execute(_SQL["find_receipt"], place).fetchone()
        if found:
            ours = used.address == batch.receipt
            return Duplicate(*found) if ours else Moved(_head(connection, stream))
    if batch.expected_seq:
        known = (batch.expected_seq, batch.expected_hash, batch.head.key_check)
        moved = connection.execute(_SQL["move_head"], (*batch.head, *stream, *known))
    else:
        moved = _begin_stream(connection, batch)
    if not moved.rowcount:
        return Moved(_head(connection, stream))
    first, *more = batch.events
    row = (*stream, *first.columns[1:], first.hash, first.state)
    connection.execute(_SQL["event"], row)
    if more:
        values = [(*stream, *e.columns[1:], e.hash, e.state) for e in more]
        connection.executemany(_SQL["event"], values)
    if batch.blobs or batch.uses:
        _write_beside(connection, batch)
    return Wrote(batch.head)


def _write_after(connection: sqlite3.Connection, batch: Batch) -> WriteOutcome:
    """Write what was built inside the transaction, unless that was forked meanwhile."""
    _check_process(connection)
    return _write(connection, batch)


def _begin_stream(connection: sqlite3.Connection, batch: Batch) -> sqlite3.Cursor:
    """A main stream begins where its user is live, a derived one beside a main one.

    A fork begins where what it goes on from is not erased.
    """
    stream, refs = batch.stream, batch.refs
    if stream.stream == MAIN:
        connection.execute(_SQL["subject"], (refs.user, refs.user, refs.epoch))
    of_user = (refs.user, refs.epoch, refs.session)
    of_origin = (refs.origin, stream.user_id, refs.origin)
    of_main = (stream.user_id, stream.session_id, batch.head.key_check)
    values = (*batch.head, *stream, stream.stream, *of_user, *of_origin, *of_main)
    return connection.execute(_SQL["new_head"], values)


def _write_beside(connection: sqlite3.Connection, batch: Batch) -> None:
    stream, now = batch.stream, batch.head.updated_at
    if batch.blobs:
        rows = [
            (stream.user_id, b.address, b.size, now, b.body, stream.session_id)
            for b in batch.blobs
        ]
        connection.executemany(_SQL["blob"], rows)
    if batch.uses:
        connection.executemany(_SQL["receipt"], [(*stream, *use) for use in batch.uses])
