"""Verification, repair and renewed redaction of the data that sessions store."""

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
from refold.store.contexts import RequestedViews, Viewer, shown_spans, with_derived
from refold.store.history import History, forked_state, read_extras, read_pages
from refold.store.vault import Renumbering, numbers_after

# A session is verified again if it was changed concurrently, at most this often.
_TRIES: Final = 3
# A redaction begins again if another process numbered values, at most this often.
_REDACTION_TRIES: Final = 20
_BATCH: Final = 100  # events in memory at one time
# The types of events that say something about other events, or have a digest to check.
_REMEMBERED_TYPES: Final = frozenset(
    {Summary, Request, RedactionApplied, events.StateUpdate}
)
# The errors that end the redaction of a session, and are reported as its problem.
_UNREADABLE = (
    errors.CorruptEvent,
    errors.KeyUnavailable,
    errors.RedactionFailed,
    errors.EventTooLarge,
)


def wrong_views(log: EventLog, stream: StreamId) -> Iterator[Problem]:
    """Yield a problem for each stored view that the log does not give again.

    Views of an unknown strategy or of an older form are ignored: no reader uses them,
    and they are folded again when needed.
    """
    names = log.view_names(stream.user_id, stream.session_id)
    if not names:
        return
    viewer = Viewer(log, History.of(log, log.head(stream).state))
    for name in names:
        stored = log.load_view(stream, name)
        if stored is None:
            continue
        detail = _view_problem(viewer, name, stored)
        if detail:
            derived = stream._replace(stream=name)
            yield Problem(*derived, stored.through_seq, "view", detail)


def _view_problem(viewer: Viewer, name: str, stored: ports.StoredView) -> str | None:
    """Describe the difference between a stored view and the log, if there is one."""
    if not stored.body:
        return "the stored view cannot be decrypted: it is folded again when needed"
    try:
        strategy = spec.parse(stored.body["strategy"])  # type: ignore[arg-type]  # a view of ours
        outline = Outline.load(stored.body["outline"])  # type: ignore[arg-type]  # the same
    except (KeyError, TypeError, ValueError, errors.UnknownStrategy):
        return None
    if strategy.fingerprint != name:
        return "the stored view is of another strategy"
    # Fold all events of the view again, from the first one.
    folded = viewer.fold_all(strategy, upto=stored.through_seq)
    if stored.derived_seq:
        derived = viewer.stream._replace(stream=name)
        summaries = viewer.log.read(derived, upto=stored.derived_seq)
        folded = with_derived(folded, summaries)
    if outline != Outline.load(folded.dump()):
        return "the stored view is not what the log makes of it: drop it"
    if shown_spans(strategy, outline) != (stored.shows, stored.shows_derived):
        return "the stored view is read with events that it does not show"
    return None


class Superseded:
    """The events of a session and its parents that were redacted again later.

    own:  the seqs of the session's superseded events, by stream.
    main: the seqs of superseded events in the main stream.  Events of a parent have the
          seqs that the fork gives them.
    """

    main: frozenset[int]

    def __init__(self, history: History, own: Mapping[str, Iterable[int]]) -> None:
        self._derived: dict[str, set[int]] = {}
        for name, seqs in own.items():
            if name != MAIN:
                self._derived[name] = set(seqs)
        self.main = frozenset({*own.get(MAIN, ()), *_inherited(history)})

    @classmethod
    def of(cls, history: History, events: Iterable[Envelope]) -> Superseded:
        """Return the superseded events that these events of the session name."""
        own: dict[str, set[int]] = {}
        for envelope in events:
            event = envelope.payload
            if isinstance(event, RedactionApplied):
                own.setdefault(event.stream, set()).update(event.seqs)
        return cls(history, own)

    def touches_summary(self, envelope: Envelope) -> bool:
        """Whether a summary was made from text that has been redacted since."""
        summary = envelope.payload
        if not isinstance(summary, Summary):
            return False
        adopted = summary.adopted
        if adopted:
            redacted = self._derived.get(adopted.stream, set())
            if any(seq <= adopted.seq for seq in redacted):
                return True
        else:
            redacted = self._derived.get(envelope.stream, set())
            if not redacted.isdisjoint(summary.absorbs):
                return True
        # The summary stores its whole span, but not which of it was an event and which
        # an absorbed summary.  So every event of the span counts.
        return any(summary.first_seq <= seq <= summary.last_seq for seq in self.main)

    def touches_request(self, envelope: Envelope) -> bool:
        """Whether a request was made from text that has been redacted since."""
        request = envelope.payload
        if not isinstance(request, Request):
            return False
        # The request was redacted itself, because it has parts of the caller.
        if envelope.seq in self.main:
            return True
        summaries = self._derived.get(request.strategy.fingerprint, set())
        first_event = min(self.main, default=inf)
        first_summary = min(summaries, default=inf)
        return (
            first_event <= request.through_seq or first_summary <= request.derived_seq
        )


