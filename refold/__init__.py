"""Refold keeps everything an agent session did: append once, refold any time.

``refold.open`` gives a store, ``store.session`` a session, ``session.append``
records events and ``session.context`` shows what the next model call is sent.  What a
first page of code does not need is in rooms: ``refold.errors``, ``refold.events``,
``refold.redaction``, ``refold.strategies``, ``refold.memory``, ``refold.review``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold import (
        errors as errors,
        events as events,
        memory as memory,
        redaction as redaction,
        review as review,
        strategies as strategies,
    )
    from refold.domain.envelope import Draft, Envelope
    from refold.domain.erasure import RetentionPolicy
    from refold.domain.errors import (
        CorruptEvent,
        Erased,
        EventTooLarge,
        IdempotencyConflict,
        InvalidConfiguration,
        InvalidEvent,
        KeyUnavailable,
        RedactionFailed,
        RefoldError,
        SessionClosed,
        SessionNotFound,
        StaleSession,
        StoreUnavailable,
        UnknownStrategy,
    )
    from refold.domain.events import (
        AgentError,
        AgentResponse,
        Aggregate,
        Final,
        Fork,
        HumanReview,
        Pin,
        Planner,
        Reflection,
        Request,
        StateUpdate,
        Summary,
        SystemPrompt,
        ToolCall,
        ToolResult,
        UserInput,
    )
    from refold.opener import (
        open_store as open,  # noqa: A004  # refold.open reads well
        redact,
    )
    from refold.redaction.policy import Policy
    from refold.store.appends import Receipt
    from refold.store.sessions import Session
    from refold.store.store import SessionStore

__version__ = "0.1.0"

__all__ = [
    "AgentError",
    "AgentResponse",
    "Aggregate",
    "CorruptEvent",
    "Draft",
    "Envelope",
    "Erased",
    "EventTooLarge",
    "Final",
    "Fork",
    "HumanReview",
    "IdempotencyConflict",
    "InvalidConfiguration",
    "InvalidEvent",
    "KeyUnavailable",
    "Pin",
    "Planner",
    "Policy",
    "Receipt",
    "RedactionFailed",
    "Reflection",
    "RefoldError",
    "Request",
    "RetentionPolicy",
    "Session",
    "SessionClosed",
    "SessionNotFound",
    "SessionStore",
    "StaleSession",
    "StateUpdate",
    "StoreUnavailable",
    "Summary",
    "SystemPrompt",
    "ToolCall",
    "ToolResult",
    "UnknownStrategy",
    "UserInput",
    "__version__",
    "open",
    "redact",
]
_ROOMS = frozenset({"errors", "events", "memory", "redaction", "review", "strategies"})
# Where the names are that are neither errors nor what an event is.
_PLACES = {
    "Draft": "refold.domain.envelope",
    "Envelope": "refold.domain.envelope",
    "Policy": "refold.redaction.policy",
    "Receipt": "refold.store.appends",
    "RetentionPolicy": "refold.domain.erasure",
    "Session": "refold.store.sessions",
    "SessionStore": "refold.store.store",
    "open": "refold.opener",
    "redact": "refold.opener",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing refold stays fast."""
    if name in _ROOMS:
        return import_module(f"refold.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'refold' has no attribute {name!r}")
    stored = "open_store" if name == "open" else name
    place = import_module(_PLACES.get(name, "refold.domain.errors"))
    if not hasattr(place, stored):
        place = import_module("refold.domain.events")
    return globals().setdefault(name, getattr(place, stored))


def __dir__() -> list[str]:
    return __all__
