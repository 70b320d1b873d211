"""What a log takes: an event that passed redaction, and the texts cut from it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from refold.domain.events import JsonObject


class Blob(NamedTuple):
    """A whole redacted text that was too long for its event; ``sha256`` in hex."""

    sha256: str
    data: bytes


class Recordable(Protocol):
    """An event that passed redaction and the size guard, ready to be sealed.

    ``ts`` is in microseconds since 1970 in UTC.  Only redaction makes these; a log
    refuses anything else.
    """

    @property
    def type(self) -> str: ...
    @property
    def schema_version(self) -> int: ...
    @property
    def ts(self) -> int: ...
    @property
    def token_estimate(self) -> int: ...
    @property
    def content(self) -> JsonObject: ...
    @property
    def blobs(self) -> tuple[Blob, ...]: ...
