"""Calls and their results among some events: they are shown together, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from refold.domain.envelope import Envelope
from refold.domain.events import ToolCall, ToolResult


class Pairs(NamedTuple):
    """Which result answers which call, by their seqs; a call may still be open."""

    results: dict[int, int]
    calls: dict[int, int | None]

    @classmethod
    def of(cls, events: Iterable[Envelope]) -> Pairs:
        """Those of these events, which are in order."""
        waiting: dict[str, int] = {}
        results: dict[int, int] = {}
        calls: dict[int, int | None] = {}
        for envelope in events:
            match envelope.payload:
                case ToolCall(call_id=call_id):
                    waiting[call_id] = envelope.seq
                    calls[envelope.seq] = None
                case ToolResult(call_id=call_id) if call_id in waiting:
                    call = waiting.pop(call_id)
                    results[envelope.seq], calls[call] = call, envelope.seq
        return cls(results, calls)

    def name(self, envelope: Envelope) -> str:
        """What a call is called in a bundle: ids of providers may look like keys."""
        return f"call-{self.results.get(envelope.seq, envelope.seq)}"


def units(events: Sequence[Envelope], pairs: Pairs) -> list[tuple[int, ...]]:
    """The seqs that belong together, in the order of their newest."""
    found: list[tuple[int, ...]] = []
    for envelope in events:
        seq = envelope.seq
        if seq in pairs.results:
            found.append((pairs.results[seq], seq))
        elif pairs.calls.get(seq) is None:
            found.append((seq,))
    return found
