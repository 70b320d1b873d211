"""Citus: PostgreSQL on several machines, with all rows of a user on one of them.

Rows without a user stay on the coordinator.  Each machine numbers its own transactions,
so there is no order of all events.  Readers of the log and seals use the heads instead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import md5
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.sql import Literal
from sqlalchemy import URL, Connection, Engine, event, text

from refold.adapters.rows import Batch, WriteOutcome, Wrote
from refold.adapters.sql import postgres, queries, roles
from refold.adapters.sql.database import NOBODY, Done, GroupCommit
from refold.adapters.sql.libpq import (
    Command,
    PreparedConnection,
    PsycopgConnection,
    Statement,
    run_once,
)
from refold.adapters.sql.postgres import stored_outcome
from refold.adapters.sql.queries import SCHEMA
from refold.domain.errors import IncompatibleStore, RefoldError, StoreUnavailable
from refold.domain.ids import MAIN

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

_SQL: Final = queries.statements("citus")
_ROWS_AT_ONCE: Final = 500
# The setting with which a statement runs on one machine after the other.
ONE_BY_ONE: Final = "citus.multi_shard_modify_mode = sequential"
_NO_POSITION: Final = 0  # because there is no order of all events
_BEGIN: Final = (Statement.of("BEGIN"), ())
_COMMIT: Final = (Statement.of("COMMIT"), ())
_ROLLBACK: Final = (Statement.of("ROLLBACK"), ())


def postgresql_at(url: URL) -> postgres.PostgresDatabase:
    """Return the database at a URL: of Citus if the tables are, or will be, spread."""
    plain = postgres.PostgresDatabase(url)
    with plain.errors, plain.engine().connect() as connection:
        execute = connection.exec_driver_sql
        has_citus = execute(_SQL["engine"]).scalar()
        is_citus_store = has_citus and execute(_SQL["spreads"]).scalar()
    if not is_citus_store:
        return plain
    plain.close()
    return CitusDatabase(url)


class CitusDatabase(postgres.PostgresDatabase):
    """A database of Citus, reached through its coordinator."""

    name = "citus"
    ordered = False

    def __init__(self, url: URL) -> None:
        super().__init__(url)
        self._lanes: dict[int, Lane] = {}
        # The greatest hash of users of each shard, in order, and its machine.
        self._shards: list[tuple[int, int]] = []

    def _make_pool(self) -> Engine:
        pool = super()._make_pool()
        event.listen(pool, "before_cursor_execute", _with_text_casts, retval=True)
        return pool

    def _on_connect(self, connection: Any, record: object) -> None:
        """Send settings of a transaction to all machines that take part in it."""
        super()._on_connect(connection, record)
        connection.execute("SET citus.propagate_set_commands = 'local'")
        connection.commit()

    def lock_schema(self, connection: Connection) -> None:
        """Take the lock, and allow this transaction triggers on spread tables."""
        connection.exec_driver_sql("SET LOCAL citus.enable_unsafe_triggers = on")
        connection.exec_driver_sql(f"SET LOCAL {ONE_BY_ONE}")
        super().lock_schema(connection)

    def spread(self, connection: Connection, *, new: bool) -> list[str]:
        """Spread the tables; in an existing store, only new tables of a spread one."""
        execute = connection.exec_driver_sql
        before = set(execute(_SQL["tables"]).scalars())
        if new or f"{SCHEMA}.heads" in before:
            execute(_SQL["spread"])
        after = set(execute(_SQL["tables"]).scalars())
        return sorted(after - before)

    def spread_tables(self) -> list[str]:
        """Spread the tables of a store that has data; returns the tables it spread.

        It blocks all other writes.  It drops the policies, so the roles must be set up
        again.  Raises IncompatibleStore if the server has no Citus.
        """
        with self.errors, self.engine().begin() as connection:
            execute = connection.exec_driver_sql
            if not execute(_SQL["engine"]).scalar():
                raise IncompatibleStore(
                    f"{self.shown_name} has no Citus: CREATE EXTENSION"
                )
            self.lock_schema(connection)
            execute(roles.FORGET.replace("%", "%%"))
            names = self.spread(connection, new=True)
            execute(_SQL["empty"])
            execute(postgres.GUARDS[0].replace("%", "%%"))
        return names

    def grouped(self) -> Lanes:
        """Return an object that joins writes into groups, by machine."""
        self._read_shards()
        return Lanes(self)

    def machine(self, user_id: str) -> int:
        """Return the number of the machine that had the user's rows when last read."""
        if not self._shards:
            return 0
        index = bisect_left(self._shards, (_hashed(user_id), -1))
        _, machine = self._shards[index]
        return machine

    def _read_shards(self) -> None:
        """Read which machine has which hashes of users."""
        with self.errors, self.engine().connect() as connection:
            rows = connection.exec_driver_sql(_SQL["machines"]).all()
        self._shards = [(greatest_hash, machine) for greatest_hash, machine in rows]

    def write_group(self, batches: Sequence[Batch]) -> list[WriteOutcome | Exception]:
        """Write batches in one commit; after an error, each in its own.

        Usually all are of users on one machine.
        """
        self._check_process()
        machine = self.machine(batches[0].stream.user_id)
        lane = self._lanes.setdefault(machine, Lane(self._open_writing_connection))
        try:
            return list(self.retrying(partial(lane.together, batches)))
        except Exception as error:
            if postgres.broken(error):
                # The users may have been moved to another machine.
                with suppress(RefoldError):
                    self._read_shards()
            elif len(batches) > 1:
                return [self.write_group([batch])[0] for batch in batches]
            return [self.translate(error) or error] * len(batches)

    def _write(
        self, driver: PsycopgConnection, batch: Batch, run: postgres.Run
    ) -> WriteOutcome:
        results: list[PGresult] = []
        for statement, values in _check_commands(batch):
            results.append(run(statement, values))
        if not _may_write(batch, results):
            return stored_outcome(driver, batch)
        for statement, values in _row_commands(batch, results):
            run(statement, values)
        return Wrote(batch.head)

    def _bind(self, driver: PsycopgConnection, user_id: str) -> None:
        driver.execute(_bind_query(user_id))

    def _fetch_bound(
        self,
        prepared: PreparedConnection,
        user_id: str,
        statement: Statement,
        values: Sequence[Any],
    ) -> PGresult:
        bind = Statement(
            name=b"",  # so that it is never prepared
            query=_bind_query(user_id).encode(),
            types=(),
            packs=(),
            formats=[],
        )
        commands: list[Command] = [_BEGIN, (bind, ()), (statement, values), _COMMIT]
        _, _, result, _ = prepared.pipeline([commands])
        return result

    def settled(self) -> str:
        """Raise StoreUnavailable, because there is no order of all events."""
        raise StoreUnavailable(
            f"{self.shown_name} has no order of all events",
            remedy="read from the first event",
        )

    def flush(self) -> None:
        """Commit once on every machine, and wait for the disks."""
        super().flush()
        ((was_flushed,),) = self.read(NOBODY, text(_SQL["durable"]))
        if was_flushed is False:
            raise StoreUnavailable(
                f"{self.shown_name} lost a machine", remedy="try again"
            )

    def unguarded(self) -> list[str]:
        """Return changed triggers, also of shards on the machines."""
        body = md5(postgres.REFUSAL.encode(), usedforsecurity=False).hexdigest()
        query = text(_SQL["unguarded"].replace("{body}", body))
        ((unguarded_shards,),) = self.read(NOBODY, query)
        triggers = super().unguarded()
        if unguarded_shards:
            triggers.append("a shard of events")
        return triggers

    def size(self, connection: Connection) -> int:
        """Return the bytes of the tables with their indexes, on all machines."""
        return int(connection.exec_driver_sql(_SQL["size"]).scalar_one())

    def leave_to_parent(self, *, in_use: bool) -> None:
        self._lanes = {}
        super().leave_to_parent(in_use=in_use)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        super().close()


