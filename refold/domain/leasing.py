"""The port of leases: who may compact what, for a time."""

from __future__ import annotations

from typing import Protocol

from refold.domain.ids import StreamId


class Leases(Protocol):
    """Who may compact what, for a time: at most one owner a derived stream.

    A lease saves the work of being second; that only one compaction takes effect is
    up to the stream's compare-and-set.  Times are in microseconds since 1970.
    """

    def take_lease(self, stream: StreamId, owner: str, *, now: int, until: int) -> bool:
        """Have ``owner`` hold the stream's lease, if it is free at ``now``.

        It is free if nobody holds it, or its holder had it until ``now`` at most.
        Otherwise the request is remembered: its holder learns of it in the end.  A
        session that is not there, or erased, has no leases.
        """
        ...

    def renew_lease(self, stream: StreamId, owner: str, *, until: int) -> bool:
        """Hold it longer; False if ``owner`` does not hold it any more."""
        ...

    def release_lease(self, stream: StreamId, owner: str) -> bool:
        """Give it back if it is still held; True if others asked for it meanwhile."""
        ...
