"""Telling the audit log of each append: events, compactions, and what is remembered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from time import perf_counter_ns
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

from refold.domain.audit import Access, Status
from refold.domain.events import CompactionNote, Event, Summary
from refold.domain.ids import MAIN, RESERVED
from refold.store.audit_marks import APPEND, enter, failed, is_inside, leave

if TYPE_CHECKING:
    from refold.store.writing import Order, Receipt, Writer

COMPACTION: Final = "compaction"
MEMORY: Final = "memory_write"
P = ParamSpec("P")
W = TypeVar("W", bound="Writer")


def audited_append(
    append: Callable[Concatenate[W, Order, P], Receipt],
) -> Callable[Concatenate[W, Order, P], Receipt]:
    """Have each append recorded once, whoever asked for it."""

    @wraps(append)
    def call(writer: W, order: Order, /, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        audit = writer.audit
        if audit is None or is_inside(APPEND):
            return append(writer, order, *args, **kwargs)
        begun, token = perf_counter_ns(), enter(APPEND)
        try:
            receipt = append(writer, order, *args, **kwargs)
        except BaseException as error:
            audit.note(failed(_of(order), error, perf_counter_ns() - begun))
            raise
        finally:
            leave(token)
        audit.note(_done(order, receipt, perf_counter_ns() - begun))
        return receipt

    return call


def audited_append_async(
    append: Callable[[Writer, Order], Awaitable[Receipt]],
) -> Callable[[Writer, Order], Awaitable[Receipt]]:
    """The same for an append that is awaited."""

    @wraps(append)
    async def call(writer: Writer, order: Order) -> Receipt:
        audit = writer.audit
        if audit is None:
            return await append(writer, order)
        begun, token = perf_counter_ns(), enter(APPEND)
        try:
            receipt = await append(writer, order)
        except BaseException as error:
            audit.note(failed(_of(order), error, perf_counter_ns() - begun))
            raise
        finally:
            leave(token)
        audit.note(_done(order, receipt, perf_counter_ns() - begun))
        return receipt

    return call


def _of(order: Order, seq: int | None = None, spent: int = 0) -> Access:
    """What an append is, however it went."""
    events = [draft.event for draft in order.drafts]
    user_id, session_id, _ = order.stream
    return Access(
        _event(order, events[-1]) if events else APPEND,
        user_id,
        session_id,
        order.drafts[0].request_id if events else None,
        seq,
        tuple(dict.fromkeys([event.type for event in events])),
        spent // 1000,
        counts={"events": len(events)},
    )


def _event(order: Order, event: Event) -> str:
    """A derived stream holds summaries: of the session, or what a layer remembers."""
    if order.stream.stream != MAIN:
        kind = getattr(event, "kind", "session")
        return COMPACTION if kind == "session" else MEMORY
    return MEMORY if order.stream.session_id in RESERVED else APPEND


def _done(order: Order, receipt: Receipt, spent: int) -> Access:
    access = _of(order, receipt.last_seq, spent)
    if receipt.duplicate:
        access = access._replace(counts={**access.counts, "duplicate": 1})
    if order.stream.stream == MAIN:
        return access
    return _derived(access, order.drafts[-1].event)


def _derived(access: Access, event: Event) -> Access:
    """A compaction as its event tells it: how long it took is how long it was written.

    Its seq is that of the session when it was decided.
    """
    if isinstance(event, Summary):
        took = int((event.duration_ms or 0) * 1000)
        counts = {
            "events": event.source_event_count,
            "tokens_before": event.tokens_before,
            "tokens_after": event.tokens_after,
        }
        return access._replace(
            seq=event.decided_at_seq,
            duration_us=access.duration_us + took,
            counts=counts,
        )
    if isinstance(event, CompactionNote):
        lost = event.phase == "failed"
        status: Status = "error" if lost else "ok"
        error = "SummarizerFailed" if lost else None
        return access._replace(seq=event.decided_at_seq, status=status, error=error)
    return access
