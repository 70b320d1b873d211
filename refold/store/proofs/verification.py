"""Proving a session: its chains and heads, its calls and results, what it derived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from refold.domain import errors, events, ports
from refold.domain.envelope import Blob, Draft, Envelope, Meta, microseconds
from refold.domain.events import JsonObject, RedactionApplied, Request, Summary
from refold.domain.ids import MAIN, USER_SESSION, StreamId
from refold.domain.ports import Damage, EventLog, Head, Problem, SessionInfo, listed
from refold.domain.session import (
    SessionState,
    accepted_next,
    evolve,
    labels_in,
    unrestricted_types,
)
from refold.projections.context.outline import Outline
from refold.projections.context.strategies import spec
from refold.projections.context.units import spans_of
from refold.projections.context.view import View
from refold.redaction import chokepoint
from refold.redaction.guard import Limits, restored
from refold.redaction.plan import Tagger
from refold.redaction.redactor import RedactionError
from refold.store.appends import Writer
from refold.store.contexts import RequestedViews, Viewer, named_in, with_derived
from refold.store.history import History, born, handed_in, read_on
from refold.store.vault import Renumbering, numbers_after

_TRIES: Final = 3
_AGAIN: Final = 20
_READ: Final = 100
_NOTED: Final = frozenset({Summary, Request, RedactionApplied, events.StateUpdate})
_UNREADABLE = (
    errors.CorruptEvent,
    errors.KeyUnavailable,
    errors.RedactionFailed,
    errors.EventTooLarge,
)


def wrong_views(log: EventLog, stream: StreamId) -> Iterator[Problem]:
    """The stored views of the session that are not what the log makes.

    One of a strategy that is not known here, or of an older form, is left out: nothing
    is shown of it either.  Each is folded anew.
    """
    names = log.view_names(stream.user_id, stream.session_id)
    if not names:
        return
    viewer = Viewer(log, History.of(log, log.head(stream).state))
    for name in names:
        stored = log.load_view(stream, name)
        detail = stored and _wrong(viewer, name, stored)
        if stored and detail:
            place = stream._replace(stream=name)
            yield Problem(*place, stored.through_seq, "view", detail)


def _wrong(viewer: Viewer, name: str, stored: ports.StoredView) -> str | None:
    if not stored.body:
        return "the stored view does not open: it is folded anew when it is needed"
    try:
        strategy = spec.parse(stored.body["strategy"])  # type: ignore[arg-type]  # as written
        known = Outline.load(stored.body["outline"])  # type: ignore[arg-type]  # the same
    except (KeyError, TypeError, ValueError, errors.UnknownStrategy):
        return None
    if strategy.fingerprint != name:
        return "the stored view is of another strategy"
    # The outline of what the view has read, from the beginning:
    read = viewer.history.events(upto=stored.through_seq)
    outline = strategy.read(strategy.begin(), read)
    derived = viewer.stream._replace(stream=name)
    if stored.derived_seq:
        made = viewer.log.read(derived, upto=stored.derived_seq)
        outline = with_derived(outline, made)
    if known != Outline.load(outline.dump()):
        return "the stored view is not what the log makes of it: drop it"
    if named_in(strategy, known) != (stored.shows, stored.shows_derived):
        return "the stored view is read with events that it does not show"
    return None


class Superseded:
    """The superseded events that a session's contexts are made of.

    ``own`` are the session's, by stream; those of the sessions it was forked from are
    read from their logs, and counted as the fork counts them.
    """

    def __init__(self, history: History, own: Mapping[str, Iterable[int]]) -> None:
        self._derived = {name: set(seqs) for name, seqs in own.items() if name != MAIN}
        # The seqs of the main stream that hold less than they did.
        self.main = frozenset({*own.get(MAIN, ()), *_inherited(history)})

    @classmethod
    def of(cls, history: History, events: Iterable[Envelope]) -> Superseded:
        """Those that these events of the session's own say were redacted again."""
        own: dict[str, set[int]] = {}
        for envelope in events:
            if isinstance(event := envelope.payload, RedactionApplied):
                own.setdefault(event.stream, set()).update(event.seqs)
        return cls(history, own)

    def touches_summary(self, envelope: Envelope) -> bool:
        """Whether what this summary was made of is not there any more."""
        summary = envelope.payload
        if not isinstance(summary, Summary):
            return False
        again = self._derived.get(envelope.stream, set())
        absorbed = again.intersection(summary.absorbs)
        if place := summary.adopted:
            again = self._derived.get(place.stream, set())
            absorbed = {seq for seq in again if seq <= place.seq}
        # Of what it absorbs, its source is the summaries; of the rest, the events.  How
        # far those reach it does not say, so the whole span counts.
        first, last = summary.first_seq, summary.last_seq
        return bool(absorbed) or any(first <= seq <= last for seq in self.main)

    def touches_request(self, envelope: Envelope) -> bool:
        """Whether what this view was made of is not there any more."""
        request = envelope.payload
        if not isinstance(request, Request):
            return False
        if envelope.seq in self.main:  # what was handed in with it
            return True
        summaries = self._derived.get(request.strategy.fingerprint, set())
        first, made = min(self.main, default=inf), min(summaries, default=inf)
        return first <= request.through_seq or made <= request.derived_seq


