"""Stubs: the lines in an event that replace text which is in a blob."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from pydantic import BaseModel

STUB_SIGN: Final = "\n[refold: "
# The part of the sign that JSON also contains, where the line break is escaped.
STUB_MARK: Final = STUB_SIGN.strip()
_STUB: Final = re.compile(
    r"\n\[refold: [0-9]+ of [0-9]+ bytes left out here; "
    r'whole text: session\.blob\("(?P<sha256>[0-9a-f]{64})"\)\]\n'
)
# Returns the blob of a SHA-256 in hex, or None.
Read: TypeAlias = Callable[[str], bytes | None]


def no_blobs(sha256: str) -> None:
    """Return None: there are no blobs."""


def whole(text: str, read: Read) -> str:
    """Return the whole text for one that was cut; ``text`` if no blob belongs to it."""
    for stub in _STUB.finditer(text):
        data = read(stub["sha256"])
        if data is None or hashlib.sha256(data).hexdigest() != stub["sha256"]:
            continue
        original = data.decode("utf-8", "surrogatepass")
        head = text[: stub.start()]
        tail = text[stub.end() :]
        if original.startswith(head) and original.endswith(tail):
            return original
    return text


def digests_in(payload: BaseModel) -> Iterator[str]:
    """Yield the SHA-256 of each blob that a stub in an event names.

    Most events have none, and a context reads many events, so this must be quick.
    """
    parts: list[object] = [*payload.__dict__.values()]
    for part in parts:  # the loop adds the parts of each part to the end
        if type(part) is str:
            if STUB_MARK in part:
                for stub in _STUB.finditer(part):
                    yield stub["sha256"]
        elif not part:
            continue
        elif isinstance(part, list | tuple):
            parts.extend(part)
        elif isinstance(part, dict | Mapping):
            parts.extend(part)
            parts.extend(part.values())
        elif isinstance(part, BaseModel):
            parts.extend(part.__dict__.values())
