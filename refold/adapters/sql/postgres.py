"""PostgreSQL 15 and later: one round trip an append, heads as compare-and-set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, cached_property, partial
from itertools import chain, repeat
from struct import Struct, pack
from threading import Lock
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar, cast

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format
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
from refold.adapters.sql import roles, tables
from refold.adapters.sql.database import NOBODY, Database, Write
from refold.adapters.sql.tables import SCHEMA
from refold.domain.errors import (
    IncompatibleStore,
    InvalidConfiguration,
    RefoldError,
    StoreUnavailable,
)
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import Duplicate

T = TypeVar("T")
Driver: TypeAlias = psycopg.Connection[Any]
_SCHEMA_LOCK: Final = 0x5265666F6C64
_RETRIES: Final = 5
_FIRST_PAUSE: Final = 0.1


class PostgresDatabase(Database):
    """A PostgreSQL database; everything of ours is in the schema ``refold``."""

    name, mark, shared = "postgresql", "%s", "FOR SHARE"
    place, searchable = "ctid", False
    ends_of_span = ("(s.value->>0)::int8", "(s.value->>1)::int8")

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="postgresql+psycopg")
        shown = url.set(password=None, query={})
        what = shown.render_as_string(hide_password=True)
        super().__init__(what, tables.build(SCHEMA, rowid=False))
        self._writer = Writer(self._connection)

    def _make_pool(self) -> Engine:
        try:
            pool = create_engine(
                self._url, pool_size=8, max_overflow=24, pool_recycle=1800
            )
            event.listen(pool, "connect", _on_connect)
        except Exception as error:
            raise InvalidConfiguration(
                f"{self.what} is no PostgreSQL URL ({type(error).__name__}): "
                "postgresql://user:password@host/database"
            ) from None
        return pool

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
            raise roles.refuse(self.what)
        with self.engine().begin() as connection:
            if bound:
                connection.exec_driver_sql(roles.BIND, (user_id,))
            yield connection

    @contextmanager
    def casual(self) -> Iterator[Connection]:
        """One that a crash of the server may take back, of a table without users."""
        with self.writing(NOBODY) as connection:
            connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
            yield connection

    @cached_property
    def _sight(self) -> roles.Sight:
        with self._connected() as driver:
            return roles.sight(driver)

    def has_sessions(self) -> bool:
        """Whether there is any session; asked of a function where not all are seen."""
        with self.reading(NOBODY) as connection:
            query = roles.any_session(self._sight)
            return bool(connection.exec_driver_sql(query).scalar())

    def translate(self, error: Exception) -> RefoldError | None:
        """The error to raise for what the driver raised."""
        return translated(self.what, error)

    def prepare(self, connection: Connection) -> None:
        """Make our schema, unless it is there and another's."""
        if connection.execute(text("SHOW server_encoding")).scalar_one() != "UTF8":
            raise IncompatibleStore(f"{self.what} must have the encoding UTF8")
        found = connection.execute(
            text("SELECT count(*) FROM pg_tables WHERE schemaname = :schema"),
            {"schema": SCHEMA},
        )
        ours = text("SELECT to_regclass(:name) IS NOT NULL")
        known = connection.execute(ours, {"name": f"{SCHEMA}.heads"}).scalar_one()
        if found.scalar_one() and not known:
            raise IncompatibleStore(
                f"the schema {SCHEMA} of {self.what} belongs to another program: "
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

    def _connection(self) -> Driver:
        """A connection that no pool looks after."""
        walled = self._sight != "owner"
        pooled = self.engine().raw_connection()
        driver = cast("Driver", pooled.driver_connection)
        pooled.detach()
        driver.autocommit = True
        if walled:
            roles.become_writer(driver)
        return driver

    def hold_head(
        self, stream: StreamId, work: Callable[[HeadRow | None, Write], WriteOutcome]
    ) -> WriteOutcome:
        """Lock the head row meanwhile."""
        tried: list[Batch] = []

        def attempt() -> WriteOutcome:
            with self._connected() as driver, driver.transaction():
                if self._sight != "owner":
                    roles.become_writer(driver, once=True)
                row = head_row(driver, stream, lock=True)
                if tried and is_ours(driver, tried[-1]):
                    return Wrote(tried[-1].head)

                def write_here(batch: Batch) -> WriteOutcome:
                    tried.append(batch)
                    used = batch.receipt
                    found = receipt(driver, stream, used) if used else None
                    return found or write(driver, batch, base=0)

                return work(row, write_here)

        return self.retrying(attempt)

    def rewrite(
        self,
        stream: StreamId,
        build: Callable[[Heads], Rewrite | None],
        insert: Callable[[Batch, Write], None],
    ) -> bool:
        """Lock the session's heads while ``build`` decides."""

        def attempt() -> bool:
            with self._connected() as driver, driver.transaction():
                if self._sight == "one":
                    roles.bind(driver, stream.user_id)
                what = build(heads(driver, stream))
                if what is None:
                    return False
                _replace(driver, what)
                insert(what.batch, partial(write, driver, base=0))
                return True

        return self.retrying(attempt)

    def flush(self) -> None:
        """Commit once and wait for the disk: nothing committed before is behind it."""

        def attempt() -> None:
            with self._connected() as driver, driver.transaction():
                wait_for_disk(driver)

        self.retrying(attempt)

    def _fetch(
        self, user_id: str, query: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """The rows of a query: one round trip, no transaction around it."""
        bound = self._sight == "one"
        pooled = self.engine().raw_connection()
        driver = cast("Driver", pooled.driver_connection)
        try:
            driver.autocommit = True
            try:
                if bound:
                    return roles.fetch(driver, user_id, query, values)
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
    def _connected(self) -> Iterator[Driver]:
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
                if broken(error):
                    self.engine().dispose()
                elif not collided(error):
                    raise
                time.sleep(_FIRST_PAUSE * 2**tries)
        return work()

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

    def _forget(self) -> None:
        self._writer.forget()
        if self._pool is not None:
            self._pool.dispose(close=False)
            self._pool = None

    def close(self) -> None:
        """Close all connections."""
        self._writer.close()
        super().close()


def _on_connect(connection: Any, _record: object) -> None:
    """One isolation level whatever the server's default: heads are row locks."""
    register(connection)
    connection.autocommit = True
    connection.execute(
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED"
    )
    connection.autocommit = False


class Writer:
    """Writes batches over a connection of its own, which it opens when it needs one.

    ``connect`` gives one that commits each statement.
    """

    def __init__(self, connect: Callable[[], Driver]) -> None:
        self._connect = connect
        self.forget()

    def alone(self, batch: Batch) -> WriteOutcome:
        """Write one: a statement that is a transaction, one round trip."""
        with self._connected() as driver:
            return write(driver, batch, base=0)

    def together(self, batches: Sequence[Batch]) -> list[WriteOutcome]:
        """Write all in one commit and one round trip.

        Heads are locked in sorted order, so that no two groups deadlock.
        """
        order = sorted(range(len(batches)), key=lambda index: batches[index].stream)
        with self._connected() as driver:
            sent: dict[int, psycopg.Cursor[Any]] = {}
            with driver.pipeline(), driver.transaction():
                base = 0
                for index in order:
                    sent[index] = send(driver, batches[index], base=base)
                    base += len(batches[index].events)
            return [
                outcome_of(driver, batch, sent[index])
                for index, batch in enumerate(batches)
            ]

    def forget(self) -> None:
        """Let go, in a forked child, of a connection that is its parent's."""
        self._driver: Driver | None = None
        self._lock = Lock()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._driver is not None:
                self._driver.close()
                self._driver = None

    @contextmanager
    def _connected(self) -> Iterator[Driver]:
        with self._lock:
            driver = self._driver
            if driver is None or driver.closed:
                driver = self._driver = self._connect()
            yield driver


_HEAD = f"""
SELECT {", ".join(HeadRow._fields)} FROM {SCHEMA}.heads
WHERE user_id=%s AND session_id=%s AND stream=%s
"""
_MOVE_HEAD = f"""
UPDATE {SCHEMA}.heads SET seq=%(seq)s, hash=%(hash)b, status=%(status)s,
  state=%(state)b, key_check=%(key_check)b, tokens=%(tokens)s,
  created_at=%(created_at)s, updated_at=%(updated_at)s
WHERE user_id=%(user)s AND session_id=%(session)s AND stream=%(stream)s
  AND seq=%(expected)s AND hash=%(expected_hash)b AND key_check=%(key_check)b
  AND status='open'
RETURNING 1
"""
_NEW_HEAD = f"""
INSERT INTO {SCHEMA}.heads (user_id, session_id, stream, seq, hash, status, state,
  key_check, tokens, created_at, updated_at)
SELECT %(user)s, %(session)s, %(stream)s, %(seq)s, %(hash)b, %(status)s, %(state)b,
  %(key_check)b, %(tokens)s, %(created_at)s, %(updated_at)s
{{where}}
ON CONFLICT DO NOTHING
RETURNING 1
"""
# A main stream begins where its user is live, which is locked so that an erasure waits
# for it, and where no such session was erased.
_SUBJECT = f"""
added AS (INSERT INTO {SCHEMA}.subjects (ref, user_ref, status, epoch)
  VALUES (%(user_ref)s, %(user_ref)s, 'live', %(epoch)s)
  ON CONFLICT DO NOTHING RETURNING 1),
live AS (SELECT 1 FROM {SCHEMA}.subjects WHERE ref=%(user_ref)s AND status='live'
  AND epoch=%(epoch)s FOR SHARE)
"""
_WHERE_LIVE = f"""
FROM (SELECT 1 AS one FROM added UNION ALL SELECT 1 FROM live) subject {{origin}}
WHERE NOT EXISTS (SELECT 1 FROM {SCHEMA}.subjects WHERE ref=%(session_ref)s)
"""
# A fork, where what it goes on from is not erased, and is not before the fork is there;
# locked after the subject, as whoever else locks both.
_ORIGIN = f"""
CROSS JOIN LATERAL (SELECT 1 FROM {SCHEMA}.heads WHERE user_id=%(user)s
  AND session_id=%(origin)s AND stream='main' AND status<>'erased' AND subject.one=1
  FOR SHARE) origin
"""
_WHERE_MAIN = f"""
FROM (SELECT 1 FROM {SCHEMA}.heads WHERE user_id=%(user)s AND session_id=%(session)s
  AND stream='main' AND status IN ('open', 'closed') AND key_check=%(key_check)b
  FOR SHARE) main
"""
_INTO_EVENTS = f"""
INSERT INTO {SCHEMA}.events (position, user_id, session_id, stream, seq, type, ts,
  event_id, token_estimate, schema_version, hash, body)
SELECT (pg_current_xact_id()::text::bigint << 20) + %(base)s + """
_EVENT = f"""{_INTO_EVENTS} 1, %(user)s, %(session)s, %(stream)s, %(seq)s, %(type)s,
  %(ts)s, %(event_id)b, %(estimate)s, %(version)s, %(hash)b, %(body)b
FROM head
"""
_EVENTS = f"""{_INTO_EVENTS} e.n, %(user)s, %(session)s, %(stream)s, e.seq, e.type,
  e.ts, e.event_id, e.token_estimate, e.schema_version, e.hash, e.body
FROM head, unnest(%(seqs)b::int8[], %(types)b::text[], %(times)b::int8[],
  %(ids)b::bytea[], %(estimates)b::int4[], %(versions)b::int2[], %(hashes)b::bytea[],
  %(bodies)b::bytea[]) WITH ORDINALITY AS e(seq, type, ts, event_id, token_estimate,
  schema_version, hash, body, n)
"""
_BLOBS = f"""
blobs AS (INSERT INTO {SCHEMA}.blobs (user_id, address, size, created_at, body,
  session_id)
  SELECT %(user)s, b.address, b.size, %(updated_at)s, b.body, %(session)s
  FROM head, unnest(%(addresses)b::bytea[], %(sizes)b::int8[], %(blobs)b::bytea[])
    AS b(address, size, body)
  ON CONFLICT DO NOTHING)
"""
_RECEIPT = f"""
receipt AS (INSERT INTO {SCHEMA}.receipts (user_id, session_id, stream, address,
  first_seq, last_seq)
  SELECT %(user)s, %(session)s, %(stream)s, %(receipt)b, %(first)s, %(seq)s FROM head)
"""
_FIND_RECEIPT = f"""
SELECT first_seq, last_seq FROM {SCHEMA}.receipts
WHERE user_id=%s AND session_id=%s AND stream=%s AND address=%b
"""
_LAST_HASH = f"""
SELECT hash FROM {SCHEMA}.events
WHERE user_id=%s AND session_id=%s AND stream=%s AND seq=%s
"""


def write(driver: Driver, batch: Batch, *, base: int) -> WriteOutcome:
    """Write the batch; ``base`` is how many rows its transaction wrote before."""
    try:
        written = send(driver, batch, base=base)
    except psycopg.errors.UniqueViolation:
        if not driver.autocommit:
            raise
        return _what_is_there(driver, batch)
    return outcome_of(driver, batch, written)


def send(driver: Driver, batch: Batch, *, base: int) -> psycopg.Cursor[Any]:
    """Execute the batch's statement; in a pipeline, its result comes later."""
    return driver.execute(
        _statement(_Shape.of(batch)), _values(batch, base), prepare=True
    )


def outcome_of(
    driver: Driver, batch: Batch, written: psycopg.Cursor[Any]
) -> WriteOutcome:
    """What the statement that was sent did, once its transaction has ended."""
    if written.rowcount == len(batch.events):
        return Wrote(batch.head)
    return _what_is_there(driver, batch)


def _what_is_there(driver: Driver, batch: Batch) -> WriteOutcome:
    """Why nothing was written: it was before, the key was used, or the head moved."""
    stream = batch.stream
    if batch.receipt is not None:
        found = receipt(driver, stream, batch.receipt)
        if found and not is_ours(driver, batch):
            return found
    if is_ours(driver, batch):
        return Wrote(batch.head)
    return Moved(head_row(driver, stream))


def is_ours(driver: Driver, batch: Batch) -> bool:
    """Whether the very rows of ``batch`` are there: an acknowledgement was lost."""
    last = batch.events[-1]
    found = driver.execute(_LAST_HASH, (*batch.stream, last.seq)).fetchone()
    return found is not None and bytes(found[0]) == last.hash


class _Shape(NamedTuple):
    """What a batch is, as far as its statement depends on it."""

    new: bool
    main: bool
    fork: bool
    one: bool
    blobs: bool
    receipt: bool

    @classmethod
    def of(cls, batch: Batch) -> _Shape:
        return cls(
            not batch.expected_seq,
            batch.stream.stream == MAIN,
            bool(batch.refs.origin),
            len(batch.events) == 1,
            bool(batch.blobs),
            batch.receipt is not None,
        )


@cache
def _statement(shape: _Shape) -> bytes:
    head, parts = _MOVE_HEAD, []
    if shape.new:
        live = _WHERE_LIVE.format(origin=_ORIGIN if shape.fork else "")
        head = _NEW_HEAD.format(where=live if shape.main else _WHERE_MAIN)
        parts += [_SUBJECT] if shape.main else []
    parts.append(f"head AS ({head})")
    if shape.blobs:
        parts.append(_BLOBS)
    if shape.receipt:
        parts.append(_RECEIPT)
    return f"WITH {', '.join(parts)} {_EVENT if shape.one else _EVENTS}".encode()


def _values(batch: Batch, base: int) -> dict[str, Any]:
    blobs = sorted(batch.blobs)  # locked in one order, so that no two writers deadlock
    return {
        **batch.head._asdict(),
        "user": batch.stream.user_id,
        "session": batch.stream.session_id,
        "stream": batch.stream.stream,
        "expected": batch.expected_seq,
        "expected_hash": batch.expected_hash,
        "base": base,
        **(_columns if len(batch.events) > 1 else _row)(batch.events),
        "addresses": Byteas.of([blob.address for blob in blobs]),
        "sizes": Bigints.of([blob.size for blob in blobs]),
        "blobs": Byteas.of([blob.body for blob in blobs]),
        "receipt": batch.receipt,
        "user_ref": batch.refs.user,
        "session_ref": batch.refs.session,
        "epoch": batch.refs.epoch,
        "origin": batch.refs.origin,
        "first": batch.events[0].seq,
    }


def _row(events: Sequence[EncryptedEvent]) -> dict[str, Any]:
    (row,) = events
    _, _, kind, ts, event_id, estimate, version = row.columns
    return {
        "type": kind,
        "ts": ts,
        "event_id": event_id,
        "estimate": estimate,
        "version": version,
        "body": row.state,
    }


def _columns(events: Sequence[EncryptedEvent]) -> dict[str, Any]:
    rows = (row.columns[1:] for row in events)
    seqs, types, times, ids, estimates, versions = zip(*rows, strict=True)
    return {
        "seqs": Bigints.of(seqs),
        "types": Texts.of([type_.encode() for type_ in types]),
        "times": Bigints.of(times),
        "ids": Byteas.of(ids),
        "estimates": Integers.of(estimates),
        "versions": Smallints.of(versions),
        "hashes": Byteas.of([row.hash for row in events]),
        "bodies": Byteas.of([row.state for row in events]),
    }


def head_row(driver: Driver, stream: StreamId, *, lock: bool = False) -> HeadRow | None:
    """The row of the stream's head; ``lock`` keeps others from moving it."""
    row = driver.execute(_HEAD + ("FOR UPDATE" if lock else ""), stream).fetchone()
    return HeadRow(*row) if row else None


def receipt(driver: Driver, stream: StreamId, key: bytes) -> Duplicate | None:
    """The seqs that were written under this key, if it was used."""
    row = driver.execute(_FIND_RECEIPT, (*stream, key)).fetchone()
    return Duplicate(*row) if row else None


_AT_ONCE: Final = 500
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
_SESSION_HEADS = f"""
SELECT stream, {", ".join(HeadRow._fields)} FROM {SCHEMA}.heads
WHERE user_id=%s AND session_id=%s ORDER BY stream COLLATE "C" FOR UPDATE
"""
_REPLACE_ROWS = f"""
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


def heads(driver: Driver, stream: StreamId) -> dict[str, HeadRow]:
    """The heads of the session by the name of their stream, all of them locked.

    Asked for twice: a stream that began while the lock was waited for is seen by
    the second, and with the main head locked no other can begin.
    """
    for _ in range(2):
        found = driver.execute(_SESSION_HEADS, stream[:2]).fetchall()
    return {name: HeadRow(*columns) for name, *columns in found}


def wait_for_disk(driver: Driver) -> None:
    """Make the commit of this transaction one that waits for the disk."""
    driver.execute(_DURABLE)
    driver.execute("SELECT pg_current_xact_id()")


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
        driver.execute(_REPLACE_ROWS, values)
    driver.execute(_CLOSE)
    for name, state in what.states.items():
        driver.execute(_STATE, (state, check, user_id, session_id, name))
    driver.execute(_DROP_BLOBS, (user_id, sorted(what.blobs)))
    driver.execute(_DROP_VIEWS, (user_id, session_id))
    driver.execute(_REOPEN, (check, user_id, session_id, MAIN))


_KNOWN: Final = {
    "53": ("is out of room or connections", "free some and try again"),
    "25": ("is read-only", "connect to the primary"),
    "42501": (
        "refuses: insufficient privilege",
        "connect as a role that may (`refold schema --roles` has them)",
    ),
    "28": ("refuses the login", "check user and password"),
    "3D": ("does not exist", "create the database first"),
}


def translated(shown: str, error: Exception) -> RefoldError | None:
    """The error to raise for what the driver raised at ``shown``; None: none of it."""
    cause = _cause(error)
    if not isinstance(cause, psycopg.Error):
        return None
    state = cause.sqlstate or ""
    for prefix, (what, remedy) in _KNOWN.items():
        if state.startswith(prefix):
            return StoreUnavailable(f"{shown} {what}", remedy=remedy)
    if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError):
        what = "cannot be reached, or broke the connection"
        return StoreUnavailable(
            f"{shown} {what}", remedy="check that it runs, and try again"
        )
    name = type(cause).__name__
    return StoreUnavailable(
        f"{shown} refused a statement ({name} {state})", remedy="see the server's log"
    )


def broken(error: Exception) -> bool:
    """Whether the server broke the connection, and may come back."""
    cause = _cause(error)
    return isinstance(cause, psycopg.OperationalError) and (
        cause.sqlstate is None or cause.sqlstate.startswith(("08", "57P"))
    )


def collided(error: Exception) -> bool:
    """Whether two transactions collided, and the server gave up on this one."""
    cause = _cause(error)
    return isinstance(cause, psycopg.Error) and cause.sqlstate in ("40001", "40P01")


def _cause(error: Exception) -> object:
    return error.orig if isinstance(error, DBAPIError) else error


_head = Struct(">iiIii").pack
_size = Struct(">i").pack


class Array(bytes):
    """An array, encoded; ``oid`` is its type, ``element`` that of its values."""

    oid: ClassVar[int]
    element: ClassVar[int]

    @classmethod
    def of(cls, values: Sequence[bytes]) -> Array:
        """The array of these values, each in the binary form of its type."""
        sized = [_size(len(value)) + value for value in values]
        return cls(cls._begin(len(values)) + b"".join(sized))

    @classmethod
    def _begin(cls, count: int) -> bytes:
        # One dimension, no NULL, counted from 1.
        return _head(1, 0, cls.element, count, 1)


class _Integers(Array):
    code: ClassVar[str]
    width: ClassVar[int]

    @classmethod
    def of(cls, values: Sequence[int]) -> Array:  # type: ignore[override]  # whole numbers
        """The array of these numbers."""
        parts = chain.from_iterable(zip(repeat(cls.width), values, strict=False))
        body = pack(f">{('i' + cls.code) * len(values)}", *parts)
        return cls(cls._begin(len(values)) + body)


class Smallints(_Integers):
    """``int2[]``."""

    oid, element, code, width = 1005, 21, "h", 2


class Integers(_Integers):
    """``int4[]``."""

    oid, element, code, width = 1007, 23, "i", 4


class Bigints(_Integers):
    """``int8[]``."""

    oid, element, code, width = 1016, 20, "q", 8


class Texts(Array):
    """``text[]``, of texts in UTF-8."""

    oid, element = 1009, 25


class Byteas(Array):
    """``bytea[]``."""

    oid, element = 1001, 17


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> bytes:
        return bytes(obj)


def register(driver: Driver) -> None:
    """Teach a connection to send these arrays."""
    for kind in (Smallints, Integers, Bigints, Texts, Byteas):
        dumper = type(f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": kind.oid})
        driver.adapters.register_dumper(kind, dumper)