def _inherited(history: History) -> Iterator[int]:
    if history.parent is None:
        return
    parent, at = history.parent, history.at
    found = parent.log.read(parent.stream, types=("redaction_applied",))
    for envelope in found:
        event = envelope.payload
        if isinstance(event, RedactionApplied) and event.stream == MAIN:
            yield from (seq - at for seq in event.seqs if seq <= at)
    yield from (seq - at for seq in _inherited(parent) if seq <= at)


class Verified(NamedTuple):
    """What was proved of a session, and what is wrong with it.

    superseded:         events that were redacted again: their chain is proved from
                        the first ciphertext, and that the present one took its place;
                        and those whose whole text expired.
    superseded_digests: digests of summaries and requests that cannot be derived
                        again, for they were made of what such events held.
    """

    events: int
    compactions: int
    requests: int
    problems: list[Problem]
    superseded: int = 0
    superseded_digests: int = 0

    def to_json(self) -> JsonObject:
        """The same for programs."""
        return {**self._asdict(), "problems": [one.to_json() for one in self.problems]}


@dataclass(slots=True)
class Verifier:
    """Proves one session, stream by stream.

    ``chain_only``: that the chains link up and end at the heads, and nothing of what
    the rows hold; none is decrypted.  The hashes need no key, so rows that were
    rewritten with them go unnoticed.
    """

    log: EventLog
    stream: StreamId
    chain_only: bool = False
    _problems: list[Problem] = field(default_factory=list, init=False)
    _events: int = field(default=0, init=False)
    # Their seqs, not what they hold: a long session has many.
    _summaries: dict[StreamId, list[int]] = field(default_factory=dict, init=False)
    _labels: dict[str, str | None] = field(default_factory=dict, init=False)
    _requests: list[int] = field(default_factory=list, init=False)
    _superseded: dict[str, set[int]] = field(default_factory=dict, init=False)
    _underived: int = field(default=0, init=False)

    def run(self) -> Verified:
        """Prove the session, again if it was changed by others meanwhile."""
        user_id, session_id, _ = self.stream
        listed = partial(self.log.sessions, user_id, session_id=session_id)
        for _ in range(_TRIES):
            before, verified = listed(), replace(self)._run()
            if not verified.problems or listed() == before:
                break
        return verified

    def run_since_seal(self, streams: Iterable[StreamId]) -> Verified:
        """Prove the chains of these streams of the session from their newest seals."""
        for stream in streams:
            with suppress(errors.Erased):  # meanwhile
                self._guarded(partial(self._prove_chain, since_seal=True), stream)
        return Verified(self._events, 0, 0, self._problems)

    def _run(self) -> Verified:
        """Read everything once, then derive again what was derived from it."""
        names = self.log.streams(self.stream.user_id, self.stream.session_id)
        for name in [MAIN, *(name for name in names if name != MAIN)]:
            stream = self.stream._replace(stream=name)
            prove = self._prove_chain if self.chain_only else self._prove
            self._guarded(prove, stream)
        if not self._problems:
            self._guarded(self._derive_again, self.stream)
        if not self._problems and not self.chain_only:
            views = partial(wrong_views, self.log)
            self._guarded(lambda main: self._problems.extend(views(main)), self.stream)
            self._guarded(self._prove_labels, self.stream)
        return Verified(
            self._events,
            sum(len(seqs) for seqs in self._summaries.values()),
            len(self._requests),
            self._problems,
            sum(len(seqs) for seqs in self._superseded.values()),
            self._underived,
        )

    def _guarded(self, prove: Callable[[StreamId], None], stream: StreamId) -> None:
        """A session that cannot be read is a problem of its own, not of others."""
        try:
            prove(stream)
        except (errors.CorruptEvent, errors.KeyUnavailable, errors.Erased) as error:
            seq = error.seq if isinstance(error, errors.CorruptEvent) else None
            self._problems.append(Problem(*stream, seq, "unreadable", str(error)))
        except errors.RefoldError:
            raise
        except ports.JUNK:
            wrong = Problem(*stream, None, "unreadable", ports.WRONG_TYPE)
            self._problems.append(wrong)

    def _prove(self, stream: StreamId) -> None:
        state, plain = SessionState(stream), 0  # `plain` events follow on it
        unheard = unrestricted_types(state) - _NOTED
        for item in self.log.audit(stream):
            if isinstance(item, Problem):
                if item.code == ports.EXPIRED:
                    self._superseded.setdefault(item.stream, set()).add(item.seq or 0)
                else:
                    self._problems.append(item)
                continue
            self._events += 1
            event = item.payload
            if type(event) in unheard:
                plain += 1
                continue
            if plain:
                state, plain = state._replace(head_seq=state.head_seq + plain), 0
            if type(event) in _NOTED:
                self._note(stream, item)
            if isinstance(event, events.Fork) and item.seq == 1:
                state = born(self.log, stream, event)
            try:  # each result answers one open call, and so on
                accepted_next(state, event)
            except errors.RefoldError as error:
                self._report(item, "rule", str(error))
            state = evolve(state, event)
            unheard = unrestricted_types(state) - _NOTED if state.closed else unheard
        if not self._problems:
            self._compare(stream, state._replace(head_seq=state.head_seq + plain))

    def _prove_chain(self, stream: StreamId, *, since_seal: bool = False) -> None:
        for item in self.log.audit_chain(stream, since_seal=since_seal):
            if isinstance(item, Problem):
                self._problems.append(item)
            else:
                self._events += item

    def _note(self, stream: StreamId, envelope: Envelope) -> None:
        """Keep what is derived again of it, or what it says of others."""
        event = envelope.payload
        if isinstance(event, Summary):
            self._summaries.setdefault(stream, []).append(envelope.seq)
        elif isinstance(event, Request):
            self._requests.append(envelope.seq)
        elif isinstance(event, RedactionApplied):
            self._superseded.setdefault(event.stream, set()).update(event.seqs)
        elif stream.stream == MAIN:
            self._labels |= labels_in(event)

    def _compare(self, stream: StreamId, state: SessionState) -> None:
        try:
            head = self.log.head(stream)
        except errors.RefoldError as error:
            self._problems.append(Problem(*stream, None, "head", str(error)))
            return
        # What was appended since the events were read has moved the head.
        if head.seq > state.head_seq:
            for envelope in self.log.read(stream, after=state.head_seq, upto=head.seq):
                state = evolve(state, envelope.payload)
        if unnamed(head.state) != unnamed(state):
            detail = "the head does not hold what follows from the events"
            self._problems.append(Problem(*stream, head.seq, "head", detail))

    def _prove_labels(self, main: StreamId) -> None:
        labels = self._labels.items()
        known = {name: value for name, value in labels if value is not None}
        if not self.log.labelled(main, known):
            detail = "it is found by other labels than the log tells: label it again"
            self._problems.append(Problem(*main, None, "label", detail))

    def _derive_again(self, main: StreamId) -> None:
        if not self._summaries and not self._requests:
            return
        viewer = Viewer(self.log, History.of(self.log, self.log.head(main).state))
        made_of = Superseded(viewer.history, self._superseded)
        for stream, seqs in self._summaries.items():
            for envelope in self._read(stream, seqs):
                if viewer.source_matches(envelope):
                    continue
                if made_of.touches_summary(envelope):
                    self._underived += 1
                else:
                    wrong = "the source digest does not follow"
                    self._report(envelope, "source", wrong)
        views = RequestedViews(viewer)
        for envelope in self._read(main, self._requests):
            self._check_request(views, made_of, envelope)

    def _read(self, stream: StreamId, seqs: list[int]) -> Iterator[Envelope]:
        for start in range(0, len(seqs), _READ):
            spans = spans_of(seqs[start : start + _READ])
            yield from self.log.read(stream, spans=spans)

    def _check_request(
        self, views: RequestedViews, made_of: Superseded, envelope: Envelope
    ) -> None:
        stream, request = envelope.stream_id, envelope.payload
        if not isinstance(request, Request):
            return
        try:
            changed = differs(views.view(request), request)
        except errors.Expired:
            self._underived += 1
            return
        except errors.RefoldError as error:
            self._report(envelope, "request", str(error))
            return
        if not changed:
            return
        if made_of.touches_request(envelope) or self._touched(stream, request):
            self._underived += 1
        else:
            self._report(envelope, "request", f"{changed} has another digest now")

    def _touched(self, stream: StreamId, request: Request) -> bool:
        """Whether something was redacted later in sessions that its layers show."""
        layers = handed_in(self.log, stream, request).layers
        names = layers.sessions if layers else ()
        others = [stream._replace(session_id=name) for name in names]
        kinds = ("redaction_applied",)
        return any(self.log.read(one, types=kinds, limit=1) for one in others)

    def _report(self, envelope: Envelope, code: str, detail: str) -> None:
        self._problems.append(Problem(*envelope.stream_id, envelope.seq, code, detail))


