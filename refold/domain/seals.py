"""Seals: leaves of the tree over all streams, signed tree heads, and their ports.

A leaf is the end of a stream when it was sealed.  It contains no name: the hash of the
last event represents the stream with all its events.  ``docs/decisions/0022`` explains
the reasons.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol, Self

from refold.domain.chain import leaf_hash, length_prefixed
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId
from refold.domain.ports import Problem

_LEAF: Final = b"refold:leaf:1"
_POSITIONS: Final = b"refold:positions:1"
_RECEIPTS: Final = b"refold:receipts:1"
# Problems of the tree itself name this stream.
TREE: Final = StreamId("", "", "tree")


class Use(NamedTuple):
    """A use of an idempotency key for the events from ``first_seq`` to ``last_seq``.

    address: the place of its receipt.
    """

    address: bytes
    first_seq: int
    last_seq: int


class Leaf(NamedTuple):
    """The sealed facts of a stream: its last event, and columns outside of the chain.

    hash:      of the last event.
    positions: the digest of the positions of all events since the previous seal.
    receipts:  the digest of the receipts for these events.
    """

    hash: bytes
    positions: bytes
    receipts: bytes

    @classmethod
    def of(cls, last: bytes, positions: Iterable[int], uses: Iterable[Use]) -> Self:
        """Return the leaf of a stream.

        last:      the hash of its last event.
        positions: of the events since the previous seal, in the order of their seqs.
        uses:      of idempotency keys for these events.
        """
        return cls(last, positions_digest(positions), receipts_digest(uses))

    def hashed(self) -> bytes:
        """Return the hash of the leaf in the tree."""
        return leaf_hash(_LEAF + self.hash + self.positions + self.receipts)


class Ending(NamedTuple):
    """The end of a stream that has events after its last seal."""

    stream: StreamId
    seq: int
    leaf: Leaf


def positions_digest(positions: Iterable[int]) -> bytes:
    """Return the digest of the positions of events, in the order of their seqs."""
    sha256 = hashlib.sha256(_POSITIONS)
    for position in positions:
        sha256.update(b"%d " % position)
    return sha256.digest()


def receipts_digest(uses: Iterable[Use]) -> bytes:
    """Return the digest of receipts, which may be in any order."""
    in_order = sorted(uses, key=lambda use: (use.first_seq, use.last_seq, use.address))
    parts: list[bytes] = []
    for use in in_order:
        parts += [use.address, b"%d %d" % (use.first_seq, use.last_seq)]
    return hashlib.sha256(_RECEIPTS + length_prefixed(parts)).digest()


class TreeHead(NamedTuple):
    """A signed statement about the size and the root of a store's tree at one time.

    sealed_at: microseconds since 1970.
    position:  the position up to which the log was read for it.
    key_id:    the id of the key that signed it.
    """

    store_id: str
    size: int
    root: bytes
    sealed_at: int
    position: int
    key_id: str
    signature: bytes = b""

    def message(self) -> bytes:
        """Return the signed bytes: six lines of text."""
        lines = (
            "refold tree head 1",
            self.store_id,
            self.size,
            self.root.hex(),
            self.sealed_at,
            self.position,
        )
        return "".join(f"{line}\n" for line in lines).encode()

    def to_json(self) -> JsonObject:
        """Return the JSON that anchors and proofs contain."""
        return {
            **self._asdict(),
            "root": self.root.hex(),
            "signature": self.signature.hex(),
        }

    @classmethod
    def from_json(cls, stored: Any) -> Self:
        """Read the JSON of ``to_json``.  Raises ValueError for other JSON."""
        if not isinstance(stored, dict) or set(stored) != set(cls._fields):
            raise ValueError("no tree head")
        for name, value in stored.items():
            expected_type = int if name in _NUMBERS else str
            if type(value) is not expected_type:
                raise ValueError("no tree head")
        return cls(
            store_id=stored["store_id"],
            size=stored["size"],
            root=bytes.fromhex(stored["root"]),
            sealed_at=stored["sealed_at"],
            position=stored["position"],
            key_id=stored["key_id"],
            signature=bytes.fromhex(stored["signature"]),
        )


_NUMBERS: Final = ("size", "sealed_at", "position")


class Seal(NamedTuple):
    """A seal of a stream up to ``seq``.

    leaf: the index of its leaf.
    kept: the hash in the tree at ``leaf``; empty if there is none, or if the stream was
          erased.
    now:  the current hash of the event at ``seq``; empty if there is no such event.
    """

    seq: int
    leaf: int
    positions: bytes
    receipts: bytes
    kept: bytes
    now: bytes


class SealsVerified(NamedTuple):
    """The result of a verification of the seals.

    tree_heads: the number of valid tree heads.
    leaves:     the number of leaves.
    erased:     the number of leaves whose streams were erased according to
                certificates.
    anchored:   the number of tree heads in the anchor.
    unsealed:   the number of streams with events that no tree head covers yet; nobody
                would notice the removal of these events.
    """

    tree_heads: int
    leaves: int
    erased: int
    anchored: int
    unsealed: int
    problems: list[Problem]


class Anchor(Protocol):
    """A place outside of the database that stores tree heads permanently.

    It is read and extended only within ``held``.
    """

    def held(self) -> AbstractContextManager[None]:
        """Wait for exclusive access, and keep it during the block.

        A process that seals keeps it from before the commit of a tree head until the
        tree head is added.
        """

    def read(self) -> Iterator[TreeHead]:
        """Yield all tree heads in the order in which they were added.

        Raises SealBroken if it contains something else.
        """

    def newest(self) -> TreeHead | None:
        """Return the tree head that was added last.  Raises SealBroken."""

    def add(self, heads: Sequence[TreeHead]) -> None:
        """Add the tree heads that are larger than every one before.

        They are durable when it returns.
        """


class Seals(Protocol):
    """The tree over the ends of all streams, and its proofs."""

    def seal(
        self,
        *,
        now: int,
        sweep: bool = False,
        accept_loss: bool = False,
        endings: Callable[[list[StreamId]], list[Ending]] | None = None,
    ) -> TreeHead | None:
        """Seal the streams with new events.

        The next call completes one that was interrupted.  Concurrent calls seal each
        stream only once.

        sweep:       check every stream, and not only those with new events in the log.
        accept_loss: replace the key store's record of the tree by the current tree, for
                     a database that was restored from a backup.
        endings:     find the ends of streams with this function.

        Returns the newest tree head, or None if there is none.

        Raises SealBroken if the tree in the database contradicts the anchor or the key
        store.
        """

    def endings(self, streams: Sequence[StreamId]) -> list[Ending]:
        """Return the ends of those streams that are complete and not sealed."""

    def heads(self) -> list[TreeHead]:
        """Return all tree heads, the smallest first."""

    def prove(self, stream: StreamId, seq: int, *, size: int | None) -> JsonObject:
        """Return the proof that an event is in the tree.

        size: of the tree head to use; None uses the newest.

        Raises LookupError if no such tree head covers the event.
        """

    def prove_growth(self, old: int, new: int) -> JsonObject:
        """Return the proof that the tree of size ``new`` extends that of size ``old``.

        Raises LookupError if there are no such tree heads, and ValueError if ``old`` is
        larger.
        """

    def verify(self, *, newest: bool = False) -> SealsVerified:
        """Check leaves, tree heads, signatures, and anchor against each other.

        newest: check the newest tree head alone: its leaves, its signature, and whether
                anchor and key store have the same one.
        """

    def unsealed(self) -> Iterator[StreamId]:
        """Yield the streams with events after their newest seal, in order."""

    def public_key(self) -> bytes:
        """Return the 32 bytes of the key that verifies tree heads and certificates."""
