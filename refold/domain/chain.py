"""The hash chain of a stream and the tree over streams, byte for byte.

The header of a row contains every unencrypted column with its length, so that different
rows have different headers.  The header is also the additional data of the encryption,
so that a ciphertext can be decrypted only in its own row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import Final, NamedTuple, Self, TypeAlias

from refold.domain.ids import StreamId

GENESIS = bytes(32)
pack_length = Struct(">I").pack
_ID_SIZE: Final = 16
# The encoded lengths of numbers; no number of a header has more than 63 digits.
_PACKED_LENGTHS: Final = tuple(pack_length(size) for size in range(64))
_DOMAIN = b"refold:event:1"
_REENCRYPTED = b"refold:resealed:1"
# The root of a tree without leaves.
EMPTY_ROOT: Final = sha256().digest()


# The fields of ``Header`` in order.  Every row needs them, and a plain tuple is made
# faster than a ``Header``.
Columns: TypeAlias = tuple[StreamId, int, str, int, bytes, int, int]


class Header(NamedTuple):
    """The unencrypted columns of an event.

    ts:       microseconds since 1970 in UTC.
    event_id: the 16 bytes of a UUID.
    """

    stream: StreamId
    seq: int
    type: str
    ts: int
    event_id: bytes
    token_estimate: int
    schema_version: int


def encoded(columns: Columns) -> bytes:
    """Return the canonical bytes of a header: each part after its big-endian length.

    Raises ValueError if the event id does not have 16 bytes, and TypeError if a part
    has another type.
    """
    stream, seq, type_, ts, event_id, tokens, version = columns
    if len(event_id) != _ID_SIZE:
        raise ValueError(f"an event id has {_ID_SIZE} bytes, this one {len(event_id)}")
    # "%d" would cut off a fraction.
    if type(seq) is not int or type(ts) is not int:
        raise TypeError("a seq and a time must be an int")
    seq_text = b"%d" % seq
    ts_text = b"%d" % ts
    # The same as `length_prefixed` in half of its time; it runs for each row.
    return b"".join(
        (
            _encoded_stream(stream),
            _PACKED_LENGTHS[len(seq_text)],
            seq_text,
            _encoded_type(type_),
            _PACKED_LENGTHS[len(ts_text)],
            ts_text,
            _PACKED_LENGTHS[_ID_SIZE],
            event_id,
            _encoded_number(tokens),
            _encoded_number(version),
        )
    )


@lru_cache(maxsize=4096)
def _encoded_number(value: int) -> bytes:
    """Return a number after its length; cached, because many rows share it."""
    if not isinstance(value, int):
        raise TypeError("a number of a header must be an int")
    return length_prefixed((b"%d" % value,))


@lru_cache(maxsize=1024)
def _encoded_stream(stream: StreamId) -> bytes:
    """Return the names of a stream; cached, because all of its rows share them."""
    return length_prefixed(part.encode() for part in stream)


@lru_cache(maxsize=64)
def _encoded_type(event_type: str) -> bytes:
    """Return an event type after its length; cached, because there are few types."""
    if not isinstance(event_type, str):
        raise TypeError("an event type must be a str")
    return length_prefixed((event_type.encode(),))


def length_prefixed(parts: Iterable[bytes]) -> bytes:
    """Join parts after their lengths, so that different parts give different bytes."""
    return b"".join([pack_length(len(part)) + part for part in parts])


def event_hash(prev_hash: bytes, header: bytes, ciphertext: bytes) -> bytes:
    """Return the hash of an event.

    prev_hash: the hash of the event before it, or ``GENESIS`` for the first.
    """
    return event_hash_of_digest(prev_hash, header, sha256(ciphertext).digest())


def event_hash_of_digest(prev_hash: bytes, header: bytes, first_digest: bytes) -> bytes:
    """Return the hash of an event from the SHA-256 of its first ciphertext.

    The ciphertext itself may have been replaced since.
    """
    return sha256(
        b"%b%b%b%b" % (_DOMAIN, prev_hash, sha256(header).digest(), first_digest)
    ).digest()


class Reencryption(NamedTuple):
    """A row whose ciphertext was replaced, with the SHA-256 of both ciphertexts."""

    seq: int
    first_digest: bytes
    current_digest: bytes


def reencryption_digest_hex(rows: Iterable[Reencryption]) -> str:
    """Return the digest, in hex, that binds current ciphertexts to the chain's."""
    whole = sha256(_REENCRYPTED)
    for row in rows:
        whole.update(row.seq.to_bytes(8, "big") + row.first_digest + row.current_digest)
    return whole.hexdigest()


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf with this content."""
    return sha256(b"\0" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of the node above two others."""
    return sha256(b"\1" + left + right).digest()


