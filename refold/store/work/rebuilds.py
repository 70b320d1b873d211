"""Rebuilds: they make the compactions that the agent's loop would have made.

A rebuild walks the log under a strategy.  The strategy decides before each call of a
model, at the end of each turn, and at the times that it names itself.  The time is that
of the events.  Each decision is appended to the derived stream of the strategy.  Only
this stream records the progress of a rebuild.  An interrupted rebuild continues after
the last entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, Final, NamedTuple, TypeAlias

from refold.domain import errors, events
from refold.domain.envelope import (
    Draft,
    Envelope,
    Meta,
    from_microseconds,
    microseconds,
)
from refold.domain.events import CompactionNote, Item, JsonObject, Summary
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import SessionInfo
from refold.domain.tokens import estimate_text
from refold.projections.context import compaction
from refold.projections.context.decision_points import DecisionPoints
from refold.projections.context.edits import HistoryEdited
from refold.projections.context.outline import (
    Outline,
    OutlineBuilder,
    fold_derived,
    since_last_rebuild,
)
from refold.projections.context.strategy import Strategy
from refold.projections.context.summaries import failure_reason, write_summary
from refold.store.appends import Order, Writer
from refold.store.compactions import LEASE_SEC, Compactor, HeldLease, attempt_note
from refold.store.contexts import Viewer, with_derived
from refold.store.history import History

_PROGRESS_EVERY = 100  # events between two reports of progress
# The number of newest events in memory.  Most summaries need no older ones.
_MOST_RECENT: Final = 300
_LEASE_IS_HELD = (
    "another process compacts it under this strategy, or was killed less than a minute "
    "ago: run it again later"
)
# Called with the number of events that were walked.
Progress: TypeAlias = Callable[[int], object]


def _no_progress(events: int) -> None:
    """Report nothing."""


class Rebuilt(NamedTuple):
    """The result of rebuilding one session; of a dry run, what a rebuild would do.

    events:       the number of events in the main stream.
    compactions:  the number of new summaries.
    there_before: the number of summaries that existed before.
    failures:     the number of failed attempts, each of which is recorded.
    tokens_in:    the estimated tokens of the summarizer's input.
    tokens_out:   the estimated tokens of its output; in a dry run, the most allowed.
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
        """Return the result as JSON."""
        return {**self._asdict()}


@dataclass(frozen=True, slots=True)
class Rebuilder:
    """Rebuilds sessions for one strategy.  Readers of other strategies see no change.

    strict:    raise an error if the summarizer fails, and record no failure, so that
               the next run tries the same again.  If false, a failure is recorded.  It
               delays later attempts by the time of the events, as it would have then.
    dry_run:   write nothing; summaries exist only in memory.
    checks:    write nothing, and walk as if there were no summaries.  The result has a
               problem if the existing summaries were decided in another way.
    lease_sec: the period of the lease, for which a session stays locked at most after
               its rebuilder died.
    """

    writer: Writer
    strategy: Strategy
    summarizer: compaction.Summarizer
    strict: bool = False
    dry_run: bool = False
    checks: bool = False
    lease_sec: float = LEASE_SEC

    @property
    def writes(self) -> bool:
        """Whether summaries are appended to the log."""
        return not self.dry_run and not self.checks

    @property
    def costs(self) -> bool:
        """Whether summaries cost money or time, as they do by default."""
        if not self.writes:
            return False
        return bool(getattr(self.summarizer, "costs", True))

    def run(self, stream: StreamId, progress: Progress = _no_progress) -> Rebuilt:
        """Rebuild one session.

        If summaries cost money or time, this holds the lease of the derived stream.

        progress: called with the number of events that were walked.

        Raises SummarizerFailed if strict, Erased, CorruptEvent, KeyUnavailable.
        """
        if not self.costs:
            return self._run(stream, progress)
        derived = stream._replace(stream=self.strategy.fingerprint)
        lease = HeldLease.take(
            self.writer.log.leases,
            derived,
            clock=self.writer.clock,
            sec=self.lease_sec,
        )
        if lease is None:
            return Rebuilt(stream.user_id, stream.session_id, problem=_LEASE_IS_HELD)
        with lease:
            return self._run(stream, progress, lease)

    def _run(
        self, stream: StreamId, progress: Progress, lease: HeldLease | None = None
    ) -> Rebuilt:
        """Walk the session; walk it again if another process interferes.

        lease: None if summaries cost nothing.
        """
        log = self.writer.log
        result = Rebuilt(stream.user_id, stream.session_id)
        while True:
            head = log.head(stream)
            viewer = Viewer(log, History.of(log, head.state))
            walk = _Walk(self, viewer, head.seq, result, progress, lease)
            try:
                outline = walk.run()
            except errors.StaleSession:
                # Another process appended the next summary first: walk again.
                result = walk.result
                continue
            except (_Overtaken, errors.LeaseLost):
                return walk.result._replace(problem=_LEASE_IS_HELD)
            if self.writes:
                viewer.store_unless_older(self.strategy, outline)
            problem = walk.difference() if self.checks else ""
            events_read = max(outline.through_seq, 0)
            return walk.result._replace(events=events_read, problem=problem)


