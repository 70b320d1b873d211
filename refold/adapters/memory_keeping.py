"""Freezes, accesses and unused sessions of the recorder in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from refold.adapters.erasing_rows import Subject
from refold.adapters.keeping_rows import FROZEN, THAWED, BlobPlace
from refold.adapters.memory_erasing import MemoryErasing
from refold.domain.erasure import Job, LegalHold, Whose
from refold.domain.errors import Erased
from refold.domain.ids import MAIN, StreamId
from refold.domain.keeping import FREEZE, Accesses, OldBlobs, Unused

if TYPE_CHECKING:
    from refold.adapters.memory import MemoryRecorder
    from refold.adapters.recorder import BlobRow


class MemoryKeeping:
    """KeepingRows in dictionaries, under the recorder's lock."""

    def __init__(self, recorder: MemoryRecorder, erasing: MemoryErasing) -> None:
        self._recorder, self._erasing = recorder, erasing

    def freeze(self, user_id: str, user_ref: str, freeze: LegalHold) -> bool:
        with self._recorder._lock:
            subject = self._subject(user_ref)
            if subject.status in ("erasing", "erased"):
                raise Erased("the user")
            if subject.status == "frozen":
                return False
            self._erasing.set_subject(subject._replace(status="frozen"))
            self._erasing.hold(user_ref, freeze)
            self._turn(user_id, FROZEN)
            return True

    def unfreeze(self, user_id: str, user_ref: str) -> bool:
        with self._recorder._lock:
            if not self.is_frozen(user_ref):
                return False
            live = self._subject(user_ref)._replace(status="live")
            self._erasing.set_subject(live)
            self._erasing.release(user_ref, FREEZE)
            self._turn(user_id, THAWED)
            return True

    def _subject(self, ref: str) -> Subject:
        return self._erasing.subject(ref) or Subject(ref, ref, "live", 1)

    def _turn(self, user_id: str, into: Mapping[str, str]) -> None:
        heads, before = self._recorder._heads, self._erasing._before
        for stream, head in heads.items():
            if stream.user_id == user_id and head.status in into:
                status: Any = into[head.status]
                heads[stream] = head._replace(status=status)
        for stream, was in before.items():
            if stream.user_id == user_id:
                status = into.get(was, was)
                before[stream] = status

    def is_frozen(self, user_ref: str) -> bool:
        return self._subject(user_ref).status == "frozen"

    def add_accesses(self, user_id: str, accesses: Sequence[Accesses]) -> None:
        rows = self._recorder
        with rows._lock:
            for one in accesses:
                place = StreamId(user_id, one.session_id, MAIN)
                if place not in rows._heads or rows._gone(place):
                    continue
                known = rows._accesses.get(place, one._replace(reads=0))
                last = max(known.last_at, one.last_at)
                total = known.reads + one.reads
                rows._accesses[place] = one._replace(reads=total, last_at=last)

    def accesses(self, user_id: str | None) -> list[Accesses]:
        found = sorted(self._recorder._accesses.values())
        return [one for one in found if user_id in (None, one.user_id)]

    def old_blobs(self, before: int, after: tuple[str, bytes]) -> list[BlobPlace]:
        rows = self._recorder
        with rows._lock:
            return [
                BlobPlace(*key, rows._blob_of[key])
                for key, (_, size) in sorted(rows._blobs.items())
                if key > after and size and rows._blob_at[key] <= before
            ]

    def expire_blobs(
        self, blobs: OldBlobs, rows: Sequence[BlobRow], key_check: bytes
    ) -> int:
        recorder = self._recorder
        with recorder._lock:
            head = recorder._heads.get(StreamId(blobs.user_id, blobs.session_id))
            if not head or head.status not in FROZEN or head.key_check != key_check:
                return 0
            for row in rows:
                recorder._blobs[blobs.user_id, row.address] = (row.body, 0)
            return len(rows)

    def begin_unused(
        self, job: Job, subjects: Sequence[Subject], unused: Unused
    ) -> Job | None:
        with self._recorder._lock:
            if self._used(job.whose, unused):
                return None
            begun = self._erasing.begin(job, subjects)
            if begun is job:
                self._erasing.mark(job.whose)
            return begun

    def _used(self, whose: Whose, unused: Unused) -> bool:
        heads = self._recorder._heads.items()
        written = {
            stream.session_id: head.updated_at
            for stream, head in heads
            if stream.user_id == whose.user_id and stream.stream == MAIN
        }
        names = list(whose.sessions or written)
        if set(written) != set(unused.known):
            return True
        read = {one.session_id: one.last_at for one in self.accesses(whose.user_id)}
        return any(
            written.get(name, 0) > unused.since
            or (unused.reads and read.get(name, 0) > unused.since)
            for name in names
        )
