"""Why a context is as it is: derived again from the log, and proved on the way."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypedDict

from refold.domain import errors
from refold.domain.canonical import shipped
from refold.domain.envelope import Envelope, microseconds
from refold.domain.erasure import timestamp
from refold.domain.events import AgentResponse, Pin, Request
from refold.domain.ids import StreamId
from refold.domain.model import quiet
from refold.domain.ports import EXPIRED, Problem
from refold.projections import models
from refold.projections.compare import Comparison, Outcome
from refold.projections.context import why
from refold.projections.context.abridged import Abridged
from refold.projections.context.budget import NO_EXTRAS, Extras
from refold.projections.context.compaction import Summarizer
from refold.projections.context.outline import Outline, fold_derived, standing
from refold.projections.context.strategies import spec
from refold.projections.context.strategy import Strategy
from refold.projections.context.units import spans_of
from refold.projections.context.view import View, html_table
from refold.projections.models import ModelInfo
from refold.store.contexts import RequestedViews, Viewer
from refold.store.history import History, with_blobs
from refold.store.proofs.provenance import Provenance, provenance
from refold.store.proofs.verification import Superseded, differs
from refold.store.settings import Settings

Proof = Literal["holds", "superseded", "broken"]
_REASONS: Final = shipped("refold.store.proofs", "reasons.toml")
BECAUSE: Final[Mapping[why.Cause, str]] = _REASONS["because"]
LEFT_OUT: Final[Mapping[why.Reason, str]] = _REASONS["left_out"]
# Sent word for word because the newest compaction left them out.
_DECIDED_RAW: Final = ("raw", "open", "newest_input", "pinned", "pins_budget")
DEFAULT_MODEL: Final = "claude-sonnet-5-5"


class Record(NamedTuple):
    """What is known of a summary.

    live:       whether it is in the context; if not, another has absorbed it.
    decided_on: the event that was the last when it was decided.
    asked:      what the strategy says when it is asked again.
    source:     whether its source digest was derived again; ``superseded`` if what it
                was made of has been redacted since.
    """

    node: why.Node
    depth: int
    live: bool
    decided_on: Envelope | None
    asked: why.Asked
    source: Proof


class Sent(NamedTuple):
    """A recorded request, and whether its digest was derived again.

    shown: whether the context that is explained has that digest.
    """

    envelope: Envelope
    request: Request
    digest: str
    proof: Proof
    shown: bool


class Chain(NamedTuple):
    """The hash chain of a stream, proved from its first event on."""

    stream: StreamId
    events: int
    hash: str
    problems: tuple[Problem, ...]

    def to_json(self) -> dict[str, Any]:
        """The chain as JSON."""
        place = {"session_id": self.stream.session_id, "stream": self.stream.stream}
        found = [problem.to_json() for problem in self.problems]
        return {**place, "events": self.events, "hash": self.hash, "problems": found}


@quiet
@dataclass(frozen=True, slots=True)
class Explanation:
    """A context taken apart.

    at:         the seq that was asked about; the view may end earlier, if a request
                stands there.
    message:    the one message that was asked about, or None.
    parts:      of the view, or of that message, in their order.
    records:    of the summaries behind the parts, each before those it absorbed.
    unshown:    events that are not shown, with reasons; of one message, those that
                its parts stand for.
    events:     all events up to ``at`` by seq; those of a parent count down from 0.
    pins:       the pin event of each event that is shown because it is pinned.
    newest:     the newest summary, whose decision the raw parts came out of.
    superseded: seqs of events that were redacted again: they hold less than was sent.
    provenance: how it is known that the view was sent.
    """

    strategy: Strategy
    at: int
    message: int | None
    view: View
    sent: Sent | None
    parts: tuple[why.Part, ...]
    records: tuple[Record, ...]
    unshown: tuple[why.Unshown, ...]
    events: Mapping[int, Envelope]
    pins: Mapping[int, Envelope]
    newest: int | None
    chains: tuple[Chain, ...]
    superseded: frozenset[int]
    provenance: Provenance

    def _repr_html_(self) -> str:
        """Its parts as notebooks show them, in figures: what they show, they keep."""
        names = ("message", "role", "kind", "events", "why")
        rows = [
            (
                part.message or "system",
                part.role,
                part.span.kind if part.span else "",
                ", ".join(f"{a}-{b}" for a, b in spans_of(sorted(part.seqs))),
                BECAUSE[part.cause],
            )
            for part in self.parts
        ]
        left = errors.counted(len(self.unshown), "event")
        title = f"{self.strategy.name} at seq {self.at}: {left} not shown"
        return html_table(title, names, rows)

    def opened(self, summary: int) -> tuple[Record, ...]:
        """That summary and what it absorbed, in order; raises InvalidEvent for none."""
        known = {record.node.seq: record for record in self.records}
        if summary not in known:
            there = ", ".join(map(str, sorted(known))) or "none"
            raise errors.InvalidEvent(
                f"summary {summary} is not in this context (there is: {there})"
            )
        nodes = {seq: record.node for seq, record in known.items()}
        return tuple(
            known[node.seq]._replace(depth=depth)
            for depth, node in why.with_absorbed(nodes, summary)
        )

    def runs(self) -> Iterator[tuple[why.Unshown, list[Envelope]]]:
        """The events that are not shown, those together that have all in common.

        The ``seq`` of a run is its first event's; runs of one reason are neighbours.
        """
        runs: dict[tuple[object, ...], dict[object, list[why.Unshown]]] = {}
        for one in self.unshown:
            same = runs.setdefault((one.why, one.summary), {})
            same.setdefault(one.via, []).append(one)
        for run in chain.from_iterable(same.values() for same in runs.values()):
            yield run[0], [self.events[one.seq] for one in run]

    def told(self, record: Record) -> list[Envelope]:
        """The events that a summary was itself made of."""
        span = record.node.own_span
        if span is None:
            return []
        found = map(self.events.get, range(span[0], span[1] + 1))
        seen = (self.strategy.sees(event) for event in found if event)
        return why.source_events(record.node, [event for event in seen if event])

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON; events by seq, type, time and hash, never by content."""
        view = self.view
        same = ("derived_seq", "digest", "tokens", "over_budget")
        return {
            "at": self.at,
            "message": self.message,
            "strategy": self.strategy.ref.model_dump(mode="json"),
            "view": {
                "through_seq": view.at,
                **{name: getattr(view, name) for name in same},
                "messages": len(view.messages),
            },
            "provenance": self.provenance.kind,
            "request": self.sent and _sent(self.sent),
            "chains": [chain.to_json() for chain in self.chains],
            "parts": [self._part(part) for part in self.parts],
            "summaries": [self._record(record) for record in self.records],
            "left_out": [self._run(run, events) for run, events in self.runs()],
            "superseded": sorted(self.superseded),
        }

    def _part(self, part: why.Part) -> dict[str, Any]:
        pins = {seq: self.pins[seq] for seq in part.seqs if seq in self.pins}
        parts = ("kind", "first", "last", "summary")
        span = {name: getattr(part.span, name, None) for name in parts}
        decided_by = span["summary"]
        if decided_by is None and part.cause in _DECIDED_RAW:
            decided_by = self.newest
        return {
            **{name: getattr(part, name) for name in ("message", "role")},
            "first_block": part.first,
            "blocks": part.blocks,
            **span,
            "cause": part.cause,
            "why": BECAUSE[part.cause],
            "decided_by": decided_by,
            "pinned_by": [
                {"seq": seq, "pin": pin.seq, "reason": pin.payload.payload()["reason"]}
                for seq, pin in pins.items()
            ],
            "events": [self.reference(self.events[seq]) for seq in part.seqs],
        }

    def _record(self, record: Record) -> dict[str, Any]:
        envelope, summary = record.node.envelope, record.node.summary
        hidden = ("strategy", "text", "abridged")
        fields = {k: v for k, v in summary.payload().items() if k not in hidden}
        decided_on, asked = record.decided_on, record.asked
        decided, clock = asked.decided, asked.clock
        return {
            "seq": record.node.seq,
            "live": record.live,
            **fields,
            "ts": timestamp(envelope.at),
            "hash": envelope.hash,
            "decided_at": decided_on and timestamp(decided_on.at),
            "asked_again": {
                **asked._asdict(),
                "clock": clock and timestamp(microseconds(clock)),
                "decided": decided and [decided.first_seq, decided.last_seq],
            },
            "source": record.source,
            "text": summary.text,
            "abridged": summary.abridged,
            "events": [self.reference(event) for event in self.told(record)],
        }

    def _run(self, run: why.Unshown, events: list[Envelope]) -> dict[str, Any]:
        return {
            "why": run.why,
            "meaning": LEFT_OUT[run.why],
            "summary": run.summary,
            "via": run.via,
            "spans": [list(span) for span in spans_of(event.seq for event in events)],
            "events": len(events),
            "types": dict(Counter(event.type for event in events)),
        }

    def reference(self, envelope: Envelope) -> dict[str, Any]:
        """An event by its place; one of a parent also by the session it is in."""
        told_ = {name: getattr(envelope, name) for name in ("seq", "type", "hash")}
        told_ |= {"ts": timestamp(envelope.at), "tokens": envelope.token_estimate}
        if envelope.seq < 1:
            told_["session_id"] = envelope.session_id
        if envelope.seq in self.superseded:
            told_["superseded"] = True
        return told_


