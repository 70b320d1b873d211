"""Rerun: a recorded run walked once more, its requests made anew and held against it.

Recorded responses and results answer, so that without a model only requests can differ.
Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import takewhile, zip_longest
from operator import methodcaller
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import orjson

from refold.domain.canonical import canonical
from refold.domain.envelope import ACTIVATED, Draft, Envelope, Meta
from refold.domain.errors import InvalidConfiguration, RedactionFailed
from refold.domain.events import (
    Event,
    JsonObject,
    Request,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
    event_of,
)
from refold.domain.ids import StreamId
from refold.domain.model import quiet
from refold.domain.session import SessionState
from refold.domain.tokens import estimate
from refold.projections import compare
from refold.projections.context.abridged import Abridged
from refold.projections.context.budget import NO_EXTRAS, Extras
from refold.projections.context.outline import Outline, begins_anew, standing
from refold.projections.context.strategies import spec
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategy import Strategy
from refold.projections.context.view import View
from refold.redaction.chokepoint import RedactedEvent, answering, redact_payload
from refold.redaction.guard import filled
from refold.redaction.redactor import RedactionError
from refold.store.appends import Writer
from refold.store.contexts import Viewer, with_derived
from refold.store.history import handed_in, with_blobs
from refold.store.proofs.provenance import kind_of, reconstructed_in
from refold.store.proofs.verification import Superseded, differs

_ALL: Final[Strategy] = KeepAll()
_AROUND: Final = 120  # characters told before what differs, and twice as many after


class Model(Protocol):
    """What answers a request that differs, and those that follow from it."""

    name: str

    def answer(self, view: View) -> Sequence[Event]:
        """The events of its response to this view."""
        ...


@quiet
class Shown(NamedTuple):
    """A request as far as it is told: all of its text would be too much.

    text: of the first block that differs, from shortly before the place; None if there
          is none, or if only the digest of the request is known.
    """

    digest: str
    tokens: int | None = None
    text: str | None = None


@quiet
class Calls(NamedTuple):
    """The calls that an answer made, by name and arguments: recorded, and now."""

    then: tuple[JsonObject, ...]
    now: tuple[JsonObject, ...]


class Difference(NamedTuple):
    """The first request that is not what it was, or after which other calls were made.

    request: counted from 1; ``seq`` is its event's, or that of the first event of the
             answer to it.
    where:   ``system``, ``tools``, ``message 3, block 1``, or ``calls``; ``digest`` if
             the log does not hold what was sent.
    """

    request: int
    seq: int
    where: str
    then: Shown
    now: Shown
    call: Calls | None = None


Ended: TypeAlias = Literal["unrecorded_call", "run_ended"]


@quiet
class Live(NamedTuple):
    """What a model did from a request on: how often it answered, and why it ended.

    results: calls that a recorded result answered.
    call:    the call that has none.
    """

    request: int
    answers: int
    results: int
    ended: Ended
    call: JsonObject | None = None


class Rerun(NamedTuple):
    """What came of it.

    same:       requests that are what they were, up to the first that is not.
    superseded: those made of events that were redacted again since: nothing proves
                them any more.
    recorded:   whether the provenance of any request is known: it was recorded, or an
                import reconstructed it.  False: those are meant that the log gives if
                nothing is ever compacted.
    recorded_requests: how many were recorded when they were sent.  The digests of the
                others were reconstructed from the log: they prove that the log gives
                the same again, and not what was sent.
    same_recorded: those of ``same`` that were recorded.
    """

    requests: int
    same: int
    superseded: int = 0
    recorded: bool = True
    first_difference: Difference | None = None
    live: Live | None = None
    recorded_requests: int = 0
    same_recorded: int = 0

    @property
    def differs(self) -> bool:
        """Whether a request was another, or a model made calls that nobody recorded."""
        stopped = self.live is not None and self.live.ended == "unrecorded_call"
        return stopped or self.first_difference is not None

    def to_json(self) -> JsonObject:
        """As ``refold rerun --json`` prints it."""
        dumped = orjson.dumps(self, default=methodcaller("_asdict"))
        told: JsonObject = orjson.loads(dumped)
        return told


def with_requests(
    viewer: Viewer, state: SessionState, new: Sequence[RedactedEvent], now: datetime
) -> list[RedactedEvent]:
    """``new``, which will follow in this state, each answer with its request's digest.

    They are imported: what was sent is derived, as what is never compacted.  Where
    requests are among them, those are held against instead.
    """
    if any(isinstance(one.event, Request) for one in new):
        return [*new]
    known = viewer.history.events(upto=state.head_seq)
    events = [with_blobs(viewer.log, one) for one in known]
    for seq, one in enumerate(new, state.head_seq + 1):
        events.append(_imagined(one, seq, state.stream, now))
    marked = [*new]
    for envelope, sent in compare.RawRequests(events).digests():
        if (place := envelope.seq - state.head_seq - 1) >= 0:
            marked[place] = answering(new[place], sent)
    return marked


def _imagined(
    one: RedactedEvent, seq: int, stream: StreamId, now: datetime
) -> Envelope:
    event: Any = one.event
    if one.blobs:
        at_hand = {blob.sha256: blob.data for blob in one.blobs}
        event = event_of(event.type, filled(event.payload(), at_hand.get))
    content, tokens = one.content, one.token_estimate
    beside: Any = {name: content.get(name) for name in ("request_id", "agent", "meta")}
    beside["meta"] = Meta.of(beside["meta"])
    return Envelope.imagined(event, seq, now, stream, tokens=tokens, **beside)


class _Recorded(NamedTuple):
    """A request of the run; ``read`` is how many events were there."""

    envelope: Envelope
    read: int
    digest: str
    model: str | None
    request: Request | None

    @property
    def through(self) -> int:
        """The last seq that it was made of."""
        return self.request.through_seq if self.request else self.envelope.seq - 1

    @property
    def is_recorded(self) -> bool:
        """Whether its digest was stored when it was sent."""
        return kind_of(self.envelope) == "recorded"


def _recorded(events: Sequence[Envelope]) -> Iterator[_Recorded]:
    for index, one in enumerate(events):
        event = one.payload
        if one.seq < 1:
            continue  # of the session that this one was forked from
        if isinstance(event, Request):
            yield _Recorded(one, index, event.digest, event.model, event)
        elif (sent := reconstructed_in(one)) is not None:
            yield _Recorded(one, index, sent, one.meta.model, None)


@dataclass(slots=True)
class _Run:
    """The events of a run, as they are recorded or as they would be now."""

    events: Sequence[Envelope]
    derived: dict[str, list[Envelope]]
    _outlines: dict[str, Outline] = field(default_factory=dict)

    def view(self, one: _Recorded, extras: Extras) -> View:
        """The request made anew, of the summaries that it was made of."""
        strategy, made = _ALL, list[Envelope]()
        if one.request is None:
            outline = _ALL.read(_ALL.begin(), self.events[: one.read])
        else:
            strategy = spec.parse(one.request.strategy.model_dump())
            made = self.derived.get(strategy.fingerprint, [])
            outline = self._outline(strategy, one.request, made)
        elements = compare.Elements()
        requests = compare.Requests(strategy, self.events, NO_EXTRAS, elements)
        return requests.view(outline, made, extras)

    def _outline(
        self, strategy: Strategy, request: Request, made: Iterable[Envelope]
    ) -> Outline:
        through, upto = request.through_seq, request.derived_seq
        outline = self._outlines.get(strategy.fingerprint, strategy.begin())
        made = [entry for entry in made if entry.seq <= upto]
        anew = [entry.seq for entry in made if begins_anew(entry)]
        known = max(anew, default=0) <= outline.derived_seq <= upto
        if outline.through_seq > through or not known:
            outline = strategy.begin()
        after = outline.through_seq if outline.events else None
        new = (one for one in self.events if after is None or one.seq > after)
        outline = strategy.read(outline, takewhile(lambda e: e.seq <= through, new))
        later = [one for one in standing(made) if outline.derived_seq < one.seq]
        outline = with_derived(outline, later)
        self._outlines[strategy.fingerprint] = outline
        return outline


class Rerunner:
    """Walks one session again.

    strategy: of all requests, with summaries made anew where those recorded are another
              strategy's; left out, each request keeps its own.
    prompt:   instead of the system prompts that were recorded.

    What is redacted under other rules than those of the store is redacted once more.
    """

    def __init__(
        self,
        writer: Writer,
        viewer: Viewer,
        *,
        strategy: Strategy | None,
        prompt: str | None,
    ) -> None:
        self._writer, self._viewer, self._strategy = writer, viewer, strategy
        self._redactor = writer.redactor.stubbing
        self._tag = writer.tagger(viewer.stream.user_id)
        log, stream = viewer.log, viewer.stream
        was = [with_blobs(log, one) for one in viewer.history.events()]
        self._requests = [
            one
            for one in _recorded(was)
            if strategy is None or one.envelope.meta.status != ACTIVATED
        ]
        self._recorded = bool(self._requests)
        if not self._recorded:  # as an import of these events would have derived them
            places = {one.seq: index for index, one in enumerate(was)}
            self._requests = [
                _Recorded(one, places[one.seq], digest, one.meta.model, None)
                for one, digest in compare.RawRequests(was).digests()
            ]
        requests = [one.request for one in self._requests if one.request]
        names = {request.strategy.fingerprint for request in requests}
        derived = {name: log.read(stream._replace(stream=name)) for name in names}
        self._prompt = prompt and self._taken(prompt)
        self._prompted = any(_prompt_in(one.payload) is not None for one in was)
        self._was = _Run(was, derived)
        anew = {name: [*map(self._anew, made)] for name, made in derived.items()}
        self._now = _Run([*map(self._anew, was)], anew)
        self._handed: dict[tuple[int, bool], Extras] = {}

    def run(self, model: Model | None = None) -> Rerun:
        """Hold each request against what it was, up to the first that differs.

        From there on ``model`` answers, or from the first request that another model
        was sent: its calls are answered by the results that calls of the same name and
        arguments had, until one has none.

        Raises UnknownStrategy, RedactionFailed, what reading raises, and what the
        model raises.
        """
        if isinstance(model, str):
            raise InvalidConfiguration("a rerun takes what answers: LiveModel(name)")
        own = (one for one in self._was.events if one.seq > 0)
        past, total = Superseded.of(self._viewer.history, own), len(self._requests)
        recorded = sum(1 for one in self._requests if one.is_recorded)
        same = same_recorded = gone = 0
        for number, (one, view, changed) in enumerate(self._made(), 1):
            if changed and past.main and min(past.main) <= one.through:
                gone += 1
                continue
            difference = self._difference(number, one, view) if changed else None
            if difference or (model and model.name != one.model):
                told = Rerun(
                    total,
                    same,
                    gone,
                    self._recorded,
                    difference,
                    recorded_requests=recorded,
                    same_recorded=same_recorded,
                )
                return self._live(told, number, one, model) if model else told
            same += 1
            if one.is_recorded:
                same_recorded += 1
        return Rerun(
            total,
            same,
            gone,
            self._recorded,
            recorded_requests=recorded,
            same_recorded=same_recorded,
        )

    def _made(self) -> Iterator[tuple[_Recorded, View | None, bool]]:
        """Each request, and whether it differs; and its view, where it was rendered."""
        handed = self._extras(None, now=True)
        raw = compare.RawRequests(self._now.events, handed).digests()
        walked = self._walked(self._strategy) if self._strategy else iter(())
        for one, view in zip_longest(self._requests, walked):
            if self._keeps(one):
                view = None
            if view is None and one.request is None:
                again = (sent for answer, sent in raw if answer.seq == one.envelope.seq)
                yield one, None, next(again, "") != one.digest
                continue
            view = view or self._now.view(one, self._extras(one, now=True))
            if one.request:
                yield one, view, bool(differs(view, one.request))
            else:
                yield one, view, view.digest != one.digest

    def _keeps(self, one: _Recorded) -> bool:
        """Whether it is made under the strategy under which it was."""
        own = one.request.strategy.fingerprint if one.request else _ALL.fingerprint
        return self._strategy is None or self._strategy.fingerprint == own

    def _walked(self, strategy: Strategy) -> Iterator[View]:
        """The requests under another strategy, whose summaries are made on the way."""
        stops = [compare.Moment(one.read, one.envelope.seq) for one in self._requests]
        walk = compare.Walk(strategy, self._now.events, stops, Abridged())
        for one, _ in zip(self._requests, walk.steps(), strict=True):
            yield walk.view(self._extras(one, now=True))

    def _extras(self, one: _Recorded | None, *, now: bool) -> Extras:
        """What was handed in with a request; ``now``: as it would be."""
        place = (one.envelope.seq if one else 0, now)
        if place in self._handed:
            return self._handed[place]
        extras = NO_EXTRAS
        if one and one.request:
            extras = handed_in(self._viewer.log, self._viewer.stream, one.request)
            if now and self._ruled(one.envelope):
                handed: Any = {"handed": {**extras.dump()}}
                texts = self._clean("request", handed)["handed"]
                shown = extras.layers  # of other sessions, which are not run again
                extras = Extras.load(texts, extras.window_tokens)
                extras = replace(extras, layers=shown)
        prompt = self._prompt if now else None
        if prompt is not None and (extras.system is not None or not self._prompted):
            extras = replace(extras, system=_instead(extras.system, prompt))
        self._handed[place] = extras
        return extras

    def _anew(self, envelope: Envelope) -> Envelope:
        """The event as it would be recorded now."""
        event: Event = envelope.payload
        if self._ruled(envelope) and not isinstance(event, Request):
            payload = event.payload()
            clean = self._clean(event.type, payload)
            event = event if clean == payload else event_of(event.type, clean)
        text = _prompt_in(envelope.payload)
        if text is not None and self._prompt is not None:
            event = SystemPrompt(text=_instead(text, self._prompt))
        if event is envelope.payload:
            return envelope
        tokens = estimate(event.payload())
        return envelope.model_copy(update={"payload": event, "token_estimate": tokens})

    def _ruled(self, envelope: Envelope) -> bool:
        """Whether the store might find something in it that was not found then."""
        redactor = self._redactor
        own = {redactor.rule_set, self._writer.redactor.rule_set}
        more = redactor.registered or redactor.recognizer
        return bool(more) or envelope.redaction.get("rules") not in own

    def _taken(self, prompt: str) -> str:
        """The prompt as it would be recorded: its values have their numbers."""
        writer, stream = self._writer, self._viewer.stream
        numbers = self._viewer.log.head(stream).state.numbers
        draft, now = Draft(SystemPrompt(text=prompt)), writer.clock()
        how: Any = {"unscanned": "stub", "tag": writer.numbering(stream, numbers)}
        clean = writer.redacted(draft, user_id=stream.user_id, now=now, **how)
        return _prompt_in(clean.event) or ""

    def _clean(self, kind: str, payload: JsonObject) -> dict[str, Any]:
        try:
            clean, _, _ = redact_payload(self._redactor, kind, payload, tag=self._tag)
        except RedactionError as error:
            raise RedactionFailed(kind, reason=str(error)) from None
        return {**clean}

    def _difference(self, number: int, one: _Recorded, view: View | None) -> Difference:
        was = self._was.view(one, self._extras(one, now=False))
        now = view or self._now.view(one, self._extras(one, now=True))
        seq, then = one.envelope.seq, Shown(one.digest)
        lost = differs(was, one.request) if one.request else was.digest != one.digest
        if lost:
            shown = Shown(now.digest, now.tokens)
            return Difference(number, seq, "digest", then, shown)
        where, before, after = _first(_parts(was), _parts(now))
        pairs = enumerate(zip_longest(before or "", after or ""))
        place = next((at for at, (one, other) in pairs if one != other), 0)
        then = Shown(was.digest, was.tokens, _around(before, place))
        shown = Shown(now.digest, now.tokens, _around(after, place))
        return Difference(number, seq, where, then, shown)

    def _live(self, told: Rerun, number: int, one: _Recorded, model: Model) -> Rerun:
        extras = self._extras(one, now=True)
        extras = replace(extras, tools=extras.tools or _tools(self._now.events))
        own = spec.parse(one.request.strategy.model_dump()) if one.request else _ALL
        strategy = self._strategy or own
        recorded: Sequence[Envelope] | None = None
        if self._keeps(one):
            upto = one.request.derived_seq if one.request else 0
            made = self._now.derived.get(strategy.fingerprint, [])
            recorded = [entry for entry in made if entry.seq <= upto]
        run = _LiveRun(self._now.events, one.read, strategy, recorded, extras)
        live, calls = run.go(model)
        difference = told.first_difference
        if calls is not None:
            unknown, seq = Shown(one.digest), one.envelope.seq
            other = Difference(number + calls[0], seq, "calls", unknown, unknown)
            difference = (difference or other)._replace(call=calls[1])
        live = live._replace(request=number)
        return told._replace(first_difference=difference, live=live)


def _prompt_in(event: Event) -> str | None:
    return event.text if isinstance(event, SystemPrompt) else None


def _instead(known: str | None, prompt: str) -> str:
    """The prompt, in whose file a last line ends as lines do."""
    if known is not None and known.rstrip("\r\n") == prompt.rstrip("\r\n"):
        return known
    return prompt.rstrip("\r\n")


_Part: TypeAlias = tuple[str, str]


def _parts(view: View) -> Iterator[_Part]:
    """What a request consists of, in order: each part's name, and its text."""
    yield "system", view.system or ""
    yield "tools", canonical(view.tools).decode() if view.tools else ""
    for number, message in enumerate(view.messages, 1):
        for at, block in enumerate(message["content"], 1):
            plain = block["type"] == "text"
            text = block["text"] if plain else canonical(block).decode()
            yield f"message {number}, block {at} ({message['role']})", str(text)


