"""The contracts between the store and what is outside: the log, and the keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from refold.domain.chain import GENESIS
from refold.domain.envelope import EPOCH, Draft, Envelope, Recordable
from refold.domain.erasure import ErasureSteps, Retention
from refold.domain.events import (
    Event,
    HumanReview,
    JsonObject,
    Pin,
    RedactionApplied,
    Request,
    Span,
)
from refold.domain.ids import StreamId, check_id, is_internal
from refold.domain.session import SessionState

Clock: TypeAlias = Callable[[], int]  # microseconds since 1970


class Holding(NamedTuple):
    """What stands in the way of taking a lease.

    left: microseconds until it ends; 0 if the lease is free.
    done: nobody is at work: it is the mark that the work was done.
    """

    left: int
    done: bool


class Leases(Protocol):
    """Who may do what, for a time: at most one owner a derived stream, or a duty.

    A duty of workers is a stream of that name, of a session, or of the user and session
    "" for the store as a whole.  Times are in microseconds since 1970, periods in
    microseconds.

    ``clock`` is the caller's, and is read while nobody else changes the lease.  A
    database server judges by its own clock instead.
    Clocks can be wrong, so a lease may be taken from an owner that still works.  That
    does no harm: ``owner`` is new for each taking, so it is a fencing token, and within
    ``fenced`` the database refuses writes of an owner that lost its lease.
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
        """Hold it for ``period`` from now; False if ``owner`` lost it."""

    def mark_done(
        self, stream: StreamId, owner: str, *, clock: Clock, period: int
    ) -> bool:
        """Turn the lease into a mark: the work is done, for ``period`` from now.

        False if ``owner`` lost the lease.
        """

    def holding(self, stream: StreamId, *, clock: Clock) -> Holding:
        """How long the lease or the mark stands, if it is not renewed."""

    def release_lease(self, stream: StreamId, owner: str) -> bool:
        """Give it back if it is still held; True if others asked for it."""

    def fenced(self, stream: StreamId, owner: str) -> AbstractContextManager[None]:
        """Within the block, this thread writes only while ``owner`` holds the lease.

        The database checks that in the transaction of each write.  Records of the
        access log are exempt.

        Writes raise LeaseLost once another owner took the lease.
        """


# In the names of stored views that are of no strategy: nobody brings them up.
BESIDE: Final = "-"
RATES: Final = {"last_hour": 3_600_000_000, "last_day": 86_400_000_000}


class Scope(NamedTuple):
    """All of a store, what is a user's in it, or one session."""

    user_id: str | None = None
    session_id: str | None = None

    def holds(self, stream: StreamId) -> bool:
        """Whether the stream is of it."""
        return self.user_id in (None, stream.user_id) and (
            self.session_id in (None, stream.session_id)
        )


EVERYTHING: Final = Scope()


def listed(
    sessions: Callable[..., list[SessionInfo]], of: Scope = EVERYTHING
) -> Iterator[SessionInfo]:
    """What ``sessions`` of a log lists of that scope, read a page at a time.

    One that begins meanwhile behind the page that is read is among them.
    """
    after: tuple[str, str] | None = None
    name = of.session_id
    while page := sessions(of.user_id, session_id=name, after=after, limit=PAGE):
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].user_id, page[-1].session_id


def scope(user_id: str | None = None, session_id: str | None = None) -> Scope:
    """The scope of those names.  Raises InvalidEvent for what can name nobody."""
    for kind, value in (("user_id", user_id), ("session_id", session_id)):
        if value is not None:
            check_id(kind, value)
    return Scope(user_id, session_id)


class Place(NamedTuple):
    """Where a stored view is: places have an order, of users, sessions and names."""

    user_id: str
    session_id: str
    name: str


class Lagging(NamedTuple):
    """A stored view that is so many events behind the heads of what it folds."""

    place: Place
    events: int


# As a row says it; one that is frozen says what it was before.
Status: TypeAlias = Literal["open", "closed", "frozen", "frozen-closed", "erased"]
NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})
PAGE: Final = 1000  # of a stream that is read to its end
EXPIRED: Final = "expired"  # the code of what is gone by a policy, and no problem
# What reading a column raises that holds a value of another type, or a vast number.
JUNK: Final = (TypeError, ValueError, AttributeError, ArithmeticError, MemoryError)
WRONG_TYPE: Final = "a column does not hold what was written"


