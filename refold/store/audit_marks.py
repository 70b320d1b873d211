"""What is part of what in the audit log, and how a call failed."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Final

from refold.domain.audit import Access
from refold.domain.errors import Erased, Frozen, OnHold, RefoldError, SessionNotFound

APPEND: Final = "session_append_event"
_DENIED: Final = (SessionNotFound, Erased, Frozen, OnHold)
_ERRORS: Final = RefoldError.__module__
_inside: ContextVar[str | None] = ContextVar("refold_audit_inside", default=None)


def enter(event: str) -> Token[str | None]:
    """What is read from here on is part of ``event``, until ``leave``."""
    return _inside.set(event)


def leave(token: Token[str | None]) -> None:
    """The end of it."""
    _inside.reset(token)


def is_inside(event: str | None = None) -> bool:
    """Whether this is part of such an event, or any: its caller is recorded."""
    inside = _inside.get()
    return inside is not None if event is None else inside == event


def failed(access: Access, error: BaseException, spent: int) -> Access:
    """The access as it failed after ``spent`` nanoseconds; no word of the error."""
    return access._replace(
        duration_us=spent // 1000,
        status="denied" if isinstance(error, _DENIED) else "error",
        error=_name(error),
    )


def _name(error: BaseException) -> str:
    """Of ours its type; the name of another's type could say anything."""
    if type(error).__module__ == _ERRORS:
        return type(error).__name__
    return "Unexpected" if isinstance(error, Exception) else "Interrupted"
