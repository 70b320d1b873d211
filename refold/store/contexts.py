"""The context that a model is sent: bring a session's outline up to date, render it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from refold.domain import errors, ports
from refold.domain.envelope import Envelope
from refold.domain.events import JsonObject, Request, Span, Summary
from refold.domain.ids import StreamId
from refold.projections.context.budget import (
    NO_EXTRAS,
    Budgets,
    CrossSessionLayers,
    ExtraArgs,
    Extras,
)
from refold.projections.context.compaction import (
    Compaction,
    Source,
    new_spans,
    replaced_spans,
    source_of,
)
from refold.projections.context.edits import Edit, HistoryEdited
from refold.projections.context.outline import (
    SHAPE,
    Outline,
    fold_derived,
    is_rebuild,
    since_last_rebuild,
)
from refold.projections.context.render import render
from refold.projections.context.strategies import spec
from refold.projections.context.strategy import Layers, Strategy
from refold.projections.context.units import spans_of
from refold.projections.context.view import View
from refold.redaction.redactor import RedactionError
from refold.store.appends import Writer, hash_at
from refold.store.checkpoints import (
    SPACING,
    Checkpoints,
    changes,
    changes_outline,
)
from refold.store.history import History, WithBlobs, read_extras, read_spans
from refold.store.vault import Numbering, escape_placeholders

# A reader of a context stores its outline once this many events are new.  Folding fewer
# events again costs less than a write.
WORTH_STORING: Final = 64
# Which summaries a context of an earlier seq shows.  ``sent``: those that existed when
# the last request was recorded.  ``rebuilt``: those that the newest rebuild made.
WhichSummaries: TypeAlias = Literal["sent", "rebuilt"]
# The port to the user's memory: a function that reads layers from the user's other
# sessions.  It repeats the layers of the given request as long as all of them may still
# be shown.
ReadLayers: TypeAlias = Callable[[Layers, Request | None], CrossSessionLayers | None]


class RecordedRequest(NamedTuple):
    """A request that the log has, and the event that contains it."""

    envelope: Envelope
    request: Request


class CallerParts(NamedTuple):
    """The parts of a context that the caller passes: redacted extras, unredacted tools.

    budgets: the tokens that each part may have.
    """

    extras: Extras = NO_EXTRAS
    tools: tuple[JsonObject, ...] = ()
    budgets: Budgets = MappingProxyType({})


NOTHING: Final = CallerParts()


def redact_parts(
    writer: Writer,
    user_id: str,
    arguments: ExtraArgs,
    *,
    numbering: Numbering | None = None,
) -> CallerParts:
    """Redact the parts of a context that a caller passes.

    The recorded request contains the same redacted parts.  So the log contains exactly
    the context that a model gets, and can show it again.  Only tools are sent
    unredacted: they belong to the program, not to the user.

    numbering: numbers the values of the session for which the parts are; None if they
               get no numbers.  Then numbered placeholders are those of other sessions.

    Raises InvalidEvent, RedactionFailed.
    """
    if not arguments:
        return NOTHING
    extras = Extras.of(arguments)
    # Rules may depend on the path of a value: use that of the request event.
    sections: Any = {"handed": {**extras.dump()}}
    tag = numbering or writer.tagger(user_id)
    try:
        clean, _ = writer.redactor.value(sections, tag=tag)
        if numbering is not None:
            clean = numbering.with_numbers(clean, ours=True)
    except RedactionError as error:
        raise errors.RedactionFailed("request", reason=str(error)) from None
    texts: dict[str, str] = {}
    for name, text in clean["handed"].items():
        # Numbered placeholders in the state are those of this session.  In any other
        # part they come from another session, whose values must not be revealed here.
        if name == "state" or numbering is not None:
            texts[name] = str(text)
        else:
            texts[name] = escape_placeholders(str(text))
    try:
        redacted = Extras.load(texts, extras.window_tokens)
    except ValueError:
        reason = "the redacted parts of the caller are not valid JSON"
        raise errors.RedactionFailed("request", reason=reason) from None
    return CallerParts(redacted, extras.tools, arguments.get("budgets") or {})


@dataclass(frozen=True, slots=True)
class Viewer:
    """Shows one session under any strategy; writes nothing but stored outlines."""

    log: ports.EventLog
    history: History

    @property
    def stream(self) -> StreamId:
        """The main stream of the session."""
        return self.history.stream

    def current(
        self, strategy: Strategy, snapshot: ports.SessionSnapshot | None = None
    ) -> Outline:
        """Return the outline at the head: the stored outline with all newer events.

        snapshot: the stored view and the newer events; None reads them.
        """
        snapshot = snapshot or self.log.snapshot(self.stream, strategy.fingerprint)
        outline = self._base(strategy, snapshot)
        first_page: Sequence[Envelope] | None = snapshot.new
        derived = snapshot.derived
        if len(derived) >= ports.PAGE:
            derived = [*derived, *self._derived(strategy, after=derived[-1].seq)]
        was_rebuilt = any(is_rebuild(envelope) for envelope in derived)
        if snapshot.view is not None and (was_rebuilt or not outline.events):
            # The stored outline is of no use: fold everything from the first event.
            outline = strategy.begin()
            first_page = None
            derived = self._derived(strategy)
        after = outline.through_seq if outline.events else None
        events = self.history.events(after=after, first_page=first_page)
        try:
            fold = Checkpoints(self.log, self.stream, strategy).read(
                outline,
                events,
                head_seq=snapshot.head.seq,
                derived=since_last_rebuild(derived),
            )
        except HistoryEdited:
            return with_derived(self.fold_all(strategy), self._derived(strategy))
        return with_derived(fold.outline, fold.lacks)

    def turn_ends(self, strategy: Strategy) -> list[Envelope]:
        """Return the events that ended turns since the last call of a model.

        An end is left out if it is the newest event.
        """
        from refold.projections.context.decision_points import turn_ends

        snapshot = self.log.snapshot(self.stream, strategy.fingerprint)
        base = self._base(strategy, snapshot)
        after = base.through_seq if base.events else None
        first_page = snapshot.new if base.events else None
        newer = self.history.events(after=after, first_page=first_page)
        with suppress(HistoryEdited):
            ends, was_called = turn_ends(strategy, base, newer)
            if was_called or not base.events:
                return ends
        # A reader stored the outline after the last call: look at all events.
        edits = self.history.edits()
        ends, _ = turn_ends(strategy, strategy.begin(), self.history.events(), edits)
        return ends

    def with_all_summaries_at(self, strategy: Strategy, seq: int) -> Outline | None:
        """Return the outline at this seq, with all summaries of the strategy.

        Returns None if one of the summaries was decided after this seq.
        """
        snapshot = self.log.snapshot(self.stream, strategy.fingerprint)
        outline = self._base(strategy, snapshot)
        if not outline.events or outline.through_seq > seq:
            outline = strategy.begin()
        after = outline.through_seq if outline.events else None
        try:
            events = self.history.events(after=after, upto=seq)
            outline = strategy.read(outline, events)
        except HistoryEdited:
            outline = self.fold_all(strategy, upto=seq)
        with suppress(ValueError):
            derived = self._derived(strategy, outline.derived_seq)
            return with_derived(outline, derived)
        return None

    def _base(self, strategy: Strategy, snapshot: ports.SessionSnapshot) -> Outline:
        """Return the stored outline, or an empty one if none is usable."""
        if snapshot.view is not None and is_usable(snapshot):
            with suppress(KeyError, ValueError):
                outline = Outline.load(snapshot.view.body["outline"])  # type: ignore[arg-type]  # ``_store`` wrote it
                if not any(is_rebuild(envelope) for envelope in snapshot.derived):
                    return outline
        return strategy.begin()

    def fold_all(
        self,
        strategy: Strategy,
        *,
        upto: int | None = None,
        begin: Outline | None = None,
    ) -> Outline:
        """Fold the log from its first event up to ``upto``, with the client's edits.

        begin: the outline to start from, which has no events.  None means the outline
               that the strategy begins with.
        """
        if upto is None:
            upto = self.log.head(self.stream).state.head_seq
        edits = self.history.edits(upto=upto)
        events = self.history.events(upto=upto)
        return strategy.read(begin or strategy.begin(), events, edits)

    def with_exchanges(
        self, strategy: Strategy, outline: Outline | None = None
    ) -> Outline:
        """Return the outline at the head with its exchanges, not only its turns.

        outline: the result of an earlier call.  Only events after it are read.
        """
        empty = strategy.begin()
        if empty.detail != "turns":
            return self.current(strategy)
        if outline is None or outline.detail != "both":
            outline = empty._replace(detail="both")
        after = outline.through_seq if outline.events else None
        try:
            outline = strategy.read(outline, self.history.events(after=after))
        except HistoryEdited:
            outline = self.fold_all(strategy, begin=empty._replace(detail="both"))
        return with_derived(outline, self._derived(strategy, outline.derived_seq))

    def show(
        self,
        strategy: Strategy,
        parts: CallerParts = NOTHING,
        *,
        layers: ReadLayers,
        snapshot: ports.SessionSnapshot | None = None,
        outline: Outline | None = None,
    ) -> View:
        """Return the view at the head; store its outline if enough events are new.

        layers:   reads the strategy's memory layers; called only if it has some.
        snapshot: the stored view, the events that it shows, and the newer events; None
                  reads them.
        outline:  the outline at the head of ``snapshot``; None folds it.
        """
        if snapshot is None:
            snapshot = self.log.snapshot(self.stream, strategy.fingerprint, shown=True)
        if outline is None:
            outline = self.current(strategy, snapshot)
        parts = self._with_layers(strategy, parts, outline, layers)
        stored = snapshot.view
        self._store(strategy, outline, stored, snapshot, min_events=WORTH_STORING)
        return self.render(strategy, outline, parts, snapshot=snapshot)

    def _with_layers(
        self,
        strategy: Strategy,
        parts: CallerParts,
        outline: Outline,
        read: ReadLayers,
    ) -> CallerParts:
        """Add the strategy's memory layers from the user's other sessions.

        Until the next compaction, the layers of the last request are repeated, so that
        the provider's cache of the prompt stays valid.
        """
        wanted = strategy.manner.layers
        if wanted is None or not (wanted.user or wanted.scope or wanted.notes):
            return parts
        newest_summary = max((summary.seq for summary in outline.summaries), default=0)
        recorded = self.newest_request(fingerprint=strategy.fingerprint)
        repeated: Request | None = None
        if recorded is not None and newest_summary <= recorded.request.derived_seq:
            repeated = recorded.request
        extras = replace(parts.extras, layers=read(wanted, repeated))
        return parts._replace(extras=extras)

    def fold(self, strategy: Strategy) -> Outline:
        """Return the outline at the head, and store it if enough events are new.

        So a compaction that an append starts does not fold older events again, and a
        later context does not either.
        """
        snapshot = self.log.snapshot(self.stream, strategy.fingerprint)
        outline = self.current(strategy, snapshot)
        stored = snapshot.view
        self._store(strategy, outline, stored, snapshot, min_events=WORTH_STORING)
        return outline

    def store_current(
        self, strategy: Strategy, snapshot: ports.SessionSnapshot | None = None
    ) -> tuple[Outline, bool]:
        """Store the outline at the head; return it, and whether it was stored."""
        snapshot = snapshot or self.log.snapshot(self.stream, strategy.fingerprint)
        outline = self.current(strategy, snapshot)
        return outline, self._store(strategy, outline, snapshot.view, snapshot)

    def store_unless_older(self, strategy: Strategy, outline: Outline) -> bool:
        """Store an outline, unless a newer one is stored; returns whether it did."""
        stored = self.log.load_view(self.stream, strategy.fingerprint)
        if stored is not None and stored.through_seq > outline.through_seq:
            return False
        return self._store(strategy, outline, stored, None)

    def _store(
        self,
        strategy: Strategy,
        outline: Outline,
        stored: ports.StoredView | None,
        snapshot: ports.SessionSnapshot | None,
        *,
        min_events: int = 0,
    ) -> bool:
        """Store the outline if it has new summaries or enough new events.

        stored:     the view that the outline replaces.
        snapshot:   the read that ``stored`` is from; None if it was read alone.
        min_events: this many new events are enough; 0 means any.

        Returns whether the outline was stored.  It is not if another process stored one
        first.
        """
        stored_through = stored.through_seq if stored else 0
        new_events = outline.through_seq
        new_derived = outline.derived_seq
        if stored is not None and (snapshot is None or is_usable(snapshot)):
            new_events -= stored_through
            new_derived -= stored.derived_seq
        if new_events == 0 and new_derived == 0:
            return False
        if new_events < min_events and new_derived <= 0:
            return False
        ref = strategy.ref.model_dump(mode="json")
        shows, shows_derived = shown_spans(strategy, outline)
        view = ports.StoredView(
            outline.through_seq,
            outline.derived_seq,
            {
                "outline": outline.dump(),
                "strategy": ref,
                "hash": self._hash_at(outline.through_seq, snapshot),
            },
            shows,
            shows_derived,
        )
        name = strategy.fingerprint
        return self.log.save_view(self.stream, name, view, replaces=stored_through)

    def _hash_at(self, seq: int, snapshot: ports.SessionSnapshot | None) -> str:
        """Return the hash of the chain at ``seq``, from the snapshot if it has it.

        Raises Erased if the session is being erased.
        """
        if snapshot is not None:
            if seq == snapshot.head.seq:
                return snapshot.head.hash.hex()
            for envelope in snapshot.new:
                if envelope.seq == seq:
                    return envelope.hash
        return hash_at(self.log, self.stream, seq)

    def at(self, strategy: Strategy, seq: int, as_: WhichSummaries) -> Outline:
        """Return the outline at ``seq``, with the summaries that ``as_`` names."""
        derived = self._derived(strategy)
        shown = self._existed_at(strategy, seq, as_, derived)
        checkpoints = Checkpoints(self.log, self.stream, strategy)
        outline, lacks = checkpoints.before(seq, derived, shown)
        after = outline.through_seq if outline.events else None
        events = self.history.events(after=after, upto=seq)
        try:
            if seq < SPACING:
                outline = strategy.read(outline, events)
            else:
                # A checkpoint has every summary up to its last one.
                last = shown[-1].seq if shown else 0
                is_complete = changes(derived, upto=last) == shown
                fold = checkpoints.read(
                    outline,
                    events,
                    head_seq=self.log.head(self.stream).seq,
                    upto=seq,
                    derived=lacks if is_complete else (),
                )
                outline = fold.outline
                if is_complete:
                    lacks = fold.lacks
        except HistoryEdited:
            outline = self.fold_all(strategy, upto=seq)
            lacks = shown
        return with_derived(outline, lacks)

    def reads_at(self, strategy: Strategy, seq: int) -> int:
        """Return about how many events a context at ``seq`` folds and shows."""
        derived = self._derived(strategy)
        shown = self._existed_at(strategy, seq, "sent", derived)
        checkpoints = Checkpoints(self.log, self.stream, strategy)
        outline, _ = checkpoints.before(seq, derived, shown)
        count = seq - outline.through_seq
        if outline.events:
            for first, last in strategy.show(outline).raw:
                count += last - first + 1
        return count

    def _existed_at(
        self,
        strategy: Strategy,
        seq: int,
        as_: WhichSummaries,
        derived: Sequence[Envelope],
    ) -> list[Envelope]:
        """Return the summaries that a context at ``seq`` shows, or absorbed ones.

        derived: the strategy's derived stream, from its first entry.
        """
        recorded = None
        if as_ == "sent":
            recorded = self.newest_request(upto=seq, fingerprint=strategy.fingerprint)

        def existed(entry: Envelope) -> bool:
            event = entry.payload
            if recorded is not None:
                return entry.seq <= recorded.request.derived_seq
            if as_ == "sent" and isinstance(event, Summary):
                return event.appended_at_seq <= seq
            return (getattr(event, "decided_at_seq", None) or 0) <= seq

        entries = derived
        if as_ == "rebuilt":
            entries = since_last_rebuild(derived)
        return since_last_rebuild(
            entry for entry in entries if changes_outline(entry) and existed(entry)
        )

    def newest_request(
        self,
        *,
        upto: int | None = None,
        fingerprint: str | None = None,
        to_model: bool = False,
    ) -> RecordedRequest | None:
        """Return the newest recorded request, or None if there is none.

        upto:        the last seq that is searched; None is the head.
        fingerprint: only requests under the strategy with this fingerprint.
        to_model:    leave out requests that only activate a strategy.
        """
        while True:
            newest = self.log.read(
                self.stream, upto=upto, types=("request",), limit=1, newest=True
            )
            if not newest:
                return None
            envelope = newest[0]
            request = envelope.payload
            is_left_out = to_model and envelope.activates_strategy
            if (
                isinstance(request, Request)
                and not is_left_out
                and fingerprint in (None, request.strategy.fingerprint)
            ):
                return RecordedRequest(envelope, request)
            upto = envelope.seq - 1

    def render(
        self,
        strategy: Strategy,
        outline: Outline,
        parts: CallerParts = NOTHING,
        *,
        snapshot: ports.SessionSnapshot | None = None,
    ) -> View:
        """Render an outline: read only the events and summaries that it names.

        snapshot: events and summaries that were read already, and are not read again.
        """
        outline = strategy.as_shown(outline)
        already_read: Sequence[Envelope] = ()
        derived_already_read: Sequence[Envelope] = ()
        if snapshot is not None:
            already_read = (*snapshot.shown, *snapshot.new)
            derived_already_read = (*snapshot.summaries, *snapshot.derived)
        events = self.history.read_spans(
            outline.reads(strategy.show(outline).raw), already_read
        )
        summaries = read_spans(
            self.log,
            self._stream(strategy),
            spans_of(outline.shown_summaries),
            derived_already_read,
        )
        with_blobs = WithBlobs.read(self.log, events)
        remembered = None
        # A blob may expire, and a parent of a fork may change, while the view stays.
        if snapshot is not None and not with_blobs.blobs and not self.history.parent:
            remembered = snapshot.remembered
        view = render(
            strategy,
            outline,
            with_blobs.events,
            summaries=summaries,
            extras=parts.extras,
            budgets=parts.budgets,
            read=with_blobs.blobs.get,
            remembered=remembered,
        )
        return replace(view, tools=parts.tools)

    def parts_at(self, seq: int) -> CallerParts:
        """Return the caller's parts of the newest request up to ``seq``.

        Evidence and state belong to that request alone, so a context of a later seq has
        neither.
        """
        recorded = self.newest_request(upto=seq, to_model=True)
        if recorded is None:
            return NOTHING
        extras = read_extras(self.log, self.stream, recorded.request)
        if recorded.envelope.seq < seq:
            extras = replace(extras, evidence=(), state=None)
        return CallerParts(extras, extras.tools)

    def _stream(self, strategy: Strategy) -> StreamId:
        return self.stream._replace(stream=strategy.fingerprint)

    def _derived(self, strategy: Strategy, after: int = 0) -> list[Envelope]:
        return self.log.read(self._stream(strategy), after=after)

    def source_matches(
        self, envelope: Envelope, edits: Sequence[Edit] | None = None
    ) -> bool:
        """Whether the events that a summary covers still give its source digest.

        An adopted summary matches if the original summary in the other stream has the
        same fields and a source that matches.  An event that is no summary matches.

        edits: the edits of the session's history; None reads them.
        """
        summary = envelope.payload
        if not isinstance(summary, Summary):
            return True
        adopted = summary.adopted
        if adopted is not None:
            stream = self.stream._replace(stream=adopted.stream)
            for entry in self.log.read(stream, spans=[(adopted.seq, adopted.seq)]):
                original = entry.payload
                if (
                    isinstance(original, Summary)
                    and original.adopted is None
                    and _adopted_fields(original) == _adopted_fields(summary)
                    and self.source_matches(entry, edits)
                ):
                    return True
            return False
        from refold.projections.context.strategies.composite import reader_of

        reader = reader_of(summary.strategy)
        compaction = Compaction.of(summary, reader=reader)
        stream = self.stream._replace(stream=envelope.stream)
        try:
            source = self.source(stream, compaction, edits, with_replaced=False)
        except ValueError:
            return False
        return source.digest == summary.source_digest

    def source(
        self,
        derived: StreamId,
        compaction: Compaction,
        edits: Sequence[Edit] | None = None,
        *,
        with_replaced: bool = True,
    ) -> Source:
        """Read the events and summaries that a compaction summarises.

        derived: the stream of the summaries that the compaction absorbs.
        edits:   the edits in the outline that the compaction was decided on; None reads
                 them.
        with_replaced: whether to read the events that the client replaced, too.  The
                 digest of the source does not depend on them.

        Raises ValueError if a summary is missing.
        """
        absorbed = read_spans(self.log, derived, spans_of(compaction.absorbs))
        events = self.history.read_spans(new_spans(compaction, absorbed))
        if edits is None:
            edits = self.history.edits(upto=compaction.decided_at_seq)
        replaced: list[Envelope] = []
        if with_replaced:
            spans = replaced_spans(compaction, absorbed, edits)
            replaced = list(self.history.read_spans(spans))
        return source_of(
            compaction,
            events=events,
            summaries=absorbed,
            edits=edits,
            replaced=replaced,
        )


# The fields that an adopted summary copies from the original summary.
_adopted_fields: Final = attrgetter(
    "strategy.name",
    "strategy.version",
    "summarizer",
    "prompt_digest",
    "kind",
    "first_seq",
    "last_seq",
    "level",
    "source_digest",
    "source_event_count",
)


def is_usable(snapshot: ports.SessionSnapshot) -> bool:
    """Whether the stored view has the current form and belongs to this history.

    A view has the hash of the chain at its last event.  One that was stored for another
    history of the session, such as before an older copy of the database came back, has
    another hash than the chain.
    """
    stored = snapshot.view
    if stored is None:
        return False
    outline = stored.body.get("outline")
    if not isinstance(outline, dict) or outline.get("shape") != SHAPE:
        return False
    hash_ = stored.body.get("hash")
    if snapshot.new:
        first = snapshot.new[0]
        return first.seq == stored.through_seq + 1 and first.prev_hash == hash_
    head = snapshot.head
    return head.seq == stored.through_seq and head.hash.hex() == hash_


def shown_spans(
    strategy: Strategy, outline: Outline
) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Return the spans that a view of this outline shows: of events, of summaries.

    The events are those of the main stream; events of a fork's parents are left out.
    The summaries are those of the strategy's derived stream.
    """
    reads = outline.reads(strategy.show(outline).raw)
    own = tuple((max(first, 1), last) for first, last in reads if last >= 1)
    return own, spans_of(outline.shown_summaries)


