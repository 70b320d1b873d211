"""Recorders, key stores, groups and erasures that each break a rule of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from refold.adapters.rows import (
    Batch,
    EncryptedEvent,
    HeadRow,
    Moved,
    Rewrite,
    ViewRow,
    WriteOutcome,
    Wrote,
)
from refold.adapters.sql.database import GroupCommit, Result
from refold.domain.ids import StreamId
from refold.domain.ports import Clock
from tests.simulation.committing import Committing
from tests.simulation.erasing import Erasures
from tests.simulation.history import History, Matter
from tests.simulation.rows import STREAM, Keys, Rows


class IgnoresTheHead(Rows):
    """Its compare-and-set compares nothing: later events are overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.execute("DROP TRIGGER events_refuse_delete")  # or that would refuse it

    def write(self, batch: Batch) -> WriteOutcome:
        head = self.head_row(batch.stream)
        if head is not None and head.key_check == batch.head.key_check:
            self.execute(
                f"DELETE FROM events WHERE {STREAM} AND seq>:after",
                **batch.stream._asdict(),
                after=batch.expected_seq,
            )
            batch = replace(batch, expected_seq=head.seq, expected_hash=head.hash)
        return super().write(batch)


class WritesHalf(Rows):
    """It stores the first event of a batch, and acknowledges all."""

    def commit(self, batch: Batch) -> Result:
        return super().commit(replace(batch, events=batch.events[:1]))


class WritesNothing(Rows):
    """It acknowledges every seventh append without writing it."""

    _count = 0

    def write(self, batch: Batch) -> WriteOutcome:
        self._count += 1
        return Wrote(batch.head) if self._count % 7 == 0 else super().write(batch)


class MovesNoHead(Rows):
    """A crash between the two statements of an append: events, but no head."""

    _count = 0

    def commit(self, batch: Batch) -> Result:
        before = self.head_row(batch.stream)
        outcome = super().commit(batch)
        self._count += isinstance(outcome, Wrote)
        if self._count % 7 == 0 and before is not None:
            self.put_head(batch.stream, before)
        return outcome


class ForgetsReceipts(Rows):
    """It does not recognize a repeated idempotency key."""

    def commit(self, batch: Batch) -> Result:
        return super().commit(replace(batch, append_receipt_address=None, receipts=()))


class TakesAnyKey(Rows):
    """It accepts rows that are encrypted with a key from before a rewriting."""

    def write(self, batch: Batch) -> WriteOutcome:
        head = self.head_row(batch.stream)
        main = self.head_row(batch.stream.main)
        stored_head = head or main
        if stored_head is not None:
            check = stored_head.key_check
            batch = replace(batch, head=batch.head._replace(key_check=check))
        return super().write(batch)


class LeasesToAll(Rows):
    """It never checks whether a lease is held."""

    def take_lease(
        self, stream: StreamId, owner: str, *, clock: Clock, period: int
    ) -> bool:
        lease = self.lease(stream)
        if lease is not None:
            self.release_lease(stream, lease[0])
        return super().take_lease(stream, owner, clock=clock, period=period)


class NeverAsksForLeases(Rows):
    """It accepts writes of an owner that lost the required lease."""

    def check_fences(self) -> None:
        pass


class LeasesForever(Rows):
    """It reports a lease as renewed that another owner has taken."""

    def renew_lease(
        self, stream: StreamId, owner: str, *, clock: Clock, period: int
    ) -> bool:
        super().renew_lease(stream, owner, clock=clock, period=period)
        return True


class LetsViewsGoBack(Rows):
    """It replaces a stored view by any other, also by an older one."""

    def save_view_row(
        self, stream: StreamId, name: str, row: ViewRow, **options: Any
    ) -> bool:
        view = self.view_row(stream, name)
        options["replaces"] = view.through_seq if view else 0
        return super().save_view_row(stream, name, row, **options)


class TakesViewsUnderAnyKey(Rows):
    """It stores a view that is encrypted with a key from before a rewriting."""

    def save_view_row(
        self, stream: StreamId, name: str, row: ViewRow, **how: Any
    ) -> bool:
        head = self.head_row(stream)
        how["key_check"] = head.key_check if head else b""
        return super().save_view_row(stream, name, row, **how)


class SkipsARow(Rows):
    """A read from a position loses the first row: a tail that misses events."""

    def select_events(
        self, originator_id: Any, **options: Any
    ) -> Sequence[EncryptedEvent]:
        rows = super().select_events(originator_id, **options)
        behind = (
            (options.get("gt") or 0) > 1 and not options.get("spans") and len(rows) > 1
        )
        return rows[1:] if behind and options.get("limit") is None else rows


