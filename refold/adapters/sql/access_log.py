"""The access log behind a store: what is noted waits in memory, a thread writes it."""

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
from refold.domain.erasure import Whose
from refold.domain.errors import (
    Erased,
    InvalidConfiguration,
    KeyUnavailable,
    RefoldError,
)
from refold.domain.events import JsonObject
from refold.store.store import now

_PURPOSE: Final = "audit"
_SIZE: Final = 16  # bytes: two of a billion users have one hash with a chance of 1e-21


class Names(NamedTuple):
    """The hashes of a user, of a session and of a request; None: nobody is named."""

    user: str | None = None
    session: str | None = None
    request: str | None = None


@dataclass(frozen=True, slots=True)
class AccessNames:
    """Makes the hashes.

    Only with the user's own key, never with one that outlives it: who is unknown, was
    erased, or has no key yet is not named at all.
    """

    keys: KeyRing

    def remembering(self) -> Callable[[Access], Names]:
        """What names the accesses of one batch, each user and session hashed once."""
        names_of = cache(self._of)

        def named(access: Access) -> Names:
            user_id = access.user_id
            # A key that is still in memory here must not name who was erased.
            if user_id is None or access.error == "Erased":
                return Names()
            names = names_of(user_id, access.session_id)
            if access.request_id is None or names.user is None:
                return names
            key = self.keys.user(user_id, now=None)
            request = _hash(key, b"request", access.request_id)
            return names._replace(request=request)

        return named

    def _of(self, user_id: str, session_id: str | None) -> Names:
        try:
            key = self.keys.user(user_id, now=None)
        except Exception:  # a record that names nobody is better than none
            return Names()
        return _names(key, session_id)

    def asked(self, user_id: str, session_id: str | None) -> Names:
        """What to look for; nothing if there is no such user.

        Raises Erased, KeyUnavailable if the user's key does not open.
        """
        self.keys.forget(user_id)
        entry = self.keys.store.get_user(self.keys.user_ref(user_id))
        if entry is None:
            return Names()
        if entry.wrapped is None:
            raise Erased("the user")
        return _names(self.keys.user(user_id, now=None), session_id)


def to_forget(keys: KeyRing, whose: Whose) -> JsonObject:
    """What names an erased user in records; kept until they are forgotten.

    It has to be made before the key is destroyed.
    """
    try:
        key = keys.user(whose.user_id, now=None)
    except (Erased, KeyUnavailable):
        return {}
    named: Any = None
    if whose.sessions is not None:
        named = [_names(key, name).session for name in whose.sessions]
    return {"user": _names(key, None).user, "sessions": named}


def _names(key: UserKey, session_id: str | None) -> Names:
    """What they are known by; another user's session of that name has another."""
    named = None if session_id is None else _hash(key, b"session", session_id)
    return Names(_hash(key, b"user", ""), named)


def _hash(key: UserKey, kind: bytes, name: str) -> str:
    return key.mac(_PURPOSE, kind, name.encode("utf-8", "surrogatepass"))[:_SIZE].hex()


MOST: Final = 10_000  # accesses that wait; more are counted, and not kept
BATCH: Final = 500  # records that are written at once
EVERY_SEC: Final = 0.5  # no access waits longer, unless a sink takes nothing
_PAGE: Final = 1000
_AT_ONCE: Final = 2_000  # rows of one transaction
_NAMING: Final = ("user_hash", "session_hash", "request_hash", "state_version")
OVERFLOW: Final = "audit_overflow"

log = logging.getLogger("refold")


