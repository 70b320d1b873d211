"""Forks of this process: SQLite files are closed before one and opened again after it.

SQLite keeps the locks of a process in the memory of that process.  A forked child
inherits the memory, but not the locks: it believes that it holds locks that it does
not hold, another process deletes the write-ahead log, and what the child commits is
lost (sqlite.org/howtocorrupt.html, 2.6).  Nothing repairs that table in the child, not
even closing the file.  So before a fork every connection to a file is closed, and
parent and child open new ones when they need them.

A connection that cannot be closed in time, because a thread uses it, is inherited.  So
is every connection if the fork runs no hooks of Python (a fork in C).  From then on the
child refuses such a file, and never touches the connection.
"""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Condition, Lock, get_ident
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakSet

from refold.domain.errors import StoreUnavailable

# Seconds for which a fork waits until other threads have ended their use of files.
PATIENCE = 5.0


class Holder(Protocol):
    """What has connections to a database open, and opens them when they are needed."""

    def close_before_fork(self) -> None:
        """Close all connections, in a process that goes on; no thread uses one."""

    def leave_to_parent(self, *, in_use: bool) -> None:
        """Drop all connections of the parent without closing them, in its child.

        ``in_use``: a thread of the parent was using one during the fork.
        """


class Use:
    """One thread at work with a holder's connections."""

    __slots__ = ("holder", "process", "thread")

    holder: Holder
    process: _Process
    thread: int


class FileId(NamedTuple):
    """Which file it is, whatever its name."""

    device: int
    inode: int


