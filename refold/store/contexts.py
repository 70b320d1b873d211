"""What a model is sent: the outline of a session, brought up to date and rendered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from refold.domain import errors, ports
from refold.domain.envelope import Envelope
from refold.domain.events import JsonObject, Request, Span, Summary
from refold.domain.ids import StreamId
from refold.projections.context.budget import NO_EXTRAS, Budgets, Extras, HandedIn
from refold.projections.context.compaction import Compaction, Source, new_in, source_of
from refold.projections.context.outline import (
    Outline,
    begins_anew,
    fold_derived,
    standing as standing_of,
)
from refold.projections.context.render import render
from refold.projections.context.strategies import composite, spec, turn_window
from refold.projections.context.strategies.history_summary import (
    HistorySummary,
    from_params,
)
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategy import Strategy
from refold.projections.context.units import spans_of
from refold.projections.context.view import View
from refold.redaction.redactor import RedactionError
from refold.store.appends import Writer
from refold.store.history import History, handed_in, in_spans, with_blobs
from refold.store.vault import foreign

WORTH_STORING: Final = 64
# What an agent loop is given if nobody names a strategy: docs/decisions/0034 says why.
PREPARED: Final[Strategy] = HistorySummary()
_Stored: TypeAlias = ports.StoredView | None
As: TypeAlias = Literal["sent", "rebuilt"]


class Handed(NamedTuple):
    """What was handed in as it is recorded, and the tools as they are sent."""

    extras: Extras = NO_EXTRAS
    tools: tuple[JsonObject, ...] = ()
    budgets: Budgets = MappingProxyType({})


NOTHING: Final = Handed()


def take(writer: Writer, user_id: str, given: HandedIn) -> Handed:
    """``given``, redacted as its request will be when it is recorded.

    So what a model is sent is what the log holds, and can be shown again.  Tools alone
    are sent as they are: they are of the program, not of the user.

    Raises InvalidEvent, RedactionFailed.
    """
    if not given:
        return NOTHING
    extras = Extras.of(given)
    # In the place and the form in which the event of the request holds it.
    sections: Any = {"handed": {**extras.dump()}}
    try:
        clean, _ = writer.redactor.value(sections, tag=writer.tagger(user_id))
    except RedactionError as error:
        raise errors.RedactionFailed("request", reason=str(error)) from None
    texts = {name: str(text) for name, text in clean["handed"].items()}
    # A number in what comes from elsewhere is of another session.
    texts |= {name: foreign(text) for name, text in texts.items() if name != "state"}
    try:
        kept = Extras.load(texts, extras.window_tokens)
    except ValueError:
        reason = "what was handed in is no JSON any more"
        raise errors.RedactionFailed("request", reason=reason) from None
    return Handed(kept, extras.tools, given.get("budgets") or {})


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
        self, strategy: Strategy, standing: ports.Standing | None = None
    ) -> Outline:
        """The outline at the head; ``standing`` is what was read for it already."""
        standing = standing or self.log.standing(self.stream, strategy.fingerprint)
        outline, stored = strategy.begin(), standing.view
        if stored is not None:
            with suppress(KeyError, ValueError):
                outline = Outline.load(stored.body["outline"])  # type: ignore[arg-type]  # as written
        known: Sequence[Envelope] | None = standing.new
        derived = standing.derived
        if len(derived) >= ports.PAGE:
            derived = [*derived, *self._derived(strategy, after=derived[-1].seq)]
        useless = not outline.events or any(map(begins_anew, derived))
        if stored is not None and useless:  # all anew
            outline, known = strategy.begin(), None
            derived = self._derived(strategy)
        after = outline.through_seq if outline.events else None
        events = self.history.events(after=after, known=known)
        return with_derived(strategy.read(outline, events), derived)

    def by_unit(self, strategy: Strategy, outline: Outline | None = None) -> Outline:
        """The outline at the head, which knows exchanges if the strategy counts any.

        outline: as it was given before: what is new is read into it.
        """
        begun = strategy.begin()
        if begun.detail != "turns":
            return self.current(strategy)
        if outline is None or outline.detail != "both":
            outline = begun._replace(detail="both")
        after = outline.through_seq if outline.events else None
        outline = strategy.read(outline, self.history.events(after=after))
        return with_derived(outline, self._derived(strategy, outline.derived_seq))

    def show(
        self,
        strategy: Strategy,
        handed: Handed = NOTHING,
        *,
        standing: ports.Standing | None = None,
        outline: Outline | None = None,
    ) -> View:
        """The view at the head; its outline is stored once enough is new in it.

        ``standing`` is what was read for it already, with what the stored view shows,
        and ``outline`` what was folded of that.
        """
        if standing is None:
            standing = self.log.standing(self.stream, strategy.fingerprint, shown=True)
        outline, stored = outline or self.current(strategy, standing), standing.view
        handed = self._with_layers(strategy, handed, outline)
        self._store(strategy, outline, stored, by=WORTH_STORING)
        return self.render(strategy, outline, handed, standing=standing)

    def _with_layers(
        self, strategy: Strategy, handed: Handed, outline: Outline
    ) -> Handed:
        """With what the user's other sessions say in the strategy's memory layers.

        As the last request had it until the session is compacted: a prompt stays.
        """
        wanted = strategy.manner.layers
        if wanted is None or not (wanted.user or wanted.scope or wanted.notes):
            return handed
        from refold.store.memory import elsewhere  # who has no layers need not wait

        newest = max((one.seq for one in outline.summaries), default=0)
        sent = self.sent(fingerprint=strategy.fingerprint)
        said = None if sent is None or newest > sent[1].derived_seq else sent[1]
        found = elsewhere(self.log, self.stream, wanted, said)
        return handed._replace(extras=replace(handed.extras, layers=found))

    def caught_up(
        self, strategy: Strategy, standing: ports.Standing | None = None
    ) -> tuple[Outline, bool]:
        """As ``current``, which is stored; and whether it moved by this."""
        standing = standing or self.log.standing(self.stream, strategy.fingerprint)
        outline = self.current(strategy, standing)
        return outline, self._store(strategy, outline, standing.view)

    def keep(self, strategy: Strategy, outline: Outline) -> bool:
        """Store an outline that was folded elsewhere, unless a newer one is stored."""
        stored = self.log.load_view(self.stream, strategy.fingerprint)
        if stored is not None and stored.through_seq > outline.through_seq:
            return False
        return self._store(strategy, outline, stored)

    def _store(
        self, strategy: Strategy, outline: Outline, stored: _Stored, *, by: int = 0
    ) -> bool:
        """Store it, with new summaries or ``by`` new events; whether it moved."""
        known = (stored.through_seq, stored.derived_seq) if stored else (0, 0)
        place = outline.through_seq, outline.derived_seq
        more = place[0] - known[0] >= by or place[1] > known[1]
        if known == place or not more:
            return False
        ref = strategy.ref.model_dump(mode="json")
        body: JsonObject = {"outline": outline.dump(), "strategy": ref}
        view = ports.StoredView(*place, body, *named_in(strategy, outline))
        name = strategy.fingerprint
        return self.log.save_view(self.stream, name, view, replaces=known[0])

    def at(self, strategy: Strategy, seq: int, as_: As) -> Outline:
        """The outline as it was at ``seq``, with the summaries that counted then."""
        named = strategy.fingerprint
        sent = self.sent(upto=seq, fingerprint=named) if as_ == "sent" else None

        def counts(entry: Envelope) -> bool:
            made = entry.payload
            if sent is not None:
                return entry.seq <= sent[1].derived_seq
            if as_ == "sent" and isinstance(made, Summary):
                return made.appended_at_seq <= seq
            return (getattr(made, "decided_at_seq", None) or 0) <= seq

        derived = self._derived(strategy)
        counting = [
            entry
            for entry in (standing_of(derived) if as_ == "rebuilt" else derived)
            if isinstance(entry.payload, Summary) or begins_anew(entry)
            if counts(entry)
        ]
        outline = strategy.read(strategy.begin(), self.history.events(upto=seq))
        return with_derived(outline, counting)

    def sent(
        self, *, upto: int | None = None, fingerprint: str | None = None
    ) -> tuple[Envelope, Request] | None:
        """The newest recorded request, of this strategy if one is named."""
        while found := self.log.read(
            self.stream, upto=upto, types=("request",), limit=1, newest=True
        ):
            (envelope,) = found
            match envelope.payload:
                case Request(strategy=ref) as request if fingerprint in (
                    None,
                    ref.fingerprint,
                ):
                    return envelope, request
            upto = envelope.seq - 1
        return None

    def render(
        self,
        strategy: Strategy,
        outline: Outline,
        handed: Handed = NOTHING,
        *,
        standing: ports.Standing | None = None,
    ) -> View:
        """The view of an outline: the events and summaries it names, and no others."""
        outline = strategy.judged(outline)
        known = () if standing is None else (*standing.shown, *standing.new)
        made = () if standing is None else (*standing.summaries, *standing.derived)
        events = self.history.spans(outline.reads(strategy.show(outline).raw), known)
        stream, spans = self._stream(strategy), spans_of(outline.shown_summaries)
        view = render(
            strategy,
            outline,
            (with_blobs(self.log, envelope) for envelope in events),
            summaries=in_spans(self.log, stream, spans, made),
            extras=handed.extras,
            budgets=handed.budgets,
        )
        return replace(view, tools=handed.tools)

    def handed_at(self, seq: int) -> Handed:
        """What was handed in with the newest request at or before ``seq``.

        Behind it, evidence and state are not: they were that request's alone.
        """
        sent = self.sent(upto=seq)
        if sent is None:
            return NOTHING
        extras = handed_in(self.log, self.stream, sent[1])
        if sent[0].seq < seq:
            extras = replace(extras, evidence=(), state=None)
        return Handed(extras, extras.tools)

    def _stream(self, strategy: Strategy) -> StreamId:
        return self.stream._replace(stream=strategy.fingerprint)

    def _derived(self, strategy: Strategy, after: int = 0) -> list[Envelope]:
        return self.log.read(self._stream(strategy), after=after)

    def source_matches(self, envelope: Envelope) -> bool:
        """Whether a summary's source digest follows from what it was made of."""
        summary = envelope.payload
        if not isinstance(summary, Summary):
            return True
        if place := summary.adopted:
            stream = self.stream._replace(stream=place.stream)
            return any(
                isinstance(one.payload, Summary)
                and one.payload.adopted is None
                and _SAME(one.payload) == _SAME(summary)
                and self.source_matches(one)
                for one in self.log.read(stream, spans=[(place.seq, place.seq)])
            )
        reader = composite.reader_of(summary.strategy)
        compaction = Compaction.of(summary, reader=reader)
        stream = self.stream._replace(stream=envelope.stream)
        with suppress(ValueError):
            return self.source(stream, compaction).digest == summary.source_digest
        return False

    def source(self, derived: StreamId, compaction: Compaction) -> Source:
        """What a compaction summarises; ValueError if a summary in it is missing."""
        absorbed = in_spans(self.log, derived, spans_of(compaction.absorbs))
        events = self.history.spans(new_in(compaction, absorbed))
        return source_of(compaction, events=events, summaries=absorbed)


