"""A session's events with those it was forked from before them, in one numbering.

A session's own events keep their seq.  Those of the session it was forked from come
before: the last one it shares is 0, the one before -1, and so on, through any number
of forks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from refold.domain.envelope import Envelope
from refold.domain.events import Fork, Span
from refold.domain.ids import StreamId
from refold.domain.ports import PAGE, EventLog
from refold.domain.session import SessionState, evolve
from refold.projections.context.lineage import inherited

# As many events as stay in a processor's cache while they are opened and folded: with
# pages of a thousand that takes half as long again.
_AT_ONCE: Final = 100


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
    missing = [
        (first, last)
        for first, last in spans
        if not all(seq in at_hand for seq in range(first, last + 1))
    ]
    if missing:
        read = log.read(stream, spans=missing)
        at_hand |= {envelope.seq: envelope for envelope in read}
    return [
        at_hand[seq]
        for first, last in spans
        for seq in range(first, last + 1)
        if seq in at_hand
    ]


def folded(log: EventLog, stream: StreamId, upto: int | None = None) -> SessionState:
    """What a stream accepts next, folded from its events alone."""
    state = SessionState(stream)
    for envelope in History(log, stream).events(upto=upto):
        if isinstance(envelope.payload, Fork) and envelope.seq == 1:
            state = born(log, stream, envelope.payload)
        state = evolve(state, envelope.payload)
    return state


def born(log: EventLog, stream: StreamId, fork: Fork) -> SessionState:
    """What a fork starts from: the calls that were open where it was made."""
    parent = stream._replace(session_id=fork.session_id)
    calls = folded(log, parent, upto=fork.at_seq).open_calls
    origin = (fork.session_id, fork.at_seq)
    return SessionState(stream, 0, calls, forked_from=origin)
