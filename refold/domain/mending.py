"""What can be made anew because it only repeats what the events say."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, TypeAlias

from refold.domain.events import JsonObject
from refold.domain.ids import StreamId
from refold.domain.ports import Head

Kind: TypeAlias = Literal["events", "head", "view", "blob", "key"]


class Damage(NamedTuple):
    """Something of a session that is not as it should be.

    kind:     what it is of; ``events`` are never changed.
    mendable: whether it can be made anew without losing anything.
    mended:   whether that was done.
    """

    stream: StreamId
    kind: Kind
    detail: str
    mendable: bool
    mended: bool = False

    def to_json(self) -> JsonObject:
        user_id, session_id, stream = self.stream
        return {
            "user_id": user_id,
            "session_id": session_id,
            "stream": stream,
            **{name: getattr(self, name) for name in self._fields[1:]},
        }


class Scanned(NamedTuple):
    """The blobs of a session that none of its events names, as it stood then."""

    ends: dict[str, int]
    addresses: tuple[bytes, ...]


class Mends(Protocol):
    """Writes what follows from events in place of what does not."""

    def put_head(self, stream: StreamId, head: Head) -> bool:
        """Let the stream's head row say this; False if its events end elsewhere now.

        Raises Erased, KeyUnavailable.
        """
        ...

    def unnamed_blobs(self, stream: StreamId) -> Scanned:
        """The blobs of the session that none of its events names.

        Raises CorruptEvent, KeyUnavailable: then nobody can tell.
        """
        ...

    def drop_blobs(self, stream: StreamId, scanned: Scanned) -> bool:
        """Delete these; False if the session has moved on, and nothing was deleted."""
        ...
