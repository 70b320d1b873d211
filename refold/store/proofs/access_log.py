"""The access log: uses of a store are recorded, reads are counted, both can be read.

``@recorded`` marks the methods whose calls are recorded.  A read inside another
recorded call is part of that call.  An append is always recorded on its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from time import perf_counter_ns
from typing import Final

from refold.domain import errors
from refold.domain.access_log import Access, AccessRecord, AccessTrail
from refold.domain.envelope import microseconds
from refold.domain.erasure import Accesses
from refold.domain.events import CompactionNote, Event, Summary
from refold.domain.ids import MAIN, RESERVED, StreamId, check_id, check_session_id
from refold.domain.ports import Head, scope
from refold.store.appends import Order, Receipt, Writer
from refold.store.reads import Reads
from refold.store.recorded import failed, recorded, recording, request_of

APPEND: Final = "session_append_event"
COMPACTION: Final = "compaction"
MEMORY: Final = "memory_write"
_SIZES: Final = ("tokens_before", "tokens_after")


class AccessLog:
    """What was done with a store, and how often its sessions were read.

    trail: where uses are recorded; None is nowhere.
    reads: counts reads; None counts nothing.
    """

    def __init__(
        self, writer: Writer, trail: AccessTrail | None, reads: Reads | None
    ) -> None:
        self.writer, self.trail, self._reads = writer, trail, reads

    @property
    def is_on(self) -> bool:
        """Whether uses of the store are recorded anywhere."""
        return self.trail is not None and self.trail.on

    @recorded("audit_read", "records")
    def records(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        since: datetime | None = None,
    ) -> Iterator[AccessRecord]:
        """What was done with the store, the oldest first: by a user, or by all.

        Whose a record is can be found by name only, and only while the user has a key.
        Without a user, records are given with the keyed hashes that they hold.

        Raises Erased, InvalidConfiguration for a session without its user, and for
        ``since`` without a time zone.
        """
        if user_id is not None:
            check_id("user_id", user_id)
        if session_id is not None:
            check_session_id(session_id)
            if user_id is None:
                raise errors.InvalidConfiguration("name the user of the session, too")
        if since is not None and since.tzinfo is None:
            raise errors.InvalidConfiguration("since needs a time zone")
        at = None if since is None else microseconds(since)
        return self._kept.find(user_id, session_id, since=at)

    @recorded("audit_purge", "records")
    def purge(self, older_than: timedelta) -> int:
        """Delete records that are older, for good; returns how many.

        Raises InvalidConfiguration for an age below zero.
        """
        if older_than < timedelta(0):
            raise errors.InvalidConfiguration("the age of records cannot be negative")
        age = older_than // timedelta(microseconds=1)
        return self._kept.purge(self.writer.time.observe().now - age)

    @recorded("access_list", "sessions")
    def accesses(self, user_id: str | None = None) -> list[Accesses]:
        """How often sessions were read by name, and when last: of a user, or all.

        What other processes counted in the last half minute may not be in it.
        """
        self.count()
        return self.writer.log.retention.accesses(scope(user_id).user_id)

    def note(
        self, event: str, user_id: str | None = None, *, denied: str | None = None
    ) -> None:
        """Record what is no call of the store: of who serves it, and whom it refuses.

        denied: the name of the reason, if it was refused.
        """
        if self.trail is not None:
            access = Access(event, user_id, None, request_of.get(), error=denied)
            self.trail.note(access._replace(status="denied") if denied else access)

    def count(self) -> None:
        """Write the reads that were counted up to now."""
        if self._reads is not None:
            self._reads.flush()

    def flush(self) -> None:
        """Return when what was done up to now is recorded, if it can be."""
        if self.trail is not None:
            self.trail.flush()

    def close(self) -> None:
        """Write what was counted and recorded, and take no more."""
        for one in (self._reads, self.trail):
            if one is not None:
                one.close()

    @property
    def _kept(self) -> AccessTrail:
        if self.trail is None:
            raise errors.InvalidConfiguration("this store keeps no audit log")
        return self.trail


class RecordedWriter(Writer):
    """A writer whose appends are recorded, each once, whoever makes them."""

    __slots__ = ()

    def append(self, order: Order, *, born: Head | None = None) -> Receipt:
        if self.audit is None or recording.get() == APPEND:
            return super().append(order, born=born)
        with _told(self.audit, order) as receipts:
            receipts.append(super().append(order, born=born))
        return receipts[0]

    async def append_async(self, order: Order) -> Receipt:
        if self.audit is None:
            return await super().append_async(order)
        with _told(self.audit, order) as receipts:
            receipts.append(await super().append_async(order))
        return receipts[0]


@contextmanager
def _told(audit: AccessTrail, order: Order) -> Iterator[list[Receipt]]:
    """Record the append that is made in here, whose receipt is put into the list."""
    receipts: list[Receipt] = []
    begun, token = perf_counter_ns(), recording.set(APPEND)
    try:
        yield receipts
    except BaseException as error:
        audit.note(failed(_access(order, None, 0), error, perf_counter_ns() - begun))
        raise
    finally:
        recording.reset(token)
    audit.note(_access(order, receipts[0], perf_counter_ns() - begun))


def _access(order: Order, receipt: Receipt | None, spent: int) -> Access:
    """What is said of an append, after ``spent`` ns; without a receipt it failed."""
    events = [draft.event for draft in order.drafts]
    access = Access(
        _called_by(order.stream, events[-1]) if events else APPEND,
        *order.stream[:2],
        order.drafts[0].request_id if events else None,
        receipt.last_seq if receipt else None,
        tuple(dict.fromkeys([event.type for event in events])),
        spent // 1000,
        counts={"events": len(events)},
    )
    if receipt is None:
        return access
    if receipt.duplicate:
        access = access._replace(counts={**access.counts, "duplicate": 1})
    return access if order.stream.stream == MAIN else _derived(access, events[-1])


def _called_by(stream: StreamId, event: Event) -> str:
    """A derived stream holds summaries: of the session, or what is remembered."""
    if stream.stream != MAIN:
        kind = getattr(event, "kind", "session")
        return COMPACTION if kind == "session" else MEMORY
    return MEMORY if stream.session_id in RESERVED else APPEND


def _derived(access: Access, event: Event) -> Access:
    """A compaction as its event tells it, with the seq at which it was decided."""
    if isinstance(event, Summary):
        took = access.duration_us + int((event.duration_ms or 0) * 1000)
        counts = {"events": event.source_event_count}
        counts |= {name: getattr(event, name) for name in _SIZES}
        access = access._replace(seq=event.decided_at_seq)
        return access._replace(duration_us=took, counts=counts)
    if isinstance(event, CompactionNote):
        access = access._replace(seq=event.decided_at_seq)
        if event.phase == "failed":
            return access._replace(status="error", error="SummarizerFailed")
    return access