def differs(view: View, request: Request) -> str:
    """Which of what was sent is not what it was, the first of it; empty if all is."""
    again = view.request()
    if again.system_digest != request.system_digest:
        return "the system prompt"
    if again.tools_digest != request.tools_digest:
        return "the list of tools"
    return "" if again.digest == request.digest else "the view"


def unnamed(state: SessionState) -> SessionState:
    """The state without what no event says, and without tool names.

    A parent's may have been redacted since.
    """
    calls = {k: call._replace(tool_name="") for k, call in state.open_calls.items()}
    return state._replace(numbers={}, kept={}, open_calls=calls)


@dataclass(frozen=True, slots=True)
class Repairer:
    """Looks at one session, and with ``apply`` mends what can be mended."""

    log: EventLog
    main: StreamId
    apply: bool

    def run(self, names: list[str]) -> Iterator[Damage]:
        """What is damaged in these streams of the session, and what was done."""
        try:
            broken = False
            for name in [MAIN, *(name for name in names if name != MAIN)]:
                for damage in self._events_and_head(self.main._replace(stream=name)):
                    broken = broken or not damage.mended
                    yield damage
            if not broken:
                yield from self._views()
                yield from self._blobs()
                yield from self._keys()
        except errors.Erased:
            return

    def _events_and_head(self, stream: StreamId) -> Iterator[Damage]:
        right, problems = self._folded(stream)
        if problems:
            first, more = problems[0], len(problems) - 1
            where = "" if first.seq is None else f"seq {first.seq}: "
            rest = f", and {more} more: `refold verify` names them" if more else ""
            detail = f"{where}{first.detail}{rest}; restore it from a backup"
            yield Damage(stream, "events", detail, False)
            return
        known = Head(SessionState(stream))
        with suppress(errors.CorruptEvent, errors.KeyUnavailable):
            known = self.log.head(stream)
        # Written since the events were read, if it is there.
        if known.seq > right.seq:
            for envelope in self.log.read(stream, after=right.seq, upto=known.seq):
                right = self._with(right, envelope)
        if known.seq > right.seq:
            gone = f"seq {right.seq + 1} to {known.seq}"
            detail = f"{gone} are gone; restore them from a backup"
            yield Damage(stream, "events", detail, False)
            return
        if right.seq == 0:
            return
        if known.seq:  # what no event says
            numbers = {**right.state.numbers, **known.state.numbers}
            state = right.state._replace(numbers=numbers, kept=known.state.kept)
            begun, written = known.created_at, known.updated_at
            right = right._replace(state=state, created_at=begun, updated_at=written)
        if known.seq == 0 or _unnamed(known) != _unnamed(right):
            what = "differs from its events" if known.seq else "is gone or changed"
            detail = f"the head {what}; the events end at seq {right.seq}"
            mended = self.apply and self.log.repairs.put_head(stream, right)
            yield Damage(stream, "head", detail, True, mended)

    def _folded(self, stream: StreamId) -> tuple[Head, list[Problem]]:
        """The head that follows from a stream's events, and what is wrong with them."""
        head, problems = Head(SessionState(stream), b""), list[Problem]()
        try:
            for item in self.log.audit(stream):
                if isinstance(item, Envelope):
                    head = self._with(head, item)
                elif item.code not in ("head", ports.EXPIRED):
                    problems.append(item)
        except (errors.CorruptEvent, errors.KeyUnavailable) as error:
            problems.append(Problem(*stream, None, "unreadable", str(error)))
        return head, problems

    def _with(self, head: Head, envelope: Envelope) -> Head:
        """The head after one more event."""
        event, state = envelope.payload, head.state
        if isinstance(event, events.Fork) and envelope.seq == 1:
            state = born(self.log, state.stream, event)
        state = evolve(state, event)
        # Which values they stand for is lost with a head; none is given again.
        numbers = numbers_after(state.numbers, str(event.payload()))
        # When it was written: its id says so, if it is of the time (RFC 9562).
        timed, number = envelope.event_id.version == 7, envelope.event_id.int
        at = (number >> 80) * 1000 if timed else microseconds(envelope.ts)
        return Head(
            state._replace(numbers=numbers),
            bytes.fromhex(envelope.hash),
            "closed" if state.closed else "open",
            head.tokens + envelope.token_estimate,
            head.created_at or at,
            at,
        )

    def _views(self) -> Iterator[Damage]:
        user_id, session_id, _ = self.main
        end = self.log.head(self.main).seq
        bad = [
            name
            for name in self.log.view_names(user_id, session_id)
            if (view := self.log.load_view(self.main, name))
            and (not view.body or view.through_seq > end)
        ]
        if bad and self.apply:
            self.log.drop_views(user_id, session_id)
        for name in bad:
            detail = f"the stored view {name[:12]} was changed; it can be made again"
            yield Damage(self.main, "view", detail, True, self.apply)

    def _blobs(self) -> Iterator[Damage]:
        found = self.log.repairs.unnamed_blobs(self.main)
        if found.addresses:
            mended = self._may_destroy and self.log.repairs.drop_blobs(self.main, found)
            blobs = errors.counted(len(found.addresses), "blob")
            detail = f"{blobs} without an event"
            yield Damage(self.main, "blob", detail, True, mended)

    @property
    def _may_destroy(self) -> bool:
        """Of who is held or frozen nothing is destroyed, be it of no use."""
        return self.apply and not self.log.erasures.holds(self.main.user_id)

    def _keys(self) -> Iterator[Damage]:
        left = self.log.retired_keys(self.main)
        if left:
            mended = self._may_destroy and self.log.retire_keys(self.main) > 0
            keys = errors.counted(left, "key")
            detail = f"{keys} left by a redaction that was cut off"
            yield Damage(self.main, "key", detail, True, mended)


