"""Writing heads anew, and deleting blobs that no event names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from refold.adapters.blobs import Blobs
from refold.adapters.heads import sealed_head
from refold.adapters.recorder import HeadRow
from refold.adapters.sealing import cut_from
from refold.domain.ids import StreamId
from refold.domain.mending import Scanned
from refold.domain.ports import PAGE, Head

if TYPE_CHECKING:
    from refold.adapters.log import SealedLog


class MendingRows(Protocol):
    """What a database does for a repair, each in a transaction of its own."""

    def put_head(self, stream: StreamId, row: HeadRow, user_ref: str) -> bool:
        """Write the row if the stream's last event is the one that it names.

        Nothing is written of a user who is frozen, or is being erased.
        """
        ...

    def ends(self, stream: StreamId) -> dict[str, int]:
        """The seq of the head of each stream of the session."""
        ...

    def blob_addresses(self, stream: StreamId) -> list[bytes]:
        """Where the blobs of the session alone are."""
        ...

    def delete_blobs(
        self, stream: StreamId, addresses: tuple[bytes, ...], ends: dict[str, int]
    ) -> bool:
        """Delete them if the heads still are where ``ends`` says."""
        ...


@dataclass(frozen=True, slots=True)
class SealedMends:
    """Mends of a log of sealed rows."""

    log: SealedLog
    rows: MendingRows

    def put_head(self, stream: StreamId, head: Head) -> bool:
        """Let the stream's head row say this."""
        user_id, session_id, _ = stream
        self.log.keys.refuse_erased(user_id, session_id)
        key = self.log.keys.session(user_id, session_id, now=None)
        row = HeadRow(
            seq=head.seq,
            hash=head.hash,
            status=head.status,
            state=b"",
            key_check=key.check,
            tokens=head.tokens,
            created_at=head.created_at,
            updated_at=head.updated_at,
        )
        sealed = sealed_head(row, head.state, key)
        return self.rows.put_head(stream, sealed, self.log.keys.user_ref(user_id))

    def unnamed_blobs(self, stream: StreamId) -> Scanned:
        """The blobs of the session that none of its events names."""
        ends = self.rows.ends(stream)
        addresses = self.rows.blob_addresses(stream)
        if not addresses:
            return Scanned(ends, ())
        named = {address for name in ends for address in self._named(stream, name)}
        return Scanned(ends, tuple(a for a in addresses if a not in named))

    def _named(self, stream: StreamId, name: str) -> set[bytes]:
        blobs = Blobs(self.log.recorder, self.log.keys, stream.main)
        one, after, named = stream._replace(stream=name), 0, set[bytes]()
        while rows := self.log.recorder.rows(one, after=after, limit=PAGE):
            after = rows[-1].seq
            for row in rows:
                named.update(map(blobs.address, cut_from(self.log.content(row))))
        return named

    def drop_blobs(self, stream: StreamId, scanned: Scanned) -> bool:
        """Delete these, if the session stands as it stood."""
        return self.rows.delete_blobs(stream, scanned.addresses, scanned.ends)
