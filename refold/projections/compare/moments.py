"""The model calls in a log, and to which earlier identifiers each answer refers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentResponse,
    Request,
    SystemPrompt,
    ToolCall,
    ToolResult,
)
from refold.projections.compare.identifiers import in_text, in_value
from refold.projections.context.entries import entry_of
from refold.projections.context.units import Thread, place

_BEGIN: Final = ("response", "call")


class Moment(NamedTuple):
    """A model was called.

    read: how many events of the log were there.
    seq:  the first event that it answered with.
    used: the identifiers in its text and in its calls' arguments that the log had
          before.
    """

    read: int
    seq: int
    used: frozenset[str] = frozenset()


def moments(events: Sequence[Envelope]) -> list[Moment]:
    """The model calls in the log of ``events``, oldest first.

    Where a request was recorded, that is the call: what came before the answer to it
    was not sent.
    Those of the session that it was forked from (seq 0 and below) are not its own.
    """
    found: dict[int, Moment] = {}
    first: dict[str, int] = {}
    thread, asked = Thread(), None
    for index, envelope in enumerate(events):
        thread, placed = place(thread, envelope)
        names = _names(envelope)
        if isinstance(envelope.payload, Request) and envelope.meta.status is None:
            asked = index
        if placed is not None and placed.kind in _BEGIN:
            begun = Moment(index if asked is None else asked, placed.exchange)
            moment, asked = found.get(placed.exchange, begun), None
            used = _before(names, first, moment.seq)
            found[moment.seq] = moment._replace(used=moment.used | used)
        for name in names:
            first.setdefault(name, envelope.seq)
    return [moment for moment in found.values() if moment.seq > 0]


def _before(names: Iterable[str], first: dict[str, int], seq: int) -> frozenset[str]:
    return frozenset(name for name in names if first.get(name, seq) < seq)


def _names(envelope: Envelope) -> set[str]:
    """The identifiers in what a model may be shown of an event."""
    match envelope.payload:
        case SystemPrompt(text=str(text)) | AgentResponse(text=text):
            return in_text(text)
        case ToolCall(arguments=value) | ToolResult(content=value):
            return in_value(value)
    entry = entry_of(envelope.payload)
    if entry is None:
        return set()
    return {name for part in entry.content for name in in_value(part)}
