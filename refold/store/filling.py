"""Events with the base64 that the size guard moved: for models, and working memory."""

from __future__ import annotations

from functools import partial

from refold.domain.envelope import Envelope
from refold.domain.events import event_of
from refold.domain.ports import EventLog
from refold.redaction.guard import STUB_MARK, filled


def with_blobs(log: EventLog, envelope: Envelope) -> Envelope:
    """The event as it was before its base64 was moved; as it is if it has none.

    The blob is read from the session that the event is of, which for a fork may be a
    parent.  Texts that were cut because they were too long stay cut.

    Raises CorruptEvent where a blob is not what was written.
    """
    # As text, which is quick: most events have no stub, and a context reads many.
    if STUB_MARK not in envelope.payload.model_dump_json(warnings=False):
        return envelope
    payload = envelope.payload.payload()
    whole = filled(payload, partial(log.blob, envelope.stream_id.main))
    if whole == payload:
        return envelope
    event = event_of(envelope.type, whole)
    return envelope.model_copy(update={"payload": event})
