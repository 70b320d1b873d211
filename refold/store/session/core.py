"""The base of a session: append events and read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from refold.domain import errors, ports
from refold.domain.envelope import Envelope, Meta
from refold.domain.events import JsonObject, check_types
from refold.domain.ids import StreamId, bounded
from refold.domain.session import LABEL, PROXY, RECORDED_BY
from refold.store import appends
from refold.store.recorded import head_seq, recorded
from refold.store.settings import Settings
from refold.store.upkeep import Upkeep

if TYPE_CHECKING:
    from refold.domain.events import Request
    from refold.projections.context.budget import CrossSessionLayers, ExtraArgs
    from refold.projections.context.compaction import Summarizer
    from refold.projections.context.outline import Outline
    from refold.projections.context.strategy import Layers, Strategy
    from refold.projections.context.view import View
    from refold.store import contexts
    from refold.store.compactions import Compactor


@dataclass(frozen=True, slots=True)
class SessionCore:
    """The fields of a session, and the methods that its parts need.

    upkeep:       the work that an append starts.
    settings:     choose the strategy of calls that name none.
    first_labels: the labels that the first append records.
    """

    stream: StreamId
    writer: appends.Writer = field(repr=False)
    upkeep: Upkeep = field(default_factory=Upkeep, compare=False, repr=False)
    settings: Settings = field(default_factory=Settings, compare=False, repr=False)
    first_labels: Mapping[str, str] = field(
        default_factory=lambda: ports.NO_LABELS, compare=False, repr=False
    )

    @property
    def user_id(self) -> str:
        """The id of the session's user."""
        return self.stream.user_id

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return self.stream.session_id

    def append(
        self,
        events: appends.Appendable | Sequence[appends.Appendable],
        *,
        request_id: str | None = None,
        idempotency_key: str | None = None,
        agent: str | None = None,
        ts: datetime | None = None,
        meta: Meta | Mapping[str, object] | None = None,
        expected_seq: int | None = None,
        unscanned: appends.Unscanned = "refuse",
    ) -> appends.Receipt:
        """Record ``events``, all of them or none; durable when it returns.

        Each event is validated, redacted, and size-guarded before anything is written.

        events:          one event or several.  A ``Draft`` has its own ts, meta, agent
                         and request id.
        request_id:      the id of the request in traces; appends may share one.
        idempotency_key: makes a retry safe: the same key with the same content returns
                         the first receipt again and writes nothing.
        ts:              when the events happened, with a time zone; None means now.
        expected_seq:    the session's newest seq, as far as the caller knows; 0 means a
                         new session, and None means any seq.
        unscanned:       what to do with a text that takes more work to redact than the
                         policy allows.  ``refuse`` refuses the append; ``stub`` stores
                         ``[REDACTED:UNSCANNED n bytes]`` in its place.

        Raises InvalidEvent, EventTooLarge, RedactionFailed, StaleSession,
        IdempotencyConflict, SessionClosed, Erased, KeyUnavailable, StoreUnavailable.
        """
        fields = appends.draft_fields(ts, request_id, agent, meta)
        drafts = appends.drafts_of(events, fields)
        order = appends.Order(
            self.stream, drafts, idempotency_key, expected_seq, unscanned=unscanned
        )
        receipt = self.writer.append(order)
        start_upkeep(self, order)
        return receipt

    async def append_async(
        self,
        events: appends.Appendable | Sequence[appends.Appendable],
        *,
        request_id: str | None = None,
        idempotency_key: str | None = None,
        agent: str | None = None,
        ts: datetime | None = None,
        meta: Meta | Mapping[str, object] | None = None,
        expected_seq: int | None = None,
        unscanned: appends.Unscanned = "refuse",
    ) -> appends.Receipt:
        """Do the same as ``append``, without blocking the event loop."""
        fields = appends.draft_fields(ts, request_id, agent, meta)
        drafts = appends.drafts_of(events, fields)
        order = appends.Order(
            self.stream, drafts, idempotency_key, expected_seq, unscanned=unscanned
        )
        receipt = await self.writer.append_async(order)
        if self.upkeep.waits:
            import asyncio

            await asyncio.to_thread(start_upkeep, self, order)
        else:
            start_upkeep(self, order)
        return receipt

    @recorded("session_load", measure=head_seq)
    def head(self) -> ports.Head:
        """Return the session's head.  Raises SessionNotFound if it has not begun."""
        head = self.writer.log.head(self.stream)
        if head.seq == 0:
            raise errors.SessionNotFound(self.user_id, self.session_id)
        return head

    @recorded("session_load")
    def events(
        self, after: int = 0, limit: int | None = None, *, types: Sequence[str] = ()
    ) -> list[Envelope]:
        """Return the events of the main stream with ``seq > after``.

        limit: return at most this many events; None means all.
        types: only events of these types.

        Raises InvalidEvent for an unknown type.
        """
        self.writer.used(self.stream)
        self.head()
        types = check_types(types)
        after = bounded("after", after)
        limit = None if limit is None else bounded("limit", limit)
        log = self.writer.log
        return log.read(self.stream, after=after, limit=limit, types=types)

    @recorded("compaction", only_failures=True)
    def compact(
        self,
        strategy: str | Strategy | None = None,
        *,
        summarizer: Summarizer | None = None,
    ) -> Envelope | None:
        """Make one pending compaction; returns its summary, or None.

        The folds of older summaries that it leads to are made, too.
        """
        return compactor_for(self, strategy, summarizer).step()

    # The ports to the user's memory.  ``Session`` connects them, so that nothing here
    # imports memory.

    def _layers(
        self, wanted: Layers, last: Request | None
    ) -> CrossSessionLayers | None:
        """Read these memory layers from the user's other sessions; None without any.

        last: the request whose layers are repeated as long as they may be shown.
        """
        raise NotImplementedError

    def _learning(self, order: appends.Order) -> Callable[[], object] | None:
        """Return the work that this append causes in the user's memory, or None."""
        raise NotImplementedError


