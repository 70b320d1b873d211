"""The payload of an event, as the type that a test knows it to be."""

from __future__ import annotations

from typing import TypeVar

from refold.domain.envelope import Envelope
from refold.domain.events import Event

Kind = TypeVar("Kind", bound=Event)


def payload(envelope: Envelope, kind: type[Kind]) -> Kind:
    """What ``envelope`` holds, which must be of ``kind``."""
    assert isinstance(envelope.payload, kind)
    return envelope.payload
