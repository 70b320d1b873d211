"""Why a context is as it is: the cause of each part, and the reason for each omission.

``parts_of`` explains what a view shows, ``unshown`` what it does not show, and
``ask_again`` repeats the decision behind a summary.
"""

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
from refold.projections.context.edits import Edit, applied, left_out_by
from refold.projections.context.outline import Outline
from refold.projections.context.strategy import Strategy
from refold.projections.context.text import Block, cleared_text, entry_of
from refold.projections.context.units import (
    Spans,
    Thread,
    holds,
    is_restated,
    place,
)
from refold.projections.context.view import Origin, View, ViewSpan

_Never = Literal["type", "replaced", "question", "restated", "said", "empty"]
_NotNow = Literal["agent", "compacted", "omitted", "cleared", "pins_budget", "later"]
_ByClient = Literal["left_out"]
Reason = Literal[_Never, _NotNow, _ByClient, "window"]
_Raw = Literal["raw", "open", "newest_input", "no_result", "pinned", "protected"]
_Cut = Literal["cleared", "shortened", "pins_budget", "window"]
Cause = Literal[_Raw, _Cut, "system", "handed_in", "memory", "own_words", "summary"]


class Part(NamedTuple):
    """Neighboring blocks of a message with the same span.

    message: counted from 1; 0 is the system prompt.
    first:   the index of its first block in the message.
    blocks:  the number of its blocks.
    seqs:    the events that it shows.  A stub shows none, unless it shortens them.
    """

    message: int
    role: str
    first: int
    blocks: int
    span: ViewSpan | None
    seqs: tuple[int, ...]
    cause: Cause


class Unshown(NamedTuple):
    """An event that no part shows.

    summary: the live summary that stands for it.
    via:     the summary that was made from it: the live one, or one that was absorbed
             since.
    edit:    the edit of the client that left it out.
    """

    seq: int
    why: Reason
    summary: int | None = None
    via: int | None = None
    edit: int | None = None


class Node(NamedTuple):
    """A summary with its place in the derived stream.

    own_span: the part of its span that no absorbed summary stands for.
    """

    seq: int
    summary: Summary
    envelope: Envelope
    own_span: Span | None


def parts_of(
    strategy: Strategy, outline: Outline, view: View, events: Mapping[int, Envelope]
) -> tuple[Part, ...]:
    """Return the parts of a view in its order.

    events: at least those that the view shows, by seq.
    """
    parts: list[Part] = []
    for span in view.spans:
        if span.kind == "system":
            if span.first is None:
                parts.append(Part(0, "system", 0, 1, span, (), "handed_in"))
            else:
                parts.append(Part(0, "system", 0, 1, span, (span.first,), "system"))
    messages = zip(view.messages, view.origins, strict=False)
    for number, (message, origins) in enumerate(messages, 1):
        blocks = message["content"]
        first = 0
        for _, run in groupby(origins, _part_of):
            part_origins = list(run)
            part_span = part_origins[0].span
            end = first + len(part_origins)
            is_cleared = all(
                _is_cleared(block, origin, events, strategy)
                for block, origin in zip(blocks[first:end], part_origins, strict=True)
            )
            cause = _cause(
                part_span, part_origins, outline, strategy, is_cleared=is_cleared
            )
            seqs = view.protected
            if cause != "protected":
                seqs = _seqs(
                    part_span, part_origins, cause, outline, is_cleared=is_cleared
                )
            part = Part(
                message=number,
                role=str(message["role"]),
                first=first,
                blocks=len(part_origins),
                span=part_span,
                seqs=seqs,
                cause=cause,
            )
            parts.append(part)
            first = end
    return tuple(parts)


def _part_of(origin: Origin) -> tuple[ViewSpan | None, bool]:
    """Return the span of a block, and whether it shows an event beside a summary."""
    span = origin.span
    is_summary = span is not None and span.kind == "summary"
    return span, is_summary and origin.seq is not None


def _seqs(
    span: ViewSpan | None,
    origins: Sequence[Origin],
    cause: Cause,
    outline: Outline,
    *,
    is_cleared: bool,
) -> tuple[int, ...]:
    """Return the events that a part shows."""
    if cause == "memory" and span is not None and span.summary is None:
        return _layer_seqs(span, outline)
    if is_cleared:
        return ()
    seqs = {origin.seq for origin in origins if origin.seq is not None}
    if seqs and span is not None and span.first is not None:
        seqs.add(span.first)  # a response without text has no block
    return tuple(sorted(seqs))