def _unnamed(head: Head) -> Head:
    return head._replace(state=unnamed(head.state), frozen=False)


def repair(
    log: EventLog, scope: ports.Scope, *, apply: bool
) -> Iterator[tuple[StreamId, list[Damage]]]:
    """Look at session after session, those too that are not listed any more."""
    lost: dict[tuple[str, str], list[str]] = {}
    for problem in log.orphans(scope):
        place = problem.user_id, problem.session_id
        lost.setdefault(place, []).append(problem.stream)

    def streams() -> Iterator[tuple[tuple[str, str], list[str]]]:
        for info in listed(log.sessions, scope):
            if info.status != "erased":
                place = info.user_id, info.session_id
                yield place, [*log.streams(*place), *lost.pop(place, ())]
        yield from sorted(lost.items())

    for place, names in streams():
        main = StreamId(*place, MAIN)
        yield main, list(Repairer(log, main, apply=apply).run(names))


_Where: TypeAlias = Literal["event", "view", "state"]


class Exposure(NamedTuple):
    """What the present rules find in one place of a session; never the value.

    ``where`` is ``event``, ``view`` (named by ``stream``) or ``state`` of a head.
    ``blobs`` counts those of the event's blobs that hold some of it.
    """

    user_id: str
    session_id: str
    stream: str
    seq: int | None
    where: _Where
    types: dict[str, int]
    blobs: int = 0

    def to_json(self) -> JsonObject:
        """The exposure as JSON."""
        return self._asdict()