def _sent(sent: Sent) -> dict[str, Any]:
    same = ("model", "through_seq", "derived_seq", "digest", "matches")
    return {
        "seq": sent.envelope.seq,
        "ts": timestamp(sent.envelope.at),
        **{name: getattr(sent.request, name) for name in same},
        "derived_again": sent.digest,
        "proof": sent.proof,
        "is_this_view": sent.shown,
    }


@dataclass(frozen=True, slots=True)
class Explainer:
    """Explains the contexts of one session under one strategy; writes nothing."""

    viewer: Viewer
    strategy: Strategy

    def explain(
        self, at: int | None, *, message: int | None = None, chains: bool = True
    ) -> Explanation:
        """Take apart what a model was sent when ``at`` was the newest event.

        Where ``at`` is a recorded request, that is what is taken apart.  None is what
        the next call would be sent.

        message: counted from 1; None is all of them.

        Raises InvalidEvent if the context has no such message.
        """
        sent = self.viewer.sent(upto=at, fingerprint=self.strategy.fingerprint)
        view, outline = self._view(at, sent)
        outline = self.strategy.judged(outline)
        at = view.at if at is None else at
        events = {event.seq: event for event in self.viewer.history.events(upto=at)}
        most = len(view.messages)
        if message is not None and not 1 <= message <= most:
            why_not = f"message {message} is not in this context: it has {most}"
            raise errors.InvalidEvent(f"{why_not}, counted from 1")
        log, history = self.viewer.log, self.viewer.history
        derived = standing(log.read(self._derived, upto=outline.derived_seq))
        nodes = why.nodes_of(derived)
        parts = why.parts_of(self.strategy, outline, view, events)
        out = why.unshown(self.strategy, outline, parts, nodes, list(events.values()))
        chosen = [part for part in parts if message in (None, part.message)]
        redacted = log.read(self.viewer.stream, types=("redaction_applied",))
        past = Superseded.of(history, redacted)
        live = [part.span.summary for part in chosen if part.span]
        behind = dict.fromkeys(seq for seq in live if seq is not None)
        return Explanation(
            strategy=self.strategy,
            at=at,
            message=message,
            view=view,
            sent=self._proved(sent, view, past),
            parts=tuple(chosen),
            records=tuple(self._records(nodes, behind, events, derived, past)),
            unshown=tuple(_of_parts(out, chosen) if message else out),
            events=events,
            pins=_pins(chosen, outline, events.values()),
            newest=max((one.seq for one in outline.summaries), default=None),
            chains=tuple(self._chains(with_derived=bool(derived))) if chains else (),
            superseded=past.main.intersection(events),
            provenance=provenance(log, self.viewer.stream, view),
        )

    @property
    def _derived(self) -> StreamId:
        return self.viewer.stream._replace(stream=self.strategy.fingerprint)

    def _view(
        self, at: int | None, sent: tuple[Envelope, Request] | None
    ) -> tuple[View, Outline]:
        if at is None:
            outline = self.viewer.current(self.strategy)
            return self.viewer.render(self.strategy, outline), outline
        if sent is None or sent[0].seq != at:
            outline = self.viewer.at(self.strategy, at, "sent")
            handed = self.viewer.handed_at(at)
            return self.viewer.render(self.strategy, outline, handed), outline
        views = RequestedViews(self.viewer)
        return views.view(sent[1]), views.outline(self.strategy, sent[1])

    def _proved(
        self, sent: tuple[Envelope, Request] | None, view: View, past: Superseded
    ) -> Sent | None:
        if sent is None:
            return None
        envelope, request = sent
        again = RequestedViews(self.viewer).view(request)
        proof: Proof = "holds"
        if differs(again, request):
            proof = "superseded" if past.touches_request(envelope) else "broken"
        shown = view.digest == again.digest
        return Sent(envelope, request, again.digest, proof, shown)

    def _records(
        self,
        nodes: Mapping[int, why.Node],
        live: Collection[int],
        events: Mapping[int, Envelope],
        derived: Sequence[Envelope],
        past: Superseded,
    ) -> Iterator[Record]:
        found = list(why.with_absorbed(nodes, *live))
        outlines = self._decided_on([node for _, node in found], events, derived)
        for depth, node in found:
            summary = node.summary
            source: Proof = "holds"
            if not self.viewer.source_matches(node.envelope):
                past_it = past.touches_summary(node.envelope)
                source = "superseded" if past_it else "broken"
            decided_on = events.get(summary.decided_at_seq)
            clocks = list(_clocks(node.envelope, summary.decided_at_seq, events))
            asked = why.ask_again(self.strategy, outlines[node.seq], summary, clocks)
            yield Record(node, depth, node.seq in live, decided_on, asked, source)

    def _decided_on(
        self,
        nodes: Iterable[why.Node],
        events: Mapping[int, Envelope],
        derived: Sequence[Envelope],
    ) -> dict[int, Outline]:
        """The outlines with which these summaries were decided, in one walk, by seq."""
        outlines: dict[int, Outline] = {}
        outline = self.strategy.begin()
        main, own = deque(events.values()), deque(derived)
        for node in sorted(nodes, key=lambda node: node.seq):
            while own and own[0].seq < node.seq:
                envelope = own.popleft()
                upto = getattr(envelope.payload, "decided_at_seq", None) or 0
                outline = self._read(outline, main, upto)
                outline = fold_derived(outline, envelope)
            outline = self._read(outline, main, node.summary.decided_at_seq)
            outlines[node.seq] = outline
        return outlines

    def _read(self, outline: Outline, main: deque[Envelope], upto: int) -> Outline:
        while main and main[0].seq <= upto:
            outline = self.strategy.fold(outline, main.popleft())
        return outline

    def _chains(self, *, with_derived: bool) -> Iterator[Chain]:
        """The chains of the session and of those it was forked from."""
        history: History | None = self.viewer.history
        streams = []
        while history is not None:
            streams.append(history.stream.main)
            history = history.parent
        for stream in [*streams, self._derived] if with_derived else streams:
            count, last, problems = 0, "", list[Problem]()
            for item in self.viewer.log.audit(stream):
                if not isinstance(item, Problem):
                    count, last = count + 1, item.hash
                elif item.code != EXPIRED:
                    problems.append(item)
            yield Chain(stream, count, last, tuple(problems))


