"""Rows in and out of a database: the recorder interface of the eventsourcing library.

A recorder knows no keys.  It writes a batch with one compare-and-set on the
stream's head row, and takes only what the encrypting mapper made.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
)
from uuid import UUID

from eventsourcing.persistence import (
    ApplicationRecorder,
    IntegrityError,
    Notification,
    OperationalError,
    StoredEvent,
    Subscription,
)

from refold.adapters.keys.store import NO_REFS, Refs
from refold.adapters.rows import EncryptedEvent
from refold.domain.access_log import AuditRows
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
from refold.domain.events import Span
from refold.domain.ids import StreamId
from refold.domain.ports import Duplicate, Lagging, Place, Scope, SessionInfo, Status
from refold.domain.seals import Leaf, Seal, TreeHead, Use

if TYPE_CHECKING:
    from refold.adapters.erasure import MendingRows

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


# What a head's status is while its user is frozen; nothing is appended to either.
FROZEN: Final = {"open": "frozen", "closed": "frozen-closed"}
THAWED: Final = {frozen: status for status, frozen in FROZEN.items()}


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


_PAGE = 500
_SHORTEST, _LONGEST = 0.01, 0.5


class PollingSubscription(Subscription[ApplicationRecorder]):
    """Yields notifications in order, and waits at the end of the log for more."""

    def __init__(
        self, recorder: ApplicationRecorder, gt: int | None, topics: Sequence[str]
    ) -> None:
        super().__init__(recorder, gt, topics)
        self._after = gt or 0
        self._wanted = topics
        self._waiting: deque[Notification] = deque()
        self._stopped = Event()

    def stop(self) -> None:
        """End the iteration, also while it waits."""
        super().stop()
        self._stopped.set()

    def __next__(self) -> Notification:
        pause = _SHORTEST
        while not self._waiting:
            if self._stopped.is_set():
                raise StopIteration
            self._waiting.extend(
                self._recorder.select_notifications(
                    self._after, _PAGE, None, self._wanted, inclusive_of_start=False
                )
            )
            if not self._waiting:
                self._stopped.wait(pause)
                pause = min(pause * 2, _LONGEST)
        notification = self._waiting.popleft()
        self._after = notification.id
        return notification


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


class HeadRow(NamedTuple):
    """The row of a stream's head; ``state`` is sealed, times are microseconds."""

    seq: int
    hash: bytes
    status: Status
    state: bytes
    key_check: bytes
    tokens: int
    created_at: int
    updated_at: int


class BlobRow(NamedTuple):
    """A sealed blob; ``address`` is a keyed hash, ``size`` the bytes of its text."""

    address: bytes
    body: bytes
    size: int


class ViewRow(NamedTuple):
    """A sealed view, how far it has folded, and the seqs of what it shows.

    Those are pairs of first and last seq as JSON, of the main and of the derived
    stream, so that the rows can be read together with the view.
    """

    through_seq: int
    derived_seq: int
    body: bytes
    main_spans: str = "[]"
    derived_spans: str = "[]"


