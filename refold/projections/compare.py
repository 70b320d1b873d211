"""Comparing strategies: one log walked under each, counted, and nothing written."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from itertools import takewhile
from typing import Any, Final, NamedTuple

from refold.domain import events as log
from refold.domain.canonical import canonical
from refold.domain.envelope import Envelope, microseconds
from refold.domain.errors import RefoldError
from refold.domain.tokens import estimate_text
from refold.projections.context import abridged, compaction
from refold.projections.context.budget import NO_EXTRAS, Extras
from refold.projections.context.compaction import Compaction, Source, Summarizer
from refold.projections.context.identifiers import in_text, in_value, stands_in
from refold.projections.context.outline import Outline, fold_derived
from refold.projections.context.render import OPENING, render
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategy import Shown, Strategy, write
from refold.projections.context.text import Message, entry_of, leaves, text_block
from refold.projections.context.units import Spans, Thread, goes_on, joined, place
from refold.projections.context.view import View
from refold.projections.models import ModelInfo

_Log = Sequence[Envelope]
_BEGIN: Final = ("response", "call")


class Moment(NamedTuple):
    """A model was called.

    read: how many events of the log were there.
    seq:  the first event that it answered with.
    used: the identifiers in its text and in its calls' arguments that the log had
          before.
    files: those that earlier calls read, wrote or deleted.
    failed: earlier calls that did, each as a context may tell it.
    """

    read: int
    seq: int
    used: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    failed: frozenset[tuple[str, str]] = frozenset()


def moments(events: _Log) -> list[Moment]:
    """The model calls in the log of ``events``, oldest first.

    Where a request was recorded, that is the call: what came before the answer to it
    was not sent.
    Those of the session that it was forked from (seq 0 and below) are not its own.
    """
    found: dict[int, Moment] = {}
    first: dict[str, int] = {}
    thread, asked = Thread(), None
    for index, envelope in enumerate(events):
        thread, placed = place(thread, envelope)
        names = _shown_names(envelope.payload)
        if isinstance(envelope.payload, log.Request) and envelope.meta.status is None:
            asked = index
        if placed is not None and placed.kind in _BEGIN:
            begun = Moment(index if asked is None else asked, placed.exchange)
            moment, asked = found.get(placed.exchange, begun), None
            used = {name for name in names if first.get(name, moment.seq) < moment.seq}
            found[moment.seq] = moment._replace(used=moment.used | used)
        for name in names:
            first.setdefault(name, envelope.seq)
    made = [one for one in found.values() if one.seq > 0]
    upto = [events[one.read].seq for one in made]
    files = _known(abridged.files_in(events), upto)
    failed = _known(abridged.failures_in(events), upto)
    return [one._replace(files=next(files), failed=next(failed)) for one in made]


def _known(found: Iterable[tuple[int, Any]], upto: list[int]) -> Iterator[Any]:
    """What had been found before each of these seqs."""
    left, known = deque(found), frozenset[Any]()
    for seq in upto:
        new = set()
        while left and left[0][0] < seq:
            new.add(left.popleft()[1])
        known = known | new if new else known
        yield known


def _shown_names(event: log.Event) -> set[str]:
    """The identifiers in what a model may be shown of an event."""
    match event:
        case log.SystemPrompt(text=str(text)) | log.AgentResponse(text=text):
            return in_text(text)
        case log.ToolCall(arguments=value) | log.ToolResult(content=value):
            return in_value(value)
    entry = entry_of(event)
    return set().union(*map(in_value, entry.content)) if entry else set()


_IDS: Final = ("id", "tool_use_id")


class Element(NamedTuple):
    """The system prompt or one block: its weight, what it names, and what failed.

    key:   its role and its canonical JSON, but for the ids of calls.
    texts: what a model reads in it.
    """

    key: bytes
    weight: int
    names: frozenset[str]
    texts: tuple[str, ...]


@dataclass(slots=True)
class Elements:
    """Makes elements of views; equal blocks are read only once."""

    known: dict[bytes, Element] = field(default_factory=dict)

    def of(self, view: View) -> list[Element]:
        """The elements of ``view``, in the order in which they are sent."""
        sent = [(m["role"], block) for m in view.messages for block in m["content"]]
        if view.system is not None:
            sent.insert(0, ("system", {"type": "text", "text": view.system}))
        calls = {b["id"]: b for _, b in sent if b["type"] == "tool_use"}
        failed = (b.get("is_error") and calls.get(b["tool_use_id"]) for _, b in sent)
        return [self._element(*a, b) for a, b in zip(sent, failed, strict=True)]

    def _element(self, role: str, block: dict[str, Any], failed: Any) -> Element:
        said = {name: block[name] for name in block if name not in _IDS}
        key = at = role.encode() + canonical(said)
        if failed:  # equal results may be of other calls
            at = key + canonical(failed)
        element = self.known.get(at)
        if element is None:
            weight, texts = estimate_text(key.decode()), tuple(_told(block))
            called = block["type"] == "tool_use"
            found = [in_value(block["input"])] if called else map(in_text, texts)
            names = set[str]().union(*found)
            if failed:
                about = {"tool_name": failed["name"], "arguments": failed["input"]}
                names.add(abridged.failure(log.ToolCall(call_id="failed", **about)))
            names.update(*map(abridged.failures_of, texts))
            element = self.known[at] = Element(key, weight, frozenset(names), texts)
        return element


def _told(block: dict[str, Any]) -> Iterator[str]:
    """What a model reads in a block: no ids, no signatures, no images."""
    match block:
        case {"type": "text", "text": text} | {"type": "thinking", "thinking": text}:
            yield text
        case {"type": "tool_use", "input": arguments}:
            yield from leaves(arguments, keys=False)
        case {"type": "tool_result", "content": str(text)}:
            yield text
        case {"type": "tool_result", "content": list(blocks)}:
            for element in blocks:
                yield from _told(element)


_ALL: Final = KeepAll()
# What these show depends on what stands before them.
_DEPENDENT: Final = (log.Final, log.HumanReview, log.SystemPrompt)


class Rendered(NamedTuple):
    """What a model is sent: its tokens, and its elements in their order."""

    tokens: int
    elements: list[Element]


@dataclass(slots=True)
class Requests:
    """The requests of one walk.

    A context only grows at its end until the strategy changes what stands before, so
    only what is new is rendered as long as that is so.  A whole rendering of each
    request would take time by the square of the log.
    """

    strategy: Strategy
    events: _Log
    extras: Extras
    elements: Elements
    _seqs: list[int] = field(init=False)
    _results: list[Envelope] = field(init=False)
    # The request before, and all of what was shown but the raw end that grows.
    _before: tuple[Rendered, Outline, Shown] | None = None

    def __post_init__(self) -> None:
        self._seqs = [event.seq for event in self.events]
        events = self.events
        self._results = [e for e in events if isinstance(e.payload, log.ToolResult)]

    def next(self, outline: Outline, summaries: _Log) -> Rendered:
        """The request for ``outline``, which is the one of before or has read more."""
        outline = self.strategy.judged(outline)
        shown = self.strategy.show(outline)
        request = self._grown(outline, shown)
        if request is None:
            view = self.view(outline, summaries, self.extras)
            request = Rendered(view.tokens, self.elements.of(view))
        self._before = (request, outline, shown)
        return request

    def view(self, outline: Outline, summaries: _Log, extras: Extras) -> View:
        """The request, whole."""
        outline = self.strategy.judged(outline)
        read = self.within(outline.reads(self.strategy.show(outline).raw))
        return render(self.strategy, outline, read, summaries=summaries, extras=extras)

    def within(self, spans: Spans) -> list[Envelope]:
        """The events of ``spans``, found without looking at the others."""
        seqs = self._seqs
        ends = ((bisect_left(seqs, a), bisect_right(seqs, b)) for a, b in spans)
        return [event for first, end in ends for event in self.events[first:end]]

    def _grown(self, outline: Outline, shown: Shown) -> Rendered | None:
        """The request of before with what is new behind it; None if it is no such."""
        if self._before is None:
            return None
        request, earlier, was = self._before
        span = (earlier.through_seq + 1, outline.through_seq)
        if (
            earlier.thread.open
            or _frame(earlier, was) != _frame(outline, shown)
            or joined((*was.raw, span)) != shown.raw
            or self._cleared(was) != self._cleared(shown)
        ):
            return None
        new = self.within((span,))
        if any(isinstance(event.payload, _DEPENDENT) for event in new):
            return None
        view = render(_ALL, _ALL.read(_ALL.begin(), new), new, extras=self.extras)
        elements = self.elements.of(view)
        if elements and elements[0].texts == (OPENING,):
            del elements[0]
        return Rendered(request.tokens + view.tokens, [*request.elements, *elements])

    def _cleared(self, shown: Shown) -> list[int]:
        return [event.seq for event in self._results if shown.cleared(event)]


@dataclass(slots=True)
class RawRequests:
    """What a model is sent of a log that is never compacted, by digest.

    As with ``Requests``, only what is new is rendered as long as that gives the same.
    """

    events: _Log
    extras: Extras = NO_EXTRAS
    _system: str | None = None
    _hash: Any = None
    _role: str = ""
    _ids: set[str] = field(default_factory=set)
    _read: int = 0

    def digests(self) -> Iterator[tuple[Envelope, str]]:
        """The first event of each answer, and the digest of all that came before it.

        Those of a session that this one was forked from are left out.
        """
        thread = Thread()
        for index, envelope in enumerate(self.events):
            thread, placed = place(thread, envelope)
            begins = placed is not None and placed.kind in _BEGIN
            if begins and placed and placed.exchange == envelope.seq > 0:
                if not self._grow(self.events[self._read : index]):
                    self._begin(self._view(self.events[:index]))
                self._read = index
                sent = self._hash.copy()
                sent.update(b'],"system":' + canonical(self._system) + b"}")
                yield envelope, sent.hexdigest()

    def _begin(self, view: View) -> None:
        self._role, self._hash, self._ids = "", sha256(b'{"messages":['), set()
        self._system = view.system
        self._take(view.messages)

    def _grow(self, new: _Log) -> bool:
        """Whether what is new stands behind the rest as it is, which it then does."""
        if not self._role or any(isinstance(one.payload, _DEPENDENT) for one in new):
            return False
        if _ids_of(new, log.ToolResult) - _ids_of(new, log.ToolCall):
            return False  # of a call before, which is shown with its result now
        messages = self._view(new).messages
        if messages and messages[0]["content"] == [text_block(OPENING)]:
            messages = messages[1:]
        same = not messages or messages[0]["role"] == self._role
        if same or self._ids & _call_ids(messages):
            return False
        self._take(messages)
        return True

    def _take(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if self._role:
                self._hash.update(b",")
            self._hash.update(canonical(message))
            self._role = message["role"]
        self._ids |= _call_ids(messages)

    def _view(self, events: _Log) -> View:
        return render(_ALL, _ALL.read(_ALL.begin(), events), events, extras=self.extras)


def _ids_of(
    events: Iterable[Envelope], kind: type[log.ToolCall | log.ToolResult]
) -> set[str]:
    payloads = (event.payload for event in events)
    return {one.call_id for one in payloads if isinstance(one, kind)}


def _call_ids(messages: Iterable[Message]) -> set[str]:
    blocks = (block for message in messages for block in message["content"])
    return {block["id"] for block in blocks if block["type"] == "tool_use"}


def _frame(outline: Outline, shown: Shown) -> tuple[Any, ...]:
    """Whatever a view depends on beside its raw end."""
    layers = outline.layers
    return (
        *(outline.summaries, outline.kept, outline.kept_input, outline.pinned),
        *(layers.summaries, layers.facts_shown, layers.notes_shown),
        *(outline.system_seq, shown.inputs, shown.left),
    )


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
    events: _Log
    moments: Sequence[Moment]
    summarizer: Summarizer
    recorded: _Log | None = None
    extras: Extras = NO_EXTRAS
    elements: Elements = field(default_factory=Elements)
    goes_on: bool = False
    done: list[Done] = field(default_factory=list)
    derived: list[Envelope] = field(default_factory=list)
    _outline: Outline = field(init=False)
    _requests: Requests = field(init=False)
    _sent: int = 0

    def __post_init__(self) -> None:
        self._outline, given = self.strategy.begin(), (self.extras, self.elements)
        self._requests = Requests(self.strategy, self.events, *given)

    def steps(self) -> Iterator[tuple[Moment, datetime, Rendered]]:
        """The requests, oldest first, with their times; each is made when asked for."""
        calls = {moment.read: moment for moment in self.moments}
        newest: Envelope | None = None
        ended = False
        for index, event in enumerate(self.events[: max(calls, default=-1) + 1]):
            clock = newest.ts if newest else event.ts
            moment = calls.get(index)
            if newest and ended:
                _, at = place(self._outline.thread, event)
                ended = not goes_on(newest, event, at)
            judged = moment or ended
            if judged:
                self._check(clock)
            if moment:
                yield moment, clock, self._requests.next(self._outline, self.derived)
                self._sent += 1
            self._wait(clock, event.ts, judged=clock if judged else None)
            self._outline = self.strategy.fold(self._outline, event)
            idle = self._outline.idle
            answered = idle and isinstance(event.payload, log.AgentResponse)
            newest, ended = event, answered or isinstance(event.payload, log.Final)

    def view(self, extras: Extras) -> View:
        """The request at which the walk stands, with this handed in."""
        return self._requests.view(self._outline, self.derived, extras)

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
        for envelope in (self.recorded or ())[len(self.derived) :]:
            summary = envelope.payload
            if not isinstance(summary, log.Summary):
                self.derived.append(envelope)
            elif summary.decided_at_seq <= self._outline.through_seq:
                self._take(envelope, summary, summary.tokens_before)
            else:
                return
        if self.recorded is not None and not self.goes_on:
            return
        due = self.strategy.decide(self._outline, now)
        while due is not None and self._compact(due, now):
            due = self.strategy.follow_up(self._outline, now)

    def _compact(self, due: Compaction, now: datetime) -> bool:
        """Do what is due; False if that failed."""
        events = self._requests.within(((due.first_seq, due.last_seq),))
        source = compaction.source_of(due, events=events, summaries=self.derived)
        target = due.target_tokens
        try:
            made = write(self.strategy, self.summarizer, source, target_tokens=target)
        except RefoldError as error:
            self._fail(due, source, now, str(error))
            return False
        strategy, at = self.strategy.ref, max(self._outline.through_seq, 1)
        summary = compaction.summary_of(
            due, source, made, strategy=strategy, appended_at_seq=at
        )
        self._take(self._recorded(summary, now), summary, estimate_text(source.text))
        return True

    def _take(self, envelope: Envelope, summary: log.Summary, read: int) -> None:
        usage, after = summary.usage or {}, summary.tokens_after
        told = (usage.get("input_tokens"), read), (usage.get("output_tokens"), after)
        counts = (given if isinstance(given, int) else other for given, other in told)
        self._add(envelope, summary, after, *counts)

    def _fail(self, due: Compaction, source: Source, now: datetime, why: str) -> None:
        span = {"first_seq": due.first_seq, "last_seq": due.last_seq}
        about = {**span, "decided_at_seq": due.decided_at_seq}
        attempt = self._outline.failures + 1
        note = log.CompactionNote(phase="failed", why=why, attempt=attempt, **about)
        read = estimate_text(source.text)
        self._add(self._recorded(note, now), due, due.tokens_before, read, 0, why)

    def _add(self, entry: Envelope, of: Compaction | log.Summary, *told: Any) -> None:
        self.derived.append(entry)
        self._outline = fold_derived(self._outline, entry)
        span = of.first_seq, of.last_seq, of.decided_at_seq, of.tokens_before
        self.done.append(Done(self._sent, *span, *told))

    def _recorded(self, event: log.Event, now: datetime) -> Envelope:
        """The event as the derived stream would hold it, but for hashes."""
        like = self.events[-1].stream_id._replace(stream=self.strategy.fingerprint)
        return Envelope.imagined(event, len(self.derived) + 1, now, like)


class Sent(NamedTuple):
    """One request: its tokens, split as a prompt cache would, and what it refers to.

    seq:         the first event that answered it.
    cached:      tokens read from the cache; ``written`` are written to it, ``uncached``
                 neither.
    used, found: identifiers that the answer took from earlier in the log, and those of
                 them that the request showed.
    files, kept: files that were read, written or deleted before, and those of them that
                 the request names.
    failed, told: calls that had failed, and those of them of which it says so.
    over_budget: tokens over the model's window.
    """

    seq: int
    at: datetime
    tokens: int
    cached: int
    written: int
    uncached: int
    used: int
    found: int
    files: int
    kept: int
    failed: int
    told: int
    over_budget: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A log under one strategy.  Sums are over its requests.

    tokens_total: tokens sent; ``tokens_peak`` are those of the largest request.
    cached:       tokens read from the prompt cache; ``cache_writes`` were written to
                  it, ``uncached`` neither.
    over_budget:  by how many tokens the largest request is over the window.
    references:   how often an answer used an identifier from earlier in the log.
    """

    label: str
    name: str
    fingerprint: str
    model: ModelInfo
    sent: tuple[Sent, ...] = field(repr=False)
    done: tuple[Done, ...] = field(repr=False)
    tokens_total: int
    tokens_peak: int
    cached: int
    cache_writes: int
    uncached: int
    over_budget: int
    references: int

    @property
    def compactions(self) -> tuple[Done, ...]:
        """What took effect."""
        return tuple(done for done in self.done if not done.failed)

    @property
    def summarizer_tokens(self) -> int:
        """What the summarizer read and wrote, failed attempts included."""
        return sum(done.read + done.written for done in self.done)

    @property
    def reference_recall(self) -> float | None:
        """The share of references that requests showed; None if there were none."""
        return self._share("found", "used")

    @property
    def ledger_recall(self) -> dict[str, float | None]:
        """The share still told of files touched and calls that failed, or None."""
        files, failures = self._share("kept", "files"), self._share("told", "failed")
        return {"files": files, "failures": failures}

    def _share(self, part: str, whole: str) -> float | None:
        total = sum(getattr(one, whole) for one in self.sent)
        return sum(getattr(one, part) for one in self.sent) / total if total else None

    @property
    def cost(self) -> float | None:
        """US dollars for all prompts; None if the model's prices are not known.

        Answers are left out: they are the same under every strategy.
        """
        return None if self.costs is None else sum(self.costs.values())

    @property
    def costs(self) -> dict[str, float] | None:
        """The same by what is paid: writes to the cache, reads of it, and the rest."""
        if (prices := self.model.prices) is None:
            return None
        paid = dict.fromkeys(("cached", "cache_writes", "uncached"), 0.0)
        for one in self.sent:
            here = prices.for_prompt(one.tokens)
            paid["cached"] += here.cost(read=one.cached)
            paid["cache_writes"] += here.cost(written=one.written)
            paid["uncached"] += here.cost(uncached=one.uncached)
        return paid

    @property
    def total_cost(self) -> float | None:
        """US dollars for prompts and summaries."""
        if self.cost is None or self.summarizer_cost is None:
            return None
        return self.cost + self.summarizer_cost

    @property
    def summarizer_cost(self) -> float | None:
        """US dollars if this model, and no cache, did the summarizer's work."""
        if (prices := self.model.prices) is None:
            return None
        work = ((one.read, one.written) for one in self.done)
        return sum(prices.cost(uncached=read, output=out) for read, out in work)

    def to_json(self) -> dict[str, Any]:
        """The outcome as ``refold compare --json`` shows it."""
        told: dict[str, Any] = {
            "strategy": self.label,
            "name": self.name,
            "fingerprint": self.fingerprint,
            "requests": len(self.sent),
            **{name: getattr(self, name) for name in _SUMS},
            "compactions": len(self.compactions),
            "compacted_before": [done.request for done in self.compactions],
            "summarizer_calls": len(self.done),
            "summarizer_tokens": self.summarizer_tokens,
            "model": self.model.name,
            **{name: getattr(self, name) for name in _WORTH},
        }
        requests = [{**one._asdict(), "at": one.at.isoformat()} for one in self.sent]
        return {**told, "per_request": requests}


