"""What a strategy knows of a session: a small fold of its events, without their text.

The main stream and the strategy's derived stream may be folded in pages of any size
and in any order, as long as the main one is read at least as far as a summary was
decided; the outline is the same.  What a compaction changes is therefore computed
from ``decided_at_seq``, never from what happens to be folded.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from refold.domain.envelope import Envelope
from refold.domain.events import CompactionNote, JsonObject, Span, Summary
from refold.projections.context.building import OutlineBuilder
from refold.projections.context.by_unit import units_behind, without_units
from refold.projections.context.memory import Memory
from refold.projections.context.open_exchanges import Waiting
from refold.projections.context.outline_parts import (
    LiveSummary,
    PinChange,
    Turn,
    Unit,
    pack_summaries,
    pack_turns,
    pack_units,
    unpack_summaries,
    unpack_turns,
    unpack_units,
)
from refold.projections.context.spans import Spans, joined, without
from refold.projections.context.units import Thread

# Stored outlines of another shape are dropped, and the log is folded again.
SHAPE = 5
Detail = Literal["counts", "turns", "units", "both"]


class Outline(NamedTuple):
    """A session as far as decisions depend on it.

    detail:            how much is known of what is not compacted: ``counts`` alone,
                       for strategies that never compact, ``turns``, ``units``, or both.
    through_seq:       the last event folded; ``derived_seq`` the derived stream's.
    system_seq:        the newest system prompt, of ``system_tokens``.
    user_seq:          the newest user input.
    turn_count:        turns begun, the newest included.
    compacted_turns:   turns that summaries stand for, up to ``compacted_through``.
    decided_at:        the seq at which the newest compaction was decided.
    past:              turns that ended and are not compacted, oldest first.
    turn_first:        where the newest turn begins: what precedes the first input is
                       the first turn's.
    turn_tokens:       its tokens; ``done`` and ``idle`` say whether it is complete.
    raw_tokens:        of everything that is not compacted.
    pinned, kept:      what stays raw behind the summaries: pinned seqs, and exchanges
                       that were open when the compaction was decided; ``kept_input``
                       is the newest user input, if the newest compaction took it.
    units:             exchanges that are not compacted, oldest first.
    messages:          how many there were in all, ``compacted_messages`` of them
                       before the first of ``units``.
    began_at:          when the first message came, ``called_at`` when a model was last
                       called, ``compacted_at`` the time at which the newest
                       compaction was decided: of the newest exchange then begun.
    cleared, notes:    what else the strategy has to remember, such as up to which seq
                       nothing is shown again.
    memory:             what is known of memory layers.
    failures:          attempts that failed since the last success, the last at
                       ``failed_at`` (microseconds since 1970).
    """

    detail: Detail = "turns"
    through_seq: int = 0
    derived_seq: int = 0
    events: int = 0
    first_seq: int | None = None
    system_seq: int | None = None
    system_tokens: int = 0
    user_seq: int | None = None
    turn_count: int = 0
    compacted_turns: int = 0
    compacted_through: int | None = None
    decided_at: int | None = None
    past: tuple[Turn, ...] = ()
    turn_first: int | None = None
    turn_tokens: int = 0
    done: bool = False
    idle: bool = False
    raw_tokens: int = 0
    thread: Thread = Thread()
    waiting: Waiting = Waiting()
    pin_changes: tuple[PinChange, ...] = ()
    pinned: Spans = ()
    kept: tuple[Spans, ...] = ()
    kept_input: int | None = None
    summaries: tuple[LiveSummary, ...] = ()
    units: tuple[Unit, ...] = ()
    messages: int = 0
    compacted_messages: int = 0
    began_at: int | None = None
    called_at: int | None = None
    compacted_at: int | None = None
    cleared: int = 0
    notes: tuple[int, ...] = ()
    memory: Memory = Memory()
    failures: int = 0
    failed_at: int | None = None

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns not compacted, oldest first, the newest included."""
        if not self.turn_count or self.turn_first is None:
            return ()
        complete = self.done or self.idle
        newest = Turn(self.turn_first, self.through_seq, complete, self.turn_tokens)
        return (*self.past, newest)

    @property
    def complete_turns(self) -> int:
        """How many turns are complete, those compacted included."""
        begun = self.turn_count > 0
        return self.turn_count - (1 if begun and not (self.done or self.idle) else 0)

    @property
    def summary_tokens(self) -> int:
        """What the live summaries cost together."""
        return sum(summary.tokens for summary in self.summaries)

    @property
    def tokens(self) -> int:
        """What system prompt, summaries and what is not compacted cost together."""
        return self.system_tokens + self.summary_tokens + self.raw_tokens

    @property
    def raw_span(self) -> Span | None:
        """The seqs that no summary stands for, or None if there are none."""
        if self.first_seq is None:
            return None
        compacted = self.compacted_through
        first = self.first_seq if compacted is None else compacted + 1
        return (first, self.through_seq) if first <= self.through_seq else None

    def reads(self, raw: Spans) -> Spans:
        """The seqs of the main stream whose events a view of this is rendered from.

        ``raw`` are those that the strategy shows of what is not compacted.
        """
        system = () if self.system_seq is None else ((self.system_seq,) * 2,)
        kept = (span for spans in self.kept for span in spans)
        user = () if self.kept_input is None else ((self.kept_input,) * 2,)
        layers = (*self.memory.facts_shown, *self.memory.notes_shown)
        return joined((*system, *raw, *kept, *user, *self.pinned, *layers))

    @property
    def shown_summaries(self) -> tuple[int, ...]:
        """The seqs, in the derived stream, of the summaries that a view shows."""
        return tuple(one.seq for one in (*self.summaries, *self.memory.summaries))

    def dump(self) -> JsonObject:
        """The outline as JSON: small, and without any text of the session."""
        dumped = {
            name: _plain(value)
            for name, value in self._asdict().items()
            if value != self._field_defaults[name]
        }
        packed = {
            "past": pack_turns(self.past),
            "summaries": pack_summaries(self.summaries),
            "units": pack_units(self.units),
        }
        return {**dumped, **packed, "shape": SHAPE}

    @classmethod
    def load(cls, dumped: JsonObject) -> Outline:
        """The outline that ``dump`` wrote.

        Raises ValueError if another shape of outline was stored: fold the log again.
        """
        if dumped.get("shape") != SHAPE:
            raise ValueError(f"the stored outline is not of shape {SHAPE}")
        fields = {key: value for key, value in dumped.items() if key != "shape"}
        unpacked = {
            "past": unpack_turns(fields["past"]),
            "summaries": unpack_summaries(fields["summaries"]),
            "units": unpack_units(fields["units"]),
        }
        return _adapter().validate_python({**fields, **unpacked})


