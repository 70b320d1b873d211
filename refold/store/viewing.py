"""What a model is sent: the outline of a session, brought up to date and rendered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from refold.domain.envelope import Envelope
from refold.domain.events import JsonObject, Request, Summary
from refold.domain.ids import StreamId
from refold.domain.ports import EventLog, StoredView
from refold.projections.context import spec
from refold.projections.context.assembly import assembled
from refold.projections.context.compaction import Compaction
from refold.projections.context.for_agent import reader_of
from refold.projections.context.outline import Outline, fold_derived
from refold.projections.context.source import Source, new_in, source_of
from refold.projections.context.spans import joined
from refold.projections.context.strategy import Strategy
from refold.projections.context.view import View
from refold.store.filling import handed_in, with_blobs
from refold.store.handing import Handed
from refold.store.history import History

_WORTH_STORING: Final = 64
NOTHING: Final = Handed()
As: TypeAlias = Literal["sent", "rebuilt"]


@dataclass(frozen=True, slots=True)
class Viewer:
    """Shows one session under any strategy; writes nothing but stored outlines."""

    log: EventLog
    history: History

    @property
    def stream(self) -> StreamId:
        return self.history.stream

    def current(self, strategy: Strategy) -> Outline:
        """The outline at the head: the stored one and what came after it."""
        return self._caught_up(strategy)[0]

    def show(self, strategy: Strategy, handed: Handed = NOTHING) -> View:
        """The view at the head; its outline is stored once enough is new in it."""
        outline, stored = self._caught_up(strategy)
        if (
            outline.through_seq - (stored.through_seq if stored else 0)
            >= _WORTH_STORING
        ):
            self._store(strategy, outline, stored)
        return self.render(strategy, outline, handed)

    def catch_up(self, strategy: Strategy) -> bool:
        """Store the outline at the head; True if it moved and nobody was first."""
        return self.caught_up(strategy)[1]

    def caught_up(self, strategy: Strategy) -> tuple[Outline, bool]:
        """The outline at the head, which is stored; and whether this did it."""
        outline, stored = self._caught_up(strategy)
        return outline, self._store(strategy, outline, stored)

    def catch_up_named(self, fingerprint: str) -> bool:
        """The same for a strategy that is only known by its fingerprint."""
        stored = self.log.load_view(self.stream, fingerprint)
        if stored is None or "strategy" not in stored.body:
            return False
        return self.catch_up(spec.parse(stored.body["strategy"]))  # type: ignore[arg-type]  # as written

    def keep(self, strategy: Strategy, outline: Outline) -> bool:
        """Store an outline that was folded elsewhere, unless a newer one is stored."""
        stored = self.log.load_view(self.stream, strategy.fingerprint)
        if stored is not None and stored.through_seq > outline.through_seq:
            return False
        return self._store(strategy, outline, stored)

    def _store(
        self, strategy: Strategy, outline: Outline, stored: StoredView | None
    ) -> bool:
        through, derived = (
            (stored.through_seq, stored.derived_seq) if stored else (0, 0)
        )
        if (through, derived) == (outline.through_seq, outline.derived_seq):
            return False
        body: JsonObject = {
            "outline": outline.dump(),
            "strategy": strategy.ref.model_dump(mode="json"),
        }
        view = StoredView(outline.through_seq, outline.derived_seq, body)
        return self.log.save_view(
            self.stream, strategy.fingerprint, view, replaces=through
        )

    def _caught_up(self, strategy: Strategy) -> tuple[Outline, StoredView | None]:
        stored = self.log.load_view(self.stream, strategy.fingerprint)
        outline = _loaded(strategy, stored)
        summaries = self._derived(strategy, after=outline.derived_seq)
        after = outline.through_seq if outline.events else None
        outline = strategy.read(outline, self.history.events(after=after))
        for envelope in summaries:
            outline = fold_derived(outline, envelope)
        return outline, stored

    def at(self, strategy: Strategy, seq: int, as_: As) -> Outline:
        """The outline as it was at ``seq``, with the summaries that counted then."""
        outline = strategy.read(strategy.begin(), self.history.events(upto=seq))
        for envelope in self._counting(strategy, seq, as_):
            outline = fold_derived(outline, envelope)
        return outline

    def _counting(self, strategy: Strategy, seq: int, as_: As) -> list[Envelope]:
        """The summaries that count at ``seq``."""
        summaries = [
            (envelope, envelope.payload)
            for envelope in self._derived(strategy)
            if isinstance(envelope.payload, Summary)
        ]
        if as_ == "rebuilt":
            return [
                entry for entry, summary in summaries if summary.decided_at_seq <= seq
            ]
        request = self.last_request(upto=seq, fingerprint=strategy.fingerprint)
        if request is not None:
            return [entry for entry, _ in summaries if entry.seq <= request.derived_seq]
        return [entry for entry, summary in summaries if summary.appended_at_seq <= seq]

    def last_request(
        self, *, upto: int | None = None, fingerprint: str | None = None
    ) -> Request | None:
        """The newest recorded request, of this strategy if one is named."""
        while True:
            found = self.log.read(
                self.stream, upto=upto, types=("request",), limit=1, newest=True
            )
            if not found or not isinstance(found[0].payload, Request):
                return None
            request = found[0].payload
            if fingerprint in (None, request.strategy.fingerprint):
                return request
            upto = found[0].seq - 1

    def render(
        self, strategy: Strategy, outline: Outline, handed: Handed = NOTHING
    ) -> View:
        """The view of an outline: the events and summaries it names, and no others."""
        outline = strategy.judged(outline)
        events = self.history.spans(outline.reads(strategy.show(outline).raw))
        view = assembled(
            strategy,
            outline,
            (with_blobs(self.log, envelope) for envelope in events),
            summaries=self._named(strategy, outline.shown_summaries),
            extras=handed.extras,
            budgets=handed.budgets,
        )
        return replace(view, tools=handed.tools)

    def handed_at(self, seq: int) -> Handed:
        """What was handed in with the newest request at or before ``seq``.

        Behind it, evidence and state are not: they were that request's alone.
        """
        found = self.log.read(
            self.stream, upto=seq, types=("request",), limit=1, newest=True
        )
        if not found or not isinstance(found[0].payload, Request):
            return NOTHING
        extras = handed_in(self.log, self.stream, found[0].payload)
        if found[0].seq < seq:
            extras = replace(extras, evidence=(), state=None)
        return Handed(extras, extras.tools)

    def _named(self, strategy: Strategy, seqs: Sequence[int]) -> list[Envelope]:
        stream = self.stream._replace(stream=strategy.fingerprint)
        return _at(self.log, stream, seqs)

    def _derived(self, strategy: Strategy, after: int = 0) -> list[Envelope]:
        stream = self.stream._replace(stream=strategy.fingerprint)
        return self.log.read(stream, after=after)

    def source_matches(self, envelope: Envelope) -> bool:
        """Whether a summary's source digest follows from what it was made of."""
        summary = envelope.payload
        if not isinstance(summary, Summary):
            return True
        compaction = Compaction.of(summary, reader=reader_of(summary.strategy))
        stream = self.stream._replace(stream=envelope.stream)
        try:
            source = self.source(stream, compaction)
        except ValueError:
            return False
        return source.digest == summary.source_digest

    def source(self, derived: StreamId, compaction: Compaction) -> Source:
        """What a compaction summarises: what it absorbs, and the events that are new.

        Raises ValueError if a summary that it absorbs is missing.
        """
        absorbed = _at(self.log, derived, compaction.absorbs)
        events = self.history.spans(new_in(compaction, absorbed))
        return source_of(compaction, events=events, summaries=absorbed)

    def requested(self, request: Request) -> View:
        """The view that a recorded request was made of, derived again."""
        strategy = spec.parse(request.strategy.model_dump())
        outline = strategy.read(
            strategy.begin(), self.history.events(upto=request.through_seq)
        )
        for envelope in self._derived(strategy):
            if envelope.seq <= request.derived_seq:
                outline = fold_derived(outline, envelope)
        extras = handed_in(self.log, self.stream, request)
        return self.render(strategy, outline, Handed(extras, extras.tools))


def _at(log: EventLog, stream: StreamId, seqs: Iterable[int]) -> list[Envelope]:
    """The events of a derived stream at these seqs."""
    spans = joined((seq, seq) for seq in seqs)
    return log.read(stream, spans=spans) if spans else []


def _loaded(strategy: Strategy, stored: StoredView | None) -> Outline:
    if stored is None:
        return strategy.begin()
    try:
        return Outline.load(stored.body["outline"])  # type: ignore[arg-type]  # as written
    except (KeyError, ValueError):
        return strategy.begin()