class Rechecked(NamedTuple):
    """A session that was looked at, and what was done about what was found.

    ``applied`` is None if nothing was to be replaced, or was only looked for.
    ``unfinished``: an earlier re-redaction was cut off before it destroyed the old
    key.  ``problem`` says why a session could not be looked at or replaced.
    """

    session: SessionInfo
    events: int
    exposures: list[Exposure]
    applied: ports.Rewritten | None = None
    unfinished: bool = False
    problem: str | None = None


class _Again(NamedTuple):
    source: Envelope
    redacted: chokepoint.RedactedEvent
    types: Counter[str]
    blobs: int
    rules_before: str


class Rechecker:
    """One session under the present rules: what is found, and what stands for it."""

    def __init__(self, writer: Writer, stream: StreamId) -> None:
        self._writer, self._stream = writer, stream
        self._again: dict[tuple[str, int], _Again] = {}
        self._checked: dict[str, int] = {}
        self._numbers: Mapping[str, int] = {}
        self._tag: Tagger | None = None
        self.events = 0

    def run(self) -> list[Exposure]:
        """Look at every event, blob, view and head of the session."""
        log, place = self._writer.log, self._stream[:2]
        known = self._numbers = log.head(self._stream).state.numbers
        if not known and self._writer.redactor.plan.numbered_kinds:
            # What was typed stands for nothing, now as before.
            for envelope in read_on(log, self._stream):
                known = numbers_after(known, str(envelope.payload.payload()))
        self._tag = self._writer.numbering(self._stream, known, kind=Renumbering)
        found = [e for name in log.streams(*place) for e in self._in_stream(name)]
        for name in log.view_names(*place):
            stored = log.load_view(self._stream, name)
            if stored and (types := self._found(stored.body)):
                found.append(self._exposure(name, "view", types))
        return found

    def _in_stream(self, name: str) -> Iterator[Exposure]:
        stream = self._stream._replace(stream=name)
        for envelope in read_on(self._writer.log, stream):
            self.again(envelope)
            again = self._again.get((name, envelope.seq))
            if again is not None:
                yield self._exposure(name, "event", again.types, again)
            self.events += 1
        in_names: Counter[str] = Counter()
        for call_id, call in self._writer.log.head(stream).state.open_calls.items():
            in_names += self._found({"tool_name": call.tool_name, "id": call_id})
        if in_names:
            yield self._exposure(name, "state", in_names)

    def _exposure(
        self, name: str, where: _Where, types: Counter[str], again: _Again | None = None
    ) -> Exposure:
        found = dict(sorted(types.items()))
        seq, blobs = (again.source.seq, again.blobs) if again else (None, 0)
        return Exposure(*self._stream[:2], name, seq, where, found, blobs)

    def again(self, envelope: Envelope) -> chokepoint.RedactedEvent | None:
        """What stands in the event's place, or None if nothing is found in it.

        Each is looked at once, unless it holds something else by now: what others
        took out meanwhile must not come back.
        """
        name, seq = envelope.stream, envelope.seq
        checked, known = self._checked.get(name, 0), self._again.get((name, seq))
        if seq > checked or (known is not None and known.source != envelope):
            self._checked[name] = max(seq, checked)
            self._again.pop((name, seq), None)
            if known := self._redone(envelope):
                self._again[name, seq] = known
        return known.redacted if known else None

    def _redone(self, envelope: Envelope) -> _Again | None:
        payload, in_payload = self._whole(envelope.payload.payload())
        meta, in_meta = self._whole(envelope.meta.dump())
        request_id, agent = envelope.request_id, envelope.agent
        beside: JsonObject = {"request_id": request_id, "agent": agent, "meta": meta}
        types = self._found(beside, (envelope.type, payload))
        if not types:
            return None
        native: Any = meta.get("native") or {}
        digests = [str(one) for one in native.get("bytes") or ()]
        # The bytes of an item, which no rule reads.
        held = [(one, self._writer.log.blob(self._stream, one)) for one in digests]
        opaque = tuple(Blob(one, data) for one, data in held if data is not None)
        event, told = events.event_of(envelope.type, payload), Meta.of(meta)
        draft = chokepoint.ItemDraft(
            event, envelope.ts, request_id, agent, told, opaque=opaque
        )
        redacted = with_room(self._writer, draft, self._stream.user_id, self._tag)
        kept = {blob.sha256 for blob in redacted.blobs}
        blobs = len((in_payload | in_meta) - kept)
        before = str(envelope.redaction.get("rules", ""))
        return _Again(envelope, redacted, types, blobs, before)

    def _whole(self, value: JsonObject) -> tuple[JsonObject, set[str]]:
        """``value`` with its blobs in it, and which they are."""
        used: set[str] = set()

        def read(sha256: str) -> bytes | None:
            try:
                data = self._writer.log.blob(self._stream, sha256)
            except errors.Expired:
                return None
            if data is not None:
                used.add(sha256)
            return data

        return restored(value, read), used

    def _found(
        self, beside: JsonObject, payload: tuple[str, JsonObject] | None = None
    ) -> Counter[str]:
        redactor = self._writer.redactor
        try:
            types = Counter(chokepoint.redact_beside(redactor, beside)[1].types)
            if payload is not None:
                types.update(chokepoint.redact_payload(redactor, *payload)[1].types)
        except RedactionError as error:
            what = payload[0] if payload else "stored"
            raise errors.RedactionFailed(what, reason=str(error)) from None
        return types

    def state(self, state: SessionState) -> SessionState:
        """The state without what the ids and tools of its calls must not say.

        Raises Overtaken if others gave numbers meanwhile that this may have given.
        """
        if state.stream.stream == MAIN and isinstance(self._tag, Renumbering):
            if state.numbers != self._numbers:
                raise Overtaken
            state = state._replace(numbers=self._tag.known)
        made = [again.redacted.event for again in self._again.values()]
        names = {e.call_id: e.tool_name for e in made if isinstance(e, events.ToolCall)}
        calls, user_id = {}, self._stream.user_id
        for given, call in state.open_calls.items():
            call_id = self._writer.recorded_id(user_id, given)
            if call_id not in names:  # of a fork's origin: its name is redacted alone
                told: Any = {"tool_name": call.tool_name}
                clean: Any = self._writer.redactor.value(told)[0]
                names[call_id] = str(clean["tool_name"])
            calls[call_id] = call._replace(tool_name=names[call_id])
        return state._replace(open_calls=calls)

    def record(self, event: RedactionApplied) -> chokepoint.RedactedEvent:
        """The event that binds what was replaced, with what the rules say of it."""
        again = [self._again[event.stream, seq] for seq in event.seqs]
        types = sum((one.types for one in again), Counter[str]())
        update = {
            "rules": self._writer.redactor.rule_set,
            "rules_before": tuple(sorted({one.rules_before for one in again})),
            "types": dict(sorted(types.items())),
            "blobs": sum(one.blobs for one in again),
        }
        draft = Draft(event.model_copy(update=update))
        return with_room(self._writer, draft, self._stream.user_id)


