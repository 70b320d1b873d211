"""Why a context is as it is: derived again from the log, and proved on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from refold.domain.envelope import Envelope
from refold.domain.errors import InvalidEvent
from refold.domain.events import Pin, RedactionApplied, Request
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import EXPIRED, EventLog, Problem
from refold.projections.context.asking_again import ask_again
from refold.projections.context.compaction import Compaction
from refold.projections.context.for_agent import reader_of
from refold.projections.context.outline import Outline, fold_derived
from refold.projections.context.source import source_of
from refold.projections.context.strategy import Strategy
from refold.projections.context.view import View
from refold.projections.context.why import (
    Node,
    Part,
    Unshown,
    nodes_of,
    opened,
    parts_of,
    pin_of,
    unshown,
)
from refold.store.explained import Chain, Explanation, Proof, Record, Sent
from refold.store.history import History
from refold.store.superseded import Superseded
from refold.store.viewing import Viewer


@dataclass(frozen=True, slots=True)
class Explainer:
    """Explains the contexts of one session under one strategy; writes nothing."""

    viewer: Viewer
    strategy: Strategy

    @property
    def log(self) -> EventLog:
        return self.viewer.log

    def explain(self, at: int | None, *, message: int | None = None) -> Explanation:
        """Take apart what a model was sent when ``at`` was the newest event.

        Where ``at`` is a recorded request, that is what is taken apart.  None is what
        the next call would be sent.

        message: counted from 1; None is all of them.

        Raises InvalidEvent if the context has no such message.
        """
        sent = self._sent(at)
        view, outline = self._view(at, sent)
        outline = self.strategy.judged(outline)
        at = view.at if at is None else at
        events = {event.seq: event for event in self.viewer.history.events(upto=at)}
        if message is not None and not 1 <= message <= len(view.messages):
            raise InvalidEvent(
                f"message {message} is not in this context: it has "
                f"{len(view.messages)}, counted from 1"
            )
        derived = self.log.read(self._derived, upto=outline.derived_seq)
        nodes = nodes_of(derived)
        parts = parts_of(self.strategy, outline, view, events)
        out = unshown(self.strategy, outline, parts, nodes, list(events.values()))
        chosen = [part for part in parts if message in (None, part.message)]
        past = Superseded(self.viewer.history, self._redacted())
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
            chains=tuple(self._chains(self.viewer.history, with_derived=bool(derived))),
            superseded=past.main.intersection(events),
        )

    @property
    def _derived(self) -> StreamId:
        return self.viewer.stream._replace(stream=self.strategy.fingerprint)

    def _sent(self, at: int | None) -> tuple[Envelope, Request] | None:
        """The newest request of this strategy up to there."""
        upto = at
        while found := self.log.read(
            self.viewer.stream, upto=upto, types=("request",), limit=1, newest=True
        ):
            (envelope,) = found
            request = envelope.payload
            if isinstance(request, Request) and (
                request.strategy.fingerprint == self.strategy.fingerprint
            ):
                return envelope, request
            upto = envelope.seq - 1
        return None

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
        request = sent[1]
        events = self.viewer.history.events(upto=request.through_seq)
        outline = self.strategy.read(self.strategy.begin(), events)
        for envelope in self.log.read(self._derived, upto=request.derived_seq):
            outline = fold_derived(outline, envelope)
        return self.viewer.requested(request), outline

    def _proved(
        self, sent: tuple[Envelope, Request] | None, view: View, past: Superseded
    ) -> Sent | None:
        if sent is None:
            return None
        envelope, request = sent
        again = self.viewer.requested(request).request()
        proof: Proof = "holds"
        if _digests(again) != _digests(request):
            proof = "superseded" if past.touches_request(envelope) else "broken"
        shown = view.digest == again.digest
        return Sent(envelope, request, again.digest, proof, shown)

    def _records(
        self,
        nodes: Mapping[int, Node],
        live: Iterable[int],
        events: Mapping[int, Envelope],
        derived: Sequence[Envelope],
        past: Superseded,
    ) -> Iterator[Record]:
        live = list(live)
        found = list(opened(nodes, *live))
        outlines = self._decided_on([node for _, node in found], events, derived)
        for depth, node in found:
            summary = node.summary
            source: Proof = "holds"
            if not _follows(node, nodes, events):
                past_it = past.touches_summary(node.envelope)
                source = "superseded" if past_it else "broken"
            decided_on = events.get(summary.decided_at_seq)
            clocks = list(_clocks(node.envelope, summary.decided_at_seq, events))
            asked = ask_again(self.strategy, outlines[node.seq], summary, clocks)
            yield Record(node, depth, node.seq in live, decided_on, asked, source)

    def _decided_on(
        self,
        nodes: Iterable[Node],
        events: Mapping[int, Envelope],
        derived: Sequence[Envelope],
    ) -> dict[int, Outline]:
        """The outline that each of these summaries was decided with, by its seq.

        Both streams are folded as they were then: each once, and side by side.
        """
        outlines: dict[int, Outline] = {}
        outline = self.strategy.begin()
        main, own = deque(events.values()), deque(derived)
        for node in sorted(nodes, key=lambda node: node.seq):
            while own and own[0].seq < node.seq:
                envelope = own.popleft()
                outline = self._read(outline, main, _decided_at(envelope))
                outline = fold_derived(outline, envelope)
            outline = self._read(outline, main, node.summary.decided_at_seq)
            outlines[node.seq] = outline
        return outlines

    def _read(self, outline: Outline, main: deque[Envelope], upto: int) -> Outline:
        while main and main[0].seq <= upto:
            outline = self.strategy.fold(outline, main.popleft())
        return outline

    def _redacted(self) -> dict[str, set[int]]:
        """The seqs of the session's events that were redacted again, by stream."""
        seqs: dict[str, set[int]] = {}
        for envelope in self.log.read(self.viewer.stream, types=("redaction_applied",)):
            if isinstance(envelope.payload, RedactionApplied):
                named = envelope.payload
                seqs.setdefault(named.stream, set()).update(named.seqs)
        return seqs

    def _chains(self, history: History, *, with_derived: bool) -> Iterator[Chain]:
        """The chains of the session and of those it was forked from."""
        streams = [history.stream._replace(stream=MAIN)]
        parent = history.parent
        while parent is not None:
            streams.append(parent.stream)
            parent = parent.parent
        if with_derived:
            streams.append(self._derived)
        for stream in streams:
            count, last, problems = 0, "", []
            for item in self.log.audit(stream):
                if isinstance(item, Problem):
                    problems += [item] if item.code != EXPIRED else []
                else:
                    count, last = count + 1, item.hash
            yield Chain(stream, count, last, tuple(problems))