class Lanes(GroupCommit):
    """A queue of writes for each machine, so that a slow machine delays no other."""

    def __init__(self, database: CitusDatabase) -> None:
        new_group = partial(GroupCommit, database.write_group)
        self._groups = defaultdict[int, GroupCommit](new_group)
        self._machine = database.machine

    def write(self, batch: Batch) -> WriteOutcome:
        return self._group_of(batch).write(batch)

    def submit(self, batch: Batch, done: Done) -> bool:
        return self._group_of(batch).submit(batch, done)

    def _group_of(self, batch: Batch) -> GroupCommit:
        """Return the queue of the machine that has the user's rows."""
        machine = self._machine(batch.stream.user_id)
        return self._groups[machine]

    def close(self) -> None:
        for group in self._groups.values():
            group.close()


class Lane(postgres.Writer):
    """Writes batches of users on one machine, over its own connection."""

    def _try(
        self, prepared: PreparedConnection, batches: Sequence[Batch]
    ) -> list[bool]:
        """Write batches in one commit; returns for each whether it was written."""
        try:
            return self._write_all(prepared, batches)
        except BaseException as error:
            self._end_failed_transaction(prepared)
            is_duplicate = isinstance(error, psycopg.errors.UniqueViolation)
            if len(batches) == 1 and is_duplicate:
                return [False]
            raise

    def _write_all(
        self, prepared: PreparedConnection, batches: Sequence[Batch]
    ) -> list[bool]:
        """Write batches in two round trips: first heads move, then rows follow."""
        checks = [_check_commands(batch) for batch in batches]
        commands: list[Command] = [_BEGIN]
        for batch_checks in checks:
            commands += batch_checks
        _, *results = prepared.pipeline([commands])
        written: list[bool] = []
        commands = []
        for batch, batch_checks in zip(batches, checks, strict=True):
            batch_results = results[: len(batch_checks)]
            results = results[len(batch_checks) :]
            may_write = _may_write(batch, batch_results)
            if may_write:
                commands += _row_commands(batch, batch_results)
            written.append(may_write)
        commands.append(_COMMIT)
        prepared.pipeline([commands])
        return written

    def _end_failed_transaction(self, prepared: PreparedConnection) -> None:
        """Roll back after an error of a statement, and close a broken connection."""
        if prepared.driver.pgconn.transaction_status == TransactionStatus.INERROR:
            # After a rollback by the driver, it would prepare all statements again.
            run_once(prepared.driver, *_ROLLBACK)
        prepared.close_if_busy()


