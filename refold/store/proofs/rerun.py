"""Rerun: derive the requests of a recorded run again, and compare them with the record.

Responses and results come from the record, so only requests can differ unless a model
answers.  Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import zip_longest
from math import inf
from operator import methodcaller
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import orjson

from refold.domain.canonical import canonical
from refold.domain.envelope import Draft, Envelope, Meta
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
from refold.domain.model import repr_without_texts
from refold.domain.session import SessionState
from refold.domain.stubs import Read, no_blobs
from refold.domain.tokens import estimate
from refold.projections import compare
from refold.projections.context.abridged import Abridged
from refold.projections.context.budget import NO_EXTRAS, Extras
from refold.projections.context.edits import HistoryEdited
from refold.projections.context.outline import Outline, is_rebuild, since_last_rebuild
from refold.projections.context.strategies import spec
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategy import Strategy
from refold.projections.context.units import Answers, Thread, place
from refold.projections.context.view import View
from refold.redaction.chokepoint import RedactedEvent, answering, redact_payload
from refold.redaction.guard import filled
from refold.redaction.redactor import RedactionError
from refold.store.appends import Writer
from refold.store.contexts import Viewer, with_derived
from refold.store.history import WithBlobs, read_extras
from refold.store.proofs.provenance import (
    is_captured,
    keep_all_version,
    kind_of,
    reconstructed_in,
)
from refold.store.proofs.verification import Superseded, changed_part

# The strategy of requests that the log does not contain as events.
_KEEP_ALL: Final[Strategy] = KeepAll()
# An excerpt shows this many characters before a difference, and twice as many after.
_CONTEXT_CHARS: Final = 120


class Model(Protocol):
    """A model that answers a request that differs, and the requests that follow."""

    name: str

    def answer(self, view: View) -> Sequence[Event]:
        """Return the events of its response to this view."""
        ...


@repr_without_texts
class Excerpt(NamedTuple):
    """An excerpt of a request.

    digest: the digest of the whole request.
    tokens: its tokens; None if only the digest is known.
    text:   the block that differs, cut around the first difference; None if the request
            lacks the block, or if only the digest is known.
    """

    digest: str
    tokens: int | None = None
    text: str | None = None


@repr_without_texts
class Calls(NamedTuple):
    """The calls of an answer by name and arguments: those recorded, and those now."""

    then: tuple[JsonObject, ...]
    now: tuple[JsonObject, ...]


class Difference(NamedTuple):
    """The first request that differs from the record, or that led to other calls.

    request: the number of the request, counted from 1.
    seq:     the seq of the request's event, or of the first event of its answer.
    where:   ``system``, ``tools``, ``message 3, block 1``, or ``calls``; ``digest`` if
             the log does not contain the text that was sent.
    then:    the recorded request.
    now:     the request as it is derived now.
    call:    the calls of the first answer with other calls than recorded.
    """

    request: int
    seq: int
    where: str
    then: Excerpt
    now: Excerpt
    call: Calls | None = None


# Why a live run ended: a call has no recorded result, or no user input is left.
Ended: TypeAlias = Literal["unrecorded_call", "run_ended"]


@repr_without_texts
class Live(NamedTuple):
    """The part of a run that a model answered.

    request: the number of the first request that the model answered.
    answers: the number of its answers.
    results: the number of its calls that got a recorded result.
    ended:   why the run ended.
    call:    the call without a recorded result, which ended the run.
    """

    request: int
    answers: int
    results: int
    ended: Ended
    call: JsonObject | None = None


class Rerun(NamedTuple):
    """The result of a rerun.

    requests:   the number of requests of the run.
    same:       the number of equal requests before the first one that differs.
    superseded: the number of requests that can no longer be proved, because they were
                made from events that were redacted since.
    recorded:   whether the provenance of any request is known: it was recorded, or it
                was reconstructed from a transcript.  If not, the requests are those
                that the log gives without any compaction.
    recorded_requests: the number of requests that were recorded when they were sent.
                The digests of the others were reconstructed from the log.  Such a
                digest proves that the log still gives the same request.  It does not
                prove what was sent.
    same_recorded: the number of requests in ``same`` that were recorded.
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
        """Whether a request differs, or a model made a call that has no result."""
        if self.live is not None and self.live.ended == "unrecorded_call":
            return True
        return self.first_difference is not None

    def to_json(self) -> JsonObject:
        """Return the result as ``refold rerun --json`` prints it."""
        text = orjson.dumps(self, default=methodcaller("_asdict"))
        result: JsonObject = orjson.loads(text)
        return result


