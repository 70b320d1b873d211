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

from refold.domain.access_log import NOTHING, Access, Audit, Counts
from refold.domain.envelope import Envelope
from refold.domain.ports import Head
from refold.projections.context.view import View
from refold.store.appends import enter, failed, is_inside, leave
from refold.store.verification import Verified

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


_LOAD: Final = Call("session_load")

SESSION: Final[Mapping[str, Call]] = {
    "head": _LOAD,
    "events": _LOAD,
    "pages": _LOAD,
    "derived": _LOAD,
    "timeline": _LOAD,
    "streams": Call("session_load", "streams"),
    "state": Call("session_load", "keys"),
    "blob": Call("session_blob"),
    "context": Call("session_context"),
    "prepare": Call("session_context"),
    "advice": Call("memory_load"),
    "replay": Call("session_replay", "requests"),
    "compare": Call("session_compare"),
    "why": Call("session_why"),
    "verify": Call("session_verify"),
    "stats": Call("session_stats", "figures"),
    "catch_up": Call("session_catch_up", "views"),
    "review": Call("session_review"),
    "compact": Call("compaction", if_it_fails=True),
    "compactor": Call("compaction", if_it_fails=True),
}

USER: Final[Mapping[str, Call]] = {"status": Call("memory_load", "scopes")}

STORE: Final[Mapping[str, Call]] = {
    "sessions": Call("session_list", "sessions"),
    "memory": Call("memory_load"),
    "advice": Call("memory_load"),
    "shared_memory": Call("memory_load", named=False),
    "profile": Call("memory_load"),
    "reviews": Call("review_list", "questions"),
    "stats": Call("stats", "figures"),
    "catch_up": Call("catch_up", "views"),
    "recheck": Call("recheck", "sessions"),
    "reredact": Call("reredact", "sessions"),
    "rebuild": Call("rebuild", "sessions"),
    "repair": Call("repair", "streams"),
    "seal": Call("seal"),
    "verify_seals": Call("verify_seals"),
    "export_user": Call("export"),
    "rotate_master_key": Call("key_rotation", "keys"),
    "rotate_user_key": Call("key_rotation", "keys"),
    "rotate_session_key": Call("key_rotation"),
    "key_status": Call("key_status", "figures"),
    "erase": Call("erasure", named=False),
    "erase_due": Call("erasure", "erasures", named=False),
    "plan_erasure": Call("erasure_plan", named=False),
    "erasures": Call("erasure_list", "erasures"),
    "restore": Call("restore", named=False),
    "readmit": Call("readmit", named=False),
    "hold": Call("hold", named=False),
    "release_hold": Call("hold_release", named=False),
    "holds": Call("hold_list", "holds", named=False),
    "certificates": Call("certificate_list", "certificates", named=False),
    "freeze": Call("freeze", named=False),
    "unfreeze": Call("unfreeze", named=False),
    "is_frozen": Call("hold_list", named=False),
    "accesses": Call("access_list", "sessions"),
    "retain": Call("retention", named=False),
    "audit_records": Call("audit_read", "records"),
    "purge_audit": Call("audit_purge", "records"),
}

# Not recorded themselves, each for its reason; a test asks for all that is public.
ELSEWHERE: Final[Mapping[str, str]] = {
    "Session.append": "every append is recorded, by whatever it is made",
    "Session.append_async": "the same",
    "Session.close": "the same",
    "Session.record_request": "the same",
    "Session.attempt": "the same",
    "Session.decide": "the same",
    "User.consent": "the same",
    "User.withdraw": "the same",
    "User.opt_out": "the same",
    "User.opt_in": "the same",
    "User.forget": "the same",
    "User.prefer": "the same",
    "User.unprefer": "the same",
    "Session.fork": "it looks at the head, and appends",
    "Session.at": "it looks at the head",
    "Session.delegate": "it looks at the head, and appends",
    "Session.hand_over": "it reads, and appends to another session",
    "Session.parent": "it reads the first event",
    "SessionStore.verify": "each session is recorded, when it is proved",
    "SessionStore.session": "it reads nothing",
    "SessionStore.user": "it reads nothing",
    "SessionStore.public_key": "it is public",
    "SessionStore.flush_audit": "it reads nothing",
    "SessionStore.close": "what waits to be recorded is written by it",
}