class StoredTrail:
    """Takes accesses without waiting, and has one thread write them as records.

    A kill loses what waits and the batch that is being written: at most ``most`` and
    ``BATCH``; where the sinks are well, what is newer than ``every`` seconds.  Where
    more comes than fits, how many were lost is a record of its own.

    A sink that fails is given the same records again, and no others until it takes
    them; at ``close`` they are given up, with a warning.
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
        self._sinks, self._rows, self._names = tuple(sinks), rows, names
        self._clock, self._most, self._every = clock, most, every
        self._closed = self._registered = False
        self._numbers = count()
        self._begin()

    def _begin(self) -> None:
        """Nothing waits: at first, and in a forked child; the rest is its parent's."""
        self._pid = os.getpid()
        # Garbage may be collected while it is held, and the end of an iterator that was
        # given up is noted then.
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._waiting: deque[tuple[int, Access]] = deque()
        self._behind: dict[int, list[AccessRecord]] = {}
        self._lost = 0
        self._ending = self._complained = False
        self._thread: Thread | None = None

    @property
    def on(self) -> bool:
        """Whether there is any sink."""
        return bool(self._sinks)

    def note(self, access: Access) -> None:
        """Keep it for the thread; count it where too many wait."""
        if self._pid != os.getpid():
            self._begin()
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
        # A daemon: a store that nobody closes must not keep the process from ending.
        thread = Thread(target=self._run, name="refold-audit", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends, or has no room: `flush` writes
            return
        self._thread = thread
        if not self._registered:
            self._registered = True
            atexit.register(self.close)

    def find(
        self, user_id: str | None, session_id: str | None, *, since: int | None
    ) -> Iterator[AccessRecord]:
        """What is in the table, a page at a time."""
        self.flush()
        asked = Names()
        if user_id is not None:
            asked = self._names.asked(user_id, session_id)
            if asked.user is None:
                return iter(())
        return self._pages(asked, since)

    def _pages(self, asked: Names, since: int | None) -> Iterator[AccessRecord]:
        user, session, _ = asked
        after = b""
        while page := self._rows.find(
            user=user, session=session, since=since, limit=_PAGE, after=after
        ):
            yield from page
            after = page[-1].record_id

    def purge(self, before: int) -> int:
        self.flush()
        return sum(self._rows.purge(before))

    def flush(self) -> None:
        """Have all written that waits, or tried once more; no thread is left behind."""
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            if self._thread is None and (self._waiting or self._behind or self._lost):
                self._start()
            thread, self._ending = self._thread, self._thread is not None
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Write what waits, and nothing more; what a sink does not take is lost."""
        self.flush()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            behind = max(map(len, self._behind.values()), default=0)
            lost = self._lost + len(self._waiting) + behind
        atexit.unregister(self.close)
        if lost:
            log.warning("%d audit records could not be written", lost)
        for sink in self._sinks:
            sink.close()

    def _run(self) -> None:
        """Write whatever comes, at most ``every`` seconds later, until told to end."""
        while True:
            with self._lock:
                self._changed.wait_for(
                    lambda: self._waiting or self._behind or self._ending
                )
                self._changed.wait_for(self._full, timeout=self._every)
                taken, lost = self._taken()
            self._round(taken, lost)
            with self._lock:
                if self._ending and (self._behind or not self._waiting):
                    self._ending, self._thread = False, None
                    return

    def _full(self) -> bool:
        return self._ending or (len(self._waiting) >= BATCH and not self._behind)

    def _taken(self) -> tuple[list[tuple[int, Access]], int]:
        """What is to be written next; the lock is held.  Nothing before a retry."""
        if self._behind:
            return [], 0
        size = min(BATCH, len(self._waiting))
        taken = [self._waiting.popleft() for _ in range(size)]
        lost, self._lost = self._lost, 0
        return taken, lost

    def _round(self, taken: Sequence[tuple[int, Access]], lost: int) -> None:
        """Give the records to every sink, and to none of them what it has taken."""
        if taken or lost:
            records = self._records(taken, lost)
            self._behind = dict.fromkeys(range(len(self._sinks)), records)
        for place, records in list(self._behind.items()):
            try:
                self._sinks[place].write(records)
            except Exception as error:
                self._complain(error)
            else:
                del self._behind[place]
        self._complained = bool(self._behind)

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            why = str(error) if isinstance(error, RefoldError) else type(error).__name__
            log.warning("audit records wait, they cannot be written: %s", why)

    def _records(
        self, taken: Sequence[tuple[int, Access]], lost: int
    ) -> list[AccessRecord]:
        named = self._names.remembering()
        found = [(at, access, named(access)) for at, access in taken]
        if lost:
            overflow = Access(OVERFLOW, status="error", counts={"lost": lost})
            found.append((self._clock(), overflow, Names()))
        return [_record(*one, number=next(self._numbers)) for one in found]


def _record(at: int, access: Access, names: Names, *, number: int) -> AccessRecord:
    # Numbered, so that those of one microsecond keep their order.
    rest = (number & 0x3FFFFFFF).to_bytes(4, "big") + os.urandom(4)
    return AccessRecord(
        record_id(at, rest),
        at,
        access.event,
        *names,
        access.seq,
        ",".join(access.event_types) or None,
        access.duration_us,
        access.status,
        access.error,
        access.counts,
    )


def record_id(at: int, rest: bytes = bytes(8)) -> bytes:
    """A UUID of version 7 with the microseconds in it (RFC 9562, 6.2, method 3).

    Without ``rest`` it is the lowest of its moment: what is older sorts before it.
    """
    millis, micros = divmod(max(at, 0), 1000)
    head = (millis & ((1 << 48) - 1)) << 16 | 0x7000 | micros * 4096 // 1000
    return head.to_bytes(8, "big") + bytes([0x80 | rest[0] & 0x3F]) + rest[1:]


LOGGER: Final = "refold.audit"
_LEVELS: Final = {"INFO": logging.INFO, "WARN": logging.WARNING, "ERROR": logging.ERROR}


class _OwnFile(WatchedFileHandler):
    """A file that is made anew where it was moved away, for its owner alone."""

    def _open(self) -> Any:
        return open(
            self.baseFilename,
            self.mode,
            encoding=self.encoding,
            opener=lambda path, flags: os.open(path, flags, 0o600),
        )


class LinesSink:
    """Each record as a line: to the logger ``refold.audit``, or to one handler.

    What the handlers do with a line is theirs: one that fails is told by ``logging``,
    and the line is not written again.
    """

    def __init__(self, handler: logging.Handler | None = None) -> None:
        self._logger = logging.getLogger(LOGGER)
        self._handler = handler

    @classmethod
    def file(cls, path: Path) -> LinesSink:
        """Lines at the end of a file that its owner alone can read.

        A file that was moved away is begun anew.  Raises InvalidConfiguration.
        """
        try:
            return cls(_OwnFile(path, encoding="utf-8"))
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
                made = logging.LogRecord(LOGGER, level, "", 0, line, None, None)
                self._handler.handle(made)

    def close(self) -> None:
        if self._handler is not None:
            self._handler.close()


class AccessTable:
    """Records in a table: a sink that can be read again, and whose records go by age.

    A record is kept once, however often it comes.
    """

    def __init__(self, database: Database) -> None:
        self._database, self._t = database, database.tables.audit
        columns = self._t.c.keys()
        marks = ", ".join([database.mark] * len(columns))
        names = f"{self._t.fullname} ({', '.join(columns)})"
        self._insert = f"INSERT INTO {names} VALUES ({marks}) ON CONFLICT DO NOTHING"

    def write(self, records: Sequence[AccessRecord]) -> None:
        """Take all of them; a power cut may take the newest back.

        A database that can only be read keeps none.
        """
        rows = [_row(record) for record in records]

        def attempt() -> None:
            with self._database.casual() as connection:
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
        """The first ``limit`` behind the record ``after``, the oldest first.

        ``session`` asks for ``user`` too; ``since`` is in microseconds since 1970.
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
        return [_read(row) for row in self._database.read(NOBODY, query)]

    def purge(self, before: int) -> Iterator[int]:
        """Delete what is older than ``before``, some at a time; yields how many."""
        old = self._t.c.record_id < record_id(before)
        return self._each(old, lambda mine: delete(self._t).where(mine))

    def forget(self, user: str, sessions: Sequence[str] | None = None) -> int:
        """Take the names out of a user's records, or of those of these sessions.

        The hashes and seqs go, so that no two of them can be told to be of one user;
        that something was done, and when, stays.  Returns how many there were.
        """
        found = self._t.c.user_hash == user
        if sessions is not None:
            found &= self._t.c.session_hash.in_(list(sessions))
        nothing = dict.fromkeys(_NAMING)
        changed = self._each(
            found, lambda mine: update(self._t).where(mine).values(nothing)
        )
        return sum(changed)

    def _each(self, found: Any, change: Callable[[Any], Any]) -> Iterator[int]:
        """Change what is found, some rows at a time, until there are none."""
        place: Any = literal_column(self._database.place)
        some = select(place).select_from(self._t).where(found).limit(_AT_ONCE)
        statement = change(self._database.among(some, found))
        while number := self._database.run_among(NOBODY, statement):
            yield number

    def close(self) -> None:
        """The database is the recorder's to close."""


def _row(record: AccessRecord) -> tuple[Any, ...]:
    """In the order of the columns, which is that of the record's fields."""
    return (*record[:-1], orjson.dumps(record.meta).decode())


def _read(row: Any) -> AccessRecord:
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
    """The audit log of a store: its sinks as ``chosen``, its table to be read.

    Raises InvalidConfiguration for a word that is none, and a file that cannot be
    written.
    """
    sinks = sinks_of(chosen, rows) if isinstance(chosen, str) else [chosen]
    return StoredTrail(sinks, rows, AccessNames(keys), clock=clock)


def sinks_of(chosen: str, rows: AccessTable) -> list[AccessSink]:
    """The sinks that are named, each once."""
    if chosen.strip() == "off":  # as a rule: what writes lines takes time to load
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