_SUMS: Final = (
    *("tokens_total", "tokens_peak", "over_budget"),
    *("cached", "cache_writes", "uncached"),
)
_WORTH: Final = (
    *("cost", "costs", "summarizer_cost", "total_cost"),
    *("references", "reference_recall", "ledger_recall"),
)


@dataclass(slots=True)
class Comparison:
    """Walks one log under strategy after strategy.

    model: whose prices and cache rules count.
    """

    events: _Log
    model: ModelInfo
    summarizer: Summarizer = field(default_factory=abridged.Abridged)
    extras: Extras = NO_EXTRAS
    _elements: Elements = field(default_factory=Elements)
    _moments: list[Moment] = field(init=False)

    def __post_init__(self) -> None:
        self._moments = moments(self.events)

    def under(
        self,
        strategy: Strategy,
        *,
        label: str | None = None,
        recorded: _Log | None = None,
    ) -> Outcome:
        """The log under ``strategy``; nothing is written, and no model is asked.

        recorded: summaries that are in the log, to be used instead of new ones.
        """
        known = self.events, self._moments, self.summarizer, recorded
        walk = Walk(strategy, *known, self.extras, self._elements)
        sent = tuple(_sent(walk, self.model))
        return Outcome(
            label or strategy.name,
            strategy.name,
            strategy.fingerprint,
            self.model,
            sent,
            tuple(walk.done),
            tokens_total=sum(one.tokens for one in sent),
            tokens_peak=max((one.tokens for one in sent), default=0),
            cached=sum(one.cached for one in sent),
            cache_writes=sum(one.written for one in sent),
            uncached=sum(one.uncached for one in sent),
            over_budget=max((one.over_budget for one in sent), default=0),
            references=sum(one.used for one in sent),
        )


