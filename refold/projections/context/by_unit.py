"""The fold of exchanges, for strategies that cut between any two of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from refold.domain.envelope import Envelope
from refold.projections.context.outline_parts import Joined, Unit
from refold.projections.context.sizes import size_of
from refold.projections.context.units import Place, weight

if TYPE_CHECKING:
    from refold.projections.context.outline import Outline


def join(units: list[Unit], envelope: Envelope, placed: Place) -> bool:
    """Put the event in its exchange, or begin one; returns if it is a new message."""
    tokens, chars = weight(envelope, placed), size_of(envelope.payload)
    at, seq = envelope.at, envelope.seq
    result = placed.kind == "result"
    message = result or placed.kind != "call" or placed.exchange == seq
    sizes = tokens, chars, int(message), int(result), at
    index = _index(units, placed.exchange) if placed.exchange != seq else None
    if placed.kind == "late" or index is None:
        units.append(Unit(envelope.type, seq, seq, *sizes))
    else:
        new = Joined(seq, envelope.type, *sizes)
        units[index] = units[index].joined(new, newest=index == len(units) - 1)
    return message


def without_units(outline: Outline, through: int, decided_at: int) -> Outline:
    """Count what the exchanges up to ``through`` were; they are still in it.

    What joined one of them after ``decided_at`` is not gone: it is one of its own.
    """
    gone = [
        unit.without([one for one in unit.later if one.seq > decided_at])
        for unit in outline.units
        if unit.first <= through
    ]
    begun = [unit.at for unit in outline.units if unit.first <= decided_at]
    inputs = [
        unit.first
        for unit in outline.units
        if unit.type == "user_input" and unit.first <= decided_at
    ]
    newest = inputs[-1] if inputs else outline.kept_input
    return outline._replace(
        kept_input=newest if newest is not None and newest <= through else None,
        raw_tokens=outline.raw_tokens - sum(unit.tokens for unit in gone),
        compacted_turns=outline.compacted_turns
        + sum(unit.type == "user_input" for unit in gone),
        compacted_messages=outline.compacted_messages
        + sum(unit.messages for unit in gone),
        compacted_at=begun[-1] if begun else outline.compacted_at,
    )


def units_behind(outline: Outline, through: int, decided_at: int) -> tuple[Unit, ...]:
    """The exchanges that such a compaction leaves, oldest first."""
    left = [unit for unit in outline.units if unit.first > through]
    alone = [
        one.alone
        for unit in outline.units
        if unit.first <= through
        for one in unit.later
        if one.seq > decided_at
    ]
    return tuple(sorted((*left, *alone), key=lambda unit: unit.first))


def _index(units: Sequence[Unit], first: int) -> int | None:
    """The place of the exchange that begins there; it is near the end."""
    for index in range(len(units) - 1, -1, -1):
        if units[index].first <= first:
            return index if units[index].first == first else None
    return None