def start_upkeep(session: SessionCore, order: appends.Order) -> None:
    """Start the work that an append calls for; never raises."""
    if session.upkeep.is_on:
        session.upkeep.after_append(
            order, compact=session.compact, learning=session._learning
        )


def show(
    session: SessionCore,
    viewer: contexts.Viewer,
    strategy: Strategy,
    parts: contexts.CallerParts,
    *,
    snapshot: ports.SessionSnapshot | None = None,
    outline: Outline | None = None,
) -> View:
    """Do what ``Viewer.show`` documents; it reads layers through this session."""
    return viewer.show(
        strategy, parts, layers=session._layers, snapshot=snapshot, outline=outline
    )


# Reads that the methods and parts of a session share.  They are no accesses of their
# own: the access log records the method that calls them.


def folded_state(session: SessionCore, at: int | None = None) -> JsonObject:
    """Fold the ``state`` events up to ``at``; labels are part of the state."""
    from refold.store import history

    log = session.writer.log
    at = None if at is None else bounded("at", at)
    state: JsonObject = {}
    for envelope in log.read(session.stream, upto=at, types=("state",)):
        state = history.fold_state(state, history.with_blobs(log, envelope))
    return state


def recorded_labels(session: SessionCore) -> dict[str, str]:
    """Return the labels in the log, sorted by name."""
    labels: dict[str, str] = {}
    for name, value in sorted(folded_state(session).items()):
        if name.startswith(LABEL):
            labels[name.removeprefix(LABEL)] = str(value)
    return labels


def is_recorded_by_proxy(session: SessionCore) -> bool:
    """Whether a proxy has recorded requests of the session."""
    return recorded_labels(session).get(RECORDED_BY) == PROXY


def viewer_of(session: SessionCore) -> contexts.Viewer:
    """Return the viewer of the session at its head.  Raises SessionNotFound."""
    return _viewer_at(session, session.head())


def _viewer_at(session: SessionCore, head: ports.Head) -> contexts.Viewer:
    """Return the viewer of the session at a head that was read before."""
    from refold.store.contexts import Viewer
    from refold.store.history import History

    log = session.writer.log
    return Viewer(log, History.of(log, head.state))


def read_snapshot(
    session: SessionCore, strategy: str | Strategy | None, *, prepares: bool = False
) -> tuple[contexts.Viewer, Strategy, ports.SessionSnapshot]:
    """Read head, stored view, and new events of a strategy in one statement.

    Without a strategy, the last recorded request is read first, for its strategy.

    Raises SessionNotFound.
    """
    viewer = viewer_of(session) if strategy is None else None
    chosen = chosen_strategy(session, viewer, strategy, prepares=prepares)
    log = session.writer.log
    snapshot = log.snapshot(session.stream, chosen.fingerprint, shown=True)
    if snapshot.head.seq == 0:
        raise errors.SessionNotFound(session.user_id, session.session_id)
    return _viewer_at(session, snapshot.head), chosen, snapshot


def chosen_strategy(
    session: SessionCore,
    viewer: contexts.Viewer | None,
    strategy: str | Strategy | None,
    *,
    at: int | None = None,
    prepares: bool = False,
) -> Strategy:
    """Return the given strategy, else that of the last recorded request up to ``at``.

    prepares: without a recorded request, the default of ``prepare`` applies.
    """
    if strategy is not None or viewer is None:
        return session.settings.strategy(strategy)
    upto = viewer.history.newest_request
    if at is not None:
        upto = min(at, upto)
    last: Request | None = None
    if upto:
        recorded_request = viewer.newest_request(upto=upto)
        if recorded_request is not None:
            last = recorded_request.request
    return session.settings.strategy(None, last, prepares=prepares)


def check_seq(session: SessionCore, seq: int) -> None:
    """Raise InvalidEvent if the session has no event with this seq."""
    if not 1 <= seq <= session.head().seq:
        why = f"seq {seq} is not in session {session.session_id!r}"
        raise errors.InvalidEvent(why)


def build_context(
    session: SessionCore,
    strategy: str | Strategy | None,
    *,
    at: int | None = None,
    as_: contexts.WhichSummaries = "sent",
    extras: ExtraArgs | None = None,
) -> View:
    """Do what ``Session.context`` documents, without revealing placeholders."""
    from refold.store.contexts import redact_parts

    session.writer.used(session.stream)
    parts = redact_parts(session.writer, session.user_id, extras or {})
    if at is None:
        viewer, chosen, snapshot = read_snapshot(session, strategy)
        return show(session, viewer, chosen, parts, snapshot=snapshot)
    viewer = viewer_of(session)
    check_seq(session, at)
    chosen = chosen_strategy(session, viewer, strategy, at=at)
    if not extras:
        parts = viewer.parts_at(at)
    return viewer.render(chosen, viewer.at(chosen, at, as_), parts)


def compactor_for(
    session: SessionCore,
    strategy: str | Strategy | None,
    summarizer: Summarizer | None,
) -> Compactor:
    """Return the compactor of the strategy; None means the strategy of ``prepare``."""
    from refold.store.compactions import Compactor

    viewer = viewer_of(session)
    chosen = chosen_strategy(session, viewer, strategy, prepares=True)
    chosen_summarizer = summarizer or session.upkeep.summarizer
    return Compactor.of(session.writer, viewer, chosen, chosen_summarizer)
