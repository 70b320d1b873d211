# What `import refold` offers; each name is loaded when it is first used.

from . import (
    errors as errors,
    events as events,
    memory as memory,
    redaction as redaction,
    review as review,
    strategies as strategies,
)
from .domain.envelope import Draft as Draft, Envelope as Envelope
from .domain.erasure import RetentionPolicy as RetentionPolicy
from .domain.errors import (
    CorruptEvent as CorruptEvent,
    Erased as Erased,
    EventTooLarge as EventTooLarge,
    IdempotencyConflict as IdempotencyConflict,
    InvalidConfiguration as InvalidConfiguration,
    InvalidEvent as InvalidEvent,
    KeyUnavailable as KeyUnavailable,
    RedactionFailed as RedactionFailed,
    RefoldError as RefoldError,
    SessionClosed as SessionClosed,
    SessionNotFound as SessionNotFound,
    StaleSession as StaleSession,
    StoreUnavailable as StoreUnavailable,
    UnknownStrategy as UnknownStrategy,
)
from .domain.events import (
    AgentError as AgentError,
    AgentResponse as AgentResponse,
    Aggregate as Aggregate,
    Final as Final,
    Fork as Fork,
    HumanReview as HumanReview,
    Pin as Pin,
    Planner as Planner,
    Reflection as Reflection,
    Request as Request,
    StateUpdate as StateUpdate,
    Summary as Summary,
    SystemPrompt as SystemPrompt,
    ToolCall as ToolCall,
    ToolResult as ToolResult,
    UserInput as UserInput,
)
from .opener import (
    open as open,  # noqa: A004  # refold.open reads well
    redact as redact,
)
from .redaction.policy import Policy as Policy
from .store.appends import Receipt as Receipt
from .store.session.session import Session as Session
from .store.store import SessionStore as SessionStore

__version__: str
# Without open and Final: by star they would hide Python's own.
__all__ = [
    "AgentError",
    "AgentResponse",
    "Aggregate",
    "CorruptEvent",
    "Draft",
    "Envelope",
    "Erased",
    "EventTooLarge",
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
    "redact",
]
