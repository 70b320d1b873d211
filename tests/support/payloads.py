"""The payload of an event, with the type that a test expects."""

from __future__ import annotations

from typing import TypeVar

from refold.domain.envelope import Envelope
from refold.domain.events import Event

Kind = TypeVar("Kind", bound=Event)


def payload(envelope: Envelope, kind: type[Kind]) -> Kind:
    """Return the payload of ``envelope``, which must be of ``kind``."""
    assert isinstance(envelope.payload, kind)
    return envelope.payload
