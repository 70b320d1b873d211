"""Forks of this process: SQLite files are closed before one and opened again after it.

SQLite keeps a table of its locks in the memory of a process.  A forked child inherits
the table, but not the locks.  So the child relies on locks that it does not have.
Another process then deletes the write-ahead log, and the commits of the child are lost
(sqlite.org/howtocorrupt.html, 2.6).  Nothing repairs the table in the child, not even
closing the file.  So every connection to a file is closed before a fork, and parent and
child open new ones when they need them.

The child inherits a connection that cannot be closed in time, because a thread uses it.
It inherits every connection if the fork runs no hooks of Python (a fork in C).  From
then on, the child refuses such a file, and never touches the connection.
"""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from threading import Condition, Lock, get_ident
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakSet

from refold.domain.errors import StoreUnavailable

# Seconds for which a fork waits until other threads have ended their use of files.
PATIENCE = 5.0
# How every SQLite file begins.
_MAGIC: Final = b"SQLite format 3\0"


class Holder(Protocol):
    """An object with connections to a database, which it opens on first use."""

    def close_before_fork(self) -> None:
        """Close all connections, in a process that goes on; no thread uses one."""

    def leave_to_parent(self, *, in_use: bool) -> None:
        """Drop all connections of the parent without closing them, in its child.

        in_use: whether a thread of the parent was using one during the fork.
        """


class Use:
    """The time in which a thread works with the connections of a holder."""

    __slots__ = ("holder", "process", "thread")

    holder: Holder
    process: _Process
    thread: int


class FileId(NamedTuple):
    """The identity of a file, which does not depend on its name."""

    device: int
    inode: int


def file_at(path: str | os.PathLike[str]) -> FileId | None:
    """Return the file that is at the path now; None if there is none."""
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
        self.is_closed = False
        super().__init__(*arguments, **options)
        _open_connections.add(self)

    def must_stay_open(self) -> bool:
        """Whether closing it would harm a file that others use."""
        return self.pid != os.getpid()

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
        """Close it, unless it must stay open for as long as this process lives."""
        if self.must_stay_open():
            _keep_for_ever(self)
            return
        _open_connections.discard(self)
        self.is_closed = True
        super().close()

    def __del__(self) -> None:
        # The files of a closed connection may have been replaced since then.
        if not self.is_closed and self.must_stay_open():
            _keep_for_ever(self)


# Connections of this process that were not closed.
_open_connections: Final = WeakSet[OwnConnection]()
# Descriptors by which Refold reads the bytes of a database's file, without any lock.
plain_descriptors: Final = set[int]()


def _keep_for_ever(connection: OwnConnection) -> None:
    """Keep the garbage collector from closing it, even when the interpreter ends.

    Closing would write to the parent's files.
    """
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


class _Process:
    """The uses of files by one process, and its forks."""

    def __init__(self, inherited: Iterable[FileId] = ()) -> None:
        self.pid = os.getpid()
        # Guards the attributes below.  Its lock is reentrant, because the garbage
        # collector or a signal handler may begin and end a use under the lock.
        self.changed = Condition()
        self.uses: set[Use] = set()
        # Threads between the hook before a fork and the fork itself.
        self.forking: list[int] = []
        # The ids of holders that a thread uses during a fork; None while connections
        # are still being closed for it.
        self.left_open: set[int] | None = None
        # Files that the parent had open, and that are refused here.
        self.inherited = frozenset(inherited)

    def uses_of(self, thread: int) -> list[Use]:
        """Return the uses that this thread has begun and not ended."""
        return [use for use in list(self.uses) if use.thread == thread]

    def users(self) -> set[int]:
        """Return the ids of the holders that any thread uses now."""
        return {id(use.holder) for use in list(self.uses)}


_process = _Process()
_holders: Final = WeakSet[Holder]()
# One for each process, so that no child waits for a lock of its parent.
_becoming: Final[dict[int, Lock]] = {}


def register(holder: Holder) -> None:
    """Close the connections of the holder before each fork from now on."""
    _holders.add(holder)


def _current() -> _Process:
    """Return the state of this process.

    The first call after a fork without hooks notices that fork.
    """
    if _process.pid != os.getpid():
        _become_child()
    return _process


def notice() -> None:
    """In a forked child, drop the inherited connections, unless that is done."""
    _current()


def begin_use(holder: Holder) -> Use:
    """Begin to use connections of the holder; waits while a fork is about to happen.

    A thread does not wait for the fork in three cases:

    - It uses another connection already, so that the fork waits for it.
    - It forks itself, and a signal handler calls this.
    - It has waited too long, since the fork may wait for a lock that it has.
    """
    process = _process
    if process.pid != os.getpid():
        process = _current()
    use = Use()
    use.holder = holder
    use.process = process
    use.thread = get_ident()
    # There is no lock, so the order matters.  This adds a use and then looks for forks;
    # a fork adds itself and then looks for uses.  At least one of them sees the other.
    process.uses.add(use)
    if process.forking:
        _let_forks_pass(process, use)
    return use


