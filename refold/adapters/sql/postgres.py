"""PostgreSQL 15 and later: one round trip an append, heads as compare-and-set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, Final, TypeVar, cast

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
    text,
)
from sqlalchemy.exc import DBAPIError

from refold.adapters.recorder import Batch, HeadRow, Heads, Rewrite, WriteOutcome, Wrote
from refold.adapters.rows import EncryptedEvent
from refold.adapters.sql import (
    postgres_append as postgres_arrays,
    roles as postgres_wall,
    tables,
)
from refold.adapters.sql.database import NOBODY, Process
from refold.adapters.sql.postgres_append import (
    SCHEMA,
    Writer,
    broken,
    collided,
    head_row,
    is_ours,
    receipt,
    translated,
    write,
)
from refold.domain.errors import (
    IncompatibleStore,
    InvalidConfiguration,
    RefoldError,
    StoreUnavailable,
)
from refold.domain.ids import MAIN, StreamId


@contextmanager
def transaction(dialect: PostgresDatabase) -> Iterator[Connection]:
    """One that a crash of the server may take back, of a table without users."""
    with dialect.writing(NOBODY) as connection:
        connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
        yield connection


_PAGE: Final = 500
# Local to its transaction: no other connection ever finds the door open.
_OPEN: Final = "SET LOCAL refold.rewriting = 'on'"
_CLOSE: Final = "SET LOCAL refold.rewriting = 'off'"
# Keys are destroyed on the strength of a commit, whatever appends are content with.
_DURABLE: Final = """
SELECT set_config('synchronous_commit', 'on', true)
WHERE current_setting('synchronous_commit') IN ('off', 'local')
"""
_KEPT: Final = (
    *("position", "user_id", "session_id", "stream", "seq", "type", "ts", "event_id"),
    *("token_estimate", "schema_version", "hash"),
)
_REFUSE: Final = f"""
CREATE OR REPLACE FUNCTION {SCHEMA}.refuse_change() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
  IF TG_OP = 'UPDATE' AND current_setting('refold.rewriting', true) = 'on' THEN
    IF ROW({", ".join(f"NEW.{name}" for name in _KEPT)}) IS NOT DISTINCT FROM
       ROW({", ".join(f"OLD.{name}" for name in _KEPT)})
       AND NEW.first_digest = coalesce(OLD.first_digest, sha256(OLD.body))
    THEN RETURN NEW; END IF;
  END IF;
  IF TG_OP = 'DELETE' THEN
    IF EXISTS (SELECT 1 FROM {SCHEMA}.heads h WHERE h.user_id = OLD.user_id
      AND h.session_id = OLD.session_id AND h.stream = OLD.stream
      AND h.status = 'erased')
    THEN RETURN OLD; END IF;
  END IF;
  RAISE EXCEPTION 'refold: events are immutable, % is refused', TG_OP;
END $$
"""
GUARDS: Final = (
    _REFUSE,
    f"""
CREATE OR REPLACE TRIGGER events_refuse_change BEFORE UPDATE OR DELETE
ON {SCHEMA}.events FOR EACH ROW EXECUTE FUNCTION {SCHEMA}.refuse_change()
""",
    f"""
CREATE OR REPLACE TRIGGER events_refuse_truncate BEFORE TRUNCATE
ON {SCHEMA}.events FOR EACH STATEMENT EXECUTE FUNCTION {SCHEMA}.refuse_change()
""",
    # What is encrypted cannot be compressed.
    f"ALTER TABLE {SCHEMA}.events ALTER COLUMN body SET STORAGE EXTERNAL",
    f"ALTER TABLE {SCHEMA}.blobs ALTER COLUMN body SET STORAGE EXTERNAL",
)
_HEADS = f"""
SELECT stream, {", ".join(HeadRow._fields)} FROM {SCHEMA}.heads
WHERE user_id=%s AND session_id=%s ORDER BY stream COLLATE "C" FOR UPDATE
"""
_ROWS = f"""
UPDATE {SCHEMA}.events e SET body=n.body, first_digest=n.first_digest
FROM unnest(%(streams)s::text[], %(seqs)s::int8[], %(bodies)s::bytea[],
  %(firsts)s::bytea[]) AS n(stream, seq, body, first_digest)
