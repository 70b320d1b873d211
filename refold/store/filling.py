"""What the size guard moved, back in its place: for models, and working memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pydantic import BaseModel

from refold.domain.envelope import Envelope
from refold.domain.errors import CorruptEvent, Expired
from refold.domain.events import Request, event_of
from refold.domain.ids import StreamId
from refold.domain.ports import EventLog
from refold.projections.context.extras import Extras
from refold.redaction.guard import STUB_MARK, filled, restored


def with_blobs(log: EventLog, envelope: Envelope) -> Envelope:
    """The event as it was before its base64 was moved; as it is if it has none.

    The blob is read from the session that the event is of, which for a fork may be a
    parent.  Texts that were cut because they were too long stay cut, and so does what
    has expired.

    Raises CorruptEvent where a blob is not what was written.
    """
    if isinstance(envelope.payload, Request):  # no message, and all of it in blobs
        return envelope
    if not _has_stub(envelope.payload):
        return envelope
    payload = envelope.payload.payload()
    whole = filled(payload, partial(_left, log, envelope.stream_id.main))
    if whole == payload:
        return envelope
    event = event_of(envelope.type, whole)
    return envelope.model_copy(update={"payload": event})


def _left(log: EventLog, stream: StreamId, sha256: str) -> bytes | None:
    try:
        return log.blob(stream, sha256)
    except Expired:
        return None


def _has_stub(payload: BaseModel) -> bool:
    """Whether a stub may be in it: most events have none, and a context reads many."""
    parts: list[object] = [*payload.__dict__.values()]
    for part in parts:  # which grows meanwhile
        if isinstance(part, str):
            if STUB_MARK in part:
                return True
        elif isinstance(part, list | tuple):
            parts.extend(part)
        elif isinstance(part, dict | Mapping):
            parts.extend(part)
            parts.extend(part.values())
        elif isinstance(part, BaseModel):
            parts.extend(part.__dict__.values())
    return False


def handed_in(log: EventLog, stream: StreamId, request: Request) -> Extras:
    """What a caller handed in with a request that is recorded in ``stream``.

    Raises CorruptEvent where a blob of it is missing or not what was written.
    """
    whole = restored({**request.handed}, partial(log.blob, stream.main))
    texts = {name: str(text) for name, text in whole.items()}
    try:
        return Extras.load(texts, request.window_tokens)
    except ValueError:
        reason = "what was handed in is not there whole"
        raise CorruptEvent("a request", seq=0, reason=reason) from None
