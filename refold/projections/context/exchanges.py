"""Events in the order a model is shown them: grouped into exchanges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from refold.domain.envelope import Envelope
from refold.projections.context.units import Kind, Thread, place

ExchangeKind = Literal["user", "response", "entry", "late"]


class Exchange(NamedTuple):
    """The smallest piece that a context may drop, in the order of its events."""

    kind: ExchangeKind
    events: tuple[Envelope, ...]


def arrange(events: Iterable[Envelope]) -> tuple[Exchange, ...]:
    """The exchanges of ``events``, in the order of their first events.

    So whatever comes while a response waits for results is shown behind them.
    """
    thread = Thread()
    kinds: dict[int, ExchangeKind] = {}
    members: dict[int, list[Envelope]] = {}
    for envelope in events:
        thread, placed = place(thread, envelope)
        if placed is None:
            continue
        first = envelope.seq if placed.kind == "late" else placed.exchange
        kinds.setdefault(first, _KINDS[placed.kind])
        members.setdefault(first, []).append(envelope)
    return tuple(Exchange(kinds[first], tuple(members[first])) for first in members)


_KINDS: dict[Kind, ExchangeKind] = {
    "user": "user",
    "response": "response",
    "call": "response",
    "result": "response",
    "entry": "entry",
    "late": "late",
}
