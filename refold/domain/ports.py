"""Ports: the contracts between the store and the log, its leases, and its repairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from refold.domain.chain import GENESIS
from refold.domain.envelope import (
    EPOCH,
    Draft,
    Envelope,
    Recordable,
    from_microseconds,
)
from refold.domain.events import (
    Event,
    HumanReview,
    JsonObject,
    Pin,
    ProviderEdit,
    RedactionApplied,
    Request,
    Span,
)
from refold.domain.ids import StreamId, check_id, is_internal
from refold.domain.session import SessionState

if TYPE_CHECKING:
    from refold.domain.erasure import ErasureSteps, Retention

Clock: TypeAlias = Callable[[], int]  # microseconds since 1970


class Holding(NamedTuple):
    """The reason why a lease is not free.

    left: the microseconds until it ends; 0 if the lease is free.
    done: whether it is the mark of completed work, and not another owner's lease.
    """

    left: int
    done: bool


class Leases(Protocol):
    """Leases: the exclusive right, for a time, to work on a stream or a duty.

    The lease of a duty is that of a stream with its name, in a session, or in user ""
    and session "" for the whole store.  Times are in microseconds since 1970, periods
    in microseconds.

    ``clock`` is the caller's clock, which is read while nobody else can change the
    lease.  A database server uses its own clock instead.

    Clocks can be wrong, so a lease may be taken from an owner that still works.  That
    is harmless: ``owner`` is a fencing token, new for each lease, and within ``fenced``
    the database refuses writes of an owner that lost its lease.
    """

    def take_lease(
        self, stream: StreamId, owner: str, *, clock: Clock, period: int
    ) -> bool:
        """Let ``owner`` hold the stream's lease for ``period``, if it is free.

        A lease is free if nobody holds it, if it has ended, or if it ends later than
        twice its period from now: no correct clock can have written that.  Otherwise
        the request is recorded, and ``release_lease`` reports it to the holder.  A
        session that does not exist, or was erased, has no leases.
        """

    def renew_lease(
        self, stream: StreamId, owner: str, *, clock: Clock, period: int
    ) -> bool:
        """Extend the lease to ``period`` from now; False if ``owner`` lost it."""

    def mark_done(
        self, stream: StreamId, owner: str, *, clock: Clock, period: int
    ) -> bool:
        """Replace the lease by a mark of completed work for ``period`` from now.

        Returns False if ``owner`` lost the lease.
        """

    def holding(self, stream: StreamId, *, clock: Clock) -> Holding:
        """Return how long the lease or the mark lasts without a renewal."""

    def release_lease(self, stream: StreamId, owner: str) -> bool:
        """Release the lease if ``owner`` has it; True if others requested it."""

    def fenced(self, stream: StreamId, owner: str) -> AbstractContextManager[None]:
        """Within the block, this thread writes only while ``owner`` holds the lease.

        The database checks that in the transaction of each write.  Records of the
        access log are exempt.

        Writes raise LeaseLost once another owner took the lease.
        """


# Separates the parts in names of stored views that are no context of a strategy.  No
# name of a strategy contains it, so no projector updates these views.
VIEW_NAME_SEPARATOR: Final = "-"
# The names of served shares, which are stored as views, begin with this.
SHARE_PREFIX: Final = f"share{VIEW_NAME_SEPARATOR}"
# The periods of rates in statistics, in microseconds.
RATES: Final = {"last_hour": 3_600_000_000, "last_day": 86_400_000_000}


class Scope(NamedTuple):
    """A whole store, a user, or one session."""

    user_id: str | None = None
    session_id: str | None = None

    def holds(self, stream: StreamId) -> bool:
        """Whether the scope contains a stream."""
        if self.user_id not in (None, stream.user_id):
            return False
        return self.session_id in (None, stream.session_id)


EVERYTHING: Final = Scope()


def listed(
    sessions: Callable[..., list[SessionInfo]], of: Scope = EVERYTHING
) -> Iterator[SessionInfo]:
    """Yield the sessions of a scope, read page by page.

    Sessions that begin during the iteration are included if they come later in the
    order.

    sessions: ``EventLog.sessions`` of a log.
    """
    after: tuple[str, str] | None = None
    while True:
        page = sessions(of.user_id, session_id=of.session_id, after=after, limit=PAGE)
        yield from page
        if len(page) < PAGE:
            return
        after = (page[-1].user_id, page[-1].session_id)


def scope(user_id: str | None = None, session_id: str | None = None) -> Scope:
    """Return the scope of these ids.  Raises InvalidEvent for an invalid id."""
    for kind, value in (("user_id", user_id), ("session_id", session_id)):
        if value is not None:
            check_id(kind, value)
    return Scope(user_id, session_id)


class Place(NamedTuple):
    """The place of a stored view; places are ordered by user, session, and name."""

    user_id: str
    session_id: str
    name: str


class Lagging(NamedTuple):
    """A stored view, and the number of events that it has not folded yet."""

    place: Place
    events: int


# The status of a session in its row; "frozen-closed" was closed before it was frozen.
Status: TypeAlias = Literal["open", "closed", "frozen", "frozen-closed", "erased"]
NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})
PAGE: Final = 1000  # events or sessions that are read at once
# The code for data that expired under a policy, which is no problem.
EXPIRED: Final = "expired"
# The errors of reading a value of another type, or a huge number, from a column.
MALFORMED_DATA: Final = (
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    MemoryError,
)
WRONG_TYPE: Final = "a column does not hold what was written"


class Head(NamedTuple):
    """The end of a stream, after which the next append comes.

    The head of a stream that does not exist has the seq 0 and the hash ``GENESIS``.

    status:  without the freeze.
    tokens:  the sum of the estimates.
    frozen:  whether appends are refused until the user is unfrozen.
    created_at, updated_at: microseconds since 1970.
    """

    state: SessionState
    hash: bytes = GENESIS
    status: Status = "open"
    tokens: int = 0
    created_at: int = 0
    updated_at: int = 0
    frozen: bool = False

    @property
    def seq(self) -> int:
        """The seq of the newest event."""
        return self.state.head_seq


class Keyed(NamedTuple):
    """The key of a draft, the index of its first event, and their number."""

    key: str
    first: int
    events: int


class Append(NamedTuple):
    """Events for the end of a stream, all of them or none.

    base:            the head that they were decided on.
    state:           the state of the stream after them.
    now:             the writer's time in microseconds since 1970.
    idempotency_key: lets a retry find the first attempt.
    keys:            of drafts, each of which is appended only once.
    """

    base: Head
    state: SessionState
    events: Sequence[Recordable]
    now: int
    idempotency_key: str | None = None
    keys: Sequence[Keyed] = ()


class Appended(NamedTuple):
    """The append took effect and is durable; ``head`` is the stream's new head."""

    head: Head


