"""A database of any engine: connections, transactions, errors, and group commit."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from threading import Condition, Event, Lock, local
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    TypeAlias,
    TypeVar,
)

from refold.adapters.rows import Batch, HeadRow, Heads, Rewrite, WriteOutcome
from refold.adapters.sql.queries import TABLES, filled, statements
from refold.domain.clocks import StoreTime
from refold.domain.errors import LeaseLost, RefoldError, StoreUnavailable
from refold.domain.ids import StreamId
from refold.domain.locks import computed_once, forkable_lock

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, TextClause

    from refold.adapters.sql.tables import Tables

T = TypeVar("T")
_SQL: Final = statements("recorder")
NOBODY: Final = ""  # the user of a table without users
# The beginning of the errors of a moved store.
STORE_MOVED: Final = "refold: this store was moved to "
_CACHED_QUERIES: Final = 1_000
Write: TypeAlias = Callable[[Batch], WriteOutcome]


class Database(ABC):
    """One database; each engine is a subclass in its own file.

    In a forked child, it drops the connections of its parent and opens new ones.

    shown_name:   the name of the database in messages.
    mark:         the placeholder of a value in the driver's SQL.
    each_span:    SQL that joins the events ``e`` of the spans in a column of ``v``.
    place_column: the column with which the engine itself finds a row.
    searchable:   whether this process can read the files of the database.
    in_memory:    whether only this process can open it.
    ordered:      whether its positions order all events.
    readonly:     whether it can only be read.
    schema:       the schema of the tables; None if the engine has no schemas.

    lock_against_changes and lock_against_deletion are SQL that locks selected rows
    until the commit.
    """

    name: ClassVar[str]
    mark: ClassVar[str]
    each_span: ClassVar[str]
    lock_against_changes: ClassVar[str]
    lock_against_deletion: ClassVar[str]
    place_column: ClassVar[str]
    searchable: ClassVar[bool]
    in_memory: ClassVar[bool] = False
    ordered: bool = True
    readonly: bool = False
    schema: ClassVar[str | None] = None

    def __init__(self, shown_name: str) -> None:
        self.shown_name = shown_name
        self.errors: Final = ErrorsTranslated(self.translate)
        self.fences: Final = Fences()
        self._pool: Engine | None = None
        self._making = forkable_lock()
        self._pid = os.getpid()
        self._closed = False
        prefix = f"{self.schema}." if self.schema else ""
        self._names = {table: f"{prefix}{table}" for table in TABLES}
        self._queries: dict[str, str] = {}

    @computed_once
    def tables(self) -> Tables:
        """The tables, for queries that SQLAlchemy builds."""
        from refold.adapters.sql import tables

        return tables.build(self.schema, rowid=self.schema is None)

    def engine(self) -> Engine:
        """Return the pool of connections, which the first use makes."""
        self._check_process()
        pool = self._pool
        if pool is None:
            with self._making:  # so that no other thread makes a pool, too
                pool = self._pool
                if pool is None:
                    pool = self._make_pool()
                    self._pool = pool
        return pool

    @abstractmethod
    def _make_pool(self) -> Engine: ...

    def _check_process(self) -> None:
        """Drop the connections of the parent in a forked child.

        Raises StoreUnavailable if the database was closed.
        """
        if self._closed:
            reason = f"the store {self.shown_name} was closed"
            raise StoreUnavailable(reason, remedy="open it again")
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._forget()

    @abstractmethod
    def _forget(self) -> None:
        """Forget all connections without closing them."""

    def close(self) -> None:
        """Close all connections; the database cannot be used any more."""
        self._closed = True
        if self._pool is not None:
            self._pool.dispose()
            self._pool = None

    def attempt(self, work: Callable[[], T]) -> T:
        """Run ``work``, and again if that may help; raises errors of Refold."""
        with self.errors:
            return self.retrying(work)

    def retrying(self, work: Callable[[], T]) -> T:
        """Run ``work``, and again if a connection broke that may come back."""
        return work()

    def read(
        self, user_id: str | None, query: Any, values: Any = None
    ) -> Sequence[Any]:
        """Return all rows of a query; for ``user_id``, see ``reading``."""

        def work() -> Sequence[Any]:
            with self.reading(user_id) as connection:
                return connection.execute(query, values).all()

        return self.attempt(work)

    def change(
        self,
        user_id: str | None,
        change: Callable[[Connection], T],
        *,
        fenced: bool = True,
    ) -> T:
        """Call ``change`` in a transaction that can write the rows of this user.

        fenced: whether this write needs the leases that this thread's writes need.
        """

        def work() -> T:
            with self.writing(user_id) as connection:
                if fenced:
                    self.check_fences(connection.exec_driver_sql)
                return change(connection)

        return self.attempt(work)

    def lease_time(self, connection: Connection, clock: Callable[[], int]) -> int:  # noqa: ARG002  # of servers
        """Return the time that decides whether a lease has ended.

        On one machine it is the caller's.
        """
        return clock()

    @abstractmethod
    def store_time(self) -> StoreTime:
        """Return the clock of the store."""

    @property
    def names(self) -> Mapping[str, str]:
        """The names of the tables in statements, by their short names."""
        return self._names

    @contextmanager
    def fenced(self, stream: StreamId, owner: str) -> Iterator[None]:
        """Within the block, this thread writes only while ``owner`` has the lease."""
        before = self.fences.leases
        self.fences.leases = (*before, (stream, owner))
        try:
            yield
        finally:
            self.fences.leases = before

    @contextmanager
    def keeping_leases(self) -> Iterator[None]:
        """Within the block, nobody takes the leases that this thread's writes need.

        This is for writes to another database, such as a key store.  Raises LeaseLost.
        """
        if not self.fences.leases:
            yield
            return
        with self.errors, self.writing(NOBODY) as connection:
            self.check_fences(connection.exec_driver_sql)
            yield

    def check_leases(self) -> None:
        """Raise LeaseLost if a lease that this thread's writes need was taken away."""
        if self.fences.leases:
            with self.errors, self.reading(NOBODY) as connection:
                self.check_fences(connection.exec_driver_sql)

    def check_fences(self, ask: Callable[[str, tuple[str, ...]], Any]) -> None:
        """Raise LeaseLost, in the transaction of a write, if a lease was taken away.

        ask: executes a statement of the driver.
        """
        if not self.fences.leases:
            return
        for stream, owner in self.fences.leases:
            if ask(self._fence_query, (*stream, owner)).fetchone() is None:
                place = stream.session_id or "the store"
                raise LeaseLost(f"{stream.stream} of {place}")

    @computed_once
    def _fence_query(self) -> str:
        """The query for the lease of an owner; it locks the row of the lease."""
        query = filled(_SQL["fence"], locked=self.lock_against_changes, **self._names)
        return query.replace("?", self.mark)

    def many_rows(self, table: str, condition: str) -> str:  # noqa: ARG002  # for SQLite
        """Return the condition of a query for many rows of a table.

        The engine should read the rows in the order in which they are stored.
        """
        return condition

    @abstractmethod
    def with_driver(self, work: Callable[[Any], T], *, single: bool = False) -> T:
        """Call ``work`` with the driver's own connection, in a transaction.

        single: whether ``work`` writes with one statement.  PostgreSQL then begins no
                transaction around it.

        Raises the errors of the driver as they are.
        """

    def run(self, user_id: str | None, statement: Any, rows: Any = None) -> int:
        """Run a statement in one transaction; returns how many rows it changed."""
        result = self.change(
            user_id, lambda connection: connection.execute(statement, rows)
        )
        return int(result.rowcount)

    def run_among(self, user_id: str, statement: Any) -> int:
        """Run a statement that has the condition of ``among``.

        PostgreSQL needs another plan for it, which does not scan the table.
        """
        return self.run(user_id, statement)

    def statement(self, query: str, **holes: str) -> TextClause:
        """Return a query with ``:name`` for values, and ``{name}`` for tables."""
        from sqlalchemy import text

        return text(query.format(**self._names, **holes))

    def fetch(
        self, user_id: str | None, query: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query, read with the driver's own connection.

        ``?`` stands for a value, and a name in braces for a table.  For ``user_id``,
        see ``reading``.
        """
        with_names = self._queries.get(query)
        if with_names is None:
            with_names = query.format(**self._names)
            if len(self._queries) < _CACHED_QUERIES:
                self._queries[query] = with_names
        return self.attempt(lambda: self._fetch(user_id, with_names, values))

    @abstractmethod
    def _fetch(
        self, user_id: str | None, query: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def reading(self, user_id: str | None = None) -> AbstractContextManager[Connection]:
        """Return a connection for reading; each statement reads one moment.

        user_id: the user whose rows it can read; None means all users, NOBODY a table
                 without users.

        Raises StoreUnavailable for all users if the role may read only one at a time.
        """

    @abstractmethod
    def writing(self, user_id: str | None = None) -> AbstractContextManager[Connection]:
        """Begin a transaction that can write from its first statement on."""

    @abstractmethod
    def writing_relaxed(self) -> AbstractContextManager[Connection]:
        """Begin a transaction that a power failure may lose."""

    def stored_settings(self) -> dict[str, str]:
        """Return the settings of the store; empty if the database has no store."""
        with self.engine().connect() as connection:
            return self.settings_in(connection)

    def settings_in(self, connection: Connection) -> dict[str, str]:
        """Return the settings as this transaction sees them."""
        from sqlalchemy import inspect, select

        settings = self.tables.settings
        if not inspect(connection).has_table(settings.name, schema=settings.schema):
            return {}
        empty = connection.exec_driver_sql(f"SELECT * FROM {settings.fullname} LIMIT 0")
        if set(empty.keys()) != {"name", "value"}:  # a table of another program
            return {}
        rows = connection.execute(select(settings.c.name, settings.c.value)).all()
        return {row.name: row.value for row in rows}

    def create(self, marks: Mapping[str, str]) -> dict[str, str]:  # noqa: ARG002  # of SQLite
        """Create the tables of a new store at once, with these settings.

        Returns the settings that the store then has; empty if this engine creates its
        tables by the upgrade steps.
        """
        return {}

    @abstractmethod
    def has_sessions(self) -> bool:
        """Whether there is any session of any user."""

    @abstractmethod
    def translate(self, error: Exception) -> RefoldError | None:
        """Return the error to raise for one of the driver; None raises that one."""

    @abstractmethod
    def prepare(self, connection: Connection) -> None:
        """Check, in the transaction of a migration, that the database is Refold's."""

    @abstractmethod
    def lock_schema(self, connection: Connection) -> None:
        """Let one migration run at a time."""

    @abstractmethod
    def guard_events(self, connection: Connection) -> None:
        """Let the database itself refuse UPDATE and DELETE on events.

        Only ``rewrite`` may change events, in its own transaction, and only their
        ciphertext.
        """

    def spread(self, connection: Connection, *, new: bool) -> list[str]:  # noqa: ARG002  # of those with several machines
        """Spread users over the machines of the server; returns the spread tables."""
        return []

    @abstractmethod
    def refuse_writes(self, connection: Connection, where: str) -> None:
        """Let the database refuse every write after the commit, and block them before.

        The error consists of STORE_MOVED and ``where``.
        """

    @abstractmethod
    def unguarded(self) -> list[str]:
        """Return triggers that differ from those of ``guard_events``, or were added."""

    def grouped(self) -> GroupCommit:
        """Return an object that joins the writes of this process into groups."""
        return GroupCommit(self.write_group)

    @abstractmethod
    def write_group(self, batches: Sequence[Batch]) -> list[WriteOutcome | Exception]:
        """Write batches in one commit, each completely or not; returns the outcomes."""

    @abstractmethod
    def hold_head(
        self, stream: StreamId, work: Callable[[HeadRow | None, Write], WriteOutcome]
    ) -> WriteOutcome:
        """Call ``work`` with the locked head, and a function that writes a batch."""

    @abstractmethod
    def rewrite(
        self,
        stream: StreamId,
        build: Callable[[Heads], Rewrite | None],
        insert: Callable[[Batch, Write], None],
    ) -> bool:
        """Lock the session's heads, and replace its rows.

        build:  returns the new rows for these heads; None to replace nothing.
        insert: writes the batch at the end.

        Returns whether ``build`` returned rows.
        """

    @abstractmethod
    def flush(self) -> None:
        """Return when all commits survive a power failure."""

    @abstractmethod
    def settled(self) -> str:
        """Return an SQL condition on ``position``: no transaction can write below it.

        Raises StoreUnavailable if the database does not order all events.
        """

    @abstractmethod
    def among(self, places: Any, condition: Any) -> Any:
        """Return an SQL condition for rows at these places that meet ``condition``."""

    @abstractmethod
    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        """Overwrite deleted data as far as that is possible; returns a report.

        vacuum: rewrite the tables, which locks them for others.
        """

    @abstractmethod
    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """Search the files for names; returns the numbers of files and of names."""

    @abstractmethod
    def size(self, connection: Connection) -> int:
        """Return the bytes of the whole database on disk."""


class Fences(local):
    """The leases that this thread's writes need, each with its owner."""

    def __init__(self) -> None:
        self.leases: tuple[tuple[StreamId, str], ...] = ()


class ErrorsTranslated(AbstractContextManager[None]):
    """Replaces errors in its block by those that ``translate`` returns for them."""

    def __init__(self, translate: Callable[[Exception], Exception | None]) -> None:
        self._translate = translate

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception):
            return
        translated = self._translate(error)
        if translated is not None:
            raise translated from None