@dataclass(slots=True)
class Prompt:
    """The elements that a model is shown now; only what changes is counted anew."""

    elements: list[Element] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)

    def move(self, elements: list[Element]) -> int:
        """Show these elements now; returns how many of those before they begin with."""
        pairs = zip(self.elements, elements, strict=False)
        alike = takewhile(lambda p: p[0] is p[1] or p[0].key == p[1].key, pairs)
        same = sum(1 for _ in alike)
        for gone in self.elements[same:]:
            self.names.subtract(gone.names)
        for new in elements[same:]:
            self.names.update(new.names)
        self.elements = elements
        return same

    def holds(self, name: str) -> bool:
        """Whether ``name`` is in what is shown: as an identifier, or as plain words."""
        texts = (text for element in self.elements for text in element.texts)
        return self.names[name] > 0 or any(stands_in(text, name) for text in texts)


def _sent(walk: Walk, model: ModelInfo) -> Iterator[Sent]:
    shown, before, window = Prompt(), None, walk.extras.window_tokens
    for moment, at, (tokens, elements) in walk.steps():
        earlier, cached = shown.elements, 0
        same = shown.move(elements)
        if before is not None:
            gap = (at - before[0]).total_seconds()
            cached = _cached(before[1], earlier, same, gap, model)
        rest = tokens - min(cached, tokens)
        written = rest if tokens >= model.cache_min_tokens else 0
        yield Sent(
            seq=moment.seq,
            at=at,
            tokens=tokens,
            cached=tokens - rest,
            written=written,
            uncached=rest - written,
            used=len(moment.used),
            found=sum(map(shown.holds, moment.used)),
            files=len(moment.files),
            kept=sum(map(shown.holds, moment.files)),
            failed=len(moment.failed),
            told=sum(any(shown.names[way] for way in one) for one in moment.failed),
            over_budget=max(0, tokens - window),
        )
        before = at, tokens


def _cached(
    tokens: int, earlier: Sequence[Element], same: int, gap: float, model: ModelInfo
) -> int:
    """How much of it the next one finds in the cache: its share of the weight kept."""
    if tokens < model.cache_min_tokens or gap > model.cache_ttl_sec:
        return 0
    weight = sum(element.weight for element in earlier)
    kept = sum(element.weight for element in earlier[:same])
    cached = tokens * kept // weight if weight else 0
    return cached if cached >= model.cache_min_tokens else 0
