"""The fields of an event, and its payload with the type that a test expects."""

from __future__ import annotations

from typing import Final, TypeVar

from refold.domain.envelope import Envelope
from refold.domain.events import Event

Kind = TypeVar("Kind", bound=Event)
ENVELOPE_FIELDS: Final = [
    "event_id",
    "seq",
    "ts",
    "type",
    "user_id",
    "session_id",
    "stream",
    "request_id",
    "agent",
    "payload",
    "redacted",
    "redaction",
    "token_estimate",
    "prev_hash",
    "hash",
    "schema_version",
    "meta",
]
"""The fields of an event as JSON, in their order, which other programs rely on."""


def payload(envelope: Envelope, kind: type[Kind]) -> Kind:
    """Return the payload of ``envelope``, which must be of ``kind``."""
    assert isinstance(envelope.payload, kind)
    return envelope.payload
