"""What an outline is made of, and how the parts that are many are stored small."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby, pairwise
from typing import Any, Final, NamedTuple

from refold.projections.context.units import Spans, joined


class Turn(NamedTuple):
    """A user input and everything up to the next; ``tokens`` is its size when raw."""

    first: int
    last: int
    complete: bool
    tokens: int


class Joined(NamedTuple):
    """An event that joined an exchange when another had begun, as an exchange alone.

    A compaction that was decided before it came takes the exchange without it.
    """

    seq: int
    type: str
    tokens: int
    chars: int
    messages: int
    results: int
    at: int

    @property
    def alone(self) -> Unit:
        """It as an exchange of its own."""
        return Unit(
            self.type, self.seq, self.seq, self.tokens, self.chars, self.messages,
            self.results, self.at,
        )  # fmt: skip


class Unit(NamedTuple):
    """An exchange that is not compacted, for strategies that cut between any two.

    type:     of its first event.
    last:     its newest event; between the two others may stand, if ``spans`` says so.
    tokens:   what it costs when raw; ``chars`` is its size in characters.
    messages: how many messages it makes; ``results`` how many results it has.
    at:       when it began, in microseconds since 1970.
    later:    those of its events that came when another exchange had begun.
    """

    type: str
    first: int
    last: int
    tokens: int
    chars: int
    messages: int
    results: int
    at: int
    spans: Spans = ()
    later: tuple[Joined, ...] = ()

    @property
    def seqs(self) -> Spans:
        """The seqs of exactly its events."""
        return self.spans or ((self.first, self.last),)

    def joined(self, new: Joined, *, newest: bool) -> Unit:
        """The exchange with one more of its events; whether it is the newest one."""
        spans = self.spans
        if spans or new.seq != self.last + 1:
            spans = joined((*self.seqs, (new.seq, new.seq)))
        # Not by `_replace`, which takes twice as long: it is done for most events.
        return Unit(
            self.type,
            self.first,
            new.seq,
            self.tokens + new.tokens,
            self.chars + new.chars,
            self.messages + new.messages,
            self.results + new.results,
            self.at,
            spans,
            self.later if newest else (*self.later, new),
        )

    def without(self, gone: Sequence[Joined]) -> Unit:
        """The exchange as it was before the last of its events came, which is ``gone``.

        Its ``last`` and ``spans`` stay.
        """
        return self._replace(
            tokens=self.tokens - sum(one.tokens for one in gone),
            chars=self.chars - sum(one.chars for one in gone),
            messages=self.messages - sum(one.messages for one in gone),
            results=self.results - sum(one.results for one in gone),
        )


class LiveSummary(NamedTuple):
    """A summary that no other has absorbed; ``seq`` is that of the derived stream."""

    seq: int
    first: int
    last: int
    level: int
    tokens: int


class PinChange(NamedTuple):
    """A pin or unpin, recorded at ``at``, that no compaction has made effective yet."""

    at: int
    spans: Spans
    unpin: bool


def pack_turns(past: Sequence[Turn]) -> list[int]:
    """Turns follow one another: the first seq, then a length and tokens for each."""
    if not past:
        return []
    sizes = ((turn.last - turn.first, turn.tokens) for turn in past)
    return [past[0].first, *chain.from_iterable(sizes)]


def unpack_turns(packed: Any) -> list[Turn]:
    """The turns that ``pack_turns`` wrote; they ended, so they are complete."""
    turns: list[Turn] = []
    first, *sizes = packed or [0]
    for length, tokens in zip(sizes[::2], sizes[1::2], strict=True):
        turns.append(Turn(first, first + length, True, tokens))
        first += length + 1
    return turns


def pack_summaries(live: Sequence[LiveSummary]) -> list[Any]:
    """Summaries follow one another too, and neighbours often have one level.

    The first seq; then a level and, for each summary of it, how far its own seq is
    from the one before, its length and its tokens.  Should there be a gap between
    two, they are written out.
    """
    if not live or any(one.last + 1 != other.first for one, other in pairwise(live)):
        return [None, *map(list, live)]
    packed: list[Any] = [live[0].first]
    before = 0
    for level, run in groupby(live, key=lambda summary: summary.level):
        numbers = [level]
        for one in run:
            numbers += [one.seq - before, one.last - one.first, one.tokens]
            before = one.seq
        packed.append(numbers)
    return packed


def unpack_summaries(packed: Any) -> list[LiveSummary]:
    """The summaries that ``pack_summaries`` wrote."""
    first, *runs = packed
    if first is None:
        return [LiveSummary(*numbers) for numbers in runs]
    live: list[LiveSummary] = []
    seq = 0
    for level, *numbers in runs:
        for step, length, tokens in zip(*[iter(numbers)] * 3, strict=True):
            seq += step
            live.append(LiveSummary(seq, first, first + length, level, tokens))
            first += length + 1
    return live


_TYPES: Final = (
    "user_input",
    "agent_response",
    "tool_call",
    "tool_result",
    "planner",
    "reflection",
    "aggregate",
    "final",
    "error",
    "hitl",
)


def pack_units(units: Sequence[Unit]) -> list[Any]:
    """Eight numbers for each, as far from the exchange before as may be.

    Behind them, where there are any, its gaps, and what joined it later.
    """
    packed: list[Any] = []
    first = at = 0
    for unit in units:
        numbers: list[Any] = [
            _TYPES.index(unit.type), unit.first - first, unit.last - unit.first,
            unit.tokens, unit.chars, unit.messages, unit.results, unit.at - at,
        ]  # fmt: skip
        if unit.spans or unit.later:
            later = [[_TYPES.index(one.type), *_numbers(one)] for one in unit.later]
            numbers += [[list(span) for span in unit.spans], later]
        packed.append(numbers)
        first, at = unit.first, unit.at
    return packed


def unpack_units(packed: Any) -> list[Unit]:
    """The exchanges that ``pack_units`` wrote."""
    units: list[Unit] = []
    first = at = 0
    for kind, step, length, tokens, chars, messages, results, since, *more in packed:
        first, at = first + step, at + since
        spans, later = more or ((), ())
        units.append(
            Unit(
                _TYPES[kind], first, first + length, tokens, chars, messages, results,
                at, tuple((one, other) for one, other in spans),
                tuple(_joined(*numbers) for numbers in later),
            )
        )  # fmt: skip
    return units


def _numbers(one: Joined) -> list[int]:
    return [one.seq, one.tokens, one.chars, one.messages, one.results, one.at]


def _joined(kind: int, seq: int, *numbers: int) -> Joined:
    tokens, chars, messages, results, at = numbers
    return Joined(seq, _TYPES[kind], tokens, chars, messages, results, at)
