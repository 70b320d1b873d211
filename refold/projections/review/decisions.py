"""Questions to a human and their decisions, put together from a session's events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from refold.domain.envelope import Envelope
from refold.domain.erasure import timestamp
from refold.domain.events import HumanReview, JsonObject

Severity: TypeAlias = Literal["low", "medium", "high", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "high", "medium", "low")
# What a human can say of what an agent did: it was right, it was wrong, it was wrong
# and is mended, it need not be said any more.
Decision: TypeAlias = Literal["accept", "reject", "corrected", "dismissed"]
DECISIONS: Final[tuple[Decision, ...]] = (
    "accept",
    "reject",
    "corrected",
    "dismissed",
)
NOTE: Final = "note"  # the key of ``meta`` that a note to a decision is kept under


class Decided(NamedTuple):
    """A decision: the event that it is, and who said what."""

    seq: int
    decision: str
    by: str | None
    note: str
    at: str


class Review(NamedTuple):
    """A question to a human, and what was decided on it if anything was.

    closed: the session takes no decision any more.
    """

    user_id: str
    session_id: str
    seq: int
    at: str
    trigger: str
    severity: Severity
    question: str
    bundle: JsonObject | None
    decided: Decided | None
    closed: bool = False

    @property
    def is_open(self) -> bool:
        """Whether a decision is waited for, and can be made."""
        return self.decided is None and not self.closed

    def to_json(self) -> JsonObject:
        """All of it."""
        found: dict[str, Any] = self._asdict()
        found["decided"] = self.decided and self.decided._asdict()
        return {**found, "open": self.is_open}


def reviews_of(events: Iterable[Envelope], *, closed: bool = False) -> list[Review]:
    """The questions among a session's events, in order; the first decision counts."""
    found: dict[int, Review] = {}
    for envelope in events:
        match envelope.payload:
            case HumanReview(decision=None) as asked:
                found[envelope.seq] = _asked(envelope, asked, closed)
            case HumanReview(refers_to=int(seq)) as said if seq in found:
                if found[seq].decided is None:
                    found[seq] = found[seq]._replace(decided=_decided(envelope, said))
    return list(found.values())


def urgency(review: Review) -> tuple[int, str, str, str, int]:
    """What to sort by so that the gravest comes first, then what waits longest."""
    place = (review.user_id, review.session_id, review.seq)
    return (SEVERITIES.index(review.severity), review.at, *place)


def asked_for(review: HumanReview) -> tuple[str, int] | None:
    """The rule and seq that a question was asked for; None if by no rule."""
    where = (review.bundle or {}).get("where")
    seq = where.get("first_seq") if isinstance(where, dict) else None
    return (review.trigger, seq) if isinstance(seq, int) else None


def _asked(envelope: Envelope, asked: HumanReview, closed: bool) -> Review:
    return Review(
        user_id=envelope.user_id,
        session_id=envelope.session_id,
        seq=envelope.seq,
        at=timestamp(envelope.at),
        trigger=asked.trigger,
        severity=asked.severity,
        question=asked.question,
        bundle=asked.bundle,
        decided=None,
        closed=closed,
    )


def _decided(envelope: Envelope, said: HumanReview) -> Decided:
    note = (envelope.meta.__pydantic_extra__ or {}).get(NOTE)
    return Decided(
        seq=envelope.seq,
        decision=said.decision or "",
        by=said.decided_by,
        note=note if isinstance(note, str) else "",
        at=timestamp(envelope.at),
    )