class Conflict(NamedTuple):
    """The stream had another head than ``base``; nothing was written."""

    head: Head


class Duplicate(NamedTuple):
    """The idempotency key was used before for these seqs; nothing was written."""

    first_seq: int
    last_seq: int


Outcome: TypeAlias = Appended | Conflict | Duplicate


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session in a list, with the head of its main stream.

    created_at: the time of its first event, which an import may set.
    updated_at: the time of the last write.
    """

    user_id: str
    session_id: str
    head_seq: int
    status: Status
    tokens: int
    created_at: datetime = EPOCH
    updated_at: datetime = EPOCH

    def info(self) -> SessionInfo:
        """Return the session itself, as ``ListedHead`` does."""
        return self

    def to_json(self) -> JsonObject:
        """Return the JSON that ``refold sessions --json`` prints."""
        return {
            "user_id": self.user_id,
            "session_id": self.session_id,
            "head_seq": self.head_seq,
            "created_at": self.created_at.isoformat().replace("+00:00", "Z"),
            "updated_at": self.updated_at.isoformat().replace("+00:00", "Z"),
            "tokens": self.tokens,
        }

    @property
    def is_live(self) -> bool:
        """Whether it accepts events, or at least summaries."""
        return self.status in ("open", "closed")

    @property
    def is_internal(self) -> bool:
        """Whether it is an internal session."""
        return is_internal(self.session_id)

    @property
    def is_erased_or_internal(self) -> bool:
        """Whether the session was erased or is internal, so that no agent uses it."""
        return self.status == "erased" or self.is_internal


# The fields of a ``ListedHead`` in their order.
HeadColumns: TypeAlias = tuple[str, str, int, Status, int, int, int]


class ListedHead(NamedTuple):
    """The head of a session of a long list.

    The times are microseconds since 1970.
    """

    user_id: str
    session_id: str
    head_seq: int
    status: Status
    tokens: int
    created_at: int
    updated_at: int

    def info(self) -> SessionInfo:
        """Return the session for a caller."""
        return SessionInfo(
            user_id=self.user_id,
            session_id=self.session_id,
            head_seq=self.head_seq,
            status=self.status,
            tokens=self.tokens,
            created_at=from_microseconds(self.created_at),
            updated_at=from_microseconds(self.updated_at),
        )


ListOrder: TypeAlias = Literal["newest_event", "name"]


class ListedSession(NamedTuple):
    """A session in a page of a list.

    newest_event: the time of its newest event, in microseconds since 1970.  Events that
                  record a state, such as a label, or a redaction do not count, if they
                  are fewer than 16; 0 if the list is ordered by name.
    """

    info: SessionInfo
    newest_event: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that failed a verification, with its place."""

    user_id: str
    session_id: str
    stream: str
    seq: int | None
    code: str
    detail: str

    def to_json(self) -> JsonObject:
        """Return the JSON that ``refold verify --json`` prints."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class StoredView:
    """A stored state of a projection.

    through_seq:   the last seq of the main stream that it has folded.
    derived_seq:   the last seq of the derived stream that it has folded.
    shows:         the events of the main stream that it shows.  They are a hint to read
                   these events together with the view, and are not stored in its body.
    shows_derived: the same for the derived stream.
    """

    through_seq: int
    derived_seq: int
    body: JsonObject = field(default_factory=dict)
    shows: tuple[Span, ...] = ()
    shows_derived: tuple[Span, ...] = ()


class NamedView(NamedTuple):
    """A stored view of one of many sessions, without its hints of shown events."""

    session_id: str
    through_seq: int
    derived_seq: int
    body: JsonObject


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """Everything at one moment that a context of a session depends on.

    view:      the stored view.
    shown:     the events of the main stream that the view shows, if they were read.
    summaries: the events of the derived stream that the view shows, if they were read.
    new:       the events of the main stream after the view, at most ``PAGE``.
    derived:   the events of the derived stream after the view, at most ``PAGE``.
    remembered: values that readers derived from ``shown``, by name.  The next snapshot
               with the same view and the same events has them, too.  None if the store
               does not keep the events in memory.
    """

    head: Head
    view: StoredView | None = None
    shown: Sequence[Envelope] = ()
    summaries: Sequence[Envelope] = ()
    new: Sequence[Envelope] = ()
    derived: Sequence[Envelope] = ()
    remembered: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A part of a file that did not become an event; it has no content of the part.

    where:   its place in the file.
    why:     the reason.
    damaged: whether the bytes of the file are damaged.
    is_read: whether all entries at the damaged place could be read nevertheless.
    note:    whether it is a record of the program and no part of the conversation.
    """

    where: str
    why: str
    damaged: bool = False
    note: bool = False
    is_read: bool = False


