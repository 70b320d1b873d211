"""The history of a session: its own events, after those that it was forked from.

A session's own events keep their seq.  The last event that it shares with its parent
has seq 0, the one before it -1, and so on, through any number of forks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from refold.domain import events
from refold.domain.envelope import Envelope
from refold.domain.errors import CorruptEvent, Erased, Expired
from refold.domain.events import Span
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import PAGE, EventLog
from refold.domain.session import SessionState, evolve
from refold.domain.stubs import Read, digests_in
from refold.projections.context.budget import CrossSessionLayers, Extras
from refold.projections.context.compaction import note_lines, summary_text
from refold.projections.context.edits import Edit, edits_in
from refold.projections.context.strategy import user_text
from refold.projections.context.text import cut_around_placeholders, cut_middle
from refold.projections.context.units import spans_of
from refold.redaction.guard import filled, restored
from refold.store.vault import escape_placeholders

# The number of events in a page that is folded.  So many events stay in the processor's
# cache while they are decrypted and folded.  Folding pages of 1,000 takes 1.5 times as
# long.
_FOLD_PAGE: Final = 100
_Kind = TypeVar("_Kind", bound=events.Event)


def renumbered_for_fork(envelope: Envelope, *, at_seq: int) -> Envelope:
    """Return a parent's event as the fork numbers it.

    This changes its seq, and each seq that its payload refers to.

    at_seq: the seq at which the session was forked; the fork numbers it 0.
    """
    payload = envelope.payload
    renumbered: dict[str, Any] = {}
    match payload:
        case events.ProviderEdit() as edit if edit.spans:
            for name in ("left_out", "restored", "cleared", "in_place"):
                spans: tuple[Span, ...] = getattr(edit, name)
                renumbered[name] = tuple(
                    (first - at_seq, last - at_seq) for first, last in spans
                )
        case events.Pin(seqs=seqs):
            renumbered["seqs"] = tuple(seq - at_seq for seq in seqs)
        case events.Request(through_seq=through):
            renumbered["through_seq"] = through - at_seq
        case events.HumanReview(refers_to=int(seq)):
            renumbered["refers_to"] = seq - at_seq
    if renumbered:
        payload = payload.model_copy(update=renumbered)
    update = {"seq": envelope.seq - at_seq, "payload": payload}
    return envelope.model_copy(update=update)


@dataclass(frozen=True, slots=True)
class History:
    """The events of a session and of its ancestors.

    forked_at:      the last seq of the parent that the session shares.
    newest_request: the seq of the session's last request; 0 if it has none.
    """

    log: EventLog
    stream: StreamId
    parent: History | None = None
    forked_at: int = 0
    newest_request: int = 0

    @classmethod
    def of(cls, log: EventLog, state: SessionState) -> History:
        """Return the history of a session, after reading the head of each ancestor.

        state: the state of the session at its head.
        """
        if state.forked_from is None:
            return cls(log, state.stream, newest_request=state.last_request)
        session_id, forked_at = state.forked_from
        parent = log.head(state.stream._replace(session_id=session_id)).state
        return cls(
            log,
            state.stream,
            parent=cls.of(log, parent),
            forked_at=forked_at,
            newest_request=state.last_request,
        )

    def events(
        self,
        *,
        after: int | None = None,
        upto: int | None = None,
        first_page: Sequence[Envelope] | None = None,
    ) -> Iterator[Envelope]:
        """Yield the events with ``after < seq <= upto``, oldest first, read in pages.

        first_page: the first page of the session's own events, which ``log.read``
                    returned for this ``after`` and ``upto`` with the limit ``PAGE``.
                    None reads it.
        """
        if self.parent is not None and (after is None or after < 0):
            last = self._last_of_parent(upto)
            parent_after = None if after is None else after + self.forked_at
            for envelope in self.parent.events(after=parent_after, upto=last):
                yield renumbered_for_fork(envelope, at_seq=self.forked_at)
        position = max(after or 0, 0)
        while upto is None or upto > position:
            if first_page is not None:
                page = first_page
                limit = PAGE
                first_page = None
            else:
                limit = _FOLD_PAGE
                page = self.log.read(
                    self.stream, after=position, upto=upto, limit=limit
                )
            yield from page
            if len(page) < limit:
                return
            position = page[-1].seq

    def edits(self, *, upto: int | None = None) -> tuple[Edit, ...]:
        """Read the client's edits of its context with ``seq <= upto``."""
        edits: tuple[Edit, ...] = ()
        if self.parent is not None:
            last = self._last_of_parent(upto)
            for edit in self.parent.edits(upto=last):
                edits += (edit.renumbered(at_seq=self.forked_at),)
        if upto is None or upto > 0:
            types = ("provider_edit",)
            edits += edits_in(read_pages(self.log, self.stream, upto=upto, types=types))
        return edits

    def _last_of_parent(self, upto: int | None) -> int:
        """Return the parent's last seq in the history of the fork up to ``upto``."""
        if upto is None:
            return self.forked_at
        return min(self.forked_at, upto + self.forked_at)

    def read_spans(
        self, spans: Sequence[Span], already_read: Iterable[Envelope] = ()
    ) -> list[Envelope]:
        """Read the events of ``spans``, which are in order and do not overlap.

        already_read: events of the session itself that need not be read again.
        """
        envelopes: list[Envelope] = []
        own: list[Span] = []
        for first, last in spans:
            if first < 1:
                envelopes += self.events(after=first - 1, upto=min(last, 0))
            if last >= 1:
                own.append((max(first, 1), last))
        return envelopes + read_spans(self.log, self.stream, own, already_read)


