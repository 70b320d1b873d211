"""Why a context is as it is: what its parts show, what is left out and for what."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Literal, NamedTuple

from refold.domain import events as log
from refold.domain.envelope import Envelope
from refold.domain.events import Span, Summary, ToolResult
from refold.projections.context.compaction import Compaction, recorded_fields
from refold.projections.context.outline import Outline
from refold.projections.context.strategy import Strategy
from refold.projections.context.text import Block, cleared_text, entry_of
from refold.projections.context.units import Thread, holds, place
from refold.projections.context.view import Origin, View, ViewSpan

_Never = Literal["type", "replaced", "question", "said", "empty"]
_NotNow = Literal["agent", "compacted", "omitted", "cleared", "pins_budget", "later"]
Reason = Literal[_Never, _NotNow, "window"]
_Raw = Literal["raw", "open", "newest_input", "no_result", "pinned"]
_Cut = Literal["cleared", "shortened", "pins_budget", "window"]
Cause = Literal[_Raw, _Cut, "system", "handed_in", "memory", "own_words", "summary"]


class Part(NamedTuple):
    """A run of blocks of one message that are from one span.

    message: counted from 1; 0 is the system prompt.
    first:   its first block in the message, counted from 0, and ``blocks`` how many.
    seqs:    the events that it shows; of a stub none, unless they are cut short.
    """

    message: int
    role: str
    first: int
    blocks: int
    span: ViewSpan | None
    seqs: tuple[int, ...]
    cause: Cause


class Unshown(NamedTuple):
    """An event that is not shown.

    summary: the live summary that stands for it; ``via`` the one, perhaps absorbed
             since, that was made of it.
    """

    seq: int
    why: Reason
    summary: int | None = None
    via: int | None = None


class Node(NamedTuple):
    """A summary; ``own`` are the seqs that it tells of without one that it absorbed."""

    seq: int
    summary: Summary
    envelope: Envelope
    own: Span | None


def parts_of(
    strategy: Strategy, outline: Outline, view: View, events: Mapping[int, Envelope]
) -> tuple[Part, ...]:
    """The parts of a view in its order; ``events`` are those it shows, by seq."""
    parts = [
        Part(0, "system", 0, 1, span, (), "handed_in")
        if span.first is None
        else Part(0, "system", 0, 1, span, (span.first,), "system")
        for span in view.spans
        if span.kind == "system"
    ]
    sent = zip(view.messages, view.origins, strict=False)
    for number, (message, origins) in enumerate(sent, 1):
        blocks, first = message["content"], 0
        for span, run in groupby(origins, lambda origin: origin.span):
            own = list(run)
            last = first + len(own)
            pairs = zip(blocks[first:last], own, strict=True)
            cleared = all(_is_cleared(block, origin, events) for block, origin in pairs)
            cause = _cause(span, own, outline, strategy, cleared=cleared)
            seqs = {o.seq for o in own if o.seq is not None and not cleared}
            if seqs and span is not None and span.first is not None:
                seqs.add(span.first)  # a response without a text has no block
            if cause == "memory" and span is not None and span.summary is None:
                seqs = set(_remembered(span, outline))
            role, shown = str(message["role"]), tuple(sorted(seqs))
            parts.append(Part(number, role, first, len(own), span, shown, cause))
            first = last
    return tuple(parts)


def _remembered(span: ViewSpan, outline: Outline) -> tuple[int, ...]:
    """The events of a layer that its part shows; two layers end alike in none."""
    layers = outline.layers
    for spans in (layers.facts_shown, layers.notes_shown):
        if spans and (spans[0][0], spans[-1][1]) == (span.first, span.last):
            return tuple(seq for a, b in spans for seq in range(a, b + 1))
    return ()


def _is_cleared(block: Block, origin: Origin, events: Mapping[int, Envelope]) -> bool:
    envelope = events.get(origin.seq) if origin.seq is not None else None
    if envelope is None or not isinstance(envelope.payload, ToolResult):
        return False
    stub = cleared_text(envelope.seq, envelope.token_estimate)
    return block.get("type") == "tool_result" and block.get("content") == stub


def _cause(
    span: ViewSpan | None,
    origins: Sequence[Origin],
    outline: Outline,
    strategy: Strategy,
    *,
    cleared: bool,
) -> Cause:
    if span is None:
        return "own_words"
    numbered = any(origin.seq is not None for origin in origins)
    match span.kind:
        case "summary":
            return "summary"
        case "pinned":
            return "cleared" if cleared else "pinned"
        case "stub" if not numbered:
            # Either it counts what the strategy leaves out, or stands for a pin.
            left = strategy.show(outline).left_out
            counts = left is not None and left[:2] == span[1:3]
            return "window" if counts else "pins_budget"
        case "stub":
            return "cleared" if cleared else "shortened"
        case "raw" if not numbered:
            return "no_result"
        case "raw":
            through, first = outline.compacted_through, span.first
            if through is None or first is None or first > through:
                return "raw"
            kept = any(holds(spans, first) for spans in outline.kept)
            newest = first == outline.kept_input and not kept
            return "newest_input" if newest else "open"
        case "memory" if span.first is not None:
            return "memory"
    return "handed_in"


def nodes_of(summaries: Iterable[Envelope]) -> dict[int, Node]:
    """The summaries of a derived stream by their seq; other events are passed over."""
    nodes: dict[int, Node] = {}
    for envelope in summaries:
        summary = envelope.payload
        if not isinstance(summary, Summary):
            continue
        ends = (nodes[seq].summary.last_seq + 1 for seq in summary.absorbs)
        first = max(ends, default=summary.first_seq)
        own = (first, summary.last_seq) if first <= summary.last_seq else None
        nodes[envelope.seq] = Node(envelope.seq, summary, envelope, own)
    return nodes


def opened(nodes: Mapping[int, Node], *seqs: int) -> Iterator[tuple[int, Node]]:
    """These summaries and all that they absorbed, each before its own, with its depth.

    A summary may stand on hundreds of others, so no call stands for a level.
    """
    waiting = [(0, seq) for seq in reversed(seqs)]
    while waiting:
        depth, seq = waiting.pop()
        yield depth, nodes[seq]
        absorbed = reversed(nodes[seq].summary.absorbs)
        waiting += [(depth + 1, other) for other in absorbed]


def told(node: Node, events: Sequence[Envelope]) -> list[Envelope]:
    """Those of ``events``, as the strategy sees them, that it was itself made of."""
    if node.own is None:
        return []
    first, last = node.own
    seq = attrgetter("seq")
    start = bisect_left(events, first, key=seq)
    thread, found = Thread(), []
    for envelope in events[start : bisect_right(events, last, key=seq)]:
        if holds(node.summary.omitted, envelope.seq):
            continue
        thread, placed = place(thread, envelope)
        if placed is not None and entry_of(envelope.payload) is not None:
            found.append(envelope)
    return found


def unshown(
    strategy: Strategy,
    outline: Outline,
    parts: Sequence[Part],
    nodes: Mapping[int, Node],
    events: Sequence[Envelope],
) -> Iterator[Unshown]:
    """Each of ``events``, oldest first, that no part shows, with the reason."""
    shown = {seq for part in parts for seq in part.seqs}
    seen = {event.seq: one for event in events if (one := strategy.sees(event))}
    known = list(seen.values())
    stands = {  # of each event that summaries tell of: the live one, and its own
        event.seq: (live.seq, node.seq)
        for live in outline.summaries
        for _, node in opened(nodes, live.seq)
        for event in told(node, known)
    }
    cleared = {seq for part in parts if part.cause == "cleared" for seq in _ends(part)}
    over = tuple(_ends(part) for part in parts if part.cause == "pins_budget")
    sent = outline.reads(strategy.show(outline).raw)
    for seq in (event.seq for event in events if event.seq not in shown):
        if (envelope := seen.get(seq)) is None:
            yield Unshown(seq, "agent")
        elif seq > outline.through_seq:
            yield Unshown(seq, "later")
        elif never := _never(envelope):
            yield Unshown(seq, never)
        elif seq in cleared:
            yield Unshown(seq, "cleared")
        elif holds(over, seq) and holds(outline.pinned, seq):
            yield Unshown(seq, "pins_budget")
        elif seq in stands:
            yield Unshown(seq, "compacted", *stands[seq])
        elif live := [s.seq for s in outline.summaries if s.first <= seq <= s.last]:
            ending = isinstance(envelope.payload, log.Final)
            why = _nothing_to_show(envelope) if ending else "omitted"
            yield Unshown(seq, why, live[0])
        elif holds(sent, seq):
            yield Unshown(seq, _nothing_to_show(envelope))
        else:
            yield Unshown(seq, "window")


def _ends(part: Part) -> Span:
    span = part.span
    if span is None or span.first is None or span.last is None:
        raise ValueError("a stub stands for events")
    return (span.first, span.last)


def _never(envelope: Envelope) -> Reason | None:
    """Why an event of this kind is in no context; None if it may be in one."""
    match envelope.payload:
        case log.SystemPrompt(text=str(text)):
            return "replaced" if text.strip() else "empty"
        case log.HumanReview(decision=None):
            return "question"
        case log.Final():
            return None
    return "type" if place(Thread(), envelope)[1] is None else None


def _nothing_to_show(envelope: Envelope) -> Reason:
    event = envelope.payload
    return "said" if isinstance(event, log.Final) and event.text.strip() else "empty"


class Asked(NamedTuple):
    """The result of asking a strategy again for a recorded decision.

    same:           whether it decides on the recorded compaction.
    reason:         the rule that caused it, with its numbers.
    clock:          the time of the decision.
    clock_mattered: whether it decides differently at another time.
    decided:        the compaction that it decides on.
    """

    same: bool
    reason: str = ""
    clock: datetime | None = None
    clock_mattered: bool = False
    decided: Compaction | None = None


def ask_again(
    strategy: Strategy, outline: Outline, summary: Summary, clocks: Sequence[datetime]
) -> Asked:
    """Ask a strategy again for the compaction that ``summary`` records.

    outline: the outline that it was decided on.
    clocks:  the possible times of the decision, the likeliest first.  To learn whether
             time matters, the strategy is also asked a day before and after them.
    """
    for now in clocks:
        decision = _same(strategy, outline, summary, now)
        if decision is None:
            continue
        day = timedelta(days=1)
        probes = (*clocks, min(clocks) - day, max(clocks) + day)
        clock_mattered = not all(
            _same(strategy, outline, summary, probe) for probe in probes
        )
        return Asked(True, decision.reason, now, clock_mattered, decision)
    if not clocks:
        return Asked(False)
    other_decision = strategy.decide(outline, clocks[0])
    reason = other_decision.reason if other_decision else ""
    return Asked(False, reason, clocks[0], decided=other_decision)


def _same(
    strategy: Strategy, outline: Outline, summary: Summary, now: datetime
) -> Compaction | None:
    """The strategy's decision at this time, if ``summary`` records it."""
    for ask in (strategy.decide, strategy.follow_up):
        decision = ask(outline, now)
        if decision and recorded_fields(decision) == recorded_fields(summary):
            return decision
    return None
