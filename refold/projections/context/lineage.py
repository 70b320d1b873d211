"""A parent's events as the context of its fork counts them: up to seq 0."""

from __future__ import annotations

from refold.domain.envelope import Envelope
from refold.domain.events import HumanReview, Pin, Request


def inherited(envelope: Envelope, *, at_seq: int) -> Envelope:
    """The parent's event with its seq, and the seqs it names, counted from the fork.

    ``at_seq``, where the session was forked, becomes 0; the child's own begin at 1.
    """
    payload = envelope.payload
    match payload:
        case Pin(seqs=seqs):
            shifted = tuple(seq - at_seq for seq in seqs)
            payload = payload.model_copy(update={"seqs": shifted})
        case Request(through_seq=through):
            payload = payload.model_copy(update={"through_seq": through - at_seq})
        case HumanReview(refers_to=int(seq)):
            payload = payload.model_copy(update={"refers_to": seq - at_seq})
    update = {"seq": envelope.seq - at_seq, "payload": payload}
    return envelope.model_copy(update=update)
