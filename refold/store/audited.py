"""Telling the audit log what was done, and how it went, around each method.

Reads inside of another audited call are part of it.  What is written is told on its
own, wherever it is written from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from operator import attrgetter
from time import perf_counter_ns
from typing import Any, Final, NamedTuple, TypeVar

from refold.domain.audit import NOTHING, Access, Audit, Counts
from refold.domain.envelope import Envelope
from refold.domain.ports import Head
from refold.projections.context.view import View
from refold.store.audit_marks import enter, failed, is_inside, leave
from refold.store.verifying import Verified

_called: ContextVar[str | None] = ContextVar("refold_audit_called", default=None)
_IDS: Final = ("user_id", "session_id")
C = TypeVar("C")


class Call(NamedTuple):
    """How calls of a method are recorded.

    event:  what is done.
    counts: what the things are that it gives, or the number it returns.
    named:  False keeps user and session out of the record: a signed certificate says
            whom it was about, and its time would give away whose hash this is.
    if_it_fails: only then; what it does otherwise is recorded where it is done.
    """

    event: str
    counts: str = "events"
    named: bool = True
    if_it_fails: bool = False


def audits(calls: Mapping[str, Call], writer: str) -> Callable[[type[C]], type[C]]:
    """Have calls of these methods of a class recorded, with how they went.

    An iterator that one returns is recorded when it ends, or is given up.

    writer: the attribute that has the audit log, as ``writer.audit``; None there is
            nobody to tell.
    """
    audit_of = attrgetter(f"{writer}.audit")

    def decorate(audited: type[C]) -> type[C]:
        for name, call in calls.items():
            setattr(audited, name, _told(getattr(audited, name), call, audit_of))
        return audited

    return decorate


def _told(
    method: Callable[..., Any], how: Call, audit_of: Callable[[Any], Audit | None]
) -> Callable[..., Any]:
    whom = _whom(method) if how.named else _nobody

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        audit = audit_of(self)
        if audit is None or is_inside():
            return method(self, *args, **kwargs)
        event, who = _called.get() or how.event, whom(self, args, kwargs)
        begun, token = perf_counter_ns(), enter(event)
        try:
            result = method(self, *args, **kwargs)
        except BaseException as error:
            spent = perf_counter_ns() - begun
            audit.note(failed(Access(event, *who), error, spent))
            raise
        finally:
            leave(token)
        if how.if_it_fails:
            return result
        spent = perf_counter_ns() - begun
        if isinstance(result, Iterator):
            access = Access(event, *who)
            return _followed(result, audit, access, how.counts, spent)
        seq, counts = _measured(result, how.counts)
        audit.note(Access(event, *who, None, seq, (), spent // 1000, counts=counts))
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
    items: Iterator[Any], audit: Audit, access: Access, counts: str, spent: int
) -> Iterator[Any]:
    """The items as they come; in the end, how many they were and what they took."""
    count, last = 0, None
    try:
        while True:
            begun, token = perf_counter_ns(), enter(access.event)
            try:
                last = next(items)
            except StopIteration:
                return
            finally:
                leave(token)
                spent += perf_counter_ns() - begun
            count += 1
            yield last
    except GeneratorExit:
        raise
    except BaseException as error:
        access = failed(access, error, spent)
        raise
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()
        audit.note(
            access._replace(
                seq=_seq(last), duration_us=spent // 1000, counts={counts: count}
            )
        )


def _seq(result: Any) -> int | None:
    return result.seq if isinstance(result, Envelope) else None


def _measured(result: Any, counts: str) -> tuple[int | None, Counts]:
    """Where the session is by that, and how much it is."""
    measure = _MEASURES.get(type(result))
    return (None, NOTHING) if measure is None else measure(result, counts)


def _of_list(result: Any, counts: str) -> tuple[int | None, Counts]:
    return _seq(result[-1]) if result else None, {counts: len(result)}


def _of_view(result: View, _: str) -> tuple[int | None, Counts]:
    return result.at, {"messages": len(result.messages), "tokens": result.tokens}


def _of_verified(result: Verified, _: str) -> tuple[int | None, Counts]:
    return None, {"events": result.events, "problems": len(result.problems)}


_MEASURES: Final[Mapping[type, Callable[[Any, str], tuple[int | None, Counts]]]] = {
    Head: lambda head, _: (head.seq, NOTHING),
    View: _of_view,
    Verified: _of_verified,
    list: _of_list,
    dict: lambda found, counts: (None, {counts: len(found)}),
    str: lambda text, _: (None, {"characters": len(text)}),
    int: lambda number, counts: (None, {counts: number}),
}
_Who = tuple[str | None, str | None]
_Whom = Callable[[Any, Sequence[Any], Mapping[str, Any]], _Who]


def _whom(method: Callable[..., Any]) -> _Whom:
    """Who a call is about: the ids that it is given, or whose session it is of."""
    names = list(signature(method).parameters)[1:]
    places = [(name, names.index(name)) for name in _IDS if name in names]
    if not places:
        return _its_own

    def whom(_: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Who:
        given = {
            name: args[at] if at < len(args) else kwargs.get(name)
            for name, at in places
        }
        return given.get("user_id"), given.get("session_id")

    return whom


def _its_own(self: Any, *_: Any) -> _Who:
    return getattr(self, "user_id", None), getattr(self, "session_id", None)


def _nobody(*_: Any) -> _Who:
    return None, None