class Exported(NamedTuple):
    """The event of a session after which Refold exported the context to a client.

    event_id: of the event, so that no other session is mistaken for this one.
    keys:     of the entries that Refold wrote into the client's file.
    """

    session_id: str
    seq: int
    event_id: str
    keys: frozenset[str] = frozenset()

    def wrote(self, draft: Draft) -> bool:
        """Whether the draft is of an entry that Refold wrote."""
        if draft.key is None:
            return False
        # The further drafts of an entry have a suffix.
        key, _, _ = draft.key.rpartition("\0")
        return draft.key in self.keys or key in self.keys


@dataclass(frozen=True, slots=True)
class Transcript:
    """A session in a file, as drafts that an empty session accepts in this order.

    session_id:        empty if the file contains none.
    parent_session_id: the session to which the run of a sub-agent belongs.
    forked_from:       for a session that Refold exported, the session and the seq from
                       which it was forked.
    derived:           for such a session, its derived streams with their events.
    title:             the title that the client gave the session, if any.
    folder:            the folder in which the client worked, if the file names it.
    exported:          for a session of a client that began with an export of Refold,
                       the exported event.
    """

    session_id: str
    format: str
    drafts: tuple[Draft, ...]
    skipped: tuple[Skipped, ...]
    parent_session_id: str | None = None
    forked_from: tuple[str, int] | None = None
    derived: tuple[tuple[str, tuple[Draft, ...]], ...] = ()
    title: str = ""
    folder: str = ""
    exported: Exported | None = None

    @property
    def has_records(self) -> bool:
        """Whether it has requests or summaries, which fit only these events."""
        return bool(self.derived) or any(
            isinstance(draft.event, Request) for draft in self.drafts
        )

    def without_records(self, seqs: Sequence[int] = ()) -> Transcript:
        """Return the transcript without requests and summaries.

        A session that differs from the original needs this.  References to other events
        get the new seqs, and pins of removed events are removed.

        seqs: the seqs of the drafts in the original; by default they have no gaps.
        """
        first_seq = 2 if self.forked_from else 1
        old_seqs = seqs or range(first_seq, first_seq + len(self.drafts))
        drafts_of = dict(zip(old_seqs, self.drafts, strict=True))
        remaining = {
            seq
            for seq, draft in drafts_of.items()
            if not isinstance(draft.event, Request)
        }
        new_drafts: dict[int, Draft] = {}
        for seq, draft in drafts_of.items():
            event = draft.event
            if isinstance(event, Pin) and remaining.isdisjoint(event.seqs):
                continue
            if seq in remaining:
                new_drafts[seq] = draft
        new_seq_of = {seq: new for new, seq in enumerate(new_drafts, start=first_seq)}
        skipped = list(self.skipped)
        if self.has_records:
            reason = "requests and summaries: of a session that is another one now"
            skipped.append(Skipped(self.format, reason))
        return replace(
            self,
            drafts=tuple(
                replace(draft, event=_renumbered(draft.event, new_seq_of))
                for draft in new_drafts.values()
            ),
            derived=(),
            skipped=tuple(skipped),
        )


