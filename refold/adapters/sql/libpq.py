"""Statements that go directly to libpq: prepared at their second use, values in binary.

The driver's cursors take longer than the INSERT of an append itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import sha256
from itertools import chain, count, repeat
from struct import Struct, pack
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import psycopg
from psycopg import generators, pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

PsycopgConnection: TypeAlias = psycopg.Connection[Any]
_pack_array_header: Final = Struct(">iiIii").pack
_pack_length: Final = Struct(">i").pack


def _array(element_oid: int, values: Sequence[bytes]) -> bytes:
    """Return an array of packed values in PostgreSQL's binary format.

    It has one dimension, counted from 1, and no NULL.
    """
    parts = [_pack_array_header(1, 0, element_oid, len(values), 1)]
    for value in values:
        parts += (_pack_length(len(value)), value)
    return b"".join(parts)


def _numbers(element_oid: int, code: str, width: int, values: Sequence[int]) -> bytes:
    """Return an array of numbers in PostgreSQL's binary format.

    code, width: the format of a number for ``struct``, and its size in bytes.
    """
    parts = chain.from_iterable(zip(repeat(width), values, strict=False))
    body = pack(f">{('i' + code) * len(values)}", *parts)
    return _pack_array_header(1, 0, element_oid, len(values), 1) + body


def _texts(values: Sequence[str]) -> bytes:
    """Return an array of texts."""
    return _array(25, [value.encode() for value in values])


_PLACE: Final = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")
# The object id of each type, and the function that packs its values.
_KINDS: Final[dict[str, tuple[int, Callable[[Any], bytes] | None]]] = {
    "bytes": (17, None),
    "text": (25, str.encode),
    "small": (21, Struct(">h").pack),
    "int": (23, Struct(">i").pack),
    "big": (20, Struct(">q").pack),
    "bytes[]": (1001, partial(_array, 17)),
    "text[]": (1009, _texts),
    "small[]": (1005, partial(_numbers, 21, "h", 2)),
    "int[]": (1007, partial(_numbers, 23, "i", 4)),
    "big[]": (1016, partial(_numbers, 20, "q", 8)),
}
_KIND_OF: Final = {str: "text", int: "big", bytes: "bytes"}
_MOST_PREPARED: Final = 100  # statements of a connection
# Names that a connection remembers, to prepare a statement at its second use.
_MOST_SEEN: Final = 10_000


class Statement(NamedTuple):
    """A statement in the form for libpq.

    name:    derived from the query, so that equal names mean equal statements.
             A statement with an empty name is never prepared.
    types:   the object ids of the values' types.
    packs:   the functions that pack the values; None sends bytes, or NULL, as they are.
    formats: 1 for each value, which means binary.
    """

    name: bytes
    query: bytes
    types: tuple[int, ...]
    packs: tuple[Callable[[Any], bytes] | None, ...]
    formats: list[int]

    @classmethod
    def of(cls, query: str, values: Sequence[str] = ()) -> Statement:
        """Return the statement of a query with ``:name`` for each value.

        values: the names of the values in order, each as ``name:kind``.
        """
        numbers: dict[str, str] = {}
        kinds: list[str] = []
        for number, value in enumerate(values, 1):
            name, kind = value.split(":")
            numbers[name] = f"${number}"
            kinds.append(kind)
        numbered = _PLACE.sub(lambda place: numbers[place[1]], query)
        return cls._numbered(numbered, kinds)

    @classmethod
    def _numbered(cls, query: str, kinds: Sequence[str]) -> Statement:
        """Return the statement of a query with ``$1`` and so on for its values."""
        types = [_KINDS[kind][0] for kind in kinds]
        packs = [_KINDS[kind][1] for kind in kinds]
        text = query.encode()
        digest = sha256(text + repr(tuple(types)).encode()).hexdigest()[:24]
        return cls(
            name=f"refold_{digest}".encode(),
            query=text,
            types=tuple(types),
            packs=tuple(packs),
            formats=[pq.Format.BINARY] * len(kinds),
        )

    @classmethod
    def like(cls, query: str, values: Sequence[Any]) -> Statement:
        """Return the statement of a query with ``?`` for each of these values.

        They are texts, whole numbers or bytes.
        """
        return cls._of_types(query, tuple(map(type, values)))

    @classmethod
    @lru_cache(1_000)
    def _of_types(cls, query: str, types: tuple[type, ...]) -> Statement:
        """Return the statement of a query with ``?`` for each value of these types."""
        numbers = count(1)
        numbered = re.sub(r"\?", lambda _: f"${next(numbers)}", query)
        return cls._numbered(numbered, [_KIND_OF[value_type] for value_type in types])

    def packed(self, values: Sequence[Any]) -> list[bytes]:
        """Return the values in the binary forms of their types."""
        both = zip(self.packs, values, strict=True)
        return [
            value if to_bytes is None else to_bytes(value) for to_bytes, value in both
        ]


Command: TypeAlias = tuple[Statement, Sequence[Any]]


class PreparedConnection:
    """A connection that is in no transaction, with its prepared statements.

    The driver waits for answers, so that Ctrl-C works and errors are noticed.

    prepares: False behind a pooler, where the next statement may run on another
              connection to the server.
    """

    def __init__(self, driver: PsycopgConnection, *, prepares: bool = True) -> None:
        self.driver = driver
        self._prepares = prepares
        self._seen: set[bytes] = set()
        self._prepared: set[bytes] = set()
        self._loader = Transformer(driver)

    def run(self, statement: Statement, values: Sequence[Any]) -> PGresult:
        """Execute a statement as one transaction.  Raises psycopg.Error."""
        try:
            self._prepare(statement)
            self._send(statement, values)
            return _result(self.driver)
        except psycopg.errors.InvalidSqlStatementName:
            # A DISCARD dropped it, or it was prepared at another server of a pooler.
            self._prepared.clear()
            return run_once(self.driver, statement, values)

    def pipeline(self, transactions: Sequence[Sequence[Command]]) -> list[PGresult]:
        """Execute transactions in one round trip; returns a result for each statement.

        Each transaction commits by itself.  Raises psycopg.Error, the first error, even
        if other transactions were committed.  Call ``close_if_busy`` after an error.
        """
        pgconn = self.driver.pgconn
        wait = self.driver.wait
        for statement, _ in chain.from_iterable(transactions):
            self._prepare(statement)
        pgconn.enter_pipeline_mode()
        for commands in transactions:
            for command in commands:
                self._send(*command)
            pgconn.pipeline_sync()
        wait(generators.send(pgconn))
        results: list[PGresult] = []
        for commands in transactions:
            results += self._results(len(commands))
        pgconn.exit_pipeline_mode()
        try:
            return [_checked(self.driver, result) for result in results]
        except psycopg.errors.InvalidSqlStatementName:
            self._prepared.clear()
            raise

    def _results(self, statements: int) -> list[PGresult]:
        """Return the results of a transaction with this number of statements.

        Raises psycopg.Error if the commit fails, which comes after the results.
        """
        pgconn = self.driver.pgconn
        wait = self.driver.wait
        results: list[PGresult] = []
        for _ in range(statements):
            results_of_one = wait(generators.fetch_many(pgconn))
            if not results_of_one:
                raise psycopg.OperationalError("the connection is lost")
            results.append(results_of_one[-1])
        end = wait(generators.fetch(pgconn))
        if end is None:
            raise psycopg.OperationalError("the connection is lost")
        if end.status != pq.ExecStatus.PIPELINE_SYNC:
            _checked(self.driver, end)
            raise psycopg.OperationalError("the commit failed")
        return results

    def close_if_busy(self) -> None:
        """Close the connection if an answer may still come."""
        pgconn = self.driver.pgconn
        is_idle = pgconn.transaction_status == pq.TransactionStatus.IDLE
        if not is_idle or pgconn.pipeline_status != pq.PipelineStatus.OFF:
            self.driver.close()

    def rows(self, result: PGresult) -> list[tuple[Any, ...]]:
        """Return the rows of a result."""
        self._loader.set_pgresult(result, format=pq.Format.BINARY)
        return self._loader.load_rows(0, result.ntuples, tuple)

    def _send(self, statement: Statement, values: Sequence[Any]) -> None:
        """Send a statement, by its name if it is prepared."""
        if statement.name not in self._prepared:
            _send_once(self.driver, statement, values)
            return
        self.driver.pgconn.send_query_prepared(
            statement.name,
            statement.packed(values),
            statement.formats,
            pq.Format.BINARY,
        )

    def _prepare(self, statement: Statement) -> None:
        """Prepare a statement with a name at its second use, up to a limit."""
        name = statement.name
        if not self._prepares or name in self._prepared or not name:
            return
        if len(self._prepared) >= _MOST_PREPARED:
            return
        if name not in self._seen:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen.add(name)
            return
        self.driver.pgconn.send_prepare(name, statement.query, statement.types)
        # A pooler's earlier client may have prepared it on the same connection.
        with suppress(psycopg.errors.DuplicatePreparedStatement):
            _result(self.driver)
        self._prepared.add(name)


def run_once(
    driver: PsycopgConnection, statement: Statement, values: Sequence[Any]
) -> PGresult:
    """Execute a statement unprepared, in the open transaction if there is one."""
    _send_once(driver, statement, values)
    return _result(driver)


def _send_once(
    driver: PsycopgConnection, statement: Statement, values: Sequence[Any]
) -> None:
    """Send a statement without preparing it."""
    driver.pgconn.send_query_params(
        statement.query,
        statement.packed(values),
        statement.types,
        statement.formats,
        pq.Format.BINARY,
    )


def _result(driver: PsycopgConnection) -> PGresult:
    """Wait for a sent statement, and return its last result.

    A commit that fails adds an error as the last one.  Raises psycopg.Error.
    """
    results = driver.wait(generators.execute(driver.pgconn))
    if not results:
        raise psycopg.OperationalError("the connection is lost")
    return _checked(driver, results[-1])


def _checked(driver: PsycopgConnection, result: PGresult) -> PGresult:
    """Return a result.  Raises psycopg.Error if it is an error."""
    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        return result
    if driver.pgconn.status != pq.ConnStatus.OK:
        raise psycopg.OperationalError("the connection is lost")
    raise error_from_result(result, driver.info.encoding)
