"""The access log: each use of a store is recorded, reads are counted, both are shown.

What is recorded stands in one table of methods.  Reads inside of another recorded call
are part of it; an append is recorded on its own, wherever it is made from.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import wraps
from inspect import signature
from itertools import groupby
from threading import Lock, Thread
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from refold.domain import errors
from refold.domain.access_log import NOTHING, Access, AccessRecord, AccessTrail, Counts
from refold.domain.canonical import shipped
from refold.domain.envelope import Envelope, microseconds
from refold.domain.erasure import Accesses, Retention
from refold.domain.events import CompactionNote, Event, Summary
from refold.domain.ids import MAIN, RESERVED, StreamId, check_id, check_session_id
from refold.domain.ports import Head, scope
from refold.store.appends import Order, Receipt, Writer

log = logging.getLogger("refold")

APPEND: Final = "session_append_event"
COMPACTION: Final = "compaction"
MEMORY: Final = "memory_write"
_SIZES: Final = ("tokens_before", "tokens_after")
EVERY: Final = 30.0  # seconds: what a killed process loses at most
MOST: Final = 10_000  # sessions; of more, the others are counted from the next time on

_DENIED: Final = (errors.SessionNotFound, errors.Erased, errors.Frozen, errors.OnHold)
_inside: ContextVar[str | None] = ContextVar("refold_access_inside", default=None)
_called: ContextVar[str | None] = ContextVar("refold_access_called", default=None)
# The id of the request that is answered, of who serves.
request_of: ContextVar[str | None] = ContextVar("refold_request", default=None)
_Measure = Callable[[Any], tuple[int | None, Counts]]
_Who = tuple[str | None, str | None]
_Whom = Callable[[Any, Sequence[Any], Mapping[str, Any]], _Who]


class Reads:
    """Counts reads of sessions, and writes the counts to a log's ``retention``."""

    def __init__(
        self, retention: Retention, clock: Callable[[], int], *, every: float = EVERY
    ) -> None:
        self._retention, self._clock, self._every = retention, clock, every
        self._begin()

    def _begin(self) -> None:
        """Nothing is counted: at first, and in a forked child."""
        self._pid = os.getpid()
        self._lock, self._writing = Lock(), Lock()
        self._counted: dict[tuple[str, str], tuple[int, int]] = {}
        self._thread: Thread | None = None
        self._closed = threading.Event()

    def note(self, stream: StreamId) -> None:
        """The session of this stream was read by its name just now."""
        if self._pid != os.getpid():
            self._begin()
        now = self._clock()
        with self._lock:
            self._count(stream[:2], 1, now)
            if self._thread is None and not self._closed.is_set():
                named: Any = {"name": "refold-reads", "daemon": True}
                self._thread = Thread(target=self._run, **named)
                self._thread.start()

    def flush(self) -> None:
        """Write what was counted; what cannot be written is kept for the next time."""
        with self._writing:
            with self._lock:
                counted, self._counted = self._counted, {}
            used = sorted(Accesses(*place, *uses) for place, uses in counted.items())
            for user_id, mine in groupby(used, lambda one: one.user_id):
                accesses = [*mine]
                try:
                    self._retention.add_accesses(user_id, accesses)
                except errors.RefoldError as error:
                    log.debug("uses of sessions are not written yet: %s", error)
                    with self._lock:
                        for one in accesses:
                            self._count(one[:2], one.reads, one.last_at)

    def _count(self, place: tuple[str, str], reads: int, at: int) -> None:
        known = self._counted.get(place, (0, at))
        if known[0] or len(self._counted) < MOST:
            self._counted[place] = (known[0] + reads, max(known[1], at))

    def _run(self) -> None:
        closed = self._closed
        while not closed.wait(self._every):
            self.flush()

    def close(self) -> None:
        """Write what was counted, and count no more."""
        if self._pid != os.getpid():
            return
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()


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

    def purge(self, older_than: timedelta) -> int:
        """Delete records that are older, for good; returns how many.

        Raises InvalidConfiguration for an age below zero.
        """
        if older_than < timedelta(0):
            raise errors.InvalidConfiguration("the age of records cannot be negative")
        age = older_than // timedelta(microseconds=1)
        return self._kept.purge(self.writer.clock() - age)

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


class Call(NamedTuple):
    """How calls of a method are recorded.

    event:  what is done.
    counts: what the things are that it gives, or the number it returns; or how its
            result is measured: where the session is by that, and how much it is.
    named:  False keeps user and session out of the record.
    if_it_fails: only then.
    """

    event: str
    counts: str | _Measure = "events"
    named: bool = True
    if_it_fails: bool = False


def record(*kinds: type) -> None:
    """Have calls of these classes recorded as ``CALLS`` says, with how they went.

    An object of theirs has the log as ``writer.audit``; None there is nobody to tell.
    An iterator that a call returns is recorded when it ends, or is given up.
    """
    for kind in kinds:
        for name, call in CALLS[kind.__name__].items():
            setattr(kind, name, _recorded(getattr(kind, name), call))


