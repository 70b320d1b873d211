"""Rows in and out of a database: the recorder interface of the eventsourcing library.

A recorder knows no keys.  It writes a batch with one compare-and-set on the
stream's head row, and takes only what the encrypting mapper made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
)

from refold.adapters.rows import BlobRow
from refold.domain.chain import Frontier
from refold.domain.erasure import (
    Accesses,
    Job,
    LegalHold,
    OldBlobs,
    Remains,
    Stage,
    Unused,
    Whose,
)
from refold.domain.ids import StreamId
from refold.domain.seals import Leaf, Seal, TreeHead, Use

if TYPE_CHECKING:
    pass

SubjectStatus: TypeAlias = Literal["live", "frozen", "erasing", "erased"]


class Subject(NamedTuple):
    """A user, or a session that was erased, by keyed hashes."""

    ref: str
    user_ref: str
    status: SubjectStatus
    epoch: int


class CertificateRow(NamedTuple):
    """A signed statement as it is kept."""

    certificate_id: str
    user_ref: str
    created_at: int
    body: str


class ErasingRows(Protocol):
    """The rows; every method is one transaction, but for ``delete``."""

    def begin(self, job: Job, subjects: Sequence[Subject]) -> Job:
        """Keep the job and its subjects; returns the one that is there for the same.

        Waits for sessions that are just beginning.  Raises OnHold.
        """
        ...

    def jobs(self, user_ref: str | None = None) -> list[Job]: ...
    def unowned_blobs(self, user_id: str) -> bool:
        """Whether the user has blobs that do not say whose session's they are."""
        ...

    def own_blobs(
        self, user_id: str, session_id: str, addresses: Sequence[bytes]
    ) -> None:
        """Say of these blobs, where nothing is said, whose they are."""
        ...

    def mark(self, whose: Whose) -> None:
        """Mark heads as erased, and remember what they were."""
        ...

    def unmark(self, whose: Whose, subjects: Sequence[Subject]) -> None:
        """Give heads back what they were, and let the subjects be live again."""
        ...

    def adopt(self, whose: Whose) -> None:
        """Give a marked head to streams that have none, so that they can be deleted."""
        ...

    def advance(self, job: Job, before: Stage) -> Job | None:
        """Keep how far it is if it was at ``before``; gives what is kept, if any."""
        ...

    def remains(self, whose: Whose) -> Remains: ...
    def delete(self, whose: Whose, erasure: str) -> Iterator[tuple[str, int]]:
        """Delete in bounded transactions; ``erasure`` has their leaves from then on."""
        ...

    def end(
        self,
        job_id: str | None,
        subjects: Sequence[Subject],
        certificate: CertificateRow,
    ) -> bool:
        """Keep the certificate, set the subjects, drop the job; False if it is gone."""
        ...

    def subject(self, ref: str) -> Subject | None: ...
    def subjects(self) -> list[Subject]:
        """All that are not live, or are not in their first epoch."""
        ...

    def set_subject(self, subject: Subject) -> None: ...
    def certificates(self, user_ref: str | None = None) -> list[CertificateRow]: ...
    def holds(self, user_ref: str) -> list[LegalHold]: ...
    def hold(self, user_ref: str, hold: LegalHold) -> bool: ...
    def release(self, user_ref: str, name: str) -> bool: ...
    def left(self, whose: Whose) -> dict[str, int]: ...
    def clean(self, *, vacuum: bool) -> dict[str, Any]: ...
    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]: ...
    def facts(self) -> dict[str, Any]: ...
    def tree_head(self) -> dict[str, Any] | None: ...
    def key_generation(self) -> int:
        """The key store's generation when it was written down last; 0 if never."""
        ...

    def saw_generation(self, generation: int) -> None:
        """Write down the key store's generation, if it is higher than before."""
        ...


class BlobPlace(NamedTuple):
    """Where a blob is, and whose."""

    user_id: str
    address: bytes
    session_id: str


class StillUsed(Exception):
    """Undoes the transaction that was to begin an erasure."""


class KeepingRows(Protocol):
    """The rows; a user is named by id where heads are, by keyed hash elsewhere."""

    def freeze(self, user_id: str, user_ref: str, freeze: LegalHold) -> bool:
        """Freeze subject and heads, and keep why; False if it is so already."""
        ...

    def unfreeze(self, user_id: str, user_ref: str) -> bool: ...
    def add_accesses(self, user_id: str, accesses: Sequence[Accesses]) -> None: ...
    def accesses(self, user_id: str | None) -> list[Accesses]: ...
    def is_frozen(self, user_ref: str) -> bool: ...
    def old_blobs(self, before: int, after: tuple[str, bytes]) -> list[BlobPlace]:
        """The next of those written before, behind user and address, in their order."""
        ...

    def expire_blobs(
        self, blobs: OldBlobs, rows: Sequence[BlobRow], key_check: bytes
    ) -> int:
        """Put the rows in their places, if the session is open or closed, and so keyed.

        Those that are without text already stay as they are.
        """
        ...

    def begin_unused(
        self, job: Job, subjects: Sequence[Subject], unused: Unused
    ) -> Job | None:
        """Begin the job and mark its heads, or do nothing."""
        ...


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


class TreeMoved(NamedTuple):
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

    def moved(self, *, after: int, upto: int) -> TreeMoved:
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
