"""A log walked as an agent loop would have been: check, context, model call, again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from refold.domain.chain import GENESIS
from refold.domain.envelope import Envelope, microseconds
from refold.domain.errors import RefoldError
from refold.domain.events import (
    AgentResponse,
    CompactionNote,
    Event,
    Final as Ended,
    Summary,
)
from refold.domain.tokens import estimate_text
from refold.projections.compare.elements import Elements
from refold.projections.compare.moments import Moment
from refold.projections.compare.requests import Request, Requests
from refold.projections.context.compaction import Compaction, summary_of
from refold.projections.context.extras import NO_EXTRAS, Extras
from refold.projections.context.outline import Outline, fold_derived
from refold.projections.context.source import Source, source_of
from refold.projections.context.strategy import Strategy
from refold.projections.context.summarizer import Summarizer
from refold.projections.context.units import place
from refold.projections.context.writing import write

_TIMERS: Final = 16


class Done(NamedTuple):
    """One call of the summarizer: before which request, of what, from and to how much.

    request:       how many requests had been sent before it.
    read, written: tokens that the summarizer was given, and gave.
    failed:        why it changed nothing; empty if it took effect.
    """

    request: int
    first_seq: int
    last_seq: int
    decided_at_seq: int
    tokens_before: int
    tokens_after: int
    read: int
    written: int
    failed: str = ""


class Step(NamedTuple):
    """A request as it would have been sent, and when."""

    moment: Moment
    at: datetime
    request: Request


@dataclass(slots=True)
class Walk:
    """A log under a strategy; what is compacted on the way stays in memory.

    events:   the main stream, whole and oldest first; ``moments`` its model calls.
    recorded: summaries of the strategy's derived stream, which then count from where
              they were decided; None: they are made, by ``summarizer``.

    It is judged as in a rebuild: before each model call, at the end of each turn, and
    whenever a time that the strategy named has come.  The clock is that of the events.
    """

    strategy: Strategy
    events: Sequence[Envelope]
    moments: Sequence[Moment]
    summarizer: Summarizer
    recorded: Sequence[Envelope] | None = None
    extras: Extras = NO_EXTRAS
    elements: Elements = field(default_factory=Elements)
    done: list[Done] = field(default_factory=list)
    derived: list[Envelope] = field(default_factory=list)
    _outline: Outline = field(init=False)
    _requests: Requests = field(init=False)
    _sent: int = 0

    def __post_init__(self) -> None:
        self._outline = self.strategy.begin()
        self._requests = Requests(
            self.strategy, self.events, self.extras, self.elements
        )

    def steps(self) -> Iterator[Step]:
        """The requests, oldest first; the walk goes on as they are asked for."""
        calls = {moment.read: moment for moment in self.moments}
        newest: Envelope | None = None
        ended = False
        for index, event in enumerate(self.events[: max(calls, default=-1) + 1]):
            clock = newest.ts if newest else event.ts
            moment = calls.get(index)
            judged = moment or (ended and not self._goes_on(newest, event))
            if judged:
                self._check(clock)
            if moment:
                request = self._requests.next(self._outline, self.derived)
                yield Step(moment, clock, request)
                self._sent += 1
            self._wait(clock, event.ts, judged=clock if judged else None)
            self._outline = self.strategy.fold(self._outline, event)
            newest, ended = event, self._ends_turn(event)

    def _ends_turn(self, event: Envelope) -> bool:
        answered = isinstance(event.payload, AgentResponse) and self._outline.idle
        return answered or isinstance(event.payload, Ended)

    def _goes_on(self, newest: Envelope | None, event: Envelope) -> bool:
        """Whether an answer that seemed to end its turn has a call in it."""
        if newest is None or not isinstance(newest.payload, AgentResponse):
            return False
        _, placed = place(self._outline.thread, event)
        if placed is None:
            return False
        return placed.kind == "call" and placed.exchange != event.seq

    def _wait(self, now: datetime, end: datetime, *, judged: datetime | None) -> None:
        """Let time pass, and judge at each time at which something may become due."""
        for _ in range(_TIMERS):
            failed = self._outline.failed_at == microseconds(now)
            due = None if failed else self.strategy.due_at(self._outline, now)
            if due is None or max(due, now) >= end or max(due, now) == judged:
                return
            judged = now = max(due, now)
            self._check(now)

    def _check(self, now: datetime) -> None:
        if self._outline.through_seq < 1:
            return  # in the session that this one was forked from
        if self.recorded is not None:
            self._take_recorded()
            return
        due = self.strategy.decide(self._outline, now)
        while due is not None and self._compact(due, now):
            due = self.strategy.follow_up(self._outline, now)

    def _take_recorded(self) -> None:
        for envelope in (self.recorded or ())[len(self.derived) :]:
            summary = envelope.payload
            if not isinstance(summary, Summary):
                self.derived.append(envelope)
            elif summary.decided_at_seq <= self._outline.through_seq:
                self._take(envelope, summary, summary.tokens_before)
            else:
                return

    def _compact(self, due: Compaction, now: datetime) -> bool:
        """Do what is due; False if that failed."""
        events = self._requests.within(((due.first_seq, due.last_seq),))
        source = source_of(due, events=events, summaries=self.derived)
        target = due.target_tokens
        try:
            written = write(
                self.strategy, self.summarizer, source, target_tokens=target
            )
        except RefoldError as error:
            self._fail(due, source, now, str(error))
            return False
        summary = summary_of(
            due,
            source,
            written,
            strategy=self.strategy.ref,
            appended_at_seq=max(self._outline.through_seq, 1),
        )
        self._take(self._recorded(summary, now), summary, estimate_text(source.text))
        return True

    def _take(self, envelope: Envelope, summary: Summary, read: int) -> None:
        self.derived.append(envelope)
        self._outline = fold_derived(self._outline, envelope)
        usage = summary.usage or {}
        self.done.append(
            Done(
                self._sent,
                summary.first_seq,
                summary.last_seq,
                summary.decided_at_seq,
                summary.tokens_before,
                summary.tokens_after,
                _count(usage.get("input_tokens"), read),
                _count(usage.get("output_tokens"), summary.tokens_after),
            )
        )

    def _fail(self, due: Compaction, source: Source, now: datetime, why: str) -> None:
        note = CompactionNote(
            phase="failed",
            why=why,
            first_seq=due.first_seq,
            last_seq=due.last_seq,
            decided_at_seq=due.decided_at_seq,
            attempt=self._outline.failures + 1,
        )
        envelope = self._recorded(note, now)
        self.derived.append(envelope)
        self._outline = fold_derived(self._outline, envelope)
        before = due.tokens_before
        self.done.append(
            Done(
                self._sent, due.first_seq, due.last_seq, due.decided_at_seq, before,
                before, estimate_text(source.text), 0, why,
            )
        )  # fmt: skip

    def _recorded(self, event: Event, now: datetime) -> Envelope:
        """The event as the derived stream would hold it, but for hashes."""
        seq, last = len(self.derived) + 1, self.events[-1]
        return Envelope(
            event_id=UUID(int=seq),
            seq=seq,
            ts=now,
            type=event.type,
            user_id=last.user_id,
            session_id=last.session_id,
            stream=self.strategy.fingerprint,
            payload=event,
            redaction={},
            token_estimate=0,
            prev_hash=GENESIS.hex(),
            hash=GENESIS.hex(),
            schema_version=event.version,
        )


def _count(given: object, else_: int) -> int:
    return given if isinstance(given, int) else else_