class Head(NamedTuple):
    """The end of a stream: what the next append builds on.

    ``seq`` 0 with the hash of the beginning is a stream that does not exist yet.
    ``tokens`` is the sum of the estimates; times are in microseconds since 1970.
    ``frozen``: nothing is added to it at present; ``status`` is what it is else.
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
    """The key of a draft, and its events: the index of the first, and how many."""

    key: str
    first: int
    events: int


class Append(NamedTuple):
    """Events to add to the end of a stream, all of them or none.

    ``base`` is the head they were decided on, ``state`` what follows from them.
    ``idempotency_key`` makes a retry find the first attempt, ``keys`` those of drafts.
    """

    base: Head
    state: SessionState
    events: Sequence[Recordable]
    now: int
    idempotency_key: str | None = None
    keys: Sequence[Keyed] = ()


class Appended(NamedTuple):
    """The append took effect and is durable; this is the stream's new head."""

    head: Head


class Conflict(NamedTuple):
    """The stream was not where the append expected it; nothing was written."""

    head: Head


class Duplicate(NamedTuple):
    """The idempotency key was used before, for these seqs; nothing was written."""

    first_seq: int
    last_seq: int


Outcome: TypeAlias = Appended | Conflict | Duplicate


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session in a list: its main stream's head, and its times.

    created_at: when its first event happened, which an import may say.
    updated_at: when something was written to it last.
    """

    user_id: str
    session_id: str
    head_seq: int
    status: Status
    tokens: int
    created_at: datetime = EPOCH
    updated_at: datetime = EPOCH

    def to_json(self) -> JsonObject:
        """As ``refold sessions --json`` prints it."""
        times = {name: getattr(self, name) for name in ("created_at", "updated_at")}
        return {
            **{n: getattr(self, n) for n in ("user_id", "session_id", "head_seq")},
            **{n: at.isoformat().replace("+00:00", "Z") for n, at in times.items()},
            "tokens": self.tokens,
        }

    @property
    def is_live(self) -> bool:
        """Whether it may be added to, were it only by summaries."""
        return self.status in ("open", "closed")

    @property
    def is_internal(self) -> bool:
        """Whether it is Refold's own, such as what a user allows: see ``ids``."""
        return is_internal(self.session_id)

    @property
    def is_apart(self) -> bool:
        """Whether it was erased, or is no conversation."""
        return self.status == "erased" or self.is_internal


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that does not verify: which session, where, and what."""

    user_id: str
    session_id: str
    stream: str
    seq: int | None
    code: str
    detail: str

    def to_json(self) -> JsonObject:
        """As ``refold verify --json`` prints it."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class StoredView:
    """A projection's state, and how far it has folded the main and derived stream.

    ``shows`` are the seqs of the main stream whose events are shown by it, and
    ``shows_derived`` those of the derived one: a hint to read them with it, which is
    no more part of it then.
    """

    through_seq: int
    derived_seq: int
    body: JsonObject = field(default_factory=dict)
    shows: tuple[Span, ...] = ()
    shows_derived: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """How a session stands at one moment, as far as a context of it depends on that.

    ``shown`` and ``summaries`` are the events that the stored view names, as far as
    they were read with it; ``new`` and ``derived`` those behind it, of the main and of
    the derived stream.  Of those there may be more if there are ``PAGE`` of them.
    """

    head: Head
    view: StoredView | None = None
    shown: Sequence[Envelope] = ()
    summaries: Sequence[Envelope] = ()
    new: Sequence[Envelope] = ()
    derived: Sequence[Envelope] = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """What did not become an event: its place in the file and why, never content.

    damaged: these bytes of the file could not be read as they should stand there.
    note:    the program's own record, which is no part of the conversation.
    """

    where: str
    why: str
    damaged: bool = False
    note: bool = False


@dataclass(frozen=True, slots=True)
class Transcript:
    """One session of a file, as drafts that an empty session accepts in this order.

    ``session_id`` is empty where the file names none.  ``parent_session_id`` is the
    session that a sub-agent's run belongs to.  Of a session that Refold exported,
    ``forked_from`` says where it was forked, and ``derived`` are its summaries.
    """

    session_id: str
    format: str
    drafts: tuple[Draft, ...]
    skipped: tuple[Skipped, ...]
    parent_session_id: str | None = None
    forked_from: tuple[str, int] | None = None
    derived: tuple[tuple[str, tuple[Draft, ...]], ...] = ()

    @property
    def has_records(self) -> bool:
        """Whether there is something in it that holds for exactly these events."""
        return bool(self.derived) or any(
            isinstance(draft.event, Request) for draft in self.drafts
        )

    def without_records(self, seqs: Sequence[int] = ()) -> Transcript:
        """Without summaries and requests, for a session that becomes another one.

        ``seqs`` are those that its drafts had; left out, they are counted.
        """
        first = 2 if self.forked_from else 1
        had = seqs or range(first, first + len(self.drafts))
        pairs = [*zip(had, self.drafts, strict=True)]
        there = {seq for seq, one in pairs if not isinstance(one.event, Request)}
        kept = [
            (seq, one)
            for seq, one in pairs
            if seq in there
            and not (isinstance(one.event, Pin) and there.isdisjoint(one.event.seqs))
        ]
        now = {seq: place for place, (seq, _) in enumerate(kept, start=first)}
        drafts = [(draft, _renumbered(draft.event, now)) for _, draft in kept]
        why = "requests and summaries: of a session that is another one now"
        skipped = [Skipped(self.format, why)] if self.has_records else []
        return replace(
            self,
            drafts=tuple(replace(one, event=event) for one, event in drafts),
            derived=(),
            skipped=(*self.skipped, *skipped),
        )