def error_if_moved(message: str) -> StoreUnavailable | None:
    """Return the error of a moved store, if the database's message is that."""
    _, separator, where = message.partition(STORE_MOVED)
    if not separator:
        return None
    if where:
        where = where.splitlines()[0]
    reason = f"this store was moved to {where}"
    return StoreUnavailable(reason, remedy="open it there")


MOST: Final = 64  # batches in a group
QUEUED: Final = 1024  # batches of callers that do not wait
WriteGroup = Callable[[Sequence[Batch]], list[WriteOutcome | Exception]]
Result: TypeAlias = WriteOutcome | Exception
Done: TypeAlias = Callable[[Result], None]


class _Pending:
    """A batch in the queue.

    done:    called with the outcome; None if a thread waits for it.
    outcome: None until the batch is written.
    wake:    wakes the thread that waits.
    """

    __slots__ = ("batch", "done", "outcome", "wake")

    def __init__(self, batch: Batch, done: Done | None = None) -> None:
        self.batch = batch
        self.done = done
        self.outcome: Result | None = None
        self.wake = Event() if done is None else None

    def settle(self) -> None:
        """Wake the waiting thread, or call ``done``."""
        if self.wake is not None:
            self.wake.set()
        elif self.done is not None and self.outcome is not None:
            self.done(self.outcome)


