"""What a head row says besides its columns: sealed for that row alone."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson
from cryptography.exceptions import InvalidTag

from refold.adapters.keys.ring import KeyRing, SessionKey, seal, unseal
from refold.adapters.recorder import THAWED, BlobRow, HeadRow, Recorder
from refold.adapters.rows import pack, unpack
from refold.domain.canonical import canonical
from refold.domain.chain import length_prefixed
from refold.domain.envelope import Blob
from refold.domain.errors import CorruptEvent, Erased, Expired
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


_EXPIRED: Final = b"\xffexpired"  # no codec has this mark


@dataclass(frozen=True, slots=True)
class Blobs:
    """The blobs of one session.

    Stores of schema 1 sealed them under the user's key, one for all sessions that
    had the text: such a shared blob is read where the session has none of its own.
    """

    recorder: Recorder
    keys: KeyRing
    stream: StreamId

    def read(self, sha256: str) -> bytes | None:
        """The whole text of that digest.

        Raises Expired, CorruptEvent, KeyUnavailable.
        """
        for _ in range(2):
            # Between the row and its key, a rewriting may have ended: once more then.
            with suppress(InvalidTag):
                own = self._read_own(sha256)
                return self._read_shared(sha256) if own is None else own
        reason = "it does not open"
        raise CorruptEvent(f"blob {sha256}", seq=0, reason=reason)

    def _read_own(self, sha256: str) -> bytes | None:
        address = self.address(sha256)
        body = self.recorder.blob_row(self.stream, address)
        if body is None:
            return None
        user_id, session_id, _ = self.stream
        packed = self.keys.unseal(user_id, session_id, body, _blobs_context(address))
        if packed == _EXPIRED:
            raise Expired(sha256)
        return unpack(packed)

    def _read_shared(self, sha256: str) -> bytes | None:
        user = self.keys.user(self.stream.user_id, now=None)
        address = self.shared_address(sha256)
        body = self.recorder.blob_row(self.stream, address)
        return None if body is None else unpack(unseal(user.cipher, body, address))

    def rows(self, blobs: Iterable[Blob], key: SessionKey) -> tuple[BlobRow, ...]:
        """The blobs, sealed under this key."""
        return tuple(self._row(blob, key) for blob in blobs)

    def _row(self, blob: Blob, key: SessionKey) -> BlobRow:
        address = self.address(blob.sha256)
        body = seal(key.cipher, pack(blob.data), _blobs_context(address))
        return BlobRow(address, body, len(blob.data))

    def expired(self, address: bytes, key: SessionKey) -> BlobRow:
        """What stands where a blob was: under the key, so that nobody else makes it."""
        return BlobRow(address, seal(key.cipher, _EXPIRED, _blobs_context(address)), 0)

    def address(self, sha256: str) -> bytes:
        """Where the session's blob of that digest is."""
        user = self.keys.user(self.stream.user_id, now=None)
        digest = bytes.fromhex(sha256)
        return user.mac("session blob", self.stream.session_id.encode(), digest)

    def shared_address(self, sha256: str) -> bytes:
        """Where the blob is that schema 1 kept for all sessions of the user."""
        user = self.keys.user(self.stream.user_id, now=None)
        return user.mac("blob", bytes.fromhex(sha256))


def _blobs_context(address: bytes) -> bytes:
    return length_prefixed((b"blob", address))