# What an adopted summary has in common with the one that was written.
_SAME: Final = attrgetter(
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


def named_in(
    strategy: Strategy, outline: Outline
) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """The events that a view of this outline shows: of the main and derived stream."""
    reads = outline.reads(strategy.show(outline).raw)
    main = tuple((max(first, 1), last) for first, last in reads if last >= 1)
    return main, spans_of(outline.shown_summaries)


def with_derived(outline: Outline, derived: Iterable[Envelope]) -> Outline:
    """The outline after these events of the strategy's derived stream.

    Where one of them begins anew, it must be one of which nothing is folded yet.
    """
    for envelope in standing_of(derived):
        outline = fold_derived(outline, envelope)
    return outline


class RequestedViews:
    """Derives views of one session; requests are best asked for in their order."""

    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer
        self._outlines: dict[str, Outline] = {}

    def view(self, request: Request) -> View:
        """The view that a recorded request was made of.

        Raises UnknownStrategy, CorruptEvent, KeyUnavailable.
        """
        strategy = spec.parse(request.strategy.model_dump())
        extras = handed_in(self._viewer.log, self._viewer.stream, request)
        handed = Handed(extras, extras.tools)
        return self._viewer.render(strategy, self.outline(strategy, request), handed)

    def outline(self, strategy: Strategy, request: Request) -> Outline:
        """The outline that it was made of."""
        viewer, through, upto = self._viewer, request.through_seq, request.derived_seq
        derived = viewer.stream._replace(stream=strategy.fingerprint)
        outline = self._outlines.get(strategy.fingerprint, strategy.begin())
        if outline.through_seq > through or outline.derived_seq > upto:
            outline = strategy.begin()
        known = outline.derived_seq
        new = upto > known
        entries = viewer.log.read(derived, after=known, upto=upto) if new else []
        if outline.derived_seq and any(map(begins_anew, entries)):
            outline = strategy.begin()
        after = outline.through_seq if outline.events else None
        events = viewer.history.events(after=after, upto=through)
        outline = with_derived(strategy.read(outline, events), entries)
        self._outlines[strategy.fingerprint] = outline
        return outline


def _no_file(path: Path) -> dict[str, Any]:
    raise errors.InvalidConfiguration(f"{path}: this store cannot read strategy files")


@dataclass(frozen=True, slots=True)
class Settings:
    """What is configured for contexts, as it was when the store was opened.

    context:   the table ``[context]`` of the settings file.
    environ:   the environment.
    read_toml: reads a file that a strategy is named by, as ``@file.toml``.
    """

    context: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    read_toml: Callable[[Path], dict[str, Any]] = _no_file

    def strategy(
        self,
        given: str | Strategy | None,
        last: Request | None = None,
        *,
        prepares: bool = False,
    ) -> Strategy:
        """The strategy that ``given`` names.

        None is that of the last recorded request, else the settings', else everything
        raw, or, for who ``prepares`` a context, ``PREPARED``.  ``@file.toml``, or
        ``@file.json``, names a file.

        Raises UnknownStrategy, InvalidConfiguration.
        """
        if isinstance(given, Strategy):
            return given
        if given is None and last is not None:
            return spec.parse(last.strategy.model_dump())
        given = self.context.get("strategy") if given is None else given
        if given is None:
            return PREPARED if prepares else KeepAll()
        if not isinstance(given, str):
            raise errors.InvalidConfiguration("[context] strategy must be a text")
        return self._configured(given)

    def for_agent(
        self,
        agent: str,
        strategy: str | Strategy | None = None,
        *,
        prepares: bool = False,
    ) -> Strategy:
        """``strategy``, else the settings', as one of several agents is shown it."""
        return composite.for_one(agent, self.strategy(strategy, prepares=prepares))

    def _configured(self, given: str) -> Strategy:
        if given.startswith("@"):
            table = self.read_toml(Path(given[1:]))
            if "history_summary_params" not in table:
                return spec.parse(table)
            if (made := from_params(table)) is None:
                raise errors.UnknownStrategy("its file switches history_summary off")
            return made
        steps = spec.split(given)
        if len(steps) > 1:
            return composite.of_steps([self._configured(step) for step in steps])
        name, params = spec.read(given)
        if name == composite.ForAgent.name:
            agent, inner = params.pop("agent", ""), params.pop("strategy", None)
            return self.for_agent(agent, inner)
        table = self.context.get(name, {})
        if not isinstance(table, dict):
            raise errors.InvalidConfiguration(f"[context] {name} must be a table")
        if name == turn_window.TurnWindow.name:
            return turn_window.from_settings(params, self.environ, table)
        return spec.strategy(name, {**table, **params})


def lagging(
    log: ports.EventLog, scope: ports.Scope, *, by: int = 1
) -> Iterator[ports.Lagging]:
    """The views that are behind by so many events or more, read in pages."""
    page = log.lagging(scope, by=by, limit=ports.PAGE)
    yield from page
    while len(page) == ports.PAGE:
        page = log.lagging(scope, by=by, limit=ports.PAGE, after=page[-1].place)
        yield from page


def bring_all_up(log: ports.EventLog, scope: ports.Scope) -> int:
    """Store the views that are behind as of now; how many moved."""
    return sum(bring_up(log, view.place) for view in lagging(log, scope))


def bring_up(log: ports.EventLog, place: ports.Place) -> bool:
    """Store the view as of now; False if another was first, or it cannot be read.

    Raises what reading the session raises, unless it was erased meanwhile.
    """
    try:
        standing = log.standing(StreamId(place.user_id, place.session_id), place.name)
        if standing.view is None or "strategy" not in standing.view.body:
            return False
        strategy = spec.parse(standing.view.body["strategy"])  # type: ignore[arg-type]  # as written
        viewer = Viewer(log, History.of(log, standing.head.state))
        return viewer.caught_up(strategy, standing)[1]
    except errors.Erased:
        return False
