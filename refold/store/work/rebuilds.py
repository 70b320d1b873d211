"""Rebuilding contexts: a log walked as the agent's loop would have, under a strategy.

A strategy is judged before each call of a model, at the end of each turn, and at the
times that it names itself; the events' own times are the clock.  What it decides goes
into its derived stream, one durable append after another, and that stream alone says
how far a rebuild came: cut off anywhere, it goes on behind the last of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

from refold.domain import errors, events
from refold.domain.envelope import (
    ACTIVATED,
    Draft,
    Envelope,
    Meta,
    from_microseconds,
    microseconds,
)
from refold.domain.events import CompactionNote, JsonObject, Summary
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import SessionInfo
from refold.domain.tokens import estimate_text
from refold.projections.context import compaction
from refold.projections.context.outline import (
    Outline,
    OutlineBuilder,
    fold_derived,
    standing,
)
from refold.projections.context.strategy import Strategy
from refold.projections.context.summaries import failure_reason, write_summary
from refold.projections.context.units import Place, goes_on
from refold.store.appends import Order, Writer
from refold.store.compactions import LEASE_SEC, Compactor, Hold, note_of
from refold.store.contexts import Viewer
from refold.store.history import History

_TOLD_EVERY = 100
# So many of the newest events are at hand for a summary: most are of no older ones.
_RECENT: Final = 300
_HELD = (
    "another process compacts it under this strategy, or was killed less than a minute "
    "ago: run it again later"
)
Progress: TypeAlias = Callable[[int], object]


class Rebuilt(NamedTuple):
    """What rebuilding one session did; in a dry run, what it would do.

    events:       of its main stream, all of them walked.
    compactions:  summaries that were made; ``there_before`` is how many there were.
    failures:     attempts that failed, each recorded.
    tokens_in:    what the summarizer was given, as Refold estimates it, and
                  ``tokens_out`` what it wrote, or in a dry run may write at most.
    problem:      why the session could not be rebuilt; empty if it was.
    """

    user_id: str
    session_id: str
    events: int = 0
    compactions: int = 0
    there_before: int = 0
    failures: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    problem: str = ""

    def to_json(self) -> JsonObject:
        """The same for programs."""
        return {**self._asdict()}


@dataclass(frozen=True, slots=True)
class Rebuilder:
    """Rebuilds sessions for one strategy; readers of others see nothing of it.

    strict:  stop at a summarizer that fails, with nothing recorded of the failure, so
             that the next run tries the same again.  Without it a failure is recorded
             and held against later attempts as it would have been, in the events' time.
    dry_run: write nothing; summaries are only imagined.
    lease_sec: how long others keep away from a session whose rebuilder died.
    """

    writer: Writer
    strategy: Strategy
    summarizer: compaction.Summarizer
    strict: bool = False
    dry_run: bool = False
    lease_sec: float = LEASE_SEC

    @property
    def costs(self) -> bool:
        """Whether a summary costs money or time: yes, if nobody says otherwise."""
        return not self.dry_run and getattr(self.summarizer, "costs", True)

    def run(self, stream: StreamId, progress: Progress = bool) -> Rebuilt:
        """Rebuild one session; ``progress`` is told how many of its events are walked.

        Where summaries cost, it is done under the lease of the derived stream.

        Raises SummarizerFailed if strict, Erased, CorruptEvent, KeyUnavailable.
        """
        if not self.costs:
            return self._run(stream, progress)
        log, clock = self.writer.log, self.writer.clock
        derived = stream._replace(stream=self.strategy.fingerprint)
        lease = Hold.take(log.leases, derived, clock=clock, sec=self.lease_sec)
        if lease is None:
            return Rebuilt(stream.user_id, stream.session_id, problem=_HELD)
        with lease:
            return self._run(stream, progress, lease)

    def _run(
        self, stream: StreamId, progress: Progress, lease: Hold | None = None
    ) -> Rebuilt:
        log = self.writer.log
        told = Rebuilt(stream.user_id, stream.session_id)
        while True:
            viewer = Viewer(log, History.of(log, log.head(stream).state))
            walk = _Walk(self, viewer, told, progress, lease)
            try:
                outline = walk.go()
            except errors.StaleSession:
                # Another rebuild, or a live one, made the step: go on behind it.
                told = walk.told
                continue
            except (_Overtaken, errors.LeaseLost):
                return walk.told._replace(problem=_HELD)
            if not self.dry_run:
                viewer.keep(self.strategy, outline)
            return walk.told._replace(events=max(outline.through_seq, 0))


class _Overtaken(Exception):
    """The lease is another's by now: whatever is asked of a model may be in vain."""