WHERE e.user_id=%(user)s AND e.session_id=%(session)s AND e.stream=n.stream
  AND e.seq=n.seq
"""
_STATE = f"""
UPDATE {SCHEMA}.heads SET state=%b, key_check=%b
WHERE user_id=%s AND session_id=%s AND stream=%s
"""
_REOPEN = f"""
UPDATE {SCHEMA}.heads SET status='open', key_check=%b
WHERE user_id=%s AND session_id=%s AND stream=%s
"""
_DROP_BLOBS = f"DELETE FROM {SCHEMA}.blobs WHERE user_id=%s AND address=ANY(%s)"
_DROP_VIEWS = f"DELETE FROM {SCHEMA}.views WHERE user_id=%s AND session_id=%s"


def heads(driver: psycopg.Connection[Any], stream: StreamId) -> dict[str, HeadRow]:
    """The heads of the session by the name of their stream, all of them locked.

    Asked for twice: a stream that began while the lock was waited for is seen by
    the second, and with the main head locked no other can begin.
    """
    for _ in range(2):
        found = driver.execute(_HEADS, stream[:2]).fetchall()
    return {name: HeadRow(*columns) for name, *columns in found}


def wait_for_disk(driver: psycopg.Connection[Any]) -> None:
    """Make the commit of this transaction one that waits for the disk."""
    driver.execute(_DURABLE)
    driver.execute("SELECT pg_current_xact_id()")


def rewrite(driver: psycopg.Connection[Any], what: Rewrite) -> None:
    """Replace the session's rows, inside a transaction that holds its heads."""
    user_id, session_id, _ = what.batch.stream
    check = what.batch.head.key_check
    driver.execute(_OPEN)
    for start in range(0, len(what.rows), _PAGE):
        page = what.rows[start : start + _PAGE]
        driver.execute(_ROWS, _values(user_id, session_id, page))
    driver.execute(_CLOSE)
    for name, state in what.states.items():
        driver.execute(_STATE, (state, check, user_id, session_id, name))
    driver.execute(_DROP_BLOBS, (user_id, sorted(what.blobs)))
    driver.execute(_DROP_VIEWS, (user_id, session_id))
    driver.execute(_REOPEN, (check, user_id, session_id, MAIN))
    if not isinstance(write(driver, what.batch, base=0), Wrote):
        raise StoreUnavailable(
            "the head moved while its session was sealed anew", remedy="try again"
        )


def _values(
    user_id: str, session_id: str, rows: Sequence[EncryptedEvent]
) -> dict[str, Any]:
    return {
        "user": user_id,
        "session": session_id,
        "streams": [row.header.stream.stream for row in rows],
        "seqs": [row.header.seq for row in rows],
        "bodies": [row.state for row in rows],
        "firsts": [row.first_digest for row in rows],
    }


T = TypeVar("T")
_SCHEMA_LOCK: Final = 0x5265666F6C64
_RETRIES: Final = 5
_FIRST_PAUSE: Final = 0.1


