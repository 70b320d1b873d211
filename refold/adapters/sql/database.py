"""A database of any engine: connections, transactions, retries, errors, groups."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from threading import Condition, Event, Lock, local
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar

from sqlalchemy import URL, Connection, Engine, TextClause, make_url, text
from sqlalchemy.exc import ArgumentError

from refold.adapters.rows import Batch, HeadRow, Heads, Rewrite, WriteOutcome
from refold.adapters.sql.tables import Tables, filled, statements
from refold.domain.clocks import StoreTime
from refold.domain.errors import LeaseLost, RefoldError, StoreUnavailable
from refold.domain.ids import StreamId
from refold.domain.locks import forkable_lock

T = TypeVar("T")
_SQL: Final = statements("recorder")
NOBODY: Final = ""  # whose rows are those of a table that has none of users
MOVED: Final = "refold: this store was moved to "  # what a moved one says
_WRITTEN: Final = 1_000  # queries that are remembered with the names of tables in them
Write: TypeAlias = Callable[[Batch], WriteOutcome]


class Database(ABC):
    """One database; each engine is a subclass in a file of its own.

    ``what`` names it in messages.  A forked child lets go of its parent's connections
    and makes its own.
    """

    name: ClassVar[str]
    mark: ClassVar[str]  # stands for a value in the driver's SQL
    each_span: ClassVar[str]  # reads events ``e`` of the spans in a column of ``v``
    shared: ClassVar[str]  # keeps what was selected as it is until the commit
    kept: ClassVar[str]  # keeps it from being deleted until then
    place: ClassVar[str]  # names a row by where it lies
    searchable: ClassVar[bool]  # this process can read its files
    in_memory: ClassVar[bool] = False  # nobody else can open it
    ordered: bool = True  # its positions are one order of all events
    readonly: bool = False  # it can be read where it lies, and not written

    def __init__(self, what: str, tables: Tables) -> None:
        self.what, self.tables = what, tables
        self.errors: Final = ErrorsTranslated(self.translate)
        self.fences: Final = Fences()
        self._pool: Engine | None = None
        self._making = forkable_lock()
        self._pid, self._closed = os.getpid(), False
        named = tables.metadata.tables.values()
        self._names = {table.name: str(table) for table in named}
        self._queries: dict[str, str] = {}

    def engine(self) -> Engine:
        """The pool of connections, made on first use."""
        self._check_process()
        pool = self._pool
        if pool is None:
            with self._making:  # a second pool would be closed by nobody
                pool = self._pool
                if pool is None:
                    pool = self._pool = self._make_pool()
        return pool

    @abstractmethod
    def _make_pool(self) -> Engine: ...

    def _check_process(self) -> None:
        """Let go, in a forked child, of connections that are its parent's.

        Raises StoreUnavailable if the database was closed.
        """
        if self._closed:
            what = f"the store {self.what} was closed"
            raise StoreUnavailable(what, remedy="open it again")
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._forget()

    @abstractmethod
    def _forget(self) -> None:
        """Forget all connections without closing them."""

    def close(self) -> None:
        """Close all connections; it cannot be used any more."""
        self._closed = True
        if self._pool is not None:
            self._pool.dispose()
            self._pool = None

    def attempt(self, work: Callable[[], T]) -> T:
        """Do ``work``, again where that may help; it raises errors of ours."""
        with self.errors:
            return self.retrying(work)

    def retrying(self, work: Callable[[], T]) -> T:
        """Do ``work``, and again if a connection broke that may come back."""
        return work()

    def read(
        self, user_id: str | None, query: Any, values: Any = None
    ) -> Sequence[Any]:
        """All rows of a query, of that user: see ``reading``."""

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
        """Do ``change`` in a transaction that can write, of that user.

        fenced: whether it needs the leases that this thread's writes depend on.
        """

        def work() -> T:
            with self.writing(user_id) as connection:
                if fenced:
                    self.check_fences(connection.exec_driver_sql)
                return change(connection)

        return self.attempt(work)

    def moment(self, connection: Connection, clock: Callable[[], int]) -> int:  # noqa: ARG002  # of servers
        """The time by which leases are judged: the caller's, on one machine."""
        return clock()

    @abstractmethod
    def store_time(self) -> StoreTime:
        """What time it is for the store, by whatever attests it."""

    @property
    def names(self) -> Mapping[str, str]:
        """The tables as statements name them, by their short names."""
        return self._names

    @contextmanager
    def fenced(self, stream: StreamId, owner: str) -> Iterator[None]:
        """Within the block, this thread writes only while ``owner`` has the lease."""
        before = self.fences.held
        self.fences.held = (*before, (stream, owner))
        try:
            yield
        finally:
            self.fences.held = before

    @contextmanager
    def keeping_leases(self) -> Iterator[None]:
        """Within the block, nobody takes the leases that this thread's writes need.

        For what is written elsewhere, such as in a key store.  Raises LeaseLost.
        """
        if not self.fences.held:
            yield
            return
        with self.errors, self.writing(NOBODY) as connection:
            self.check_fences(connection.exec_driver_sql)
            yield

    def check_leases(self) -> None:
        """Raise LeaseLost if a lease that this thread's writes need was taken away."""
        if self.fences.held:
            with self.errors, self.reading(NOBODY) as connection:
                self.check_fences(connection.exec_driver_sql)

    def check_fences(self, ask: Callable[[str, tuple[str, ...]], Any]) -> None:
        """Raise LeaseLost, in the transaction of a write, if a lease was taken away.

        ``ask`` executes a statement of the driver.
        """
        if not self.fences.held:
            return
        query = filled(_SQL["fence"], locked=self.shared, **self._names)
        query = query.replace("?", self.mark)
        for stream, owner in self.fences.held:
            if ask(query, (*stream, owner)).fetchone() is None:
                place = stream.session_id or "the store"
                raise LeaseLost(f"{stream.stream} of {place}")

    def run(self, user_id: str | None, statement: Any, rows: Any = None) -> int:
        """How many rows a statement changed, in a transaction of its own."""
        done = self.change(
            user_id, lambda connection: connection.execute(statement, rows)
        )
        return int(done.rowcount)

    def run_among(self, user_id: str, statement: Any) -> int:
        """``run`` a statement about rows ``among`` places: it looks there at once."""
        return self.run(user_id, statement)

    def statement(self, query: str, **holes: str) -> TextClause:
        """Of a query in which ``:name`` stands for a value, ``{name}`` for a table."""
        return text(query.format(**self._names, **holes))

    def fetch(
        self, user_id: str | None, query: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """The rows of a query, on the driver's connection; whose: see ``reading``.

        Each value stands where a ``?`` is, a table where its name is in braces.
        """
        written = self._queries.get(query)
        if written is None:
            written = query.format(**self._names)
            if len(self._queries) < _WRITTEN:
                self._queries[query] = written
        return self.attempt(lambda: self._fetch(user_id, written, values))

    @abstractmethod
    def _fetch(
        self, user_id: str | None, query: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def reading(self, user_id: str | None = None) -> AbstractContextManager[Connection]:
        """A connection that only reads: each statement is of one moment by itself.

        ``user_id`` says whose rows; None is all users', NOBODY is a table without any.

        Raises StoreUnavailable for all users' where one sees only one at a time.
        """

    @abstractmethod
    def writing(self, user_id: str | None = None) -> AbstractContextManager[Connection]:
        """A transaction that can write from its first statement on."""

    @abstractmethod
    def casual(self) -> AbstractContextManager[Connection]:
        """A transaction for rows that a power cut may take; no commit waits for it."""

    @abstractmethod
    def has_sessions(self) -> bool:
        """Whether there is any session, of whomever."""

    @abstractmethod
    def translate(self, error: Exception) -> RefoldError | None:
        """The error to raise for what the driver raised, or None to let it pass."""

    @abstractmethod
    def prepare(self, connection: Connection) -> None:
        """Check, inside the migration's transaction, that the database is ours."""

    @abstractmethod
    def lock_schema(self, connection: Connection) -> None:
        """Let one migration run at a time."""

    @abstractmethod
    def guard_events(self, connection: Connection) -> None:
        """Make the database itself refuse UPDATE and DELETE on events.

        But for ``rewrite``, in its own transaction, and then for no more than the
        ciphertext.
        """

    def spread(self, connection: Connection, *, new: bool) -> list[str]:  # noqa: ARG002  # of those with several machines
        """Spread users over the server's machines, if it has several; which tables."""
        return []

    @abstractmethod
    def refuse_writes(self, connection: Connection, where: str) -> None:
        """Let the database refuse every write from the commit on, and wait till then.

        What it says is MOVED and ``where``.
        """

    @abstractmethod
    def unguarded(self) -> list[str]:
        """Triggers that are not as ``guard_events`` left them, or were added to it."""

    def grouped(self) -> GroupCommit:
        """What joins the writes of this process into groups."""
        return GroupCommit(self.write_group)

    @abstractmethod
    def write_group(self, batches: Sequence[Batch]) -> list[WriteOutcome | Exception]:
        """Write each batch or nothing of it, in one commit; an outcome for each."""

    @abstractmethod
    def hold_head(
        self, stream: StreamId, work: Callable[[HeadRow | None, Write], WriteOutcome]
    ) -> WriteOutcome:
        """Do ``work`` with the head, which cannot move, and what writes meanwhile."""

    @abstractmethod
    def rewrite(
        self,
        stream: StreamId,
        build: Callable[[Heads], Rewrite | None],
        insert: Callable[[Batch, Write], None],
    ) -> bool:
        """Do what ``build`` makes of the session's heads while none can move.

        ``insert`` writes its batch at the end.  False if ``build`` made nothing.
        """

    @abstractmethod
    def flush(self) -> None:
        """Return when all that was committed survives a power cut."""

    @abstractmethod
    def settled(self) -> str:
        """An SQL condition on ``position``: no transaction can still write below.

        Raises StoreUnavailable if there is no order of all events.
        """

    @abstractmethod
    def among(self, places: Any, found: Any) -> Any:
        """An SQL condition: the row is ``found``, and lies where ``places`` says."""

    @abstractmethod
    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        """Overwrite what was deleted, as far as that is possible; says what was done.

        ``vacuum`` writes tables anew, which keeps others from them meanwhile.
        """

    @abstractmethod
    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """In how many of its files, and of how many names, any stands."""

    @abstractmethod
    def size(self, connection: Connection) -> int:
        """Bytes of the whole database on disk."""


class Fences(local):
    """The leases that this thread's writes depend on, each with its owner."""

    def __init__(self) -> None:
        self.held: tuple[tuple[StreamId, str], ...] = ()


class ErrorsTranslated(AbstractContextManager[None]):
    """Turns what is raised inside into others, those that ``translate`` gives."""

    def __init__(self, translate: Callable[[Exception], Exception | None]) -> None:
        self._translate = translate

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        ours = self._translate(error) if isinstance(error, Exception) else None
        if ours is not None:
            raise ours from None


def moved(said: str) -> StoreUnavailable | None:
    """The error for what a store that was moved says, if it is that."""
    _, sign, where = said.partition(MOVED)
    what = f"this store was moved to {where.splitlines()[0] if where else where}"
    return StoreUnavailable(what, remedy="open it there") if sign else None


EngineName = Literal["sqlite", "postgresql", "citus"]


def engine_of(url: str) -> tuple[EngineName, URL] | None:
    """The engine and the parts of its URL; None if it is neither of the two."""
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError):  # such as brackets that are not closed
        return None
    if backend == "sqlite":
        return "sqlite", parsed
    return ("postgresql", parsed) if backend in ("postgresql", "postgres") else None


MOST: Final = 64
# More than this is not taken from callers that do not wait.
QUEUED: Final = 1024
WriteGroup = Callable[[Sequence[Batch]], list[WriteOutcome | Exception]]
Result: TypeAlias = WriteOutcome | Exception
Done: TypeAlias = Callable[[Result], None]


class _Pending:
    """A batch in the queue, and who waits for it: a thread, or nobody (``done``)."""

    __slots__ = ("batch", "done", "outcome", "wake")

    def __init__(self, batch: Batch, done: Done | None = None) -> None:
        self.batch, self.done = batch, done
        self.outcome: Result | None = None
        self.wake = Event() if done is None else None

    def settle(self) -> None:
        """Tell who waits."""
        if self.wake is not None:
            self.wake.set()
        elif self.done is not None and self.outcome is not None:
            self.done(self.outcome)


class GroupCommit:
    """Joins concurrent writes of this process into groups of at most ``MOST``."""

    def __init__(self, write_group: WriteGroup) -> None:
        self._write_group = write_group
        self._begin()

    def _begin(self) -> None:
        """An empty queue: at first, and in a forked child."""
        self._pid = os.getpid()
        self._lock = Lock()
        self._idle = Condition(self._lock)
        self._queue: deque[_Pending] = deque()
        self._led, self._closing = False, 0
        self._thread: ThreadPoolExecutor | None = None

    def write(self, batch: Batch) -> WriteOutcome:
        """Write ``batch`` alone or with others; its outcome depends on none of them."""
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            alone, self._led = not self._led, True
            if not alone:
                pending = _Pending(batch)
                self._queue.append(pending)
        if alone:
            try:
                outcome = self._write_group([batch])[0]
            finally:
                with self._lock:
                    self._pass_on()
        else:
            outcome = self._joined(pending)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def submit(self, batch: Batch, done: Done) -> bool:
        """Leave ``batch`` to be written; False if the queue is full.

        ``done`` is called once with its outcome, in the thread that wrote it; it must
        return at once and raise nothing.
        """
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            if len(self._queue) >= QUEUED:
                return False
            self._queue.append(_Pending(batch, done))
            if self._led:
                return True
            try:
                self._pass_on()
            except RuntimeError:  # the interpreter ends: no thread starts any more
                self._led = False
                self._queue.clear()
                return False
        return True

    def close(self) -> None:
        """Return when what was left to be written is written."""
        if self._pid != os.getpid():  # the parent's threads write what waits there
            self._begin()
        with self._idle:
            self._closing += 1
            self._idle.wait_for(lambda: not self._led)
            self._closing -= 1
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()

    def _joined(self, pending: _Pending) -> Result:
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
        """Leave the queue, and pass on the lead if it was just given."""
        with self._lock:
            if pending not in self._queue:
                return
            self._queue.remove(pending)
            if pending.wake is not None and pending.wake.is_set():
                self._pass_on()

    def _lead(self, *, thread: bool = False) -> bool:
        """Write what is queued; whether the lead stays here, in the thread."""
        stays = False
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
                stays = self._pass_on(thread=thread)
            for pending in group:
                if pending.outcome is not None:
                    pending.settle()
        return stays

    def _requeue(self, group: list[_Pending]) -> None:
        """The leader was interrupted: the others are written by the next one.

        What was committed already is found by its hash, or is a conflict.
        """
        with self._lock:
            self._queue.extendleft(reversed(group[1:]))

    def _pass_on(self, *, thread: bool = False) -> bool:
        """Give the lead to the first in the queue; the lock is held.

        Where nobody waits for that one, the lead is the thread's: True if it has it.
        """
        if not self._queue:
            self._led = False
            if self._closing:
                self._idle.notify_all()
            return False
        self._led = True
        if (wake := self._queue[0].wake) is not None:
            wake.set()
        elif thread:
            return True
        else:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "refold-writer")
            self._thread.submit(self._lead_in_thread)
        return False

    def _lead_in_thread(self) -> None:
        while self._lead(thread=True):
            pass