def _renumbered(event: Event, now: Mapping[int, int]) -> Event:
    """The event with the seqs that it names as they are now."""
    match event:
        case Pin(seqs=seqs):
            left = tuple(now[seq] for seq in seqs if seq in now)
            return event.model_copy(update={"seqs": left})
        case HumanReview(refers_to=int(seq)):
            return event.model_copy(update={"refers_to": now.get(seq)})
    return event


# The transcripts in a file, each with the name of the session that it becomes.
class ReadTranscripts(Protocol):
    """Reads the transcripts in a file, each with the name of its session."""

    def __call__(
        self, path: Path, form: str, session_id: str | None, *, strict: bool
    ) -> Sequence[tuple[str, Transcript]]: ...


class Rewriting(Protocol):
    """What a session is to hold from now on: the log asks, redaction answers."""

    def again(self, envelope: Envelope) -> Recordable | None:
        """What stands in the event's place, or None to leave it as it is."""

    def state(self, state: SessionState) -> SessionState:
        """The state of a stream, without what is not to be kept of it."""

    def record(self, event: RedactionApplied) -> Recordable:
        """The event that binds what was replaced, with what the rules say of it."""


class Rewritten(NamedTuple):
    """What a rewriting did, and the version of the session's key since."""

    events: int
    blobs: int
    key_version: int


