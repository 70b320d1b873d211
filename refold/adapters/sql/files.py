"""SQLite files that a store has open: their identity, and connections to them."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from refold.adapters.sql import forks
from refold.adapters.sql.forks import FileId, Holder, OwnConnection, file_at
from refold.adapters.sql.queries import statements
from refold.domain.errors import StoreUnavailable

BUSY_MS: Final = 10_000
_TRIES: Final = 5
_IDLE: Final = 5  # connections that stay open


class CommitFailed(sqlite3.OperationalError):
    """A COMMIT failed, and it is unknown whether its changes exist.

    They may be in the write-ahead log, which SQLite replays when it opens the file.
    """


# Files that this process must not close, because that would harm other files.
_never_closed: Final[set[FileId]] = set()


class FileConnection(OwnConnection):
    """A connection to a file that stays in its place.

    log, index: the log and its index, as this connection has them open; None before.
    """

    watched: WatchedFile | None = None
    log: FileId | None = None
    index: FileId | None = None

    def must_stay_open(self) -> bool:
        """Whether closing it would harm a file that others use.

        SQLite removes the log and its index by their names when it closes a file.  They
        may be those of another store by then.
        """
        if super().must_stay_open():
            return True
        if self.watched is None or not self.watched.is_displaced(self):
            return False
        if self.file is not None:
            _never_closed.add(self.file)
        return True

    def commit(self) -> None:
        """Commit.

        Raises CommitFailed, and StoreUnavailable if the file was moved or deleted.
        """
        if self.pid != os.getpid():
            self.check_process()
        writes = self.in_transaction
        try:
            super().commit()
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            # Without a code, SQLite was not called.  These two write nothing.
            if code is None or code & 0xFF in (
                sqlite3.SQLITE_BUSY,
                sqlite3.SQLITE_FULL,
            ):
                raise
            raise CommitFailed(*error.args) from error
        if writes and self.watched is not None:
            self.watched.check_committed()


class WatchedFile:
    """A path, and the file that was there when a store opened it.

    The store uses only that file.  If it was moved, deleted, or replaced, SQLite would
    write into a file that nobody finds again.  The same is true of the log, and of the
    log's index, in which processes lock each other out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.readonly = False
        self.file: FileId | None = None
        self._path = os.fspath(path)
        self._find_log()

    def _find_log(self) -> None:
        """Find the paths of the log and its index."""
        # SQLite follows links to the file, and stores both next to the file itself.
        real = os.path.realpath(self._path)
        self._log = f"{real}-wal"
        self._index = f"{real}-shm"

    def connect(self) -> FileConnection:
        """Return a connection to the file, for any thread.

        Raises StoreUnavailable if another file is there now, or if the parent of this
        process had the file open.
        """
        for _ in range(_TRIES):
            before = file_at(self.path)
            if self.file is None:
                _check_one_name(self.path)
                self._find_log()
            elif before != self.file:
                raise self._displaced()
            forks.check_not_inherited(self.path, before)
            if before in _never_closed:
                raise StoreUnavailable(
                    f"{self.path} or a file next to it was replaced while this process "
                    "had it open, and SQLite cannot go on with it here",
                    remedy="end the process, then open the store again",
                )
            uri = uri_of(self.path, readonly=self.readonly)
            connection = _connection_to(uri)
            if file_at(self.path) == before:
                connection.file = before
                connection.watched = self
                if self.file is None:
                    self.file = before
                return connection
            connection.close()
        raise self._displaced()

    def note_log(self, connection: FileConnection) -> None:
        """Remember the log and the index that the connection has just opened."""
        connection.log = file_at(self._log)
        connection.index = file_at(self._index)

    def check(self, connection: FileConnection) -> None:
        """Raise StoreUnavailable unless all files are where they were opened.

        The connection is in a transaction, in which nobody else removes the log.
        """
        if connection.log is None or connection.index is None:
            self.note_log(connection)
        # This runs for every append, so it calls no function of Refold.
        for path, file in (
            (self._path, self.file),
            (self._log, connection.log),
            (self._index, connection.index),
        ):
            try:
                status = os.stat(path)
            except OSError:
                in_place = file is None
            else:
                in_place = file == (status.st_dev, status.st_ino)
            if not in_place:
                raise self._gone(path)

    def _gone(self, path: str) -> StoreUnavailable:
        """Return the error of a write for a file that is not at this path any more."""
        if path == self._log:
            return StoreUnavailable(
                f"{self._log} was moved, deleted, or replaced while the store was "
                "open: nothing was written",
                remedy="put it back where it was, or restore a backup: it alone has "
                "what was written since the last checkpoint",
            )
        if path == self._index:
            return StoreUnavailable(
                f"{self._index} was moved, deleted, or replaced while the store was "
                "open, and without it two processes may write at once: nothing was "
                "written",
                remedy="end all processes that have the store open, then open it again",
            )
        return self._displaced()

    def is_displaced(self, connection: FileConnection) -> bool:
        """Whether another file is at one of the paths that the connection uses.

        If there is none, closing does no harm, and moves the log into the file.
        """
        file = file_at(self._path)
        if file is not None and file != connection.file:
            return True
        log = file_at(self._log)
        if None not in (log, connection.log) and log != connection.log:
            return True
        index = file_at(self._index)
        return None not in (index, connection.index) and index != connection.index

    def beside(self, end: str) -> Path:
        """Return the path of a file next to this one, whose name has this end."""
        return Path(os.path.realpath(self._path) + end)

    def check_committed(self) -> None:
        """Raise StoreUnavailable if the file was moved or deleted during a commit."""
        if file_at(self._path) != self.file:
            raise self._displaced("the last change is in the file that was there")

    def _displaced(self, written: str = "nothing was written") -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.path} was moved, deleted, or replaced while the store was open: "
            f"{written}",
            remedy="put the file back where it was with its -wal file, or close the "
            "store and open it again",
        )


