"""What the tree asks of a database: which streams moved, their leaves, tree heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from refold.domain.ids import StreamId
from refold.domain.merkle import Frontier
from refold.domain.seals import Leaf, Seal, TreeHead, Use


class Grown(NamedTuple):
    """A tree head, and what is needed to add to its tree."""

    head: TreeHead
    frontier: Frontier

    @property
    def sound(self) -> bool:
        """Whether the one is of the other."""
        made = self.frontier
        return made.sound and (made.size, made.root) == (self.head.size, self.head.root)


class Ending(NamedTuple):
    """The end of a stream that is not sealed yet."""

    stream: StreamId
    seq: int
    leaf: Leaf


class Moved(NamedTuple):
    """Streams with events that are new, in the order in which they are read, and where
    the reading ended.
    """

    streams: list[StreamId]
    position: int


class Mark(NamedTuple):
    """The columns of an event that say where it is and what it is named by.

    ``hash`` is that of the last one asked for; of the others it is empty.
    """

    seq: int
    position: int
    event_id: bytes
    hash: bytes

    @property
    def idempotent(self) -> bool:
        """Whether it was written with an idempotency key, as its id says."""
        return self.event_id[6:7].hex()[:1] == "8"


class Ends(NamedTuple):
    """The newest position in the log, and up to which one it is complete.

    Behind the latter, transactions in flight may still put events between others.
    """

    newest: int
    settled: int


class Tree(Protocol):
    """The rows of leaves, seals and tree heads.

    Reading waits for no append, and no append waits for what is written.
    """

    @property
    def store_id(self) -> str:
        """What the database calls its store."""
        ...

    def newest(self) -> Grown | None:
        """The newest tree head.  Raises SealBroken if it is not sound."""
        ...

    def heads(self, *, after: int = -1) -> list[TreeHead]:
        """Tree heads of a size over ``after``, the smallest first."""
        ...

    def unsound(self) -> list[int]:
        """The sizes of tree heads that do not fit what their trees would grow from."""
        ...

    def ends(self) -> Ends:
        """How far the log goes now."""
        ...

    def moved(self, *, after: int, upto: int) -> Moved:
        """Streams that have events at these positions, a bounded number of them."""
        ...

    def behind(self, *, after: StreamId | None = None) -> list[StreamId]:
        """Streams whose head is not sealed, in order, a bounded number of them."""
        ...

    def unsealed(self) -> int:
        """How many streams have events that no leaf covers."""
        ...

    def ending(self, stream: StreamId) -> Ending | None:
        """The stream's end, or None if it is sealed, erased, or not whole."""
        ...

    def add(self, base: int, grown: Grown, endings: Sequence[Ending]) -> bool:
        """Keep the leaves of ``endings`` from ``base`` on, and the tree head over them.

        All or nothing; False, and nothing is kept, if the tree has another size than
        ``base``, or one of the streams was erased meanwhile.
        """
        ...

    def leaves(self, *, upto: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Number and hash of each leaf, in order."""
        ...

    def seals(self, stream: StreamId) -> list[Seal]:
        """What was sealed of the stream, the first seal first."""
        ...

    def marks(
        self, stream: StreamId, *, after: int, upto: int, limit: int
    ) -> list[Mark]:
        """What no hash covers of the events with ``after < seq <= upto``, in order."""
        ...

    def uses(self, stream: StreamId, *, after: int, upto: int) -> list[Use]:
        """The receipts of the stream that begin at these seqs."""
        ...

    def unowned(self) -> list[int]:
        """Leaves that are neither of a stream nor of an erasure, a bounded number."""
        ...

    def lost(self) -> list[tuple[StreamId, int]]:
        """Streams that were sealed and have no head, and up to which seq."""
        ...

    def marked(self) -> set[StreamId]:
        """The main streams of sessions that are marked as erased."""
        ...

    def strays(self) -> list[tuple[str, StreamId]]:
        """Rows beside the events that are of no session, each with its table."""
        ...

    def erasures(self) -> list[str]:
        """The erasures that leaves are of."""
        ...

    def erased(self, erasure: str) -> list[bytes]:
        """The hashes of the leaves of that erasure, in order."""
        ...

    def forget(self, user_id: str, session_id: str | None, erasure: str) -> None:
        """Say of a user's leaves that they are of this erasure, and whose no more.

        Done after the heads are marked as erased, or gone: no leaf of theirs can be
        added then.
        """
        ...