def _check_commands(batch: Batch) -> list[Command]:
    """Return the commands whose results say whether the batch may be written.

    The first one of a batch that continues a stream also moves the head.
    """
    stream = batch.stream
    refs = batch.refs
    key_check = batch.head.key_check
    if batch.expected_seq:
        expected = (batch.expected_seq, batch.expected_hash, key_check)
        return [_command("move_head", (*batch.head, *stream, *expected))]
    if stream.stream != MAIN:
        return [_command("main", (stream.user_id, stream.session_id, key_check))]
    commands = [
        _command("live", (refs.epoch, refs.user)),
        _command("gone", (refs.session,)),
    ]
    if refs.origin:
        commands.append(_command("origin", (stream.user_id, refs.origin)))
    return commands


def _may_write(batch: Batch, results: Sequence[PGresult]) -> bool:
    """Whether the batch may be written, by the results of its check commands."""
    if batch.expected_seq:
        return results[0].command_tuples == 1
    if batch.stream.stream != MAIN:
        return results[0].ntuples == 1
    user, erased_session, *origins = results
    is_new_user = user.ntuples == 0
    if not is_new_user and user.get_value(0, 0) != b"\x01":
        return False
    if erased_session.ntuples:
        return False
    return all(origin.ntuples for origin in origins)


