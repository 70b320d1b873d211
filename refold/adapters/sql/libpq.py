"""Statements that go directly to libpq: prepared once, with values in binary.

The driver's cursors are slower than the statement of an append.
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

Driver: TypeAlias = psycopg.Connection[Any]
_DIMENSION: Final = Struct(">iiIii").pack
_SIZE: Final = Struct(">i").pack


def _array(element: int, values: Sequence[bytes]) -> bytes:
    """Return an array of packed values: one dimension, counted from 1, without NULL."""
    parts = [_DIMENSION(1, 0, element, len(values), 1)]
    for value in values:
        parts += (_SIZE(len(value)), value)
    return b"".join(parts)


def _numbers(element: int, code: str, width: int, values: Sequence[int]) -> bytes:
    """Return an array of numbers.

    code, width: the format of a number for ``struct``, and its bytes.
    """
    parts = chain.from_iterable(zip(repeat(width), values, strict=False))
    body = pack(f">{('i' + code) * len(values)}", *parts)
    return _DIMENSION(1, 0, element, len(values), 1) + body


def _texts(values: Sequence[str]) -> bytes:
    """Return an array of texts."""
    return _array(25, [value.encode() for value in values])


_PLACE: Final = re.compile(r"(?<!:):([a-z_]+)")
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
_MOST: Final = 100  # statements that a connection prepares


class Statement(NamedTuple):
    """A statement in the form for libpq.

    name:    derived from the query, so that equal names mean equal statements.
             Statements without a name are never prepared.
    types:   the object ids of the values' types.
    packs:   the functions that pack the values.
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
        types: list[int] = []
        packs: list[Callable[[Any], bytes] | None] = []
        for number, value in enumerate(values, 1):
            name, kind = value.split(":")
            oid, pack_value = _KINDS[kind]
            numbers[name] = f"${number}"
            types.append(oid)
            packs.append(pack_value)
        text = _PLACE.sub(lambda place: numbers[place[1]], query).encode()
        digest = sha256(text + repr(tuple(types)).encode()).hexdigest()[:24]
        return cls(
            name=f"refold_{digest}".encode(),
            query=text,
            types=tuple(types),
            packs=tuple(packs),
            formats=[1] * len(values),
        )

    @classmethod
    def like(cls, query: str, values: Sequence[Any]) -> Statement:
        """Return the statement of a query with ``?`` for each of these values.

        They are texts, whole numbers or bytes.
        """
        return _like(query, tuple(map(type, values)))

    def packed(self, values: Sequence[Any]) -> list[bytes]:
        """Return the values in the binary forms of their types."""
        both = zip(self.packs, values, strict=True)
        return [value if pack is None else pack(value) for pack, value in both]


@lru_cache(1_000)
def _like(query: str, types: tuple[type, ...]) -> Statement:
    """Return the statement of a query with ``?`` for each value of these types."""
    numbers = count(1)
    numbered = re.sub(r"\?", lambda _: f"${next(numbers)}", query)
    return Statement.of(numbered, [f"value:{_KIND_OF[kind]}" for kind in types])


Command: TypeAlias = tuple[Statement, Sequence[Any]]


class Line:
    """A connection outside of transactions, with its prepared statements.

    The driver waits for answers, so that Ctrl-C works and errors are noticed.

    prepares: False behind a pooler, where the next statement may run on another
              connection to the server.
    """

    def __init__(self, driver: Driver, *, prepares: bool = True) -> None:
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

        Raises psycopg.Error.
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

    def _results(self, count: int) -> list[PGresult]:
        """Return the results of a transaction with this number of statements.

        The commit comes after the results, and may fail.
        """
        pgconn = self.driver.pgconn
        wait = self.driver.wait
        results = [wait(generators.fetch_many(pgconn))[-1] for _ in range(count)]
        end = wait(generators.fetch(pgconn))
        if end is None or end.status != pq.ExecStatus.PIPELINE_SYNC:
            raise psycopg.OperationalError("the commit failed")
        return results

    def leave(self) -> None:
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
            statement.name, statement.packed(values), statement.formats, 1
        )

    def _prepare(self, statement: Statement) -> None:
        """Prepare a statement with a name at its second use, up to a limit."""
        name = statement.name
        if not self._prepares or name in self._prepared or not name:
            return
        if len(self._prepared) >= _MOST:
            return
        if name not in self._seen:
            self._seen.add(name)
            return
        self.driver.pgconn.send_prepare(name, statement.query, statement.types)
        # A pooler's earlier client may have prepared it on the same connection.
        with suppress(psycopg.errors.DuplicatePreparedStatement):
            _result(self.driver)
        self._prepared.add(name)


def run_once(driver: Driver, statement: Statement, values: Sequence[Any]) -> PGresult:
    """Execute a statement without preparing it, inside an open transaction if any."""
    _send_once(driver, statement, values)
    return _result(driver)


def _send_once(driver: Driver, statement: Statement, values: Sequence[Any]) -> None:
    """Send a statement without preparing it."""
    driver.pgconn.send_query_params(
        statement.query,
        statement.packed(values),
        statement.types,
        statement.formats,
        1,
    )


def _result(driver: Driver) -> PGresult:
    """Return the last result of a sent statement, because its commit may fail.

    Raises psycopg.Error.
    """
    results = driver.wait(generators.execute(driver.pgconn))
    if not results:
        raise psycopg.OperationalError("the connection is lost")
    return _checked(driver, results[-1])


def _checked(driver: Driver, result: PGresult) -> PGresult:
    """Return a result.  Raises psycopg.Error if it is an error."""
    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        return result
    if driver.pgconn.status != pq.ConnStatus.OK:
        raise psycopg.OperationalError("the connection is lost")
    raise error_from_result(result, driver.info.encoding)