def _of_parts(
    found: Iterable[why.Unshown], parts: Sequence[why.Part]
) -> Iterator[why.Unshown]:
    """What these parts stand for."""
    stubs: Final = ("cleared", "pins_budget", "window")
    spans = [(part.cause, part.span) for part in parts if part.span is not None]
    summaries = {span.summary for _, span in spans} - {None}
    for one in found:
        in_stub = any(
            cause == one.why
            and cause in stubs
            and (span.first or 0) <= one.seq <= (span.last or 0)
            for cause, span in spans
        )
        if one.summary in summaries or in_stub:
            yield one


def _pins(
    parts: Iterable[why.Part], outline: Outline, events: Iterable[Envelope]
) -> dict[int, Envelope]:
    """Of each event that is shown because it is pinned, the newest that pins it."""
    pins: dict[int, Envelope] = {}
    for envelope in events:
        pin = envelope.payload
        if isinstance(pin, Pin) and envelope.seq <= (outline.decided_at or 0):
            for seq in pin.seqs:
                pins.pop(seq, None)
                if not pin.unpin:
                    pins[seq] = envelope
    shown = (seq for part in parts if part.cause == "pinned" for seq in part.seqs)
    return {seq: pins[seq] for seq in shown if seq in pins}


def _clocks(
    envelope: Envelope, decided_at: int, events: Mapping[int, Envelope]
) -> Iterator[datetime]:
    """When a summary may have been decided, the likeliest first; or events' times."""
    took = getattr(envelope.payload, "duration_ms", None) or 0
    yield envelope.ts - timedelta(milliseconds=took)
    for seq in (decided_at, decided_at + 1):
        if seq in events:
            yield events[seq].ts