def message_of(error: sqlite3.Error) -> str:
    """Return the message of an error; it names a full disk where SQLite does not.

    The first connection makes the index of the log, also to read.
    """
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHMSIZE:
        return "the index of the log cannot grow: the disk is full"
    return str(error)


def outcome_unknown(path: Path, error: CommitFailed) -> StoreUnavailable:
    """Return the error of a store for a COMMIT that failed."""
    return StoreUnavailable(
        f"{path}: the commit failed ({error}), and whether the change was written is "
        "unknown",
        remedy="check the disk, then read what is there; repeating an append is safe "
        "only with the idempotency key that it had",
    )


class Connections:
    """Connections to a file for single statements, each used by one thread at a time.

    A connection is opened when none is idle, and at most ``_IDLE`` stay open.  One that
    is in use during ``close`` is closed when its user returns it.
    """

    def __init__(
        self, watched: WatchedFile, on_connect: Callable[[FileConnection], None]
    ) -> None:
        self._watched = watched
        self._on_connect = on_connect
        # ``close`` and ``forget`` begin a new list.
        self._idle: list[FileConnection] = []

    @contextmanager
    def use(self, holder: Holder) -> Iterator[FileConnection]:
        """Lend a connection for single statements; a fork waits for its return."""
        forks.notice()
        use = forks.begin_use(holder)
        try:
            with self.borrowed() as connection:
                yield connection
        finally:
            forks.end_use(use)

    @contextmanager
    def transaction(self, holder: Holder) -> Iterator[FileConnection]:
        """Begin a transaction, with the write lock if the file can be written.

        Raises StoreUnavailable if the file is not in its place any more.
        """
        mode = "DEFERRED" if self._watched.readonly else "IMMEDIATE"
        with self.use(holder) as connection:
            connection.execute(f"BEGIN {mode}")
            try:
                if not self._watched.readonly:
                    self._watched.check(connection)
                yield connection
                connection.commit()
            except BaseException:
                connection.rollback()
                raise

    @contextmanager
    def borrowed(self) -> Iterator[FileConnection]:
        """Lend a connection in a use that has begun; after an error, it is closed."""
        idle = self._idle
        try:
            connection = idle.pop()
        except IndexError:
            connection = connect(self._watched, self._on_connect)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        # There is no lock, so the order matters.  This adds the connection, then looks
        # for a new list; ``close`` begins a new list, then closes those of the old one.
        idle.append(connection)
        if idle is not self._idle:
            _close_all(idle)
        elif len(idle) > _IDLE:
            _close_one(idle)

    def close(self) -> None:
        """Close the idle connections; the next use opens new ones."""
        idle = self._idle
        self._idle = []
        _close_all(idle)

    def forget(self) -> None:
        """Drop the connections of the parent, in a forked child."""
        self._idle = []


