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
_PLACES = {
    "refold.domain.envelope": ("Draft", "Envelope"),
    "refold.domain.erasure": ("RetentionPolicy",),
    "refold.domain.errors": (
        "CorruptEvent",
        "Erased",
        "EventTooLarge",
        "IdempotencyConflict",
        "InvalidConfiguration",
        "InvalidEvent",
        "KeyUnavailable",
        "RedactionFailed",
        "RefoldError",
        "SessionClosed",
        "SessionNotFound",
        "StaleSession",
        "StoreUnavailable",
        "UnknownStrategy",
    ),
    "refold.domain.events": (
        "AgentError",
        "AgentResponse",
        "Aggregate",
        "Final",
        "Fork",
        "HumanReview",
        "Pin",
        "Planner",
        "Reflection",
        "Request",
        "StateUpdate",
        "Summary",
        "SystemPrompt",
        "ToolCall",
        "ToolResult",
        "UserInput",
    ),
    "refold.opener": ("open", "redact"),
    "refold.redaction.policy": ("Policy",),
    "refold.store.appends": ("Receipt",),
    "refold.store.sessions": ("Session",),
    "refold.store.store": ("SessionStore",),
}
_PLACE = {name: place for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing refold stays fast."""
    if name in _ROOMS:
        return import_module(f"refold.{name}")
    if name not in _PLACE:
        raise AttributeError(f"module 'refold' has no attribute {name!r}")
    place = import_module(_PLACE[name])
    value = getattr(place, "open_store" if name == "open" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