class PostgresDatabase:
    """A PostgreSQL database; everything of ours is in the schema ``refold``."""

    name = "postgresql"
    mark = "%s"
    shared = "FOR SHARE"
    place, searchable = "ctid", False
    in_memory = False
    casual = transaction
    ends_of_span = ("(s.value->>0)::int8", "(s.value->>1)::int8")

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="postgresql+psycopg")
        shown = url.set(password=None, query={})
        self._shown = shown.render_as_string(hide_password=True)
        self.tables = tables.build(SCHEMA, rowid=False)
        self._engine: Engine | None = None
        self._writer = Writer(self._connection)
        self._process = Process(f"the store {self._shown}")

    def engine(self) -> Engine:
        """The pool of connections, made on first use."""
        self._check_process()
        if self._engine is None:
            try:
                self._engine = create_engine(
                    self._url, pool_size=8, max_overflow=24, pool_recycle=1800
                )
                event.listen(self._engine, "connect", _on_connect)
            except Exception as error:
                raise InvalidConfiguration(
                    f"{self._shown} is no PostgreSQL URL ({type(error).__name__}): "
                    "postgresql://user:password@host/database"
                ) from None
        return self._engine

    def reading(self, user_id: str | None = None) -> AbstractContextManager[Connection]:
        """A connection without transactions: psycopg forgets what it has prepared at a
        ROLLBACK, and would plan every statement behind it anew.

        Where one user is seen at a time, a transaction for that user, and its COMMIT.
        """
        if self._sight == "one":
            return self.writing(user_id)
        connection = self.engine().connect()
        return connection.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def writing(self, user_id: str | None = None) -> Iterator[Connection]:
        """A transaction, for that user where one is seen at a time."""
        bound = self._sight == "one"
        if bound and user_id is None:
            raise postgres_wall.refuse(self._shown)
        with self.engine().begin() as connection:
            if bound:
                connection.exec_driver_sql(postgres_wall.BIND, (user_id,))
            yield connection

    @cached_property
    def _sight(self) -> postgres_wall.Sight:
        with self._connected() as driver:
            return postgres_wall.sight(driver)

    def has_sessions(self) -> bool:
        """Whether there is any session; asked of a function where not all are seen."""
        with self.reading(NOBODY) as connection:
            query = postgres_wall.any_session(self._sight)
            return bool(connection.exec_driver_sql(query).scalar())

    def translate(self, error: Exception) -> RefoldError | None:
        """The error to raise for what the driver raised."""
        return translated(self._shown, error)

    def prepare(self, connection: Connection) -> None:
        """Make our schema, unless it is there and another's."""
        if connection.execute(text("SHOW server_encoding")).scalar_one() != "UTF8":
            raise IncompatibleStore(f"{self._shown} must have the encoding UTF8")
        found = connection.execute(
            text("SELECT count(*) FROM pg_tables WHERE schemaname = :schema"),
            {"schema": SCHEMA},
        )
        ours = text("SELECT to_regclass(:name) IS NOT NULL")
        known = connection.execute(ours, {"name": f"{SCHEMA}.heads"}).scalar_one()
        if found.scalar_one() and not known:
            raise IncompatibleStore(
                f"the schema {SCHEMA} of {self._shown} belongs to another program: "
                "use another database"
            )
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))

    def lock_schema(self, connection: Connection) -> None:
        """A transaction lock, held by one migration at a time."""
        query = text("SELECT pg_advisory_xact_lock(:lock)")
        connection.execute(query, {"lock": _SCHEMA_LOCK})

    def guard_events(self, connection: Connection) -> None:
        """Triggers that refuse UPDATE, DELETE and TRUNCATE."""
        for statement in GUARDS:
            connection.exec_driver_sql(statement.replace("%", "%%"))

    def write_group(self, batches: Sequence[Batch]) -> list[WriteOutcome | Exception]:
        """Alone: one statement.  Together: one transaction.  Both: one round trip.

        If the connection breaks, it is found out whether the write took effect.
        """
        self._check_process()
        if len(batches) == 1:
            try:
                return [self.retrying(lambda: self._writer.alone(batches[0]))]
            except Exception as error:
                return [self.translate(error) or error]
        try:
            return list(self._writer.together(batches))
        except psycopg.Error:
            return [self.write_group([batch])[0] for batch in batches]

    def _connection(self) -> psycopg.Connection[Any]:
        """A connection that no pool looks after."""
        walled = self._sight != "owner"
        pooled = self.engine().raw_connection()
        driver = cast("psycopg.Connection[Any]", pooled.driver_connection)
        pooled.detach()
        driver.autocommit = True
        if walled:
            postgres_wall.become_writer(driver)
        return driver

    def write_exclusive(
        self, stream: StreamId, build: Callable[[HeadRow | None], Batch]
    ) -> WriteOutcome:
        """Lock the head row while ``build`` decides."""
        tried: list[Batch] = []

        def attempt() -> WriteOutcome:
            with self._connected() as driver, driver.transaction():
                if self._sight != "owner":
                    postgres_wall.become_writer(driver, once=True)
                row = head_row(driver, stream, lock=True)
                if tried and is_ours(driver, tried[-1]):
                    return Wrote(tried[-1].head)
                tried.append(build(row))
                key = tried[-1].receipt
                if key is not None and (found := receipt(driver, stream, key)):
                    return found
                return write(driver, tried[-1], base=0)

        return self.retrying(attempt)

    def rewrite(
        self, stream: StreamId, build: Callable[[Heads], Rewrite | None]
    ) -> bool:
        """Lock the session's heads while ``build`` decides."""

        def attempt() -> bool:
            with self._connected() as driver, driver.transaction():
                if self._sight == "one":
                    postgres_wall.bind(driver, stream.user_id)
                what = build(heads(driver, stream))
                if what is not None:
                    rewrite(driver, what)
                return what is not None

        return self.retrying(attempt)

    def flush(self) -> None:
        """Commit once and wait for the disk: nothing committed before is behind it."""

        def attempt() -> None:
            with self._connected() as driver, driver.transaction():
                wait_for_disk(driver)

        self.retrying(attempt)

    def fetch(
        self, user_id: str, query: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """The rows of a query: one round trip, no transaction around it."""
        bound = self._sight == "one"
        pooled = self.engine().raw_connection()
        driver = cast("psycopg.Connection[Any]", pooled.driver_connection)
        try:
            driver.autocommit = True
            try:
                if bound:
                    return postgres_wall.fetch(driver, user_id, query, values)
                return driver.execute(query, values, binary=True).fetchall()
            finally:
                if not driver.closed:
                    driver.autocommit = False
        finally:
            if driver.closed:
                pooled.invalidate()
            pooled.close()

    def for_each_span(self, spans: str, columns: str, where: str) -> str:
        """A subquery for each, ordered: else the planner may join the other way."""
        each = f"jsonb_array_elements(v.{spans}::jsonb) AS s(value)"
        return f"""
SELECT r.* FROM v CROSS JOIN LATERAL {each} CROSS JOIN LATERAL
  (SELECT {columns} FROM {{events}} e WHERE {where} ORDER BY e.seq) r
"""

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        with self.engine().connect() as connection:
            driver = cast(
                "psycopg.Connection[Any]", connection.connection.driver_connection
            )
            try:
                yield driver
            finally:
                if driver.closed:
                    connection.invalidate()

    def retrying(self, attempt: Callable[[], T]) -> T:
        """Do ``attempt`` again, a few times, if the server broke the connection.

        Or if two transactions collided and it gave up on this one.
        """
        for tries in range(_RETRIES):
            try:
                return attempt()
            except (psycopg.Error, DBAPIError) as error:
                if broken(error):
                    self.engine().dispose()
                elif not collided(error):
                    raise
                time.sleep(_FIRST_PAUSE * 2**tries)
        return attempt()

    def settled(self) -> Any:
        """Below the oldest transaction that still runs."""
        return literal_column(
            "position < (pg_snapshot_xmin(pg_current_snapshot())::text::bigint << 20)"
        )

    def among(self, places: Any) -> Any:
        """The row lies at one of these places."""
        return literal_column(self.place) == any_(func.array(places.scalar_subquery()))

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        """VACUUM FULL if asked for: it alone leaves no byte of what was deleted."""
        names = [table.fullname for table in self.tables.metadata.sorted_tables]
        advice = "; ".join(f"VACUUM FULL {name}" for name in names)
        # Who does not own a table is not refused: it is passed over, with a warning.
        if not vacuum or self._sight != "owner":
            return {"vacuum": False, "advice": advice}
        with self.reading() as connection:
            for name in names:
                connection.exec_driver_sql(f"VACUUM FULL {name}")
        return {"vacuum": True}

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """The server's files are not this process's to read."""
        return {"files": {}, "names": len(names), "too_short": 0}

    def size(self, connection: Connection) -> int:
        """Bytes of our tables with their indexes."""
        query = "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class"
        where = "WHERE relkind = 'r' AND relnamespace = to_regnamespace(:schema)"
        found = connection.execute(text(f"{query} {where}"), {"schema": SCHEMA})
        return int(found.scalar_one())

    def _check_process(self) -> None:
        """Let go, in a forked child, of connections that are its parent's."""
        if not self._process.is_another():
            return
        self._writer.forget()
        if self._engine is not None:
            self._engine.dispose(close=False)
            self._engine = None

    def close(self) -> None:
        """Close all connections."""
        self._process.close()
        self._writer.close()
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None


def _on_connect(connection: Any, _record: object) -> None:
    """One isolation level whatever the server's default: heads are row locks."""
    postgres_arrays.register(connection)
    connection.autocommit = True
    connection.execute(
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED"
    )
    connection.autocommit = False
