"""What is said of a context: its parts, the summaries behind them, what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from refold.domain.envelope import Envelope
from refold.domain.errors import InvalidEvent
from refold.domain.events import Pin, Request
from refold.domain.ids import StreamId
from refold.domain.ports import Problem
from refold.projections.context.asking_again import Asked
from refold.projections.context.spans import spans_of
from refold.projections.context.strategy import Strategy
from refold.projections.context.view import View
from refold.projections.context.why import (
    Cause,
    Node,
    Part,
    Reason,
    Unshown,
    opened,
    told,
)

Proof = Literal["holds", "superseded", "broken"]
BECAUSE: Final[Mapping[Cause, str]] = {
    "system": "the newest system prompt of the session",
    "handed_in": "handed in by the caller",
    "memory": "a memory layer, as it was at the newest compaction or the first request",
    "own_words": "put there by Refold, so that the provider takes the messages",
    "summary": "stands for what was compacted",
    "raw": "sent word for word: nothing stands for it",
    "open": "sent word for word: it was open when the compaction was decided",
    "newest_input": "sent word for word: the newest user input, though compacted",
    "no_result": "no result of the call was recorded yet",
    "pinned": "sent word for word: it is pinned",
    "cleared": "a stub: the strategy cleared this result",
    "shortened": "cut in the middle: over a quarter of the window",
    "pins_budget": "a stub: pinned, but over the budget of pins",
    "window": "says how much the strategy leaves out",
}
LEFT_OUT: Final[Mapping[Reason, str]] = {
    "agent": "not shown: it is another agent's",
    "type": "not shown: its type is for the log alone",
    "replaced": "not shown: another system prompt took its place",
    "question": "not shown: a question to a human is told with its decision",
    "said": "not shown: a response has said the same",
    "empty": "not shown: it holds nothing that a model can be sent",
    "compacted": "a summary stands for it",
    "omitted": "in the span of a summary, whose summarizer was not given it",
    "cleared": "a stub stands for this result",
    "pins_budget": "pinned, but over the budget of pins: a stub stands for it",
    "window": "the strategy does not reach back to it, or picks others",
    "later": "recorded after this context was made",
}


class Record(NamedTuple):
    """What is known of a summary.

    live:       whether it is in the context; if not, another has absorbed it.
    decided_on: the event that was the last when it was decided.
    asked:      what the strategy says when it is asked again.
    source:     whether its source digest was derived again; ``superseded`` if what it
                was made of has been redacted since.
    """

    node: Node
    depth: int
    live: bool
    decided_on: Envelope | None
    asked: Asked
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
    """

    strategy: Strategy
    at: int
    message: int | None
    view: View
    sent: Sent | None
    parts: tuple[Part, ...]
    records: tuple[Record, ...]
    unshown: tuple[Unshown, ...]
    events: Mapping[int, Envelope]
    pins: Mapping[int, Envelope]
    newest: int | None
    chains: tuple[Chain, ...]
    superseded: frozenset[int]

    def opened(self, summary: int) -> tuple[Record, ...]:
        """That summary and all that it absorbed, each before its own.

        Raises InvalidEvent if it is not behind this context.
        """
        known = {record.node.seq: record for record in self.records}
        if summary not in known:
            there = ", ".join(map(str, sorted(known))) or "none"
            raise InvalidEvent(
                f"summary {summary} is not behind this context (there is: {there})"
            )
        nodes = {seq: record.node for seq, record in known.items()}
        return tuple(
            known[node.seq]._replace(depth=depth)
            for depth, node in opened(nodes, summary)
        )

    def runs(self) -> Iterator[tuple[Unshown, list[Envelope]]]:
        """The events that are not shown, those together that have all in common.

        The ``seq`` of a run is its first event's; runs of one reason are neighbours.
        """
        runs: dict[tuple[object, ...], dict[object, list[Unshown]]] = {}
        for one in self.unshown:
            same = runs.setdefault((one.why, one.summary), {})
            same.setdefault(one.via, []).append(one)
        for same in runs.values():
            for run in same.values():
                yield run[0], [self.events[one.seq] for one in run]

    def told(self, record: Record) -> list[Envelope]:
        """The events that a summary was itself made of."""
        span = record.node.own
        if span is None:
            return []
        found = map(self.events.get, range(span[0], span[1] + 1))
        seen = (self.strategy.sees(event) for event in found if event)
        return told(record.node, [event for event in seen if event])

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON; events by seq, type, time and hash, never by content."""
        view = self.view
        return {
            "at": self.at,
            "message": self.message,
            "strategy": self.strategy.ref.model_dump(mode="json"),
            "view": {
                "through_seq": view.at,
                "derived_seq": view.derived_seq,
                "digest": view.digest,
                "tokens": view.tokens,
                "over_budget": view.over_budget,
                "messages": len(view.messages),
            },
            "request": None if self.sent is None else _sent(self.sent),
            "chains": [_chain(chain) for chain in self.chains],
            "parts": [self._part(part) for part in self.parts],
            "summaries": [self._record(record) for record in self.records],
            "left_out": [self._run(run, events) for run, events in self.runs()],
            "superseded": sorted(self.superseded),
        }

    def _part(self, part: Part) -> dict[str, Any]:
        span, newest = part.span, self.newest
        pins = {seq: self.pins[seq] for seq in part.seqs if seq in self.pins}
        own = span.summary if span else None
        raw = part.cause in ("raw", "open", "newest_input", "pinned", "pins_budget")
        return {
            "message": part.message,
            "role": part.role,
            "first_block": part.first,
            "blocks": part.blocks,
            "kind": span.kind if span else None,
            "first": span.first if span else None,
            "last": span.last if span else None,
            "summary": own,
            "cause": part.cause,
            "why": BECAUSE[part.cause],
            "decided_by": own if own is not None else newest if raw else None,
            "pinned_by": [
                {"seq": seq, "pin": pin.seq, "reason": _reason(pin)}
                for seq, pin in pins.items()
            ],
            "events": [self.reference(self.events[seq]) for seq in part.seqs],
        }

    def _record(self, record: Record) -> dict[str, Any]:
        envelope, summary = record.node.envelope, record.node.summary
        hidden = ("strategy", "text", "abridged")
        fields = {k: v for k, v in summary.payload().items() if k not in hidden}
        own = self.told(record)
        decided_on, asked = record.decided_on, record.asked
        return {
            "seq": record.node.seq,
            "live": record.live,
            **fields,
            "ts": _time(envelope),
            "hash": envelope.hash,
            "decided_at": decided_on and _time(decided_on),
            "asked_again": {
                "same": asked.same,
                "reason": asked.reason,
                "clock": asked.clock and rfc3339(asked.clock),
                "clock_mattered": asked.clock_mattered,
                "decided": asked.decided
                and [asked.decided.first_seq, asked.decided.last_seq],
            },
            "source": record.source,
            "text": summary.text,
            "abridged": summary.abridged,
            "events": [self.reference(event) for event in own],
        }

    def _run(self, run: Unshown, events: list[Envelope]) -> dict[str, Any]:
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
        told_ = {
            "seq": envelope.seq,
            "type": envelope.type,
            "ts": _time(envelope),
            "tokens": envelope.token_estimate,
            "hash": envelope.hash,
        }
        if envelope.seq < 1:
            told_["session_id"] = envelope.session_id
        if envelope.seq in self.superseded:
            told_["superseded"] = True
        return told_


def _sent(sent: Sent) -> dict[str, Any]:
    return {
        "seq": sent.envelope.seq,
        "ts": _time(sent.envelope),
        "model": sent.request.model,
        "through_seq": sent.request.through_seq,
        "derived_seq": sent.request.derived_seq,
        "digest": sent.request.digest,
        "derived_again": sent.digest,
        "proof": sent.proof,
        "matches": sent.request.matches,
        "is_this_view": sent.shown,
    }


def _chain(chain: Chain) -> dict[str, Any]:
    return {
        "session_id": chain.stream.session_id,
        "stream": chain.stream.stream,
        "events": chain.events,
        "hash": chain.hash,
        "problems": [problem.to_json() for problem in chain.problems],
    }


def _reason(pin: Envelope) -> str:
    return pin.payload.reason if isinstance(pin.payload, Pin) else ""


def _time(envelope: Envelope) -> str:
    return rfc3339(envelope.ts)


def rfc3339(ts: datetime) -> str:
    """A time for programs."""
    return ts.isoformat().replace("+00:00", "Z")