def read_spans(
    log: EventLog,
    stream: StreamId,
    spans: Sequence[Span],
    already_read: Iterable[Envelope] = (),
) -> list[Envelope]:
    """Read the events of ``spans``, which are in order.

    Events that do not exist are left out.

    already_read: events of the stream that were read before.  A span is read again
                  unless all of its events are among them.
    """
    by_seq = {envelope.seq: envelope for envelope in already_read}
    wanted: list[int] = []
    missing: list[Span] = []
    for first, last in spans:
        seqs = range(first, last + 1)
        wanted += seqs
        if not all(map(by_seq.__contains__, seqs)):
            missing.append((first, last))
    if missing:
        for envelope in log.read(stream, spans=missing):
            by_seq[envelope.seq] = envelope
    return [by_seq[seq] for seq in wanted if seq in by_seq]


def fold_session(
    log: EventLog, stream: StreamId, upto: int | None = None
) -> SessionState:
    """Fold the state of a stream from its events, without its stored head."""
    state = SessionState(stream)
    for envelope in History(log, stream).events(upto=upto):
        if isinstance(envelope.payload, events.Fork) and envelope.seq == 1:
            state = forked_state(log, stream, envelope.payload)
        state = evolve(state, envelope.payload)
    return state


def forked_state(log: EventLog, stream: StreamId, fork: events.Fork) -> SessionState:
    """Return the state of a new fork, which has the parent's open calls at that seq."""
    parent = stream._replace(session_id=fork.session_id)
    calls = fold_session(log, parent, upto=fork.at_seq).open_calls
    return SessionState(
        stream,
        head_seq=0,
        open_calls=calls,
        forked_from=(fork.session_id, fork.at_seq),
    )


def read_pages(
    log: EventLog,
    stream: StreamId,
    *,
    after: int = 0,
    upto: int | None = None,
    types: Sequence[str] = (),
    progress: Callable[[], object] | None = None,
) -> Iterator[Envelope]:
    """Yield the events with ``after < seq <= upto`` in order, read in pages.

    types:    only events of these types; empty means all types.
    progress: called after each page was read.
    """
    while True:
        page = log.read(stream, after=after, upto=upto, limit=PAGE, types=types)
        if progress is not None:
            progress()
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].seq


