"""The hash chain of a stream: what is hashed, in which order, byte for byte.

Every plain column is in the header, length-prefixed, so that no two different
rows share a header.  The header is the additional data of the encryption as well:
a ciphertext opens only in the row it was made for.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256 as _sha256
from struct import Struct
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from refold.domain.ids import StreamId

GENESIS = bytes(32)
_length = Struct(">I").pack
_ID: Final = 16
# No number of a header has more digits.
_LENGTHS: Final = tuple(_length(size) for size in range(64))
_DOMAIN = b"refold:event:1"
_RESEALED = b"refold:resealed:1"


# What ``Header`` holds, in its order, but for the id, which is its 16 bytes.
Columns: TypeAlias = tuple[StreamId, int, str, int, bytes, int, int]


class Header(NamedTuple):
    """The plain columns of an event; ``ts`` in microseconds since 1970, UTC."""

    stream: StreamId
    seq: int
    type: str
    ts: int
    event_id: UUID
    token_estimate: int
    schema_version: int

    def encode(self) -> bytes:
        """The canonical bytes of the header."""
        return encoded(self.columns)

    @property
    def columns(self) -> Columns:
        """The same, with the id as it is stored."""
        stream, seq, type_, ts, event_id, tokens, version = self
        return stream, seq, type_, ts, event_id.bytes, tokens, version


def encoded(columns: Columns) -> bytes:
    """The canonical bytes of a header: each part behind its length, as big-endian.

    Raises ValueError if the id is not one of 16 bytes, TypeError if a part is of
    another kind.
    """
    stream, seq, type_, ts, event_id, tokens, version = columns
    if len(event_id) != _ID:
        raise ValueError(f"an event id has {_ID} bytes, this one {len(event_id)}")
    at, when, size, shape = b"%d" % seq, b"%d" % ts, b"%d" % tokens, b"%d" % version
    # As `length_prefixed` of the parts, in half of its time: it is done for each row.
    return b"%b%b%b%b%b%b%b%b%b%b%b%b" % (
        _named(stream),
        _LENGTHS[len(at)],
        at,
        _typed(type_),
        _LENGTHS[len(when)],
        when,
        _LENGTHS[_ID],
        event_id,
        _LENGTHS[len(size)],
        size,
        _LENGTHS[len(shape)],
        shape,
    )


@lru_cache(maxsize=1024)
def _named(stream: StreamId) -> bytes:
    """The part of a header that is one for all events of a stream."""
    return length_prefixed(part.encode() for part in stream)


@lru_cache(maxsize=64)
def _typed(event_type: str) -> bytes:
    if not isinstance(event_type, str):
        raise TypeError("a type is a text")
    return length_prefixed((event_type.encode(),))


def length_prefixed(parts: Iterable[bytes]) -> bytes:
    """Join ``parts`` so that different parts never give the same bytes."""
    return b"".join([_length(len(part)) + part for part in parts])


def link(prev_hash: bytes, header: bytes, ciphertext: bytes) -> bytes:
    """The hash of an event: of the one before it, its header and its ciphertext."""
    return link_digest(prev_hash, header, _sha256(ciphertext).digest())


def link_digest(prev_hash: bytes, header: bytes, first_digest: bytes) -> bytes:
    """The same, where the ciphertext was replaced and only its SHA-256 is left."""
    return _sha256(
        b"%b%b%b%b" % (_DOMAIN, prev_hash, _sha256(header).digest(), first_digest)
    ).digest()


class Resealing(NamedTuple):
    """A row that was sealed anew: the SHA-256 of its first and present ciphertext."""

    seq: int
    first_digest: bytes
    digest: bytes


def resealed(rows: Iterable[Resealing]) -> str:
    """The digest that binds what ``rows`` hold now to what the chain was made of."""
    whole = _sha256(_RESEALED)
    for row in rows:
        whole.update(row.seq.to_bytes(8, "big") + row.first_digest + row.digest)
    return whole.hexdigest()
