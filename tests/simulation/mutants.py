"""Recorders and key stores that each break one rule of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from refold.adapters.memory import MemoryKeyStore, MemoryRecorder
from refold.adapters.recorder import (
    Batch,
    HeadRow,
    Rewrite,
    ViewRow,
    WriteOutcome,
    Wrote,
)
from refold.adapters.sealing import SealedEvent
from refold.domain.ids import StreamId


class IgnoresTheHead(MemoryRecorder):
    """Its compare-and-set compares nothing."""

    def write(self, batch: Batch) -> WriteOutcome:
        head = self.head_row(batch.stream)
        if head is not None and head.key_check == batch.head.key_check:
            batch = replace(batch, expected_seq=head.seq, expected_hash=head.hash)
        return super().write(batch)


class WritesHalf(MemoryRecorder):
    """It keeps the first event of a batch, and acknowledges all."""

    def _commit(self, batch: Batch) -> None:
        super()._commit(replace(batch, events=batch.events[:1]))


class WritesNothing(MemoryRecorder):
    """It acknowledges every seventh append without having written it."""

    _count = 0

    def write(self, batch: Batch) -> WriteOutcome:
        self._count += 1
        return Wrote(batch.head) if self._count % 7 == 0 else super().write(batch)


class MovesNoHead(MemoryRecorder):
    """A crash between the two statements of an append: events, but no head."""

    _count = 0

    def _commit(self, batch: Batch) -> None:
        before = self._heads.get(batch.stream)
        super()._commit(batch)
        self._count += 1
        if self._count % 7 == 0 and before is not None:
            self._heads[batch.stream] = before


class ForgetsReceipts(MemoryRecorder):
    """It does not know an idempotency key again."""

    def _commit(self, batch: Batch) -> None:
        super()._commit(replace(batch, receipt=None))


class TakesAnyKey(MemoryRecorder):
    """It takes rows that are sealed under a key of before a rewriting."""

    def write(self, batch: Batch) -> WriteOutcome:
        head, main = self.head_row(batch.stream), self.head_row(batch.stream.main)
        known = head or main
        if known is not None:
            check = known.key_check
            batch = replace(batch, head=batch.head._replace(key_check=check))
        return super().write(batch)


class LeasesToAll(MemoryRecorder):
    """It never checks whether a lease is held."""

    def take_lease(self, stream: StreamId, owner: str, *, now: int, until: int) -> bool:
        return super().take_lease(stream, owner, now=until + (1 << 50), until=until)


class LeasesForever(MemoryRecorder):
    """It says that a lease is renewed which is another's by now."""

    def renew_lease(self, stream: StreamId, owner: str, *, until: int) -> bool:
        super().renew_lease(stream, owner, until=until)
        return True


class LetsViewsGoBack(MemoryRecorder):
    """It replaces a stored view by any other."""

    def save_view_row(
        self, stream: StreamId, name: str, row: ViewRow, **how: Any
    ) -> bool:
        known = self.view_row(stream, name)
        how["replaces"] = known.through_seq if known else 0
        return super().save_view_row(stream, name, row, **how)


class TakesViewsUnderAnyKey(MemoryRecorder):
    """It keeps a view that is sealed under a key of before a rewriting."""

    def save_view_row(
        self, stream: StreamId, name: str, row: ViewRow, **how: Any
    ) -> bool:
        head = self.head_row(stream)
        how["key_check"] = head.key_check if head else b""
        return super().save_view_row(stream, name, row, **how)


class SkipsARow(MemoryRecorder):
    """A read behind a place loses the first row there: a tail that misses events."""

    def rows(self, stream: StreamId, **how: Any) -> list[SealedEvent]:
        found = super().rows(stream, **how)
        behind = how.get("after", 0) > 1 and not how.get("spans") and len(found) > 1
        return found[1:] if behind and how.get("limit") is None else found


class RewritesOneStream(MemoryRecorder):
    """A rewriting leaves the rows of derived streams as they were."""

    def rewrite(
        self, stream: StreamId, build: Callable[[Mapping[str, HeadRow]], Rewrite | None]
    ) -> bool:
        def main_alone(heads: Mapping[str, HeadRow]) -> Rewrite | None:
            made = build(heads)
            if made is None:
                return None
            rows = tuple(row for row in made.rows if row.header.stream == stream)
            return replace(made, rows=rows)

        return super().rewrite(stream, main_alone)


class KeepsViews(MemoryRecorder):
    """A rewriting leaves the views of before it."""

    def drop_views(self, user_id: str, session_id: str) -> None:
        pass


class DestroysTooMuch(MemoryKeyStore):
    """It destroys the key that is in use with those before it."""

    def destroy_sessions(self, user_ref: str, session_ref: str, *, before: int) -> int:
        return super().destroy_sessions(user_ref, session_ref, before=before + 1)


class DestroysNothing(MemoryKeyStore):
    """It keeps every key."""

    def destroy_sessions(self, user_ref: str, session_ref: str, *, before: int) -> int:
        return 0


class LastKeyWins(MemoryKeyStore):
    """Of two that make a session's key at once, each is told of its own."""

    def add_session(
        self,
        user_ref: str,
        session_ref: str,
        wrapped: bytes,
        now: int,
        *,
        version: int = 1,
    ) -> bytes:
        self._sessions.get((user_ref, session_ref), {}).pop(version, None)
        return super().add_session(user_ref, session_ref, wrapped, now, version=version)


class Mutant(NamedTuple):
    """What a history is run over.

    begin: the seed to begin with, where one near by breaks a promise; a rule that only
           a rare meeting needs takes hundreds of histories otherwise.
    """

    recorder: Callable[[], MemoryRecorder] = MemoryRecorder
    keys: Callable[[], MemoryKeyStore] = MemoryKeyStore
    begin: int = 0


MUTANTS: Final[dict[str, Mutant]] = {
    "ignores the head": Mutant(IgnoresTheHead),
    "writes half a batch": Mutant(WritesHalf),
    "writes nothing": Mutant(WritesNothing),
    "moves no head": Mutant(MovesNoHead),
    "forgets receipts": Mutant(ForgetsReceipts),
    "takes rows under any key": Mutant(TakesAnyKey, begin=28),
    "leases to all": Mutant(LeasesToAll),
    "renews what is another's": Mutant(LeasesForever, begin=202),
    "lets views go back": Mutant(LetsViewsGoBack, begin=182),
    "takes views under any key": Mutant(TakesViewsUnderAnyKey, begin=84),
    "skips a row": Mutant(SkipsARow),
    "rewrites one stream": Mutant(RewritesOneStream),
    "keeps views": Mutant(KeepsViews, begin=61),
    "destroys the key in use": Mutant(keys=DestroysTooMuch),
    "destroys no key": Mutant(keys=DestroysNothing),
    "lets the last key win": Mutant(keys=LastKeyWins, begin=9),
}