def with_blobs(log: EventLog, envelope: Envelope) -> Envelope:
    """Return the event with texts in place of stubs, as ``WithBlobs`` does."""
    return WithBlobs.read(log, [envelope]).events[0]


class WithBlobs(NamedTuple):
    """Events in the form that a model gets, and the blobs that they name.

    The size guard moves every base64 text to a blob, and leaves a stub in the event.

    events: the events, in which each base64 text within the limit of the size guard is
            back in place of its stub.  Texts that were cut for their length, and blobs
            that have expired, stay stubs.
    blobs:  the bytes by SHA-256, for images and documents over the limit.
    """

    events: list[Envelope]
    blobs: Mapping[str, bytes] = MappingProxyType({})

    @classmethod
    def read(cls, log: EventLog, envelopes: Iterable[Envelope]) -> WithBlobs:
        """Read the blobs of events, in one round trip for each session.

        A blob is read from the session of its event, which may be a parent of a fork.

        Raises CorruptEvent if a blob is damaged.
        """
        shown = list(envelopes)
        # The digests of blobs by session.  A dict keeps each digest once, in order.
        digests_by_session: dict[StreamId, dict[str, None]] = {}
        with_stubs: set[int] = set()  # the indexes of events with stubs
        for index, envelope in enumerate(shown):
            # A model never gets requests, and reading them would load all their blobs.
            if envelope.type == "request":
                continue
            digests = dict.fromkeys(digests_in(envelope.payload))
            if digests:
                with_stubs.add(index)
                session = envelope.stream_id.main
                digests_by_session.setdefault(session, {}).update(digests)
        if not with_stubs:
            return cls(shown)
        blobs: dict[str, bytes] = {}
        for session, named in digests_by_session.items():
            blobs.update(log.blobs(session, named))
        for index in with_stubs:
            shown[index] = _with_texts(shown[index], blobs.get)
        return cls(shown, blobs)


def _with_texts(envelope: Envelope, read: Read) -> Envelope:
    """Return the event with texts in place of their stubs."""
    payload = envelope.payload.payload()
    complete = filled(payload, read)
    if complete == payload:
        return envelope
    event = events.event_of(envelope.type, complete)
    return envelope.model_copy(update={"payload": event})


def read_extras(log: EventLog, stream: StreamId, request: events.Request) -> Extras:
    """Read the parts of the context that a caller passed with a recorded request.

    Raises CorruptEvent if the parts are damaged.  Raises Expired if a text of a memory
    layer is gone, or a session that a line of the profile cites.
    """
    parts = restored({**request.handed}, partial(log.blob, stream.main))
    texts = {name: str(text) for name, text in parts.items()}
    try:
        extras = Extras.load(texts, request.window_tokens)
        if extras.layers is not None:
            refs = extras.layers.refs
            _check_cited(log, stream.user_id, refs)
            layers = CrossSessionLayers(
                refs, read_layer_texts(log, stream.user_id, refs)
            )
            extras = replace(extras, layers=layers)
    except (ValueError, TypeError, KeyError):
        reason = "the caller's parts of the context are incomplete"
        raise CorruptEvent("a request", seq=0, reason=reason) from None
    return extras


def _check_cited(log: EventLog, user_id: str, refs: events.JsonObject) -> None:
    """Raise Expired if a session that a line of the profile cites is erased."""
    cited: Any = refs.get("cited", [])
    for session_id in cited:
        try:
            has_events = log.head(StreamId(user_id, session_id)).seq > 0
        except Erased:
            has_events = False
        if not has_events:
            raise Expired("of another session, which the profile cited,")


# An answer shown in place of a session's summary is cut to this many characters.
_MOST_ANSWER_CHARACTERS: Final = 1_000