def with_requests(
    viewer: Viewer, state: SessionState, new: Sequence[RedactedEvent], now: datetime
) -> list[RedactedEvent]:
    """Return new, imported events; each answer gets the digest of its request.

    The requests are those that the log gives without any compaction.  If the new events
    contain requests, no digest is added: a rerun compares those requests instead.

    state: the state of the session before the new events.
    """
    if any(isinstance(redacted.event, Request) for redacted in new):
        return [*new]
    stored = viewer.history.events(upto=state.head_seq)
    events, stored_blobs = WithBlobs.read(viewer.log, stored)
    blobs = dict(stored_blobs)
    for seq, redacted in enumerate(new, state.head_seq + 1):
        events.append(future_envelope(redacted, seq, state.stream, now))
        blobs.update({blob.sha256: blob.data for blob in redacted.blobs})
    with_digests = [*new]
    requests = compare.RawRequests(events, read=blobs.get)
    version = requests.strategy.version
    for answer, digest in requests.digests():
        index = answer.seq - state.head_seq - 1
        if index >= 0:
            with_digests[index] = answering(new[index], digest, version)
    return with_digests


def future_envelope(
    redacted: RedactedEvent, seq: int, stream: StreamId, now: datetime
) -> Envelope:
    """Return the envelope that an event will get, with texts in place of stubs."""
    event: Any = redacted.event
    if redacted.blobs:
        data = {blob.sha256: blob.data for blob in redacted.blobs}
        event = event_of(event.type, filled(event.payload(), data.get))
    content: Any = redacted.content
    return Envelope.imagined(
        event,
        seq,
        now,
        stream,
        tokens=redacted.token_estimate,
        request_id=content.get("request_id"),
        agent=content.get("agent"),
        meta=Meta.of(content.get("meta")),
    )