class _Overtaken(Exception):
    """Another process has the lease, so calls of a model would be wasted."""


class _DecisionPoint(NamedTuple):
    """When the strategy decides: after the event with this seq, at this time.

    at: microseconds since 1970.
    """

    seq: int
    at: int


@dataclass(eq=False)
class _Walk:
    """One walk from a session's first event to its newest.

    head_seq: the head of the main stream when the walk began.
    result:   the result so far, to which each summary is added.
    """

    _rebuilder: Rebuilder
    _viewer: Viewer
    _head_seq: int
    result: Rebuilt
    _progress: Progress
    _lease: HeldLease | None

    def __post_init__(self) -> None:
        self._strategy = self._rebuilder.strategy
        self._writer = self._rebuilder.writer
        self._stream = self._viewer.stream._replace(stream=self._strategy.fingerprint)
        self._builder = OutlineBuilder(self._strategy.begin())
        self._current: Outline | None = None
        self._points = DecisionPoints()
        # Whether the strategy names times at which it decides.
        self._names_times = type(self._strategy).due_at is not Strategy.due_at
        self._recent: deque[Envelope] = deque(maxlen=_MOST_RECENT)
        self._recorded: list[Envelope] = []  # the new entries, only with ``checks``
        self._last_call_seq = 0  # the newest event when a model was last called
        self._existing = since_last_rebuild(self._writer.log.read(self._stream))
        self._continue_from([] if self._rebuilder.checks else self._existing)
        if not self.result.compactions:
            summaries = 0
            for entry in self._existing:
                if isinstance(entry.payload, Summary):
                    summaries += 1
            self.result = self.result._replace(there_before=summaries)

    def _continue_from(self, derived: list[Envelope]) -> None:
        """Start the walk with these entries of the derived stream."""
        self._derived = derived
        self._unfolded = list(derived)
        # The last decision, and whether more summaries may follow from it.
        self._decided, self._unfinished = _last_decision(derived)

    def run(self) -> Outline:
        """Walk all events; returns the outline after the last one.

        Raises StaleSession if another process appended to the derived stream.
        """
        if any(getattr(entry.payload, "adopted", None) for entry in self._derived):
            self._drop_adopted()
        newest: Envelope | None = None
        self._read_derived()
        for envelope in self._viewer.history.events():
            point = self._points.before(envelope, self._builder.place(envelope))
            if point.model_called:
                self._last_call_seq = self._builder.through_seq
            if isinstance(envelope.payload, Item):
                # The time of an item may be later than its place in the session.
                self._fold(envelope)
                continue
            if newest is not None:
                check = point.model_called or point.turn_ended
                self._pass_time(newest.ts, envelope.ts, check=check)
            self._fold(envelope)
            self._points.after(envelope, idle=self._builder.idle)
            newest = envelope
        if newest is not None:
            now = from_microseconds(self._writer.clock())
            self._pass_time(newest.ts, now, check=self._points.turn_ended)
        self._progress(max(self._builder.through_seq, 0))
        return self._outline

    def difference(self) -> str:
        """Describe the first difference between the walk and the existing summaries.

        Summaries that the walk adds after the last call of a model are no difference,
        because a live session makes them before its next call.  Returns an empty text
        if there is no difference.
        """
        existing = _decisions(self._existing)
        rebuilt = _decisions(self._recorded)
        for old, new in zip_longest(existing, rebuilt):
            if old is None and new.decided_at_seq > self._last_call_seq:
                return ""
            if old != new:
                return f"the session has {_in_words(old)}, a rebuild {_in_words(new)}"
        return ""

    def _drop_adopted(self) -> None:
        """Begin the derived stream again, without adopted summaries."""
        end = self._derived[-1].seq
        head = self._writer.log.head(self._viewer.stream).seq
        note = Draft(CompactionNote(phase="rebuilt", decided_at_seq=head))
        if self._rebuilder.writes:
            self._writer.append(Order(self._stream, (note,), expected_seq=end))
        self._continue_from(self._writer.log.read(self._stream, after=end))

    @property
    def _outline(self) -> Outline:
        """The current outline, which is built on demand, because that is expensive."""
        if self._current is None:
            self._current = self._builder.outline()
        return self._current

    def _fold_derived(self, entry: Envelope) -> None:
        """Fold an entry of the derived stream."""
        self._current = fold_derived(self._outline, entry)
        self._builder.begin(self._current)

    def _fold(self, envelope: Envelope) -> None:
        """Fold an event of the main stream."""
        try:
            self._strategy.add(self._builder, envelope)
        except HistoryEdited:
            outline = self._viewer.fold_all(self._strategy, upto=envelope.seq)
            folded = len(self._derived) - len(self._unfolded)
            self._builder.begin(with_derived(outline, self._derived[:folded]))
        self._current = None
        self._recent.append(envelope)
        self._read_derived()
        if envelope.seq > 0 and envelope.seq % _PROGRESS_EVERY == 0:
            self._progress(envelope.seq)

    def _read_derived(self) -> None:
        """Fold the entries of earlier runs when the walk is at their last decision."""
        if self._builder.through_seq >= self._decided.seq:
            for entry in self._unfolded:
                self._fold_derived(entry)
            self._unfolded = []

    def _pass_time(self, begin: datetime, end: datetime, *, check: bool) -> None:
        """Let the strategy decide at the times that it names between two events.

        check: decide also at ``begin``.
        """
        seq = self._builder.through_seq
        if seq < 1 or seq < self._decided.seq:
            return
        if self._unfinished:
            self._decide(from_microseconds(self._decided.at))
        if check:
            self._decide(begin)
        now = begin
        while self._names_times:
            if self._decided.seq == seq:
                now = max(now, from_microseconds(self._decided.at))
            # After a failure, the summarizer is called again at the next event.
            if self._builder.failed_at == microseconds(now):
                return
            due_at = self._strategy.due_at(self._outline, now)
            if due_at is None:
                return
            due_at = max(due_at, now)
            point = _DecisionPoint(seq, microseconds(due_at))
            if due_at >= end or point == self._decided:
                return
            self._decide(due_at)

    def _decide(self, now: datetime) -> None:
        """Let the strategy decide, and carry its decisions out.

        A decision of an earlier run is not repeated.
        """
        point = _DecisionPoint(self._builder.through_seq, microseconds(now))
        if point > self._decided:
            decision = self._strategy.decide(self._outline, now)
        elif point == self._decided and self._unfinished:
            decision = self._strategy.further(self._outline, now)
        else:
            return
        self._decided = point
        self._unfinished = False
        while decision is not None and self._carry_out(decision, now):
            decision = self._strategy.further(self._outline, now)

    def _carry_out(self, decision: compaction.Compaction, now: datetime) -> bool:
        """Write and record the summary of a decision; returns False if that failed."""
        if self._lease is not None and not self._lease.renew():
            raise _Overtaken
        rebuilder = self._rebuilder
        spans = compaction.new_spans(decision, self._derived)
        first_new_seq = max(spans[0][0], 1) if spans else 1
        own = [event for event in self._recent if event.seq >= first_new_seq]
        new_events = self._viewer.history.read_spans(spans, own)
        edits = self._outline.edits
        replaced_spans = compaction.replaced_spans(decision, self._derived, edits)
        source = compaction.source_of(
            decision,
            events=new_events,
            summaries=self._derived,
            edits=edits,
            replaced=self._viewer.history.read_spans(replaced_spans),
        )
        started = self._writer.clock()
        if rebuilder.costs:
            self._record(attempt_note("started", self._outline, decision), now)
        try:
            written = write_summary(
                self._strategy,
                rebuilder.summarizer,
                source,
                outline=self._outline,
                target_tokens=decision.target_tokens,
            )
        except Exception as error:
            reason = failure_reason(error)
            if rebuilder.strict:
                session_id = self._viewer.stream.session_id
                where = f"session {session_id!r} at seq {decision.decided_at_seq}"
                raise errors.SummarizerFailed(f"{where}: {reason}") from None
            self._record(attempt_note("failed", self._outline, decision, reason), now)
            self.result = self.result._replace(failures=self.result.failures + 1)
            return False
        compactor = Compactor(
            self._writer, self._viewer, self._strategy, rebuilder.summarizer
        )
        summary = compactor.summary(
            decision,
            source,
            written,
            started,
            # The head of the main stream is read only for a summary that is written.
            head_seq=None if rebuilder.writes else self._head_seq,
        )
        self._record(summary, now)
        tokens_out = summary.tokens_after
        if rebuilder.dry_run:
            tokens_out = decision.target_tokens
        self.result = self.result._replace(
            compactions=self.result.compactions + 1,
            tokens_in=self.result.tokens_in + estimate_text(source.text),
            tokens_out=self.result.tokens_out + tokens_out,
        )
        self._progress(max(self._builder.through_seq, 0))
        return True

    def _record(self, event: Summary | CompactionNote, now: datetime) -> None:
        """Append an entry with the time of its decision, and fold it.

        If the rebuild writes nothing, the entry exists only in memory.
        """
        derived_seq = self._outline.derived_seq
        if self._rebuilder.writes:
            entry = self._append(event, now, derived_seq)
        else:
            entry = Envelope.imagined(event, derived_seq + 1, now, self._stream)
        if self._rebuilder.checks:
            self._recorded.append(entry)
        if isinstance(event, Summary):
            # Absorbed summaries are not read again, and a long session has thousands.
            absorbed = set(event.absorbs)
            self._derived = [
                summary for summary in self._derived if summary.seq not in absorbed
            ]
            self._derived.append(entry)
        self._fold_derived(entry)

    def _append(
        self, event: Summary | CompactionNote, now: datetime, derived_seq: int
    ) -> Envelope:
        """Append an entry to the derived stream, which ends at ``derived_seq``."""
        writer = self._writer
        rebuilt_at = from_microseconds(writer.clock()).astimezone(UTC)
        meta = Meta.of({"rebuilt_at": rebuilt_at.isoformat()})
        draft = Draft(event, ts=now, meta=meta)
        order = Order(self._stream, (draft,), expected_seq=derived_seq)
        seq = writer.append(order).last_seq
        (entry,) = writer.log.read(self._stream, after=seq - 1, limit=1)
        return entry