def _inherited(history: History) -> Iterator[int]:
    """Yield the superseded events of parents, by the seqs that the fork gives them."""
    parent = history.parent
    if parent is None:
        return
    seqs: list[int] = []
    for envelope in parent.log.read(parent.stream, types=("redaction_applied",)):
        event = envelope.payload
        if isinstance(event, RedactionApplied) and event.stream == MAIN:
            seqs.extend(event.seqs)
    seqs.extend(_inherited(parent))
    for seq in seqs:
        if seq <= history.forked_at:
            yield seq - history.forked_at


class Verified(NamedTuple):
    """The result of verifying a session.

    events, compactions, requests: the numbers of verified events and digests.
    superseded:         the number of events that were redacted again, or whose whole
                        text expired.  The hash chain of a redacted event is proved from
                        its first ciphertext, and also proves the replacement.
    superseded_digests: the number of digests of summaries and requests that cannot be
                        derived again, because they were made from such events.
    """

    events: int
    compactions: int
    requests: int
    problems: list[Problem]
    superseded: int = 0
    superseded_digests: int = 0

    def to_json(self) -> JsonObject:
        """Return the result as JSON."""
        problems = [problem.to_json() for problem in self.problems]
        return {**self._asdict(), "problems": problems}


@dataclass(slots=True)
class Verifier:
    """Verifies one session, stream by stream.

    chain_only:  verify only that each hash chain is unbroken and ends at its head, and
                 decrypt nothing.  The hashes need no key, so this misses rows that were
                 rewritten together with their hashes.
    _problems:   the problems so far.
    _events:     the number of verified events.
    _summaries:  the seqs of summaries, by stream.  The summaries themselves would need
                 much memory in a long session.
    _labels:     the labels that the main stream sets; None for a removed label.
    _requests:   the seqs of requests.
    _superseded: the seqs of superseded events, by stream.
    _underived:  the number of digests that cannot be derived again.
    """

    log: EventLog
    stream: StreamId
    chain_only: bool = False
    _problems: list[Problem] = field(default_factory=list, init=False)
    _events: int = field(default=0, init=False)
    _summaries: dict[StreamId, list[int]] = field(default_factory=dict, init=False)
    _labels: dict[str, str | None] = field(default_factory=dict, init=False)
    _requests: list[int] = field(default_factory=list, init=False)
    _superseded: dict[str, set[int]] = field(default_factory=dict, init=False)
    _underived: int = field(default=0, init=False)

    def run(self) -> Verified:
        """Verify the session; verify it again if it was changed concurrently."""
        user_id, session_id, _ = self.stream
        for _ in range(_TRIES):
            before = self.log.sessions(user_id, session_id=session_id)
            verified = replace(self)._run()
            if not verified.problems:
                break
            if self.log.sessions(user_id, session_id=session_id) == before:
                break
        return verified

    def run_since_seal(self, streams: Iterable[StreamId]) -> Verified:
        """Verify the chains of these streams of the session from their newest seals."""
        for stream in streams:
            with suppress(errors.Erased):  # another process erased the session
                self._guarded(partial(self._verify_chain, since_seal=True), stream)
        return Verified(self._events, 0, 0, self._problems)

    def _run(self) -> Verified:
        """Read all events once, then derive summaries, requests and views again."""
        for stream in self._streams():
            if self.chain_only:
                self._guarded(self._verify_chain, stream)
            else:
                self._guarded(self._verify_events, stream)
        if not self._problems:
            self._guarded(self._derive_again, self.stream)
        if not self._problems and not self.chain_only:
            self._guarded(self._verify_views, self.stream)
            self._guarded(self._verify_labels, self.stream)
        return Verified(
            events=self._events,
            compactions=sum(len(seqs) for seqs in self._summaries.values()),
            requests=len(self._requests),
            problems=self._problems,
            superseded=sum(len(seqs) for seqs in self._superseded.values()),
            superseded_digests=self._underived,
        )

    def _streams(self) -> list[StreamId]:
        """Return the streams of the session, the main stream first."""
        names = [MAIN]
        for name in self.log.streams(self.stream.user_id, self.stream.session_id):
            if name != MAIN:
                names.append(name)
        return [self.stream._replace(stream=name) for name in names]

    def _guarded(self, verify: Callable[[StreamId], None], stream: StreamId) -> None:
        """Verify a stream; a stream that cannot be read becomes a problem."""
        try:
            verify(stream)
        except (errors.CorruptEvent, errors.KeyUnavailable, errors.Erased) as error:
            seq = None
            if isinstance(error, errors.CorruptEvent):
                seq = error.seq
            self._problems.append(Problem(*stream, seq, "unreadable", str(error)))
        except errors.RefoldError:
            raise
        except ports.MALFORMED_DATA:
            problem = Problem(*stream, None, "unreadable", ports.WRONG_TYPE)
            self._problems.append(problem)

    def _verify_events(self, stream: StreamId) -> None:
        """Verify the chain, the order of events, and the head of a stream."""
        state = SessionState(stream)
        # Events of these types are accepted in any state, and change only the head seq.
        # So consecutive ones are counted, and added to the state at once.
        unrestricted = unrestricted_types(state) - _REMEMBERED_TYPES
        unfolded = 0
        for item in self.log.audit(stream):
            if isinstance(item, Problem):
                if item.code == ports.EXPIRED:
                    self._superseded.setdefault(item.stream, set()).add(item.seq or 0)
                else:
                    self._problems.append(item)
                continue
            self._events += 1
            event = item.payload
            if type(event) in unrestricted:
                unfolded += 1
                continue
            if unfolded:
                state = state._replace(head_seq=state.head_seq + unfolded)
                unfolded = 0
            if type(event) in _REMEMBERED_TYPES:
                self._remember(stream, item)
            if isinstance(event, events.Fork) and item.seq == 1:
                state = forked_state(self.log, stream, event)
            try:
                accepted_next(state, event)
            except errors.RefoldError as error:
                self._report(item, "rule", str(error))
            state = evolve(state, event)
            if state.closed:
                unrestricted = unrestricted_types(state) - _REMEMBERED_TYPES
        if not self._problems:
            state = state._replace(head_seq=state.head_seq + unfolded)
            self._compare_head(stream, state)

    def _verify_views(self, main: StreamId) -> None:
        """Report stored views that differ from the log."""
        self._problems.extend(wrong_views(self.log, main))

    def _verify_chain(self, stream: StreamId, *, since_seal: bool = False) -> None:
        """Verify only the chain of a stream."""
        for item in self.log.audit_chain(stream, since_seal=since_seal):
            if isinstance(item, Problem):
                self._problems.append(item)
            else:
                self._events += item

    def _remember(self, stream: StreamId, envelope: Envelope) -> None:
        """Remember a digest to check, or what an event says about other events."""
        event = envelope.payload
        if isinstance(event, Summary):
            self._summaries.setdefault(stream, []).append(envelope.seq)
        elif isinstance(event, Request):
            self._requests.append(envelope.seq)
        elif isinstance(event, RedactionApplied):
            self._superseded.setdefault(event.stream, set()).update(event.seqs)
        elif stream.stream == MAIN:
            self._labels |= labels_in(event)

    def _compare_head(self, stream: StreamId, state: SessionState) -> None:
        """Report a head that differs from the state that is folded from the events."""
        try:
            head = self.log.head(stream)
        except errors.RefoldError as error:
            self._problems.append(Problem(*stream, None, "head", str(error)))
            return
        # Concurrent appends may have moved the head since the events were read.
        if head.seq > state.head_seq:
            for envelope in self.log.read(stream, after=state.head_seq, upto=head.seq):
                state = evolve(state, envelope.payload)
        if derivable_state(head.state) != derivable_state(state):
            detail = "the head does not hold what follows from the events"
            self._problems.append(Problem(*stream, head.seq, "head", detail))

    def _verify_labels(self, main: StreamId) -> None:
        """Report a session whose searchable labels are not those in its log."""
        labels: dict[str, str] = {}
        for name, value in self._labels.items():
            if value is not None:
                labels[name] = value
        if not self.log.has_exactly_labels(main, labels):
            detail = "its searchable labels are not those in the log: label it again"
            self._problems.append(Problem(*main, None, "label", detail))

    def _derive_again(self, main: StreamId) -> None:
        """Derive the digests of summaries and requests again, and compare them."""
        if not self._summaries and not self._requests:
            return
        viewer = Viewer(self.log, History.of(self.log, self.log.head(main).state))
        superseded = Superseded(viewer.history, self._superseded)
        edits = viewer.history.edits() if self._summaries else ()
        for stream, seqs in self._summaries.items():
            for envelope in self._read(stream, seqs):
                if viewer.source_matches(envelope, edits):
                    continue
                if superseded.touches_summary(envelope):
                    self._underived += 1
                else:
                    detail = "the source digest does not follow"
                    self._report(envelope, "source", detail)
        views = RequestedViews(viewer)
        for envelope in self._read(main, self._requests):
            self._verify_request(views, superseded, envelope)

    def _read(self, stream: StreamId, seqs: list[int]) -> Iterator[Envelope]:
        """Yield the events with these seqs, in batches."""
        for start in range(0, len(seqs), _BATCH):
            spans = spans_of(seqs[start : start + _BATCH])
            yield from self.log.read(stream, spans=spans)

    def _verify_request(
        self, views: RequestedViews, superseded: Superseded, envelope: Envelope
    ) -> None:
        """Derive the digest of a request again, and compare it."""
        stream = envelope.stream_id
        request = envelope.payload
        if not isinstance(request, Request):
            return
        try:
            changed = changed_part(views.view(request), request)
        except errors.Expired:
            self._underived += 1
            return
        except errors.RefoldError as error:
            self._report(envelope, "request", str(error))
            return
        if not changed:
            return
        was_redacted = superseded.touches_request(envelope)
        if was_redacted or self._layers_were_redacted(stream, request):
            self._underived += 1
        else:
            self._report(envelope, "request", f"{changed} has another digest now")

    def _layers_were_redacted(self, stream: StreamId, request: Request) -> bool:
        """Whether sessions in the request's memory layers were redacted later."""
        layers = read_extras(self.log, stream, request).layers
        if not layers:
            return False
        for session_id in layers.sessions:
            session = stream._replace(session_id=session_id)
            if self.log.read(session, types=("redaction_applied",), limit=1):
                return True
        return False

    def _report(self, envelope: Envelope, code: str, detail: str) -> None:
        """Add a problem of an event."""
        self._problems.append(Problem(*envelope.stream_id, envelope.seq, code, detail))


