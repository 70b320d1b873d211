"""PostgreSQL 15 and later: one round trip an append, heads as compare-and-set."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, partial
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
from refold.adapters.sql import forks, lent, queries, roles, statistics
from refold.adapters.sql.clocks import ServerTime
from refold.adapters.sql.database import (
    NOBODY,
    STORE_MOVED,
    Database,
    Write,
    error_if_moved,
)
from refold.adapters.sql.libpq import (
    Command,
    PreparedConnection,
    PsycopgConnection,
    Statement,
    run_once,
)
from refold.adapters.sql.queries import SCHEMA
from refold.domain import errors
from refold.domain.ids import MAIN, StreamId
from refold.domain.locks import computed_once
from refold.domain.ports import Duplicate

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

T = TypeVar("T")
_SQL: Final = queries.statements("postgres")
# Numbers of advisory locks.
_SCHEMA_LOCK: Final = 0x5265666F6C64
_FILL_LOCK: Final = _SCHEMA_LOCK + 1
# Transactions that ``advance_past`` uses up: in a statement, and at most.
_TRANSACTIONS_AT_ONCE: Final = 10_000
_MOST_TRANSACTIONS: Final = 100_000_000
_RETRIES: Final = 5
_FIRST_PAUSE: Final = 0.1  # seconds
# The driver's messages that begin so are about a connection that was never made.
_NOT_CONNECTED: Final = (
    "failed to resolve",
    "connection failed",
    "connection timeout",
)


POOLER: Final = "pooler"  # the parameter of a URL


def pooler_of(url: URL) -> str | None:
    """Return the mode of the connection pooler that the URL names; None without one.

    Raises InvalidConfiguration unless the mode is ``transaction`` or ``session``.
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
    """A PostgreSQL database, with all tables of Refold in the schema ``refold``."""

    name = "postgresql"
    schema = SCHEMA
    mark = "%s"
    lock_against_changes = "FOR SHARE"
    lock_against_deletion = "FOR KEY SHARE"
    place_column = "ctid"
    searchable = False
    each_span = _SQL["each_span"]

    def __init__(self, url: URL) -> None:
        self._pooler = pooler_of(url)
        server_url = url.difference_update_query([POOLER])
        self._url = server_url.set(drivername="postgresql+psycopg")
        url_to_show = url.set(password=None, query={})
        super().__init__(url_to_show.render_as_string(hide_password=True))
        self._writer = Writer(self._open_writing_connection)
        self._time = ServerTime(self._server_moment)
        # Whether a connection has shown that a pooler is in front of the server.
        self._is_pooled = False
        self._sockets = forks.Sockets()
        forks.register(self)

    def _make_pool(self) -> Engine:
        try:
            pool = create_engine(
                self._url, pool_size=8, max_overflow=24, pool_recycle=1800
            )
            event.listen(pool, "connect", self._on_connect)
            lent.close_when_returned(pool)
        except Exception as error:
            raise errors.InvalidConfiguration(
                f"{self.shown_name} is not a PostgreSQL URL ({type(error).__name__}): "
                "postgresql://user:password@host/database"
            ) from None
        return pool

    def _on_connect(self, connection: Any, _record: object) -> None:
        """Set the isolation level, and prepare nothing on a connection of a pooler.

        The level is READ COMMITTED whatever the server's default is, because appends
        lock heads by rows.  A pooler may run each transaction on another connection to
        the server, which other clients share with their settings and prepared
        statements.
        """
        self._sockets.note(connection)
        if self._is_behind_pooler(connection):
            self._is_pooled = True
            connection.prepare_threshold = None
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED

    def _is_behind_pooler(self, driver: PsycopgConnection) -> bool:
        """Whether a pooler may run each transaction on another connection.

        Without the parameter in the URL, this compares process numbers: a pooler
        invents the one that it names to a client.
        """
        driver.autocommit = True
        process: int | None = None
        if self._pooler == "session":
            ((process,),) = driver.execute("SELECT pg_backend_pid()").fetchall()
        elif self._pooler is None:
            process = self._named_process(driver)
        # The statement sets the isolation level if this is the server's process.
        rows = driver.execute(_SQL["connected"], (process,)).fetchall()
        ((server_process, _, moment),) = rows
        driver.autocommit = False
        self._time.set(moment)
        return bool(server_process != process)

    def _named_process(self, driver: PsycopgConnection) -> int:
        """Return the process that was named when the connection began."""
        return driver.info.backend_pid

    def reading(self, user_id: str | None = None) -> AbstractContextManager[Connection]:
        """Return a connection without transactions.

        After a ROLLBACK, psycopg would prepare every statement again.

        If the role sees one user at a time, return a transaction for that user.
        """
        if self._sight == "one":
            return self.writing(user_id)
        return self._autocommitting()

    def _autocommitting(self) -> Connection:
        """Return a connection on which each statement is a transaction."""
        connection = self.engine().connect()
        return connection.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def writing(self, user_id: str | None = None) -> Iterator[Connection]:
        """Begin a transaction, for this user if the role sees one user at a time."""
        bound_user = self._user_to_bind(user_id)
        with self.engine().begin() as connection:
            if bound_user is not None:
                driver = cast(
                    "PsycopgConnection", connection.connection.driver_connection
                )
                self._bind(driver, bound_user)
            yield connection

    def change(
        self,
        user_id: str | None,
        change: Callable[[Connection], T],
        *,
        fenced: bool = True,
    ) -> T:
        """Call ``change`` in a transaction that takes effect once.

        If the answer to its COMMIT is lost, the server reports whether it took effect.
        """

        def work() -> T:
            transaction = Transaction()
            try:
                with self.writing(user_id) as connection:
                    driver = connection.connection.driver_connection
                    transaction.begin(cast("PsycopgConnection", driver))
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
        """Whether a transaction was committed although it ended with this error.

        Raises StoreUnavailable if the server does not know.
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
        raise outcome_unknown(self.shown_name) from None

    def _status(self, transaction: str) -> str | None:
        """Return the status of a transaction; None if the server has forgotten it."""
        query = _SQL["transaction_status"]
        with self._autocommitting() as connection:
            status = connection.exec_driver_sql(query, (transaction,)).scalar()
        if status is None:
            return None
        return str(status)

    def _user_to_bind(self, user_id: str | None) -> str | None:
        """Return the user that a transaction must name; None if the role sees all.

        Raises StoreUnavailable for all users if the role sees one at a time.
        """
        if self._sight != "one":
            return None
        if user_id is None:
            raise roles.refuse(self.shown_name)
        return user_id

    def _bind(self, driver: PsycopgConnection, user_id: str) -> None:
        """Name the user whose rows the role sees in this transaction."""
        driver.execute(roles.BIND, (user_id,))

    @contextmanager
    def writing_relaxed(self) -> Iterator[Connection]:
        """Begin a transaction that a crash of the server may undo."""
        with self.writing(NOBODY) as connection:
            connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
            yield connection

    def lease_time(self, connection: Connection, clock: Callable[[], int]) -> int:  # noqa: ARG002  # the server's decides
        """Return the server's time, which all machines that share the store can ask."""
        return int(connection.exec_driver_sql(_SQL["moment"]).scalar_one())

    def store_time(self) -> ServerTime:
        return self._time

    def _server_moment(self) -> int:
        """Return the server's time."""
        ((moment,),) = self.fetch(NOBODY, _SQL["moment"], ())
        return int(moment)

    @computed_once
    def _sight(self) -> roles.Sight:
        """The rows that the role of this database's connections sees."""
        with self._connected() as driver:
            return roles.sight(driver)

    def has_sessions(self) -> bool:
        with self.reading(NOBODY) as connection:
            query = roles.any_session(self._sight)
            return bool(connection.exec_driver_sql(query).scalar())

    def translate(self, error: Exception) -> errors.RefoldError | None:
        return translated(self.shown_name, error)

    def prepare(self, connection: Connection) -> None:
        """Create the schema, unless it exists.

        Raises IncompatibleStore if it belongs to another program, or the database has
        another encoding than UTF8.
        """
        rows = connection.exec_driver_sql(_SQL["encoding_and_owner"])
        encoding, is_foreign = rows.one()
        if encoding != "UTF8":
            raise errors.IncompatibleStore(
                f"{self.shown_name} must have the encoding UTF8"
            )
        if is_foreign:
            raise errors.IncompatibleStore(
                f"the schema {SCHEMA} of {self.shown_name} belongs to another program: "
                "use another database"
            )
        connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")

    def lock_schema(self, connection: Connection) -> None:
        """Take a lock that one migration at a time holds until its commit."""
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")

    def guard_events(self, connection: Connection) -> None:
        """Create triggers that refuse UPDATE, DELETE and TRUNCATE."""
        for statement in GUARDS:
            connection.exec_driver_sql(statement.replace("%", "%%"))

    def refuse_writes(self, connection: Connection, where: str) -> None:
        """Create a trigger on each table, after concurrent writes to it have ended."""
        # This transaction is idle while other connections finish the move.
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        message = f"{STORE_MOVED}{where}".replace("'", "''")
        create_function = _SQL["moved"].format(message=message)
        connection.exec_driver_sql(create_function.replace("%", "%%"))
        for table in self.tables.metadata.tables:
            connection.exec_driver_sql(_SQL["refuse_write"].format(table=table))

    @contextmanager
    def lock_for_move(self) -> Iterator[None]:
        """Within the block, no other process moves a store to this database.

        Raises StoreUnavailable if one already does.
        """
        with self.errors, self._autocommitting() as connection:
            driver = cast("PsycopgConnection", connection.connection.driver_connection)
            if driver.prepare_threshold is None:
                raise errors.StoreUnavailable(
                    f"{self.shown_name} is behind a connection pooler, where a store "
                    "cannot be moved: the lock for it needs one connection",
                    remedy="connect to the server directly",
                )
            try_lock = f"SELECT pg_try_advisory_lock({_FILL_LOCK})"
            if not connection.exec_driver_sql(try_lock).scalar():
                raise errors.StoreUnavailable(
                    f"another process is moving a store to {self.shown_name}",
                    remedy="wait until it ends",
                )
            try:
                yield
            finally:
                # Without this, the lock would last until the server notices that the
                # connection is closed.
                with suppress(DBAPIError):
                    connection.exec_driver_sql(
                        f"SELECT pg_advisory_unlock({_FILL_LOCK})"
                    )
                connection.invalidate()

    def advance_past(self, position: int) -> None:
        """Give later appends higher positions than this one.

        Positions derive from the numbers of the server's transactions, so this uses up
        transactions.  Raises IncompatibleStore if they are too many.
        """
        first_number = (position >> 20) + 1

        def attempt() -> None:
            with self._autocommitting() as connection:
                execute = connection.exec_driver_sql
                while True:
                    missing = first_number - execute(_SQL["next"]).scalar_one()
                    if missing <= 0:
                        return
                    if missing > _MOST_TRANSACTIONS:
                        raise errors.IncompatibleStore(
                            f"{self.shown_name} has run {missing} transactions fewer "
                            "than the server of this store: set its next transaction "
                            f"to {first_number} with pg_resetwal"
                        )
                    count = min(missing, _TRANSACTIONS_AT_ONCE)
                    execute(_SQL["use_up"].format(count=count))

        self.attempt(attempt)

    def unguarded(self) -> list[str]:
        """Return triggers that are disabled, changed, missing, or were added."""
        with self.reading(NOBODY) as connection:
            rows = connection.exec_driver_sql(_SQL["triggers"]).all()
        present = {tuple(row) for row in rows}
        expected = {
            (name, f"{SCHEMA}.events", True, kind, REFUSAL)
            for name, kind in TRIGGERS.items()
        }
        return sorted({name for name, *_ in present ^ expected})

    def write_group(self, batches: Sequence[Batch]) -> list[WriteOutcome | Exception]:
        """Write batches in one round trip: a single one as one statement.

        Behind a pooler, which may run the transactions of a round trip on different
        connections, and after an error, each batch has its own round trip.  After a
        lost answer, this looks whether the batch is stored.
        """
        self._check_process()
        if len(batches) == 1:
            return [self._write_alone(batches[0])]
        if self._is_pooled:
            return [self._write_alone(batch) for batch in batches]
        try:
            return list(self._writer.together(batches))
        except psycopg.Error as error:
            # If one transaction of the group failed, another one may be committed.
            # Only if there was no connection, nothing was sent.
            maybe_sent = answer_lost(error) or not broken(error)
            return [self._write_alone(batch, lost=maybe_sent) for batch in batches]

    def _write_alone(
        self, batch: Batch, *, lost: bool = False
    ) -> WriteOutcome | Exception:
        """Write a batch, and return the outcome or the error.

        lost: whether an earlier attempt may have sent the batch and got no answer.
        """

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
                return outcome_unknown(self.shown_name)
            return self.translate(error) or error

    def _open_writing_connection(self) -> PsycopgConnection:
        """Open a connection outside the pool, as the role that writes events."""
        has_policies = self._sight != "owner"
        pooled = self.engine().raw_connection()
        driver = cast("PsycopgConnection", pooled.driver_connection)
        pooled.detach()
        driver.autocommit = True
        if driver.prepare_threshold is None:
            if has_policies:
                driver.close()
                raise errors.StoreUnavailable(
                    f"{self.shown_name} is behind a connection pooler, where this role "
                    "cannot append: its rights belong to one connection",
                    remedy="connect to the server directly",
                )
            return driver
        try:
            # A plan from the time when there were few heads would scan them all later.
            driver.execute("SET enable_seqscan TO off")
            if has_policies:
                roles.become_writer(driver)
        except BaseException:
            driver.close()
            raise
        return driver

    def hold_head(
        self, stream: StreamId, work: Callable[[HeadRow | None, Write], WriteOutcome]
    ) -> WriteOutcome:
        """Lock the head while ``work`` decides and writes.

        A second attempt first looks whether the batch of the first is stored.
        """
        sent: list[Batch] = []

        def attempt() -> WriteOutcome:
            with self._connected() as driver, driver.transaction():
                if self._sight == "one" and self.fences.leases:
                    self._bind(driver, stream.user_id)
                self.check_fences(driver.execute)
                if self._sight != "owner":
                    roles.become_writer(driver, once=True)
                head = head_row(driver, stream, lock=True)
                if sent and is_stored(driver, sent[-1]):
                    return Wrote(sent[-1].head)

                def write_here(batch: Batch) -> WriteOutcome:
                    sent.append(batch)
                    if batch.append_receipt_address:
                        duplicate = find_receipt(
                            driver, stream, batch.append_receipt_address
                        )
                        if duplicate is not None:
                            return duplicate
                    return self._write(driver, batch, partial(run_once, driver))

                return work(head, write_here)

        try:
            return self.retrying(attempt)
        except (psycopg.Error, DBAPIError) as error:
            if sent and broken(error):
                raise outcome_unknown(self.shown_name) from None
            raise

    def with_driver(self, work: Callable[[Any], T], *, single: bool = False) -> T:
        if single:
            with self._connected(autocommits=True) as driver:
                return work(driver)
        with self._connected() as driver, driver.transaction():
            return work(driver)

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
                    rewrite = build(lock_heads(driver, stream))
                    if rewrite is None:
                        return False
                    _replace(driver, rewrite)
                    run = partial(run_once, driver)
                    insert(rewrite.batch, lambda batch: self._write(driver, batch, run))
                    transaction.is_complete = True
            except psycopg.Error as error:
                if not self._took_effect(transaction, error):
                    raise
            return True

        return self.retrying(attempt)

    def _write(self, driver: PsycopgConnection, batch: Batch, run: Run) -> WriteOutcome:
        """Write the batch in the transaction that is open."""
        return write(driver, batch, run)

    def flush(self) -> None:
        """Commit once, and wait until the disk has this commit and all earlier ones."""

        def attempt() -> None:
            with self._connected() as driver, driver.transaction():
                driver.execute(_SQL["durable"])
                driver.execute("SELECT pg_current_xact_id()")

        self.retrying(attempt)

    def _fetch(
        self, user_id: str | None, query: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query in one round trip, without a transaction."""
        bound_user = self._user_to_bind(user_id)
        statement = Statement.like(query, values)
        pooled = self.engine().raw_connection()
        driver = cast("PsycopgConnection", pooled.driver_connection)
        prepared: PreparedConnection | None = pooled.info.get("prepared")
        if prepared is None:
            prepared = PreparedConnection(
                driver, prepares=driver.prepare_threshold is not None
            )
            pooled.info["prepared"] = prepared
        try:
            if bound_user is None:
                result = prepared.run(statement, values)
            else:
                result = self._fetch_bound(prepared, bound_user, statement, values)
            return prepared.rows(result)
        except BaseException:
            prepared.close_if_busy()
            raise
        finally:
            if driver.closed:
                pooled.invalidate()
            pooled.close()

    def _fetch_bound(
        self,
        prepared: PreparedConnection,
        user_id: str,
        statement: Statement,
        values: Sequence[Any],
    ) -> PGresult:
        """Run a query in a transaction for this user, in one round trip."""
        bind = Statement.like(roles.BIND.replace("%s", "?"), [user_id])
        commands: list[Command] = [(bind, [user_id]), (statement, values)]
        _, result = prepared.pipeline([commands])
        return result

    @contextmanager
    def _connected(self, *, autocommits: bool = False) -> Iterator[PsycopgConnection]:
        """Lend a connection of the pool, and do not return a broken one to it.

        autocommits: whether each statement is a transaction.
        """
        borrowed = self._autocommitting() if autocommits else self.engine().connect()
        with borrowed as connection:
            driver = cast("PsycopgConnection", connection.connection.driver_connection)
            try:
                yield driver
            finally:
                if driver.closed:
                    connection.invalidate()

    def retrying(self, work: Callable[[], T]) -> T:
        """Run ``work``, and again if the connection broke or the transaction collided.

        A collision is a conflict of two transactions, of which the server cancels one.
        """
        for tries in range(_RETRIES):
            try:
                return work()
            except (psycopg.Error, DBAPIError) as error:
                if not broken(error) and not collided(error):
                    raise
                state = getattr(_cause(error), "sqlstate", None) or ""
                # The code 08 is about a connection from this server to another one.
                if broken(error) and not state.startswith("08"):
                    self.engine().dispose()
                time.sleep(_FIRST_PAUSE * 2**tries)
        return work()

    def settled(self) -> str:
        """Return the condition of positions below the oldest running transaction."""
        return _SQL["settled"]

    def among(self, places: Any, condition: Any) -> Any:
        """Return a condition for rows at these places that meet ``condition``.

        In a partitioned table, rows of other users may be at the same places.
        """
        any_place = any_(func.array(places.scalar_subquery()))
        return condition & (literal_column(self.place_column) == any_place)

    def run_among(self, user_id: str, statement: Any) -> int:
        """Run a statement with ``among``, with random access to rows called cheap.

        Otherwise the planner would scan all rows of the table.
        """

        def work(connection: Connection) -> int:
            connection.exec_driver_sql("SET LOCAL random_page_cost TO 0")
            return int(connection.execute(statement).rowcount)

        return self.change(user_id, work)

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        """Run VACUUM FULL if ``vacuum``: nothing else removes deleted bytes."""
        names = [table.fullname for table in self.tables.metadata.sorted_tables]
        # For tables of another owner, VACUUM would only print a warning.
        if not vacuum or self._sight != "owner":
            advice = "; ".join(f"VACUUM FULL {name}" for name in names)
            return {"vacuum": False, "advice": advice}
        with self.reading() as connection:
            failures = statistics.replace(connection, SCHEMA, names)
        report: dict[str, Any] = {"vacuum": True}
        if failures:
            report["statistics_left"] = failures
        return report

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """Return a report without files, because only the server can read its files."""
        return {"files": {}, "names": len(names), "too_short": 0}

    def size(self, connection: Connection) -> int:
        """Return the bytes of the tables with their indexes."""
        return int(connection.exec_driver_sql(_SQL["size"]).scalar_one())

    def _forget(self) -> None:
        forks.notice()

    def close_before_fork(self) -> None:
        """Do nothing, because the child opens its own connections."""

    def leave_to_parent(self, *, in_use: bool) -> None:  # noqa: ARG002  # no thread has its socket
        """Drop the parent's connections in a forked child; the parent keeps them."""
        self._sockets.sever()
        self._writer.forget()
        self._pool = None

    def close(self) -> None:
        """Close all connections; in a forked child, only its own."""
        forks.notice()
        self._writer.close()
        super().close()


class Transaction:
    """A transaction whose outcome the server can report if the answer is lost.

    number:      the server's number of it.
    is_complete: whether only its COMMIT was left to do.
    """

    def __init__(self) -> None:
        self.number = ""
        self.is_complete = False

    def begin(self, driver: PsycopgConnection) -> None:
        """Read the number in one round trip with the driver's BEGIN."""
        with driver.pipeline():
            cursor = driver.execute(_SQL["transaction"])
        ((self.number,),) = cursor.fetchall()


class Writer:
    """Writes batches over its own connection, which it opens when it needs one.

    connect: opens a connection that commits each statement.
    """

    def __init__(self, connect: Callable[[], PsycopgConnection]) -> None:
        self._connect = connect
        self.forget()

    def alone(self, batch: Batch) -> WriteOutcome:
        """Write a batch with one statement, which is its transaction."""
        with self._lock:
            prepared = self._open_connection()
            try:
                return write(prepared.driver, batch, prepared.run)
            except BaseException:
                prepared.close_if_busy()
                raise

    def together(self, batches: Sequence[Batch]) -> list[WriteOutcome]:
        """Write several batches, each completely or not."""
        # All groups lock heads in this order, so that no two of them deadlock.
        order = sorted(range(len(batches)), key=lambda index: batches[index].stream)
        with self._lock:
            prepared = self._open_connection()
            try:
                ordered = [batches[index] for index in order]
                written = self._write_in_one_round_trip(prepared, ordered)
                was_written = dict(zip(order, written, strict=True))
                outcomes: list[WriteOutcome] = []
                for index, batch in enumerate(batches):
                    if was_written[index]:
                        outcomes.append(Wrote(batch.head))
                    else:
                        outcomes.append(stored_outcome(prepared.driver, batch))
                return outcomes
            except BaseException:
                prepared.close_if_busy()
                raise

    def _write_in_one_round_trip(
        self, prepared: PreparedConnection, batches: Sequence[Batch]
    ) -> list[bool]:
        """Write batches; returns for each whether it was written.

        The batches that continue a stream and have no blobs share one statement and its
        commit.  The others have a statement each, and a second commit for all.
        """
        batches_of_stream = Counter(batch.stream for batch in batches)
        # The places of batches in the list.
        joined: list[int] = []
        separate: list[int] = []
        for index, batch in enumerate(batches):
            continues = batch.expected_seq > 0
            # Batches of one stream share a transaction, so that none overtakes another.
            is_only_one = batches_of_stream[batch.stream] == 1
            if continues and is_only_one and not batch.blobs:
                joined.append(index)
            else:
                separate.append(index)
        transactions: list[list[Command]] = []
        if joined:
            command = _joined_command([batches[index] for index in joined])
            transactions.append([command])
        if separate:
            commands: list[Command] = []
            rows_before = 0
            for index in separate:
                batch = batches[index]
                statement = _statement(_Shape.of(batch))
                commands.append((statement, _values(batch, rows_before)))
                rows_before += len(batch.events)
            transactions.append(commands)
        results = prepared.pipeline(transactions)
        written = [False] * len(batches)
        if joined:
            moved_heads = _numbers(results.pop(0))
            for number, index in enumerate(joined, 1):
                written[index] = number in moved_heads
        for index, result in zip(separate, results, strict=True):
            written[index] = result.command_tuples == len(batches[index].events)
        return written

    def forget(self) -> None:
        """Start without a connection, at first and in a forked child."""
        self._connection: PreparedConnection | None = None
        self._lock = Lock()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.driver.close()
                self._connection = None

    def _open_connection(self) -> PreparedConnection:
        """Return the connection; opens one if there is none."""
        prepared = self._connection
        if prepared is None or prepared.driver.closed:
            driver = self._connect()
            prepared = PreparedConnection(
                driver, prepares=driver.prepare_threshold is not None
            )
            self._connection = prepared
        return prepared


def _numbers(result: PGresult) -> set[int]:
    """Return the numbers in the first column of a result."""
    numbers: set[int] = set()
    for row in range(result.ntuples):
        value = result.get_value(row, 0) or b""
        numbers.add(int.from_bytes(value, "big"))
    return numbers


# The values of statements in order, each as ``name:kind`` with the kind of its type.
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
# For the statement that moves several heads.
_HEADS_VALUES: Final = (
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


def write(driver: PsycopgConnection, batch: Batch, run: Run) -> WriteOutcome:
    """Write a batch with one statement, which ``run`` executes."""
    try:
        result = run(_statement(_Shape.of(batch)), _values(batch))
    except psycopg.errors.UniqueViolation:
        if not driver.autocommit:
            raise
        return stored_outcome(driver, batch)
    if result.command_tuples == len(batch.events):
        return Wrote(batch.head)
    return stored_outcome(driver, batch)


def stored_outcome(driver: PsycopgConnection, batch: Batch) -> WriteOutcome:
    """Return the outcome of a batch that this attempt did not write.

    An earlier attempt wrote it, its idempotency key was used, or the head has moved.
    """
    if is_stored(driver, batch):
        return Wrote(batch.head)
    if batch.append_receipt_address is not None:
        duplicate = find_receipt(driver, batch.stream, batch.append_receipt_address)
        if duplicate is not None:
            return duplicate
    return Moved(head_row(driver, batch.stream))


def is_stored(driver: PsycopgConnection, batch: Batch) -> bool:
    """Whether an attempt stored the batch whose answer was lost."""
    last = batch.events[-1]
    row = driver.execute(_SQL["last_hash"], (*batch.stream, last.seq)).fetchone()
    return row is not None and bytes(row[0]) == last.hash


class _Shape(NamedTuple):
    """The properties of a batch that decide its statement.

    begins:        whether it begins a stream.
    of_main:       whether it is of a main stream.
    is_fork:       whether its session is a fork.
    has_one_event: whether it has one event.
    has_blobs:     whether it has blobs.
    has_receipts:  whether it has receipts.
    """

    begins: bool
    of_main: bool
    is_fork: bool
    has_one_event: bool
    has_blobs: bool
    has_receipts: bool

    @classmethod
    def of(cls, batch: Batch) -> _Shape:
        return cls(
            begins=not batch.expected_seq,
            of_main=batch.stream.stream == MAIN,
            is_fork=bool(batch.refs.origin),
            has_one_event=len(batch.events) == 1,
            has_blobs=bool(batch.blobs),
            has_receipts=bool(batch.receipts),
        )


@cache
def _statement(shape: _Shape) -> Statement:
    """Return the statement that writes a batch of this shape."""
    parts: list[str] = []
    values: list[str] = [*_HEAD_VALUES]
    if shape.has_one_event:
        insert = _SQL["event"]
        values += _EVENT_VALUES
    else:
        insert = _SQL["events"]
        values += _EVENTS_VALUES
    if not shape.begins:
        head = _SQL["move_head"]
    else:
        values += _NEW_VALUES
        if shape.of_main:
            parts.append(_SQL["subject"])
            origin = ""
            if shape.is_fork:
                origin = _SQL["origin"]
            condition = _SQL["where_live"].format(origin=origin)
        else:
            condition = _SQL["where_main"]
        head = _SQL["new_head"].format(where=condition)
    parts.append(f"head AS ({head})")
    if shape.has_blobs:
        parts.append(_SQL["blobs"])
        values += _BLOBS_VALUES
    if shape.has_receipts:
        parts.append(_SQL["receipt"])
        values += _RECEIPTS_VALUES
    return Statement.of(f"WITH {', '.join(parts)} {insert}", values)


def _values(batch: Batch, rows_before: int = 0) -> list[Any]:
    """Return the values for the statement of a batch.

    rows_before: the number of events that the same transaction wrote before.
    """
    values: list[Any] = [*batch.head, *batch.stream]
    values += (batch.expected_seq, batch.expected_hash, rows_before)
    if len(batch.events) == 1:
        event = batch.events[0]
        values += event.columns[2:]
        values.append(event.state)
    else:
        values += _event_columns(batch.events)
    if not batch.expected_seq:
        values += batch.refs
    if batch.blobs:
        # All writers lock blobs in this order, so that no two of them deadlock.
        values += _transposed(sorted(batch.blobs))
    if batch.receipts:
        values += _transposed(batch.receipts)
    return values


@cache
def _joined_statement(*, with_receipts: bool) -> Statement:
    """Return the statement that writes one batch to each of several streams."""
    parts = [_SQL["move_heads"]]
    values: list[str] = [*_HEADS_VALUES, *_EVENTS_VALUES]
    if with_receipts:
        parts.append(_SQL["receipts_of_heads"])
        values.append("receipt_of:big[]")
        values += _RECEIPTS_VALUES
    parts.append(_SQL["events_of_heads"])
    return Statement.of(f"WITH {' '.join(parts)}", values)


def _joined_command(batches: Sequence[Batch]) -> Command:
    """Return the command that writes one batch to each of several streams.

    None of the batches begins a stream or has blobs.  Its result has the numbers of the
    batches that it wrote, counted from 1.
    """
    heads: list[Sequence[Any]] = []
    events: list[EncryptedEvent] = []
    batch_of_event: list[int] = []
    receipts: list[Sequence[Any]] = []
    for number, batch in enumerate(batches, 1):
        heads.append(
            (*batch.head, *batch.stream, batch.expected_seq, batch.expected_hash)
        )
        events += batch.events
        batch_of_event += [number] * len(batch.events)
        receipts += [(number, *receipt) for receipt in batch.receipts]
    statement = _joined_statement(with_receipts=bool(receipts))
    values: list[Any] = _transposed(heads)
    values.append(batch_of_event)
    values += _event_columns(events)
    values += _transposed(receipts)
    return statement, values


def _event_columns(events: Sequence[EncryptedEvent]) -> list[Sequence[Any]]:
    """Return the values of several events, in the order of ``_EVENTS_VALUES``."""
    rows = [(*event.columns[1:], event.hash, event.state) for event in events]
    return _transposed(rows)


def _transposed(rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Return the columns of rows."""
    return list(zip(*rows, strict=True))


def head_row(
    driver: PsycopgConnection, stream: StreamId, *, lock: bool = False
) -> HeadRow | None:
    """Return the head of a stream; None if it has none.

    lock: whether to lock it until the commit.
    """
    query = _SQL["head"]
    if lock:
        query += " FOR UPDATE"
    row = driver.execute(query, stream).fetchone()
    if row is None:
        return None
    return HeadRow(*row)


def find_receipt(
    driver: PsycopgConnection, stream: StreamId, address: bytes
) -> Duplicate | None:
    """Return the seqs that were written with an idempotency key; None if it is new.

    address: the address of the receipt for the key.
    """
    row = driver.execute(_SQL["find_receipt"], (*stream, address)).fetchone()
    if row is None:
        return None
    return Duplicate(*row)


_ROWS_AT_ONCE: Final = 500
# The setting is local to its transaction, so no other connection may change events.
_ALLOW_REWRITING: Final = "SET LOCAL refold.rewriting = 'on'"
_REFUSE_REWRITING: Final = "SET LOCAL refold.rewriting = 'off'"
# The sums of bits in ``pg_trigger.tgtype``: for each row 1, BEFORE 2, DELETE 8,
# UPDATE 16, TRUNCATE 32.
TRIGGERS: Final = {
    "events_refuse_change": 1 + 2 + 8 + 16,
    "events_refuse_truncate": 2 + 32,
}


REFUSE_TRUNCATE: Final = _SQL["guard_truncate"]
# The body of the triggers' function, as the server stores it.
REFUSAL: Final = _SQL["guard_function"].split("$$")[1]
GUARDS: Final = queries.guards("postgres")


def lock_heads(driver: PsycopgConnection, stream: StreamId) -> dict[str, HeadRow]:
    """Lock all heads of a session; returns them by the names of their streams."""
    # The first query may wait for the lock, and then miss a stream that began during
    # the wait.  No other stream begins once the main head is locked.
    driver.execute(_SQL["session_heads"], stream[:2])
    rows = driver.execute(_SQL["session_heads"], stream[:2]).fetchall()
    return {name: HeadRow(*columns) for name, *columns in rows}


def _replace(driver: PsycopgConnection, rewrite: Rewrite) -> None:
    """Replace a session's rows, inside a transaction that has locked its heads."""
    user_id, session_id, _ = rewrite.batch.stream
    key_check = rewrite.batch.head.key_check
    driver.execute(_ALLOW_REWRITING)
    for start in range(0, len(rewrite.rows), _ROWS_AT_ONCE):
        rows = rewrite.rows[start : start + _ROWS_AT_ONCE]
        values = {
            "user": user_id,
            "session": session_id,
            "streams": [row.columns[0].stream for row in rows],
            "seqs": [row.seq for row in rows],
            "bodies": [row.state for row in rows],
            "firsts": [row.first_digest for row in rows],
        }
        driver.execute(_SQL["replace_rows"], values)
    driver.execute(_REFUSE_REWRITING)
    for name, state in rewrite.states.items():
        driver.execute(_SQL["state"], (state, key_check, user_id, session_id, name))
    driver.execute(_SQL["drop_blobs"], (user_id, sorted(rewrite.old_blob_addresses)))
    driver.execute(_SQL["drop_views"], (user_id, session_id))
    driver.execute(_SQL["reopen"], (key_check, user_id, session_id, MAIN))


def translated(shown: str, error: Exception) -> errors.RefoldError | None:
    """Return the error to raise for an error of the driver; None for another error.

    shown: the name of the database in messages.
    """
    cause = _cause(error)
    if not isinstance(cause, psycopg.Error):
        return None
    moved_error = error_if_moved(str(cause))
    if moved_error is not None:
        return moved_error
    state = cause.sqlstate or ""
    refusals = queries.refusals("postgres")
    missing_right = lacking_right(cause.diag.message_primary or "")
    if state == "42501" and missing_right is not None:
        _, remedy = refusals[state]
        return errors.StoreUnavailable(
            f"{shown} refuses: {missing_right}", remedy=remedy
        )
    for prefix, (reason, remedy) in refusals.items():
        if state.startswith(prefix):
            return errors.StoreUnavailable(f"{shown} {reason}", remedy=remedy)
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
    """Return the right that the role lacks, by the server's message in English.

    None if the message is another one, or in another language.
    """
    for pattern, text in _LACKING:
        match = pattern.search(message)
        if match is not None:
            return text.format(*match.groups())
    return None


def outcome_unknown(shown: str) -> errors.StoreUnavailable:
    """Return the error for a lost answer to a statement or a COMMIT."""
    return errors.StoreUnavailable(
        f"{shown} broke the connection during a write, and whether the write took "
        "effect is unknown",
        remedy="check that it runs, then read what is stored; repeating an append is "
        "safe only with its idempotency key",
    )


def answer_lost(error: psycopg.Error) -> bool:
    """Whether an open connection broke, so that the server may have got the command."""
    # The driver attaches a connection only to the error of a failed attempt to connect.
    never_connected = error.pgconn is not None or str(error).startswith(_NOT_CONNECTED)
    return broken(error) and not never_connected


def broken(error: Exception) -> bool:
    """Whether the connection broke, and a new one may succeed."""
    cause = _cause(error)
    if not isinstance(cause, psycopg.OperationalError):
        return False
    return cause.sqlstate is None or cause.sqlstate.startswith(("08", "57P"))


# A conflict of transactions, a deadlock, a prepared statement that is gone, and a
# transaction that failed before.
_COLLISIONS: Final = ("40001", "40P01", "26000", "25P02")


def collided(error: Exception) -> bool:
    """Whether the server cancelled the transaction, and another attempt may succeed.

    It does so after a conflict with another transaction, and if a pooler has lost a
    prepared statement.
    """
    cause = _cause(error)
    return isinstance(cause, psycopg.Error) and cause.sqlstate in _COLLISIONS


def _cause(error: Exception) -> object:
    """Return the driver's error that SQLAlchemy wraps, or the error itself."""
    if isinstance(error, DBAPIError):
        return error.orig
    return error