class StandingRows(NamedTuple):
    """The rows of one moment that a context is made of.

    ``shown`` and ``summaries`` are those that the view names, ``new`` and ``derived``
    the first of those behind it, of the main and of the derived stream.
    """

    head: HeadRow | None
    view: ViewRow | None
    shown: list[EncryptedEvent]
    summaries: list[EncryptedEvent]
    new: list[EncryptedEvent]
    derived: list[EncryptedEvent]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to write if the stream's head is at this seq and hash (0: there is none).

    ``refs`` say whose session begins with it, if one does.
    """

    stream: StreamId
    expected_seq: int
    expected_hash: bytes
    head: HeadRow
    events: tuple[EncryptedEvent, ...]
    blobs: tuple[BlobRow, ...] = ()
    receipt: bytes | None = None
    refs: Refs = NO_REFS

    def __post_init__(self) -> None:
        if not self.events:
            raise ValueError("a batch holds at least one event")
        for event in self.events:
            if type(event) is not EncryptedEvent or event.header.stream != self.stream:
                raise TypeError("a recorder takes only what the encrypting mapper made")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What takes the place of a session's rows, all under one new key.

    batch:  the events at the end of the main stream that say so; its blobs are all
            that the session has from now on.
    rows:   of any stream, sealed anew; they replace the ciphertext, no other column.
    states: the sealed state of each other stream's head, by the stream's name.
    blobs:  the addresses of the blobs there were.
    """

    batch: Batch
    rows: tuple[EncryptedEvent, ...]
    states: Mapping[str, bytes]
    blobs: tuple[bytes, ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if type(row) is not EncryptedEvent or row.first_digest is None:
                raise TypeError("a row is replaced only by what was sealed anew")
            if row.header.stream.main != self.batch.stream:
                raise TypeError("a rewrite is of one session")


Heads: TypeAlias = Mapping[str, "HeadRow"]


class Wrote(NamedTuple):
    """The batch is durable."""

    head: HeadRow


class Moved(NamedTuple):
    """The head is elsewhere; nothing was written."""

    head: HeadRow | None


WriteOutcome: TypeAlias = Wrote | Moved | Duplicate


class NotInserted(IntegrityError):
    """The library's name for a conflict; ``outcome`` says what was in the way."""

    def __init__(self, outcome: Moved | Duplicate) -> None:
        super().__init__("the stream's head has moved, or the receipt is there")
        self.outcome = outcome


class QueueFull(OperationalError):
    """More appends wait than can be waited for."""


class Recorder(ApplicationRecorder):
    """What every database of Refold can do, and no more.

    ``shared``: other processes that open it see the same rows.
    """

    shared: bool

    @abstractmethod
    def write(self, batch: Batch) -> WriteOutcome:
        """Write the batch or nothing; durable when it returns."""

    @abstractmethod
    def write_soon(
        self, batch: Batch, done: Callable[[WriteOutcome | Exception], None]
    ) -> bool:
        """``write`` for who cannot wait; False if too much is waiting already.

        ``done`` is called once, maybe in another thread, with the outcome or the error
        that ``write`` would raise; it must return at once and raise nothing.
        """

    @abstractmethod
    def write_exclusive(
        self, stream: StreamId, build: Callable[[HeadRow | None], Batch]
    ) -> WriteOutcome:
        """Write what ``build`` makes of the head while the head cannot move."""

    @abstractmethod
    def rewrite(
        self, stream: StreamId, build: Callable[[Heads], Rewrite | None]
    ) -> bool:
        """Do what ``build`` makes of the session's heads while none can move.

        All views of the session are dropped with it.  False if ``build`` gave None
        and nothing was done.
        """

    @abstractmethod
    def flush(self) -> None:
        """Return when all that was written is durable, also where appends need not."""

    @abstractmethod
    def drop_views(
        self, user_id: str, session_id: str, *, name: str | None = None
    ) -> None:
        """Forget the session's stored views, or the one of that name."""

    @abstractmethod
    def head_row(self, stream: StreamId) -> HeadRow | None: ...

    @abstractmethod
    def knows(self, user_id: str) -> bool:
        """Whether the user has any session."""

    @abstractmethod
    def has_sessions(self) -> bool:
        """Whether there is any session at all."""

    @abstractmethod
    def erasing(self) -> ErasingRows:
        """What erases."""

    @abstractmethod
    def keeping(self) -> KeepingRows:
        """What freezes users, and knows which sessions are used."""

    @abstractmethod
    def mending(self) -> MendingRows:
        """What a repair does to rows."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def receipt(self, stream: StreamId, key: bytes) -> Duplicate | None: ...

    @abstractmethod
    def rows(
        self,
        stream: StreamId,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int | None = None,
        types: Sequence[str] = (),
        newest: bool = False,
        spans: Sequence[Span] = (),
    ) -> list[EncryptedEvent]:
        """The rows with ``after < seq <= upto``, in order, each with ``prev_hash``.

        ``newest`` takes the last ``limit`` of them instead of the first.  ``spans``,
        in order and apart from each other, are asked for alone, and read at once.

        Raises CorruptEvent if a row cannot be one of ours.
        """

    @abstractmethod
    def sessions(
        self, user_id: str | None, session_id: str | None
    ) -> list[SessionInfo]: ...

    @abstractmethod
    def streams(self, user_id: str, session_id: str) -> list[str]: ...

    @abstractmethod
    def orphans(self, scope: Scope) -> list[StreamId]:
        """Streams that have events and no head."""

    @abstractmethod
    def blob_row(self, stream: StreamId, address: bytes) -> bytes | None:
        """A blob of the user's, unless the session that asks was erased."""

    @abstractmethod
    def view_row(self, stream: StreamId, name: str) -> ViewRow | None: ...

    @abstractmethod
    def standing(
        self, stream: StreamId, name: str, *, shown: bool, limit: int
    ) -> StandingRows:
        """Head, view and what is behind it, at most ``limit`` rows of each stream.

        ``shown`` asks for the rows too that the view names.  The derived stream is
        that of the view's name.
        """

    @abstractmethod
    def save_view_row(
        self,
        stream: StreamId,
        name: str,
        row: ViewRow,
        *,
        replaces: int,
        key_check: bytes,
    ) -> bool:
        """Store it if the stored one stands at ``replaces`` and the key is this."""

    @abstractmethod
    def view_names(self, user_id: str, session_id: str) -> list[str]: ...

    @abstractmethod
    def take_lease(self, stream: StreamId, owner: str, *, now: int, until: int) -> bool:
        """Hold the lease if it is free at ``now``, else mark it as asked for."""

    @abstractmethod
    def renew_lease(self, stream: StreamId, owner: str, *, until: int) -> bool: ...

    @abstractmethod
    def release_lease(self, stream: StreamId, owner: str) -> bool:
        """Give it back; True if it was marked as asked for."""

    @abstractmethod
    def lagging(
        self, scope: Scope, *, by: int, limit: int, after: Place | None
    ) -> list[Lagging]:
        """Stored views that are behind by so many events, in order of their places."""

    @abstractmethod
    def stats(self, scope: Scope, *, now: int) -> dict[str, Any]: ...

    @property
    def audit_rows(self) -> AuditRows:
        """The table of audit records."""
        raise NotImplementedError

    @property
    @abstractmethod
    def tree(self) -> Tree:
        """Leaves, seals and tree heads."""

    @abstractmethod
    def notifications(
        self, *, after: int, upto: int | None, limit: int
    ) -> list[tuple[int, EncryptedEvent]]:
        """Rows by position, none of which a transaction in flight can still precede."""

    def insert_events(
        self, stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> Sequence[int] | None:
        """Write events with the ``batch`` that they are of; durable when it returns.

        ``done`` is for who cannot wait: it is called once, maybe in another thread,
        with the outcome or the error, must return at once and raise nothing.

        Raises NotInserted where the head is elsewhere or the receipt there, QueueFull
        if ``done`` would be waited for too long, TypeError for events that the
        encrypting mapper did not make.
        """
        batch, done = kwargs.get("batch"), kwargs.get("done")
        if type(batch) is not Batch or tuple(stored_events) != batch.events:
            raise TypeError("events are written with the head that goes with them")
        if done is not None:
            if not self.write_soon(batch, done):
                raise QueueFull("too many appends are waiting already")
            return None
        outcome = self.write(batch)
        if not isinstance(outcome, Wrote):
            raise NotInserted(outcome)
        return None

    def select_events(
        self,
        originator_id: UUID | str | StreamId,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
        types: Sequence[str] = (),
        spans: Sequence[Span] = (),
    ) -> Sequence[EncryptedEvent]:
        """The rows with ``gt < seq <= lte``, in order or from the end.

        ``types`` keeps only those.  ``spans``, in order and apart from each other, are
        asked for alone, and read at once.

        Raises CorruptEvent if a row cannot be one of ours.
        """
        stream = originator_id
        if not isinstance(stream, StreamId):
            stream = StreamId.parse(str(stream))
        how = {"limit": limit, "types": types, "newest": desc, "spans": spans}
        rows = self.rows(stream, after=gt or 0, upto=lte, **how)  # type: ignore[arg-type]
        return rows[::-1] if desc else rows

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        after = (start or 0) - (1 if inclusive_of_start and start else 0)
        found: list[Notification] = []
        while len(found) < limit:
            page = self.notifications(after=after, upto=stop, limit=limit)
            found += [
                Notification(
                    originator_id=row.originator_id,
                    originator_version=row.originator_version,
                    topic=row.topic,
                    state=row.state,
                    id=position,
                )
                for position, row in page
                if not topics or row.topic in topics
            ]
            if len(page) < limit:
                break
            after = page[-1][0]
        return found[:limit]

    def subscribe(
        self, gt: int | None = None, topics: Sequence[str] = ()
    ) -> Subscription[ApplicationRecorder]:
        return PollingSubscription(self, gt, topics)
