"""PostgreSQL 15 and later: one round trip an append, heads as compare-and-set."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, partial
from itertools import accumulate, islice
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, cast

import psycopg
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    any_,
    create_engine,
    event,
    func,
    literal_column,
)
from sqlalchemy.exc import DBAPIError

from refold.adapters.rows import (
    Batch,
    EncryptedEvent,
    HeadRow,
    Heads,
    Moved,
    Rewrite,
    WriteOutcome,
    Wrote,
)
from refold.adapters.sql import forks, roles, statistics, tables
from refold.adapters.sql.clocks import ServerTime
from refold.adapters.sql.database import (
    MOVED,
    NOBODY,
    Database,
    Write,
    moved,
)
from refold.adapters.sql.libpq import Command, Driver, Line, Statement, run_once
from refold.adapters.sql.tables import SCHEMA
from refold.domain import errors
from refold.domain.ids import MAIN, StreamId
from refold.domain.locks import computed_once
from refold.domain.ports import Duplicate

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

T = TypeVar("T")
_SQL: Final = tables.statements("postgres")
_SCHEMA_LOCK: Final = 0x5265666F6C64
_FILL_LOCK: Final = _SCHEMA_LOCK + 1
_AT_A_TIME, _USED_UP = 10_000, 100_000_000  # transactions
_RETRIES: Final = 5
_FIRST_PAUSE: Final = 0.1
# How the driver's messages begin that are not about a connection that was made.
_NOT_CONNECTED: Final = ("failed to resolve", "connection failed", "connection timeout")


POOLER: Final = "pooler"  # the parameter of a URL


def pooler_of(url: URL) -> str | None:
    """How a pooler gives out connections to the server, if the URL says that.

    Raises InvalidConfiguration for another value than ``transaction`` or ``session``.
    """
    value = url.query.get(POOLER)
    if value is None:
        return None
    if value not in ("transaction", "session"):
        raise errors.InvalidConfiguration(
            f"?{POOLER} of a PostgreSQL URL is transaction or session"
        )
    return str(value)


class PostgresDatabase(Database):
    """A PostgreSQL database; everything of ours is in the schema ``refold``."""

    name, mark, shared, kept = "postgresql", "%s", "FOR SHARE", "FOR KEY SHARE"
    place, searchable = "ctid", False
    each_span = _SQL["each_span"]

    def __init__(self, url: URL) -> None:
        self._pooler = pooler_of(url)
        own = url.difference_update_query([POOLER])
        self._url = own.set(drivername="postgresql+psycopg")
        shown = url.set(password=None, query={})
        what = shown.render_as_string(hide_password=True)
        super().__init__(what, tables.build(SCHEMA, rowid=False))
        self._writer = Writer(self._connection)
        self._time = ServerTime(self._server_moment)
        self._pooled = False  # until a connection shows that it is
        self._sockets = forks.Sockets()
        forks.register(self)

    def _make_pool(self) -> Engine:
        try:
            pool = create_engine(
                self._url, pool_size=8, max_overflow=24, pool_recycle=1800
            )
            event.listen(pool, "connect", self._on_connect)
        except Exception as error:
            raise errors.InvalidConfiguration(
                f"{self.what} is not a PostgreSQL URL ({type(error).__name__}): "
                "postgresql://user:password@host/database"
            ) from None
        return pool

    def _on_connect(self, connection: Any, _record: object) -> None:
        """Prepare nothing behind a pooler, and set the level of isolation.

        Heads are row locks, so the level is READ COMMITTED whatever the server's
        default is.  A pooler may give each transaction another connection to the
        server: what one client prepares or sets there, another one finds.
        """
        self._sockets.note(connection)
        if self._behind_pooler(connection):
            self._pooled = True
            connection.prepare_threshold = None
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED

    def _behind_pooler(self, driver: Driver) -> bool:
        """Whether a pooler may give each transaction another connection to the server.

        The URL says so.  Otherwise it is detected: a pooler names a process of its own
        making, which is not the server's.
        """
        driver.autocommit = True
        process: int | None
        if self._pooler == "transaction":
            process = None
        elif self._pooler == "session":
            row = driver.execute("SELECT pg_backend_pid()").fetchone()
            process = row[0] if row else None
        else:
            process = self._named_process(driver)
        row = driver.execute(_SQL["connected"], (process,)).fetchone()
        driver.autocommit = False
        if row is None:
            return True
        self._time.set(row[2])
        return bool(row[0] != process)

    def _named_process(self, driver: Driver) -> int:
        """The process that was named when the connection began."""
        return driver.info.backend_pid

    def reading(self, user_id: str | None = None) -> AbstractContextManager[Connection]:
        """A connection without transactions: psycopg forgets what it has prepared at a
        ROLLBACK, and would plan every statement behind it anew.

        Where one user is seen at a time, a transaction for that user, and its COMMIT.
        """
        if self._sight == "one":
            return self.writing(user_id)
        return self._at_once()

    def _at_once(self) -> Connection:
        """A connection on which each statement is a transaction."""
        connection = self.engine().connect()
        return connection.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def writing(self, user_id: str | None = None) -> Iterator[Connection]:
        """A transaction, for that user where one is seen at a time."""
        whose = self._whose(user_id)
        with self.engine().begin() as connection:
            if whose is not None:
                driver = cast("Driver", connection.connection.driver_connection)
                self._bind(driver, whose)
            yield connection

    def change(
        self,
        user_id: str | None,
        change: Callable[[Connection], T],
        *,
        fenced: bool = True,
    ) -> T:
        """Do ``change`` in a transaction that takes effect once.

        If the answer to its COMMIT is lost, the server says whether it took effect.
        """

        def work() -> T:
            transaction = Transaction()
            try:
                with self.writing(user_id) as connection:
                    driver = connection.connection.driver_connection
                    transaction.begin(cast("Driver", driver))
                    if fenced:
                        self.check_fences(connection.exec_driver_sql)
                    result = change(connection)
                    transaction.is_complete = True
            except DBAPIError as error:
                if not self._took_effect(transaction, error):
                    raise
            return result

        return self.attempt(work)

    def _took_effect(self, transaction: Transaction, error: Exception) -> bool:
        """Whether a transaction that ended with this error took effect all the same.

        Raises StoreUnavailable if the server cannot say that.
        """
        if not transaction.is_complete or not broken(error):
            return False
        for tries in range(_RETRIES):
            try:
                status = self.retrying(partial(self._status, transaction.number))
            except (psycopg.Error, DBAPIError):
                break
            if status == "committed":
                return True
            if status == "aborted":
                return False
            if status != "in progress":
                break  # so old that the server has forgotten it
            time.sleep(_FIRST_PAUSE * 2**tries)
        raise outcome_unknown(self.what) from None

    def _status(self, transaction: str) -> str | None:
        """How a transaction ended, as the server reports it."""
        query = _SQL["transaction_status"]
        with self._at_once() as connection:
            status = connection.exec_driver_sql(query, (transaction,)).scalar()
        return None if status is None else str(status)

    def _whose(self, user_id: str | None) -> str | None:
        """The user to name first; None where all are seen."""
        if self._sight != "one":
            return None
        if user_id is None:
            raise roles.refuse(self.what)
        return user_id

    def _bind(self, driver: Driver, user_id: str) -> None:
        """Name the user whose rows are seen in this transaction."""
        driver.execute(roles.BIND, (user_id,))

    @contextmanager
    def casual(self) -> Iterator[Connection]:
        """One that a crash of the server may take back, of a table without users."""
        with self.writing(NOBODY) as connection:
            connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
            yield connection

    def moment(self, connection: Connection, clock: Callable[[], int]) -> int:  # noqa: ARG002  # the server's decides
        """The server's clock: machines that share a store have no other in common."""
        return int(connection.exec_driver_sql(_SQL["moment"]).scalar_one())

    def store_time(self) -> ServerTime:
        return self._time

    def _server_moment(self) -> int:
        """Ask for the server's clock."""
        ((moment,),) = self.fetch(NOBODY, _SQL["moment"], ())
        return int(moment)

    @computed_once
    def _sight(self) -> roles.Sight:
        with self._connected() as driver:
            return roles.sight(driver)

    def has_sessions(self) -> bool:
        """Whether there is any session; asked of a function where not all are seen."""
        with self.reading(NOBODY) as connection:
            query = roles.any_session(self._sight)
            return bool(connection.exec_driver_sql(query).scalar())

    def translate(self, error: Exception) -> errors.RefoldError | None:
        return translated(self.what, error)

    def prepare(self, connection: Connection) -> None:
        """Make our schema, unless it is there and another's."""
        encoding, foreign = connection.exec_driver_sql(_SQL["what_is_it"]).one()
        if encoding != "UTF8":
            raise errors.IncompatibleStore(f"{self.what} must have the encoding UTF8")
        if foreign:
            raise errors.IncompatibleStore(
                f"the schema {SCHEMA} of {self.what} belongs to another program: "
                "use another database"
            )
        connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")

    def lock_schema(self, connection: Connection) -> None:
        """A transaction lock, held by one migration at a time."""
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")

    def guard_events(self, connection: Connection) -> None:
        """Triggers that refuse UPDATE, DELETE and TRUNCATE."""
        for statement in GUARDS:
            connection.exec_driver_sql(statement.replace("%", "%%"))

    def refuse_writes(self, connection: Connection, where: str) -> None:
        """A trigger on each table, whose making waits for who writes it."""
        # The rest of a move is done meanwhile, on other connections.
        wait = "SET LOCAL idle_in_transaction_session_timeout = 0"
        connection.exec_driver_sql(wait)
        said = f"{MOVED}{where}".replace("'", "''")
        connection.exec_driver_sql(_SQL["moved"].format(said=said).replace("%", "%%"))
        for table in self.tables.metadata.tables:
            connection.exec_driver_sql(_SQL["refuse_write"].format(table=table))

    @contextmanager
    def filling(self) -> Iterator[None]:
        """While this lasts nobody else fills the database with a store.

        Raises StoreUnavailable if somebody does.
        """
        with self.errors, self._at_once() as connection:
            driver = cast("Driver", connection.connection.driver_connection)
            if driver.prepare_threshold is None:
                raise errors.StoreUnavailable(
                    f"{self.what} is behind a connection pooler, where a store cannot "
                    "be moved: the lock for it needs one connection",
                    remedy="connect to the server directly",
                )
            ask = f"SELECT pg_try_advisory_lock({_FILL_LOCK})"
            if not connection.exec_driver_sql(ask).scalar():
                what = f"another process is moving a store to {self.what}"
                raise errors.StoreUnavailable(what, remedy="let it end")
            try:
                yield
            finally:
                # The server ends a closed connection later, and its lock with it.
                with suppress(DBAPIError):
                    connection.exec_driver_sql(
                        f"SELECT pg_advisory_unlock({_FILL_LOCK})"
                    )
                connection.invalidate()

    def pass_position(self, position: int) -> None:
        """Let what is appended from now on have higher positions than this.

        They come of the server's transactions, of which so many are used up.
        Raises IncompatibleStore where that would take too long.
        """

        def attempt() -> None:
            with self._at_once() as connection:
                ask = connection.exec_driver_sql
                first = (position >> 20) + 1
                while (left := first - ask(_SQL["next"]).scalar_one()) > 0:
                    if left > _USED_UP:
                        raise errors.IncompatibleStore(
                            f"{self.what} counts {left} transactions less than this "
                            f"store: have pg_resetwal set its next one to {first}"
                        )
                    ask(_SQL["use_up"].format(count=min(left, _AT_A_TIME)))

        self.attempt(attempt)

    def unguarded(self) -> list[str]:
        """Triggers that are switched off, do something else, or are not there."""
        with self.reading(NOBODY) as connection:
            found = connection.exec_driver_sql(_SQL["triggers"]).all()
        there = {tuple(row) for row in found}
        ours = {
            (name, f"{SCHEMA}.events", True, kind, REFUSAL)
            for name, kind in TRIGGERS.items()
        }
        return sorted({name for name, *_ in there ^ ours})

    def write_group(self, batches: Sequence[Batch]) -> list[WriteOutcome | Exception]:
        """Alone: one statement.  Together: one transaction.  Both: one round trip.

        If the connection breaks, it is found out whether the write took effect.
        """
        self._check_process()
        if len(batches) == 1:
            return [self._write_alone(batches[0])]
        if self._pooled:  # each of a round trip's transactions may go elsewhere
            return [self._write_alone(batch) for batch in batches]
        try:
            return list(self._writer.together(batches))
        except psycopg.Error as error:
            lost = answer_lost(error)
            return [self._write_alone(batch, lost=lost) for batch in batches]

    def _write_alone(
        self, batch: Batch, *, lost: bool = False
    ) -> WriteOutcome | Exception:
        """Write one batch; ``lost``: it was sent before, and no answer came."""

        def attempt() -> WriteOutcome:
            nonlocal lost
            try:
                return self._writer.alone(batch)
            except psycopg.Error as error:
                lost = lost or answer_lost(error)
                raise

        try:
            return self.retrying(attempt)
        except Exception as error:
            if lost and broken(error):
                return outcome_unknown(self.what)
            return self.translate(error) or error

    def _connection(self) -> Driver:
        """A connection that no pool looks after."""
        walled = self._sight != "owner"
        pooled = self.engine().raw_connection()
        driver = cast("Driver", pooled.driver_connection)
        pooled.detach()
        driver.autocommit = True
        if driver.prepare_threshold is None:
            if walled:
                driver.close()
                raise errors.StoreUnavailable(
                    f"{self.what} is behind a connection pooler, where this role "
                    "cannot append: its rights belong to one connection",
                    remedy="connect to the server directly",
                )
            return driver
        try:
            # A plan made while heads are few must not look at all of them ever after.
            driver.execute("SET enable_seqscan TO off")
            if walled:
                roles.become_writer(driver)
        except BaseException:
            driver.close()  # it is nobody's yet
            raise
        return driver

    def hold_head(
        self, stream: StreamId, work: Callable[[HeadRow | None, Write], WriteOutcome]
    ) -> WriteOutcome:
        """Lock the head row meanwhile."""
        tried: list[Batch] = []

        def attempt() -> WriteOutcome:
            with self._connected() as driver, driver.transaction():
                if self._sight == "one" and self.fences.held:
                    self._bind(driver, stream.user_id)
                self.check_fences(driver.execute)
                if self._sight != "owner":
                    roles.become_writer(driver, once=True)
                row = head_row(driver, stream, lock=True)
                run = partial(run_once, driver)
                if tried and is_ours(driver, tried[-1]):
                    return Wrote(tried[-1].head)

                def write_here(batch: Batch) -> WriteOutcome:
                    tried.append(batch)
                    used = batch.receipt
                    found = receipt(driver, stream, used) if used else None
                    return found or self._write(driver, batch, run)

                return work(row, write_here)

        try:
            return self.retrying(attempt)
        except (psycopg.Error, DBAPIError) as error:
            if tried and broken(error):
                raise outcome_unknown(self.what) from None
            raise

    def rewrite(
        self,
        stream: StreamId,
        build: Callable[[Heads], Rewrite | None],
        insert: Callable[[Batch, Write], None],
    ) -> bool:
        """Lock the session's heads while ``build`` decides."""

        def attempt() -> bool:
            transaction = Transaction()
            try:
                with self._connected() as driver, driver.transaction():
                    transaction.begin(driver)
                    if self._sight == "one":
                        self._bind(driver, stream.user_id)
                    self.check_fences(driver.execute)
                    what = build(heads(driver, stream))
                    if what is None:
                        return False
                    _replace(driver, what)
                    run = partial(run_once, driver)
                    insert(what.batch, lambda batch: self._write(driver, batch, run))
                    transaction.is_complete = True
            except psycopg.Error as error:
                if not self._took_effect(transaction, error):
                    raise
            return True

        return self.retrying(attempt)

    def _write(self, driver: Driver, batch: Batch, run: Run) -> WriteOutcome:
        """Write the batch in the transaction that is open."""
        return write(driver, batch, run)

    def flush(self) -> None:
        """Commit once and wait for the disk: nothing committed before is behind it."""

        def attempt() -> None:
            with self._connected() as driver, driver.transaction():
                driver.execute(_SQL["durable"])
                driver.execute("SELECT pg_current_xact_id()")

        self.retrying(attempt)

    def _fetch(
        self, user_id: str | None, query: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """The rows of a query: one round trip, no transaction around it."""
        whose, statement = self._whose(user_id), Statement.like(query, values)
        pooled = self.engine().raw_connection()
        driver = cast("Driver", pooled.driver_connection)
        line: Line | None = pooled.info.get("line")
        if line is None:
            line = Line(driver, prepares=driver.prepare_threshold is not None)
            pooled.info["line"] = line
        try:
            if whose is not None:
                return line.rows(self._fetch_bound(line, whose, statement, values))
            return line.rows(line.run(statement, values))
        except BaseException:
            line.leave()
            raise
        finally:
            if driver.closed:
                pooled.invalidate()
            pooled.close()

    def _fetch_bound(
        self, line: Line, user_id: str, statement: Statement, values: Sequence[Any]
    ) -> PGresult:
        """What a query finds for that user: one round trip, and one transaction."""
        whose = (user_id,)
        bound = (Statement.like(roles.BIND.replace("%s", "?"), whose), whose)
        return line.pipeline([[bound, (statement, values)]])[1]

    @contextmanager
    def _connected(self) -> Iterator[Driver]:
        """Keeps a broken one out of the pool, which sees no error of the driver."""
        with self.engine().connect() as connection:
            driver = cast("Driver", connection.connection.driver_connection)
            try:
                yield driver
            finally:
                if driver.closed:
                    connection.invalidate()

    def retrying(self, work: Callable[[], T]) -> T:
        """Do ``work`` again, a few times, if the server broke the connection.

        Or if two transactions collided and it gave up on this one.
        """
        for tries in range(_RETRIES):
            try:
                return work()
            except (psycopg.Error, DBAPIError) as error:
                if not broken(error) and not collided(error):
                    raise
                state = getattr(_cause(error), "sqlstate", None) or ""
                if broken(error) and not state.startswith("08"):  # not one behind it
                    self.engine().dispose()
                time.sleep(_FIRST_PAUSE * 2**tries)
        return work()

    def settled(self) -> str:
        """Below the oldest transaction that still runs."""
        return _SQL["settled"]

    def among(self, places: Any, found: Any) -> Any:
        """In parts of a table rows of others lie at the same places."""
        here = any_(func.array(places.scalar_subquery()))
        return found & (literal_column(self.place) == here)

    def run_among(self, user_id: str, statement: Any) -> int:
        """Else the planner, who thinks that few are found, looks at all of them."""

        def work(connection: Connection) -> int:
            connection.exec_driver_sql("SET LOCAL random_page_cost TO 0")
            return int(connection.execute(statement).rowcount)

        return self.change(user_id, work)

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        """VACUUM FULL if asked for: it alone leaves no byte of what was deleted."""
        names = [table.fullname for table in self.tables.metadata.sorted_tables]
        advice = "; ".join(f"VACUUM FULL {name}" for name in names)
        # Who does not own a table is not refused: it is passed over, with a warning.
        if not vacuum or self._sight != "owner":
            return {"vacuum": False, "advice": advice}
        with self.reading() as connection:
            left = statistics.replace(connection, SCHEMA, names)
        return {"vacuum": True, "statistics_left": left} if left else {"vacuum": True}

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """The server's files are not this process's to read."""
        return {"files": {}, "names": len(names), "too_short": 0}

    def size(self, connection: Connection) -> int:
        """Bytes of our tables with their indexes."""
        return int(connection.exec_driver_sql(_SQL["size"]).scalar_one())

    def _forget(self) -> None:
        forks.notice()

    def close_before_fork(self) -> None:
        """Nothing to do before a fork: the child opens connections of its own."""

    def leave_to_parent(self, *, in_use: bool) -> None:  # noqa: ARG002  # no thread has its socket
        """Drop the parent's connections, in a forked child; the parent keeps them."""
        self._sockets.sever()
        self._writer.forget()
        self._pool = None

    def close(self) -> None:
        forks.notice()  # in a forked child, nothing may be said to the server
        self._writer.close()
        super().close()


class Transaction:
    """A transaction whose outcome can be asked for, should the answer be lost.

    number:      by which the server knows it.
    is_complete: whether nothing but its COMMIT was left to do.
    """

    def __init__(self) -> None:
        self.number = ""
        self.is_complete = False

    def begin(self, driver: Driver) -> None:
        """Ask for the number, together with the driver's BEGIN in one round trip."""
        with driver.pipeline():
            cursor = driver.execute(_SQL["transaction"])
        ((self.number,),) = cursor.fetchall()


def _numbers(found: PGresult) -> set[int]:
    values = (found.get_value(row, 0) or b"" for row in range(found.ntuples))
    return {int.from_bytes(value, "big") for value in values}


class Writer:
    """Writes batches over a connection of its own, which it opens when it needs one.

    ``connect`` gives one that commits each statement.
    """

    def __init__(self, connect: Callable[[], Driver]) -> None:
        self._connect = connect
        self.forget()

    def alone(self, batch: Batch) -> WriteOutcome:
        """Write one: a statement that is a transaction, one round trip."""
        with self._lock:
            line = self._opened()
            try:
                return write(line.driver, batch, line.run)
            except BaseException:
                line.leave()
                raise

    def together(self, batches: Sequence[Batch]) -> list[WriteOutcome]:
        """Write several, each of them or nothing of it."""
        # In one order, in which heads are locked: no two groups deadlock.
        order = sorted(range(len(batches)), key=lambda index: batches[index].stream)
        with self._lock:
            line = self._opened()
            try:
                done = self._try(line, [batches[index] for index in order])
                wrote = dict(zip(order, done, strict=True))
                return [
                    Wrote(one.head) if wrote[index] else what_is_there(line.driver, one)
                    for index, one in enumerate(batches)
                ]
            except BaseException:
                line.leave()
                raise

    def _try(self, line: Line, batches: Sequence[Batch]) -> list[bool]:
        """Whether each was written, all in one round trip.

        Those that go on are in one statement and commit; behind it, in another commit,
        are those that begin a stream or have blobs.
        """
        counts = Counter(batch.stream for batch in batches)
        # Those of one stream are in one transaction: none overtakes another.
        alike = [
            bool(one.expected_seq) and not one.blobs and counts[one.stream] == 1
            for one in batches
        ]
        plain = [batch for batch, one in zip(batches, alike, strict=True) if one]
        others = [batch for batch, one in zip(batches, alike, strict=True) if not one]
        many: list[Command] = []
        if plain:
            used = any(batch.uses for batch in plain)
            many.append((_many(receipts=used), _many_values(plain)))
        before = accumulate((len(batch.events) for batch in others), initial=0)
        each = [
            (_statement(_Shape.of(batch)), _values(batch, base))
            for batch, base in zip(others, before, strict=False)
        ]
        results = line.pipeline([commands for commands in (many, each) if commands])
        moved = _numbers(results.pop(0)) if plain else set[int]()
        went = (number in moved for number in range(1, len(plain) + 1))
        began = (
            result.command_tuples == len(batch.events)
            for batch, result in zip(others, results, strict=True)
        )
        return [next(went if one else began) for one in alike]

    def forget(self) -> None:
        """Let go, in a forked child, of a connection that is its parent's."""
        self._line: Line | None = None
        self._lock = Lock()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._line is not None:
                self._line.driver.close()
                self._line = None

    def _opened(self) -> Line:
        line = self._line
        if line is None or line.driver.closed:
            driver = self._connect()
            prepares = driver.prepare_threshold is not None
            line = self._line = Line(driver, prepares=prepares)
        return line


# The values of a statement in order, each as ``name:kind`` of its type.
_HEAD_VALUES: Final = (
    "seq:big",
    "hash:bytes",
    "status:text",
    "state:bytes",
    "key_check:bytes",
    "tokens:big",
    "created_at:big",
    "updated_at:big",
    "user:text",
    "session:text",
    "stream:text",
    "expected:big",
    "expected_hash:bytes",
    "base:big",
)
_EVENT_VALUES: Final = (
    "type:text",
    "ts:big",
    "event_id:bytes",
    "estimate:int",
    "version:small",
    "body:bytes",
)
_EVENTS_VALUES: Final = (
    "seqs:big[]",
    "types:text[]",
    "times:big[]",
    "ids:bytes[]",
    "estimates:int[]",
    "versions:small[]",
    "hashes:bytes[]",
    "bodies:bytes[]",
)
_NEW_VALUES: Final = (
    "user_ref:text",
    "session_ref:text",
    "epoch:int",
    "origin:text",
)
_BLOBS_VALUES: Final = (
    "addresses:bytes[]",
    "blobs:bytes[]",
    "sizes:big[]",
)
_RECEIPTS_VALUES: Final = (
    "receipts:bytes[]",
    "firsts:big[]",
    "lasts:big[]",
)
# Of the statement that moves many heads.
_MANY_HEADS_VALUES: Final = (
    "seqs_after:big[]",
    "head_hashes:bytes[]",
    "statuses:text[]",
    "states:bytes[]",
    "checks:bytes[]",
    "token_sums:big[]",
    "begins:big[]",
    "ends:big[]",
    "users:text[]",
    "sessions:text[]",
    "streams:text[]",
    "expecteds:big[]",
    "expected_hashes:bytes[]",
    "batch_of:big[]",
)
Run: TypeAlias = "Callable[[Statement, Sequence[Any]], PGresult]"


def write(driver: Driver, batch: Batch, run: Run) -> WriteOutcome:
    """Write the batch; ``run`` executes its statement."""
    try:
        written = run(_statement(_Shape.of(batch)), _values(batch))
    except psycopg.errors.UniqueViolation:
        if not driver.autocommit:
            raise
        return what_is_there(driver, batch)
    if written.command_tuples == len(batch.events):
        return Wrote(batch.head)
    return what_is_there(driver, batch)


def what_is_there(driver: Driver, batch: Batch) -> WriteOutcome:
    """Why nothing was written: it was before, the key was used, or the head moved."""
    stream, key = batch.stream, batch.receipt
    if is_ours(driver, batch):
        return Wrote(batch.head)
    used = None if key is None else receipt(driver, stream, key)
    return used or Moved(head_row(driver, stream))


def is_ours(driver: Driver, batch: Batch) -> bool:
    """Whether the very rows of ``batch`` are there: an acknowledgement was lost."""
    last = batch.events[-1]
    found = driver.execute(_SQL["last_hash"], (*batch.stream, last.seq)).fetchone()
    return found is not None and bytes(found[0]) == last.hash


class _Shape(NamedTuple):
    """What a batch is, as far as its statement depends on it."""

    new: bool
    main: bool
    fork: bool
    one: bool
    blobs: bool
    uses: bool

    @classmethod
    def of(cls, batch: Batch) -> _Shape:
        return cls(
            not batch.expected_seq,
            batch.stream.stream == MAIN,
            bool(batch.refs.origin),
            len(batch.events) == 1,
            bool(batch.blobs),
            bool(batch.uses),
        )


@cache
def _statement(shape: _Shape) -> Statement:
    """The statement that writes a batch of this shape."""
    parts: list[str] = []
    values: list[str] = [*_HEAD_VALUES]
    if shape.one:
        values += _EVENT_VALUES
    else:
        values += _EVENTS_VALUES
    if not shape.new:
        head = _SQL["move_head"]
    elif shape.main:
        origin = _SQL["origin"] if shape.fork else ""
        head = _SQL["new_head"].format(where=_SQL["where_live"].format(origin=origin))
        parts.append(_SQL["subject"])
        values += _NEW_VALUES
    else:
        head = _SQL["new_head"].format(where=_SQL["where_main"])
        values += _NEW_VALUES
    parts.append(f"head AS ({head})")
    if shape.blobs:
        parts.append(_SQL["blobs"])
        values += _BLOBS_VALUES
    if shape.uses:
        parts.append(_SQL["receipt"])
        values += _RECEIPTS_VALUES
    insert = _SQL["event"] if shape.one else _SQL["events"]
    return Statement.of(f"WITH {', '.join(parts)} {insert}", values)


def _values(batch: Batch, base: int = 0) -> list[Any]:
    """The values of its statement; ``base``: rows that its transaction wrote before."""
    events, head = batch.events, (batch.expected_seq, batch.expected_hash, base)
    values: list[Any] = [*batch.head, *batch.stream, *head]
    if len(events) == 1:
        values += (*events[0].columns[2:], events[0].state)
    else:
        values += _columns(events)
    if not batch.expected_seq:
        values += batch.refs
    if batch.blobs:
        # Locked in one order, so that no two writers deadlock.
        values += zip(*sorted(batch.blobs), strict=True)
    if batch.uses:
        values += zip(*batch.uses, strict=True)
    return values


@cache
def _many(*, receipts: bool) -> Statement:
    """The statement that writes batches of several streams."""
    values: list[str] = [*_MANY_HEADS_VALUES, *_EVENTS_VALUES]
    if not receipts:
        return Statement.of(f"WITH {_SQL['held']} {_SQL['many']}", values)
    values.append("receipt_of:big[]")
    values += _RECEIPTS_VALUES
    query = f"WITH {_SQL['held']} {_SQL['many_receipts']} {_SQL['many']}"
    return Statement.of(query, values)


def _many_values(batches: Sequence[Batch]) -> list[Any]:
    """The values of the statement of all these; none begins a stream or has blobs."""
    heads = [
        (*batch.head, *batch.stream, batch.expected_seq, batch.expected_hash)
        for batch in batches
    ]
    numbered = list(enumerate(batches, 1))
    rows = [row for batch in batches for row in batch.events]
    values: list[Any] = [*zip(*heads, strict=True)]
    values.append([number for number, batch in numbered for _ in batch.events])
    values += _columns(rows)
    used = [(number, *use) for number, batch in numbered for use in batch.uses]
    return [*values, *zip(*used, strict=True)]


def _columns(events: Sequence[EncryptedEvent]) -> Iterator[Sequence[Any]]:
    yield from islice(zip(*[row.columns for row in events], strict=True), 1, None)
    yield [row.hash for row in events]
    yield [row.state for row in events]


def head_row(driver: Driver, stream: StreamId, *, lock: bool = False) -> HeadRow | None:
    """The row of the stream's head; ``lock`` keeps others from moving it."""
    query = _SQL["head"] + (" FOR UPDATE" if lock else "")
    row = driver.execute(query, stream).fetchone()
    return HeadRow(*row) if row else None


def receipt(driver: Driver, stream: StreamId, key: bytes) -> Duplicate | None:
    """The seqs that were written under this key, if it was used."""
    row = driver.execute(_SQL["find_receipt"], (*stream, key)).fetchone()
    return Duplicate(*row) if row else None


_AT_ONCE: Final = 500
# Local to its transaction: no other connection ever finds the door open.
_OPEN: Final = "SET LOCAL refold.rewriting = 'on'"
_CLOSE: Final = "SET LOCAL refold.rewriting = 'off'"
# As in ``pg_trigger.tgtype``: of a row 1, BEFORE 2, DELETE 8, UPDATE 16, TRUNCATE 32.
TRIGGERS: Final = {
    "events_refuse_change": 1 + 2 + 8 + 16,
    "events_refuse_truncate": 2 + 32,
}


REFUSE_TRUNCATE: Final = _SQL["guard_truncate"]
REFUSAL: Final = _SQL["guard_function"].split("$$")[1]
GUARDS: Final = tables.guards("postgres")


def heads(driver: Driver, stream: StreamId) -> dict[str, HeadRow]:
    """The heads of the session by the name of their stream, all of them locked.

    Asked for twice: a stream that began while the lock was waited for is seen by
    the second, and with the main head locked no other can begin.
    """
    for _ in range(2):
        found = driver.execute(_SQL["session_heads"], stream[:2]).fetchall()
    return {name: HeadRow(*columns) for name, *columns in found}


def _replace(driver: Driver, what: Rewrite) -> None:
    """Replace the session's rows, inside a transaction that holds its heads."""
    user_id, session_id, _ = what.batch.stream
    check = what.batch.head.key_check
    driver.execute(_OPEN)
    for start in range(0, len(what.rows), _AT_ONCE):
        rows = what.rows[start : start + _AT_ONCE]
        values = {
            "user": user_id,
            "session": session_id,
            "streams": [row.columns[0].stream for row in rows],
            "seqs": [row.seq for row in rows],
            "bodies": [row.state for row in rows],
            "firsts": [row.first_digest for row in rows],
        }
        driver.execute(_SQL["replace_rows"], values)
    driver.execute(_CLOSE)
    for name, state in what.states.items():
        driver.execute(_SQL["state"], (state, check, user_id, session_id, name))
    driver.execute(_SQL["drop_blobs"], (user_id, sorted(what.blobs)))
    driver.execute(_SQL["drop_views"], (user_id, session_id))
    driver.execute(_SQL["reopen"], (check, user_id, session_id, MAIN))


def translated(shown: str, error: Exception) -> errors.RefoldError | None:
    """The error to raise for what the driver raised at ``shown``; None: none of it."""
    cause = _cause(error)
    if not isinstance(cause, psycopg.Error):
        return None
    if gone := moved(str(cause)):
        return gone
    state = cause.sqlstate or ""
    lacking = lacking_right(cause.diag.message_primary or "")
    if state == "42501" and lacking is not None:
        _, remedy = tables.refusals("postgres")[state]
        return errors.StoreUnavailable(f"{shown} refuses: {lacking}", remedy=remedy)
    for prefix, (what, remedy) in tables.refusals("postgres").items():
        if state.startswith(prefix):
            return errors.StoreUnavailable(f"{shown} {what}", remedy=remedy)
    if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError):
        if answer_lost(cause):
            return outcome_unknown(shown)
        return errors.StoreUnavailable(
            f"{shown} cannot be reached", remedy="check that it runs, and try again"
        )
    name = type(cause).__name__
    return errors.StoreUnavailable(
        f"{shown} refused a statement ({name} {state})", remedy="see the server's log"
    )


