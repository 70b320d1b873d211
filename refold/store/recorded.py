"""The decorator for methods whose calls the access log records.

The object of a recorded method has the access log as ``writer.audit``.  None there
means that nothing is recorded.  A call inside another recorded call is part of that
call and is not recorded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from time import perf_counter_ns
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    NamedTuple,
    ParamSpec,
    TypeVar,
)

from refold.domain import errors
from refold.domain.envelope import Envelope

if TYPE_CHECKING:
    from refold.domain.access_log import Access, AccessTrail, Counts, Status

_Owner = TypeVar("_Owner")
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Method = Callable[Concatenate[_Owner, _Parameters], _Result]
# The seq of a result, such as that of a head, and the numbers in the call's record.
_Measured = tuple[int | None, "Counts"]
_Measure = Callable[[Any], _Measured]
# The user and the session that a call is about.
_Subject = tuple[str | None, str | None]

# Calls that raise these errors are recorded as denied; other errors are failures.
_DENIED: Final = (
    errors.SessionNotFound,
    errors.ShareNotFound,
    errors.Erased,
    errors.Frozen,
    errors.OnHold,
)

# The event that is being recorded now, if any.
recording: ContextVar[str | None] = ContextVar("refold_access_recording", default=None)
# The id of the HTTP request that is being answered, if any.
request_of: ContextVar[str | None] = ContextVar("refold_request", default=None)
_renamed: ContextVar[str | None] = ContextVar("refold_access_renamed", default=None)


class Recording(NamedTuple):
    """How calls of one method are recorded.

    event:         the name of the record: ``session_load``, ``erasure`` …
    counts:        the name of the number in the record: the length of the result, or
                   the result itself if it is an integer.
    measure:       computes the seq and the numbers from the result instead.
    named:         False leaves user and session out of the record.  A signed
                   certificate already names them, and the time of the record would
                   reveal to whom a keyed hash belongs.
    only_failures: True records only calls that raise; a call that succeeds is recorded
                   by the append that it makes.
    """

    event: str
    counts: str = "events"
    measure: _Measure | None = None
    named: bool = True
    only_failures: bool = False


def recorded(
    event: str,
    counts: str = "events",
    *,
    measure: _Measure | None = None,
    named: bool = True,
    only_failures: bool = False,
) -> Callable[
    [_Method[_Owner, _Parameters, _Result]], _Method[_Owner, _Parameters, _Result]
]:
    """Record each call of the decorated method; ``Recording`` describes the options.

    If the method returns an iterator, the call is recorded when the iterator ends or is
    closed.  A call that raises is recorded with the name of the error and never with
    its text.
    """
    options = Recording(event, counts, measure, named, only_failures)

    def decorate(
        method: _Method[_Owner, _Parameters, _Result],
    ) -> _Method[_Owner, _Parameters, _Result]:
        call = _recorded(method, options)
        call.recording = options  # type: ignore[attr-defined]  # for ``recording_of``
        return call

    return decorate


def recording_of(method: Callable[..., Any]) -> Recording | None:
    """Return how calls of a method are recorded; None without the decorator."""
    options: Recording | None = getattr(method, "recording", None)
    return options


@contextmanager
def recorded_as(event: str) -> Iterator[None]:
    """Record the calls in this block under another name, such as ``export``."""
    token = _renamed.set(event)
    try:
        yield
    finally:
        _renamed.reset(token)


def failed(access: Access, error: BaseException, nanoseconds: int) -> Access:
    """Return the access, marked as failed.  It has no text of the error."""
    name = "Unexpected" if isinstance(error, Exception) else "Interrupted"
    if type(error).__module__ == errors.RefoldError.__module__:
        name = type(error).__name__
    status: Status = "denied" if isinstance(error, _DENIED) else "error"
    return access._replace(duration_us=nanoseconds // 1000, status=status, error=name)


def view_size(view: Any) -> _Measured:
    """Return the seq of a ``View``, and how many messages and tokens it has."""
    return view.at, {"messages": len(view.messages), "tokens": view.tokens}


def verified_size(verified: Any) -> _Measured:
    """Return how many events and problems a ``Verified`` has."""
    return None, {"events": verified.events, "problems": len(verified.problems)}


def head_seq(head: Any) -> _Measured:
    """Return the seq of a ``Head``."""
    return head.seq, {}


def _recorded(
    method: _Method[_Owner, _Parameters, _Result], options: Recording
) -> _Method[_Owner, _Parameters, _Result]:
    names = list(signature(method).parameters)[1:]

    @wraps(method)
    def call(
        self: _Owner, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> _Result:
        audit: AccessTrail | None = self.writer.audit  # type: ignore[attr-defined]  # all owners have one
        if audit is None or recording.get() is not None:
            return method(self, *args, **kwargs)
        from refold.domain.access_log import Access

        event = _renamed.get() or options.event
        subject: _Subject = (None, None)
        if options.named:
            subject = _subject(self, names, args, kwargs)
        access = Access(event, *subject, request_of.get())
        token = recording.set(event)
        started = perf_counter_ns()
        try:
            result = method(self, *args, **kwargs)
        except BaseException as error:
            audit.note(failed(access, error, perf_counter_ns() - started))
            raise
        finally:
            recording.reset(token)
        if options.only_failures:
            return result
        nanoseconds = perf_counter_ns() - started
        if isinstance(result, Iterator):
            items: Any = _recorded_iterator(
                result, audit, access, options.counts, nanoseconds
            )
            return items  # type: ignore[no-any-return]  # an iterator, like the result
        if options.measure:
            seq, counts = options.measure(result)
        else:
            seq, counts = _size(result, options.counts)
        duration = nanoseconds // 1000
        audit.note(access._replace(seq=seq, duration_us=duration, counts=counts))
        return result

    return call


def _recorded_iterator(
    items: Iterator[Any],
    audit: AccessTrail,
    access: Access,
    counts: str,
    nanoseconds: int,
) -> Iterator[Any]:
    """Yield the items; then record how many there were and how long they took."""
    count = 0
    last: Any = None
    try:
        while True:
            token = recording.set(access.event)
            started = perf_counter_ns()
            try:
                last = next(items)
            except StopIteration:
                return
            finally:
                recording.reset(token)
                nanoseconds += perf_counter_ns() - started
            count += 1
            yield last
    except GeneratorExit:
        raise
    except BaseException as error:
        access = failed(access, error, nanoseconds)
        raise
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()
        access = access._replace(seq=_seq(last), duration_us=nanoseconds // 1000)
        audit.note(access._replace(counts={counts: count}))


def _seq(result: Any) -> int | None:
    return result.seq if isinstance(result, Envelope) else None


def _size(result: Any, name: str) -> _Measured:
    """Return the seq of the newest event in a result, and the size of the result.

    name: the key of the size.
    """
    match result:
        case list():
            newest = result[-1] if result else None
            return _seq(newest), {name: len(result)}
        case dict():
            return None, {name: len(result)}
        case str():
            return None, {"characters": len(result)}
        case int() if not isinstance(result, bool):
            return None, {name: result}
    return None, {}


def _subject(
    owner: Any, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Subject:
    """Return the user and session of a call: from its arguments, else from its object.

    names: the names of the method's parameters, without ``self``.
    """
    if "user_id" in names or "session_id" in names:
        arguments = dict(zip(names, args, strict=False)) | dict(kwargs)
        return arguments.get("user_id"), arguments.get("session_id")
    return getattr(owner, "user_id", None), getattr(owner, "session_id", None)
