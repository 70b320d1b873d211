"""Explanations: the cause of each part of a context, derived from the log."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypedDict

from refold.domain import errors
from refold.domain.canonical import load_packaged_toml
from refold.domain.envelope import Envelope, microseconds
from refold.domain.erasure import timestamp
from refold.domain.events import AgentResponse, Pin, Request
from refold.domain.ids import StreamId
from refold.domain.model import repr_without_texts
from refold.domain.ports import EXPIRED, Problem
from refold.projections import models
from refold.projections.compare import Comparison, Outcome
from refold.projections.context import why
from refold.projections.context.abridged import Abridged
from refold.projections.context.budget import NO_EXTRAS, Extras
from refold.projections.context.compaction import Summarizer
from refold.projections.context.edits import HistoryEdited, edits_in
from refold.projections.context.outline import Outline, fold_derived, since_last_rebuild
from refold.projections.context.strategies import spec
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategy import Strategy
from refold.projections.context.units import spans_of
from refold.projections.context.view import View, html_table
from refold.projections.models import ModelInfo
from refold.store.contexts import (
    RecordedRequest,
    RequestedViews,
    Viewer,
    with_derived,
)
from refold.store.history import History, WithBlobs
from refold.store.proofs.differences import Difference, differences
from refold.store.proofs.provenance import (
    ASSUMED,
    Bill,
    Provenance,
    bill_of,
    provenance,
)
from refold.store.proofs.verification import Superseded, changed_part
from refold.store.settings import Settings

Proof = Literal["holds", "superseded", "broken"]
# The sentences for people, by cause and by reason.
_REASONS: Final = load_packaged_toml("refold.store.proofs", "reasons.toml")
BECAUSE: Final[Mapping[why.Cause, str]] = _REASONS["because"]
LEFT_OUT: Final[Mapping[why.Reason, str]] = _REASONS["left_out"]
# Causes of parts that the newest compaction decided to send word for word.
_DECIDED_RAW: Final = (
    "raw",
    "open",
    "newest_input",
    "pinned",
    "protected",
    "pins_budget",
)
# Causes of parts that are stubs in place of events.
_STUB_CAUSES: Final = ("cleared", "pins_budget", "window")
# Fields of a summary that its JSON leaves out here, or has under another key.
_NOT_REPEATED: Final = ("strategy", "text", "abridged")
_KEEP_ALL: Final = KeepAll()
# The model whose prices apply if the model of the log is unknown.
DEFAULT_MODEL: Final = "claude-sonnet-5-5"


class SummaryRecord(NamedTuple):
    """The explanation of a summary.

    depth:       the number of summaries that absorbed it, one after another.
    live:        whether it is in the context; if not, another summary has absorbed it.
    decided_on:  the newest event at the time of the decision.
    asked_again: what the strategy decides when it is asked again.
    source:      whether the source digest could be derived again; ``superseded`` if the
                 sources were redacted later.
    """

    node: why.Node
    depth: int
    live: bool
    decided_on: Envelope | None
    asked_again: why.Asked
    source: Proof


class Sent(NamedTuple):
    """A recorded request, and the view that was derived again for it.

    digest: the digest of that view.
    proof:  whether it is the recorded digest.
    shown:  whether the explained context has the digest of that view.
    differences: the reasons for which the provider got other bytes than the view; none
                 if it got exactly these, or if it is not known.
    """

    envelope: Envelope
    request: Request
    digest: str
    proof: Proof
    shown: bool
    differences: tuple[Difference, ...] = ()


class Chain(NamedTuple):
    """The hash chain of a stream, proved from its first event.

    events: the number of events.
    hash:   the hash of the last event.
    """

    stream: StreamId
    events: int
    hash: str
    problems: tuple[Problem, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the chain as JSON."""
        return {
            "session_id": self.stream.session_id,
            "stream": self.stream.stream,
            "events": self.events,
            "hash": self.hash,
            "problems": [problem.to_json() for problem in self.problems],
        }


