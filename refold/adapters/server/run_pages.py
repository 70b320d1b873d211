"""A run as pages show it: its turns, and the context at any moment of it.

The content of a run comes from users, tools and models.  Templates get it only as text,
in which control characters, and those that turn the direction of text, are visible.
"""

from __future__ import annotations

import base64
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from markupsafe import Markup, escape

from refold.adapters.display import events, layouts, values
from refold.adapters.display.filters import RunFilter
from refold.domain import media
from refold.domain.canonical import load_packaged_toml
from refold.domain.envelope import Envelope
from refold.domain.errors import CorruptEvent, KeyUnavailable
from refold.domain.events import (
    DERIVED_TYPES,
    EVENT_CLASSES,
    AgentResponse,
    Summary,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.domain.ids import MAIN, StreamId
from refold.domain.placeholders import STANDS_FOR
from refold.domain.ports import EventLog, Head
from refold.domain.stubs import whole as with_blob
from refold.projections.compare import Outcome
from refold.projections.context.outline import is_rebuild, since_last_rebuild
from refold.projections.context.strategies import spec
from refold.projections.context.strategy import Strategy
from refold.projections.context.view import View
from refold.projections.instructions import Instruction, instruction_of
from refold.projections.models import Answer, Spending, answers
from refold.projections.overview import Overview, is_failure
from refold.store.history import WithBlobs, merge_derived
from refold.store.overviews import LIVE, Overviews
from refold.store.proofs.explanations import Explanation
from refold.store.session.core import chosen_strategy, viewer_of
from refold.store.session.session import Session
from refold.store.shares import Share

Lang = Literal["en", "zh"]
FOLDER: Final = Path(__file__).parent
LIMIT: Final = 100  # events of a page
MANY: Final = 5_000  # events that a page reads only after a confirmation
# Events that a context may fold and show without a confirmation.  A session of 500,000
# events has checkpoints every 8,192.
MOST_READ: Final = 20_000
_EXTRA: Final = 40  # events read beyond the limit, among which results may be
_SCANNED: Final = 5_000  # events that a filter looks through for one page
# New events that a page adds to the stored totals of a run without being asked.
_MOST_COUNTED: Final = 1_000
_MOST_BARS: Final = 100  # durations of a turn
_WIDTH: Final = 1_000  # units of the axis of durations
# The types of events that can be failures.
_FAILURE_TYPES: Final = ("tool_result", "error", "final")
_WHOLE: Final = 256  # entries up to which a derived stream is read as a whole
_LINES: Final = 12  # lines of a text that are shown; the rest is folded away
_SHOWN: Final = 1_200  # characters of a text that are shown
_FOLDED: Final = 12_000  # characters that are folded away; the rest is left out
_DIFF_LINES: Final = 24  # lines of a diff that are shown
_DIFF_FOLDED: Final = 400  # lines of a diff that are folded away
_LONGEST_LINE: Final = 600  # characters of a line of a diff
_LONGEST_MARKDOWN: Final = 40_000  # characters of a text that is parsed
_NOT_FOLDED: Final = 12  # characters more that are not worth a fold
_LONGEST_MARK: Final = 200  # characters of a placeholder or stub
_NOT_IN_RUNS: Final = (*DERIVED_TYPES, "consent", "forget")
_FILE_EVENTS: Final = 5_000  # events of a file
_MOMENTS: Final = 50  # contexts of a file


class PageEvent(NamedTuple):
    """An event for a page; a tool call has its result, if that is on the same page."""

    envelope: Envelope
    preview: events.Preview
    changes: events.Changes
    result: PageEvent | None = None

    @classmethod
    def of(cls, envelope: Envelope, result: Envelope | None = None) -> PageEvent:
        """Prepare an event, with its result, for a page."""
        return cls(
            envelope,
            events.preview(envelope.payload),
            events.changes_to(envelope),
            None if result is None else cls.of(result),
        )

    @property
    def failed(self) -> bool:
        """Whether the event is a failure."""
        return is_failure(self.envelope)

    @property
    def is_rejected(self) -> bool:
        """Whether it is a call that a person rejected."""
        return self.result is not None and self.result.preview.rejected

    @property
    def layout(self) -> layouts.Layout:
        """Its parts, as a page shows them."""
        return layouts.layout_of(self.envelope)

    @property
    def anchor(self) -> str:
        """Its anchor in the page; seqs of derived streams have another prefix."""
        seq = self.envelope.seq
        stream = self.envelope.stream
        return f"e{seq}" if stream == MAIN else f"s{stream[:8]}-{seq}"


class Bar(NamedTuple):
    """A duration in a turn.

    kind:         of a request to the model, or of a tool's call.
    label:        the name of the model or the tool.
    anchor:       of the event that it ends with, or of the call.
    start, width: its place on an axis of ``_WIDTH`` units.
    milliseconds: its length.
    """

    kind: Literal["model", "tool"]
    label: str
    anchor: str
    start: int
    width: int
    milliseconds: float


class Waterfall(NamedTuple):
    """The durations of a turn, in the order in which they began."""

    milliseconds: float
    bars: Sequence[Bar]


class Turn(NamedTuple):
    """A user's input and the events up to the next one, as far as the page has them.

    steps:  the events in order; calls that were made side by side are one step.
    begins: whether the turn begins on this page.
    answer: the last answer in it.
    """

    steps: tuple[tuple[PageEvent, ...], ...]
    begins: bool
    spent: Spending
    answer: str

    @property
    def all_events(self) -> list[PageEvent]:
        """All its events, with the results of calls at the end."""
        events_of_steps: list[PageEvent] = []
        results: list[PageEvent] = []
        for step in self.steps:
            events_of_steps += step
            results += [event.result for event in step if event.result is not None]
        return events_of_steps + results

    @property
    def instruction(self) -> Instruction:
        """The words of a person with which it begins; none for a text of the client."""
        return instruction_of(self.steps[0][0].envelope)

    @property
    def redacted(self) -> str:
        """How often each type of finding was redacted in it."""
        counts: Counter[str] = Counter()
        for event in self.all_events:
            counts.update(event.changes.redacted)
        return values.type_counts(counts)

    @property
    def waterfall(self) -> Waterfall | None:
        """Its durations; None if it has fewer than two, or none that lasted."""
        spans = _durations(self)
        if len(spans) < 2:
            return None
        begin = min(span.begin for span in spans)
        total = max(span.end for span in spans) - begin
        if total < 1_000:  # microseconds: the events were recorded at one time
            return None
        bars: list[Bar] = []
        for span in sorted(spans)[:_MOST_BARS]:
            start = _WIDTH * (span.begin - begin) // total
            width = max(2, _WIDTH * (span.end - span.begin) // total)
            length = (span.end - span.begin) / 1_000
            bars.append(Bar(span.kind, span.label, span.anchor, start, width, length))
        return Waterfall(total / 1_000, bars)

    @property
    def seqs(self) -> list[int]:
        """The seqs of its events in the main stream; ``[0]`` if it has none."""
        envelopes = [event.envelope for event in self.all_events]
        own = [envelope.seq for envelope in envelopes if envelope.stream == MAIN]
        return sorted(own) or [0]


class _Span(NamedTuple):
    """A duration, with its begin and end in microseconds since 1970."""

    begin: int
    end: int
    kind: Literal["model", "tool"]
    label: str
    anchor: str


def _durations(turn: Turn) -> list[_Span]:
    """Return the durations of a turn's calls, and of its requests to the model.

    A request lasts from the input or result before it to the first event of the answer.
    """
    spans: list[_Span] = []
    own = [event for event in turn.all_events if event.envelope.stream == MAIN]
    waits_since: int | None = None
    for event in sorted(own, key=lambda event: event.envelope.seq):
        envelope = event.envelope
        at = envelope.at
        match envelope.payload:
            case UserInput() | ToolResult():
                waits_since = at
            case AgentResponse() | ToolCall():
                if waits_since is not None and at > waits_since:
                    label = envelope.meta.model or ""
                    spans.append(_Span(waits_since, at, "model", label, event.anchor))
                waits_since = None
        if isinstance(envelope.payload, ToolCall) and event.result is not None:
            end = event.result.envelope.at
            begin = min(at, end)
            result = event.result.envelope.payload
            if isinstance(result, ToolResult) and result.duration_ms is not None:
                begin = max(begin, end - round(result.duration_ms * 1_000))
            label = envelope.payload.tool_name
            spans.append(_Span(begin, end, "tool", label, event.anchor))
    return spans


class EventFilter(NamedTuple):
    """A filter of the events of a run; an empty one accepts all events.

    failed: only failures, and the calls that failed.
    tool:   only calls of this tool, and their results.
    file:   only calls whose arguments name this file, and their results.
    """

    types: tuple[str, ...] = ()
    agent: str = ""
    redacted: bool = False
    failed: bool = False
    tool: str = ""
    file: str = ""

    @property
    def scans(self) -> bool:
        """Whether it looks into events, so that a page reads more than it shows."""
        return bool(
            self.agent or self.redacted or self.failed or self.tool or self.file
        )

    @property
    def types_read(self) -> tuple[str, ...]:
        """The types of events that can match; empty means all."""
        types = self.types
        if not types and (self.tool or self.file):
            types = ("tool_call",)
        elif not types and self.failed:
            types = ("tool_call", *_FAILURE_TYPES)
        if "tool_call" in types and "tool_result" not in types:
            types = (*types, "tool_result")
        return types

    def accepts(self, envelope: Envelope) -> bool:
        """Whether the event matches, apart from its type and whether it failed.

        The log filters by type.  Whether a call failed depends on its result.
        """
        if self.agent not in ("", envelope.agent):
            return False
        if self.tool or self.file:
            call = envelope.payload
            named = RunFilter(
                tools=(self.tool,) if self.tool else (),
                files=(self.file,) if self.file else (),
            )
            if not isinstance(call, ToolCall) or not named.accepts_call(call):
                return False
        return not self.redacted or bool(events.changes_to(envelope).redacted)


EVERYTHING: Final = EventFilter()


class RunPage(NamedTuple):
    """A page of a run.

    first, last: the first and the last seq on it.
    more:        whether events follow.
    head:        the head of the session when the page was read.
    """

    turns: list[Turn]
    first: int
    last: int
    more: bool
    head: Head


def read_page(
    session: Session,
    *,
    after: int = 0,
    before: int | None = None,
    seq: int | None = None,
    limit: int = LIMIT,
    wanted: EventFilter = EVERYTHING,
) -> RunPage:
    """Read the events after ``after``, before ``before``, or around ``seq``, as a page.

    ``before`` wins over the others, and ``seq`` over ``after``.  Only a page without a
    filter has the entries of derived streams.  A filter by agent or redaction looks
    through a limited number of events, so the page may have fewer than ``limit``, and
    more may follow.

    Raises SessionNotFound, Erased.
    """
    head = session.head()
    types = wanted.types_read
    upto = None
    if before is not None:
        after = max(0, before - 1 - limit)
        upto = before - 1
    elif seq is not None:
        after = max(0, seq - 1 - limit // 4)
    most = _SCANNED if wanted.scans else limit + _EXTRA
    envelopes = session.writer.log.read(
        session.stream, after=after, upto=upto, limit=most, types=types
    )
    may_follow = len(envelopes) == most
    last = envelopes[-1].seq if envelopes else after
    matching = _matching(envelopes, wanted)
    end = _page_end(matching, limit)
    if end < len(matching):
        may_follow = True
        last = matching[end - 1].seq
        matching = matching[:end]
    if seq is not None:
        matching = _from_turn_of(matching, seq)
    first = matching[0].seq if matching else after + 1
    entries = matching
    if wanted == EVERYTHING and matching:
        derived = _entries_decided(session, first, last)
        entries = list(merge_derived(matching, derived, first - 1))
    more = (may_follow or upto is not None) and last < head.seq
    return RunPage(turns(entries), first, last, more, head)


def _matching(envelopes: Iterable[Envelope], wanted: EventFilter) -> list[Envelope]:
    """Return the events that a filter accepts, and the results of the calls among them.

    A result follows its call, whether or not the filter accepts the result.
    """
    envelopes = list(envelopes)
    failed_calls: set[str] = set()
    if wanted.failed:
        for envelope in envelopes:
            if isinstance(envelope.payload, ToolResult) and is_failure(envelope):
                failed_calls.add(envelope.payload.call_id)
    matching: list[Envelope] = []
    open_calls: set[str] = set()
    for envelope in envelopes:
        matches = wanted.accepts(envelope)
        if matches and wanted.failed:
            if isinstance(envelope.payload, ToolCall):
                matches = envelope.payload.call_id in failed_calls
            else:
                matches = is_failure(envelope)
        match envelope.payload:
            case ToolCall(call_id=call_id) if matches:
                open_calls.add(call_id)
            case ToolResult(call_id=call_id) if call_id in open_calls:
                open_calls.discard(call_id)
                matches = True
        if matches:
            matching.append(envelope)
    return matching


def title_of(session: Session, head: Head) -> str:
    """Return the title of a run for its pages; empty if it has none.

    The page of a damaged run has none.
    """
    try:
        totals = totals_of(session, head)
    except (CorruptEvent, KeyUnavailable):
        return ""
    return "" if totals is None else totals.overview.title


class FoundFailure(NamedTuple):
    """The result of a search for a failure.

    seq:         of the failure; None if there is none in the events that were read.
    upto:        the last seq that was read.
    reached_end: whether no more events follow in that direction.
    """

    seq: int | None
    upto: int
    reached_end: bool


def find_failure(
    session: Session, *, after: int = 0, before: int | None = None
) -> FoundFailure:
    """Find the first failure after a seq, or the last one before a seq.

    It reads a limited number of events.

    Raises SessionNotFound, Erased.
    """
    session.head()
    read = session.writer.log.read
    if before is None:
        page = read(session.stream, after=after, limit=_SCANNED, types=_FAILURE_TYPES)
        in_order = page
        upto = page[-1].seq if page else after
    else:
        page = read(
            session.stream,
            upto=max(before - 1, 0),
            limit=_SCANNED,
            types=_FAILURE_TYPES,
            newest=True,
        )
        in_order = page[::-1]
        upto = page[0].seq if page else before
    for envelope in in_order:
        if is_failure(envelope):
            return FoundFailure(envelope.seq, envelope.seq, reached_end=False)
    return FoundFailure(None, upto, reached_end=len(page) < _SCANNED)


class Totals(NamedTuple):
    """The head of a run's page.

    is_live: whether the run is open and got an event in the last hour.
    """

    overview: Overview
    is_live: bool

    @property
    def tokens(self) -> int:
        """All tokens that providers counted."""
        usage = self.overview.usage
        return usage.input + usage.written + usage.read + usage.output


def totals_of(session: Session, head: Head, *, sure: bool = False) -> Totals | None:
    """Return the totals of a run: the stored ones, with the events after them.

    Returns None if many events came after them, unless the reader is sure.

    Raises Erased, CorruptEvent, KeyUnavailable.
    """
    now = session.writer.clock()
    overview = Overviews(session.writer.log, now=now).of_session(
        session.stream, head.seq, most_events=None if sure else _MOST_COUNTED
    )
    if overview is None:
        return None
    is_live = head.status == "open" and abs(now - overview.last_at) < LIVE
    return Totals(overview, is_live)


def _page_end(envelopes: Sequence[Envelope], limit: int) -> int:
    """Return how many of the events are on the page.

    The page ends at the first place from ``limit`` on where every call has its result.
    If there is no such place, it has exactly ``limit`` events.
    """
    open_calls: set[str] = set()
    for index, envelope in enumerate(envelopes):
        if index >= limit and not open_calls:
            return index
        match envelope.payload:
            case ToolCall(call_id=call_id):
                open_calls.add(call_id)
            case ToolResult(call_id=call_id):
                open_calls.discard(call_id)
    if open_calls:
        return min(len(envelopes), limit)
    return len(envelopes)


def _from_turn_of(envelopes: list[Envelope], seq: int) -> list[Envelope]:
    """Return the events from the start of the turn with ``seq`` on.

    Returns all events if that turn starts before them.
    """
    start = 0
    for index, envelope in enumerate(envelopes):
        if _begins_turn(envelope) and envelope.seq <= seq:
            start = index
    return envelopes[start:]


def _entries_decided(session: Session, first: int, last: int) -> list[Envelope]:
    """Return the entries of derived streams decided at seqs ``first`` to ``last``.

    Entries that a rebuild replaced are left out.  The others are in the order of their
    decisions, so a binary search finds the first one in a long stream.
    """
    decided: list[Envelope] = []
    log = session.writer.log
    for name in session.history.streams()[1:]:
        stream = session.stream._replace(stream=name)
        length = log.head(stream).seq
        if length > _WHOLE:
            replaced = _replaced_by_rebuild(log, stream)
            start = _decided_before(log, stream, replaced, length, first)
            entries = log.read(stream, after=start, limit=_WHOLE)
        else:
            entries = since_last_rebuild(log.read(stream, after=0, limit=_WHOLE))
        decided += [entry for entry in entries if first <= _decided_at(entry) <= last]
    return decided


def _replaced_by_rebuild(log: EventLog, stream: StreamId) -> int:
    """Return how many entries of a derived stream its last rebuild replaced.

    These are the first ones of the stream.
    """
    upto: int | None = None
    while True:
        notes = log.read(
            stream, upto=upto, limit=_WHOLE, types=("compaction",), newest=True
        )
        for note in reversed(notes):
            if is_rebuild(note):
                return note.seq - 1
        if len(notes) < _WHOLE:
            return 0
        upto = notes[0].seq - 1


def _decided_before(
    log: EventLog, stream: StreamId, replaced: int, length: int, seq: int
) -> int:
    """Return how many entries of a derived stream come before those of a page.

    Each of them was replaced by the last rebuild, or decided before ``seq``.

    replaced: how many the last rebuild replaced.
    length:   how many entries the stream has.
    """
    low = replaced
    high = length
    while low < high:
        middle = (low + high) // 2
        entries = log.read(stream, after=middle, limit=1)
        # Without an entry, the session is being erased.
        if not entries or _decided_at(entries[0]) >= seq:
            high = middle
        else:
            low = middle + 1
    return low


def _begins_turn(envelope: Envelope) -> bool:
    """Whether a turn begins with this event."""
    return isinstance(envelope.payload, UserInput)


def _decided_at(entry: Envelope) -> int:
    """Return the seq at which an entry was decided; 0 if it has none."""
    return getattr(entry.payload, "decided_at_seq", None) or 0


def turns(envelopes: Sequence[Envelope]) -> list[Turn]:
    """Group events into turns, each call with its result."""
    own = [envelope for envelope in envelopes if envelope.stream == MAIN]
    results = _results(own)
    answers_by_seq = {answer.first.seq: answer for answer in answers(own)}
    groups: list[list[Envelope]] = []
    for envelope in envelopes:
        if not groups or _begins_turn(envelope):
            groups.append([])
        groups[-1].append(envelope)
    grouped: list[Turn] = []
    for group in groups:
        turn = _build_turn(group, results, answers_by_seq)
        if turn.steps:
            grouped.append(turn)
    return grouped


def _build_turn(
    group: Sequence[Envelope],
    results: Mapping[int, Envelope],
    answers_by_seq: Mapping[int, Answer],
) -> Turn:
    """Build a turn, each call with its result; calls with adjacent seqs are one step.

    results: the results of calls, by the seq of the call.
    """
    shown_with_calls = {result.seq for result in results.values()}
    steps: list[list[PageEvent]] = []
    spent = Spending()
    answer_text = ""
    previous_call = 0  # the seq of the event before if it is a call; else 0
    for envelope in group:
        seq = envelope.seq if envelope.stream == MAIN else 0
        if seq in answers_by_seq:
            spent = spent.with_answer(answers_by_seq[seq])
        if seq in shown_with_calls:
            continue
        if envelope.type in ("agent_response", "final"):
            answer_text = getattr(envelope.payload, "text", "").strip() or answer_text
        is_call = isinstance(envelope.payload, ToolCall)
        is_parallel = is_call and previous_call > 0 and previous_call == seq - 1
        if not is_parallel:
            steps.append([])
        steps[-1].append(PageEvent.of(envelope, results.get(seq)))
        previous_call = seq if is_call else 0
    return Turn(tuple(map(tuple, steps)), _begins_turn(group[0]), spent, answer_text)


def _results(envelopes: Iterable[Envelope]) -> dict[int, Envelope]:
    """Return the results among these events, by the seq of the call of each."""
    open_calls: dict[str, int] = {}
    results: dict[int, Envelope] = {}
    for envelope in envelopes:
        match envelope.payload:
            case ToolCall(call_id=call_id):
                open_calls[call_id] = envelope.seq
            case ToolResult(call_id=call_id) if call_id in open_calls:
                results[open_calls.pop(call_id)] = envelope
    return results


def strategies(session: Session) -> dict[str, Strategy]:
    """Return the strategies that compacted the session, by fingerprint."""
    used: dict[str, Strategy] = {}
    for name in session.history.streams()[1:]:
        stream = session.stream._replace(stream=name)
        for entry in session.writer.log.read(stream, limit=1, newest=True):
            if isinstance(entry.payload, Summary):
                used[name] = spec.parse(entry.payload.strategy.model_dump())
    return used


def chosen(session: Session, name: str) -> Strategy | None:
    """Return the strategy with this fingerprint or spec; None for an empty name.

    None means the session's own strategy.  ``spec.parse`` reads no files, so a client
    cannot name files of the server.

    Raises UnknownStrategy.
    """
    strategy = strategies(session).get(name)
    if strategy is None and name:
        strategy = spec.parse(name)
    return strategy


def context_at(session: Session, strategy: Strategy | None, at: int) -> View | None:
    """The context at a seq; None if it folds or shows more than ``MOST_READ`` events.

    strategy: None means the session's own.
    """
    viewer = viewer_of(session)
    if strategy is None:
        strategy = chosen_strategy(session, viewer, None, at=at)
    if viewer.reads_at(strategy, at) > MOST_READ:
        return None
    return session.context(strategy, at=at)


def plot_data(outcome: Outcome) -> dict[str, Any]:
    """Return a strategy's requests for a plot: tokens of each, and dollars up to each.

    ``dollars`` is empty for a model without prices.
    """
    dollars: list[float] = []
    prices = outcome.model.prices
    if prices is not None:
        total = 0.0
        for sent in outcome.sent:
            price = prices.for_prompt(sent.tokens)
            total += price.cost(
                uncached=sent.uncached, written=sent.written, read=sent.cached
            )
            dollars.append(round(total, 6))
    return {
        "label": outcome.label,
        "tokens": [sent.tokens for sent in outcome.sent],
        "dollars": dollars,
    }


def html_file(
    session: Session,
    lang: Lang = "en",
    *,
    plain: bool = False,
    shared: bool = False,
    served: Share | None = None,
) -> str:
    """Return a run as one HTML file that needs no network: its turns, and contexts.

    For a long run it has the first events and some of the contexts, and states that.

    plain:  show texts as written, without their Markdown.
    shared: state that the file cannot expire.
    served: the share whose link shows the run; later events are not shown.

    Raises SessionNotFound, Erased.
    """
    head = session.head()
    timeline = list(session.history.timeline(limit=_FILE_EVENTS))
    used = strategies(session)
    if served is not None:
        head = served.head_of(head)
        timeline = [event for event in timeline if served.shows(event)]
        used = {name: used[name] for name in used if served.ends.get(name)}
    last = max(event.seq for event in timeline if event.stream == MAIN)
    requests = {event.seq for event in timeline if event.type == "request"}
    strategy = None
    seqs_of_contexts = requests
    if not requests:
        # The log does not show which contexts were sent.  Show the context before each
        # response, by a strategy that compacted the session, if there is one.
        seqs_of_contexts = _before_responses(timeline)
        strategy = next(iter(used.values()), None)
    moments = sorted({*seqs_of_contexts, last})
    contexts = [session.why(strategy, at=seq, chains=False) for seq in _spread(moments)]
    if served is not None:
        contexts = _when_shared(contexts, served, timeline)
    return rendered(
        "file.html",
        lang,
        plain=plain,
        shared=shared,
        served=served,
        link=lambda *_, **__: "",  # the file stands alone
        session=session,
        head=head,
        turns=turns(timeline),
        shown=last,
        contexts=contexts,
        moments=moments,
        written_at=served.created_at if served else session.writer.clock(),
    )


def _when_shared(
    contexts: Sequence[Explanation], served: Share, timeline: Sequence[Envelope]
) -> list[Explanation]:
    """Return the contexts as they were when the run was shared.

    Leaves out a context with a summary that was written later, and the bill of an
    answer that came later.
    """
    last_answer = 0
    for event in timeline:
        if isinstance(event.payload, AgentResponse):
            last_answer = max(last_answer, event.seq)
    shown: list[Explanation] = []
    for explained in contexts:
        summaries = [record.node.envelope for record in explained.records]
        if not all(served.shows(summary) for summary in summaries):
            continue
        if last_answer <= explained.at:
            explained = replace(explained, bill=None)
        shown.append(explained)
    return shown


def shared_page(session: Session, served: Share, lang: Lang) -> str:
    """Return the page of a link: the run as it was when it was shared."""
    return html_file(session, lang, served=served)


def shared_page_policy() -> str:
    """Return the content security policy of the page of a link.

    Only the script and the style sheet in the page run, by their digests.
    """
    return (
        f"default-src 'none'; script-src '{_digest('page.js')}'; "
        f"style-src '{_digest('page.css')}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def _before_responses(envelopes: Sequence[Envelope]) -> set[int]:
    """Return the seqs just before the responses of the model."""
    seqs: set[int] = set()
    for numbered in events.Numbering().number(envelopes):
        if numbered.began_at is not None and numbered.began_at > 1:
            seqs.add(numbered.began_at - 1)
    return seqs


def _spread(moments: Sequence[int]) -> Sequence[int]:
    """Return at most ``_MOMENTS`` of these seqs, evenly spread, and always the last."""
    step = max(1, math.ceil(len(moments) / _MOMENTS))
    newest_first = moments[::-step]
    return newest_first[::-1]


_MARKED: Final = re.compile(f"({STANDS_FOR.pattern})|({values.STUB.pattern})")


def marked(text: str) -> Markup:
    """Return a text of the log for a page, with placeholders and stubs highlighted."""
    text = values.visible(text)
    parts: list[Markup] = []
    end = 0
    for match in _MARKED.finditer(text):
        css_class = "chip" if match[1] else "stub"
        parts.append(escape(text[end : match.start()]))
        parts.append(Markup('<mark class="{}">{}</mark>').format(css_class, match[0]))
        end = match.end()
    parts.append(escape(text[end:]))
    return Markup("").join(parts)


class Cut(NamedTuple):
    """A text of a page, as HTML in parts.

    shown: its beginning.
    rest:  the next part, which the reader can unfold.
    lines: how many lines the rest has.
    left:  how many characters are in neither.
    """

    shown: Markup
    rest: Markup
    lines: int
    left: int


def cut(text: str, *, whole: bool = False) -> Cut:
    """Cut a text to the room of a page, never within a placeholder."""
    text = text.rstrip("\n")
    end = len(text)
    if not whole:
        first_lines = islice(text.splitlines(keepends=True), _LINES)
        end_of_lines = sum(len(line) for line in first_lines)
        limit = min(end_of_lines, _SHOWN)
        if len(text) > limit + _NOT_FOLDED:
            end = limit
    end = _outside_mark(text, end)
    end_of_rest = _outside_mark(text, min(len(text), end + _FOLDED))
    rest = text[end:end_of_rest]
    left = len(text) - end_of_rest
    return Cut(marked(text[:end]), marked(rest), rest.count("\n") + 1, left)


def _outside_mark(text: str, end: int) -> int:
    """Return ``end``, or the end of the placeholder or stub that ``end`` would cut."""
    start = max(0, end - _LONGEST_MARK)
    for match in _MARKED.finditer(text, start, end + _LONGEST_MARK):
        if match.start() < end < match.end():
            return match.end()
    return end


def cut_prose(text: str, *, whole: bool = False) -> Cut:
    """Render the Markdown of a person's or a model's text; cut it between paragraphs.

    A text that is too long to be parsed stays as it was written.
    """
    from refold.adapters.server import markdown

    text = values.visible(text).strip("\n")
    if whole and len(text) > _LONGEST_MARKDOWN:
        written = Markup('<pre class="words">{}</pre>').format(marked(text))
        return Cut(written, Markup(), 0, 0)
    end = len(text)
    if not whole:
        end = _outside_mark(text, min(end, _SHOWN + _FOLDED))
    prose = markdown.render(text[:end], marked, limit=None if whole else _SHOWN)
    return Cut(prose.shown, prose.rest, prose.lines, len(text) - end)


class StoredFile(NamedTuple):
    """An image or PDF of an event: its type and its bytes."""

    media_type: str
    data: bytes


def media_of(session: Session, envelope: Envelope, nth: int) -> StoredFile | None:
    """Return an image or PDF of an event, with its bytes as they are stored.

    The bytes decide its type, whatever the event states.  Returns None if the event has
    no such file, or its blob has expired.

    nth: its place among the attachments or parts of the event.
    """
    complete = WithBlobs.read(session.writer.log, [envelope])
    for file in layouts.layout_of(complete.events[0]).files:
        if file.nth != nth:
            continue
        text = str(file.block["source"].get("data"))
        data = media.decoded(with_blob(text, complete.blobs.get))
        walked = media.read(data) if data is not None else None
        if data is None or walked is None:
            return None
        return StoredFile(walked.media_type, data)
    return None


class CutDiff(NamedTuple):
    """The lines of a diff in parts, each line with its kind.

    shown: the first lines.
    rest:  the next lines, which the reader can unfold.
    left:  how many lines are in neither.
    """

    shown: Sequence[tuple[str, Markup]]
    rest: Sequence[tuple[str, Markup]]
    left: int


def cut_diff(diff: layouts.Diff, *, whole: bool = False) -> CutDiff:
    """Cut a diff to the room of a page.

    Each part has a limited number of lines and of characters.
    """
    lines = diff.lines
    if whole:
        return CutDiff([_marked_line(line) for line in lines], (), 0)
    end = _end_of_lines(lines, 0, _DIFF_LINES, 2 * _SHOWN)
    if end + _NOT_FOLDED >= len(lines):
        end = _end_of_lines(lines, 0, len(lines), 2 * _SHOWN)
    end_of_rest = _end_of_lines(lines, end, _DIFF_FOLDED, _FOLDED)
    return CutDiff(
        shown=[_marked_line(line, _LONGEST_LINE) for line in lines[:end]],
        rest=[_marked_line(line, _LONGEST_LINE) for line in lines[end:end_of_rest]],
        left=len(lines) - end_of_rest,
    )


def _end_of_lines(
    lines: Sequence[layouts.Line], start: int, most: int, characters: int
) -> int:
    """Return the end of the lines from ``start`` on that fit; at least one fits."""
    end = start
    room = characters
    while end < min(len(lines), start + most):
        room -= min(len(lines[end].text), _LONGEST_LINE)
        if room < 0 and end > start:
            break
        end += 1
    return end


def _marked_line(line: layouts.Line, most: int | None = None) -> tuple[str, Markup]:
    """Return a line of a diff; a longer one than ``most`` characters is cut."""
    text = line.text
    if most is not None and len(text) > most:
        text = text[: _outside_mark(text, most)] + "…"
    return line.kind, marked(text)


# Marks of Markdown that a line of plain text does not need.
_BOLD: Final = re.compile(r"(?<![\w*])\*\*(?=\S)([^*\n]+)(?<=\S)\*\*(?![\w*])")
_TITLE_MARK: Final = re.compile(r"\s*#{1,6} +")


def _without_markdown(text: str) -> str:
    """Return a text without the marks of bold words and of a title at its start."""
    title = _TITLE_MARK.match(text)
    return _BOLD.sub(r"\1", text[title.end() :] if title else text)


def first_line(text: str, most: int = 200) -> str:
    """Return the beginning of a text, in one line of at most ``most`` characters."""
    line = " ".join(_without_markdown(text[: 4 * most]).split())
    return line if len(line) <= most else f"{line[:most]}…"


@cache
def texts(lang: Lang) -> Mapping[str, str]:
    """Return the texts of pages in a language, by name: ``table.key``."""
    tables = load_packaged_toml("refold.adapters.server", "texts", f"{lang}.toml")
    named: dict[str, str] = {}
    for table, entries in tables.items():
        for key, text in entries.items():
            named[f"{table}.{key}"] = text
    return named


@pass_context
def _text(context: Any, key: str, **fields: Any) -> str:
    """Return the text with this name in the language of the page.  Raises KeyError.

    If ``n`` is one, it is the text with the suffix ``_one``, if there is one.
    """
    by_key = texts(context["lang"])
    text = by_key[key]
    if fields.get("n") in (1, "1"):
        text = by_key.get(f"{key}_one", text)
    return text.format(**fields)


@cache
def static(name: str) -> str:
    """Return the text of a file that pages load.

    The name must not come from a client.
    """
    return (FOLDER / "static" / name).read_text("utf-8")


def _digest(name: str) -> str:
    """Return a digest of a file that pages load; it changes the file's address."""
    digest = sha256(static(name).encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _finalized(value: Any) -> Any:
    """Make control characters of a template's value visible.

    Only a ``str`` needs that: ``marked`` has made them visible in ``Markup``.
    """
    return values.visible(value) if type(value) is str else value


def _dollars(amount: float) -> str:
    """Return an amount as text, with more digits if it is small."""
    return f"${amount:,.4f}" if amount < 1 else f"${amount:,.2f}"


def _cost(spending: Spending | Overview) -> str:
    """Return a cost as text, with a mark if it is a lower bound."""
    mark = "≥ " if spending.is_lower_bound else ""
    return mark + _dollars(spending.dollars)


def _output_tokens(spending: Spending) -> str:
    """Return the output tokens as text, with a mark if they are a lower bound."""
    mark = "≥ " if spending.undercounted else ""
    return mark + values.number(spending.usage.output)


def _pick(key: Any, mapping: Mapping[Any, Any]) -> Any:
    """Return the value of a key; as a filter, it maps a list of keys to values."""
    return mapping[key]


def warm_up() -> None:
    """Load the modules and templates of the list and of a run.

    Otherwise, the first request of a process waits for them.
    """
    cut_prose("https://example.org")
    pages = _pages()
    for name in pages.list_templates(extensions=["html"]):
        if name.startswith("parts/") or name in _FIRST_TEMPLATES:
            pages.get_template(name)


_FIRST_TEMPLATES: Final = frozenset({"base.html", "run.html", "sessions.html"})


@cache
def _pages() -> Environment:
    """Return the templates.

    They escape every value, and make control characters visible.
    """
    pages = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {
        "cut_prose": cut_prose,
        "content": events.result_text,
        "cost": _cost,
        "cut": cut,
        "cut_diff": cut_diff,
        "dollars": _dollars,
        "duration": values.duration,
        "first_line": first_line,
        "marked": marked,
        "moment": values.moment,
        "number": values.number,
        "output_tokens": _output_tokens,
        "page_event": PageEvent.of,
        "path_end": values.path_end,
        "pick": _pick,
        "readable": events.readable,
        "rfc3339": values.rfc3339,
        "types": values.type_counts,
    }
    pages.globals |= {
        "t": _text,
        "static": static,
        "digest": _digest,
        "everything": EVERYTHING,
        "kinds": [name for name in EVENT_CLASSES if name not in _NOT_IN_RUNS],
        "strategies": list(spec.STRATEGIES),
    }
    return pages


def rendered(template: str, lang: Lang, *, plain: bool = False, **fields: Any) -> str:
    """Render a template with these fields.

    plain: show the texts of people and models as written, without their Markdown.
    """
    return _pages().get_template(template).render(lang=lang, plain=plain, **fields)