class _RunRequest(NamedTuple):
    """A request of the run.

    envelope: the event of the request, or the first event of its answer.
    events_before: the number of events before that event.
    request:  the recorded request; None if only its digest is known.
    keep_all: the strategy of a request if only its digest is known.
    """

    envelope: Envelope
    events_before: int
    digest: str
    model: str | None
    request: Request | None
    keep_all: Strategy = _KEEP_ALL

    @property
    def through(self) -> int:
        """The seq of the newest event in the request."""
        if self.request is None:
            return self.envelope.seq - 1
        return self.request.through_seq

    @property
    def strategy(self) -> Strategy:
        """The strategy under which the request was made."""
        if self.request is None:
            return self.keep_all
        return spec.parse(self.request.strategy.model_dump())

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its strategy."""
        if self.request is None:
            return self.keep_all.fingerprint
        return self.request.strategy.fingerprint

    @property
    def derived_seq(self) -> int:
        """The seq of the newest summary in the request; 0 for none."""
        if self.request is None:
            return 0
        return self.request.derived_seq

    @property
    def is_recorded(self) -> bool:
        """Whether the digest was stored when the request was sent."""
        return kind_of(self.envelope) == "recorded"

    def is_changed(self, view: View) -> bool:
        """Whether the view differs from what was sent."""
        if self.request is None:
            return view.digest != self.digest
        return bool(changed_part(view, self.request))


def _requests_in(events: Sequence[Envelope]) -> Iterator[_RunRequest]:
    """Yield the requests with a known digest.

    Requests of a fork's parents are left out.  So are requests that activate a
    strategy, because no model got them, and digests of later parts of an answer.
    """
    answer_starts = _answer_starts(events)
    for index, envelope in enumerate(events):
        event = envelope.payload
        if envelope.seq < 1 or envelope.activates_strategy:
            continue
        if isinstance(event, Request):
            yield _RunRequest(envelope, index, event.digest, event.model, event)
            continue
        digest = reconstructed_in(envelope)
        if digest is not None and envelope.seq in answer_starts:
            version = keep_all_version(envelope)
            yield _RunRequest(
                envelope,
                index,
                digest,
                envelope.meta.model,
                None,
                spec.parse({"name": KeepAll.name, "version": version}),
            )


@dataclass(slots=True)
class _Run:
    """The events of a run, as they were recorded or as they would be recorded now.

    derived: the events of the derived streams, by the fingerprint of the strategy.
    read:    returns the blobs of images and documents.
    """

    events: Sequence[Envelope]
    derived: dict[str, list[Envelope]]
    read: Read = no_blobs
    _outlines: dict[str, Outline] = field(default_factory=dict)

    def view(self, request: _RunRequest, extras: Extras) -> View:
        """Derive a request again, with the summaries that it was made from."""
        strategy = request.strategy
        summaries: list[Envelope] = []
        if request.request is None:
            outline = strategy.read_whole(self.events[: request.events_before])
        else:
            summaries = self.derived.get(strategy.fingerprint, [])
            outline = self._outline(strategy, request.request, summaries)
        elements = compare.Elements()
        requests = compare.Requests(
            strategy, self.events, NO_EXTRAS, elements, self.read
        )
        return requests.view(outline, summaries, extras)

    def _outline(
        self, strategy: Strategy, request: Request, derived: Iterable[Envelope]
    ) -> Outline:
        """Return the outline of a request.

        If possible, this continues the outline of the previous request.
        """
        derived = [entry for entry in derived if entry.seq <= request.derived_seq]
        last_restart = 0
        for entry in derived:
            if is_rebuild(entry):
                last_restart = entry.seq
        outline = self._outlines.get(strategy.fingerprint, strategy.begin())
        can_continue = (
            outline.through_seq <= request.through_seq
            and last_restart <= outline.derived_seq <= request.derived_seq
        )
        if not can_continue:
            outline = strategy.begin()
        unread: list[Envelope] = []
        for envelope in self.events:
            if outline.events and envelope.seq <= outline.through_seq:
                continue
            if envelope.seq > request.through_seq:
                break
            unread.append(envelope)
        try:
            outline = strategy.read(outline, unread)
        except HistoryEdited:
            before = [
                envelope
                for envelope in self.events
                if envelope.seq <= request.through_seq
            ]
            outline = strategy.read_whole(before)
        later = []
        for entry in since_last_rebuild(derived):
            if entry.seq > outline.derived_seq:
                later.append(entry)
        outline = with_derived(outline, later)
        self._outlines[strategy.fingerprint] = outline
        return outline


class Rerunner:
    """Derives the requests of one session again.

    strategy: the strategy of all requests; None keeps the strategy of each request.
              Where the recorded summaries belong to another strategy, summaries are
              made in memory.
    prompt:   replaces the recorded system prompts.

    Events that were redacted under other rules than those of the store are redacted
    again.
    """

    def __init__(
        self,
        writer: Writer,
        viewer: Viewer,
        *,
        strategy: Strategy | None,
        prompt: str | None,
    ) -> None:
        self._writer = writer
        self._viewer = viewer
        self._strategy = strategy
        self._redactor = writer.redactor.stubbing
        self._tag = writer.tagger(viewer.stream.user_id)
        log = viewer.log
        events, blobs = WithBlobs.read(log, viewer.history.events())
        self._read_blob: Read = blobs.get
        self._requests = list(_requests_in(events))
        self._has_provenance = bool(self._requests)
        if not self._requests:
            self._requests = _raw_requests(events, self._read_blob)
            self._has_provenance = any(
                is_captured(request.envelope) for request in self._requests
            )
        derived: dict[str, list[Envelope]] = {}
        for request in self._requests:
            if request.request is not None and request.fingerprint not in derived:
                stream = viewer.stream._replace(stream=request.fingerprint)
                derived[request.fingerprint] = list(log.read(stream))
        self._prompt = prompt
        if prompt:
            self._prompt = self._as_recorded(prompt)
        self._has_prompts = any(
            _prompt_in(envelope.payload) is not None for envelope in events
        )
        self._recorded_run = _Run(events, derived, self._read_blob)
        current_derived: dict[str, list[Envelope]] = {}
        for name, entries in derived.items():
            current_derived[name] = [self._current(entry) for entry in entries]
        self._current_run = _Run(
            [self._current(envelope) for envelope in events],
            current_derived,
            self._read_blob,
        )
        self._extras_cache: dict[tuple[int, bool], Extras] = {}

    def run(self, model: Model | None = None) -> Rerun:
        """Compare each request with the record, up to the first one that differs.

        ``model`` answers from that request on, or from the first request that was sent
        to another model.  Its calls get the results that calls with the same name and
        arguments had, until a call has none.

        Raises UnknownStrategy, RedactionFailed, the errors of reading, and those of the
        model.
        """
        if isinstance(model, str):
            raise InvalidConfiguration("a rerun takes what answers: LiveModel(name)")
        # Events of a parent have seqs up to 0.
        own = (event for event in self._recorded_run.events if event.seq > 0)
        superseded = Superseded.of(self._viewer.history, own)
        first_superseded = min(superseded.main, default=inf)
        result = Rerun(
            requests=len(self._requests),
            same=0,
            recorded=self._has_provenance,
            recorded_requests=sum(
                1 for request in self._requests if request.is_recorded
            ),
        )
        for number, (request, view, changed) in enumerate(self._compared(), 1):
            if changed and first_superseded <= request.through:
                result = result._replace(superseded=result.superseded + 1)
                continue
            if changed:
                difference = self._difference(number, request, view)
                result = result._replace(first_difference=difference)
            if model is not None and (changed or model.name != request.model):
                return self._live(result, number, request, model)
            if changed:
                return result
            result = result._replace(same=result.same + 1)
            if request.is_recorded:
                result = result._replace(same_recorded=result.same_recorded + 1)
        return result

    def _compared(self) -> Iterator[tuple[_RunRequest, View | None, bool]]:
        """Yield each request, its view if it was rendered, and whether it differs."""
        extras_of_no_request = self._extras(None, now=True)
        digests: dict[str, Iterator[tuple[Envelope, str]]] = {}
        views: Iterator[View] = iter(())
        if self._strategy:
            views = self._views_under(self._strategy)
        for request, view in zip_longest(self._requests, views):
            # A request that keeps its strategy is derived with its recorded summaries.
            if self._keeps_strategy(request):
                view = None
            if view is None and request.request is None:
                name = request.fingerprint
                if name not in digests:
                    raw = compare.RawRequests(
                        self._current_run.events,
                        extras_of_no_request,
                        self._read_blob,
                        request.keep_all,
                    )
                    digests[name] = raw.digests()
                digest = _digest_of(digests[name], request.envelope.seq)
                yield request, None, digest != request.digest
                continue
            if view is None:
                extras = self._extras(request, now=True)
                view = self._current_run.view(request, extras)
            yield request, view, request.is_changed(view)

    def _keeps_strategy(self, request: _RunRequest) -> bool:
        """Whether the request is derived under the strategy that it was made with."""
        if self._strategy is None:
            return True
        return self._strategy.fingerprint == request.fingerprint

    def _views_under(self, strategy: Strategy) -> Iterator[View]:
        """Yield the requests under another strategy, with summaries made in memory."""
        moments = []  # when a model was called
        for request in self._requests:
            moments.append(compare.Moment(request.events_before, request.envelope.seq))
        walk = compare.Walk(
            strategy,
            self._current_run.events,
            moments,
            Abridged(),
            read=self._read_blob,
        )
        for request, _ in zip(self._requests, walk.steps(), strict=True):
            yield walk.view(self._extras(request, now=True))

    def _extras(self, request: _RunRequest | None, *, now: bool) -> Extras:
        """Return the parts that were handed in with a request.

        request: None for requests of which only the digest is known.
        now:     redact the parts again, and replace the system prompt.
        """
        key = (0, now)
        if request is not None:
            key = (request.envelope.seq, now)
        if key in self._extras_cache:
            return self._extras_cache[key]
        extras = NO_EXTRAS
        if request is not None and request.request is not None:
            log = self._viewer.log
            extras = read_extras(log, self._viewer.stream, request.request)
            if now and self._has_other_rules(request.envelope):
                handed: Any = {"handed": {**extras.dump()}}
                texts = self._redacted("request", handed)["handed"]
                # Layers show other sessions, which are not run again.
                layers = extras.layers
                extras = Extras.load(texts, extras.window_tokens)
                extras = replace(extras, layers=layers)
        has_prompt = extras.system is not None or not self._has_prompts
        if now and has_prompt and self._prompt is not None:
            system = _replaced_prompt(extras.system, self._prompt)
            extras = replace(extras, system=system)
        self._extras_cache[key] = extras
        return extras

    def _current(self, envelope: Envelope) -> Envelope:
        """Return the event as it would be recorded now."""
        event: Event = envelope.payload
        if self._has_other_rules(envelope) and not isinstance(event, Request):
            payload = event.payload()
            redacted = self._redacted(event.type, payload)
            if redacted != payload:
                event = event_of(event.type, redacted)
        prompt = _prompt_in(envelope.payload)
        if prompt is not None and self._prompt is not None:
            event = SystemPrompt(text=_replaced_prompt(prompt, self._prompt))
        if event is envelope.payload:
            return envelope
        tokens = estimate(event.payload())
        return envelope.model_copy(update={"payload": event, "token_estimate": tokens})

    def _has_other_rules(self, envelope: Envelope) -> bool:
        """Whether the store's rules may find values that the event still contains."""
        redactor = self._redactor
        if redactor.registered or redactor.recognizer:
            return True
        current = {redactor.rule_set, self._writer.redactor.rule_set}
        return envelope.redaction.get("rules") not in current

    def _as_recorded(self, prompt: str) -> str:
        """Return the prompt as it would be recorded: redacted, with numbered values."""
        stream = self._viewer.stream
        numbers = self._viewer.log.head(stream).state.numbers
        redacted = self._writer.redacted(
            Draft(SystemPrompt(text=prompt)),
            user_id=stream.user_id,
            now=self._writer.clock(),
            unscanned="stub",
            tag=self._writer.numbering(stream, numbers),
        )
        return _prompt_in(redacted.event) or ""

    def _redacted(self, kind: str, payload: JsonObject) -> dict[str, Any]:
        """Redact the payload of an event of this type."""
        try:
            clean, _, _ = redact_payload(self._redactor, kind, payload, tag=self._tag)
        except RedactionError as error:
            raise RedactionFailed(kind, reason=str(error)) from None
        return {**clean}

    def _difference(
        self, number: int, request: _RunRequest, view: View | None
    ) -> Difference:
        """Find the place where a request differs from the record.

        view: the request as it is derived now, if it was rendered.
        """
        extras = self._extras(request, now=False)
        recorded = self._recorded_run.view(request, extras)
        if view is None:
            extras = self._extras(request, now=True)
            view = self._current_run.view(request, extras)
        if request.is_changed(recorded):
            # The log gives another text than the one that was sent.
            return Difference(
                request=number,
                seq=request.envelope.seq,
                where="digest",
                then=Excerpt(request.digest),
                now=Excerpt(view.digest, view.tokens),
            )
        where, old_text, new_text = _first_difference(_parts(recorded), _parts(view))
        index = _first_different_character(old_text or "", new_text or "")
        return Difference(
            request=number,
            seq=request.envelope.seq,
            where=where,
            then=Excerpt(recorded.digest, recorded.tokens, _excerpt(old_text, index)),
            now=Excerpt(view.digest, view.tokens, _excerpt(new_text, index)),
        )

    def _live(
        self, result: Rerun, number: int, request: _RunRequest, model: Model
    ) -> Rerun:
        """Let the model continue the run from a request on.

        number: the number of the request, counted from 1.
        """
        events = self._current_run.events
        extras = self._extras(request, now=True)
        if not extras.tools:
            extras = replace(extras, tools=_called_tools(events))
        strategy = self._strategy or request.strategy
        summaries: list[Envelope] | None = None
        if self._keeps_strategy(request):
            summaries = []
            for entry in self._current_run.derived.get(strategy.fingerprint, []):
                if entry.seq <= request.derived_seq:
                    summaries.append(entry)
        run = _LiveRun(
            events, request.events_before, strategy, summaries, extras, self._read_blob
        )
        live = run.run(model)._replace(request=number)
        difference = result.first_difference
        if run.different_calls is not None:
            if difference is None:
                same_request = Excerpt(request.digest)
                difference = Difference(
                    request=number + run.answers_before,
                    seq=request.envelope.seq,
                    where="calls",
                    then=same_request,
                    now=same_request,
                )
            difference = difference._replace(call=run.different_calls)
        return result._replace(first_difference=difference, live=live)


