"""Citus: PostgreSQL over several machines, all rows of a user on one of them.

Rows that are of no user stay with the coordinator.  Machines count transactions apart,
so there is no order of all events: who follows and who seals goes by heads.
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
from refold.adapters.sql import postgres, roles, tables
from refold.adapters.sql.database import NOBODY, Done, GroupCommit
from refold.adapters.sql.libpq import Command, Driver, Line, Statement, run_once
from refold.adapters.sql.postgres import what_is_there
from refold.adapters.sql.tables import SCHEMA
from refold.domain.errors import IncompatibleStore, RefoldError, StoreUnavailable
from refold.domain.ids import MAIN

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

_SQL: Final = tables.statements("citus")
_ROWS: Final = 500  # of one statement
# What is made on all machines is made on one after the other.
ONE_BY_ONE: Final = "citus.multi_shard_modify_mode = sequential"
_BEGIN: Final = (Statement.of("BEGIN"), ())
_COMMIT: Final = (Statement.of("COMMIT"), ())
_ROLLBACK: Final = (Statement.of("ROLLBACK"), ())


def postgresql_at(url: URL) -> postgres.PostgresDatabase:
    """The engine for what the server has: Citus if it spreads, or will, the tables."""
    plain = postgres.PostgresDatabase(url)
    with plain.errors, plain.engine().connect() as connection:
        ask = connection.exec_driver_sql
        spreads = all(ask(_SQL[name]).scalar() for name in ("engine", "spreads"))
    if not spreads:
        return plain
    plain.close()
    return CitusDatabase(url)


class CitusDatabase(postgres.PostgresDatabase):
    """A database of Citus, through its coordinator."""

    name, ordered = "citus", False

    def __init__(self, url: URL) -> None:
        super().__init__(url)
        self._lanes: dict[int, Lane] = {}
        self._machines: list[tuple[int, int]] = []

    def _make_pool(self) -> Engine:
        pool = super()._make_pool()
        event.listen(pool, "before_cursor_execute", _typed, retval=True)
        return pool

    def _on_connect(self, connection: Any, record: object) -> None:
        """What is set for a transaction is set on all machines that it is on."""
        super()._on_connect(connection, record)
        connection.execute("SET citus.propagate_set_commands = 'local'")
        connection.commit()

    def lock_schema(self, connection: Connection) -> None:
        """With a connection that may make triggers of tables that are spread."""
        for setting in ("citus.enable_unsafe_triggers = on", ONE_BY_ONE):
            connection.exec_driver_sql(f"SET LOCAL {setting}")
        super().lock_schema(connection)

    def spread(self, connection: Connection, *, new: bool) -> list[str]:
        """Of a store that is not new only what was added to it, if it is spread."""
        ask = connection.exec_driver_sql
        before = set(ask(_SQL["tables"]).scalars())
        if new or f"{SCHEMA}.heads" in before:
            ask(_SQL["spread"])
        return sorted(set(ask(_SQL["tables"]).scalars()) - before)

    def spread_filled(self) -> list[str]:
        """Spread the tables of a store that has data; returns those that were not.

        Nobody can write meanwhile.  Roles must be set up again: policies are dropped.
        Raises IncompatibleStore if the server has no Citus.
        """
        with self.errors, self.engine().begin() as connection:
            ask = connection.exec_driver_sql
            if not ask(_SQL["engine"]).scalar():
                raise IncompatibleStore(f"{self.what} has no Citus: CREATE EXTENSION")
            self.lock_schema(connection)
            ask(roles.FORGET.replace("%", "%%"))
            names = self.spread(connection, new=True)
            ask(_SQL["empty"])
            ask(postgres.GUARDS[0].replace("%", "%%"))
        return names

    def grouped(self) -> Lanes:
        self._learn()  # in order: up to which hash users are of which machine
        return Lanes(self)

    def machine(self, user_id: str) -> int:
        """The number of the machine that has the user's rows, as far as is known."""
        at = bisect_left(self._machines, (_hashed(user_id), -1))
        return self._machines[at][1] if self._machines else 0

    def _learn(self) -> None:
        with self.errors, self.engine().connect() as connection:
            found = connection.exec_driver_sql(_SQL["machines"]).all()
        self._machines = [(most, machine) for most, machine in found]

    def write_group(self, batches: Sequence[Batch]) -> list[WriteOutcome | Exception]:
        """In one commit, if all goes well; as a rule they are of one machine."""
        self._check_process()
        machine = self.machine(batches[0].stream.user_id)
        lane = self._lanes.setdefault(machine, Lane(self._connection))
        try:
            return list(self.retrying(partial(lane.together, batches)))
        except Exception as error:
            if postgres.broken(error):  # maybe its users are on another one by now
                with suppress(RefoldError):
                    self._learn()
            elif len(batches) > 1:
                return [self.write_group([batch])[0] for batch in batches]
            return [self.translate(error) or error] * len(batches)

    def _write(self, driver: Driver, batch: Batch, run: postgres.Run) -> WriteOutcome:
        found = [run(*command) for command in _asked(batch)]
        if not _allowed(batch, found):
            return what_is_there(driver, batch)
        for command in _written(batch, found):
            run(*command)
        return Wrote(batch.head)

    def _bind(self, driver: Driver, user_id: str) -> None:
        driver.execute(_bound(user_id))

    def _fetch_bound(
        self, line: Line, user_id: str, statement: Statement, values: Sequence[Any]
    ) -> PGresult:
        bind: Command = (Statement(b"", _bound(user_id).encode(), (), (), []), ())
        return line.pipeline([[_BEGIN, bind, (statement, values), _COMMIT]])[2]

    def settled(self) -> str:
        """Nothing says so."""
        what, remedy = f"{self.what} has no order of all events", "begin at the first"
        raise StoreUnavailable(what, remedy=remedy)

    def flush(self) -> None:
        """On every machine."""
        super().flush()
        if self.read(NOBODY, text(_SQL["durable"]))[0][0] is False:
            raise StoreUnavailable(f"{self.what} lost a machine", remedy="try again")

    def unguarded(self) -> list[str]:
        """Of the shards too."""
        body = md5(postgres.REFUSAL.encode(), usedforsecurity=False).hexdigest()
        query = text(_SQL["unguarded"].replace("{body}", body))
        bare = ["a shard of events"] if self.read(NOBODY, query)[0][0] else []
        return super().unguarded() + bare

    def size(self, connection: Connection) -> int:
        """Bytes of our tables with their indexes, on all machines."""
        return int(connection.exec_driver_sql(_SQL["size"]).scalar_one())

    def leave_to_parent(self, *, in_use: bool) -> None:
        self._lanes = {}
        super().leave_to_parent(in_use=in_use)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        super().close()


