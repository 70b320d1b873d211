"""The hash chain of a stream: what is hashed, in which order, byte for byte.

Every plain column is in the header, length-prefixed, so that no two different
rows share a header.  The header is the additional data of the encryption as well:
a ciphertext opens only in the row it was made for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from refold.domain.ids import StreamId

GENESIS = bytes(32)
_length = Struct(">I").pack
_DOMAIN = b"refold:event:1"
_RESEALED = b"refold:resealed:1"


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
        return _named(self.stream) + length_prefixed(
            (
                b"%d" % self.seq,
                self.type.encode(),
                b"%d" % self.ts,
                self.event_id.bytes,
                b"%d" % self.token_estimate,
                b"%d" % self.schema_version,
            )
        )


@lru_cache(maxsize=1024)
def _named(stream: StreamId) -> bytes:
    """The part of a header that is one for all events of a stream."""
    return length_prefixed(part.encode() for part in stream)


def length_prefixed(parts: Iterable[bytes]) -> bytes:
    """Join ``parts`` so that different parts never give the same bytes."""
    return b"".join([_length(len(part)) + part for part in parts])


def link(prev_hash: bytes, header: bytes, ciphertext: bytes) -> bytes:
    """The hash of an event: of the one before it, its header and its ciphertext."""
    return link_digest(prev_hash, header, hashlib.sha256(ciphertext).digest())


def link_digest(prev_hash: bytes, header: bytes, first_digest: bytes) -> bytes:
    """The same, where the ciphertext was replaced and only its SHA-256 is left."""
    return hashlib.sha256(
        _DOMAIN + prev_hash + hashlib.sha256(header).digest() + first_digest
    ).digest()


class Resealing(NamedTuple):
    """A row that was sealed anew: the SHA-256 of its first and present ciphertext."""

    seq: int
    first_digest: bytes
    digest: bytes


def resealed(rows: Iterable[Resealing]) -> str:
    """The digest that binds what ``rows`` hold now to what the chain was made of."""
    whole = hashlib.sha256(_RESEALED)
    for row in rows:
        whole.update(row.seq.to_bytes(8, "big") + row.first_digest + row.digest)
    return whole.hexdigest()
