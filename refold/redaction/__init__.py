"""What must not be written: rules, the redactor, and the size guard."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from refold.redaction.checks import Candidate as Candidate
    from refold.redaction.chokepoint import (
        redact_payload as redact_payload,
        skipped as skipped,
    )
    from refold.redaction.guard import (
        Guarded as Guarded,
        Limits as Limits,
        TooLarge as TooLarge,
        guard as guard,
    )
    from refold.redaction.pieces import (
        RedactingFilter as RedactingFilter,
        RedactingWriter as RedactingWriter,
        StreamRedactor as StreamRedactor,
        redacted_lines as redacted_lines,
    )
    from refold.redaction.plan import Plan as Plan, Span as Span
    from refold.redaction.policy import Policy as Policy, PolicyError as PolicyError
    from refold.redaction.redactor import Redactor as Redactor
    from refold.redaction.registered import Registered as Registered
    from refold.redaction.rules import DEFAULT_RULES as DEFAULT_RULES
    from refold.redaction.rules.rule import Rule as Rule
    from refold.redaction.values import (
        NO_SKIP as NO_SKIP,
        JsonObject as JsonObject,
        JsonValue as JsonValue,
        RedactionError as RedactionError,
        Skip as Skip,
        Tally as Tally,
    )

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
__all__ = sorted(_PLACE)


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: a size guard needs no rules."""
    if name not in _PLACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACE[name]}"), name)
    globals()[name] = value
    return value