def _renumbered(event: Event, new_seq_of: Mapping[int, int]) -> Event:
    """The event with new seqs in its references to other events."""
    match event:
        case Pin(seqs=seqs):
            new_seqs = tuple(new_seq_of[seq] for seq in seqs if seq in new_seq_of)
            return event.model_copy(update={"seqs": new_seqs})
        case ProviderEdit() if event.spans:
            names = ("left_out", "restored", "cleared", "in_place")
            spans = {
                name: _renumbered_spans(getattr(event, name), new_seq_of)
                for name in names
            }
            return event.model_copy(update=spans)
        case HumanReview(refers_to=int(seq)):
            return event.model_copy(update={"refers_to": new_seq_of.get(seq)})
    return event


def _renumbered_spans(
    spans: Sequence[Span], new_seq_of: Mapping[int, int]
) -> tuple[Span, ...]:
    """The spans with new seqs; seqs that are gone are left out."""
    renumbered: list[Span] = []
    for first, last in spans:
        for seq in range(first, last + 1):
            if seq not in new_seq_of:
                continue
            new_seq = new_seq_of[seq]
            if renumbered and renumbered[-1][1] == new_seq - 1:
                renumbered[-1] = (renumbered[-1][0], new_seq)
            else:
                renumbered.append((new_seq, new_seq))
    return tuple(renumbered)


