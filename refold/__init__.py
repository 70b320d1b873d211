"""Refold keeps everything an agent session did: append once, refold any time.

``refold.open`` gives a store, ``store.session`` a session, ``session.append``
records events and ``session.context`` shows what the next model call is sent.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold.domain.envelope import Draft, Envelope, Meta
    from refold.domain.erasure import RetentionPolicy
    from refold.domain.errors import (
        AlreadyDecided,
        CorruptEvent,
        CountingFailed,
        Erased,
        EventTooLarge,
        Expired,
        ExportFailed,
        Frozen,
        IdempotencyConflict,
        ImportFailed,
        IncompatibleStore,
        InvalidConfiguration,
        InvalidEvent,
        KeyUnavailable,
        NotErased,
        OnHold,
        RecordingFailed,
        RedactionFailed,
        RefoldError,
        SealBroken,
        SessionClosed,
        SessionNotFound,
        StaleSession,
        StoreUnavailable,
        SummarizerFailed,
        SummaryRefused,
        UnknownModel,
        UnknownStrategy,
    )
    from refold.domain.events import (
        AgentError,
        AgentResponse,
        Aggregate,
        Attachment,
        CompactionNote,
        Consent,
        Final,
        Forget,
        Fork,
        HumanReview,
        Pin,
        Planner,
        ProviderEdit,
        RedactionApplied,
        Reflection,
        Request,
        StateUpdate,
        Summary,
        SystemPrompt,
        Thinking,
        ToolCall,
        ToolResult,
        UserInput,
        Verdict,
    )
    from refold.opener import (
        open_store as open,  # noqa: A004  # refold.open reads well
        redact,
    )
    from refold.projections.models import Prices, price_of, register_model, window_of
    from refold.projections.review.rules import ReviewRules
    from refold.projections.tokens import Calibrated, TokenCounter
    from refold.redaction.guard import Limits
    from refold.redaction.policy import Policy, PolicyError
    from refold.redaction.redactor import Redactor
    from refold.redaction.registered import Registered
    from refold.redaction.streaming import (
        RedactingFilter,
        RedactingWriter,
        StreamRedactor,
        redacted_lines,
    )
    from refold.store import Receipt, Session, SessionStore
    from refold.store.contexts import for_agent
    from refold.store.sessions import delegate, hand_over, parent_of

__version__ = "0.1.0"

__all__ = [
    "AgentError",
    "AgentResponse",
    "Aggregate",
    "AlreadyDecided",
    "Attachment",
    "Calibrated",
    "CompactionNote",
    "Consent",
    "CorruptEvent",
    "CountingFailed",
    "Draft",
    "Envelope",
    "Erased",
    "EventTooLarge",
    "Expired",
    "ExportFailed",
    "Final",
    "Forget",
    "Fork",
    "Frozen",
    "HumanReview",
    "IdempotencyConflict",
    "ImportFailed",
    "IncompatibleStore",
    "InvalidConfiguration",
    "InvalidEvent",
    "KeyUnavailable",
    "Limits",
    "Meta",
    "NotErased",
    "OnHold",
    "Pin",
    "Planner",
    "Policy",
    "PolicyError",
    "Prices",
    "ProviderEdit",
    "Receipt",
    "RecordingFailed",
    "RedactingFilter",
    "RedactingWriter",
    "RedactionApplied",
    "RedactionFailed",
    "Redactor",
    "Reflection",
    "RefoldError",
    "Registered",
    "Request",
    "RetentionPolicy",
    "ReviewRules",
    "SealBroken",
    "Session",
    "SessionClosed",
    "SessionNotFound",
    "SessionStore",
    "StaleSession",
    "StateUpdate",
    "StoreUnavailable",
    "StreamRedactor",
    "SummarizerFailed",
    "Summary",
    "SummaryRefused",
    "SystemPrompt",
    "Thinking",
    "TokenCounter",
    "ToolCall",
    "ToolResult",
    "UnknownModel",
    "UnknownStrategy",
    "UserInput",
    "Verdict",
    "__version__",
    "delegate",
    "for_agent",
    "hand_over",
    "open",
    "parent_of",
    "price_of",
    "redact",
    "redacted_lines",
    "register_model",
    "window_of",
]
_MODULES = (
    "refold.domain.events",
    "refold.domain.errors",
    "refold.domain.envelope",
    "refold.domain.erasure",
    "refold.projections.models",
    "refold.projections.review.rules",
    "refold.projections.tokens",
    "refold.opener",
    "refold.redaction.redactor",
    "refold.redaction.guard",
    "refold.redaction.policy",
    "refold.redaction.registered",
    "refold.redaction.streaming",
    "refold.store",
    "refold.store.contexts",
    "refold.store.sessions",
)


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing refold stays fast."""
    if name not in __all__:
        raise AttributeError(f"module 'refold' has no attribute {name!r}")
    if name == "open":
        value = import_module("refold.opener").open_store
    else:
        modules = (import_module(module) for module in _MODULES)
        value = next(getattr(m, name) for m in modules if hasattr(m, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