class Skipped(NamedTuple):
    """A strategy that could not be run with its defaults, and why."""

    strategy: str
    why: str


class Compared(NamedTuple):
    """A log under strategies, in their order, and those left out.

    model:  whose prices and cache rules counted.
    events: how many the log has.
    """

    outcomes: tuple[Outcome, ...]
    skipped: tuple[Skipped, ...]
    model: ModelInfo
    events: int

    def _repr_html_(self) -> str:
        """The figures of each strategy as notebooks show them."""
        names = ("requests", "tokens", "peak", "compactions", "US$", "recall")
        rows = [
            (
                one.label,
                len(one.sent),
                one.tokens_total,
                one.tokens_peak,
                len(one.compactions),
                "" if one.total_cost is None else f"{one.total_cost:.4f}",
                "" if one.reference_recall is None else f"{one.reference_recall:.2f}",
            )
            for one in self.outcomes
        ]
        title = f"{errors.counted(self.events, 'event')}, prices of {self.model.name}"
        return html_table(title, ("strategy", *names), rows)


class How(TypedDict, total=False):
    """How a log is compared.

    model:      whose prices, cache rules and window count; left out, the prices and
                cache rules of the model that answered last, or of ``DEFAULT_MODEL``,
                and the window that contexts have without a model.
    prices:     a TOML file with a table [models] that stands before all others.
    recorded:   whether the summaries that are in the log are used, from where they were
                decided, and no others made.
    summarizer: what writes those that are made, in memory; left out, ``abridged``.
    """

    model: str | None
    prices: str | os.PathLike[str] | None
    recorded: bool
    summarizer: Summarizer | None