class Frontier(NamedTuple):
    """The part of a tree that is needed to add leaves.

    size:  the number of leaves.
    peaks: the roots of the perfect subtrees from left to right, the largest first: one
           for each bit that is set in ``size``.
    """

    size: int = 0
    peaks: tuple[bytes, ...] = ()

    def add(self, leaves: Iterable[bytes]) -> Self:
        """Return the tree with these leaf hashes at its end."""
        size = self.size
        peaks = list(self.peaks)
        for leaf in leaves:
            peaks.append(leaf)
            # Each set bit at the end of the size is a subtree as large as the new one.
            carries = size
            while carries & 1:
                right = peaks.pop()
                peaks.append(node_hash(peaks.pop(), right))
                carries >>= 1
            size += 1
        return self._replace(size=size, peaks=tuple(peaks))

    @property
    def root(self) -> bytes:
        """The root hash of the tree."""
        if not self.peaks:
            return EMPTY_ROOT
        *rest, root = self.peaks
        for peak in reversed(rest):
            root = node_hash(peak, root)
        return root

    @property
    def is_sound(self) -> bool:
        """Whether the number of peaks fits the size."""
        return self.size >= 0 and len(self.peaks) == self.size.bit_count()


def root_of(leaves: Iterable[bytes]) -> bytes:
    """Return the root over these leaf hashes, which are read once, in order."""
    return Frontier().add(leaves).root


def inclusion_proof(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """Return the hashes that prove that a leaf is in the tree of ``leaves`` (RFC 6962).

    index: the leaf's index, from 0.

    Raises ValueError if there is no such leaf.
    """
    if not 0 <= index < len(leaves):
        raise ValueError(f"a tree of {len(leaves)} leaves has no leaf {index}")
    if len(leaves) == 1:
        return ()
    middle = _split(len(leaves))
    left = leaves[:middle]
    right = leaves[middle:]
    if index < middle:
        return (*inclusion_proof(left, index), root_of(right))
    return (*inclusion_proof(right, index - middle), root_of(left))


def consistency_proof(leaves: Sequence[bytes], size: int) -> tuple[bytes, ...]:
    """Return the hashes that prove that a tree extends an older one (RFC 6962).

    leaves: the leaves of the new tree.
    size:   the number of first leaves that make the older tree.

    Returns an empty proof if the older tree is empty or the same.

    Raises ValueError if the older tree is larger.
    """
    if not 0 <= size <= len(leaves):
        raise ValueError(
            f"a tree of {len(leaves)} leaves does not extend one of {size}"
        )
    return _consistency_subproof(leaves, size, whole=True) if size else ()


def _consistency_subproof(
    leaves: Sequence[bytes], size: int, *, whole: bool
) -> tuple[bytes, ...]:
    """Return the part of a consistency proof below a node (``SUBPROOF`` in RFC 6962).

    whole: whether the whole older tree is below the node.
    """
    if size == len(leaves):
        return () if whole else (root_of(leaves),)
    middle = _split(len(leaves))
    left = leaves[:middle]
    right = leaves[middle:]
    if size <= middle:
        return (*_consistency_subproof(left, size, whole=whole), root_of(right))
    return (*_consistency_subproof(right, size - middle, whole=False), root_of(left))


def _split(count: int) -> int:
    """Return the size of the left subtree: the largest power of two below ``count``."""
    return 1 << ((count - 1).bit_length() - 1)
