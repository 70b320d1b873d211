"""What an event no longer holds: values redacted from it, texts moved to blobs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from refold.domain.envelope import Envelope

# What the size guard leaves where it cut a text.
STUB: Final = re.compile(
    r"\[refold: \d+ of \d+ bytes left out here; whole text: "
    r'session\.blob\("[0-9a-f]{64}"\)\]'
)


class Marks(NamedTuple):
    """Findings by type, leaves that became stubs, and warnings by code."""

    redacted: Mapping[str, int]
    guarded: int
    warnings: tuple[str, ...]


def marks(envelope: Envelope) -> Marks:
    """What was done to this event before it was written."""
    found = envelope.redaction.get("types")
    redacted = (
        {str(kind): n for kind, n in found.items()} if isinstance(found, dict) else {}
    )
    return Marks(
        Counter({kind: n for kind, n in redacted.items() if isinstance(n, int)}),
        sum(1 for text in _texts(envelope.payload.payload()) if STUB.search(text)),
        tuple(warning.code for warning in envelope.meta.warnings),
    )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
