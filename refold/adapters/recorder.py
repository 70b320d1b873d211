"""Rows in and out of a database: the recorder interface of the eventsourcing library.

A recorder knows no keys.  It writes a batch with one compare-and-set on the
stream's head row, and takes only what the sealing mapper made.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias
from uuid import UUID

from eventsourcing.persistence import (
    ApplicationRecorder,
    IntegrityError,
    Notification,
    StoredEvent,
    Subscription,
)

from refold.adapters.erasing_rows import ErasingRows
from refold.adapters.keeping_rows import KeepingRows
from refold.adapters.keystore import NO_REFS, Refs
from refold.adapters.sealing import SealedEvent
from refold.adapters.subscription import PollingSubscription
from refold.adapters.tree import Tree
from refold.domain.audit import AuditRows
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import Span
from refold.domain.ids import StreamId
from refold.domain.ports import (
    Duplicate,
    SessionInfo,
    Status,
)
from refold.domain.sizes import Lagging, Place, Scope

if TYPE_CHECKING:
    from refold.adapters.mending import MendingRows


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
    shown: list[SealedEvent]
    summaries: list[SealedEvent]
    new: list[SealedEvent]
    derived: list[SealedEvent]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to write if the stream's head is at this seq and hash (0: there is none).

    ``refs`` say whose session begins with it, if one does.
    """

    stream: StreamId
    expected_seq: int
    expected_hash: bytes
    head: HeadRow
    events: tuple[SealedEvent, ...]
    blobs: tuple[BlobRow, ...] = ()
    receipt: bytes | None = None
    refs: Refs = NO_REFS

    def __post_init__(self) -> None:
        if not self.events:
            raise ValueError("a batch holds at least one event")
        for event in self.events:
            if type(event) is not SealedEvent or event.header.stream != self.stream:
                raise TypeError("a recorder takes only what the sealing mapper made")


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
    rows: tuple[SealedEvent, ...]
    states: Mapping[str, bytes]
    blobs: tuple[bytes, ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if type(row) is not SealedEvent or row.first_digest is None:
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


class Recorder(ApplicationRecorder):
    """What every database of Refold can do, and no more.

    ``shared``: other processes that open it see the same rows.
    """

    shared: ClassVar[bool] = True

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
    def drop_views(self, user_id: str, session_id: str) -> None: ...

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

    def mending(self) -> MendingRows:
        """What a repair does to rows.  Raises InvalidConfiguration in memory."""
        raise InvalidConfiguration("memory:// keeps nothing that could be repaired")

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
    ) -> list[SealedEvent]:
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
    def tree(self) -> Tree | None:
        """Leaves, seals and tree heads; None where nothing is kept."""
        return None

    @abstractmethod
    def notifications(
        self, *, after: int, upto: int | None, limit: int
    ) -> list[tuple[int, SealedEvent]]:
        """Rows by position, none of which a transaction in flight can still precede."""

    def insert_events(
        self, stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> Sequence[int] | None:
        """Write sealed events; ``batch`` carries the head that goes with them.

        Raises IntegrityError where the head is elsewhere, TypeError for events that
        the sealing mapper did not make.
        """
        batch = kwargs.get("batch")
        if not isinstance(batch, Batch) or tuple(stored_events) != batch.events:
            raise TypeError("events are written with the head that goes with them")
        outcome = self.write(batch)
        if not isinstance(outcome, Wrote):
            raise IntegrityError("the stream's head has moved")
        return None

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        stream = StreamId.parse(str(originator_id))
        rows = self.rows(stream, after=gt or 0, upto=lte, limit=limit, newest=desc)
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