def changed_part(view: View, request: Request) -> str:
    """Name the first part of a request that the view changes; empty if none."""
    derived = view.request()
    if derived.system_digest != request.system_digest:
        return "the system prompt"
    if derived.tools_digest != request.tools_digest:
        return "the list of tools"
    if derived.digest != request.digest:
        return "the view"
    return ""


def derivable_state(state: SessionState) -> SessionState:
    """Return the part of the state that can be derived from the events.

    The names of called tools are left out, because names in a parent may have been
    redacted since.
    """
    calls = {}
    for call_id, call in state.open_calls.items():
        calls[call_id] = call._replace(tool_name="")
    return state._replace(numbers={}, kept={}, learned={}, open_calls=calls)


@dataclass(frozen=True, slots=True)
class Repairer:
    """Checks one session for damage.

    apply: also repair the damage that can be repaired.
    """

    log: EventLog
    main: StreamId
    apply: bool

    def run(self, names: list[str]) -> Iterator[Damage]:
        """Yield the damage in these streams of the session.

        Derived data is checked only if no damage to events or heads is left.
        """
        others = [name for name in names if name != MAIN]
        try:
            is_broken = False
            for name in [MAIN, *others]:
                for damage in self._events_and_head(self.main._replace(stream=name)):
                    if not damage.mended:
                        is_broken = True
                    yield damage
            if not is_broken:
                yield from self._damaged_views()
                yield from self._unnamed_blobs()
                yield from self._retired_keys()
        except errors.Erased:
            return

    def _events_and_head(self, stream: StreamId) -> Iterator[Damage]:
        """Yield a stream's damaged or lost events, or else its damaged head."""
        right_head, problems = self._fold(stream)
        if problems:
            yield Damage(stream, "events", _damaged_events(problems), False)
            return
        stored_head = Head(SessionState(stream))
        with suppress(errors.CorruptEvent, errors.KeyUnavailable):
            stored_head = self.log.head(stream)
        # Concurrent appends may have added events since the events were read.
        if stored_head.seq > right_head.seq:
            later = self.log.read(stream, after=right_head.seq, upto=stored_head.seq)
            for envelope in later:
                right_head = self._head_after(right_head, envelope)
        if stored_head.seq > right_head.seq:
            lost = f"seq {right_head.seq + 1} to {stored_head.seq}"
            detail = f"{lost} are gone; restore them from a backup"
            yield Damage(stream, "events", detail, False)
            return
        if right_head.seq == 0:
            return
        if stored_head.seq:
            right_head = _with_underivable(right_head, stored_head)
        if stored_head.seq and _derivable_head(stored_head) == _derivable_head(
            right_head
        ):
            return
        damage = "differs from its events" if stored_head.seq else "is gone or changed"
        detail = f"the head {damage}; the events end at seq {right_head.seq}"
        repaired = self.apply and self.log.repairs.put_head(stream, right_head)
        yield Damage(stream, "head", detail, True, repaired)

    def _fold(self, stream: StreamId) -> tuple[Head, list[Problem]]:
        """Fold a stream's events; return the head that they give, and problems."""
        head = Head(SessionState(stream), b"")
        problems: list[Problem] = []
        try:
            for item in self.log.audit(stream):
                if isinstance(item, Envelope):
                    head = self._head_after(head, item)
                elif item.code not in ("head", ports.EXPIRED):
                    problems.append(item)
        except (errors.CorruptEvent, errors.KeyUnavailable) as error:
            problems.append(Problem(*stream, None, "unreadable", str(error)))
        return head, problems

    def _head_after(self, head: Head, envelope: Envelope) -> Head:
        """Return the head after one more event."""
        event = envelope.payload
        state = head.state
        if isinstance(event, events.Fork) and envelope.seq == 1:
            state = forked_state(self.log, state.stream, event)
        state = evolve(state, event)
        # A lost head loses the values of its numbered placeholders.  Their numbers are
        # taken from the texts, so that no number is given to another value.
        numbers = numbers_after(state.numbers, str(event.payload()))
        if envelope.event_id.version == 7:
            # The first 48 bits are the time of the append in milliseconds (RFC 9562).
            written_at = (envelope.event_id.int >> 80) * 1000
        else:
            written_at = microseconds(envelope.ts)
        return Head(
            state._replace(numbers=numbers),
            bytes.fromhex(envelope.hash),
            "closed" if state.closed else "open",
            head.tokens + envelope.token_estimate,
            head.created_at or written_at,
            written_at,
        )

    def _damaged_views(self) -> Iterator[Damage]:
        """Yield stored views that cannot be decrypted, or that end after the log."""
        user_id, session_id, _ = self.main
        end = self.log.head(self.main).seq
        damaged = []
        for name in self.log.view_names(user_id, session_id):
            view = self.log.load_view(self.main, name)
            if view is None:
                continue
            if not view.body or view.through_seq > end:
                damaged.append(name)
        if damaged and self.apply:
            self.log.drop_views(user_id, session_id)
            for name in damaged:  # a served share is not among those views
                self.log.drop_view(self.main, name)
        for name in damaged:
            detail = f"the stored view {name[:12]} was changed; it can be made again"
            yield Damage(self.main, "view", detail, True, self.apply)

    def _unnamed_blobs(self) -> Iterator[Damage]:
        """Yield the blobs of the session that no event names."""
        scanned = self.log.repairs.unnamed_blobs(self.main)
        if scanned.addresses:
            repaired = False
            if self._may_destroy:
                repaired = self.log.repairs.drop_blobs(self.main, scanned)
            blobs = errors.counted(len(scanned.addresses), "blob")
            detail = f"{blobs} without an event"
            yield Damage(self.main, "blob", detail, True, repaired)

    @property
    def _may_destroy(self) -> bool:
        """Whether data may be destroyed, which a hold or a freeze forbids."""
        return self.apply and not self.log.erasures.holds(self.main.user_id)

    def _retired_keys(self) -> Iterator[Damage]:
        """Yield the keys that an interrupted redaction left."""
        number = self.log.count_old_keys(self.main)
        if number:
            repaired = self._may_destroy and self.log.destroy_old_keys(self.main) > 0
            keys = errors.counted(number, "key")
            detail = f"{keys} left by a redaction that was cut off"
            yield Damage(self.main, "key", detail, True, repaired)