class RewritesOneStream(Rows):
    """A rewriting leaves the rows of derived streams unchanged."""

    def rewrite(
        self, stream: StreamId, build: Callable[[Mapping[str, HeadRow]], Rewrite | None]
    ) -> bool:
        def main_alone(heads: Mapping[str, HeadRow]) -> Rewrite | None:
            rewriting = build(heads)
            if rewriting is None:
                return None
            rows = tuple(row for row in rewriting.rows if row.header.stream == stream)
            return replace(rewriting, rows=rows)

        return super().rewrite(stream, main_alone)


class KeepsViews(Rows):
    """A rewriting leaves the earlier views."""

    def rewrite(
        self, stream: StreamId, build: Callable[[Mapping[str, HeadRow]], Rewrite | None]
    ) -> bool:
        views = self.execute("SELECT * FROM views")
        done = super().rewrite(stream, build)
        for row in views:
            columns = ", ".join(f":{name}" for name in row._fields)
            self.execute(
                f"INSERT INTO views ({', '.join(row._fields)}) VALUES ({columns}) "
                "ON CONFLICT DO NOTHING",
                **row._asdict(),
            )
        return done

    def drop_views(self, *_: str, **__: str | None) -> None:
        pass


class DestroysTooMuch(Keys):
    """It destroys the current key together with the earlier ones."""

    def destroy_sessions(self, user_ref: str, session_ref: str, *, before: int) -> int:
        return super().destroy_sessions(user_ref, session_ref, before=before + 1)


class DestroysNothing(Keys):
    """It keeps every key."""

    def destroy_sessions(self, user_ref: str, session_ref: str, *, before: int) -> int:
        return 0


class LastKeyWins(Keys):
    """Of two processes that create a session's key, each gets its own."""

    def add_session(
        self, user_ref: str, session_ref: str, wrapped: bytes, now: int, **how: Any
    ) -> bytes | None:
        self.forget(user_ref, session_ref, how.get("version", 1))
        return super().add_session(user_ref, session_ref, wrapped, now, **how)


class WritesNoBlob(Rows):
    """It stores the truncated event without the complete text."""

    def commit(self, batch: Batch) -> Result:
        return super().commit(replace(batch, blobs=()))


class KeepsBlobs(Rows):
    """A rewriting leaves the earlier blobs."""

    def rewrite(
        self, stream: StreamId, build: Callable[[Mapping[str, HeadRow]], Rewrite | None]
    ) -> bool:
        def without_blobs(heads: Mapping[str, HeadRow]) -> Rewrite | None:
            rewriting = build(heads)
            return replace(rewriting, old_blob_addresses=()) if rewriting else None

        return super().rewrite(stream, without_blobs)


class ForksTwice(Rows):
    """A fork to an existing name is reported as successful."""

    def write(self, batch: Batch) -> WriteOutcome:
        head = self.head_row(batch.stream)
        fork = batch.events[0].header.type == "fork"
        return Wrote(batch.head) if fork and head else super().write(batch)


class AnswersAllAlike(Committing):
    """If the first batch of a group is written, all are reported as written."""

    def commit(self, batches: Sequence[Batch]) -> list[Result]:
        first, *_ = outcomes = super().commit(batches)
        if not isinstance(first, Wrote):
            return outcomes
        return [Wrote(batch.head) for batch in batches]


class RefusesAllAlike(Committing):
    """One conflict refuses the whole group: nothing of it is written."""

    def commit(self, batches: Sequence[Batch]) -> list[Result]:
        heads = [self.inner.head_row(batch.stream) for batch in batches]
        seqs = [batch.expected_seq for batch in batches]
        if seqs == [head.seq if head else 0 for head in heads]:
            return super().commit(batches)
        return [Moved(head) for head in heads]


class CommitsOneByOne(Committing):
    """A batch appears before the group's commit, and its events one by one."""

    def commit(self, batches: Sequence[Batch]) -> list[Result]:
        for batch in batches:
            if not self.is_there(batch) and len(batch.events) > 1:
                self.world.scheduler.pause()
                if self.world.fate().startswith("dies"):
                    self.inner.commit(replace(batch, events=batch.events[:1]))
                    self.world.die(self.process)
        return super().commit(batches)


class KnowsNotItsOwn(Committing):
    """After a lost answer it does not check whether the rows exist."""

    def is_there(self, batch: Batch) -> bool:  # the fault
        return False


