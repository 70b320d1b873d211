"""The access log: it records the uses of a store, counts reads, and returns both.

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

# The names of the records of appends.
APPEND: Final = "session_append_event"
COMPACTION: Final = "compaction"
MEMORY: Final = "memory_write"


class AccessLog:
    """Records of the uses of a store, and counts of the reads of its sessions.

    trail: records uses; None records nothing.
    reads: counts reads; None counts nothing.
    """

    def __init__(
        self, writer: Writer, trail: AccessTrail | None, reads: Reads | None
    ) -> None:
        self.writer = writer
        self.trail = trail
        self._reads = reads

    @property
    def is_on(self) -> bool:
        """Whether uses of the store are recorded."""
        return self.trail is not None and self.trail.on

    @recorded("audit_read", "records")
    def records(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        since: datetime | None = None,
    ) -> Iterator[AccessRecord]:
        """Yield the uses of the store by a user or by all, the oldest first.

        Records contain a keyed hash of the user.  A user's records can be found by the
        user's id as long as the user has a key.

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
        since_at = None
        if since is not None:
            since_at = microseconds(since)
        return self._required_trail.find(user_id, session_id, since=since_at)

    @recorded("audit_purge", "records")
    def purge(self, older_than: timedelta) -> int:
        """Delete records that are older than this; returns their number.

        Raises InvalidConfiguration for an age below zero.
        """
        if older_than < timedelta(0):
            raise errors.InvalidConfiguration("the age of records cannot be negative")
        age = older_than // timedelta(microseconds=1)
        return self._required_trail.purge(self.writer.time.observe().now - age)

    @recorded("access_list", "sessions")
    def accesses(self, user_id: str | None = None) -> list[Accesses]:
        """Return how often sessions of a user or of all were read by name, and when.

        Reads by other processes in the last half minute may be missing.
        """
        self.count()
        return self.writer.log.retention.accesses(scope(user_id).user_id)

    def note(
        self, event: str, user_id: str | None = None, *, denied: str | None = None
    ) -> None:
        """Record an event outside of calls of the store, such as a refused request.

        denied: the reason, if the request was refused.
        """
        if self.trail is None:
            return
        access = Access(event, user_id, None, request_of.get(), error=denied)
        if denied:
            access = access._replace(status="denied")
        self.trail.note(access)

    def count(self) -> None:
        """Store the counts of reads that are still in memory."""
        if self._reads is not None:
            self._reads.flush()

    def flush(self) -> None:
        """Wait until all uses up to now are recorded, if that is possible."""
        if self.trail is not None:
            self.trail.flush()

    def close(self) -> None:
        """Store counted reads and recorded uses, and stop counting and recording."""
        if self._reads is not None:
            self._reads.close()
        if self.trail is not None:
            self.trail.close()

    @property
    def _required_trail(self) -> AccessTrail:
        """The trail.  Raises InvalidConfiguration if the store records no uses."""
        if self.trail is None:
            raise errors.InvalidConfiguration("this store keeps no audit log")
        return self.trail


class RecordedWriter(Writer):
    """A writer that records each append once, whatever method calls it."""

    __slots__ = ()

    def append(self, order: Order, *, forked_head: Head | None = None) -> Receipt:
        if self.audit is None or recording.get() == APPEND:
            return super().append(order, forked_head=forked_head)
        with _recording(self.audit, order) as receipts:
            receipts.append(super().append(order, forked_head=forked_head))
        return receipts[0]

    async def append_async(self, order: Order) -> Receipt:
        if self.audit is None:
            return await super().append_async(order)
        with _recording(self.audit, order) as receipts:
            receipts.append(await super().append_async(order))
        return receipts[0]


@contextmanager
def _recording(audit: AccessTrail, order: Order) -> Iterator[list[Receipt]]:
    """Record the append that runs in this block.

    The block puts the receipt into the list.
    """
    receipts: list[Receipt] = []
    started = perf_counter_ns()
    token = recording.set(APPEND)
    try:
        yield receipts
    except BaseException as error:
        duration_ns = perf_counter_ns() - started
        audit.note(failed(_access(order, None, 0), error, duration_ns))
        raise
    finally:
        recording.reset(token)
    audit.note(_access(order, receipts[0], perf_counter_ns() - started))


def _access(order: Order, receipt: Receipt | None, duration_ns: int) -> Access:
    """Return the record of an append; without a receipt, the append failed."""
    events = [draft.event for draft in order.drafts]
    name = APPEND
    request_id = None
    if events:
        name = _record_name(order.stream, events[-1])
        request_id = order.drafts[0].request_id
    access = Access(
        event=name,
        user_id=order.stream.user_id,
        session_id=order.stream.session_id,
        request_id=request_id,
        event_types=tuple(dict.fromkeys(event.type for event in events)),
        duration_us=duration_ns // 1000,
        counts={"events": len(events)},
    )
    if receipt is None:
        return access
    access = access._replace(seq=receipt.last_seq)
    if receipt.duplicate:
        access = access._replace(counts={**access.counts, "duplicate": 1})
    if order.stream.stream == MAIN:
        return access
    return _of_compaction(access, events[-1])


def _record_name(stream: StreamId, event: Event) -> str:
    """Return what the access log calls an append of this event to this stream."""
    if stream.stream == MAIN:
        return MEMORY if stream.session_id in RESERVED else APPEND
    # A derived stream has summaries of its session, or of what memory learned from it.
    kind = getattr(event, "kind", "session")
    return COMPACTION if kind == "session" else MEMORY


def _of_compaction(access: Access, event: Event) -> Access:
    """Add the figures of a compaction, with the seq at which it was decided."""
    if isinstance(event, Summary):
        summarizer_us = int((event.duration_ms or 0) * 1000)
        return access._replace(
            seq=event.decided_at_seq,
            duration_us=access.duration_us + summarizer_us,
            counts={
                "events": event.source_event_count,
                "tokens_before": event.tokens_before,
                "tokens_after": event.tokens_after,
            },
        )
    if isinstance(event, CompactionNote):
        access = access._replace(seq=event.decided_at_seq)
        if event.phase == "failed":
            return access._replace(status="error", error="SummarizerFailed")
    return access