def _damaged_events(problems: list[Problem]) -> str:
    """Describe the first problem of a stream's events, and the number of the others."""
    first = problems[0]
    where = ""
    if first.seq is not None:
        where = f"seq {first.seq}: "
    others = ""
    if len(problems) > 1:
        others = f", and {len(problems) - 1} more: `refold verify` names them"
    return f"{where}{first.detail}{others}; restore it from a backup"


def _with_underivable(right: Head, stored: Head) -> Head:
    """Return the right head with the parts of the stored head that no event has."""
    numbers = {**right.state.numbers, **stored.state.numbers}
    state = right.state._replace(
        numbers=numbers, kept=stored.state.kept, learned=stored.state.learned
    )
    return right._replace(
        state=state, created_at=stored.created_at, updated_at=stored.updated_at
    )


def _derivable_head(head: Head) -> Head:
    """Return the part of a head that can be derived from the events."""
    return head._replace(state=derivable_state(head.state), frozen=False)


def repair(
    log: EventLog, scope: ports.Scope, *, apply: bool
) -> Iterator[tuple[StreamId, list[Damage]]]:
    """Check all sessions of the scope, also those that lost their head."""
    orphans: dict[tuple[str, str], list[str]] = {}
    for problem in log.orphans(scope):
        session = (problem.user_id, problem.session_id)
        orphans.setdefault(session, []).append(problem.stream)
    for info in listed(log.sessions, scope):
        if info.status == "erased":
            continue
        session = (info.user_id, info.session_id)
        names = [*log.streams(*session), *orphans.pop(session, ())]
        yield _checked(log, session, names, apply=apply)
    for session, names in sorted(orphans.items()):
        yield _checked(log, session, names, apply=apply)