class Overtaken(Exception):
    """What was found must be found again: the session has other numbers by now."""


def with_room(
    writer: Writer, draft: Draft, user_id: str, tag: Tagger | None = None
) -> chokepoint.RedactedEvent:
    """What takes an event's place: a placeholder may be longer than its value."""
    limits, now = writer.limits, writer.clock()
    wider = Limits(limits.leaf_bytes, limits.event_bytes * 2)
    return writer.redacted(draft, user_id=user_id, now=now, limits=wider, tag=tag)


def recheck(store: Any, info: SessionInfo, _: object) -> Rechecked:
    """What the present rules find in this session; nothing is changed."""
    writer, stream = store.writer, StreamId(info.user_id, info.session_id, MAIN)
    rechecker = Rechecker(writer, stream)
    try:
        unfinished = bool(writer.log.retired_keys(stream))
        found = rechecker.run()
    except _UNREADABLE as error:
        return Rechecked(info, rechecker.events, [], problem=str(error))
    return Rechecked(info, rechecker.events, found, unfinished=unfinished)


def reredact(store: Any, info: SessionInfo, _: object) -> Rechecked:
    """Replace what the present rules find, and finish what was cut off before.

    What other sessions keep of it is forgotten.
    """
    writer, stream = store.writer, StreamId(info.user_id, info.session_id, MAIN)
    for _ in range(_AGAIN):
        rechecker = Rechecker(writer, stream)
        found: list[Exposure] = []
        try:
            writer.log.retire_keys(stream)
            found = rechecker.run()
            now = writer.clock()
            done = writer.log.rewrite(stream, rechecker, now=now) if found else None
        except Overtaken:
            continue
        except _UNREADABLE as error:
            return Rechecked(info, rechecker.events, found, problem=str(error))
        if done is not None:
            there = writer.log.sessions(info.user_id)
            there = [one for one in there if one.status != "erased"]
            forks = with_forks(writer, there, info.user_id, [info.session_id])
            for name in (USER_SESSION, *forks):
                writer.log.drop_views(info.user_id, name)
        return Rechecked(info, rechecker.events, found, done)
    return Rechecked(info, 0, [], problem="others append all the time: try again later")


def with_forks(
    writer: Writer, sessions: Iterable[SessionInfo], user_id: str, names: Iterable[str]
) -> set[str]:
    """These sessions of a user, and those that go on from them, directly or not.

    One whose keys are gone goes on from nothing: a backup of the database may have
    brought back its rows.
    """
    parents: dict[str, str] = {}
    for info in sessions:
        try:
            state = writer.log.head(StreamId(user_id, info.session_id)).state
        except errors.Erased:
            continue
        if state.forked_from is not None:
            parents[info.session_id] = state.forked_from[0]
    found = set(names)
    while more := {fork for fork, parent in parents.items() if parent in found} - found:
        found |= more
    return found
