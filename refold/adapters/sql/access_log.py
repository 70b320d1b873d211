"""The access log of a store: accesses wait in memory, and a thread writes records."""

from __future__ import annotations

import atexit
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from logging.handlers import WatchedFileHandler
from pathlib import Path
from threading import Condition, RLock, Thread
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import delete, literal_column, select, update

from refold.adapters.keys.ring import KeyRing, UserKey
from refold.adapters.sql.database import NOBODY, Database
from refold.domain.access_log import Access, AccessRecord, AccessSink
from refold.domain.erasure import ErasureScope
from refold.domain.errors import (
    Erased,
    InvalidConfiguration,
    KeyUnavailable,
    RefoldError,
)
from refold.domain.events import JsonObject
from refold.store.store import now

_PURPOSE: Final = "audit"
# The bytes of a hash.  Among a billion users, the chance of two equal ones is 1e-21.
_SIZE: Final = 16


class Names(NamedTuple):
    """The keyed hashes of a user, a session and a request; None names nobody."""

    user: str | None = None
    session: str | None = None
    request: str | None = None


@dataclass(frozen=True, slots=True)
class AccessNames:
    """Makes the hashes, only with the user's own key.

    Users who are unknown, were erased, or have no key yet are not named.
    """

    keys: KeyRing

    def for_batch(self) -> Callable[[Access], Names]:
        """Return a function that names the accesses of one batch.

        It hashes each user and session once.
        """
        names_of = cache(self._names_of)

        def names_of_access(access: Access) -> Names:
            user_id = access.user_id
            # An erased user's key may still be cached, but must not be used.
            if user_id is None or access.error == "Erased":
                return Names()
            names = names_of(user_id, access.session_id)
            if access.request_id is None or names.user is None:
                return names
            key = self.keys.user(user_id, now=None)
            request = _hash(key, b"request", access.request_id)
            return names._replace(request=request)

        return names_of_access

    def _names_of(self, user_id: str, session_id: str | None) -> Names:
        """Return the hashes of a user and a session; none if there is no key."""
        try:
            key = self.keys.user(user_id, now=None)
        except Exception:  # a record that names nobody is better than none
            return Names()
        return _names(key, session_id)

    def to_find(self, user_id: str, session_id: str | None) -> Names:
        """Return the hashes to search for; none if there is no such user.

        Raises Erased, and KeyUnavailable if the user's key cannot be unwrapped.
        """
        self.keys.forget(user_id)
        entry = self.keys.store.get_user(self.keys.user_ref(user_id))
        if entry is None:
            return Names()
        if entry.wrapped is None:
            raise Erased("the user")
        return _names(self.keys.user(user_id, now=None), session_id)


def to_forget(keys: KeyRing, scope: ErasureScope) -> JsonObject:
    """Return the hashes in the records of a user or of sessions that are erased.

    An erasure stores them until it has removed them from the records.  They must be
    made before the key is destroyed.
    """
    try:
        key = keys.user(scope.user_id, now=None)
    except (Erased, KeyUnavailable):
        return {}
    sessions: Any = None
    if scope.sessions is not None:
        sessions = [_names(key, name).session for name in scope.sessions]
    return {"user": _names(key, None).user, "sessions": sessions}


def _names(key: UserKey, session_id: str | None) -> Names:
    """Return the hashes of a user and a session.

    Equal session ids of two users have different hashes.
    """
    user = _hash(key, b"user", "")
    if session_id is None:
        return Names(user)
    return Names(user, _hash(key, b"session", session_id))


def _hash(key: UserKey, kind: bytes, name: str) -> str:
    """Return the keyed hash of a name, in hex."""
    return key.mac(_PURPOSE, kind, name.encode("utf-8", "surrogatepass"))[:_SIZE].hex()


MOST: Final = 10_000  # waiting accesses; further ones are only counted
BATCH: Final = 500  # records that are written at once
EVERY_SEC: Final = 0.5  # the longest wait of an access, while the sinks work
_PAGE: Final = 1000
_ROWS: Final = 2_000  # rows of one transaction
# The columns that an erasure empties.
_NAMING: Final = ("user_hash", "session_hash", "request_hash", "state_version")
OVERFLOW: Final = "audit_overflow"

logger = logging.getLogger("refold")