def _checked(
    log: EventLog, session: tuple[str, str], names: list[str], *, apply: bool
) -> tuple[StreamId, list[Damage]]:
    """Check these streams of a session; returns its main stream and the damage."""
    main = StreamId(*session, MAIN)
    return main, list(Repairer(log, main, apply=apply).run(names))


# The kinds of places in a session that contain text.
_Where: TypeAlias = Literal["event", "view", "state"]


class Exposure(NamedTuple):
    """The values that the current rules find in one place of a session.

    where: ``event``; ``view``, which ``stream`` names; or ``state``, of a head.
    types: the number of values by type.
    blobs: the number of the event's blobs with such values.
    """

    user_id: str
    session_id: str
    stream: str
    seq: int | None
    where: _Where
    types: dict[str, int]
    blobs: int = 0

    def to_json(self) -> JsonObject:
        """Return the exposure as JSON."""
        return self._asdict()


class Rechecked(NamedTuple):
    """The result of rechecking a session.

    events:     the number of searched events.
    applied:    the rewriting of the session; None if there was nothing to replace, or
                if this only searched.
    unfinished: whether an earlier redaction was interrupted before it destroyed the old
                key.
    problem:    why the session could not be read or rewritten.
    """

    session: SessionInfo
    events: int
    exposures: list[Exposure]
    applied: ports.Rewritten | None = None
    unfinished: bool = False
    problem: str | None = None


