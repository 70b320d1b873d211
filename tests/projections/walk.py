"""A walk through a session as an agent loop: check, context, call of the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from refold.domain.envelope import Envelope
from refold.projections.context.abridged import Abridged
from refold.projections.context.compaction import (
    Compaction,
    Source,
    Summarizer,
    Written,
    source_of,
    summary_of,
)
from refold.projections.context.outline import Outline, fold_derived
from refold.projections.context.render import render
from refold.projections.context.strategy import Strategy
from refold.projections.context.summaries import write_summary
from refold.projections.context.units import Thread, place
from refold.projections.context.view import View
from tests.projections.logs import START, envelope

# The kinds of events that a call of the model may begin with.
STARTS = ("response", "call")


@dataclass(frozen=True)
class RecordedCompaction:
    """A compaction that took effect.

    before:   the outline that it was decided on.
    recorded: the envelope of its summary.
    """

    compaction: Compaction
    before: Outline
    source: Source
    written: Written
    recorded: Envelope


@dataclass
class Walk:
    """A log under a strategy, with everything that happened during the walk.

    sends: whether to keep the view of each call of the model in ``sent``.
    """

    strategy: Strategy
    events: list[Envelope] = field(default_factory=list)
    derived: list[Envelope] = field(default_factory=list)
    compactions: list[RecordedCompaction] = field(default_factory=list)
    outline: Outline = field(default_factory=Outline)
    sent: list[tuple[object, View]] = field(default_factory=list)
    thread: Thread = field(default_factory=Thread)
    summarizer: Summarizer = field(default_factory=Abridged)
    sends: bool = False

    def __post_init__(self) -> None:
        self.outline = self.strategy.begin()

    def go(self, events: Iterable[Envelope]) -> Walk:
        for event in events:
            self.step(event)
        return self

    def step(self, event: Envelope) -> None:
        self.thread, placed = place(self.thread, event)
        if placed and placed.exchange == event.seq and placed.kind in STARTS:
            self.check()
            if self.sends:
                self.sent.append((self.changes, self.view()))
        self.events.append(event)
        self.outline = self.strategy.fold(self.outline, event)

    @property
    def changes(self) -> object:
        """A value that stays equal as long as the beginning of views stays the same."""
        shown = self.strategy.as_shown(self.outline)
        left_out = self.strategy.show(self.outline).left_out
        of_session = [
            recorded
            for recorded in self.compactions
            if recorded.compaction.kind == "session"
        ]
        return len(of_session), shown.cleared, left_out

    def check(self) -> None:
        """Make one check: the decision, and all that follow from it."""
        now = START + timedelta(days=1)
        due = self.strategy.decide(self.outline, now)
        while due:
            self.compact(due)
            due = self.strategy.follow_up(self.outline, now)

    def compact(self, due: Compaction) -> None:
        source = source_of(due, events=self.events, summaries=self.derived)
        target = due.target_tokens
        written = write_summary(
            self.strategy,
            self.summarizer,
            source,
            outline=self.outline,
            target_tokens=target,
        )
        summary = summary_of(
            due,
            source,
            written,
            strategy=self.strategy.ref,
            appended_at_seq=self.outline.through_seq,
        )
        recorded = envelope(len(self.derived) + 1, summary, stream="derived")
        self.compactions.append(
            RecordedCompaction(due, self.outline, source, written, recorded)
        )
        self.derived.append(recorded)
        self.outline = fold_derived(self.outline, recorded)

    def view(self, **more: Any) -> View:
        return render(
            self.strategy, self.outline, self.events, summaries=self.derived, **more
        )


def view_of(strategy: Strategy, events: Sequence[Envelope], **more: Any) -> View:
    """The view at the end of a walk through a log."""
    return Walk(strategy).go(events).view(**more)


def texts(view: View) -> str:
    """All texts of a view, one below the other."""
    return "\n".join(_texts(view.messages))


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return []


def grows(earlier: View, later: View) -> bool:
    """Whether ``later`` begins with all blocks of ``earlier`` in the same messages."""
    if not earlier.messages:
        return True
    if len(later.messages) < len(earlier.messages):
        return False
    *head, last = earlier.messages
    grown = later.messages[len(head)]
    blocks = last["content"]
    return (
        later.messages[: len(head)] == head
        and grown["role"] == last["role"]
        and grown["content"][: len(blocks)] == blocks
    )