def _raw_requests(events: Sequence[Envelope], read: Read) -> list[_RunRequest]:
    """Return the requests that an import of these events would have derived.

    read: returns the blobs of images and documents.
    """
    index_of = {envelope.seq: index for index, envelope in enumerate(events)}
    answer_starts = _answer_starts(events)
    requests = []
    for answer, digest in compare.RawRequests(events, read=read).digests():
        if answer.seq not in answer_starts:
            continue
        index = index_of[answer.seq]
        requests.append(_RunRequest(answer, index, digest, answer.meta.model, None))
    return requests


def _answer_starts(events: Sequence[Envelope]) -> set[int]:
    """Return the seqs where the answers of models begin."""
    answers = Answers()
    thread = Thread()
    starts: set[int] = set()
    for envelope in events:
        thread, placed = place(thread, envelope, str)
        seq = answers.first_seq(envelope, placed)
        if seq is not None:
            starts.add(seq)
    return starts


def _digest_of(digests: Iterator[tuple[Envelope, str]], seq: int) -> str:
    """Return the digest of the request that the answer at this seq answers.

    This reads the iterator up to that answer; without the answer, it returns ``""``.
    """
    for answer, digest in digests:
        if answer.seq == seq:
            return digest
    return ""


def _prompt_in(event: Event) -> str | None:
    """Return the system prompt in an event, if it has one."""
    if isinstance(event, SystemPrompt) and event.is_prompt:
        return event.text
    return None


