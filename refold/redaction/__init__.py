"""What must not be written: rules, the redactor, and the size guard."""

from refold.redaction.chokepoint import redact_payload, skipped
from refold.redaction.guard import Blob, Guarded, Limits, TooLarge, guard
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.redaction.rules import DEFAULT_RULES
from refold.redaction.rules.rule import Candidate, Rule
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
    "Blob",
    "Candidate",
    "Guarded",
    "JsonObject",
    "JsonValue",
    "Limits",
    "Plan",
    "RedactionError",
    "Redactor",
    "Rule",
    "Skip",
    "Tally",
    "TooLarge",
    "guard",
    "redact_payload",
    "skipped",
]