def _follows(
    node: Node, nodes: Mapping[int, Node], events: Mapping[int, Envelope]
) -> bool:
    """Whether a summary's source digest is that of what it was made of."""
    summary, (first, last) = node.summary, node.own or (1, 0)
    compaction = Compaction.of(summary, reader=reader_of(summary.strategy))
    source = source_of(
        compaction,
        events=[events[seq] for seq in range(first, last + 1) if seq in events],
        summaries=[nodes[seq].envelope for seq in summary.absorbs],
    )
    return source.digest == summary.source_digest


def _decided_at(envelope: Envelope) -> int:
    return getattr(envelope.payload, "decided_at_seq", None) or 0


def _digests(request: Request) -> tuple[str | None, ...]:
    return (request.digest, request.system_digest, request.tools_digest)


def _of_parts(found: Iterable[Unshown], parts: Sequence[Part]) -> Iterator[Unshown]:
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
    parts: Iterable[Part], outline: Outline, events: Iterable[Envelope]
) -> dict[int, Envelope]:
    pins = [event for event in events if isinstance(event.payload, Pin)]
    upto = outline.decided_at or 0
    found = {}
    for part in parts:
        for seq in part.seqs if part.cause == "pinned" else ():
            if (pin := pin_of(seq, pins, upto=upto)) is not None:
                found[seq] = pin
    return found


def _clocks(
    envelope: Envelope, decided_at: int, events: Mapping[int, Envelope]
) -> Iterator[datetime]:
    """The times at which a summary may have been decided, the likeliest first.

    That is before its text was written; in a rebuild it is the time of the events.
    """
    took = getattr(envelope.payload, "duration_ms", None) or 0
    yield envelope.ts - timedelta(milliseconds=took)
    for seq in (decided_at, decided_at + 1):
        if seq in events:
            yield events[seq].ts
