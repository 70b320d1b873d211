"""Seals: what a leaf of the tree says, what a signed tree head says, and the ports.

A leaf is the head of one stream when it was sealed.  It holds no name: the hash of the
last event stands for the stream and all that is in it.  ``docs/decisions/0022`` has
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
TREE: Final = StreamId("", "", "tree")  # what problems of the tree itself are said of


class Use(NamedTuple):
    """A use of an idempotency key: where its receipt is, and the seqs it is of."""

    address: bytes
    first_seq: int
    last_seq: int


class Leaf(NamedTuple):
    """What is sealed of a stream: its last event, and what no hash of the chain holds.

    ``positions`` and ``receipts`` are digests of those columns, of the events since
    the stream was sealed before.
    """

    hash: bytes
    positions: bytes
    receipts: bytes

    @classmethod
    def of(cls, last: bytes, positions: Iterable[int], uses: Iterable[Use]) -> Self:
        """The leaf of a stream that ends with the hash ``last``."""
        return cls(last, positions_digest(positions), receipts_digest(uses))

    def hashed(self) -> bytes:
        """The leaf's hash in the tree."""
        return leaf_hash(_LEAF + self.hash + self.positions + self.receipts)


class Ending(NamedTuple):
    """The end of a stream that is not sealed yet."""

    stream: StreamId
    seq: int
    leaf: Leaf


def positions_digest(positions: Iterable[int]) -> bytes:
    """The digest of the positions of events, in the order of their seqs."""
    whole = hashlib.sha256(_POSITIONS)
    for position in positions:
        whole.update(b"%d " % position)
    return whole.digest()


def receipts_digest(uses: Iterable[Use]) -> bytes:
    """The digest of receipts, which are hashed in the order of their seqs."""
    parts = [
        part
        for use in sorted(uses, key=lambda use: (use[1:], use.address))
        for part in (use.address, b"%d %d" % use[1:])
    ]
    return hashlib.sha256(_RECEIPTS + length_prefixed(parts)).digest()


class TreeHead(NamedTuple):
    """A signed statement: this store's tree had this size and root at this time.

    sealed_at: microseconds since 1970.
    position:  up to where the log was read for it.
    key_id:    names the key that signed it.
    """

    store_id: str
    size: int
    root: bytes
    sealed_at: int
    position: int
    key_id: str
    signature: bytes = b""

    def message(self) -> bytes:
        """What is signed: six lines of text."""
        tree = self.store_id, self.size, self.root.hex(), self.sealed_at, self.position
        return "".join(f"{line}\n" for line in ("refold tree head 1", *tree)).encode()

    def to_json(self) -> JsonObject:
        """All of it, as it stands in anchors and proofs."""
        hashes = {"root": self.root.hex(), "signature": self.signature.hex()}
        return {**self._asdict(), **hashes}

    @classmethod
    def from_json(cls, found: Any) -> Self:
        """What ``to_json`` wrote; raises ValueError if it is not that."""
        if not isinstance(found, dict) or set(found) != set(cls._fields):
            raise ValueError("no tree head")
        for name, value in found.items():
            if type(value) is not (int if name in _NUMBERS else str):
                raise ValueError("no tree head")
        hashes = {name: bytes.fromhex(found[name]) for name in ("root", "signature")}
        return cls(**{**found, **hashes})


_NUMBERS: Final = ("size", "sealed_at", "position")


class Seal(NamedTuple):
    """What was sealed of a stream: up to which seq, and where its leaf is.

    kept: the hash that the tree has at ``leaf``; empty where it has none, or that of
          something erased.
    now:  the hash of the event at ``seq`` now; empty where there is no such event.
    """

    seq: int
    leaf: int
    positions: bytes
    receipts: bytes
    kept: bytes
    now: bytes


class SealsVerified(NamedTuple):
    """What was proved of the seals, and what is wrong with them.

    unsealed: streams with events that no tree head covers yet: their ends can be cut
              off unseen.
    erased:   leaves whose streams were erased, as certificates say.
    """

    tree_heads: int
    leaves: int
    erased: int
    anchored: int
    unsealed: int
    problems: list[Problem]


class Anchor(Protocol):
    """Where tree heads are kept outside the database: what was said stays said.

    It is read and added to while it is ``held``.
    """

    def held(self) -> AbstractContextManager[None]:
        """Wait until nobody else holds it, and keep others waiting.

        Who seals holds it from before a tree head is committed until it is added.
        """

    def read(self) -> Iterator[TreeHead]:
        """All tree heads, in the order in which they were added.

        Raises SealBroken where it holds something else.
        """

    def newest(self) -> TreeHead | None:
        """The last that was added.  Raises as ``read``."""

    def add(self, heads: Sequence[TreeHead]) -> None:
        """Keep those that are larger than all it has; durable when it returns."""


class Seals(Protocol):
    """The tree over the heads of all streams, and its proofs."""

    def seal(
        self,
        *,
        now: int,
        sweep: bool = False,
        accept_loss: bool = False,
        endings: Callable[[list[StreamId]], list[Ending]] | None = None,
    ) -> TreeHead | None:
        """Seal what has moved; returns the newest tree head, None if there is none.

        A call that was cut off is completed by the next one.  Of several at once, each
        head is sealed by one.  ``sweep`` looks at every stream, not only at those with
        events that are new in the log.

        ``accept_loss`` forgets what the key store remembers of the database, such as
        one that a backup was restored to, and remembers what is there.  ``endings``
        looks for the ends of streams in place of this.

        Raises SealBroken if the tree in the database is not the one that the anchor
        names and the key store remembers.
        """

    def endings(self, streams: Sequence[StreamId]) -> list[Ending]:
        """The ends of these streams, of those that are whole and not sealed."""

    def heads(self) -> list[TreeHead]:
        """All tree heads, the smallest first."""

    def prove(self, stream: StreamId, seq: int, *, size: int | None) -> JsonObject:
        """The proof that this event is in the tree of that size, or the newest.

        Raises LookupError if no tree head of that size covers the event.
        """

    def prove_growth(self, old: int, new: int) -> JsonObject:
        """The proof that the tree of the size ``new`` begins with that of ``old``.

        Raises LookupError without such tree heads, ValueError if old is larger.
        """

    def verify(self, *, newest: bool = False) -> SealsVerified:
        """Prove leaves, tree heads, signatures and anchor against each other.

        ``newest`` proves the newest tree head alone: its leaves make it, it is signed,
        it is the anchor's newest, and the key store remembers no other.
        """

    def unsealed(self) -> Iterator[StreamId]:
        """Streams that have events behind their newest seal, in order."""

    def public_key(self) -> bytes:
        """The key that tree heads and certificates are checked with; 32 bytes."""