class StoredTrail:
    """Accepts accesses without waiting; one thread writes them as records.

    A kill loses the waiting accesses (at most ``most``) and the current batch (at most
    ``BATCH``).  While the sinks work, it loses only those of the last ``every``
    seconds.  If too many accesses come, a record says how many were lost.

    A sink that fails gets the same records again, and no others until it accepts them.
    ``close`` gives them up with a warning.
    """

    def __init__(
        self,
        sinks: Sequence[AccessSink],
        rows: AccessTable,
        names: AccessNames,
        *,
        clock: Callable[[], int],
        most: int = MOST,
        every: float = EVERY_SEC,
    ) -> None:
        self._sinks = tuple(sinks)
        self._rows = rows
        self._names = names
        self._clock = clock
        self._most = most
        self._every = every
        self._closed = False
        self._registered = False
        self._numbers = count()
        self._start_empty()

    def _start_empty(self) -> None:
        """Start without waiting accesses, at first and in a forked child.

        The parent writes those that waited before a fork.
        """
        self._pid = os.getpid()
        # While a thread has the lock, the garbage collector may end a dropped iterator.
        # That end is noted, too, so the thread must be able to lock twice.
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._waiting: deque[tuple[int, Access]] = deque()
        # The records that a sink has not accepted, by the index of the sink.
        self._unwritten: dict[int, list[AccessRecord]] = {}
        self._lost = 0
        self._ending = False
        self._complained = False
        self._thread: Thread | None = None

    @property
    def on(self) -> bool:
        """Whether there is any sink."""
        return bool(self._sinks)

    def note(self, access: Access) -> None:
        """Queue an access for the thread; only count it if too many wait."""
        if self._pid != os.getpid():
            self._start_empty()
        with self._lock:
            if self._closed or len(self._waiting) >= self._most:
                self._lost += 1
                return
            self._waiting.append((self._clock(), access))
            if self._thread is None:
                self._start()
            elif len(self._waiting) in (1, BATCH):
                self._changed.notify_all()

    def _start(self) -> None:
        """Start the thread, if that is possible."""
        # A daemon, so that a store that nobody closes lets the process end.
        thread = Thread(target=self._run, name="refold-audit", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends; ``flush`` tries again
            return
        self._thread = thread
        if not self._registered:
            self._registered = True
            atexit.register(self.close)

    def find(
        self, user_id: str | None, session_id: str | None, *, since: int | None
    ) -> Iterator[AccessRecord]:
        """Return the records in the table, which are read in pages."""
        self.flush()
        names = Names()
        if user_id is not None:
            names = self._names.to_find(user_id, session_id)
            if names.user is None:
                return iter(())
        return self._pages(names, since)

    def _pages(self, names: Names, since: int | None) -> Iterator[AccessRecord]:
        """Yield the records of a user, of a session, or all."""
        after = b""
        while page := self._rows.find(
            user=names.user,
            session=names.session,
            since=since,
            limit=_PAGE,
            after=after,
        ):
            yield from page
            after = page[-1].record_id

    def purge(self, before: int) -> int:
        self.flush()
        return sum(self._rows.purge(before))

    def flush(self) -> None:
        """Write all waiting accesses, or try to, and end the thread."""
        if self._pid != os.getpid():
            self._start_empty()
        with self._lock:
            has_work = self._waiting or self._unwritten or self._lost
            if self._thread is None and has_work:
                self._start()
            thread = self._thread
            self._ending = thread is not None
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Write the waiting accesses; records that a sink does not accept are lost."""
        self.flush()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            unwritten = max(map(len, self._unwritten.values()), default=0)
            lost = self._lost + len(self._waiting) + unwritten
        atexit.unregister(self.close)
        if lost:
            logger.warning("%d audit records could not be written", lost)
        for sink in self._sinks:
            sink.close()

    def _run(self) -> None:
        """Write accesses, at most ``every`` seconds late, until ``flush`` ends this."""
        while True:
            with self._lock:
                self._changed.wait_for(
                    lambda: self._waiting or self._unwritten or self._ending
                )
                self._changed.wait_for(self._must_write, timeout=self._every)
                accesses, lost = self._next_batch()
            self._write(accesses, lost)
            with self._lock:
                if self._ending and (self._unwritten or not self._waiting):
                    self._ending = False
                    self._thread = None
                    return

    def _must_write(self) -> bool:
        """Whether there is no reason to wait for further accesses."""
        if self._ending:
            return True
        return len(self._waiting) >= BATCH and not self._unwritten

    def _next_batch(self) -> tuple[list[tuple[int, Access]], int]:
        """Take the next accesses, with the number of lost ones; none before a retry.

        The caller holds the lock.
        """
        if self._unwritten:
            return [], 0
        size = min(BATCH, len(self._waiting))
        accesses = [self._waiting.popleft() for _ in range(size)]
        lost = self._lost
        self._lost = 0
        return accesses, lost

    def _write(self, accesses: Sequence[tuple[int, Access]], lost: int) -> None:
        """Let each sink write the records that it has not accepted yet."""
        if accesses or lost:
            records = self._records(accesses, lost)
            self._unwritten = dict.fromkeys(range(len(self._sinks)), records)
        for index, records in list(self._unwritten.items()):
            try:
                self._sinks[index].write(records)
            except Exception as error:
                self._complain(error)
            else:
                del self._unwritten[index]
        self._complained = bool(self._unwritten)

    def _complain(self, error: Exception) -> None:
        """Log the first error of a sink."""
        if self._complained:
            return
        reason = type(error).__name__
        if isinstance(error, RefoldError):
            reason = str(error)
        logger.warning("audit records wait, they cannot be written: %s", reason)

    def _records(
        self, accesses: Sequence[tuple[int, Access]], lost: int
    ) -> list[AccessRecord]:
        """Return the records of accesses, and one about lost accesses."""
        names_of = self._names.for_batch()
        records = []
        for at, access in accesses:
            number = next(self._numbers)
            records.append(_record(at, access, names_of(access), number=number))
        if lost:
            overflow = Access(OVERFLOW, status="error", counts={"lost": lost})
            number = next(self._numbers)
            records.append(_record(self._clock(), overflow, Names(), number=number))
        return records


def _record(at: int, access: Access, names: Names, *, number: int) -> AccessRecord:
    """Return the record of an access.

    The number keeps the order of records of the same microsecond.
    """
    suffix = (number & 0x3FFFFFFF).to_bytes(4, "big") + os.urandom(4)
    return AccessRecord(
        record_id(at, suffix),
        at,
        access.event,
        names.user,
        names.session,
        names.request,
        access.seq,
        ",".join(access.event_types) or None,
        access.duration_us,
        access.status,
        access.error,
        access.counts,
    )


def record_id(at: int, suffix: bytes = bytes(8)) -> bytes:
    """Return a UUID of version 7 that contains microseconds (RFC 9562, 6.2, method 3).

    Without ``suffix``, it is the lowest id of its time, after all older ones.
    """
    milliseconds, microseconds = divmod(max(at, 0), 1000)
    fraction = microseconds * 4096 // 1000
    head = (milliseconds & ((1 << 48) - 1)) << 16 | 0x7000 | fraction
    return head.to_bytes(8, "big") + bytes([0x80 | suffix[0] & 0x3F]) + suffix[1:]


LOGGER: Final = "refold.audit"
_LEVELS: Final = {"INFO": logging.INFO, "WARN": logging.WARNING, "ERROR": logging.ERROR}


class _PrivateFile(WatchedFileHandler):
    """A file for its owner alone, which is created again if it was moved away."""

    def _open(self) -> Any:
        return open(
            self.baseFilename,
            self.mode,
            encoding=self.encoding,
            opener=lambda path, flags: os.open(path, flags, 0o600),
        )


class LinesSink:
    """Writes each record as a line: to the logger ``refold.audit``, or to one handler.

    ``logging`` reports handlers that fail; the line is not written again.
    """

    def __init__(self, handler: logging.Handler | None = None) -> None:
        self._logger = logging.getLogger(LOGGER)
        self._handler = handler

    @classmethod
    def file(cls, path: Path) -> LinesSink:
        """Write lines to the end of a file that only its owner can read.

        If the file was moved away, it is created again.  Raises InvalidConfiguration.
        """
        try:
            return cls(_PrivateFile(path, encoding="utf-8"))
        except OSError as error:
            raise InvalidConfiguration(
                f"the audit file {path} cannot be written ({error.strerror})"
            ) from None

    def write(self, records: Sequence[AccessRecord]) -> None:
        for record in records:
            level = _LEVELS[record.level]
            if self._handler is None and not self._logger.isEnabledFor(level):
                continue
            line = orjson.dumps(record.to_json()).decode()
            if self._handler is None:
                self._logger.log(level, line)
            else:
                log_record = logging.LogRecord(LOGGER, level, "", 0, line, None, None)
                self._handler.handle(log_record)

    def close(self) -> None:
        if self._handler is not None:
            self._handler.close()


class AccessTable:
    """A sink that stores records in a table, where they can be read and deleted.

    A record that is written twice is stored once.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._t = database.tables.audit
        columns = self._t.c.keys()
        marks = ", ".join([database.mark] * len(columns))
        names = f"{self._t.fullname} ({', '.join(columns)})"
        self._insert = f"INSERT INTO {names} VALUES ({marks}) ON CONFLICT DO NOTHING"

    def write(self, records: Sequence[AccessRecord]) -> None:
        """Store records; a power failure may lose the newest.

        A database that can only be read stores none.
        """
        rows = [_row(record) for record in records]

        def attempt() -> None:
            with self._database.writing_relaxed() as connection:
                connection.exec_driver_sql(self._insert, rows)

        if rows and not self._database.readonly:
            self._database.attempt(attempt)

    def find(
        self,
        *,
        user: str | None = None,
        session: str | None = None,
        since: int | None = None,
        limit: int,
        after: bytes = b"",
    ) -> list[AccessRecord]:
        """Return the first records after the record ``after``, the oldest first.

        session: requires ``user``, too.
        since:   in microseconds since 1970.
        limit:   the largest number of records.
        """
        table = self._t
        query = select(*table.c).where(table.c.record_id > after)
        if since is not None:
            query = query.where(table.c.record_id >= record_id(since))
        if user is not None:
            query = query.where(table.c.user_hash == user)
        if session is not None:
            query = query.where(table.c.session_hash == session)
        query = query.order_by(table.c.record_id).limit(limit)
        return [_record_in(row) for row in self._database.read(NOBODY, query)]

    def purge(self, before: int) -> Iterator[int]:
        """Delete older records in batches; yields their numbers."""
        old = self._t.c.record_id < record_id(before)
        return self._in_batches(old, lambda rows: delete(self._t).where(rows))

    def forget(self, user: str, sessions: Sequence[str] | None = None) -> int:
        """Remove the hashes and seqs from the records of a user or of sessions.

        Afterwards, nobody can find out which records belong to the same user.  The
        operations and their times stay.  Returns the number of records.
        """
        condition = self._t.c.user_hash == user
        if sessions is not None:
            condition &= self._t.c.session_hash.in_(list(sessions))
        empty = dict.fromkeys(_NAMING)
        numbers = self._in_batches(
            condition, lambda rows: update(self._t).where(rows).values(empty)
        )
        return sum(numbers)

    def _in_batches(
        self, condition: Any, change: Callable[[Any], Any]
    ) -> Iterator[int]:
        """Change the rows that meet a condition in batches, until none does.

        change: returns the statement that changes these rows.
        """
        place: Any = literal_column(self._database.place_column)
        batch = select(place).select_from(self._t).where(condition).limit(_ROWS)
        statement = change(self._database.among(batch, condition))
        while number := self._database.run_among(NOBODY, statement):
            yield number

    def close(self) -> None:
        """Do nothing, because the recorder closes the database."""


def _row(record: AccessRecord) -> tuple[Any, ...]:
    """Return the row of a record; the columns have the order of its fields."""
    return (*record[:-1], orjson.dumps(record.meta).decode())


def _record_in(row: Any) -> AccessRecord:
    """Return the record in a row."""
    counts = orjson.loads(row[-1])
    return AccessRecord._make((bytes(row[0]), *row[1:-1], counts))


_FILE: Final = "file:"


def open_trail(
    chosen: str | AccessSink,
    rows: AccessTable,
    keys: KeyRing,
    *,
    clock: Callable[[], int] = now,
) -> StoredTrail:
    """Return the access log of a store.

    chosen: the names of the sinks, or a sink.
    rows:   the table that is read, and written if it is one of the sinks.

    Raises InvalidConfiguration for another word, and for a file that cannot be written.
    """
    sinks = sinks_of(chosen, rows) if isinstance(chosen, str) else [chosen]
    return StoredTrail(sinks, rows, AccessNames(keys), clock=clock)


def sinks_of(chosen: str, rows: AccessTable) -> list[AccessSink]:
    """Return the named sinks, each once."""
    if chosen.strip() == "off":
        return []

    sinks: dict[str, AccessSink] = {}
    for word in filter(None, map(str.strip, chosen.split(","))):
        if word == "table":
            sinks[word] = rows
        elif word == "log":
            sinks[word] = LinesSink()
        elif word.startswith(_FILE) and word != _FILE:
            path = Path(word.removeprefix(_FILE)).expanduser()
            sinks[word] = LinesSink.file(path)
        elif word != "off":
            raise InvalidConfiguration(
                f"the access log (audit) goes to table, log, {_FILE}PATH or off, "
                "several with commas: what was given is none of these"
            )
    return list(sinks.values())