def _first(
    then: Iterable[_Part], now: Iterable[_Part]
) -> tuple[str, str | None, str | None]:
    """The first part that differs, and both its texts."""
    for was, is_ in zip_longest(then, now):
        if was != is_:
            name = (is_ or was)[0]
            return name, was and was[1], is_ and is_[1]
    return "digest", None, None


def _around(text: str | None, place: int) -> str | None:
    if text is None:
        return None
    begin, end = max(0, place - _AROUND), place + 2 * _AROUND
    before, after = "…" * (begin > 0), "…" * (end < len(text))
    return before + text[begin:end] + after


def _tools(events: Iterable[Envelope]) -> tuple[JsonObject, ...]:
    """The tools that were called, where nobody recorded what they are."""
    calls = (one.payload for one in events)
    names = dict.fromkeys(c.tool_name for c in calls if isinstance(c, ToolCall))
    return tuple({"name": n, "input_schema": {"type": "object"}} for n in names)


def _told(call: ToolCall) -> JsonObject:
    return {"name": call.tool_name, "arguments": call.arguments}


class _LiveRun:
    """A run that a model goes on with, in memory, from the event at ``begin`` on."""

    def __init__(
        self,
        events: Sequence[Envelope],
        begin: int,
        strategy: Strategy,
        recorded: Sequence[Envelope] | None,
        extras: Extras,
    ) -> None:
        self._events, self._rest = [*events[:begin]], events[begin:]
        self._strategy, self._recorded, self._extras = strategy, recorded, extras
        self._seq = self._rest[0].seq
        self._moments: list[compare.Moment] = []
        self._inputs = [e for e in self._rest if isinstance(e.payload, UserInput)]
        made = [one.payload for one in self._rest]
        results = {one.call_id: one for one in made if isinstance(one, ToolResult)}
        self._results = [
            (canonical(_told(call)), results[call.call_id])
            for call in made
            if isinstance(call, ToolCall) and call.call_id in results
        ]
        self._before = list(_answers(self._rest))

    def go(self, model: Model) -> tuple[Live, tuple[int, Calls] | None]:
        """Let the model answer until a call has no recorded result.

        Also returns the first calls that are others, and how many answers came before.
        """
        answers = results = 0
        first: tuple[int, Calls] | None = None
        while True:
            said = model.answer(self._view())
            calls = [event for event in said if isinstance(event, ToolCall)]
            made = tuple(map(_told, calls))
            then = self._before[answers] if answers < len(self._before) else ()
            if first is None and made != then:
                first = answers, Calls(then, made)
            answers += 1
            for event in said:
                self._add(event)
            for call in calls:
                if (result := self._result(call)) is None:
                    live = Live(0, answers, results, "unrecorded_call", _told(call))
                    return live, first
                results += 1
                self._add(result)
            if not calls:
                if not self._inputs:
                    return Live(0, answers, results, "run_ended"), first
                self._add(self._inputs.pop(0).payload)

    def _view(self) -> View:
        """What is sent next: the walk ends before an answer that is to come."""
        pending = self._imagined(UserInput(text=""))
        events = [*self._events, pending]
        self._moments.append(compare.Moment(len(self._events), pending.seq))
        walk = compare.Walk(
            self._strategy, events, self._moments, Abridged(), self._recorded,
            goes_on=True,
        )  # fmt: skip
        steps = walk.steps()
        for _ in self._moments:
            next(steps)
        return replace(walk.view(self._extras), tools=self._extras.tools)

    def _result(self, call: ToolCall) -> ToolResult | None:
        told = canonical(_told(call))
        for place, (known, result) in enumerate(self._results):
            if known == told:
                del self._results[place]
                return result.model_copy(update={"call_id": call.call_id})
        return None

    def _add(self, event: Event) -> None:
        self._events.append(self._imagined(event))
        self._seq += 1

    def _imagined(self, event: Event) -> Envelope:
        newest = self._rest[0]
        ts, tokens = newest.ts, estimate(event.payload())
        return Envelope.imagined(event, self._seq, ts, newest.stream_id, tokens=tokens)


def _answers(events: Iterable[Envelope]) -> Iterator[tuple[JsonObject, ...]]:
    """The calls of each answer, in order."""
    events = list(events)
    begins = {moment.seq for moment in compare.moments(events)}
    answers = list[list[JsonObject]]()
    for one in events:
        if one.seq in begins:
            answers.append([])
        if isinstance(one.payload, ToolCall) and answers:
            answers[-1].append(_told(one.payload))
    return map(tuple, answers)
