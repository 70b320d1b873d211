"""One append on PostgreSQL: one statement moves the head and adds the rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import psycopg

from refold.adapters.recorder import Batch, HeadRow, Moved, WriteOutcome, Wrote
from refold.adapters.sealing import SealedEvent
from refold.adapters.sql.postgres_arrays import (
    Bigints,
    Byteas,
    Integers,
    Smallints,
    Texts,
)
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import Duplicate

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


def _row(events: Sequence[SealedEvent]) -> dict[str, Any]:
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


def _columns(events: Sequence[SealedEvent]) -> dict[str, Any]:
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