class EventLog(Protocol):
    """Where events are kept: append-only, in order within a stream, encrypted.

    Every call is for one user; a stream of another user does not exist for it.
    All of them raise Erased where a stream was erased, KeyUnavailable where its key
    is missing or another, StoreUnavailable where the database does not answer.
    """

    def head(self, stream: StreamId) -> Head:
        """The stream's end; seq 0 if there is no such stream."""

    def append(self, request: Append) -> Outcome:
        """Write all of ``request.events`` after ``request.base``, or nothing.

        Returns when the events are durable.  A derived stream begins only where
        its session exists.  Where one of ``request.keys`` was used, nothing is written,
        and the head is told as it is.
        """

    def append_soon(
        self, request: Append, done: Callable[[Outcome | Exception], None]
    ) -> bool:
        """``append`` for who cannot wait; False if too much is waiting already.

        ``request.base`` must not be 0.  ``done`` is called once, maybe in another
        thread, with the outcome or the error that ``append`` would raise; it must
        return at once and raise nothing.
        """

    def append_exclusive(
        self, stream: StreamId, build: Callable[[Head], Append]
    ) -> Outcome:
        """Append what ``build`` makes of the head, while nobody else can move it.

        What ``build`` raises leaves the stream as it was.
        """

    def receipt(self, stream: StreamId, idempotency_key: str) -> Duplicate | None:
        """The seqs that were written under this key, if it was used."""

    def known(self, stream: StreamId, keys: Sequence[str]) -> dict[str, Duplicate]:
        """The seqs that were written of drafts with these keys, of those that were."""

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
        """The events with ``after < seq <= upto``, in order, at most ``limit``.

        ``types`` keeps only those; nothing else is decrypted then.  ``newest`` takes
        the last ``limit`` of them instead of the first.  ``spans``, in order and apart
        from each other, are asked for alone: all their events, read at once.

        Raises CorruptEvent where a row is not what was written.
        """

    def audit(self, stream: StreamId) -> Iterator[Envelope | Problem]:
        """Every event of the stream with its chain proved, or what is wrong."""

    @property
    def shared(self) -> bool:
        """Whether other processes that open it see the same log."""

    def audit_chain(
        self, stream: StreamId, *, since_seal: bool = False
    ) -> Iterator[int | Problem]:
        """The number of events, page by page, their chain proved; or what is wrong.

        No event is decrypted but those that say which were replaced.  ``since_seal``
        proves what came after the newest seal, and that the event there is the sealed.
        """

    def sessions(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        after: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> list[SessionInfo]:
        """The sessions of a user, or of all, by user and name, at most ``limit``.

        ``labels`` are those that it must have, all of them: of no user there are none.
        ``after`` are the names that it comes behind.
        """

    def label(self, stream: StreamId, labels: Mapping[str, str | None]) -> None:
        """Have the session found by these labels, and not by those that are None.

        Only their keyed hashes are kept.  A session that is not there has none.
        """

    def label_like(self, stream: StreamId, other: StreamId) -> None:
        """Have the session found by the labels that another of the user is found by."""

    def labelled(self, stream: StreamId, labels: Mapping[str, str]) -> bool:
        """Whether it is found by these labels alone; a redacted text may be any."""

    def streams(self, user_id: str, session_id: str) -> list[str]:
        """The names of the session's streams, the main one first."""

    def orphans(self, scope: Scope = EVERYTHING) -> list[Problem]:
        """Streams that have events and no head: their session is not listed."""

    def blob(self, stream: StreamId, sha256: str) -> bytes | None:
        """The whole text of that digest, if an event of this session was cut."""

    def load_view(self, stream: StreamId, name: str) -> StoredView | None:
        """The stored state of a projection over this session."""

    def standing(self, stream: StreamId, name: str, *, shown: bool = False) -> Standing:
        """The session's head, the stored view of that name, and what is behind it.

        All of one moment, and in one round trip.  The derived stream is that of the
        view's name.  ``shown`` asks for the events too that the view names.

        Raises CorruptEvent where a row behind the view is not what was written.
        """

    def save_view(
        self, stream: StreamId, name: str, view: StoredView, *, replaces: int
    ) -> bool:
        """Store it if the stored one stands at ``replaces`` (0: none is stored).

        False if another projector was first; nothing is changed then.
        """

    def view_names(self, user_id: str, session_id: str) -> list[str]:
        """The names of the projections that are kept for this session."""

    def drop_view(self, stream: StreamId, name: str) -> None:
        """Forget the session's stored view of that name; it is folded again."""

    def drop_views(self, user_id: str, session_id: str) -> None:
        """Forget the stored views of this session; they are folded again."""

    def rewrite(self, stream: StreamId, rewriting: Rewriting, *, now: int) -> Rewritten:
        """Replace what ``rewriting`` changes in the session of ``stream``.

        All of the session is sealed under a new key, its views are dropped, and
        ``redaction_applied`` events at the end of the main stream bind the present
        rows to the chain, whose hashes stay.  Once that is durable the old key is
        destroyed.  All of it or nothing is seen; a call that was cut off is
        completed by the next one, or by ``retire_keys``.
        """

    def retire_keys(self, stream: StreamId) -> int:
        """Destroy the keys that a rewriting which was cut off left; how many."""

    def retired_keys(self, stream: StreamId) -> int:
        """How many keys of before a rewriting are not destroyed yet."""

    def pseudonym_key(self, user_id: str, *, now: int) -> bytes:
        """What this user's pseudonyms are made with; it goes when the user's key goes.

        The key of a user who has nothing in the log yet is made at ``now``.
        """

    def session_proof_key(self, stream: StreamId) -> bytes:
        """What proves things about the session; it goes when its key goes."""

    @property
    def leases(self) -> Leases:
        """The leases of all derived streams; they hold nothing of what is in them."""

    @property
    def erasures(self) -> ErasureSteps:
        """What erases users and sessions."""

    @property
    def retention(self) -> Retention:
        """What freezes users, and knows which sessions are used."""

    @property
    def repairs(self) -> Repairs:
        """What repairs.  Raises InvalidConfiguration for a log in memory."""

    def lagging(
        self, scope: Scope, *, by: int, limit: int, after: Place | None = None
    ) -> list[Lagging]:
        """Stored views that are behind by ``by`` events or more, at most ``limit``.

        What is kept beside those of strategies, under a name with ``-``, is none.
        They are in the order of their places, from behind ``after`` on.
        """

    def stats(self, scope: Scope, *, now: int) -> dict[str, Any]:
        """Sizes, rates up to ``now``, and how far stored views are behind.

        All that is in the scope is counted.
        """

    def close(self) -> None:
        """Let go of the database."""


Kind: TypeAlias = Literal["events", "head", "view", "blob", "key"]


class Damage(NamedTuple):
    """Something of a session that is not as it should be.

    kind:     what it is of; ``events`` are never changed.
    mendable: whether it can be made anew without losing anything.
    mended:   whether that was done.
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
    """The blobs of a session that none of its events names, as it stood then."""

    ends: dict[str, int]
    addresses: tuple[bytes, ...]


class Repairs(Protocol):
    """Writes what follows from events in place of what does not."""

    def put_head(self, stream: StreamId, head: Head) -> bool:
        """Let the stream's head row say this; False if its events end elsewhere now.

        Raises Erased, KeyUnavailable.
        """

    def unnamed_blobs(self, stream: StreamId) -> Scanned:
        """The blobs of the session that none of its events names.

        Raises CorruptEvent, KeyUnavailable: then nobody can tell.
        """

    def drop_blobs(self, stream: StreamId, scanned: Scanned) -> bool:
        """Delete these; False if the session has moved on, and nothing was deleted."""
