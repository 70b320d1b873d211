"""The hash chain of a stream: what is hashed, in which order, byte for byte.

Every plain column is in the header, length-prefixed, so that no two different
rows share a header.  The header is the additional data of the encryption as well:
a ciphertext opens only in the row it was made for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import Final, NamedTuple, Self, TypeAlias

from refold.domain.ids import StreamId

GENESIS = bytes(32)
_length = Struct(">I").pack
_ID: Final = 16
# No number of a header has more digits.
_LENGTHS: Final = tuple(_length(size) for size in range(64))
_DOMAIN = b"refold:event:1"
_RESEALED = b"refold:resealed:1"


# What ``Header`` holds, in its order: to name them costs more, for each row.
Columns: TypeAlias = tuple[StreamId, int, str, int, bytes, int, int]


class Header(NamedTuple):
    """The plain columns of an event: ``ts`` in microseconds since 1970, UTC; a UUID."""

    stream: StreamId
    seq: int
    type: str
    ts: int
    event_id: bytes
    token_estimate: int
    schema_version: int


def encoded(columns: Columns) -> bytes:
    """The canonical bytes of a header: each part behind its length, as big-endian.

    Raises ValueError if the id is not one of 16 bytes, TypeError if a part is of
    another kind.
    """
    stream, seq, type_, ts, event_id, tokens, version = columns
    if len(event_id) != _ID:
        raise ValueError(f"an event id has {_ID} bytes, this one {len(event_id)}")
    at, when = b"%d" % seq, b"%d" % ts
    # As `length_prefixed` of the parts, in half of its time: it is done for each row.
    return b"".join(
        (
            _named(stream),
            _LENGTHS[len(at)],
            at,
            _typed(type_),
            _LENGTHS[len(when)],
            when,
            _LENGTHS[_ID],
            event_id,
            _numbered(tokens),
            _numbered(version),
        )
    )


@lru_cache(maxsize=4096)
def _numbered(value: int) -> bytes:
    """A number that many rows share, behind its length."""
    return length_prefixed((b"%d" % value,))


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
    return link_digest(prev_hash, header, sha256(ciphertext).digest())


def link_digest(prev_hash: bytes, header: bytes, first_digest: bytes) -> bytes:
    """The same, where the ciphertext was replaced and only its SHA-256 is left."""
    return sha256(
        b"%b%b%b%b" % (_DOMAIN, prev_hash, sha256(header).digest(), first_digest)
    ).digest()


class Resealing(NamedTuple):
    """A row that was sealed anew: the SHA-256 of its first and present ciphertext."""

    seq: int
    first_digest: bytes
    digest: bytes


def resealed(rows: Iterable[Resealing]) -> str:
    """The digest that binds what ``rows`` hold now to what the chain was made of."""
    whole = sha256(_RESEALED)
    for row in rows:
        whole.update(row.seq.to_bytes(8, "big") + row.first_digest + row.digest)
    return whole.hexdigest()


EMPTY = sha256().digest()


def leaf_hash(data: bytes) -> bytes:
    """The hash of a leaf that holds ``data``."""
    return sha256(b"\0" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of the node above two."""
    return sha256(b"\1" + left + right).digest()


class Frontier(NamedTuple):
    """All that has to be kept of a tree to add to it: its perfect parts, from the left.

    There is one for each bit that is set in ``size``, the largest first.
    """

    size: int = 0
    peaks: tuple[bytes, ...] = ()

    def add(self, leaves: Iterable[bytes]) -> Self:
        """The tree with these leaf hashes at its end."""
        size, peaks = self.size, list(self.peaks)
        for leaf in leaves:
            peaks.append(leaf)
            level = size
            while level & 1:
                right = peaks.pop()
                peaks.append(node_hash(peaks.pop(), right))
                level >>= 1
            size += 1
        return self._replace(size=size, peaks=tuple(peaks))

    @property
    def root(self) -> bytes:
        """The hash that stands for the whole tree."""
        if not self.peaks:
            return EMPTY
        *rest, root = self.peaks
        for peak in reversed(rest):
            root = node_hash(peak, root)
        return root

    @property
    def sound(self) -> bool:
        """Whether it has as many parts as a tree of its size."""
        return self.size >= 0 and len(self.peaks) == self.size.bit_count()


def root_of(leaves: Iterable[bytes]) -> bytes:
    """The root over these leaf hashes, in this order; they are read once."""
    return Frontier().add(leaves).root


def inclusion_proof(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """What proves that the leaf at ``index`` (from 0) is in the tree of ``leaves``.

    Raises ValueError if there is no such leaf.
    """
    if not 0 <= index < len(leaves):
        raise ValueError(f"a tree of {len(leaves)} leaves has no leaf {index}")
    if len(leaves) == 1:
        return ()
    middle = _split(len(leaves))
    left, right = leaves[:middle], leaves[middle:]
    if index < middle:
        return (*inclusion_proof(left, index), root_of(right))
    return (*inclusion_proof(right, index - middle), root_of(left))


def consistency_proof(leaves: Sequence[bytes], size: int) -> tuple[bytes, ...]:
    """What proves that the tree of ``leaves`` begins with that of its first ``size``.

    Empty if that one is empty or is the same tree.  Raises ValueError if it is larger.
    """
    if not 0 <= size <= len(leaves):
        raise ValueError(f"a tree of {len(leaves)} leaves has no first {size}")
    return _growth(leaves, size, whole=True) if size else ()


def _growth(leaves: Sequence[bytes], size: int, *, whole: bool) -> tuple[bytes, ...]:
    """The proof below a node; ``whole``: all of the older tree is below it."""
    if size == len(leaves):
        return () if whole else (root_of(leaves),)
    middle = _split(len(leaves))
    left, right = leaves[:middle], leaves[middle:]
    if size <= middle:
        return (*_growth(left, size, whole=whole), root_of(right))
    return (*_growth(right, size - middle, whole=False), root_of(left))


def _split(count: int) -> int:
    """The largest power of two below ``count``: where the tree parts in two."""
    return 1 << (count - 1).bit_length() - 1
