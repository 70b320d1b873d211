"""What a head row says besides its columns: sealed for that row alone."""

from __future__ import annotations

from typing import Any, cast

import orjson
from cryptography.exceptions import InvalidTag

from refold.adapters.keeping_rows import THAWED
from refold.adapters.keys import SessionKey, seal, unseal
from refold.adapters.recorder import HeadRow
from refold.domain.canonical import canonical
from refold.domain.chain import length_prefixed
from refold.domain.errors import CorruptEvent, Erased
from refold.domain.ids import StreamId
from refold.domain.ports import Head, Status
from refold.domain.session import SessionState


def sealed_head(row: HeadRow, state: SessionState, key: SessionKey) -> HeadRow:
    """The row with this state, sealed under this key."""
    context = _context(state.stream, row)
    sealed = seal(key.cipher, canonical(state.dump()), context)
    return row._replace(state=sealed, key_check=key.check)


def opened_head(stream: StreamId, row: HeadRow, key: SessionKey) -> Head:
    """What the row says.  Raises CorruptEvent if it is not what was written."""
    try:
        dumped = orjson.loads(unseal(key.cipher, row.state, _context(stream, row)))
    except InvalidTag:
        raise CorruptEvent(
            f"session {stream.session_id!r} {stream.stream}",
            seq=row.seq,
            reason="the head row is not what was written",
        ) from None
    closed = _status(row) == "closed"
    return head_of(
        SessionState.load(stream, row.seq, closed=closed, dumped=dumped), row
    )


def head_of(state: SessionState, row: HeadRow) -> Head:
    """The head of that state and row."""
    status = _status(row)
    times = row.created_at, row.updated_at
    return Head(state, row.hash, status, row.tokens, *times, status != row.status)


def _status(row: HeadRow) -> Status:
    """What it is, or was before its user was frozen."""
    status: Any = THAWED.get(row.status, row.status)
    return cast("Status", status)


def check_not_erased(stream: StreamId, row: HeadRow) -> None:
    """Raises Erased."""
    if row.status == "erased":
        raise Erased(f"session {stream.session_id!r}")


def _context(stream: StreamId, row: HeadRow) -> bytes:
    """Every plain column of a head row: its state opens in that row alone."""
    numbers = (row.seq, row.tokens, row.created_at, row.updated_at)
    return length_prefixed(
        (
            b"head",
            str(stream).encode(),
            row.hash,
            _status(row).encode(),
            " ".join(str(number) for number in numbers).encode(),
        )
    )
