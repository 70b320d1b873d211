"""Redactors that know fewer or more rules, for values that are found later."""

from __future__ import annotations

from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.redaction.rules.default import DEFAULT_RULES

MAIL = "ada.lovelace@analytical.org"
GONE = "[REDACTED:EMAIL]"


def unaware() -> Redactor:
    """Return a redactor that finds nothing."""
    return Redactor(Plan(name="unaware", rules=()))


def aware(*types: str) -> Redactor:
    """Return a redactor that finds these types, or e-mail addresses."""
    wanted = types or ("EMAIL",)
    rules = tuple(rule for rule in DEFAULT_RULES if rule.type in wanted)
    return Redactor(Plan(name="aware", rules=rules))