class GroupCommit:
    """Joins concurrent writes of this process into groups of at most ``MOST``.

    One thread at a time is the leader: it writes a group, and then gives the lead to
    the first one in the queue.
    """

    def __init__(self, write_group: WriteGroup) -> None:
        self._write_group = write_group
        self._start_empty()

    def _start_empty(self) -> None:
        """Start with an empty queue, at first and in a forked child."""
        self._pid = os.getpid()
        self._lock = Lock()
        self._idle = Condition(self._lock)
        self._queue: deque[_Pending] = deque()
        self._has_leader = False
        self._closing = 0  # threads in ``close``
        self._thread: ThreadPoolExecutor | None = None

    def write(self, batch: Batch) -> WriteOutcome:
        """Write a batch alone or with others; its outcome does not depend on these."""
        if self._pid != os.getpid():
            self._start_empty()
        pending: _Pending | None = None
        with self._lock:
            if self._has_leader:
                pending = _Pending(batch)
                self._queue.append(pending)
            self._has_leader = True
        if pending is not None:
            outcome = self._wait(pending)
        else:
            try:
                outcome = self._write_group([batch])[0]
            finally:
                with self._lock:
                    self._pass_on()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def submit(self, batch: Batch, done: Done) -> bool:
        """Queue a batch without waiting; returns False if the queue is full.

        done: called once with the outcome, in the thread that wrote the batch.  It must
              return at once, and raise nothing.
        """
        if self._pid != os.getpid():
            self._start_empty()
        with self._lock:
            if len(self._queue) >= QUEUED:
                return False
            self._queue.append(_Pending(batch, done))
            if self._has_leader:
                return True
            try:
                self._pass_on()
            except RuntimeError:  # the interpreter ends, and starts no more threads
                self._has_leader = False
                self._queue.clear()
                return False
        return True

    def close(self) -> None:
        """Return when all queued batches are written."""
        if self._pid != os.getpid():  # the parent writes the batches in its queue
            self._start_empty()
        with self._idle:
            self._closing += 1
            self._idle.wait_for(lambda: not self._has_leader)
            self._closing -= 1
            thread = self._thread
            self._thread = None
        if thread is not None:
            thread.shutdown()

    def _wait(self, pending: _Pending) -> Result:
        """Wait until the batch is written, or lead, and return its outcome."""
        try:
            if pending.wake is not None:
                pending.wake.wait()
        except BaseException:
            self._withdraw(pending)
            raise
        if pending.outcome is None:
            self._lead()
        return pending.outcome or RuntimeError("the write has no outcome")

    def _withdraw(self, pending: _Pending) -> None:
        """Remove a batch from the queue, and give the lead on if it had just got it."""
        with self._lock:
            if pending not in self._queue:
                return
            self._queue.remove(pending)
            if pending.wake is not None and pending.wake.is_set():
                self._pass_on()

    def _lead(self, *, thread: bool = False) -> bool:
        """Write a group of queued batches, and give the lead on.

        thread: whether this is the thread that leads if nobody waits for a batch.

        Returns whether this thread must lead again.
        """
        must_lead = False
        with self._lock:
            size = min(MOST, len(self._queue))
            group = [self._queue.popleft() for _ in range(size)]
        try:
            outcomes = self._write_group([pending.batch for pending in group])
            for pending, outcome in zip(group, outcomes, strict=True):
                pending.outcome = outcome
        except Exception as error:
            for pending in group:
                pending.outcome = pending.outcome or error
        except BaseException:
            self._requeue(group)
            raise
        finally:
            with self._lock:
                must_lead = self._pass_on(thread=thread)
            for pending in group:
                if pending.outcome is not None:
                    pending.settle()
        return must_lead

    def _requeue(self, group: list[_Pending]) -> None:
        """Return the batches of other callers to the queue after an interruption.

        If they were committed already, the next leader finds them by their hashes, or
        they are a conflict.
        """
        with self._lock:
            self._queue.extendleft(reversed(group[1:]))

    def _pass_on(self, *, thread: bool = False) -> bool:
        """Give the lead to the first one in the queue; the caller holds the lock.

        If nobody waits for that batch, the writing thread leads.

        thread: whether this is the writing thread.

        Returns whether the writing thread called this, and must lead again.
        """
        if not self._queue:
            self._has_leader = False
            if self._closing:
                self._idle.notify_all()
            return False
        self._has_leader = True
        wake = self._queue[0].wake
        if wake is not None:
            wake.set()
            return False
        if thread:
            return True
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "refold-writer")
        self._thread.submit(self._lead_in_thread)
        return False

    def _lead_in_thread(self) -> None:
        """Lead until somebody else does, or the queue is empty."""
        while self._lead(thread=True):
            pass


def octets(value: Any) -> bytes:
    """Return the bytes in a column; empty for other values, which SQLite may store."""
    if value is None or type(value) is bytes:
        return value or b""
    if isinstance(value, bytes | memoryview):
        return bytes(value)
    return b""