class _Replacement(NamedTuple):
    """The event that replaces another one.

    source:       the event with values that the rules find.
    redacted:     the event that replaces it.
    types:        the number of values by type.
    blobs:        the number of the event's blobs that the new event does not name.
    rules_before: the rules under which the event was redacted before.
    """

    source: Envelope
    redacted: chokepoint.RedactedEvent
    types: Counter[str]
    blobs: int
    rules_before: str


class Rechecker:
    """Searches one session with the current rules, and replaces events with values.

    It is the ``Rewriting`` with which the log is rewritten.
    """

    def __init__(self, writer: Writer, stream: StreamId) -> None:
        self._writer = writer
        self._stream = stream
        self._replacements: dict[tuple[str, int], _Replacement] = {}
        self._checked: dict[str, int] = {}  # the last checked seq of each stream
        self._numbers: Mapping[str, int] = {}
        self._tag: Tagger | None = None
        self.events = 0

    def run(self) -> list[Exposure]:
        """Search every event, blob, view and head of the session."""
        log = self._writer.log
        user_id, session_id, _ = self._stream
        self._numbers = log.head(self._stream).state.numbers
        numbers = self._numbers
        if not numbers and self._writer.redactor.plan.numbered_types:
            # Texts may contain placeholders that a user typed.  No value may get the
            # number of such a placeholder.
            for envelope in read_pages(log, self._stream):
                numbers = numbers_after(numbers, str(envelope.payload.payload()))
        self._tag = self._writer.numbering(self._stream, numbers, kind=Renumbering)
        exposures: list[Exposure] = []
        for name in log.streams(user_id, session_id):
            exposures.extend(self._exposures_in(name))
        for name in log.view_names(user_id, session_id):
            stored = log.load_view(self._stream, name)
            if stored is None:
                continue
            types = self._types_in(stored.body)
            if types:
                exposures.append(self._exposure(name, "view", types))
        return exposures

    def _exposures_in(self, name: str) -> Iterator[Exposure]:
        """Search the events and the head of a stream."""
        stream = self._stream._replace(stream=name)
        for envelope in read_pages(self._writer.log, stream):
            self.replacement(envelope)  # stores the replacement, which follows
            replacement = self._replacements.get((name, envelope.seq))
            if replacement is not None:
                yield self._exposure(name, "event", replacement.types, replacement)
            self.events += 1
        types: Counter[str] = Counter()
        for call_id, call in self._writer.log.head(stream).state.open_calls.items():
            types += self._types_in({"tool_name": call.tool_name, "id": call_id})
        if types:
            yield self._exposure(name, "state", types)

    def _exposure(
        self,
        name: str,
        where: _Where,
        types: Counter[str],
        replacement: _Replacement | None = None,
    ) -> Exposure:
        """Return an exposure; that of an event has its seq and its blobs."""
        seq = None
        blobs = 0
        if replacement is not None:
            seq = replacement.source.seq
            blobs = replacement.blobs
        user_id, session_id, _ = self._stream
        sorted_types = dict(sorted(types.items()))
        return Exposure(user_id, session_id, name, seq, where, sorted_types, blobs)

    def replacement(self, envelope: Envelope) -> chokepoint.RedactedEvent | None:
        """Return the event that replaces this one, or None if the rules find nothing.

        An event is checked once.  It is checked again if another process has changed
        its content since, because text that was removed must not come back.
        """
        place = (envelope.stream, envelope.seq)
        checked = self._checked.get(envelope.stream, 0)
        replacement = self._replacements.get(place)
        is_new = envelope.seq > checked
        has_changed = replacement is not None and replacement.source != envelope
        if is_new or has_changed:
            self._checked[envelope.stream] = max(envelope.seq, checked)
            self._replacements.pop(place, None)
            replacement = self._replacement_of(envelope)
            if replacement is not None:
                self._replacements[place] = replacement
        if replacement is None:
            return None
        return replacement.redacted

    def _replacement_of(self, envelope: Envelope) -> _Replacement | None:
        """Redact an event again; returns None if the rules find nothing."""
        payload, payload_blobs = self._with_blobs(envelope.payload.payload())
        meta, meta_blobs = self._with_blobs(envelope.meta.dump())
        envelope_texts: JsonObject = {
            "request_id": envelope.request_id,
            "agent": envelope.agent,
            "meta": meta,
        }
        types = self._types_in(envelope_texts, (envelope.type, payload))
        if not types:
            return None
        draft = chokepoint.ItemDraft(
            events.event_of(envelope.type, payload),
            envelope.ts,
            envelope.request_id,
            envelope.agent,
            Meta.of(meta),
            opaque=self._opaque_blobs(meta),
        )
        redacted = redact_replacement(
            self._writer, draft, self._stream.user_id, self._tag
        )
        remaining = {blob.sha256 for blob in redacted.blobs}
        removed = (payload_blobs | meta_blobs) - remaining
        rules_before = str(envelope.redaction.get("rules", ""))
        return _Replacement(envelope, redacted, types, len(removed), rules_before)

    def _opaque_blobs(self, meta: JsonObject) -> tuple[Blob, ...]:
        """Return the blobs with the bytes of a native item, which no rule can read."""
        native: Any = meta.get("native") or {}
        blobs = []
        for digest in native.get("bytes") or ():
            sha256 = str(digest)
            data = self._writer.log.blob(self._stream, sha256)
            if data is not None:
                blobs.append(Blob(sha256, data))
        return tuple(blobs)

    def _with_blobs(self, value: JsonObject) -> tuple[JsonObject, set[str]]:
        """Return the value with texts in place of stubs, and digests of its blobs."""
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

    def _types_in(
        self,
        envelope_texts: JsonObject,
        payload: tuple[str, JsonObject] | None = None,
    ) -> Counter[str]:
        """Return the number of values that the rules find, by type.

        envelope_texts: texts of an envelope, or of something else that is stored.
        payload:        the type and the payload of an event, which are searched, too.
        """
        redactor = self._writer.redactor
        try:
            _, receipt = chokepoint.redact_beside(redactor, envelope_texts)
            types = Counter(receipt.types)
            if payload is not None:
                _, receipt, *_ = chokepoint.redact_payload(redactor, *payload)
                types.update(receipt.types)
        except RedactionError as error:
            subject = payload[0] if payload else "stored"
            raise errors.RedactionFailed(subject, reason=str(error)) from None
        return types

    def state(self, state: SessionState) -> SessionState:
        """Return the state with redacted ids and tool names of calls.

        Raises Overtaken if another process numbered values since the search, because
        both may have used the same numbers.
        """
        if state.stream.stream == MAIN and isinstance(self._tag, Renumbering):
            if state.numbers != self._numbers:
                raise Overtaken
            state = state._replace(numbers=self._tag.known)
        names: dict[str, str] = {}
        for replacement in self._replacements.values():
            event = replacement.redacted.event
            if isinstance(event, events.ToolCall):
                names[event.call_id] = event.tool_name
        calls = {}
        for stored_id, call in state.open_calls.items():
            call_id = self._writer.recorded_id(self._stream.user_id, stored_id)
            if call_id not in names:  # a call of a parent, whose event stays
                value: Any = {"tool_name": call.tool_name}
                clean: Any = self._writer.redactor.value(value)[0]
                names[call_id] = str(clean["tool_name"])
            calls[call_id] = call._replace(tool_name=names[call_id])
        return state._replace(open_calls=calls)

    def record(self, event: RedactionApplied) -> chokepoint.RedactedEvent:
        """Return the event that records the replacements, with their figures."""
        types: Counter[str] = Counter()
        rules_before: set[str] = set()
        blobs = 0
        for seq in event.seqs:
            replacement = self._replacements[event.stream, seq]
            types += replacement.types
            rules_before.add(replacement.rules_before)
            blobs += replacement.blobs
        update = {
            "rules": self._writer.redactor.rule_set,
            "rules_before": tuple(sorted(rules_before)),
            "types": dict(sorted(types.items())),
            "blobs": blobs,
        }
        draft = Draft(event.model_copy(update=update))
        return redact_replacement(self._writer, draft, self._stream.user_id)