def compare(
    viewer: Viewer,
    strategies: Iterable[str | Strategy] | None,
    how: How,
    settings: Settings,
) -> Compared:
    """The session's log under ``strategies``, or under all there are.

    Raises UnknownStrategy, UnknownModel, InvalidConfiguration.
    """
    if (prices := how.get("prices")) is not None:
        table = settings.read_toml(Path(prices)).get("models")
        if not isinstance(table, dict):
            raise errors.InvalidConfiguration(f"{prices} has no table [models]")
        models.register_models(table, where=os.fspath(prices))
    named = [(given, settings.strategy(given)) for given in strategies or ()]
    model = how.get("model")
    known = models.model_info(model) if model else None
    events = [with_blobs(viewer.log, event) for event in viewer.history.events()]
    comparison = Comparison(
        events,
        known or _model_of(events),
        how.get("summarizer") or Abridged(),
        Extras(window_tokens=known.context_tokens) if known else NO_EXTRAS,
    )

    def under(strategy: Strategy, label: str) -> Outcome:
        stream = viewer.stream._replace(stream=strategy.fingerprint)
        recorded = standing(viewer.log.read(stream)) if how.get("recorded") else None
        return comparison.under(strategy, label=label, recorded=recorded)

    outcomes, skipped = [under(one, _label(given, one)) for given, one in named], []
    for name in spec.STRATEGIES if strategies is None else ():
        try:
            outcomes.append(under(_default(name, comparison.model, settings), name))
        except errors.RefoldError as error:
            skipped.append(Skipped(name, str(error)))
    return Compared(tuple(outcomes), tuple(skipped), comparison.model, len(events))


def _default(name: str, model: ModelInfo, settings: Settings) -> Strategy:
    """The strategy as configured; for the compared model if it has to know one."""
    try:
        return settings.strategy(name)
    except errors.RefoldError:
        if "model" not in spec.STRATEGIES[name].model_fields:
            raise
        return spec.strategy(name, {"model": model.name})


def _label(given: str | Strategy, strategy: Strategy) -> str:
    """As it was named, or its own name with the parameters it was given."""
    if isinstance(given, str):
        return given
    fields = [f for f in type(strategy).model_fields if f in strategy.model_fields_set]
    params = ",".join(f"{name}={getattr(strategy, name)}" for name in fields)
    return f"{strategy.name}:{params}" if params else strategy.name


def _model_of(events: Sequence[Envelope]) -> ModelInfo:
    """The model that answered last, if its prices are known; else the default."""
    answers = (e for e in reversed(events) if isinstance(e.payload, AgentResponse))
    named = next((e.meta.model for e in answers if e.meta.model), None)
    try:
        info = models.model_info(named or DEFAULT_MODEL)
    except errors.UnknownModel:
        info = models.model_info(DEFAULT_MODEL)
    return info if info.prices else models.model_info(DEFAULT_MODEL)