def with_derived(outline: Outline, derived: Iterable[Envelope]) -> Outline:
    """Fold these events of the strategy's derived stream into the outline.

    If a rebuild is among them, the outline must have no event of the stream yet.
    """
    for envelope in since_last_rebuild(derived):
        outline = fold_derived(outline, envelope)
    return outline


class RequestedViews:
    """Derives the views of a session's requests.

    It keeps the last outline of each strategy, and continues it for a later request.
    So it is fastest if the requests come in their order.
    """

    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer
        self._outlines: dict[str, Outline] = {}

    def view(self, request: Request) -> View:
        """Return the view that a recorded request was made of.

        Raises UnknownStrategy, CorruptEvent, KeyUnavailable.
        """
        strategy = spec.parse(request.strategy.model_dump())
        extras = read_extras(self._viewer.log, self._viewer.stream, request)
        parts = CallerParts(extras, extras.tools)
        return self._viewer.render(strategy, self.outline(strategy, request), parts)

    def outline(self, strategy: Strategy, request: Request) -> Outline:
        """Return the outline of which a recorded request was made."""
        viewer = self._viewer
        through = request.through_seq
        derived_upto = request.derived_seq
        derived = viewer.stream._replace(stream=strategy.fingerprint)
        outline = self._outlines.get(strategy.fingerprint, strategy.begin())
        if outline.through_seq > through or outline.derived_seq > derived_upto:
            outline = strategy.begin()
        entries: list[Envelope] = []
        if derived_upto > outline.derived_seq:
            entries = viewer.log.read(
                derived, after=outline.derived_seq, upto=derived_upto
            )
        was_rebuilt = any(is_rebuild(entry) for entry in entries)
        if outline.derived_seq and was_rebuilt:
            outline = strategy.begin()
        after = outline.through_seq if outline.events else None
        events = viewer.history.events(after=after, upto=through)
        try:
            outline = strategy.read(outline, events)
        except HistoryEdited:
            outline = viewer.fold_all(strategy, upto=through)
            entries = []
            if derived_upto:
                entries = viewer.log.read(derived, upto=derived_upto)
        outline = with_derived(outline, entries)
        self._outlines[strategy.fingerprint] = outline
        return outline


