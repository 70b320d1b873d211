"""Questions to a human: asked by rules over a session's events, and decided once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from refold.domain.envelope import Envelope, Meta
from refold.domain.errors import (
    AlreadyDecided,
    CorruptEvent,
    Erased,
    IdempotencyConflict,
    InvalidEvent,
    KeyUnavailable,
    SessionNotFound,
)
from refold.domain.events import HumanReview
from refold.domain.ids import StreamId, bounded, check_id, check_session_id
from refold.domain.ports import EventLog, Head
from refold.domain.record import Draft
from refold.projections.review.questions import (
    DECISIONS,
    NOTE,
    Decision,
    Review,
    reviews_of,
    urgency,
)
from refold.store.paging import read_on
from refold.store.writing import Order, Receipt, Writer

if TYPE_CHECKING:
    from refold.projections.review.rules import ReviewRules
    from refold.store.asking import Reviewed

_TYPE: Final = "hitl"


class Unreadable(NamedTuple):
    """A session whose questions cannot be read, and why."""

    user_id: str
    session_id: str
    error: CorruptEvent | KeyUnavailable


class Reviews(list[Review]):
    """Questions to a human; ``unreadable`` are the sessions that may have more."""

    def __init__(
        self, found: Iterable[Review] = (), unreadable: Iterable[Unreadable] = ()
    ) -> None:
        super().__init__(found)
        self.unreadable = tuple(unreadable)


class AsksHumans:
    """The part of a session that asks a human, and takes the decision."""

    __slots__ = ()
    stream: StreamId
    writer: Writer

    def review(self, rules: ReviewRules | None = None) -> Reviewed:
        """Ask a human, by ``hitl`` events, what the rules say is to be asked.

        What was asked already is not asked again, whoever asked it, and under whatever
        figures of the rule.

        rules: left out, those that are shipped.

        Raises SessionNotFound, and what an append raises: SessionClosed, Frozen …
        """
        # Who never asks a human need not wait for what it takes to.
        from refold.store.asking import ask

        return ask(self.writer, self._begun(), rules)

    def decide(
        self, seq: int, decision: Decision, *, by: str, note: str = ""
    ) -> Receipt:
        """Record what a human decided on the question at ``seq``.

        decision: ``accept``: the agent's work was right; ``reject``: it was wrong;
                  ``corrected``: a human mended it; ``dismissed``: it need not be said.
        by:       who decided; redacted, like all that is stored, and so is the note.

        Raises SessionNotFound, InvalidEvent for another decision and where no question
        is, AlreadyDecided where there is a decision, and what an append raises.
        """
        if decision not in DECISIONS:
            raise InvalidEvent(f"a decision is one of {', '.join(DECISIONS)}")
        if not isinstance(by, str) or not by.strip():
            raise InvalidEvent("by says who decided: a name or a role")
        if not isinstance(note, str):
            raise InvalidEvent("a note is a text")
        self._begun()
        asked = self._question(seq)
        event = HumanReview(
            trigger=asked.trigger,
            severity=asked.severity,
            decision=decision,
            decided_by=by,
            refers_to=asked.seq,
        )
        meta = Meta.of({NOTE: note} if note else None)
        order = Order(
            self.stream, (Draft(event, meta=meta),), f"refold.decision/{asked.seq}"
        )
        try:
            receipt = self.writer.append(order)
        except IdempotencyConflict as earlier:
            raise AlreadyDecided(seq, decided_at=earlier.first_seq) from None
        if receipt.duplicate:
            raise AlreadyDecided(seq, decided_at=receipt.first_seq)
        return receipt

    def _begun(self) -> Head:
        head = self.writer.log.head(self.stream)
        if head.seq == 0:
            raise SessionNotFound(self.stream.user_id, self.stream.session_id)
        return head

    def _question(self, seq: int) -> Review:
        if type(seq) is not int:
            raise InvalidEvent("seq says which question: a whole number")
        seq = bounded("seq", seq)
        found = reviews_of(_reviews(self.writer.log, self.stream, after=seq - 1))
        if not found or found[0].seq != seq:
            raise InvalidEvent(
                f"seq {seq} of the session is no question to a human: "
                "`refold review list` names those there are"
            )
        decided = found[0].decided
        if decided is not None:
            raise AlreadyDecided(seq, decided_at=decided.seq)
        return found[0]


class ListsReviews:
    """The part of a store that lists what humans were asked."""

    log: EventLog

    def reviews(
        self,
        user_id: str | None = None,
        session_id: str | None = None,
        *,
        open_only: bool = True,
    ) -> Reviews:
        """The questions to a human, the gravest first, then those that wait longest.

        A session that cannot be read is left out, and stands in ``unreadable``.

        open_only: only those that can be decided, and were not.
        """
        if user_id is not None:
            check_id("user_id", user_id)
        if session_id is not None:
            check_session_id(session_id)
        found: list[Review] = []
        unreadable: list[Unreadable] = []
        for info in self.log.sessions(user_id, session_id=session_id):
            if info.status == "erased" or info.session_id.startswith("_"):
                continue
            closed = info.status in ("closed", "frozen-closed")
            stream = StreamId(info.user_id, info.session_id)
            try:
                found += reviews_of(_reviews(self.log, stream), closed=closed)
            except Erased:
                continue  # meanwhile
            except (CorruptEvent, KeyUnavailable) as error:
                unreadable.append(Unreadable(*stream[:2], error))
        wanted = [one for one in found if one.is_open] if open_only else found
        return Reviews(sorted(wanted, key=urgency), unreadable)


def _reviews(log: EventLog, stream: StreamId, *, after: int = 0) -> Iterator[Envelope]:
    return read_on(log, stream, after=max(after, 0), types=(_TYPE,))
