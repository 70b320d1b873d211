"""One append on PostgreSQL: one statement moves the head and adds the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain, repeat
from struct import Struct, pack
from threading import Lock
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format
from sqlalchemy.exc import DBAPIError

from refold.adapters.recorder import Batch, HeadRow, Moved, WriteOutcome, Wrote
from refold.adapters.rows import EncryptedEvent
from refold.domain.errors import RefoldError, StoreUnavailable
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import Duplicate

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


def register(driver: psycopg.Connection[Any]) -> None:
    """Teach a connection to send these arrays."""
    for kind in (Smallints, Integers, Bigints, Texts, Byteas):
        dumper = type(f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": kind.oid})
        driver.adapters.register_dumper(kind, dumper)


SCHEMA: Final = "refold"

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


def write(driver: psycopg.Connection[Any], batch: Batch, *, base: int) -> WriteOutcome:
    """Write the batch; ``base`` is how many rows its transaction wrote before."""
    try:
        written = send(driver, batch, base=base)
    except psycopg.errors.UniqueViolation:
        if not driver.autocommit:
            raise
        return _what_is_there(driver, batch)
    return outcome_of(driver, batch, written)


def send(
    driver: psycopg.Connection[Any], batch: Batch, *, base: int
) -> psycopg.Cursor[Any]:
    """Execute the batch's statement; in a pipeline, its result comes later."""
    return driver.execute(
        _statement(_Shape.of(batch)), _values(batch, base), prepare=True
    )


def outcome_of(
    driver: psycopg.Connection[Any], batch: Batch, written: psycopg.Cursor[Any]
) -> WriteOutcome:
    """What the statement that was sent did, once its transaction has ended."""
    if written.rowcount == len(batch.events):
        return Wrote(batch.head)
    return _what_is_there(driver, batch)


def _what_is_there(driver: psycopg.Connection[Any], batch: Batch) -> WriteOutcome:
    """Why nothing was written: it was before, the key was used, or the head moved."""
    stream = batch.stream
    if batch.receipt is not None:
        found = receipt(driver, stream, batch.receipt)
        if found and not is_ours(driver, batch):
            return found
    if is_ours(driver, batch):
        return Wrote(batch.head)
    return Moved(head_row(driver, stream))


def is_ours(driver: psycopg.Connection[Any], batch: Batch) -> bool:
    """Whether the very rows of ``batch`` are there: an acknowledgement was lost."""
    last = batch.events[-1]
    found = driver.execute(_LAST_HASH, (*batch.stream, last.header.seq)).fetchone()
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
        "first": batch.events[0].header.seq,
    }


def _row(events: Sequence[EncryptedEvent]) -> dict[str, Any]:
    (row,) = events
    _, _, kind, ts, event_id, estimate, version = row.header
    return {
        "type": kind,
        "ts": ts,
        "event_id": event_id.bytes,
        "estimate": estimate,
        "version": version,
        "body": row.state,
    }


def _columns(events: Sequence[EncryptedEvent]) -> dict[str, Any]:
    headers = [row.header for row in events]
    return {
        "seqs": Bigints.of([header.seq for header in headers]),
        "types": Texts.of([header.type.encode() for header in headers]),
        "times": Bigints.of([header.ts for header in headers]),
        "ids": Byteas.of([header.event_id.bytes for header in headers]),
        "estimates": Integers.of([header.token_estimate for header in headers]),
        "versions": Smallints.of([header.schema_version for header in headers]),
        "hashes": Byteas.of([row.hash for row in events]),
        "bodies": Byteas.of([row.state for row in events]),
    }


def head_row(
    driver: psycopg.Connection[Any], stream: StreamId, *, lock: bool = False
) -> HeadRow | None:
    """The row of the stream's head; ``lock`` keeps others from moving it."""
    row = driver.execute(_HEAD + ("FOR UPDATE" if lock else ""), stream).fetchone()
    return HeadRow(*row) if row else None


def receipt(
    driver: psycopg.Connection[Any], stream: StreamId, key: bytes
) -> Duplicate | None:
    """The seqs that were written under this key, if it was used."""
    row = driver.execute(_FIND_RECEIPT, (*stream, key)).fetchone()
    return Duplicate(*row) if row else None


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


Driver: TypeAlias = psycopg.Connection[Any]


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