_LACKING: Final = (
    (
        re.compile(r"permission denied for (table|schema|function) (\w+)"),
        "insufficient privilege on the {0} {1}",
    ),
    (
        re.compile(r'permission denied to set role "(\w+)"'),
        "insufficient privilege: this role is not a member of {0}",
    ),
    (
        re.compile(r'violates row-level security policy for table "(\w+)"'),
        "insufficient privilege on this row of the table {0}",
    ),
)


def lacking_right(message: str) -> str | None:
    """The right that a role lacks; None if the server does not say it in English."""
    for pattern, text in _LACKING:
        match = pattern.search(message)
        if match is not None:
            return text.format(*match.groups())
    return None


def outcome_unknown(shown: str) -> errors.StoreUnavailable:
    """What there is to say where the answer to a statement, or a COMMIT, was lost."""
    return errors.StoreUnavailable(
        f"{shown} broke the connection, and whether a change that was being written "
        "took effect is unknown",
        remedy="check that it runs, then read what is there; repeating an append is "
        "safe only with the idempotency key that it had",
    )


def answer_lost(error: psycopg.Error) -> bool:
    """Whether a connection broke that had been made: something may have been sent."""
    never_connected = error.pgconn is not None or str(error).startswith(_NOT_CONNECTED)
    return broken(error) and not never_connected


def broken(error: Exception) -> bool:
    """Whether the server broke the connection, and may come back."""
    cause = _cause(error)
    return isinstance(cause, psycopg.OperationalError) and (
        cause.sqlstate is None or cause.sqlstate.startswith(("08", "57P"))
    )


def collided(error: Exception) -> bool:
    """Whether two transactions collided and the server gave up on this one.

    Or what was prepared had been forgotten, or was there already.
    """
    cause = _cause(error)
    states = ("40001", "40P01", "26000", "25P02")
    return isinstance(cause, psycopg.Error) and cause.sqlstate in states


def _cause(error: Exception) -> object:
    return error.orig if isinstance(error, DBAPIError) else error