def _let_forks_pass(process: _Process, use: Use) -> None:
    """Wait until no fork is about to happen, unless this thread must not wait.

    A thread that does not wait marks its holder as in use during the fork.
    """
    # A fork closes connections while it holds the lock, so none is being closed here.
    with process.changed:
        uses_another = len(process.uses_of(use.thread)) > 1
        if not uses_another and use.thread not in process.forking:
            process.uses.discard(use)
            process.changed.notify_all()
            process.changed.wait_for(lambda: not process.forking, 2 * PATIENCE)
            process.uses.add(use)
        if process.left_open is not None:
            process.left_open.add(id(use.holder))


def end_use(use: Use) -> None:
    """End what ``begin_use`` began."""
    process = use.process
    process.uses.discard(use)
    if process.forking and process is _process:
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
        """Disconnect all of them from the server, in this process alone.

        A library may send a message when it closes a connection.  The message reaches
        no server, so the parent can use the connection further.
        """
        for driver in list(self._drivers):
            with suppress(Exception):  # the connection is closed already, or broken
                _lead_nowhere(driver.fileno())
        self._drivers = WeakSet()


def _lead_nowhere(descriptor: int) -> None:
    """Put a socket without a peer in the place of this one."""
    orphan, peer = socket.socketpair()
    peer.close()
    try:
        os.dup2(orphan.fileno(), descriptor, inheritable=False)
    finally:
        orphan.close()


def _before_fork() -> None:
    """Close all connections that no thread uses, or stops using in time."""
    process = _current()
    thread = get_ident()
    with process.changed:
        process.left_open = None
        process.forking.append(thread)
        # If this thread uses a connection itself, others may wait for it: then waiting
        # for them would never end.
        if not process.uses_of(thread):
            process.changed.wait_for(lambda: not process.uses, PATIENCE)
        # The lock stays taken, so that no thread opens a connection to a file that is
        # closed here, and no other fork happens while a file is half closed.
        left_open = process.users()
        _close_all_but(left_open)
        process.left_open = left_open


def _close_all_but(left_open: set[int]) -> None:
    """Close the connections of all holders except these.

    The child inherits connections that cannot be closed, and refuses their files.
    """
    for holder in list(_holders):
        if id(holder) not in left_open:
            with suppress(sqlite3.Error):
                holder.close_before_fork()
    if left_open:
        return
    # Some have no holder any more, such as those of a pool that was replaced.
    for connection in list(_open_connections):
        with suppress(sqlite3.Error):
            connection.close()


def _after_in_parent() -> None:
    process = _process
    thread = get_ident()
    with process.changed:
        # A host program in C may call this hook without the one before the fork.
        if thread in process.forking:
            process.forking.remove(thread)
        process.changed.notify_all()


def _become_child() -> None:
    """Drop the connections that this process inherited from its parent."""
    global _process
    with _becoming.setdefault(os.getpid(), Lock()):
        if _process.pid == os.getpid():
            return
        parent = _process
        inherited = set(parent.inherited)
        inherited |= _files_of_open_descriptors()
        for connection in list(_open_connections):
            if connection.pid != os.getpid():
                _keep_for_ever(connection)
                _open_connections.discard(connection)
                if connection.file is not None:
                    inherited.add(connection.file)
        in_use = _used_during_fork(parent)
        for holder in list(_holders):
            holder.leave_to_parent(in_use=id(holder) in in_use)
        _process = _Process(inherited)


def _used_during_fork(parent: _Process) -> set[int]:
    """Return the ids of holders that a thread of the parent used during the fork."""
    hook_ran = get_ident() in parent.forking
    if hook_ran and parent.left_open is not None:
        return parent.left_open
    return parent.users()


def _files_of_open_descriptors() -> set[FileId]:
    """Return the SQLite files that are open in this process, for any reason.

    Right after a fork, these are files whose locks this process does not have.
    """
    files: set[FileId] = set()
    descriptors: list[str] = []
    with suppress(OSError):
        descriptors = os.listdir("/dev/fd")
    for name in descriptors:
        descriptor = int(name)
        if descriptor in plain_descriptors:
            continue
        with suppress(OSError):
            status = os.fstat(descriptor)
            if S_ISREG(status.st_mode) and os.pread(descriptor, 16, 0) == _MAGIC:
                files.add(FileId(status.st_dev, status.st_ino))
    return files


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_in_parent,
        after_in_child=_become_child,
    )