class Overtaken(Exception):
    """Another process numbered values, so the session must be searched again."""


def redact_replacement(
    writer: Writer, draft: Draft, user_id: str, tag: Tagger | None = None
) -> chokepoint.RedactedEvent:
    """Redact an event that replaces another one.

    Its limit is twice that of a new event, because a placeholder may be longer than its
    value.
    """
    limits = Limits(writer.limits.leaf_bytes, writer.limits.event_bytes * 2)
    return writer.redacted(
        draft, user_id=user_id, now=writer.clock(), limits=limits, tag=tag
    )


def recheck(store: Any, info: SessionInfo, _: object) -> Rechecked:
    """Search a session with the current rules; changes nothing."""
    writer: Writer = store.writer
    stream = StreamId(info.user_id, info.session_id, MAIN)
    rechecker = Rechecker(writer, stream)
    try:
        unfinished = bool(writer.log.count_old_keys(stream))
        exposures = rechecker.run()
    except _UNREADABLE as error:
        return Rechecked(info, rechecker.events, [], problem=str(error))
    return Rechecked(info, rechecker.events, exposures, unfinished=unfinished)


def reredact(store: Any, info: SessionInfo, _: object) -> Rechecked:
    """Replace the values that the current rules find in a session.

    It also completes an earlier redaction that was interrupted, and drops the views of
    other sessions that contain the values.
    """
    writer: Writer = store.writer
    stream = StreamId(info.user_id, info.session_id, MAIN)
    for _ in range(_REDACTION_TRIES):
        rechecker = Rechecker(writer, stream)
        exposures: list[Exposure] = []
        rewritten = None
        try:
            writer.log.destroy_old_keys(stream)
            exposures = rechecker.run()
            now = writer.clock()
            if exposures:
                rewritten = writer.log.rewrite(stream, rechecker, now=now)
        except Overtaken:
            continue
        except _UNREADABLE as error:
            return Rechecked(info, rechecker.events, exposures, problem=str(error))
        if rewritten is not None:
            live: list[SessionInfo] = []
            for session in writer.log.sessions(info.user_id):
                if session.status != "erased":
                    live.append(session)
            names = with_forks(writer, live, info.user_id, [info.session_id])
            for name in (USER_SESSION, *names):
                writer.log.drop_views(info.user_id, name)
        return Rechecked(info, rechecker.events, exposures, rewritten)
    return Rechecked(info, 0, [], problem="others append all the time: try again later")


def with_forks(
    writer: Writer, sessions: Iterable[SessionInfo], user_id: str, names: Iterable[str]
) -> set[str]:
    """Return these sessions of a user with all of their forks, and forks of those.

    Forks with destroyed keys are left out; their rows come from a restored backup.
    """
    parents: dict[str, str] = {}
    for info in sessions:
        try:
            state = writer.log.head(StreamId(user_id, info.session_id)).state
        except errors.Erased:
            continue
        if state.forked_from is not None:
            parents[info.session_id] = state.forked_from[0]
    family = set(names)
    while True:
        forks: set[str] = set()
        for fork, parent in parents.items():
            if parent in family and fork not in family:
                forks.add(fork)
        if not forks:
            return family
        family |= forks