class ReadTranscripts(Protocol):
    """Reads the transcripts in a file, each with the name of its session."""

    def __call__(
        self, path: Path, format_name: str, session_id: str | None, *, strict: bool
    ) -> Iterable[tuple[str, Transcript]]: ...


class Rewriting(Protocol):
    """Decides how the log rewrites a session."""

    def replacement(self, envelope: Envelope) -> Recordable | None:
        """Return the replacement of an event, or None if it stays unchanged."""

    def state(self, state: SessionState) -> SessionState:
        """Return the state of a stream without values that are no longer kept."""

    def record(self, event: RedactionApplied) -> Recordable:
        """Return the event that binds replaced rows, with facts about the redaction."""


class Rewritten(NamedTuple):
    """The numbers of replaced events and blobs, and the version of the new key."""

    events: int
    blobs: int
    key_version: int


class EventLog(Protocol):
    """The log of events: append-only, ordered within a stream, encrypted.

    Every call concerns one user, and streams of other users do not exist for it.

    All methods raise Erased for an erased stream, KeyUnavailable if its key is missing
    or different, and StoreUnavailable if the database does not answer.
    """

    def head(self, stream: StreamId) -> Head:
        """Return the head of a stream; seq 0 if there is no such stream."""

    def append(self, request: Append) -> Outcome:
        """Write all of ``request.events`` after ``request.base``, or nothing.

        The events are durable when it returns.  A derived stream can begin only in an
        existing session.  If one of ``request.keys`` was used before, nothing is
        written, and the outcome is a Conflict with the current head.
        """

    def append_soon(
        self, request: Append, done: Callable[[Outcome | Exception], None]
    ) -> bool:
        """Append without waiting; False if too many appends are waiting already.

        request: its base must not have the seq 0.
        done:    called once, perhaps in another thread, with the outcome or the error
                 that ``append`` would raise.  It must return at once and raise nothing.
        """

    def append_exclusive(
        self, stream: StreamId, build: Callable[[Head], Append]
    ) -> Outcome:
        """Append the events that ``build`` returns for the current head.

        Nobody else can append between the two.  An error of ``build`` is raised, and
        the stream stays unchanged.
        """

    def receipt(self, stream: StreamId, idempotency_key: str) -> Duplicate | None:
        """Return the seqs that were written with this key, or None."""

    def known(self, stream: StreamId, keys: Sequence[str]) -> dict[str, Duplicate]:
        """Return the seqs of those drafts that were written, by their keys."""

    def read(
        self,
        stream: StreamId,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int | None = None,
        types: Sequence[str] = (),
        newest: bool = False,
        spans: Sequence[Span] = (),
    ) -> list[Envelope]:
        """Return the events with ``after < seq <= upto``, in order, at most ``limit``.

        types:  only events of these types; no others are decrypted.
        newest: the last ``limit`` events instead of the first.
        spans:  all events of these spans instead, read at once.  The spans are in
                order and do not touch each other.

        Raises CorruptEvent if a row is not the one that was written.
        """

    def audit(self, stream: StreamId) -> Iterator[Envelope | Problem]:
        """Yield every event of a stream with a verified chain, and problems."""

    @property
    def shared(self) -> bool:
        """Whether other processes can open the same log."""

    def audit_chain(
        self, stream: StreamId, *, since_seal: bool = False
    ) -> Iterator[int | Problem]:
        """Verify the chain of a stream; yield the events of each page, and problems.

        Only events that record replaced rows are decrypted.

        since_seal: verify only events after the newest seal, and the sealed event.
        """

    def sessions(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        after: tuple[str, str] | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[SessionInfo]:
        """Return the sessions of a user or of all, ordered by user and session id.

        labels: only sessions with all of these labels; requires a user.
        after:  only sessions after this user and session id.
        limit:  the most sessions.
        newest_first: orders them by their last change instead, without ``after``.
        """

    def listed_sessions(
        self,
        user_id: str,
        *,
        order: ListOrder,
        descending: bool,
        labels: Mapping[str, str] = NO_LABELS,
        after: tuple[int, str] | None = None,
        limit: int,
    ) -> list[ListedSession]:
        """Return a page of a user's sessions in this order, in one statement.

        Erased and internal sessions are left out.

        labels: only sessions with all of these labels.
        after:  only sessions after this time and name; an order of names ignores the
                time.
        """

    def listed_heads(
        self, user_id: str | None, *, labels: Mapping[str, str] = NO_LABELS
    ) -> list[HeadColumns]:
        """Return the heads of all sessions of a user, or of all users, in no order.

        Erased and internal sessions are left out.  Each head is an exact tuple, since
        the collector of garbage does not visit these again and again.

        labels: only sessions with all of these labels; requires a user.
        """

    def count_listed(
        self, user_id: str, *, labels: Mapping[str, str] = NO_LABELS
    ) -> int:
        """Return the number of a user's sessions that are not erased or internal."""

    def listed_names(self, user_id: str, names: Sequence[str]) -> set[str]:
        """Return those of these names that such sessions of the user have."""

    def label(self, stream: StreamId, labels: Mapping[str, str | None]) -> None:
        """Index a session by these labels, and remove those that are None.

        Only keyed hashes of labels are stored.  A session that does not exist gets no
        labels.
        """

    def label_like(self, stream: StreamId, other: StreamId) -> None:
        """Index a session by the labels of another session of the user."""

    def has_exactly_labels(self, stream: StreamId, labels: Mapping[str, str]) -> bool:
        """Whether a session is indexed by exactly these labels.

        A redacted text matches every value.
        """

    def streams(self, user_id: str, session_id: str) -> list[str]:
        """Return the names of a session's streams, the main one first."""

    def orphans(self, scope: Scope = EVERYTHING) -> list[Problem]:
        """Return problems for streams with events but no head; no list shows them."""

    def blob(self, stream: StreamId, sha256: str) -> bytes | None:
        """Return the blob with this digest, if an event of the session has it."""

    def blobs(self, stream: StreamId, digests: Iterable[str]) -> Mapping[str, bytes]:
        """Return those of these blobs that the session has, in one round trip.

        Blobs that have expired are left out.
        """

    def load_view(self, stream: StreamId, name: str) -> StoredView | None:
        """Return the stored state of a projection of this session."""

    def views_named(
        self, user_id: str, name: str, session_ids: Sequence[str] | None = None
    ) -> Iterator[NamedView]:
        """Yield the views of this name of a user's sessions.

        session_ids: only of these sessions; None means all.

        Views that were changed are left out.
        """

    def derived_seqs(
        self, user_id: str, session_ids: Sequence[str] | None = None
    ) -> dict[str, int]:
        """Return the sum of the seqs of the derived streams, by session of a user.

        session_ids: only of these sessions; None means all.

        Sessions without derived streams are left out.
        """

    def snapshot(
        self, stream: StreamId, name: str, *, shown: bool = False
    ) -> SessionSnapshot:
        """Return the head of a session, a stored view, and the events after it.

        All of it is read at one moment and in one round trip.

        name:  of the view, and of the derived stream.
        shown: whether to read the events that the view shows, too.

        Raises CorruptEvent if a row after the view is not the one that was written.
        """

    def save_view(
        self, stream: StreamId, name: str, view: StoredView, *, replaces: int
    ) -> bool:
        """Store a view in place of the one with the seq ``replaces``; 0 means none.

        Returns False, and changes nothing, if another projector was first.
        """

    def view_names(self, user_id: str, session_id: str) -> list[str]:
        """Return the names of the stored views of this session."""

    def share_places(self, user_id: str) -> list[Place]:
        """Return the places of all served shares of a user, in order.

        A served share is a stored view whose name begins with ``SHARE_PREFIX``.
        """

    def drop_view(self, stream: StreamId, name: str) -> None:
        """Delete a stored view of a session; it will be folded again."""

    def drop_views(self, user_id: str, session_id: str) -> None:
        """Delete the stored views of a session; they will be folded again.

        Served shares stay, because no fold makes them again.
        """

    def rewrite(self, stream: StreamId, rewriting: Rewriting, *, now: int) -> Rewritten:
        """Rewrite a session as ``rewriting`` decides.

        The whole session is encrypted under a new key, and its views are deleted.  The
        hashes of the chain stay the same: ``redaction_applied`` events at the end of
        the main stream bind the current rows to it.  Readers see all of the change or
        nothing.  When the change is durable, the old key is destroyed.  If a call is
        interrupted, the next call or ``destroy_old_keys`` completes it.
        """

    def destroy_old_keys(self, stream: StreamId) -> int:
        """Destroy the keys that an interrupted rewriting left; return their number."""

    def count_old_keys(self, stream: StreamId) -> int:
        """Return the number of keys from before a rewriting that still exist."""

    def pseudonym_key(self, user_id: str, *, now: int) -> bytes:
        """Return the key of a user's pseudonyms; it disappears with the user's key.

        A user without data in the log gets a key at ``now``.
        """

    def session_proof_key(self, stream: StreamId) -> bytes:
        """Return the key of a session's proofs; it is lost with the session's key."""

    def encrypt_link(self, names: bytes) -> bytes:
        """Encrypt the names in a link, so that only this store can read them.

        Each call returns other bytes.
        """

    def decrypt_link(self, ciphertext: bytes) -> bytes | None:
        """Return the names that ``encrypt_link`` encrypted.

        Returns None for changed bytes, and for a link of another store.
        """

    @property
    def leases(self) -> Leases:
        """The leases of streams and duties; they contain no data of sessions."""

    @property
    def erasures(self) -> ErasureSteps:
        """The steps that erase users and sessions."""

    @property
    def retention(self) -> Retention:
        """Freezes, and the use of sessions."""

    @property
    def repairs(self) -> Repairs:
        """The repairs.  Raises InvalidConfiguration for a log in memory."""

    def lagging(
        self, scope: Scope, *, by: int, limit: int, after: Place | None = None
    ) -> list[Lagging]:
        """Return stored views of strategies that are behind, in order of their places.

        by:    the fewest events that a view has not folded.
        limit: the most views.
        after: only places after this one.
        """

    def stats(self, scope: Scope, *, now: int) -> dict[str, Any]:
        """Return sizes, rates up to ``now``, and how far stored views are behind.

        Everything in the scope is counted.
        """

    def close(self) -> None:
        """Close the database."""


Kind: TypeAlias = Literal["events", "head", "view", "blob", "key"]


class Damage(NamedTuple):
    """Damaged data of a session.

    kind:     the kind of the data; a repair never changes ``events``.
    mendable: whether it can be rebuilt without a loss.
    mended:   whether it was rebuilt.
    """

    stream: StreamId
    kind: Kind
    detail: str
    mendable: bool
    mended: bool = False

    def to_json(self) -> JsonObject:
        stream = self.stream
        return {**stream._asdict(), **self._asdict(), "stream": stream.stream}


class Scanned(NamedTuple):
    """The unused blobs of a session, and the ends of its streams at that time.

    ends: the head seqs by stream.
    """

    ends: dict[str, int]
    addresses: tuple[bytes, ...]


class Repairs(Protocol):
    """Replaces damaged derived data by data that is rebuilt from events."""

    def put_head(self, stream: StreamId, head: Head) -> bool:
        """Replace the head row of a stream; False if the stream has other events now.

        Raises Erased, KeyUnavailable.
        """

    def unnamed_blobs(self, stream: StreamId) -> Scanned:
        """Return the blobs of a session that none of its events uses.

        Raises CorruptEvent or KeyUnavailable if not every event can be read.
        """

    def drop_blobs(self, stream: StreamId, scanned: Scanned) -> bool:
        """Delete blobs; False, without a deletion, if the session has newer events."""