@cache
def _adapter() -> TypeAdapter[Outline]:
    return TypeAdapter(Outline)


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


_BY_UNIT = ("units", "both")


def fold(outline: Outline, envelope: Envelope) -> Outline:
    """The outline after this event of the main stream.

    Raises ValueError if the event is not behind the last one folded.
    """
    builder = OutlineBuilder(outline)
    builder.take(envelope)
    return builder.outline()


def fold_all(outline: Outline, envelopes: Iterable[Envelope]) -> Outline:
    """The outline after these events of the main stream, oldest first."""
    builder = OutlineBuilder(outline)
    for envelope in envelopes:
        builder.take(envelope)
    return builder.outline()


def fold_derived(outline: Outline, envelope: Envelope) -> Outline:
    """The outline after this event of the strategy's derived stream.

    Raises ValueError if the main stream was not folded as far as it was decided.
    """
    outline = outline._replace(derived_seq=envelope.seq)
    match envelope.payload:
        case Summary(kind="session") as summary:
            if summary.decided_at_seq > outline.through_seq:
                raise ValueError(
                    f"a summary was decided at seq {summary.decided_at_seq}, the "
                    f"outline is at {outline.through_seq}: fold the main stream first"
                )
            return _compacted(outline, envelope.seq, summary)
        case Summary() as summary:
            return outline._replace(memory=outline.memory.taken(envelope.seq, summary))
        case CompactionNote(phase="failed", kind=kind):
            at = envelope.at
            if kind != "session":
                return outline._replace(memory=outline.memory.failed(at))
            return outline._replace(failures=outline.failures + 1, failed_at=at)
        case _:
            return outline


def _compacted(outline: Outline, seq: int, summary: Summary) -> Outline:
    through = summary.last_seq
    if outline.compacted_through is not None:
        through = max(through, outline.compacted_through)
    past = tuple(turn for turn in outline.past if turn.last > through)
    freed = sum(turn.tokens for turn in outline.past if turn.last <= through)
    kept, waiting = outline.waiting.compacted(through, summary.decided_at_seq)
    if outline.detail in _BY_UNIT:
        # What the turns were is counted by their exchanges.
        freed, outline = 0, outline._replace(past=past)
        outline = without_units(outline, through, summary.decided_at_seq)
        units = units_behind(outline, through, summary.decided_at_seq)
        outline = outline._replace(units=units)
    return outline._replace(
        past=past,
        compacted_turns=outline.compacted_turns + len(outline.past) - len(past),
        compacted_through=through,
        decided_at=summary.decided_at_seq,
        raw_tokens=outline.raw_tokens - freed,
        summaries=_live(outline.summaries, seq, summary),
        waiting=waiting,
        kept=kept,
        memory=outline.memory.compacted(summary.decided_at_seq),
        failures=0,
        failed_at=None,
        pinned=pinned_at(outline, summary.decided_at_seq),
        pin_changes=tuple(
            change
            for change in outline.pin_changes
            if change.at > summary.decided_at_seq
        ),
    )


def pinned_at(outline: Outline | OutlineBuilder, decided_at: int) -> Spans:
    """What is pinned, with the changes up to there."""
    pinned = outline.pinned
    for change in outline.pin_changes:
        if change.at <= decided_at and change.unpin:
            pinned = without(pinned, change.spans)
        elif change.at <= decided_at:
            pinned = joined((*pinned, *change.spans))
    return pinned


def _live(
    summaries: tuple[LiveSummary, ...], seq: int, summary: Summary
) -> tuple[LiveSummary, ...]:
    rest = (live for live in summaries if live.seq not in summary.absorbs)
    new = LiveSummary(
        seq, summary.first_seq, summary.last_seq, summary.level, summary.tokens_after
    )
    return tuple(sorted((*rest, new), key=lambda live: live.first))