class Lanes(GroupCommit):
    """A queue of writes for each machine: one that hangs holds up none of another's."""

    def __init__(self, database: CitusDatabase) -> None:
        made = partial(GroupCommit, database.write_group)
        self._groups = defaultdict[int, GroupCommit](made)
        self._machine = database.machine

    def write(self, batch: Batch) -> WriteOutcome:
        return self._groups[self._machine(batch.stream.user_id)].write(batch)

    def submit(self, batch: Batch, done: Done) -> bool:
        return self._groups[self._machine(batch.stream.user_id)].submit(batch, done)

    def close(self) -> None:
        for group in self._groups.values():
            group.close()


class Lane(postgres.Writer):
    """Writes batches of users of one machine over a connection of its own."""

    def _try(self, line: Line, batches: Sequence[Batch]) -> list[bool]:
        """In one commit and two round trips: heads move, then rows follow."""
        try:
            return self._moved(line, batches)
        except BaseException as error:
            self._undo(line)
            used = isinstance(error, psycopg.errors.UniqueViolation)
            if len(batches) > 1 or not used:
                raise
            return [False]

    def _moved(self, line: Line, batches: Sequence[Batch]) -> list[bool]:
        asked = [_asked(batch) for batch in batches]
        answers = iter(line.pipeline([[_BEGIN, *chain.from_iterable(asked)]]))
        next(answers)
        found = [[next(answers) for _ in commands] for commands in asked]
        done = [*map(_allowed, batches, found)]
        writes = [
            command
            for batch, answer, moved in zip(batches, found, done, strict=True)
            if moved
            for command in _written(batch, answer)
        ]
        line.pipeline([[*writes, _COMMIT]])
        return done

    def _undo(self, line: Line) -> None:
        """End the transaction that failed; what broke or is left waiting is closed."""
        if line.driver.pgconn.transaction_status == TransactionStatus.INERROR:
            run_once(line.driver, *_ROLLBACK)  # the driver would forget statements
        line.leave()