def read_layer_texts(
    log: EventLog, user_id: str, refs: events.JsonObject
) -> tuple[tuple[str, str], ...]:
    """Read the texts of memory layers from the user's other sessions: (layer, text).

    The keys of ``refs`` are:

    about:  lines of the user's profile, as texts.  ``items`` and ``cited`` name the
            items and sessions that the lines come from, and are not read here.
    user:   session id and seqs of events, which set facts about the user.
    notes:  session id and seqs of events with notes.
    scope:  session id, stream and seq of a summary or an answer.
    whole_placeholders: true if a long answer is never cut inside a placeholder.
            Earlier versions did not record the key, and cut anywhere.

    Raises Expired if an event of ``user``, ``notes`` or ``scope``, or its session, is
    erased.
    """
    places: Any = refs  # JSON whose form the docstring gives

    def read(session_id: str, seqs: Sequence[int], name: str = MAIN) -> list[Envelope]:
        try:
            stream = StreamId(user_id, session_id, name)
            envelopes = log.read(stream, spans=spans_of(seqs))
        except Erased:
            envelopes = []
        if len(envelopes) < len(seqs):
            raise Expired("of another session, which a memory layer showed,")
        return envelopes

    facts: list[Envelope] = []
    for session_id, seqs in places["user"]:
        facts += read(session_id, seqs)
    lines: list[str] = []
    for session_id, seqs in places["notes"]:
        for envelope in read(session_id, seqs):
            lines += note_lines(envelope)
    about = [text for text in (*places["about"], user_text(facts)) if text]
    texts = [("user", "\n".join(about))]
    cut = cut_around_placeholders if places.get("whole_placeholders") else cut_middle
    for session_id, name, seq in places["scope"]:
        for envelope in read(session_id, [seq], name):
            texts.append(("scope", summary_or_answer(envelope, cut)))
    texts.append(("notes", "\n".join(lines)))
    return tuple((layer, escape_placeholders(text)) for layer, text in texts if text)


def summary_or_answer(
    envelope: Envelope, cut: Callable[[str, int], str] = cut_around_placeholders
) -> str:
    """Return the text of a summary, or the beginning and the end of an answer.

    cut: shortens an answer to a number of characters.
    """
    event = envelope.payload
    if isinstance(event, events.Summary):
        return summary_text(event)
    return cut(str(getattr(event, "text", "")), _MOST_ANSWER_CHARACTERS)


def with_whole_texts(log: EventLog, envelope: Envelope, kind: type[_Kind]) -> _Kind:
    """Return an event with all texts that the size guard moved to blobs."""
    read = partial(log.blob, envelope.stream_id.main)
    return kind.model_validate(restored(envelope.payload.payload(), read))


def merge_derived(
    main: Iterable[Envelope], derived: Iterable[Envelope], after: int
) -> Iterator[Envelope]:
    """Merge events of the main stream with entries of derived streams.

    An entry comes right after the event of its ``decided_at_seq``.  Entries without a
    ``decided_at_seq`` come last.

    after: leave out entries that were decided at this seq or before.
    """
    entries = [entry for entry in derived if _decided_at(entry) > after]
    entries.sort(key=lambda entry: (_decided_at(entry), entry.stream, entry.seq))
    pending = deque(entries)
    for envelope in main:
        while pending and _decided_at(pending[0]) < envelope.seq:
            yield pending.popleft()
        yield envelope
    yield from pending


def _decided_at(entry: Envelope) -> float:
    """Return the seq at which an entry was decided; infinity if it has none."""
    seq = getattr(entry.payload, "decided_at_seq", None)
    return inf if seq is None else seq


def fold_state(state: events.JsonObject, envelope: Envelope) -> events.JsonObject:
    """Return the working memory after this event.

    If one event both unsets and sets a key, the key is set.
    """
    update = envelope.payload
    if not isinstance(update, events.StateUpdate):
        return state
    still_set = {key: value for key, value in state.items() if key not in update.unset}
    return {**still_set, **update.set}
