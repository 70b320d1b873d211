"""Comparison of strategies: walk one log under each and count, without writing."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple

from refold.domain import events
from refold.domain.canonical import canonical
from refold.domain.envelope import Envelope, microseconds
from refold.domain.errors import RefoldError
from refold.domain.events import Event, Summary
from refold.domain.parts import MEDIA, media_tokens
from refold.domain.stubs import Read, no_blobs
from refold.domain.tokens import estimate_text
from refold.projections.context import abridged, compaction
from refold.projections.context.budget import NO_EXTRAS, Extras
from refold.projections.context.compaction import Compaction, Source, Summarizer
from refold.projections.context.edits import HistoryEdited, edits_in
from refold.projections.context.identifiers import in_text, in_value, stands_in
from refold.projections.context.outline import Outline, fold_derived
from refold.projections.context.render import OPENING, render
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategy import Shown, Strategy
from refold.projections.context.summaries import write_summary
from refold.projections.context.text import (
    Block,
    Message,
    entry_of,
    leaves,
    text_block,
)
from refold.projections.context.units import (
    Answers,
    Spans,
    Thread,
    continues_response,
    joined,
    place,
)
from refold.projections.context.view import View
from refold.projections.models import ModelInfo

_Log = Sequence[Envelope]
_ANSWERS: Final = ("response", "call")  # kinds of places that begin an answer


class Moment(NamedTuple):
    """One call of a model.

    events_before: the number of events in the log at that time.
    seq:           the first event of its answer.
    used:          the identifiers in the answer that occur earlier in the log.
    files:         the files that earlier calls read, wrote, or deleted.
    failed:        the earlier calls that failed; each is the set of forms in which a
                   context may mention it.
    parts:         for each later response in the same answer, the number of events
                   before it.  A rebuild decides there, too.
    """

    events_before: int
    seq: int
    used: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    failed: frozenset[tuple[str, str]] = frozenset()
    parts: tuple[int, ...] = ()


def moments(envelopes: _Log) -> list[Moment]:
    """Return the model calls in a log, oldest first.

    ``Answers`` says which events are the answer of one call.
    A recorded request is the call itself: events between it and the answer were not
    sent.  Calls of the session that this one was forked from (seq 0 and below) are
    left out.
    """
    by_answer: dict[int, Moment] = {}
    answers = Answers()
    first_seq: dict[str, int] = {}  # of each identifier
    thread = Thread()
    request_index: int | None = None
    for index, envelope in enumerate(envelopes):
        thread, placed = place(thread, envelope)
        names = _shown_names(envelope.payload)
        is_request = isinstance(envelope.payload, events.Request)
        if is_request and not envelope.activates_strategy:
            request_index = index
        seq = answers.first_seq(envelope, placed)
        if placed is not None and seq is not None:
            events_before = index if request_index is None else request_index
            request_index = None
            moment = by_answer.get(seq, Moment(events_before, seq))
            earlier = {name for name in names if first_seq.get(name, seq) < seq}
            moment = moment._replace(used=moment.used | earlier)
            if placed.exchange == envelope.seq != seq:
                moment = moment._replace(parts=(*moment.parts, events_before))
            by_answer[seq] = moment
        for name in names:
            first_seq.setdefault(name, envelope.seq)
    own = [moment for moment in by_answer.values() if moment.seq > 0]
    limits = [envelopes[moment.events_before].seq for moment in own]
    files = _before_each(abridged.files_in(envelopes), limits)
    failed = _before_each(abridged.failures_in(envelopes), limits)
    return [
        moment._replace(files=files_before, failed=failed_before)
        for moment, files_before, failed_before in zip(own, files, failed, strict=True)
    ]


def _before_each(
    occurrences: Iterable[tuple[int, Any]], limits: Iterable[int]
) -> Iterator[frozenset[Any]]:
    """Return the values that occur before each limit.

    occurrences: (seq, value) in order of seq.
    limits:      seqs in order.
    """
    remaining = deque(occurrences)
    before: frozenset[Any] = frozenset()
    for limit in limits:
        new = set()
        while remaining and remaining[0][0] < limit:
            new.add(remaining.popleft()[1])
        if new:
            before = before | new
        yield before


def _shown_names(event: events.Event) -> set[str]:
    """Return the identifiers in the parts of an event that a model may be shown."""
    match event:
        case events.SystemPrompt(text=str(text)) | events.AgentResponse(text=text):
            return in_text(text)
        case events.ToolCall(arguments=value) | events.ToolResult(content=value):
            return in_value(value)
    names: set[str] = set()
    entry = entry_of(event)
    if entry is not None:
        for value in entry.content:
            names |= in_value(value)
    return names


_IDS: Final = ("id", "tool_use_id")


class Element(NamedTuple):
    """The system prompt or one block of a request.

    key:    its role and canonical JSON, without the ids of calls.
    weight: its estimated tokens.
    names:  the identifiers and failed calls that it mentions.
    words:  the wanted names that occur in its texts as plain words.
    is_opening: whether it only says that the session begins with the agent.
    """

    key: bytes
    weight: int
    names: frozenset[str]
    words: frozenset[str] = frozenset()
    is_opening: bool = False

    @property
    def is_system(self) -> bool:
        """Whether it is the system prompt."""
        return self.key.startswith(b"system")


_WORD: Final = re.compile("[A-Za-z0-9_]+")


class WantedNames:
    """Finds names in texts, as ``stands_in`` does, in time independent of their number.

    A name can only occur in a text that contains each word of the name, because ASCII
    words that touch the name's edges would make it part of a longer word.  So a text is
    searched for the names whose rarest word it contains: the paths of a project have
    most of their words in common.
    """

    def __init__(self, names: Iterable[str]) -> None:
        words_of = {name: _WORD.findall(name) for name in names}
        counts: Counter[str] = Counter()  # the number of names with each word
        for words in words_of.values():
            counts.update(set(words))
        self._by_word: dict[str, list[str]] = {}
        for name, words in words_of.items():
            rarest = min(words, key=counts.__getitem__, default="")
            self._by_word.setdefault(rarest, []).append(name)

    def within(self, texts: Iterable[str]) -> frozenset[str]:
        """Return the names that occur in these texts."""
        names: set[str] = set()
        if not self._by_word:
            return frozenset()
        for text in texts:
            candidates = list(self._by_word.get("", ()))  # names without ASCII words
            for word in set(_WORD.findall(text)):
                candidates += self._by_word.get(word, ())
            names.update(name for name in candidates if stands_in(text, name))
        return frozenset(names)


@dataclass(slots=True)
class Elements:
    """Builds the elements of views, and reads equal blocks only once.

    wanted: the names that elements list as ``words``.
    """

    wanted: WantedNames = field(default_factory=lambda: WantedNames(()))
    cache: dict[bytes, Element] = field(default_factory=dict)

    def of(self, view: View) -> list[Element]:
        """Return the elements of a view in the order in which they are sent."""
        sent: list[tuple[str, Block]] = []
        if view.system is not None:
            sent.append(("system", text_block(view.system)))
        for message in view.messages:
            sent += [(message["role"], block) for block in message["content"]]
        calls = {block["id"]: block for _, block in sent if block["type"] == "tool_use"}
        elements: list[Element] = []
        for role, block in sent:
            failed_call = None
            if block.get("is_error"):
                failed_call = calls.get(block["tool_use_id"])
            elements.append(self._element(role, block, failed_call))
        return elements

    def _element(self, role: str, block: Block, failed_call: Block | None) -> Element:
        content = {name: block[name] for name in block if name not in _IDS}
        key = role.encode() + canonical(content)
        cache_key = key
        if failed_call is not None:  # equal results may belong to different calls
            cache_key = key + canonical(failed_call)
        element = self.cache.get(cache_key)
        if element is None:
            texts = list(texts_in(block))
            element = Element(
                key=key,
                weight=_weight(block, key),
                names=frozenset(_mentioned(block, failed_call)),
                words=self.wanted.within(texts),
                is_opening=texts == [OPENING],
            )
            self.cache[cache_key] = element
        return element


def _weight(block: Block, key: bytes) -> int:
    """Return the estimated tokens of a block, without the base64 of files.

    key: the canonical JSON of the block.
    """
    content = block.get("content")
    parts = content if isinstance(content, list) else [block]
    tokens = 0
    letters = 0
    for part in parts:
        if part.get("type") in MEDIA:
            tokens += media_tokens(part)
            letters += len(canonical(part))
    if not tokens:
        return estimate_text(key.decode())
    return tokens + max(0, len(key) - letters) // 4


def _mentioned(block: Block, failed_call: Block | None) -> set[str]:
    """Return the identifiers and failed calls that a block mentions."""
    names: set[str] = set()
    texts = list(texts_in(block))
    if block["type"] == "tool_use":
        names |= in_value(block["input"])
    else:
        for text in texts:
            names |= in_text(text)
    if failed_call is not None:
        call = events.ToolCall(
            call_id="failed",
            tool_name=failed_call["name"],
            arguments=failed_call["input"],
        )
        names.add(abridged.failure_line(call))
    for text in texts:
        names.update(abridged.failures_of(text))
        names.update(abridged.files_of_ledgers(text))
    return names


def texts_in(block: Block) -> Iterator[str]:
    """Yield the texts that a model reads in a block.

    Ids, signatures, and images are left out.
    """
    match block:
        case {"type": "text", "text": text} | {"type": "thinking", "thinking": text}:
            yield text
        case {"type": "tool_use", "input": arguments}:
            yield from leaves(arguments, keys=False)
        case {"type": "tool_result", "content": str(text)}:
            yield text
        case {"type": "tool_result", "content": list(blocks)}:
            for part in blocks:
                yield from texts_in(part)


_KEEP_ALL: Final = KeepAll()
# Events whose message depends on earlier events.
_DEPENDENT: Final = (events.Final, events.HumanReview, events.SystemPrompt)


class Rendered(NamedTuple):
    """A request: its tokens, and its elements in order.

    raw_tokens: the part of the tokens for events that no summary stands for.
    repeated:   the number of elements at the front that are those of the request
                before; 0 if they were not compared.
    """

    tokens: int
    elements: list[Element]
    raw_tokens: int = 0
    repeated: int = 0


@dataclass(slots=True)
class Requests:
    """The requests of one walk.

    Until the strategy changes its earlier part, a context only grows at its end.  As
    long as it does, only new events are rendered: rendering every request completely
    would take time quadratic in the length of the log.
    """

    strategy: Strategy
    events: _Log
    extras: Extras
    elements: Elements
    read: Read = no_blobs
    _seqs: list[int] = field(init=False)
    _results: list[Envelope] = field(init=False)
    # The previous request, and the outline and selection that it was rendered from.
    _previous: tuple[Rendered, Outline, Shown] | None = None

    def __post_init__(self) -> None:
        self._seqs = [envelope.seq for envelope in self.events]
        self._results = [
            envelope
            for envelope in self.events
            if isinstance(envelope.payload, events.ToolResult)
        ]

    def next(self, outline: Outline, summaries: _Log) -> Rendered:
        """Render the request for ``outline``.

        outline: the previous one, or one that has folded more events.
        """
        outline = self.strategy.as_shown(outline)
        shown = self.strategy.show(outline)
        request = self._grown(outline, shown)
        if request is None:
            view = self.view(outline, summaries, self.extras)
            request = Rendered(view.tokens, self.elements.of(view), view.raw_tokens)
        self._previous = (request, outline, shown)
        return request

    def view(self, outline: Outline, summaries: _Log, extras: Extras) -> View:
        """Render the whole request."""
        outline = self.strategy.as_shown(outline)
        envelopes = self.within(outline.reads(self.strategy.show(outline).raw))
        return render(
            self.strategy,
            outline,
            envelopes,
            summaries=summaries,
            extras=extras,
            read=self.read,
        )

    def within(self, spans: Spans) -> list[Envelope]:
        """Return the events of ``spans``, found by bisection."""
        within: list[Envelope] = []
        for first, last in spans:
            start = bisect_left(self._seqs, first)
            end = bisect_right(self._seqs, last)
            within += self.events[start:end]
        return within

    def _grown(self, outline: Outline, shown: Shown) -> Rendered | None:
        """Return the previous request with new events added; None if more changed."""
        if self._previous is None:
            return None
        request, earlier, earlier_shown = self._previous
        new_span = (earlier.through_seq + 1, outline.through_seq)
        if (
            earlier.thread.open
            or _frame(earlier, earlier_shown) != _frame(outline, shown)
            or joined((*earlier_shown.raw, new_span)) != shown.raw
            or self._clears_others(earlier_shown, shown)
        ):
            return None
        new = self.within((new_span,))
        if any(isinstance(envelope.payload, _DEPENDENT) for envelope in new):
            return None
        if request.elements and request.elements[-1].key.startswith(b"assistant"):
            # An answer that the provider paused may be shown otherwise from now on.
            return None
        # The previous request has the other extras already.
        extras = Extras(window_tokens=self.extras.window_tokens)
        view = _all_of(new, extras, self.read)
        elements = self.elements.of(view)
        has_messages = bool(request.elements) and not request.elements[-1].is_system
        if has_messages and elements and elements[0].is_opening:
            del elements[0]
        tokens = request.tokens + view.tokens
        raw_tokens = request.raw_tokens + view.tokens
        is_protected = outline.protected_seqs or outline.covered_client_summaries
        if is_protected and self._is_over(tokens, raw_tokens):
            # New events take the room of the user's protected words.
            return None
        return Rendered(
            tokens=tokens,
            elements=[*request.elements, *elements],
            raw_tokens=raw_tokens,
            repeated=len(request.elements),
        )

    def _is_over(self, tokens: int, raw_tokens: int) -> bool:
        """Whether a request of this size is over a window."""
        is_over_window = tokens > self.extras.window_tokens
        return is_over_window or self.strategy.over_limits(tokens, raw_tokens) > 0

    def _clears_others(self, earlier: Shown, later: Shown) -> bool:
        """Whether the later selection shows other results as stubs."""
        if earlier.is_cleared is later.is_cleared:
            return False
        return any(
            earlier.is_cleared(result) != later.is_cleared(result)
            for result in self._results
        )


def _all_of(
    envelopes: _Log, extras: Extras, read: Read, strategy: Strategy = _KEEP_ALL
) -> View:
    """Return the view of these events, none of them compacted."""
    outline = strategy.read_whole(envelopes)
    return render(strategy, outline, envelopes, extras=extras, read=read)


@dataclass(slots=True)
class RawRequests:
    """The digests of the requests of a log that is never compacted.

    As with ``Requests``, only new events are rendered as long as the result is equal.

    read:     returns the blobs of images and documents.
    strategy: ``keep_all``, in the version that made the requests.
    """

    events: _Log
    extras: Extras = NO_EXTRAS
    read: Read = no_blobs
    strategy: Strategy = _KEEP_ALL
    _system: str | None = None
    _hash: Any = None
    _role: str = ""
    _ids: set[str] = field(default_factory=set)
    _read: int = 0

    def digests(self) -> Iterator[tuple[Envelope, str]]:
        """Yield the first event of each response, and the digest of the context before.

        An answer may consist of several responses: see ``Answers``.  Responses of a
        session that this one was forked from are left out.
        """
        thread = Thread()
        for index, envelope in enumerate(self.events):
            thread, placed = place(thread, envelope)
            if placed is None or placed.kind not in _ANSWERS:
                continue
            if placed.exchange == envelope.seq > 0:
                if not self._extend(self.events[self._read : index]):
                    self._start(self._view(self.events[:index]))
                self._read = index
                digest = self._hash.copy()
                digest.update(b'],"system":' + canonical(self._system) + b"}")
                yield envelope, digest.hexdigest()

    def _view(self, envelopes: _Log) -> View:
        return _all_of(envelopes, self.extras, self.read, self.strategy)

    def _start(self, view: View) -> None:
        self._role = ""
        self._hash = sha256(b'{"messages":[')
        self._ids = set()
        self._system = view.system
        self._add(view.messages)

    def _extend(self, new: _Log) -> bool:
        """Add the messages of new events; False if they change earlier messages."""
        if not self._role or self._role == "assistant":
            # An answer that the provider paused may be shown otherwise from now on.
            return False
        if any(isinstance(envelope.payload, _DEPENDENT) for envelope in new):
            return False
        if edits_in(new):
            return False
        results_of_earlier_calls = _ids_of(new, events.ToolResult) - _ids_of(
            new, events.ToolCall
        )
        if results_of_earlier_calls:
            return False
        messages = self._view(new).messages
        if messages and messages[0]["content"] == [text_block(OPENING)]:
            messages = messages[1:]
        if not messages or messages[0]["role"] == self._role:
            return False  # the new content would join the last message
        if self._ids & _call_ids(messages):
            return False  # a repeated id is rendered differently
        self._add(messages)
        return True

    def _add(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if self._role:
                self._hash.update(b",")
            self._hash.update(canonical(message))
            self._role = message["role"]
        self._ids |= _call_ids(messages)


def _ids_of(
    envelopes: Iterable[Envelope], type_: type[events.ToolCall | events.ToolResult]
) -> set[str]:
    payloads = (envelope.payload for envelope in envelopes)
    return {payload.call_id for payload in payloads if isinstance(payload, type_)}


def _call_ids(messages: Iterable[Message]) -> set[str]:
    ids: set[str] = set()
    for message in messages:
        calls = (block for block in message["content"] if block["type"] == "tool_use")
        ids.update(call["id"] for call in calls)
    return ids


def _frame(outline: Outline, shown: Shown) -> tuple[Any, ...]:
    """Return everything that a view depends on, except its raw end."""
    layers = outline.layers
    return (
        outline.edits,
        outline.summaries,
        outline.kept,
        outline.kept_input,
        outline.protected_seqs,  # a new plan takes the place of an earlier one
        outline.pinned,
        layers.summaries,
        layers.facts_shown,
        layers.notes_shown,
        outline.system_seq,
        shown.clears_inputs,
        shown.left_out,
    )


_MOST_TIMERS: Final = 16  # that may fire between two events


class Done(NamedTuple):
    """One call of the summarizer.

    request: the number of requests sent before it.
    input_tokens, output_tokens: those of the summarizer.
    failed:  why it failed or changed nothing; empty if it took effect.
    """

    request: int
    first_seq: int
    last_seq: int
    decided_at_seq: int
    tokens_before: int
    tokens_after: int
    input_tokens: int
    output_tokens: int
    failed: str = ""


@dataclass(slots=True)
class Walk:
    """A walk through a log under a strategy, whose compactions stay in memory.

    events:   the whole main stream, oldest first.
    moments:  its model calls.
    recorded: the summaries of the strategy's derived stream, which take effect where
              they were decided; None has ``summarizer`` write them.
    compacts_further: whether to compact further after the recorded summaries.
    read:     returns the blobs of images and documents.
    done:     the calls of the summarizer.
    derived:  the entries of the derived stream.

    The strategy decides as in a rebuild: before each model call, at the end of each
    turn, and at each time that it named itself.  The clock is that of the events.
    """

    strategy: Strategy
    events: _Log
    moments: Sequence[Moment]
    summarizer: Summarizer
    recorded: _Log | None = None
    extras: Extras = NO_EXTRAS
    elements: Elements = field(default_factory=Elements)
    compacts_further: bool = False
    read: Read = no_blobs
    done: list[Done] = field(default_factory=list)
    derived: list[Envelope] = field(default_factory=list)
    _outline: Outline = field(init=False)
    _requests: Requests = field(init=False)
    _sent: int = 0

    def __post_init__(self) -> None:
        self._outline = self.strategy.begin()
        self._requests = Requests(
            self.strategy, self.events, self.extras, self.elements, self.read
        )

    def steps(self) -> Iterator[tuple[Moment, datetime, Rendered]]:
        """Yield the requests with their times, oldest first, each built on demand."""
        for moment, clock in self._stops():
            yield moment, clock, self._requests.next(self._outline, self.derived)
            self._sent += 1

    def go_to_end(self) -> None:
        """Go through all moments, and decide as usual, without building requests."""
        for _ in self._stops():
            self._sent += 1

    def _stops(self) -> Iterator[tuple[Moment, datetime]]:
        """Yield each moment with its time, after the decisions before it."""
        moment_at = {moment.events_before: moment for moment in self.moments}
        later_parts: set[int] = set()
        for moment in self.moments:
            later_parts.update(moment.parts)
        previous: Envelope | None = None
        turn_ended = False
        for index, event in enumerate(self.events[: max(moment_at, default=-1) + 1]):
            if isinstance(event.payload, events.Item):
                self._fold(index)  # as in ``DecisionPoints``
                continue
            clock = previous.ts if previous else event.ts
            called = moment_at.get(index)
            if previous and turn_ended:
                _, placed = place(self._outline.thread, event)
                turn_ended = not continues_response(previous, event, placed)
            decides = called is not None or turn_ended or index in later_parts
            if decides:
                self._decide(clock)
            if called is not None:
                yield called, clock
            decided_at = clock if decides else None
            self._wait(clock, event.ts, decided=decided_at)
            self._fold(index)
            if isinstance(event.payload, events.AgentResponse):
                turn_ended = self._outline.idle
            else:
                turn_ended = isinstance(event.payload, events.Final)
            previous = event

    def _fold(self, index: int) -> None:
        """Fold the event with this index."""
        try:
            self._outline = self.strategy.fold(self._outline, self.events[index])
        except HistoryEdited:
            outline = self.strategy.read_whole(self.events[: index + 1])
            for entry in self.derived:
                outline = fold_derived(outline, entry)
            self._outline = outline

    def view(self, extras: Extras) -> View:
        """Render the request at the current position with these extras."""
        return self._requests.view(self._outline, self.derived, extras)

    def _wait(self, now: datetime, end: datetime, *, decided: datetime | None) -> None:
        """Let time pass until ``end``, and decide at each time the strategy named.

        decided: the time of the last decision.
        """
        for _ in range(_MOST_TIMERS):
            if self._outline.failed_at == microseconds(now):
                return
            due_at = self.strategy.due_at(self._outline, now)
            if due_at is None:
                return
            now = max(due_at, now)
            if now >= end or now == decided:
                return
            decided = now
            self._decide(now)

    def _decide(self, now: datetime) -> None:
        """Apply recorded summaries up to here, or compact as the strategy decides."""
        if self._outline.through_seq < 1:
            return  # in the session that this one was forked from
        for envelope in (self.recorded or ())[len(self.derived) :]:
            summary = envelope.payload
            if not isinstance(summary, events.Summary):
                self.derived.append(envelope)
            elif summary.decided_at_seq <= self._outline.through_seq:
                self._apply(envelope, summary, summary.tokens_before)
            else:
                return
        if self.recorded is not None and not self.compacts_further:
            return
        decided = self.strategy.decide(self._outline, now)
        while decided is not None and self._compact(decided, now):
            decided = self.strategy.further(self._outline, now)

    def _compact(self, decided: Compaction, now: datetime) -> bool:
        """Carry out a compaction; False if the summarizer failed."""
        source = compaction.source_of(
            decided,
            events=self._requests.within(((decided.first_seq, decided.last_seq),)),
            summaries=self.derived,
            edits=self._outline.edits,
            replaced=self._requests.within(
                compaction.replaced_spans(decided, self.derived, self._outline.edits)
            ),
        )
        try:
            written = write_summary(
                self.strategy,
                self.summarizer,
                source,
                outline=self._outline,
                target_tokens=decided.target_tokens,
            )
        except RefoldError as error:
            self._note_failure(decided, source, now, str(error))
            return False
        summary = compaction.summary_of(
            decided,
            source,
            written,
            strategy=self.strategy.ref,
            appended_at_seq=max(self._outline.through_seq, 1),
        )
        entry = self._derived_entry(summary, now)
        self._apply(entry, summary, estimate_text(source.text))
        return True

    def _apply(self, entry: Envelope, summary: Summary, estimated_tokens: int) -> None:
        """Add a summary.

        estimated_tokens: of the summarizer's input, if its usage does not count them.
        """
        self._add_derived(entry)
        usage = summary.usage or {}
        input_tokens = usage.get("input_tokens")
        if not isinstance(input_tokens, int):
            input_tokens = estimated_tokens
        output_tokens = usage.get("output_tokens")
        if not isinstance(output_tokens, int):
            output_tokens = summary.tokens_after
        done = Done(
            request=self._sent,
            first_seq=summary.first_seq,
            last_seq=summary.last_seq,
            decided_at_seq=summary.decided_at_seq,
            tokens_before=summary.tokens_before,
            tokens_after=summary.tokens_after,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
        )
        self.done.append(done)

    def _note_failure(
        self, decided: Compaction, source: Source, now: datetime, why: str
    ) -> None:
        note = events.CompactionNote(
            phase="failed",
            why=why,
            attempt=self._outline.failures + 1,
            first_seq=decided.first_seq,
            last_seq=decided.last_seq,
            decided_at_seq=decided.decided_at_seq,
        )
        self._add_derived(self._derived_entry(note, now))
        done = Done(
            request=self._sent,
            first_seq=decided.first_seq,
            last_seq=decided.last_seq,
            decided_at_seq=decided.decided_at_seq,
            tokens_before=decided.tokens_before,
            tokens_after=decided.tokens_before,
            input_tokens=estimate_text(source.text),
            output_tokens=0,
            failed=why,
        )
        self.done.append(done)

    def _add_derived(self, entry: Envelope) -> None:
        self.derived.append(entry)
        self._outline = fold_derived(self._outline, entry)

    def _derived_entry(self, event: Event, now: datetime) -> Envelope:
        """Return the event as an entry of the derived stream, without hashes."""
        stream = self.events[-1].stream_id._replace(stream=self.strategy.fingerprint)
        return Envelope.imagined(event, len(self.derived) + 1, now, stream)


class Sent(NamedTuple):
    """One request: its tokens as a prompt cache splits them, and what it mentions.

    seq:          the first event of its answer.
    cached:       the tokens read from the cache.
    written:      the tokens written to the cache.
    uncached:     the other tokens.
    used:         the number of identifiers that the answer takes from earlier in the
                  log; ``used_shown`` of them are in the request.
    files:        the number of files read, written, or deleted before; ``files_named``
                  of them are named in the request.
    failed:       the number of failed calls before; ``failed_shown`` of them are
                  mentioned as failed in the request.
    over_budget:  the tokens over the model's window, or over a limit of the strategy if
                  that is more.
    """

    seq: int
    at: datetime
    tokens: int
    cached: int
    written: int
    uncached: int
    used: int
    used_shown: int
    files: int
    files_named: int
    failed: int
    failed_shown: int
    over_budget: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a log under one strategy, summed over its requests.

    sent:         the requests.
    done:         the calls of the summarizer.
    tokens_total: the tokens sent.
    tokens_peak:  the tokens of the largest request.
    cached:       the tokens read from the prompt cache.
    cache_writes: the tokens written to it.
    uncached:     the other tokens.
    over_budget:  the most tokens by which a request exceeds the window or a limit of
                  the strategy.
    references:   the number of identifiers that answers take from earlier in the log.
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
        """The compactions that took effect."""
        return tuple(done for done in self.done if not done.failed)

    @property
    def summarizer_tokens(self) -> int:
        """The summarizer's input and output tokens, including failed attempts."""
        return sum(done.input_tokens + done.output_tokens for done in self.done)

    @property
    def reference_recall(self) -> float | None:
        """The share of references that requests show; None without references."""
        return self._share("used_shown", "used")

    @property
    def ledger_recall(self) -> dict[str, float | None]:
        """The shares of touched files and failed calls that requests mention."""
        return {
            "files": self._share("files_named", "files"),
            "failures": self._share("failed_shown", "failed"),
        }

    def _share(self, part: str, whole: str) -> float | None:
        total: int = sum(getattr(request, whole) for request in self.sent)
        if not total:
            return None
        shown: int = sum(getattr(request, part) for request in self.sent)
        return shown / total

    @property
    def cost(self) -> float | None:
        """US dollars for all prompts; None if the model's prices are unknown.

        Answers are left out: they are the same under every strategy.
        """
        if self.costs is None:
            return None
        return sum(self.costs.values())

    @property
    def costs(self) -> dict[str, float] | None:
        """The cost by item: cache reads, cache writes, and uncached tokens."""
        prices = self.model.prices
        if prices is None:
            return None
        costs = {"cached": 0.0, "cache_writes": 0.0, "uncached": 0.0}
        for request in self.sent:
            prompt_prices = prices.for_prompt(request.tokens)
            costs["cached"] += prompt_prices.cost(read=request.cached)
            costs["cache_writes"] += prompt_prices.cost(written=request.written)
            costs["uncached"] += prompt_prices.cost(uncached=request.uncached)
        return costs

    @property
    def total_cost(self) -> float | None:
        """US dollars for prompts and summaries."""
        if self.cost is None or self.summarizer_cost is None:
            return None
        return self.cost + self.summarizer_cost

    @property
    def summarizer_cost(self) -> float | None:
        """US dollars for the summarizer's work by this model, without a cache."""
        prices = self.model.prices
        if prices is None:
            return None
        return sum(
            prices.cost(uncached=call.input_tokens, output=call.output_tokens)
            for call in self.done
        )

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as ``refold compare --json`` prints it."""
        return {
            "strategy": self.label,
            "name": self.name,
            "fingerprint": self.fingerprint,
            "requests": len(self.sent),
            "tokens_total": self.tokens_total,
            "tokens_peak": self.tokens_peak,
            "over_budget": self.over_budget,
            "cached": self.cached,
            "cache_writes": self.cache_writes,
            "uncached": self.uncached,
            "compactions": len(self.compactions),
            "compacted_before": [done.request for done in self.compactions],
            "summarizer_calls": len(self.done),
            "summarizer_tokens": self.summarizer_tokens,
            "model": self.model.name,
            "cost": self.cost,
            "costs": self.costs,
            "summarizer_cost": self.summarizer_cost,
            "total_cost": self.total_cost,
            "references": self.references,
            "reference_recall": self.reference_recall,
            "ledger_recall": self.ledger_recall,
            "per_request": [
                {**request._asdict(), "at": request.at.isoformat()}
                for request in self.sent
            ],
        }


@dataclass(slots=True)
class Comparison:
    """Walks one log under several strategies.

    model: the model whose prices and cache rules apply.
    read:  returns the blobs of images and documents.
    """

    events: _Log
    model: ModelInfo
    summarizer: Summarizer = field(default_factory=abridged.Abridged)
    extras: Extras = NO_EXTRAS
    read: Read = no_blobs
    _elements: Elements = field(init=False)
    _moments: list[Moment] = field(init=False)

    def __post_init__(self) -> None:
        self._moments = moments(self.events)
        names: set[str] = set()
        for moment in self._moments:
            names |= moment.used
        if self._moments:
            # The last call's files include those of all earlier ones.
            names |= self._moments[-1].files
        self._elements = Elements(WantedNames(names))

    def under(
        self,
        strategy: Strategy,
        *,
        label: str | None = None,
        recorded: _Log | None = None,
    ) -> Outcome:
        """Walk the log under ``strategy``, without writing and without a model.

        recorded: summaries of the log to use instead of new ones.
        """
        walk = Walk(
            strategy,
            self.events,
            self._moments,
            self.summarizer,
            recorded=recorded,
            extras=self.extras,
            elements=self._elements,
            read=self.read,
        )
        sent = tuple(_sent(walk, self.model))
        return Outcome(
            label=label or strategy.name,
            name=strategy.name,
            fingerprint=strategy.fingerprint,
            model=self.model,
            sent=sent,
            done=tuple(walk.done),
            tokens_total=sum(request.tokens for request in sent),
            tokens_peak=max((request.tokens for request in sent), default=0),
            cached=sum(request.cached for request in sent),
            cache_writes=sum(request.written for request in sent),
            uncached=sum(request.uncached for request in sent),
            over_budget=max((request.over_budget for request in sent), default=0),
            references=sum(request.used for request in sent),
        )


@dataclass(slots=True)
class Prompt:
    """The elements of the current request; only changed elements are counted again.

    weight: the sum of their weights.
    """

    elements: list[Element] = field(default_factory=list)
    weight: int = 0
    _names: Counter[str] = field(default_factory=Counter)
    _words: Counter[str] = field(default_factory=Counter)

    def move(self, request: Rendered) -> int:
        """Replace the elements; return the weight of those at the front that stay."""
        unchanged = request.repeated
        old_rest = self.elements[unchanged:]
        new_rest = request.elements[unchanged:]
        for old, new in zip(old_rest, new_rest, strict=False):
            if old is not new and old.key != new.key:
                break
            unchanged += 1
        unchanged_weight = self.weight
        for old in self.elements[unchanged:]:
            unchanged_weight -= old.weight
            self._names.subtract(old.names)
            self._words.subtract(old.words)
        self.weight = unchanged_weight
        for new in request.elements[unchanged:]:
            self.weight += new.weight
            self._names.update(new.names)
            self._words.update(new.words)
        self.elements = request.elements
        return unchanged_weight

    def holds(self, name: str) -> bool:
        """Whether the request contains a wanted name, as an identifier or a word."""
        return self._names[name] > 0 or self._words[name] > 0

    def mentions_any(self, forms: Iterable[str]) -> bool:
        """Whether the request contains one of these names as an identifier."""
        return any(self._names[form] > 0 for form in forms)


def _sent(walk: Walk, model: ModelInfo) -> Iterator[Sent]:
    prompt = Prompt()
    previous: tuple[datetime, int] | None = None  # time and tokens
    for moment, at, request in walk.steps():
        tokens = request.tokens
        earlier_weight = prompt.weight
        unchanged_weight = prompt.move(request)
        cached = 0
        if previous is not None:
            previous_at, previous_tokens = previous
            cached = _cached(
                previous_tokens,
                earlier_weight,
                unchanged_weight,
                gap_seconds=(at - previous_at).total_seconds(),
                model=model,
            )
        not_cached = tokens - min(cached, tokens)
        written = 0
        if tokens >= model.cache_min_tokens:
            written = not_cached
        yield Sent(
            seq=moment.seq,
            at=at,
            tokens=tokens,
            cached=tokens - not_cached,
            written=written,
            uncached=not_cached - written,
            used=len(moment.used),
            used_shown=sum(map(prompt.holds, moment.used)),
            files=len(moment.files),
            files_named=sum(map(prompt.holds, moment.files)),
            failed=len(moment.failed),
            failed_shown=sum(map(prompt.mentions_any, moment.failed)),
            over_budget=max(
                0,
                tokens - walk.extras.window_tokens,
                walk.strategy.over_limits(tokens, request.raw_tokens),
            ),
        )
        previous = (at, tokens)


def _cached(
    tokens: int,
    weight: int,
    unchanged_weight: int,
    *,
    gap_seconds: float,
    model: ModelInfo,
) -> int:
    """Return the tokens of a request that the next one reads from the cache.

    weight:           the weight of the elements of the request, which has ``tokens``.
    unchanged_weight: the weight of its elements that begin the next request too.
    """
    if tokens < model.cache_min_tokens or gap_seconds > model.cache_ttl_sec:
        return 0
    if not weight:
        return 0
    cached = tokens * unchanged_weight // weight
    if cached < model.cache_min_tokens:
        return 0
    return cached