def _close_all(connections: list[FileConnection]) -> None:
    """Close all connections of the list, from which another thread may take one."""
    while connections:
        _close_one(connections)


def _close_one(connections: list[FileConnection]) -> None:
    """Close a connection of the list, if another thread has not taken the last one."""
    with suppress(IndexError):
        connections.pop().close()


def create_missing(connection: sqlite3.Connection, file: str) -> None:
    """Create the tables that a database lacks, with their indexes.

    file: a file of statements.  Each has the name of its table, or that name, a dot,
          and the name of an index.
    """
    query = "SELECT name FROM sqlite_master WHERE type='table'"
    existing = {name for (name,) in connection.execute(query)}
    for name, statement in statements(file).items():
        table, _, _ = name.partition(".")
        if table not in existing:
            connection.execute(statement)


def check_nothing_left(path: Path) -> None:
    """Raise StoreUnavailable if a file is gone, but its log or index is not.

    A new store there would write into a log whose index another process may still have
    open, and the old store's events in the log would be lost.
    """
    real = os.path.realpath(path)
    left = [f"{real}{end}" for end in ("-wal", "-shm") if os.path.exists(real + end)]
    # The file is checked last, because a process creates it before the others.
    if left and not os.path.exists(real):
        raise StoreUnavailable(
            f"{path} is gone, but not {' and '.join(left)}: no new store is made there",
            remedy="put the old file back, or end all processes that had it open and "
            "remove what is left",
        )


def _check_one_name(path: Path) -> None:
    """Raise StoreUnavailable for a folder, and for a file with several names.

    SQLite has a log for each name, and does not read those of the other names.
    """
    with suppress(OSError):
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise StoreUnavailable(f"{path} is a folder", remedy="name a file in it")
        # If two processes create a store at once, an empty file may have two names.
        if status.st_nlink > 1 and status.st_size:
            raise StoreUnavailable(
                f"{path} has {status.st_nlink} names (hard links), and events that are "
                "written under one of them are lost under the others",
                remedy="keep one name: remove the others, or replace them with copies "
                "or symbolic links",
            )


def connect(
    watched: WatchedFile, prepare: Callable[[FileConnection], None]
) -> FileConnection:
    """Return a prepared connection to the file.

    A connection that cannot be prepared, as to a file that is no database, is closed.
    """
    connection = watched.connect()
    try:
        prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _connection_to(uri: str) -> FileConnection:
    """Return a connection to the file of this URI, for any thread."""
    return sqlite3.connect(
        uri,
        uri=True,
        timeout=BUSY_MS / 1000,
        check_same_thread=False,
        cached_statements=256,
        factory=FileConnection,
    )


def is_readonly(path: Path) -> bool:
    """Whether the file exists, and this process cannot write it.

    To write it, SQLite must create or write the index of its log, too.
    """
    path = Path(os.path.realpath(path))
    if not path.exists():
        return False
    index = path.with_name(f"{path.name}-shm")
    has_index = os.access(path.parent, os.W_OK) or os.access(index, os.W_OK)
    return not (os.access(path, os.W_OK) and has_index)


def uri_of(path: Path, *, readonly: bool) -> str:
    """Return the URI that opens an existing file.

    SQLite reads a log next to a file that cannot be written, if the index of the log
    exists or can be created.  Without a log, the file is complete.

    Raises StoreUnavailable for a log that cannot be read.
    """
    path = Path(os.path.realpath(path))
    uri = path.as_uri()
    if not readonly:
        return f"{uri}?mode=rw"
    wal = path.with_name(f"{path.name}-wal")
    index = path.with_name(f"{path.name}-shm")
    journal = path.with_name(f"{path.name}-journal")
    has_log = any(file.exists() and file.stat().st_size for file in (wal, journal))
    if not has_log and not (wal.exists() and index.exists()):
        return f"{uri}?mode=ro&immutable=1"
    if wal.exists() and not index.exists() and not os.access(path.parent, os.W_OK):
        raise StoreUnavailable(
            f"{path} cannot be read where it lies: part of it is in {wal.name}",
            remedy="copy both to a folder that can be written",
        )
    return f"{uri}?mode=ro"