def file_at(path: str | os.PathLike[str]) -> FileId | None:
    """The file that is at the path now; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return FileId(status.st_dev, status.st_ino)


class OwnConnection(sqlite3.Connection):
    """A connection to a file, for the process that opened it and none of its children.

    A child neither closes it nor sends anything to it.
    """

    file: FileId | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.pid = os.getpid()
        super().__init__(*arguments, **options)
        _open_connections.add(self)

    def check_process(self) -> None:
        """Raise StoreUnavailable in a child of the process that opened this."""
        if self.pid != os.getpid():
            raise StoreUnavailable(
                "this process was forked inside a transaction of its parent",
                remedy="fork outside of it; the parent's transaction is not affected",
            )

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        self.check_process()
        return super().cursor(*arguments, **options)

    def rollback(self) -> None:
        """Roll back; in a child of the process that opened this, do nothing."""
        if self.pid == os.getpid():
            super().rollback()

    def close(self) -> None:
        """Close it; in a child of the process that opened this, do nothing."""
        if self.pid == os.getpid():
            _open_connections.discard(self)
            super().close()

    def __del__(self) -> None:
        if self.pid != os.getpid():
            _keep_for_ever(self)


# Connections of this process that were not closed.
_open_connections: Final = WeakSet[OwnConnection]()
# Descriptors by which Refold reads the bytes of a database's file, without any lock.
plain_descriptors: Final = set[int]()


def _keep_for_ever(connection: OwnConnection) -> None:
    """Let no garbage collection close it, not even at the end of the interpreter.

    Closing would write to the parent's files.
    """
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


class _Process:
    """Uses of files by a process, and forks that are about to happen."""

    def __init__(self, inherited: Iterable[FileId] = ()) -> None:
        self.pid = os.getpid()
        # Reentrant: garbage that is collected while it is held may end a use.
        self.changed = Condition()
        self.uses: set[Use] = set()
        self.forks = 0
        # Holders whose connections the fork that is about to happen leaves open.
        self.left_open: set[int] = set()
        self.inherited = frozenset(inherited)


_process = _Process()
_holders: Final = WeakSet[Holder]()
# One for each process, so that no child waits for a lock of its parent.
_becoming: Final[dict[int, Lock]] = {}


def register(holder: Holder) -> None:
    """Have the holder let go of its connections before each fork."""
    _holders.add(holder)


def _current() -> _Process:
    """This process; the first call after a fork without hooks notices that fork."""
    if _process.pid != os.getpid():
        _become_child()
    return _process


def notice() -> None:
    """Have the holders drop what they inherited, in a child that has not done so."""
    _current()


def begin_use(holder: Holder) -> Use:
    """Begin to use connections of the holder; waits while a fork is about to happen.

    A thread that uses another connection already does not wait: the fork waits for it.
    """
    process = _process
    if process.pid != os.getpid():
        process = _current()
    use = Use()
    use.holder = holder
    use.process = process
    use.thread = get_ident()
    # In this order, without a lock: a fork looks at the uses after it has said that it
    # comes, so that either sees the other.
    process.uses.add(use)
    if process.forks:
        _let_forks_pass(process, use)
    return use


def _let_forks_pass(process: _Process, use: Use) -> None:
    with process.changed:
        if len(_uses_of_thread(process, use.thread)) > 1:
            return
        while process.forks:
            process.uses.discard(use)
            process.changed.notify_all()
            process.changed.wait_for(lambda: not process.forks)
            process.uses.add(use)


def end_use(use: Use) -> None:
    """End what ``begin_use`` began."""
    process = use.process
    process.uses.discard(use)
    if process.forks and process is _process:
        with process.changed:
            process.changed.notify_all()


def check_not_inherited(path: Path, file: FileId | None) -> None:
    """Raise StoreUnavailable for a file that the parent of this process had open."""
    if file in _current().inherited:
        raise StoreUnavailable(
            f"{path} was open when this process was forked, and SQLite cannot go on "
            "with it here",
            remedy="close the store before the fork and open it after, or start the "
            "process with spawn or forkserver",
        )


class Sockets:
    """Connections of a process to a server, none of which a forked child may use."""

    def __init__(self) -> None:
        self._drivers: WeakSet[Any] = WeakSet()

    def note(self, driver: Any, _record: object = None) -> None:
        """Remember a connection that was opened."""
        self._drivers.add(driver)

    def sever(self) -> None:
        """Let all of them lead nowhere, in this process alone.

        Whatever a library sends when it gives a connection up reaches no server: the
        parent goes on with the connection.
        """
        for driver in list(self._drivers):
            with suppress(Exception):  # it is closed already, or broken
                _lead_nowhere(driver.fileno())
        self._drivers = WeakSet()


def _lead_nowhere(descriptor: int) -> None:
    ours, other = socket.socketpair()
    other.close()
    try:
        os.dup2(ours.fileno(), descriptor, inheritable=False)
    finally:
        ours.close()


def _uses_of_thread(process: _Process, thread: int) -> list[Use]:
    return [use for use in list(process.uses) if use.thread == thread]


def _before_fork() -> None:
    """Close all connections to files that no thread uses, or stops using in time."""
    process = _current()
    thread = get_ident()
    with process.changed:
        process.forks += 1
        # Others may wait for what this thread holds: then waiting is in vain.
        own = _uses_of_thread(process, thread)
        quiet = not own and process.changed.wait_for(lambda: not process.uses, PATIENCE)
        # A use that begins from now on waits for the fork, and has opened nothing.
        process.left_open = set()
        if not quiet:
            process.left_open = {id(use.holder) for use in list(process.uses)}
    for holder in list(_holders):
        if id(holder) not in process.left_open:
            # What could not be closed is inherited, and refused by the child.
            with suppress(sqlite3.Error):
                holder.close_before_fork()
    if quiet:
        # A thread that waited for another fork used a pool that was given up by then.
        for connection in list(_open_connections):
            with suppress(sqlite3.Error):
                connection.close()


def _after_in_parent() -> None:
    process = _process
    with process.changed:
        # A host written in C may call this hook, and not the one before.
        process.forks = max(0, process.forks - 1)
        process.changed.notify_all()


def _become_child() -> None:
    """Drop what this process inherited from its parent."""
    global _process
    with _becoming.setdefault(os.getpid(), Lock()):
        if _process.pid == os.getpid():
            return
        parent = _process
        inherited = set(parent.inherited)
        for connection in list(_open_connections):
            if connection.pid != os.getpid():
                _keep_for_ever(connection)
                _open_connections.discard(connection)
                if connection.file is not None:
                    inherited.add(connection.file)
        inherited |= _files_of_open_descriptors()
        in_use = parent.left_open
        if not parent.forks:  # no hook ran before the fork
            in_use = {id(use.holder) for use in parent.uses}
        for holder in list(_holders):
            holder.leave_to_parent(in_use=id(holder) in in_use)
        _process = _Process(inherited)


def _files_of_open_descriptors() -> set[FileId]:
    """Files of holders that something other than Refold has open, with its locks."""
    files: set[FileId] = set()
    for holder in list(_holders):
        file = getattr(holder, "file", None)
        if isinstance(file, FileId):
            files.add(file)
    inherited: set[FileId] = set()
    if not files:
        return inherited
    descriptors: list[str] = []
    with suppress(OSError):
        descriptors = os.listdir("/dev/fd")
    for name in descriptors:
        descriptor = int(name)
        if descriptor in plain_descriptors:
            continue
        with suppress(OSError):
            status = os.fstat(descriptor)
            file = FileId(status.st_dev, status.st_ino)
            if file in files:
                inherited.add(file)
    return inherited


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_in_parent,
        after_in_child=_become_child,
    )