def _layer_seqs(span: ViewSpan, outline: Outline) -> tuple[int, ...]:
    """Return the events of the memory layer with this span."""
    layers = outline.layers
    # No two layers have the same ends, so the ends identify a layer.
    for spans in (layers.facts_shown, layers.notes_shown):
        if spans and (spans[0][0], spans[-1][1]) == (span.first, span.last):
            seqs: list[int] = []
            for first, last in spans:
                seqs += range(first, last + 1)
            return tuple(seqs)
    return ()


def _is_cleared(
    block: Block,
    origin: Origin,
    events: Mapping[int, Envelope],
    strategy: Strategy,
) -> bool:
    """Whether a block is the stub of a cleared result."""
    if origin.seq is None:
        return False
    envelope = events.get(origin.seq)
    if envelope is None or not isinstance(envelope.payload, ToolResult):
        return False
    stub = cleared_text(
        envelope.seq, envelope.token_estimate, names_seq=strategy.names_seqs
    )
    return block.get("type") == "tool_result" and block.get("content") == stub


def _cause(
    span: ViewSpan | None,
    origins: Sequence[Origin],
    outline: Outline,
    strategy: Strategy,
    *,
    is_cleared: bool,
) -> Cause:
    if span is None:
        return "own_words"
    shows_events = any(origin.seq is not None for origin in origins)
    match span.kind:
        case "summary":
            return "protected" if shows_events else "summary"
        case "pinned":
            return "cleared" if is_cleared else "pinned"
        case "stub" if shows_events:
            return "cleared" if is_cleared else "shortened"
        case "stub":
            # It counts what the strategy leaves out, or it replaces a pinned exchange.
            left_out = strategy.show(outline).left_out
            ends = (span.first, span.last)
            if left_out is not None and (left_out.first, left_out.last) == ends:
                return "window"
            return "pins_budget"
        case "raw" if shows_events:
            return _cause_of_raw(span.first, outline)
        case "raw":
            return "no_result"
        case "memory" if span.first is not None:
            return "memory"
    return "handed_in"


def _cause_of_raw(first: int | None, outline: Outline) -> Cause:
    """Return the cause of a raw part that begins at the seq ``first``."""
    through = outline.compacted_through
    if through is None or first is None or first > through:
        return "raw"
    is_open = any(holds(spans, first) for spans in outline.kept)
    if first == outline.kept_input and not is_open:
        return "newest_input"
    return "open"


def nodes_of(summaries: Iterable[Envelope]) -> dict[int, Node]:
    """Return the summaries of a derived stream by their seq.

    summaries: the stream, oldest first; its other events are ignored.
    """
    nodes: dict[int, Node] = {}
    for envelope in summaries:
        summary = envelope.payload
        if not isinstance(summary, Summary):
            continue
        absorbed_ends = [
            nodes[absorbed].summary.last_seq + 1 for absorbed in summary.absorbs
        ]
        first = max(absorbed_ends, default=summary.first_seq)
        last = summary.last_seq
        own_span = None  # everything may be absorbed
        if first <= last:
            own_span = (first, last)
        nodes[envelope.seq] = Node(envelope.seq, summary, envelope, own_span)
    return nodes


def with_absorbed(nodes: Mapping[int, Node], *seqs: int) -> Iterator[tuple[int, Node]]:
    """Yield these summaries and all that they absorbed, each with its depth.

    A summary comes before those that it absorbed.
    """
    # Hundreds of summaries may absorb one another, too many for a recursion.
    waiting = [(0, seq) for seq in reversed(seqs)]
    while waiting:
        depth, seq = waiting.pop()
        yield depth, nodes[seq]
        for absorbed in reversed(nodes[seq].summary.absorbs):
            waiting.append((depth + 1, absorbed))


def source_events(
    node: Node, events: Sequence[Envelope], edits: Sequence[Edit] = ()
) -> list[Envelope]:
    """Return the events that a summary was made from, without absorbed summaries.

    events: as the strategy sees them, oldest first.
    edits:  those of the client; later ones than the summary's decision are ignored.
    """
    if node.own_span is None:
        return []
    first, last = node.own_span
    seq_of = attrgetter("seq")
    start = bisect_left(events, first, key=seq_of)
    end = bisect_right(events, last, key=seq_of)
    decided_at = node.summary.decided_at_seq
    left_out = applied(edit for edit in edits if edit.at <= decided_at).left_out
    thread = Thread()
    sources: list[Envelope] = []
    for envelope in events[start:end]:
        if holds(node.summary.omitted, envelope.seq) or holds(left_out, envelope.seq):
            continue
        thread, placed = place(thread, envelope)
        if placed is not None and entry_of(envelope.payload) is not None:
            sources.append(envelope)
    return sources