class _Decision(NamedTuple):
    """The parts of a summary that do not depend on its summarizer.

    absorbs: the spans of the absorbed summaries.
    """

    kind: str
    first_seq: int
    last_seq: int
    decided_at_seq: int
    level: int
    omitted: tuple[events.Span, ...]
    absorbs: tuple[events.Span, ...]


def _decisions(derived: list[Envelope]) -> list[_Decision]:
    """Return the decisions behind the summaries of a derived stream, oldest first."""
    span_of: dict[int, events.Span] = {}
    decisions: list[_Decision] = []
    for entry in derived:
        summary = entry.payload
        if not isinstance(summary, Summary):
            continue
        span_of[entry.seq] = (summary.first_seq, summary.last_seq)
        decision = _Decision(
            kind=summary.kind,
            first_seq=summary.first_seq,
            last_seq=summary.last_seq,
            decided_at_seq=summary.decided_at_seq,
            level=summary.level,
            omitted=summary.omitted,
            absorbs=tuple(span_of[seq] for seq in summary.absorbs if seq in span_of),
        )
        decisions.append(decision)
    return decisions


def _in_words(decision: _Decision | None) -> str:
    """Describe a decision to people."""
    if decision is None:
        return "no further summary"
    return (
        f"a summary of {decision.first_seq} to {decision.last_seq}, decided at "
        f"{decision.decided_at_seq}"
    )


