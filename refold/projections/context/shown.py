"""What of a session a strategy shows, beside the summaries that stand for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from refold.domain.envelope import Envelope
from refold.projections.context.outline import Outline
from refold.projections.context.spans import Spans, joined

# How summaries are told: as user text, the same with an answer of the agent behind
# it, or as the result of a tool that the agent called.
SummaryForm = Literal["text", "acknowledged", "tool"]


def _nothing(_: Envelope) -> bool:
    return False


class Left(NamedTuple):
    """What is neither shown nor summarised: so many messages of these seqs."""

    first: int
    last: int
    messages: int


class Shown(NamedTuple):
    """Which events are shown raw.

    raw:     their seqs; none that a summary stands for.
    cleared: whether a result among them is shown as a stub, and with ``inputs`` its
             call without arguments.
    left:    what is left out, to be counted in the view.
    """

    raw: Spans
    cleared: Callable[[Envelope], bool] = _nothing
    inputs: bool = False
    left: Left | None = None


def since(outline: Outline, index: int) -> Shown:
    """The exchanges from that place on; those before it are left out."""
    gone, units = outline.units[:index], outline.units[index:]
    first = units[0].first if units else outline.through_seq
    left = Left(gone[0].first, first - 1, sum(unit.messages for unit in gone))
    return Shown(with_input(outline, ((first, outline.through_seq),)), left=left)


def with_input(outline: Outline, raw: Spans) -> Spans:
    """With what is always sent: newest input and event, and exchanges that wait."""
    seqs = {outline.through_seq, outline.user_seq or outline.through_seq}
    waiting = [
        span
        for hold in outline.waiting.holds
        if hold.closed is None
        for span in hold.spans
    ]
    spans = joined((*raw, *((seq, seq) for seq in seqs), *waiting))
    through = outline.compacted_through
    if through is None:
        return spans
    return tuple((max(a, through + 1), b) for a, b in spans if b > through)


def everything(outline: Outline) -> Shown:
    """All that no summary stands for."""
    span = outline.raw_span
    return Shown(() if span is None else (span,))