def _asked(batch: Batch) -> list[Command]:
    """What decides whether the batch is written: its head moves, or may begin."""
    stream, head, refs = batch.stream, batch.head, batch.refs
    if batch.expected_seq:
        known = (batch.expected_seq, batch.expected_hash, head.key_check)
        return [_command("move_head", (*head, *stream, *known))]
    if stream.stream != MAIN:
        return [_command("main", (*stream[:2], head.key_check))]
    live, gone = (refs.epoch, refs.user), (refs.session,)
    asked = [_command("live", live), _command("gone", gone)]
    if refs.origin:
        asked.append(_command("origin", (stream.user_id, refs.origin)))
    return asked


def _allowed(batch: Batch, found: Sequence[PGresult]) -> bool:
    if batch.expected_seq:
        return found[0].command_tuples == 1
    if batch.stream.stream != MAIN:
        return found[0].ntuples == 1
    live, gone, *origin = found
    known = not live.ntuples or live.get_value(0, 0) == b"\x01"
    return known and not gone.ntuples and all(one.ntuples for one in origin)


def _written(batch: Batch, found: Sequence[PGresult]) -> Iterator[Command]:
    """The rows behind a head that has moved, or with one that begins."""
    stream, refs, at = batch.stream, batch.refs, batch.head.updated_at
    if not batch.expected_seq:
        if stream.stream == MAIN and not found[0].ntuples:
            yield _command("new_subject", (refs.user, refs.user, refs.epoch))
        yield from _inserted("new_head", [(*batch.head, *stream)])
    # Locked in one order, so that no two writers deadlock.
    blobs = [(*stream[:2], at, *blob) for blob in sorted(batch.blobs)]
    yield from _inserted("blobs", blobs)
    yield from _inserted("receipts", [(*stream, *use) for use in batch.uses])
    rows = [(0, *stream, *e.columns[1:], e.state, e.hash) for e in batch.events]
    yield from _inserted("events", rows)


def _inserted(name: str, rows: Sequence[tuple[Any, ...]]) -> Iterator[Command]:
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        row = f"({', '.join('?' * len(some[0]))})"
        query = _SQL[name].format(rows=", ".join([row] * len(some)))
        values = tuple(chain.from_iterable(some))
        yield Statement.like(query, values), values


def _command(name: str, values: tuple[Any, ...]) -> Command:
    return Statement.like(_SQL[name], values), values


def _bound(user_id: str) -> str:
    """A function would set it on the coordinator alone."""
    return f"SET LOCAL {roles.SETTING} = {Literal(user_id).as_string(None)}"


def _typed(_1: Any, _2: Any, statement: str, values: Any, *_: object) -> Any:
    """A user's id that is cast to another type finds no machine."""
    return statement.replace("::VARCHAR", "::TEXT"), values


def policies(statements: Iterable[str]) -> Iterator[str]:
    """Of roles: in a policy is no query, and machines are logged in at as the role."""
    bare = f"current_setting('{roles.SETTING}', true)"
    yield f"SET LOCAL {ONE_BY_ONE}"
    for one in statements:
        yield one.replace(f"(SELECT {bare})", bare).replace(" NOLOGIN ", " LOGIN ")


_FULL: Final = 0xFFFFFFFF
_word: Final = partial(int.from_bytes, byteorder="little")


@lru_cache(10_000)
def _hashed(user_id: str) -> int:
    """PostgreSQL's hash of a text, by which Citus spreads (Bob Jenkins, lookup3)."""
    key = user_id.encode("utf-8", "surrogatepass")
    a = b = c = 0x9E3779B9 + len(key) + 3923095 & _FULL
    while len(key) >= 12:
        a, b, c = a + _word(key[:4]), b + _word(key[4:8]), c + _word(key[8:12])
        for turn in (4, 6, 8, 16, 19, 4):
            a, b, c = b, c + b & _FULL, (a - c & _FULL) ^ _turned(c, turn)
        key = key[12:]
    # The lowest byte of the last is the length's, which is in it already.
    a, b, c = a + _word(key[:4]), b + _word(key[4:8]), c + (_word(key[8:]) << 8)
    a, b, c = c & _FULL, b & _FULL, a & _FULL
    for turn in (14, 11, 25, 16, 4, 14, 24):
        a, b, c = c, (a ^ b) - _turned(b, turn) & _FULL, b
    return b - (1 << 32) if b >> 31 else b


def _turned(word: int, bits: int) -> int:
    word &= _FULL
    return (word << bits | word >> 32 - bits) & _FULL