def _replaced_prompt(recorded: str | None, prompt: str) -> str:
    """Return the prompt that replaces a recorded one.

    Line ends at the end do not count, because a file usually ends with a line end.
    """
    if recorded is not None and recorded.rstrip("\r\n") == prompt.rstrip("\r\n"):
        return recorded
    return prompt.rstrip("\r\n")


# A part of a request: its name and its text.
_Part: TypeAlias = tuple[str, str]


def _parts(view: View) -> Iterator[_Part]:
    """Yield the parts of a request in their order."""
    yield "system", view.system or ""
    tools = ""
    if view.tools:
        tools = canonical(view.tools).decode()
    yield "tools", tools
    for message_number, message in enumerate(view.messages, 1):
        for block_number, block in enumerate(message["content"], 1):
            if block["type"] == "text":
                text = str(block["text"])
            else:
                text = canonical(block).decode()
            place = f"message {message_number}, block {block_number}"
            yield f"{place} ({message['role']})", text


def _first_difference(
    then: Iterable[_Part], now: Iterable[_Part]
) -> tuple[str, str | None, str | None]:
    """Return the name of the first part that differs, and its old and new text."""
    for old, new in zip_longest(then, now):
        if old == new:
            continue
        if old is None:
            return new[0], None, new[1]
        if new is None:
            return old[0], old[1], None
        return new[0], old[1], new[1]
    return "digest", None, None


