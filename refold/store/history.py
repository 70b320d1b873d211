"""A session's events with those it was forked from before them, in one numbering.

A session's own events keep their seq.  Those of the session it was forked from come
before: the last one it shares is 0, the one before -1, and so on, through any number
of forks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from refold.domain import events
from refold.domain.envelope import Envelope
from refold.domain.errors import CorruptEvent, Erased, Expired
from refold.domain.events import Span
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import PAGE, EventLog
from refold.domain.session import SessionState, evolve
from refold.projections.context.budget import Elsewhere, Extras
from refold.projections.context.compaction import note_lines, summary_text
from refold.projections.context.strategy import user_text
from refold.projections.context.text import cut_middle
from refold.projections.context.units import spans_of
from refold.redaction.guard import STUB_MARK, filled, restored
from refold.store.vault import foreign

# As many events as stay in a processor's cache while they are opened and folded: with
# pages of a thousand that takes half as long again.
_AT_ONCE: Final = 100
_Kind = TypeVar("_Kind", bound=events.Event)


def inherited(envelope: Envelope, *, at_seq: int) -> Envelope:
    """The parent's event with its seq, and the seqs it names, counted from the fork.

    ``at_seq``, where the session was forked, becomes 0; the child's own begin at 1.
    """
    payload, named = envelope.payload, dict[str, Any]()
    match payload:
        case events.Pin(seqs=seqs):
            named["seqs"] = tuple(seq - at_seq for seq in seqs)
        case events.Request(through_seq=through):
            named["through_seq"] = through - at_seq
        case events.HumanReview(refers_to=int(seq)):
            named["refers_to"] = seq - at_seq
    payload = payload.model_copy(update=named) if named else payload
    update = {"seq": envelope.seq - at_seq, "payload": payload}
    return envelope.model_copy(update=update)


@dataclass(frozen=True, slots=True)
class History:
    """What a session builds on, and where it left it (``at``, in the parent's seqs)."""

    log: EventLog
    stream: StreamId
    parent: History | None = None
    at: int = 0
    newest_request: int = 0

    @classmethod
    def of(cls, log: EventLog, state: SessionState) -> History:
        """The history of the session that is in this state."""
        if state.forked_from is None:
            return cls(log, state.stream, newest_request=state.last_request)
        session_id, at = state.forked_from
        parent = log.head(state.stream._replace(session_id=session_id)).state
        return cls(log, state.stream, cls.of(log, parent), at, state.last_request)

    def events(
        self,
        *,
        after: int | None = None,
        upto: int | None = None,
        known: Sequence[Envelope] | None = None,
    ) -> Iterator[Envelope]:
        """The events with ``after < seq <= upto``, oldest first, read in pages.

        ``known`` is the first page of the session's own, if that was read already.
        """
        if self.parent is not None and (after is None or after < 0):
            last = self.at if upto is None else min(self.at, upto + self.at)
            first = None if after is None else after + self.at
            for envelope in self.parent.events(after=first, upto=last):
                yield inherited(envelope, at_seq=self.at)
        place = max(after or 0, 0)
        while upto is None or upto > place:
            page, full = known, PAGE
            if page is None:
                full = _AT_ONCE
                page = self.log.read(self.stream, after=place, upto=upto, limit=full)
            yield from page
            if len(page) < full:
                return
            place, known = page[-1].seq, None

    def spans(
        self, spans: Sequence[Span], known: Iterable[Envelope] = ()
    ) -> list[Envelope]:
        """The events of ``spans``, which are in order and do not overlap.

        ``known`` are those of the session's own that were read already.
        """
        found = [
            envelope
            for first, last in spans
            if first < 1
            for envelope in self.events(after=first - 1, upto=min(last, 0))
        ]
        own = [(max(first, 1), last) for first, last in spans if last >= 1]
        return found + in_spans(self.log, self.stream, own, known)


def in_spans(
    log: EventLog,
    stream: StreamId,
    spans: Sequence[Span],
    known: Iterable[Envelope] = (),
) -> list[Envelope]:
    """The events of ``spans``, which are in order; ``known`` ones are not read."""
    at_hand = {envelope.seq: envelope for envelope in known}
    wanted = [range(first, last + 1) for first, last in spans]
    missing = [(s[0], s[-1]) for s in wanted if not all(seq in at_hand for seq in s)]
    if missing:
        read = log.read(stream, spans=missing)
        at_hand |= {envelope.seq: envelope for envelope in read}
    return [at_hand[seq] for seqs in wanted for seq in seqs if seq in at_hand]


def folded(log: EventLog, stream: StreamId, upto: int | None = None) -> SessionState:
    """What a stream accepts next, folded from its events alone."""
    state = SessionState(stream)
    for envelope in History(log, stream).events(upto=upto):
        if isinstance(envelope.payload, events.Fork) and envelope.seq == 1:
            state = born(log, stream, envelope.payload)
        state = evolve(state, envelope.payload)
    return state


def born(log: EventLog, stream: StreamId, fork: events.Fork) -> SessionState:
    """What a fork starts from: the calls that were open where it was made."""
    parent = stream._replace(session_id=fork.session_id)
    calls = folded(log, parent, upto=fork.at_seq).open_calls
    origin = (fork.session_id, fork.at_seq)
    return SessionState(stream, 0, calls, forked_from=origin)


def read_on(
    log: EventLog,
    stream: StreamId,
    *,
    after: int = 0,
    upto: int | None = None,
    types: Sequence[str] = (),
) -> Iterator[Envelope]:
    """The events with ``after < seq <= upto``, in order; ``types`` keeps only those.

    A page that is not full is the last: nothing is asked for behind it.
    """
    full = True
    while full:
        page = log.read(stream, after=after, upto=upto, limit=PAGE, types=types)
        yield from page
        full, after = len(page) == PAGE, page[-1].seq if page else after


def with_blobs(log: EventLog, envelope: Envelope) -> Envelope:
    """The event as it was before its base64 was moved; as it is if it has none.

    The blob is read from the session that the event is of, which for a fork may be a
    parent.  Texts that were cut because they were too long stay cut, and so does what
    has expired.

    Raises CorruptEvent where a blob is not what was written.
    """
    # A request is no message, and all of it is in blobs.
    if isinstance(envelope.payload, events.Request) or not _has_stub(envelope.payload):
        return envelope

    def left(sha256: str) -> bytes | None:
        try:
            return log.blob(envelope.stream_id.main, sha256)
        except Expired:
            return None

    payload = envelope.payload.payload()
    whole = filled(payload, left)
    if whole == payload:
        return envelope
    event = events.event_of(envelope.type, whole)
    return envelope.model_copy(update={"payload": event})


def _has_stub(payload: BaseModel) -> bool:
    """Whether a stub may be in it: most events have none, and a context reads many."""
    parts: list[object] = [*payload.__dict__.values()]
    for part in parts:  # which grows meanwhile
        if type(part) is str:
            if STUB_MARK in part:
                return True
        elif not part:
            continue
        elif isinstance(part, list | tuple):
            parts.extend(part)
        elif isinstance(part, dict | Mapping):
            parts.extend(part)
            parts.extend(part.values())
        elif isinstance(part, BaseModel):
            parts.extend(part.__dict__.values())
    return False


def handed_in(log: EventLog, stream: StreamId, request: events.Request) -> Extras:
    """What was handed in with a recorded request; CorruptEvent if a blob is wrong."""
    whole = restored({**request.handed}, partial(log.blob, stream.main))
    texts = {name: str(text) for name, text in whole.items()}
    try:
        extras = Extras.load(texts, request.window_tokens)
        if extras.layers is not None:
            refs = extras.layers.refs
            told = layer_texts(log, stream.user_id, refs)
            extras = replace(extras, layers=Elsewhere(refs, told))
    except (ValueError, TypeError, KeyError):
        reason = "what was handed in is not there whole"
        raise CorruptEvent("a request", seq=0, reason=reason) from None
    return extras


_ANSWER: Final = 1_000  # characters of an answer that stands for a session


def layer_texts(
    log: EventLog, user_id: str, refs: events.JsonObject
) -> tuple[tuple[str, str], ...]:
    """What ``refs`` name in other sessions of the user, as layers tell it.

    refs: ``about``: lines of the profile, which are ``items`` of sessions ``cited``;
          ``user`` and ``notes``: session and seqs of events; ``scope``: session, stream
          and seq of a summary, or of an answer.

    Raises Expired if one of them is gone, as its session is when that was erased.
    """
    given: Any = refs

    def read(session_id: str, seqs: Sequence[int], name: str = MAIN) -> list[Envelope]:
        try:
            stream = StreamId(user_id, session_id, name)
            found = log.read(stream, spans=spans_of(seqs))
        except Erased:
            found = []
        if len(found) < len(seqs):
            raise Expired("of another session, which a memory layer showed,")
        return found

    facts = [one for place in given["user"] for one in read(*place)]
    notes = [one for place in given["notes"] for one in read(*place)]
    user = "\n".join(filter(None, (*given["about"], user_text(facts))))
    lines = [line for one in notes for line in note_lines(one)]
    digests = [
        ("scope", digest_of(one))
        for name, stream, seq in given["scope"]
        for one in read(name, [seq], stream)
    ]
    told = [("user", user), *digests, ("notes", "\n".join(lines))]
    return tuple((layer, foreign(text)) for layer, text in told if text)


def digest_of(envelope: Envelope) -> str:
    """What a summary says, or the beginning and the end of an answer."""
    event = envelope.payload
    if isinstance(event, events.Summary):
        return summary_text(event)
    return cut_middle(str(getattr(event, "text", "")), _ANSWER)


def uncut(log: EventLog, envelope: Envelope, kind: type[_Kind]) -> _Kind:
    """An event of this kind with its texts whole, whatever was cut to be stored."""
    read = partial(log.blob, envelope.stream_id.main)
    return kind.model_validate(restored(envelope.payload.payload(), read))


def merged(
    main: Iterable[Envelope], derived: Iterable[Envelope], after: int
) -> Iterator[Envelope]:
    """Both in one order: a derived entry comes behind its ``decided_at_seq``.

    Those that were decided at ``after`` or before are left out.
    """
    waiting = [entry for entry in derived if _decided_at(entry) > after]
    waiting.sort(key=lambda entry: (_decided_at(entry), entry.stream, entry.seq))
    queue = deque(waiting)
    for envelope in main:
        while queue and _decided_at(queue[0]) < envelope.seq:
            yield queue.popleft()
        yield envelope
    yield from queue


def _decided_at(entry: Envelope) -> float:
    decided = getattr(entry.payload, "decided_at_seq", None)
    return inf if decided is None else decided


def fold_state(state: events.JsonObject, envelope: Envelope) -> events.JsonObject:
    """The working memory after this event; what one event unsets and sets is set."""
    update = envelope.payload
    if not isinstance(update, events.StateUpdate):
        return state
    kept = {key: value for key, value in state.items() if key not in update.unset}
    return {**kept, **update.set}
