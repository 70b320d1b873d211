"""What must not be written: rules, the redactor, and the size guard."""

from refold.redaction.engine import Redactor
from refold.redaction.guard import Blob, Guarded, Limits, TooLarge, guard
from refold.redaction.payload import redact_payload, skipped
from refold.redaction.rule import Candidate, Rule
from refold.redaction.rules import DEFAULT_RULES
from refold.redaction.values import (
    NO_SKIP,
    Counts,
    JsonObject,
    JsonValue,
    RedactionError,
    Skip,
)

__all__ = [
    "DEFAULT_RULES",
    "NO_SKIP",
    "Blob",
    "Candidate",
    "Counts",
    "Guarded",
    "JsonObject",
    "JsonValue",
    "Limits",
    "RedactionError",
    "Redactor",
    "Rule",
    "Skip",
    "TooLarge",
    "guard",
    "redact_payload",
    "skipped",
]