def _first_different_character(old: str, new: str) -> int:
    """Return the index of the first difference; 0 if there is none."""
    for index, (old_character, new_character) in enumerate(zip_longest(old, new)):
        if old_character != new_character:
            return index
    return 0


def _excerpt(text: str | None, index: int) -> str | None:
    """Return the text around an index, with an ellipsis where it is cut."""
    if text is None:
        return None
    begin = max(0, index - _CONTEXT_CHARS)
    end = index + 2 * _CONTEXT_CHARS
    excerpt = text[begin:end]
    if begin > 0:
        excerpt = "…" + excerpt
    if end < len(text):
        excerpt += "…"
    return excerpt


def _called_tools(events: Iterable[Envelope]) -> tuple[JsonObject, ...]:
    """Return definitions of the called tools, for a log without definitions."""
    tools: dict[str, JsonObject] = {}
    for envelope in events:
        if isinstance(envelope.payload, ToolCall):
            name = envelope.payload.tool_name
            tools[name] = {"name": name, "input_schema": {"type": "object"}}
    return tuple(tools.values())


def _call_json(call: ToolCall) -> JsonObject:
    """Return a call by name and arguments, without its id."""
    return {"name": call.tool_name, "arguments": call.arguments}


class _LiveRun:
    """A run that a model continues in memory.

    begin:           the index of the first event that the model's answers replace.
    recorded:        the summaries of the run; None makes them in memory.
    different_calls: the calls of the first answer with other calls than recorded.
    answers_before:  the number of answers before that answer.
    """

    different_calls: Calls | None = None
    answers_before: int = 0

    def __init__(
        self,
        events: Sequence[Envelope],
        begin: int,
        strategy: Strategy,
        recorded: Sequence[Envelope] | None,
        extras: Extras,
        read: Read,
    ) -> None:
        self._events = [*events[:begin]]
        self._read_blob = read
        run_events = events[begin:]
        self._first = run_events[0]
        self._seq = self._first.seq
        self._strategy = strategy
        self._recorded = recorded
        self._extras = extras
        self._moments: list[compare.Moment] = []
        self._inputs: list[UserInput] = []
        self._recorded_answers = list(_answers(run_events))
        results: dict[str, ToolResult] = {}  # by the ids of their calls
        for envelope in run_events:
            if isinstance(envelope.payload, UserInput):
                self._inputs.append(envelope.payload)
            elif isinstance(envelope.payload, ToolResult):
                results[envelope.payload.call_id] = envelope.payload
        # Each recorded result with its call, in the order of the calls.
        self._results: list[tuple[bytes, ToolResult]] = []
        for envelope in run_events:
            call = envelope.payload
            if isinstance(call, ToolCall) and call.call_id in results:
                result = results[call.call_id]
                self._results.append((canonical(_call_json(call)), result))

    def run(self, model: Model) -> Live:
        """Let the model answer until a call has no recorded result, or input ends.

        The caller sets the number of the first request in the result.
        """
        answers = 0
        results = 0
        while True:
            response = model.answer(self._view())
            calls = [event for event in response if isinstance(event, ToolCall)]
            self._compare_calls(answers, calls)
            answers += 1
            for event in response:
                self._add(event)
            for call in calls:
                result = self._take_result(call)
                if result is None:
                    return Live(
                        request=0,
                        answers=answers,
                        results=results,
                        ended="unrecorded_call",
                        call=_call_json(call),
                    )
                results += 1
                self._add(result)
            if calls:
                continue
            if not self._inputs:
                return Live(0, answers, results, "run_ended")
            self._add(self._inputs.pop(0))

    def _compare_calls(self, answers: int, calls: Sequence[ToolCall]) -> None:
        """Remember the calls of an answer if they are the first different ones.

        answers: the number of answers before this one.
        """
        if self.different_calls is not None:
            return
        recorded: tuple[JsonObject, ...] = ()
        if answers < len(self._recorded_answers):
            recorded = self._recorded_answers[answers]
        current = tuple(_call_json(call) for call in calls)
        if current != recorded:
            self.different_calls = Calls(recorded, current)
            self.answers_before = answers

    def _view(self) -> View:
        """Return the next request."""
        # The walk ends before an event.  This event takes the place of the answer.
        pending = self._next_envelope(UserInput(text=""))
        events = [*self._events, pending]
        self._moments.append(compare.Moment(len(self._events), pending.seq))
        walk = compare.Walk(
            self._strategy,
            events,
            self._moments,
            Abridged(),
            self._recorded,
            compacts_further=True,
            read=self._read_blob,
        )
        steps = walk.steps()
        for _ in self._moments:
            next(steps)
        return replace(walk.view(self._extras), tools=self._extras.tools)

    def _take_result(self, call: ToolCall) -> ToolResult | None:
        """Take the recorded result of an equal call, if one is left."""
        wanted = canonical(_call_json(call))
        for index, (recorded_call, result) in enumerate(self._results):
            if recorded_call == wanted:
                del self._results[index]
                return result.model_copy(update={"call_id": call.call_id})
        return None

    def _add(self, event: Event) -> None:
        """Add an event to the end of the run."""
        self._events.append(self._next_envelope(event))
        self._seq += 1

    def _next_envelope(self, event: Event) -> Envelope:
        """Return the envelope of the next event."""
        return Envelope.imagined(
            event,
            self._seq,
            self._first.ts,
            self._first.stream_id,
            tokens=estimate(event.payload()),
        )


def _answers(events: Sequence[Envelope]) -> Iterator[tuple[JsonObject, ...]]:
    """Yield the calls of each recorded answer, in order."""
    # An answer begins at the seq before which a model was called.
    first_seqs = {moment.seq for moment in compare.moments(events)}
    answers: list[list[JsonObject]] = []
    for envelope in events:
        if envelope.seq in first_seqs:
            answers.append([])
        if isinstance(envelope.payload, ToolCall) and answers:
            answers[-1].append(_call_json(envelope.payload))
    return map(tuple, answers)