@dataclass(eq=False)
class _Walk:
    """One walk from a session's first event to its newest."""

    _by: Rebuilder
    _viewer: Viewer
    told: Rebuilt
    _progress: Progress
    _lease: Hold | None

    def __post_init__(self) -> None:
        by, told = self._by, self.told
        self._strategy = by.strategy
        self._stream = self._viewer.stream._replace(stream=by.strategy.fingerprint)
        self._builder = OutlineBuilder(by.strategy.begin())
        self._now: Outline | None = None
        self._asked = False
        self._timed = type(by.strategy).due_at is not Strategy.due_at
        self._recent: deque[Envelope] = deque(maxlen=_RECENT)
        self._begin(standing(by.writer.log.read(self._stream)))
        if not told.compactions:
            made = sum(isinstance(entry.payload, Summary) for entry in self._derived)
            self.told = told._replace(there_before=made)

    def _begin(self, derived: list[Envelope]) -> None:
        self._derived, self._unread = derived, list(derived)
        # When it was judged: the newest seq, and the time in microseconds.
        self._judged, self._unfinished = _left_off(derived)

    def go(self) -> Outline:
        """Walk all events; the outline at the last; StaleSession if others appended."""
        if any(getattr(one.payload, "adopted", None) for one in self._derived):
            # Leave behind what was adopted, and all that followed from it.
            end, writer = self._derived[-1].seq, self._by.writer
            head = writer.log.head(self._viewer.stream).seq
            note = Draft(CompactionNote(phase="rebuilt", decided_at_seq=head))
            if not self._by.dry_run:
                writer.append(Order(self._stream, (note,), expected_seq=end))
            self._begin(writer.log.read(self._stream, after=end))
        newest: Envelope | None = None
        ended = False
        self._read_derived()
        for envelope in self._viewer.history.events():
            if newest is not None:
                placed = self._builder.place(envelope)
                called = self._is_called(envelope, placed)
                ended = ended and not goes_on(newest, envelope, placed)
                self._pass(newest.ts, envelope.ts, check=called or ended)
            ended = self._fold(envelope)
            newest = envelope
        if newest is not None:
            now = from_microseconds(self._by.writer.clock())
            self._pass(newest.ts, now, check=ended)
        self._progress(max(self._builder.through_seq, 0))
        return self._outline

    @property
    def _outline(self) -> Outline:
        """The outline as it is now; to make one for each event would cost the most."""
        if self._now is None:
            self._now = self._builder.outline()
        return self._now

    def _take_derived(self, entry: Envelope) -> None:
        self._now = fold_derived(self._outline, entry)
        self._builder.begin(self._now)

    def _fold(self, envelope: Envelope) -> bool:
        """Take in an event; returns whether the agent ended its turn with it."""
        self._strategy.take(self._builder, envelope)
        self._now = None
        self._recent.append(envelope)
        self._read_derived()
        if envelope.seq > 0 and envelope.seq % _TOLD_EVERY == 0:
            self._progress(envelope.seq)
        answered = (
            isinstance(envelope.payload, events.AgentResponse) and self._builder.idle
        )
        return answered or isinstance(envelope.payload, events.Final)

    def _read_derived(self) -> None:
        """Fold what earlier runs made, once the log is read as far as they read it."""
        if self._builder.through_seq >= self._judged[0]:
            for entry in self._unread:
                self._take_derived(entry)
            self._unread = []

    def _is_called(self, envelope: Envelope, placed: Place | None) -> bool:
        """Whether a model was called before this; a recorded request is the call."""
        if isinstance(envelope.payload, events.Request):
            asked = envelope.meta.status != ACTIVATED
            self._asked = self._asked or asked
            return asked
        if placed is None:
            return False
        begins = placed.kind in ("response", "call") and placed.exchange == envelope.seq
        asked, self._asked = self._asked, False
        return begins and not asked

    def _pass(self, begin: datetime, end: datetime, *, check: bool) -> None:
        """Let the time from one event to the next pass, and judge when it is due."""
        seq = self._builder.through_seq
        if seq < 1 or seq < self._judged[0]:
            return
        if self._unfinished:
            self._judge(from_microseconds(self._judged[1]))
        if check:
            self._judge(begin)
        now = begin
        while True:
            if self._judged[0] == seq:
                now = max(now, from_microseconds(self._judged[1]))
            # What fails here fails now, not then: the next event is soon enough.
            if not self._timed or self._builder.failed_at == microseconds(now):
                return
            due = self._strategy.due_at(self._outline, now)
            if due is None or (due := max(due, now)) >= end:
                return
            if (seq, microseconds(due)) == self._judged:
                return
            self._judge(due)

    def _judge(self, now: datetime) -> None:
        """One check, unless it was done: what is due, and what follows from it."""
        here = (self._builder.through_seq, microseconds(now))
        if here > self._judged:
            decision = self._strategy.decide(self._outline, now)
        elif here == self._judged and self._unfinished:
            decision = self._strategy.follow_up(self._outline, now)
        else:
            return
        self._judged, self._unfinished = here, False
        while decision is not None and self._carry_out(decision, now):
            decision = self._strategy.follow_up(self._outline, now)

    def _carry_out(self, decision: compaction.Compaction, now: datetime) -> bool:
        if self._lease is not None and not self._lease.renew():
            raise _Overtaken
        by, viewer = self._by, self._viewer
        own = (event for event in self._recent if event.seq > 0)
        new = viewer.history.spans(compaction.new_in(decision, self._derived), own)
        source = compaction.source_of(decision, events=new, summaries=self._derived)
        started = by.writer.clock()
        if by.costs:
            self._record(note_of("started", self._outline, decision), now)
        try:
            target = decision.target_tokens
            written = write_summary(
                by.strategy, by.summarizer, source, target_tokens=target
            )
        except Exception as error:
            why = failure_reason(error)
            if by.strict:
                name, seq = viewer.stream.session_id, decision.decided_at_seq
                where = f"session {name!r} at seq {seq}"
                raise errors.SummarizerFailed(f"{where}: {why}") from None
            self._record(note_of("failed", self._outline, decision, why), now)
            self.told = self.told._replace(failures=self.told.failures + 1)
            return False
        compactor = Compactor(by.writer, viewer, by.strategy, by.summarizer)
        summary = compactor.summary(decision, source, written, started)
        self._record(summary, now)
        out = decision.target_tokens if by.dry_run else summary.tokens_after
        self.told = self.told._replace(
            compactions=self.told.compactions + 1,
            tokens_in=self.told.tokens_in + estimate_text(source.text),
            tokens_out=self.told.tokens_out + out,
        )
        self._progress(max(self._builder.through_seq, 0))
        return True

    def _record(self, event: Summary | CompactionNote, now: datetime) -> None:
        """Write it at the time at which it was decided, and take it in."""
        known = self._outline.derived_seq
        if self._by.dry_run:  # as far as the walk reads it
            entry = Envelope.imagined(event, known + 1, now, self._stream)
        else:
            writer = self._by.writer
            rebuilt_at = from_microseconds(writer.clock()).astimezone(UTC)
            meta = Meta.of({"rebuilt_at": rebuilt_at.isoformat()})
            draft = Draft(event, ts=now, meta=meta)
            order = Order(self._stream, (draft,), expected_seq=known)
            seq = writer.append(order).last_seq
            (entry,) = writer.log.read(self._stream, after=seq - 1, limit=1)
        if isinstance(event, Summary):
            # What was absorbed is asked for no more: a long session makes thousands.
            gone = set(event.absorbs)
            self._derived = [one for one in self._derived if one.seq not in gone]
            self._derived.append(entry)
        self._take_derived(entry)


def _left_off(derived: list[Envelope]) -> tuple[tuple[int, int], bool]:
    """Where the newest entry was decided, and whether more may follow from it there."""
    newest, unfinished = (0, 0), False
    for entry in derived:
        match entry.payload:
            case (
                Summary(decided_at_seq=seq)
                | CompactionNote(phase="failed", decided_at_seq=int(seq))
            ) if seq >= newest[0]:
                newest = (seq, microseconds(entry.ts))
                unfinished = isinstance(entry.payload, Summary)
    return newest, unfinished


def rebuilt(store: Any, info: SessionInfo, told: Progress, **how: Any) -> Rebuilt:
    """Rebuild a session of a store; one that cannot be read is a problem of its own."""
    try:
        stream = StreamId(info.user_id, info.session_id, MAIN)
        return Rebuilder(store.writer, **how).run(stream, told)
    except (errors.CorruptEvent, errors.Erased, errors.KeyUnavailable) as error:
        return Rebuilt(info.user_id, info.session_id, problem=str(error))