def lagging(
    log: ports.EventLog, scope: ports.Scope, *, by: int = 1
) -> Iterator[ports.Lagging]:
    """Yield the stored views that lack at least ``by`` events, read in pages."""
    page = log.lagging(scope, by=by, limit=ports.PAGE)
    yield from page
    while len(page) == ports.PAGE:
        page = log.lagging(scope, by=by, limit=ports.PAGE, after=page[-1].place)
        yield from page


def update_views(log: ports.EventLog, scope: ports.Scope) -> int:
    """Bring every stored view in the scope up to date; returns how many changed."""
    changed = 0
    for view in lagging(log, scope):
        if update_view(log, view.place):
            changed += 1
    return changed


def update_view(log: ports.EventLog, place: ports.Place) -> bool:
    """Bring one stored view up to date; returns whether this call changed it.

    It does not change a view that cannot be read, or a view of an erased session.

    Raises the errors of reading the session, except Erased.
    """
    try:
        snapshot = log.snapshot(StreamId(place.user_id, place.session_id), place.name)
        if snapshot.view is None or "strategy" not in snapshot.view.body:
            return False
        strategy = spec.parse(snapshot.view.body["strategy"])  # type: ignore[arg-type]  # ``_store`` wrote it
        viewer = Viewer(log, History.of(log, snapshot.head.state))
        _, was_stored = viewer.store_current(strategy, snapshot)
        return was_stored
    except errors.Erased:
        return False