class RecordedWriter(Writer):
    """A writer whose appends are recorded, each once, whoever makes them."""

    __slots__ = ()

    def append(self, order: Order, *, born: Head | None = None) -> Receipt:
        if self.audit is None or _inside.get() == APPEND:
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
    begun, token = perf_counter_ns(), _inside.set(APPEND)
    try:
        yield receipts
    except BaseException as error:
        audit.note(_failed(_access(order, None, 0), error, perf_counter_ns() - begun))
        raise
    finally:
        _inside.reset(token)
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


def _failed(access: Access, error: BaseException, spent: int) -> Access:
    """The access as it failed, after ``spent`` nanoseconds; no word of the error."""
    name = "Unexpected" if isinstance(error, Exception) else "Interrupted"
    if type(error).__module__ == errors.RefoldError.__module__:
        name = type(error).__name__
    status: Any = "denied" if isinstance(error, _DENIED) else "error"
    return access._replace(duration_us=spent // 1000, status=status, error=name)


def _recorded(method: Callable[..., Any], how: Call) -> Callable[..., Any]:
    whom: _Whom = _whom(method) if how.named else lambda *_: (None, None)

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        audit = self.writer.audit
        if audit is None or _inside.get() is not None:
            return method(self, *args, **kwargs)
        event, who = _called.get() or how.event, whom(self, args, kwargs)
        begun, token = perf_counter_ns(), _inside.set(event)
        try:
            result = method(self, *args, **kwargs)
        except BaseException as error:
            spent = perf_counter_ns() - begun
            audit.note(_failed(Access(event, *who, request_of.get()), error, spent))
            raise
        finally:
            _inside.reset(token)
        if how.if_it_fails:
            return result
        spent = perf_counter_ns() - begun
        if isinstance(result, Iterator):
            access = Access(event, *who, request_of.get())
            return _followed(result, audit, access, str(how.counts), spent)
        seq, counts = _measured(result, how.counts)
        request = request_of.get()
        audit.note(Access(event, *who, request, seq, (), spent // 1000, counts=counts))
        return result

    return call


@contextmanager
def called(event: str) -> Iterator[None]:
    """Record what is called in here under another name, as the export of it."""
    token = _called.set(event)
    try:
        yield
    finally:
        _called.reset(token)


def _followed(
    items: Iterator[Any], audit: AccessTrail, access: Access, counts: str, spent: int
) -> Iterator[Any]:
    """The items as they come; in the end, how many they were and what they took."""
    count, last = 0, None
    try:
        while True:
            begun, token = perf_counter_ns(), _inside.set(access.event)
            try:
                last = next(items)
            except StopIteration:
                return
            finally:
                _inside.reset(token)
                spent += perf_counter_ns() - begun
            count += 1
            yield last
    except GeneratorExit:
        raise
    except BaseException as error:
        access = _failed(access, error, spent)
        raise
    finally:
        getattr(items, "close", lambda: None)()
        access = access._replace(seq=_seq(last), duration_us=spent // 1000)
        audit.note(access._replace(counts={counts: count}))


def _seq(result: Any = None) -> int | None:
    return result.seq if isinstance(result, Envelope) else None


def _measured(result: Any, counts: str | _Measure) -> tuple[int | None, Counts]:
    """Where the session is by that, and how much it is."""
    if not isinstance(counts, str):
        return counts(result)
    match result:
        case list() | dict():
            newest = result[-1:] if isinstance(result, list) else ()
            return _seq(*newest), {counts: len(result)}
        case str():
            return None, {"characters": len(result)}
        case int() if type(result) is int:
            return None, {counts: result}
    return None, NOTHING


def _whom(method: Callable[..., Any]) -> _Whom:
    """Who a call is about: the ids that it is given, or whose session it is of."""
    names = list(signature(method).parameters)[1:]
    if not {"user_id", "session_id"}.intersection(names):
        return lambda of, *_: (
            getattr(of, "user_id", None),
            getattr(of, "session_id", None),
        )

    def whom(_: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Who:
        given = dict(zip(names, args, strict=False)) | dict(kwargs)
        return given.get("user_id"), given.get("session_id")

    return whom


_MEASURES: Final[Mapping[str, _Measure]] = {
    "view": lambda v: (v.at, {"messages": len(v.messages), "tokens": v.tokens}),
    "verified": lambda v: (None, {"events": v.events, "problems": len(v.problems)}),
    "head": lambda head: (head.seq, NOTHING),
}


def _call(said: str | dict[str, Any]) -> Call:
    if isinstance(said, str):
        return Call(said)
    counts = said.get("counts", "events")
    return Call(**{**said, "counts": _MEASURES.get(counts, counts)})


CALLS: Final[Mapping[str, Mapping[str, Call]]] = {
    kind: {name: _call(said) for name, said in methods.items()}
    for kind, methods in shipped("refold.store.proofs", "calls.toml").items()
}