def _last_decision(derived: list[Envelope]) -> tuple[_DecisionPoint, bool]:
    """Return when the newest entry was decided, and whether more may follow from it.

    More summaries may follow from a summary, and none from a failed attempt.
    """
    decided = _DecisionPoint(0, 0)
    unfinished = False
    for entry in derived:
        event = entry.payload
        is_summary = isinstance(event, Summary)
        is_failure = isinstance(event, CompactionNote) and event.phase == "failed"
        if not is_summary and not is_failure:
            continue
        seq = getattr(event, "decided_at_seq", None)
        if seq is not None and seq >= decided.seq:
            decided = _DecisionPoint(seq, microseconds(entry.ts))
            unfinished = is_summary
    return decided, unfinished


def rebuild_session(
    store: Any, info: SessionInfo, progress: Progress, **options: Any
) -> Rebuilt:
    """Rebuild a session of a store.

    If the session cannot be read, the result names the problem.

    options: the fields of ``Rebuilder`` after the writer.
    """
    try:
        stream = StreamId(info.user_id, info.session_id, MAIN)
        return Rebuilder(store.writer, **options).run(stream, progress)
    except (errors.CorruptEvent, errors.Erased, errors.KeyUnavailable) as error:
        return Rebuilt(info.user_id, info.session_id, problem=str(error))
