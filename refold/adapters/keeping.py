"""Freezes, accesses and unused sessions over a recorder and a key ring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from refold.adapters.blobs import Blobs
from refold.adapters.erasing import SealedErasures
from refold.adapters.keeping_rows import FROZEN, KeepingRows
from refold.adapters.recorder import HeadRow
from refold.domain.erasure import Job, LegalHold
from refold.domain.errors import Frozen
from refold.domain.ids import StreamId
from refold.domain.keeping import Accesses, OldBlobs, Unused


@dataclass(frozen=True, slots=True)
class SealedKeeping(SealedErasures):
    """The Keeping of a store."""

    @property
    def _kept(self) -> KeepingRows:
        return self.recorder.keeping()

    def freeze(self, user_id: str, freeze: LegalHold) -> bool:
        """Take nothing of the user from now on."""
        done = self._kept.freeze(user_id, self.keys.user_ref(user_id), freeze)
        self.recorder.flush()
        return done

    def unfreeze(self, user_id: str) -> bool:
        """Take events again."""
        return self._kept.unfreeze(user_id, self.keys.user_ref(user_id))

    def add_accesses(self, user_id: str, accesses: Sequence[Accesses]) -> None:
        """Add to what is known of these sessions."""
        self._kept.add_accesses(user_id, accesses)

    def accesses(self, user_id: str | None = None) -> list[Accesses]:
        """Of the sessions of a user, or of all."""
        return self._kept.accesses(user_id)

    def old_blobs(self, before: int) -> Iterator[OldBlobs]:
        """The blobs written before that time."""
        after = ("", b"")
        while page := self._kept.old_blobs(before, after):
            sessions: dict[tuple[str, str], list[bytes]] = {}
            for one in page:
                place = one.user_id, one.session_id
                sessions.setdefault(place, []).append(one.address)
            for place, addresses in sessions.items():
                yield OldBlobs(*place, tuple(addresses))
            after = page[-1][:2]

    def expire_blobs(self, blobs: OldBlobs) -> int:
        """Let go of the texts; a sealed mark says so in their place."""
        stream = StreamId(blobs.user_id, blobs.session_id)
        head = self.recorder.head_row(stream)
        if head is None or head.status not in FROZEN:
            return 0
        check = head.key_check
        key = self.keys.session(*stream[:2], now=None, check=check)
        marks = Blobs(self.recorder, self.keys, stream)
        rows = [marks.expired(address, key) for address in blobs.addresses]
        return self._kept.expire_blobs(blobs, rows, key.check)

    def begin_unused(self, job: Job, unused: Unused) -> Job | None:
        """Begin an erasure and mark its heads, if they are unused."""
        subjects = self._subjects(job, ended=False)
        begun = self._kept.begin_unused(job, subjects, unused)
        self.recorder.flush()
        return begun

    def refuse_frozen(self, stream: StreamId, row: HeadRow | None) -> None:
        """Say why an append found no head to move.  Raises Frozen.

        row: the stream's head, if it has one.
        """
        if row is None:
            row = self.recorder.head_row(stream.main)
        ref = self.keys.user_ref(stream.user_id)
        if row is not None:
            check_not_frozen(row)
        elif self._kept.is_frozen(ref):
            raise Frozen("the user")


def check_not_frozen(row: HeadRow) -> None:
    """Raises Frozen."""
    if row.status in FROZEN.values():
        raise Frozen("the user")