def _row_commands(batch: Batch, results: Sequence[PGresult]) -> Iterator[Command]:
    """Return the commands that insert the rows of a batch, by its check results."""
    stream = batch.stream
    refs = batch.refs
    if not batch.expected_seq:
        if stream.stream == MAIN and not results[0].ntuples:
            yield _command("new_subject", (refs.user, refs.user, refs.epoch))
        yield from _insert_commands("new_head", [(*batch.head, *stream)])
    # All writers lock blobs in this order, so that no two of them deadlock.
    blobs = [
        (stream.user_id, stream.session_id, batch.head.updated_at, *blob)
        for blob in sorted(batch.blobs)
    ]
    yield from _insert_commands("blobs", blobs)
    receipts = [(*stream, *receipt) for receipt in batch.receipts]
    yield from _insert_commands("receipts", receipts)
    events = [
        (_NO_POSITION, *stream, *event.columns[1:], event.state, event.hash)
        for event in batch.events
    ]
    yield from _insert_commands("events", events)


def _insert_commands(name: str, rows: Sequence[tuple[Any, ...]]) -> Iterator[Command]:
    """Return the commands that insert rows with the statement of this name."""
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        page = rows[start : start + _ROWS_AT_ONCE]
        marks = ", ".join("?" * len(page[0]))
        query = _SQL[name].format(rows=", ".join([f"({marks})"] * len(page)))
        values = tuple(chain.from_iterable(page))
        yield Statement.like(query, values), values


def _command(name: str, values: tuple[Any, ...]) -> Command:
    """Return the command of a statement with these values."""
    return Statement.like(_SQL[name], values), values


def _bind_query(user_id: str) -> str:
    """Return the statement that names the user on all machines.

    The function ``set_config`` would do so on the coordinator alone.
    """
    return f"SET LOCAL {roles.SETTING} = {Literal(user_id).as_string(None)}"


def _with_text_casts(
    _connection: Any, _cursor: Any, statement: str, values: Any, *_: object
) -> Any:
    """Return a statement that casts ids to ``text``, and its values.

    Citus cannot tell the machine of an id that is cast to another type.
    """
    return statement.replace("::VARCHAR", "::TEXT"), values


def policies(statements: Iterable[str]) -> Iterator[str]:
    """Return the statements of ``roles.statements`` in the form that Citus accepts.

    A policy may not contain a query, and roles log in to the machines.
    """
    setting = f"current_setting('{roles.SETTING}', true)"
    yield f"SET LOCAL {ONE_BY_ONE}"
    for statement in statements:
        without_query = statement.replace(f"(SELECT {setting})", setting)
        yield without_query.replace(" NOLOGIN ", " LOGIN ")


_WORD: Final = 0xFFFFFFFF  # the bits of a word


@lru_cache(10_000)
def _hashed(user_id: str) -> int:
    """Return PostgreSQL's hash of a text, by which Citus chooses the machine.

    It is lookup3 of Bob Jenkins: a state of three words, into which the text is mixed
    in blocks of twelve bytes.
    """
    key = user_id.encode("utf-8", "surrogatepass")
    a = b = c = (0x9E3779B9 + len(key) + 3923095) & _WORD
    while len(key) >= 12:
        a = (a + _little(key[:4])) & _WORD
        b = (b + _little(key[4:8])) & _WORD
        c = (c + _little(key[8:12])) & _WORD
        for bits in (4, 6, 8, 16, 19, 4):
            mixed = ((a - c) & _WORD) ^ _rotated(c, bits)
            a = b
            b = (c + b) & _WORD
            c = mixed
        key = key[12:]
    a = (a + _little(key[:4])) & _WORD
    b = (b + _little(key[4:8])) & _WORD
    # The lowest byte of this word is for the length, which is mixed in already.
    c = (c + (_little(key[8:]) << 8)) & _WORD
    a, c = c, a
    for bits in (14, 11, 25, 16, 4, 14, 24):
        mixed = ((a ^ b) - _rotated(b, bits)) & _WORD
        a, b, c = c, mixed, b
    is_negative = b >> 31
    if is_negative:
        return b - (1 << 32)
    return b


def _little(data: bytes) -> int:
    """Return the number that up to four bytes are, the lowest byte first."""
    return int.from_bytes(data, "little")


def _rotated(word: int, bits: int) -> int:
    """Return a word of 32 bits, rotated to the left."""
    return (word << bits | word >> (32 - bits)) & _WORD