class LocksAsTheyCome(Committing):
    """It locks the heads in the order of the queue."""

    def order(self, batches: Sequence[Batch]) -> list[StreamId]:
        return list(dict.fromkeys(batch.stream.main for batch in batches))


class _KeepsTheLead(GroupCommit):
    def _pass_on(self, *, thread: bool = False) -> bool:
        if not self._has_leader:  # nobody had the lead: a thread is started for it
            return super()._pass_on(thread=thread)
        self._has_leader = False  # the fault
        return False


class LosesTheLead(Committing):
    """A leader does not hand the lead to writers that queued up in between."""

    queue = _KeepsTheLead


class MarksMainAlone(Erasures):
    """It marks no head of a derived stream."""

    marked = "stream='main'"


class RemembersNobody(Erasures):
    """It marks existing heads, and stores no record that refuses new ones."""

    def refuses_new(self, user_id: str) -> bool:  # the fault
        return False


class ErasesOnce(Erasures):
    """A begun erasure counts as done: a killed erasure is not completed."""

    def begin(self, user_id: str) -> bool:
        fresh = user_id not in self.begun
        return super().begin(user_id) and fresh


class DeletesEventsAlone(Erasures):
    """It reports an erasure as done once the events are deleted."""

    tables = ("events",)


class LeavesTheKeys(Erasures):
    """It destroys no key."""

    def destroy_keys(self, user_id: str) -> None:
        pass


class ErasesOthers(Erasures):
    """It also deletes rows of other users."""

    def delete_rows(self, user_id: str) -> int:
        for (other,) in self.recorder.execute("SELECT DISTINCT user_id FROM heads"):
            if other != user_id:
                self.mark(other)
                super().delete_rows(other)
        return super().delete_rows(user_id)


class Mutant(NamedTuple):
    """The broken part of a history, and what the history is full of."""

    recorder: Callable[[], Rows] = Rows
    keys: Callable[[], Keys] = Keys
    committing: type[Committing] = Committing
    erasures: type[Erasures] = Erasures
    full_of: Matter = ""

    def history(self, seed: int) -> History:
        """Return the history of that seed, with the broken rule."""
        parts = (self.recorder, self.keys, self.committing, self.erasures)
        return History(seed, *parts, full_of=self.full_of)


MUTANTS: Final[dict[str, Mutant]] = {
    "ignores the head": Mutant(IgnoresTheHead),
    "writes half a batch": Mutant(WritesHalf),
    "writes nothing": Mutant(WritesNothing),
    "moves no head": Mutant(MovesNoHead),
    "forgets receipts": Mutant(ForgetsReceipts),
    "takes rows under any key": Mutant(TakesAnyKey, full_of="rewriting"),
    "leases to all": Mutant(LeasesToAll),
    "never asks for leases": Mutant(NeverAsksForLeases),
    "renews what is another's": Mutant(LeasesForever),
    "lets views go back": Mutant(LetsViewsGoBack, full_of="rewriting"),
    "takes views under any key": Mutant(TakesViewsUnderAnyKey, full_of="rewriting"),
    "skips a row": Mutant(SkipsARow),
    "rewrites one stream": Mutant(RewritesOneStream),
    "keeps views": Mutant(KeepsViews, full_of="rewriting"),
    "destroys the key in use": Mutant(keys=DestroysTooMuch),
    "destroys no key": Mutant(keys=DestroysNothing),
    "lets the last key win": Mutant(keys=LastKeyWins),
    "writes no blob": Mutant(WritesNoBlob),
    "keeps blobs": Mutant(KeepsBlobs),
    "forks twice": Mutant(ForksTwice),
    "answers a group alike": Mutant(committing=AnswersAllAlike, full_of="groups"),
    "refuses a group alike": Mutant(committing=RefusesAllAlike),
    "commits one by one": Mutant(committing=CommitsOneByOne, full_of="groups"),
    "knows not its own rows": Mutant(committing=KnowsNotItsOwn, full_of="groups"),
    "locks as they come": Mutant(committing=LocksAsTheyCome, full_of="groups"),
    "loses the lead": Mutant(committing=LosesTheLead),
    "marks main streams alone": Mutant(erasures=MarksMainAlone, full_of="erasure"),
    "remembers nobody": Mutant(erasures=RemembersNobody, full_of="erasure"),
    "erases once": Mutant(erasures=ErasesOnce, full_of="erasure"),
    "deletes events alone": Mutant(erasures=DeletesEventsAlone, full_of="erasure"),
    "leaves the keys": Mutant(erasures=LeavesTheKeys, full_of="erasure"),
    "erases others": Mutant(erasures=ErasesOthers, full_of="erasure"),
}
