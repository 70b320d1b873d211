"""A session walked as an agent loop would: check, context, model call, again."""

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
from refold.projections.context.strategy import Strategy, write_summary
from refold.projections.context.units import Thread, place
from refold.projections.context.view import View
from tests.projections.logs import START, envelope

STARTS = ("response", "call")


@dataclass(frozen=True)
class Done:
    """A compaction that took effect, and what it was decided on."""

    compaction: Compaction
    before: Outline
    source: Source
    written: Written
    recorded: Envelope


@dataclass
class Walk:
    """A log under a strategy, with all that happened on the way.

    ``sends`` is whether what each model call is sent is kept.
    """

    strategy: Strategy
    events: list[Envelope] = field(default_factory=list)
    derived: list[Envelope] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
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
        """What may change the beginning of a view: compactions, and their like."""
        cleared = self.strategy.judged(self.outline)
        left = self.strategy.show(self.outline).left_out
        cut = sum(made.compaction.kind == "session" for made in self.done)
        return cut, cleared.cleared, left

    def check(self) -> None:
        """One check: what is due first, and what follows from it."""
        now = START + timedelta(days=1)
        due = self.strategy.decide(self.outline, now)
        while due:
            self.compact(due)
            due = self.strategy.follow_up(self.outline, now)

    def compact(self, due: Compaction) -> None:
        source = source_of(due, events=self.events, summaries=self.derived)
        target = due.target_tokens
        written = write_summary(
            self.strategy, self.summarizer, source, target_tokens=target
        )
        summary = summary_of(
            due,
            source,
            written,
            strategy=self.strategy.ref,
            appended_at_seq=self.outline.through_seq,
        )
        recorded = envelope(len(self.derived) + 1, summary, stream="derived")
        self.done.append(Done(due, self.outline, source, written, recorded))
        self.derived.append(recorded)
        self.outline = fold_derived(self.outline, recorded)

    def view(self, **more: Any) -> View:
        return render(
            self.strategy, self.outline, self.events, summaries=self.derived, **more
        )


def view_of(strategy: Strategy, events: Sequence[Envelope], **more: Any) -> View:
    """The view at the end of a log under a strategy, compacted on the way."""
    return Walk(strategy).go(events).view(**more)


def texts(view: View) -> str:
    """Every text of a view, one after another."""
    return "\n".join(_texts(view.messages))


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return []


def grows(one: View, other: View) -> bool:
    """Whether ``other`` begins with all blocks of ``one``, in the same messages."""
    if len(other.messages) < len(one.messages):
        return False
    *head, last = one.messages or [{}]
    if not one.messages:
        return True
    same = other.messages[len(head)]
    blocks = last["content"]
    return (
        other.messages[: len(head)] == head
        and same["role"] == last["role"]
        and same["content"][: len(blocks)] == blocks
    )
