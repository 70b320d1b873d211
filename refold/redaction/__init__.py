"""What must not be written: rules, the redactor, and the size guard."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from refold.redaction.checks import Candidate
    from refold.redaction.chokepoint import redact_payload, skipped
    from refold.redaction.guard import Guarded, Limits, TooLarge, guard
    from refold.redaction.pieces import (
        RedactingFilter,
        RedactingWriter,
        StreamRedactor,
        redacted_lines,
    )
    from refold.redaction.plan import Plan, Span
    from refold.redaction.policy import Policy, PolicyError
    from refold.redaction.redactor import Redactor
    from refold.redaction.registered import Registered
    from refold.redaction.rules import DEFAULT_RULES
    from refold.redaction.rules.rule import Rule
    from refold.redaction.values import (
        NO_SKIP,
        JsonObject,
        JsonValue,
        RedactionError,
        Skip,
        Tally,
    )

__all__ = [
    "DEFAULT_RULES",
    "NO_SKIP",
    "Candidate",
    "Guarded",
    "JsonObject",
    "JsonValue",
    "Limits",
    "Plan",
    "Policy",
    "PolicyError",
    "RedactingFilter",
    "RedactingWriter",
    "RedactionError",
    "Redactor",
    "Registered",
    "Rule",
    "Skip",
    "Span",
    "StreamRedactor",
    "Tally",
    "TooLarge",
    "guard",
    "redact_payload",
    "redacted_lines",
    "skipped",
]
_PLACES: Final = {
    "chokepoint": ("redact_payload", "skipped"),
    "guard": ("Guarded", "Limits", "TooLarge", "guard"),
    "plan": ("Plan", "Span"),
    "redactor": ("Redactor",),
    "policy": ("Policy", "PolicyError"),
    "registered": ("Registered",),
    "rules": ("DEFAULT_RULES",),
    "checks": ("Candidate",),
    "rules.rule": ("Rule",),
    "pieces": (
        "RedactingFilter",
        "RedactingWriter",
        "StreamRedactor",
        "redacted_lines",
    ),
    "values": ("NO_SKIP", "JsonObject", "JsonValue", "RedactionError", "Skip", "Tally"),
}
_PLACE: Final = {name: place for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: a size guard needs no rules."""
    if name not in _PLACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACE[name]}"), name)
    globals()[name] = value
    return value
