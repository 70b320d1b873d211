"""Making the rows of an append: each event sealed and chained, and the head moved."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from refold.adapters.blobs import Blobs
from refold.adapters.heads import sealed_head
from refold.adapters.keys import SessionKey, idempotent_id, receipt_address, uuid7
from refold.adapters.keystore import NO_REFS, Refs
from refold.adapters.recorder import Batch, HeadRow
from refold.adapters.sealing import PlacedEvent, SealedEvent, new_header
from refold.domain.errors import KeyUnavailable
from refold.domain.ids import MAIN
from refold.domain.ports import Append, Conflict, Outcome
from refold.redaction.chokepoint import RedactedEvent

if TYPE_CHECKING:
    from refold.adapters.log import SealedLog


def batch_of(log: SealedLog, request: Append, key: SessionKey) -> Batch:
    """The rows of an append, sealed under this key."""
    stream, base = request.state.stream, request.base
    rows = _seal(log, request, key)
    head = HeadRow(
        seq=rows[-1].header.seq,
        hash=rows[-1].hash,
        status="closed" if request.state.closed else "open",
        state=b"",
        key_check=key.check,
        tokens=base.tokens + sum(row.header.token_estimate for row in rows),
        created_at=base.created_at or request.now,
        updated_at=request.now,
    )
    head = sealed_head(head, request.state, key)
    receipt = None
    if request.idempotency_key is not None:
        receipt = receipt_address(key.user, stream, request.idempotency_key)
    cut = [blob for event in request.events for blob in event.blobs]
    blobs = Blobs(log.recorder, log.keys, stream.main).rows(cut, key)
    refs = NO_REFS if base.seq else _refs(log, request, key)
    return Batch(stream, base.seq, base.hash, head, rows, blobs, receipt, refs)


def _refs(log: SealedLog, request: Append, key: SessionKey) -> Refs:
    refs, origin = log.keys.refs(key.user, request.state.stream), None
    if request.state.stream.stream == MAIN:
        origin = request.state.forked_from
    return refs._replace(origin=origin[0]) if origin else refs


def vanished(log: SealedLog, request: Append, error: KeyUnavailable) -> Outcome:
    """What became of a stream whose key is gone: was it erased, and let in again?

    Raises ``error`` if it is there all the same, Erased.
    """
    stream = request.state.stream
    if log.recorder.head_row(stream) is not None:
        raise error
    return Conflict(log.open_head(stream, None))


def _seal(log: SealedLog, request: Append, key: SessionKey) -> tuple[SealedEvent, ...]:
    mapper, rows = log.mapper, []
    stream, seq, prev = request.state.stream, request.base.seq, request.base.hash
    for index, event in enumerate(request.events):
        if not isinstance(event, RedactedEvent):
            raise TypeError("only an event that passed redaction can be written")
        seq += 1
        event_id = _event_id(request, key, index)
        header = new_header(stream, seq, event, event_id)
        row = mapper.seal(PlacedEvent(event, header, prev), key)
        rows.append(row)
        prev = row.hash
    return tuple(rows)


def _event_id(request: Append, key: SessionKey, index: int) -> UUID:
    if request.idempotency_key is None:
        return uuid7(request.now)
    session_id = request.state.stream.session_id
    return idempotent_id(key.user, session_id, request.idempotency_key, index)