def unshown(
    strategy: Strategy,
    outline: Outline,
    parts: Sequence[Part],
    nodes: Mapping[int, Node],
    events: Sequence[Envelope],
) -> Iterator[Unshown]:
    """Yield each event that no part shows, with the reason.

    events: of the main stream, oldest first.
    """
    shown: set[int] = set()
    for part in parts:
        shown.update(part.seqs)
    visible: dict[int, Envelope] = {}
    for event in events:
        seen = strategy.sees(event)
        if seen is not None:
            visible[event.seq] = seen
    summaries_of = _summaries_of(outline, nodes, list(visible.values()))
    cleared: set[int] = set()
    for part in parts:
        if part.cause == "cleared":
            cleared.update(_ends(part))
    over_budget = tuple(_ends(part) for part in parts if part.cause == "pins_budget")
    raw = outline.reads(strategy.show(outline).raw)
    for event in events:
        seq = event.seq
        if seq in shown:
            continue
        envelope = visible.get(seq)
        if envelope is None:
            yield Unshown(seq, "agent")
            continue
        if seq > outline.through_seq:
            yield Unshown(seq, "later")
            continue
        never = _never_shown(envelope)
        edit = left_out_by(outline.edits, seq)
        if never and never != "replaced":
            yield Unshown(seq, never)
        elif edit is not None:
            yield Unshown(seq, "left_out", edit=edit)
        elif never:
            yield Unshown(seq, never)
        elif seq in cleared:
            yield Unshown(seq, "cleared")
        elif holds(over_budget, seq) and holds(outline.pinned, seq):
            yield Unshown(seq, "pins_budget")
        elif seq in summaries_of:
            live_seq, own_seq = summaries_of[seq]
            yield Unshown(seq, "compacted", live_seq, own_seq)
        else:
            yield _unshown_without_source(envelope, outline, raw)


def _summaries_of(
    outline: Outline, nodes: Mapping[int, Node], events: Sequence[Envelope]
) -> dict[int, tuple[int, int]]:
    """Return for each event the live summary of it, and the one made from it."""
    summaries_of: dict[int, tuple[int, int]] = {}
    for live in outline.summaries:
        for _, node in with_absorbed(nodes, live.seq):
            for event in source_events(node, events, outline.edits):
                summaries_of[event.seq] = (live.seq, node.seq)
    return summaries_of


def _unshown_without_source(
    envelope: Envelope, outline: Outline, raw: Spans
) -> Unshown:
    """Return the reason for an event from which no live summary was made.

    raw: the spans that the view reads.
    """
    seq = envelope.seq
    for live in outline.summaries:
        if live.first <= seq <= live.last:
            if isinstance(envelope.payload, log.Final):
                return Unshown(seq, _nothing_to_show(envelope), live.seq)
            return Unshown(seq, "omitted", live.seq)
    if holds(raw, seq):
        return Unshown(seq, _nothing_to_show(envelope))
    return Unshown(seq, "window")


def _ends(part: Part) -> Span:
    """Return the first and the last seq of a stub."""
    span = part.span
    if span is None or span.first is None or span.last is None:
        raise ValueError("a stub stands for events")
    return (span.first, span.last)


def _never_shown(envelope: Envelope) -> Reason | None:
    """Return why no context shows such an event; None if one may show it."""
    if is_restated(envelope):
        return "restated"
    match envelope.payload:
        case log.SystemPrompt(text=str(text)) if not text.strip():
            return "empty"
        case log.SystemPrompt(is_prompt=True):
            return "replaced"
        case log.HumanReview(decision=None):
            return "question"
        case log.Final():
            return None
    _, placed = place(Thread(), envelope)
    if placed is None:
        return "type"
    return None


def _nothing_to_show(envelope: Envelope) -> Reason:
    """Return the reason for an event without a text of its own.

    A final repeats the text of the response before it ("said"), or has none.
    """
    event = envelope.payload
    if isinstance(event, log.Final) and event.text.strip():
        return "said"
    return "empty"


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
    reason = ""
    if other_decision is not None:
        reason = other_decision.reason
    return Asked(False, reason, clocks[0], decided=other_decision)


def _same(
    strategy: Strategy, outline: Outline, summary: Summary, now: datetime
) -> Compaction | None:
    """Return the strategy's decision at this time, if ``summary`` records it."""
    for ask in (strategy.decide, strategy.follow_up):
        decision = ask(outline, now)
        if decision and recorded_fields(decision) == recorded_fields(summary):
            return decision
    return None