@repr_without_texts
@dataclass(frozen=True, slots=True)
class Explanation:
    """The parts of a context, each with its cause.

    at:         the requested seq.  The view may end earlier, at a request.
    message:    the number of the one explained message; None if all are explained.
    sent:       the newest recorded request up to ``at``, if there is one.
    parts:      the parts of the view, or of that message, in their order.
    records:    the summaries behind the parts.  Each comes before those it absorbed.
    unshown:    the events that are not shown, with reasons; for one message, the events
                that its parts replace.
    events:     all events up to ``at`` by seq; events of a parent count down from 0.
    pins:       the pin event of each event that is shown because it is pinned.
    newest:     the seq of the newest summary, whose decision set what stays raw.
    superseded: the seqs of events that were redacted after they were sent.
    provenance: the evidence that the view was sent.
    bill:       the billed tokens of the answer to the view, if an event reports them.
    """

    strategy: Strategy
    at: int
    message: int | None
    view: View
    sent: Sent | None
    parts: tuple[why.Part, ...]
    records: tuple[SummaryRecord, ...]
    unshown: tuple[why.Unshown, ...]
    events: Mapping[int, Envelope]
    pins: Mapping[int, Envelope]
    newest: int | None
    chains: tuple[Chain, ...]
    superseded: frozenset[int]
    provenance: Provenance
    bill: Bill | None = None

    def _repr_html_(self) -> str:
        """Return a table of the parts for notebooks, without their content.

        The content is left out because notebooks store their outputs.
        """
        names = ("message", "role", "kind", "events", "why")
        rows = []
        for part in self.parts:
            kind = ""
            if part.span:
                kind = part.span.kind
            spans = spans_of(sorted(part.seqs))
            seqs = ", ".join(f"{first}-{last}" for first, last in spans)
            message = part.message or "system"
            rows.append((message, part.role, kind, seqs, BECAUSE[part.cause]))
        number = errors.counted(len(self.unshown), "event")
        title = f"{self.strategy.name} at seq {self.at}: {number} not shown"
        return html_table(title, names, rows)

    def with_absorbed(self, summary: int) -> tuple[SummaryRecord, ...]:
        """Return a summary and those that it absorbed, in their order.

        Raises InvalidEvent if the summary is not in this context.
        """
        records = {record.node.seq: record for record in self.records}
        if summary not in records:
            existing = ", ".join(map(str, sorted(records))) or "none"
            raise errors.InvalidEvent(
                f"summary {summary} is not in this context (there is: {existing})"
            )
        nodes = {seq: record.node for seq, record in records.items()}
        absorbed_records = []
        for depth, node in why.with_absorbed(nodes, summary):
            absorbed_records.append(records[node.seq]._replace(depth=depth))
        return tuple(absorbed_records)

    def unshown_groups(self) -> Iterator[tuple[why.Unshown, list[Envelope]]]:
        """Yield the groups of events that are not shown for the same cause.

        The events of a group have the reason, the summary, the edit, and the way to the
        summary (``via``) in common.  The first item of each pair is the entry of the
        group's first event.  Groups that differ only in ``via`` follow each other.
        """
        # Two levels keep groups with the same reason, summary and edit together.
        by_cause: dict[tuple[object, ...], dict[object, list[why.Unshown]]] = {}
        for unshown in self.unshown:
            cause = (unshown.why, unshown.summary, unshown.edit)
            by_via = by_cause.setdefault(cause, {})
            by_via.setdefault(unshown.via, []).append(unshown)
        for by_via in by_cause.values():
            for group in by_via.values():
                yield group[0], [self.events[unshown.seq] for unshown in group]

    def source_events(self, record: SummaryRecord) -> list[Envelope]:
        """Return the events that a summary was made of, except absorbed summaries."""
        span = record.node.own_span
        if span is None:
            return []
        first, last = span
        visible = []
        for seq in range(first, last + 1):
            event = self.events.get(seq)
            if event is None:
                continue
            visible_event = self.strategy.sees(event)
            if visible_event:
                visible.append(visible_event)
        return why.source_events(record.node, visible, edits_in(self.events.values()))

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON.

        It describes events by seq, type, time and hash, never by content.
        """
        request = None
        if self.sent is not None:
            request = _request_json(self.sent)
        return {
            "at": self.at,
            "message": self.message,
            "strategy": self.strategy.ref.model_dump(mode="json"),
            "view": {
                "through_seq": self.view.at,
                "derived_seq": self.view.derived_seq,
                "digest": self.view.digest,
                "tokens": self.view.tokens,
                "over_budget": self.view.over_budget,
                "messages": len(self.view.messages),
            },
            "provenance": self.provenance.kind,
            "bill": self.bill.to_json() if self.bill else None,
            "request": request,
            "chains": [chain.to_json() for chain in self.chains],
            "parts": [self._part_json(part) for part in self.parts],
            "summaries": [self._summary_json(record) for record in self.records],
            "left_out": [
                _group_json(first, events) for first, events in self.unshown_groups()
            ],
            "superseded": sorted(self.superseded),
        }

    def _part_json(self, part: why.Part) -> dict[str, Any]:
        """Return a part as JSON."""
        span: dict[str, Any] = {}
        for name in ("kind", "first", "last", "summary"):
            span[name] = getattr(part.span, name, None)
        decided_by = span["summary"]
        if decided_by is None and part.cause in _DECIDED_RAW:
            decided_by = self.newest
        pinned_by = []
        for seq in dict.fromkeys(part.seqs):
            if seq in self.pins:
                pin = self.pins[seq]
                reason = pin.payload.payload()["reason"]
                pinned_by.append({"seq": seq, "pin": pin.seq, "reason": reason})
        return {
            "message": part.message,
            "role": part.role,
            "first_block": part.first,
            "blocks": part.blocks,
            **span,
            "cause": part.cause,
            "why": BECAUSE[part.cause],
            "decided_by": decided_by,
            "pinned_by": pinned_by,
            "events": [self.reference(self.events[seq]) for seq in part.seqs],
        }

    def _summary_json(self, record: SummaryRecord) -> dict[str, Any]:
        """Return the record of a summary as JSON."""
        envelope = record.node.envelope
        summary = record.node.summary
        fields: dict[str, Any] = {}
        for name, value in summary.payload().items():
            if name not in _NOT_REPEATED:
                fields[name] = value
        decided_at = None
        if record.decided_on is not None:
            decided_at = timestamp(record.decided_on.at)
        asked_again = record.asked_again._asdict()
        if record.asked_again.clock is not None:
            asked_again["clock"] = timestamp(microseconds(record.asked_again.clock))
        decided = record.asked_again.decided
        if decided is not None:
            asked_again["decided"] = [decided.first_seq, decided.last_seq]
        return {
            "seq": record.node.seq,
            "live": record.live,
            **fields,
            "ts": timestamp(envelope.at),
            "hash": envelope.hash,
            "decided_at": decided_at,
            "asked_again": asked_again,
            "source": record.source,
            "text": summary.text,
            "abridged": summary.abridged,
            "events": [self.reference(event) for event in self.source_events(record)],
        }

    def reference(self, envelope: Envelope) -> dict[str, Any]:
        """Return a reference to an event as JSON.

        For an event of a parent, it also names the session.
        """
        reference: dict[str, Any] = {
            "seq": envelope.seq,
            "type": envelope.type,
            "hash": envelope.hash,
            "ts": timestamp(envelope.at),
            "tokens": envelope.token_estimate,
        }
        if envelope.seq < 1:
            reference["session_id"] = envelope.session_id
        if envelope.seq in self.superseded:
            reference["superseded"] = True
        return reference


def _group_json(first: why.Unshown, events: list[Envelope]) -> dict[str, Any]:
    """Return a group of events that are not shown as JSON.

    first: the entry of the first event, which has the facts of the group.
    """
    spans = spans_of(event.seq for event in events)
    return {
        "why": first.why,
        "meaning": LEFT_OUT[first.why],
        "summary": first.summary,
        "edit": first.edit,
        "via": first.via,
        "spans": [list(span) for span in spans],
        "events": len(events),
        "types": dict(Counter(event.type for event in events)),
    }


def _request_json(sent: Sent) -> dict[str, Any]:
    """Return a recorded request as JSON."""
    return {
        "seq": sent.envelope.seq,
        "ts": timestamp(sent.envelope.at),
        "model": sent.request.model,
        "through_seq": sent.request.through_seq,
        "derived_seq": sent.request.derived_seq,
        "digest": sent.request.digest,
        "matches": sent.request.matches,
        "differences": [difference.to_json() for difference in sent.differences],
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
        """Explain the context that a model was sent when ``at`` was the newest event.

        If ``at`` is a recorded request, this is the context of that request.  None
        means the context of the next call.

        message: the number of a message, counted from 1; None means all of them.
        chains:  also prove the hash chains.

        Raises InvalidEvent if the context has no such message.
        """
        log = self.viewer.log
        recorded = self.viewer.newest_request(
            upto=at, fingerprint=self.strategy.fingerprint, to_model=True
        )
        view, outline = self._view(at, recorded)
        outline = self.strategy.as_shown(outline)
        if at is None:
            at = view.at
        events = {event.seq: event for event in self.viewer.history.events(upto=at)}
        count = len(view.messages)
        if message is not None and not 1 <= message <= count:
            raise errors.InvalidEvent(
                f"message {message} is not in this context: it has {count}, "
                "counted from 1"
            )
        derived = since_last_rebuild(
            log.read(self._derived_stream, upto=outline.derived_seq)
        )
        nodes = why.nodes_of(derived)
        all_parts = why.parts_of(self.strategy, outline, view, events)
        unshown: Iterable[why.Unshown] = why.unshown(
            self.strategy, outline, all_parts, nodes, list(events.values())
        )
        parts = [part for part in all_parts if message in (None, part.message)]
        if message:
            unshown = _replaced_by(parts, unshown)
        redactions = log.read(self.viewer.stream, types=("redaction_applied",))
        superseded = Superseded.of(self.viewer.history, redactions)
        live: dict[int, None] = {}  # summaries in the order of the parts, each once
        for part in parts:
            if part.span and part.span.summary is not None:
                live[part.span.summary] = None
        proved_chains: tuple[Chain, ...] = ()
        if chains:
            proved_chains = tuple(self._proved_chains(with_derived=bool(derived)))
        origin = provenance(log, self.viewer.stream, view)
        return Explanation(
            strategy=self.strategy,
            at=at,
            message=message,
            view=view,
            sent=self._proved_request(recorded, view, superseded, events),
            parts=tuple(parts),
            records=tuple(self._records(nodes, live, events, derived, superseded)),
            unshown=tuple(unshown),
            events=events,
            pins=_pins(parts, outline, events.values()),
            newest=max((summary.seq for summary in outline.summaries), default=None),
            chains=proved_chains,
            superseded=superseded.main.intersection(events),
            provenance=origin,
            bill=self._bill(view, origin),
        )

    def _bill(self, view: View, origin: Provenance) -> Bill | None:
        """Return the bill of the answer to a view, with the offset of the session."""
        log = self.viewer.log
        stream = self.viewer.stream
        bill = bill_of(log, stream, view, origin)
        if bill is None:
            return None
        first = log.read(stream, types=("agent_response", "tool_call"), limit=1)
        if not first or first[0].seq < 2:
            return bill
        outline = self.viewer.at(_KEEP_ALL, first[0].seq - 1, "sent")
        first_view = self.viewer.render(_KEEP_ALL, outline)
        first_bill = bill_of(log, stream, first_view, ASSUMED)
        if first_bill is None:
            return bill
        offset = first_bill.billed - first_bill.counted
        return bill._replace(offset=max(0, offset))

    @property
    def _derived_stream(self) -> StreamId:
        """The stream with the summaries of the strategy."""
        return self.viewer.stream._replace(stream=self.strategy.fingerprint)

    def _view(
        self, at: int | None, recorded: RecordedRequest | None
    ) -> tuple[View, Outline]:
        """Return the view to explain, with its outline.

        recorded: the newest request up to ``at``.
        """
        if at is None:
            outline = self.viewer.current(self.strategy)
            return self.viewer.render(self.strategy, outline), outline
        if recorded is None or recorded.envelope.seq != at:
            outline = self.viewer.at(self.strategy, at, "sent")
            parts = self.viewer.parts_at(at)
            return self.viewer.render(self.strategy, outline, parts), outline
        views = RequestedViews(self.viewer)
        view = views.view(recorded.request)
        return view, views.outline(self.strategy, recorded.request)

    def _proved_request(
        self,
        recorded: RecordedRequest | None,
        view: View,
        superseded: Superseded,
        events: Mapping[int, Envelope],
    ) -> Sent | None:
        """Derive the view of a request again, and compare it with its digest."""
        if recorded is None:
            return None
        views = RequestedViews(self.viewer)
        derived_view = views.view(recorded.request)
        proof: Proof = "holds"
        if changed_part(derived_view, recorded.request):
            proof = "broken"
            if superseded.touches_request(recorded.envelope):
                proof = "superseded"
        return Sent(
            envelope=recorded.envelope,
            request=recorded.request,
            digest=derived_view.digest,
            proof=proof,
            shown=view.digest == derived_view.digest,
            differences=self._differences(recorded, views, derived_view, events),
        )

    def _differences(
        self,
        recorded: RecordedRequest,
        views: RequestedViews,
        view: View,
        events: Mapping[int, Envelope],
    ) -> tuple[Difference, ...]:
        """Return the reasons for which a request did not send exactly its view.

        view: the view of the request.
        """
        if recorded.request.matches is not False:
            return ()
        outline = views.outline(self.strategy, recorded.request)
        parts = why.parts_of(self.strategy, outline, view, events)
        last = recorded.request.through_seq
        seen = [event for seq, event in sorted(events.items()) if seq <= last]
        return tuple(differences(recorded.envelope, seen, parts))

    def _records(
        self,
        nodes: Mapping[int, why.Node],
        live: Collection[int],
        events: Mapping[int, Envelope],
        derived: Sequence[Envelope],
        superseded: Superseded,
    ) -> Iterator[SummaryRecord]:
        """Yield the records of summaries, each before those that it absorbed.

        live: the seqs of the summaries in the context.
        """
        edits = edits_in(events.values())
        nodes_by_depth = list(why.with_absorbed(nodes, *live))
        outlines = self._outlines_of_decisions(
            [node for _, node in nodes_by_depth], events, derived
        )
        for depth, node in nodes_by_depth:
            summary = node.summary
            source: Proof = "holds"
            if not self.viewer.source_matches(node.envelope, edits):
                source = "broken"
                if superseded.touches_summary(node.envelope):
                    source = "superseded"
            clocks = list(_clocks(node.envelope, summary.decided_at_seq, events))
            yield SummaryRecord(
                node=node,
                depth=depth,
                live=node.seq in live,
                decided_on=events.get(summary.decided_at_seq),
                asked_again=why.ask_again(
                    self.strategy, outlines[node.seq], summary, clocks
                ),
                source=source,
            )

    def _outlines_of_decisions(
        self,
        nodes: Iterable[why.Node],
        events: Mapping[int, Envelope],
        derived: Sequence[Envelope],
    ) -> dict[int, Outline]:
        """Return the outline on which each summary was decided, by the summary's seq.

        One pass over both streams folds all of them.
        """
        outlines: dict[int, Outline] = {}
        outline = self.strategy.begin()
        main_queue = deque(events.values())
        derived_queue = deque(derived)
        for node in sorted(nodes, key=lambda node: node.seq):
            while derived_queue and derived_queue[0].seq < node.seq:
                envelope = derived_queue.popleft()
                upto = getattr(envelope.payload, "decided_at_seq", None) or 0
                outline = self._fold_until(outline, main_queue, upto)
                outline = fold_derived(outline, envelope)
            decided_at = node.summary.decided_at_seq
            outline = self._fold_until(outline, main_queue, decided_at)
            outlines[node.seq] = outline
        return outlines

    def _fold_until(
        self, outline: Outline, queue: deque[Envelope], upto: int
    ) -> Outline:
        """Take the events up to a seq out of the queue, and fold them."""
        while queue and queue[0].seq <= upto:
            envelope = queue.popleft()
            try:
                outline = self.strategy.fold(outline, envelope)
            except HistoryEdited:
                outline = self._fold_all(envelope.seq, outline.derived_seq)
        return outline

    def _fold_all(self, seq: int, derived_seq: int) -> Outline:
        """Fold the log up to ``seq``, and the derived stream up to ``derived_seq``."""
        outline = self.viewer.fold_all(self.strategy, upto=seq)
        if not derived_seq:
            return outline
        derived = self.viewer.log.read(self._derived_stream, upto=derived_seq)
        return with_derived(outline, derived)

    def _proved_chains(self, *, with_derived: bool) -> Iterator[Chain]:
        """Prove the hash chains of the session and of its parents.

        with_derived: also prove the hash chain of the summaries.
        """
        streams = []
        history: History | None = self.viewer.history
        while history is not None:
            streams.append(history.stream.main)
            history = history.parent
        if with_derived:
            streams.append(self._derived_stream)
        for stream in streams:
            events = 0
            last_hash = ""
            problems: list[Problem] = []
            for item in self.viewer.log.audit(stream):
                if not isinstance(item, Problem):
                    events += 1
                    last_hash = item.hash
                elif item.code != EXPIRED:
                    problems.append(item)
            yield Chain(stream, events, last_hash, tuple(problems))


def _replaced_by(
    parts: Sequence[why.Part], unshown: Iterable[why.Unshown]
) -> Iterator[why.Unshown]:
    """Yield the events that are not shown because these parts replace them."""
    summaries: set[int] = set()
    stubs: list[why.Part] = []
    for part in parts:
        if part.span is None:
            continue
        if part.span.summary is not None:
            summaries.add(part.span.summary)
        if part.cause in _STUB_CAUSES:
            stubs.append(part)
    for event in unshown:
        if event.summary in summaries or any(
            _is_in_stub(event, stub) for stub in stubs
        ):
            yield event


def _is_in_stub(event: why.Unshown, stub: why.Part) -> bool:
    """Whether a stub replaces this event."""
    if stub.span is None or stub.cause != event.why:
        return False
    return (stub.span.first or 0) <= event.seq <= (stub.span.last or 0)


def _pins(
    parts: Iterable[why.Part], outline: Outline, events: Iterable[Envelope]
) -> dict[int, Envelope]:
    """Return the newest pin event of each event that is shown because it is pinned."""
    pins: dict[int, Envelope] = {}
    for envelope in events:
        pin = envelope.payload
        if isinstance(pin, Pin) and envelope.seq <= (outline.decided_at or 0):
            for seq in pin.seqs:
                pins.pop(seq, None)
                if not pin.unpin:
                    pins[seq] = envelope
    shown: dict[int, Envelope] = {}
    for part in parts:
        if part.cause == "pinned":
            for seq in part.seqs:
                if seq in pins:
                    shown[seq] = pins[seq]
    return shown


def _clocks(
    envelope: Envelope, decided_at: int, events: Mapping[int, Envelope]
) -> Iterator[datetime]:
    """Yield the times at which a summary may have been decided, the likeliest first."""
    duration_ms = getattr(envelope.payload, "duration_ms", None) or 0
    yield envelope.ts - timedelta(milliseconds=duration_ms)
    for seq in (decided_at, decided_at + 1):
        if seq in events:
            yield events[seq].ts


class Skipped(NamedTuple):
    """A strategy that could not run with its defaults, and the reason."""

    strategy: str
    why: str


class Compared(NamedTuple):
    """A comparison of a log under several strategies.

    outcomes: the outcome under each strategy, in their order.
    skipped:  the strategies that could not run.
    model:    the model whose prices and cache rules are used.
    events:   the number of events in the log.
    """

    outcomes: tuple[Outcome, ...]
    skipped: tuple[Skipped, ...]
    model: ModelInfo
    events: int

    def _repr_html_(self) -> str:
        """Return a table with the figures of each strategy for notebooks."""
        names = (
            "strategy",
            "requests",
            "tokens",
            "peak",
            "compactions",
            "US$",
            "recall",
        )
        rows = []
        for outcome in self.outcomes:
            cost = ""
            if outcome.total_cost is not None:
                cost = f"{outcome.total_cost:.4f}"
            recall = ""
            if outcome.reference_recall is not None:
                recall = f"{outcome.reference_recall:.2f}"
            row = (
                outcome.label,
                len(outcome.sent),
                outcome.tokens_total,
                outcome.tokens_peak,
                len(outcome.compactions),
                cost,
                recall,
            )
            rows.append(row)
        title = f"{errors.counted(self.events, 'event')}, prices of {self.model.name}"
        return html_table(title, names, rows)


class CompareArgs(TypedDict, total=False):
    """The options of a comparison.

    model:      the model whose prices, cache rules and window are used.  By default,
                prices and cache rules are those of the model that answered last, else
                of ``DEFAULT_MODEL``; the window is that of contexts without a model.
    prices:     a TOML file with a table [models], which overrides all other prices.
    recorded:   use the recorded summaries where they were decided, and make no others.
    summarizer: writes the summaries that are made in memory; ``abridged`` by default.
    """

    model: str | None
    prices: str | os.PathLike[str] | None
    recorded: bool
    summarizer: Summarizer | None


def compare(
    viewer: Viewer,
    strategies: Iterable[str | Strategy] | None,
    options: CompareArgs,
    settings: Settings,
) -> Compared:
    """Compare the session's log under these strategies; None means all that exist.

    Raises UnknownStrategy, UnknownModel, InvalidConfiguration.
    """
    prices = options.get("prices")
    if prices is not None:
        table = settings.read_toml(Path(prices)).get("models")
        if not isinstance(table, dict):
            raise errors.InvalidConfiguration(f"{prices} has no table [models]")
        models.register_models(table, where=os.fspath(prices))
    labelled: list[tuple[str, Strategy]] = []
    for requested in strategies or ():
        strategy = settings.strategy(requested)
        labelled.append((_label(requested, strategy), strategy))
    named_model = None
    extras = NO_EXTRAS
    model_name = options.get("model")
    if model_name:
        named_model = models.model_info(model_name)
        extras = Extras(window_tokens=named_model.context_tokens)
    with_blobs = WithBlobs.read(viewer.log, viewer.history.events())
    events = with_blobs.events
    comparison = Comparison(
        events,
        named_model or _model_of(events),
        options.get("summarizer") or Abridged(),
        extras,
        with_blobs.blobs.get,
    )

    def outcome_of(strategy: Strategy, label: str) -> Outcome:
        recorded = None
        if options.get("recorded"):
            stream = viewer.stream._replace(stream=strategy.fingerprint)
            recorded = since_last_rebuild(viewer.log.read(stream))
        return comparison.under(strategy, label=label, recorded=recorded)

    outcomes = [outcome_of(strategy, label) for label, strategy in labelled]
    skipped = []
    if strategies is None:
        for name in spec.STRATEGIES:
            try:
                strategy = _configured(name, comparison.model, settings)
                outcomes.append(outcome_of(strategy, name))
            except errors.RefoldError as error:
                skipped.append(Skipped(name, str(error)))
    return Compared(tuple(outcomes), tuple(skipped), comparison.model, len(events))


def _configured(name: str, model: ModelInfo, settings: Settings) -> Strategy:
    """Return the strategy as configured.

    A strategy that needs the name of a model gets the name of ``model``.
    """
    try:
        return settings.strategy(name)
    except errors.RefoldError:
        if "model" not in spec.STRATEGIES[name].model_fields:
            raise
        return spec.strategy(name, {"model": model.name})


def _label(requested: str | Strategy, strategy: Strategy) -> str:
    """Return the text that named the strategy, else its name with its parameters."""
    if isinstance(requested, str):
        return requested
    params = []
    for name in type(strategy).model_fields:
        if name in strategy.model_fields_set:
            params.append(f"{name}={getattr(strategy, name)}")
    if not params:
        return strategy.name
    return f"{strategy.name}:{','.join(params)}"


def _model_of(events: Sequence[Envelope]) -> ModelInfo:
    """Return the model that answered last if its prices are known, else the default."""
    name = DEFAULT_MODEL
    for envelope in reversed(events):
        if isinstance(envelope.payload, AgentResponse) and envelope.meta.model:
            name = envelope.meta.model
            break
    try:
        info = models.model_info(name)
    except errors.UnknownModel:
        info = models.model_info(DEFAULT_MODEL)
    if info.prices:
        return info
    return models.model_info(DEFAULT_MODEL)
