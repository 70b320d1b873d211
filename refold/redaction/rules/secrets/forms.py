"""Rules for what carries its own form: keys in PEM, JWT, URLs, hashes, headers."""

from __future__ import annotations

from refold.redaction.checks.names import words as known
from refold.redaction.rules.rule import load
from refold.redaction.rules.secrets import issuers

# JSON may escape them, and JSON in JSON escapes what escapes them.
_SLASHES = ("://", ":\\/\\/", ":\\\\/\\\\/", ":\\\\\\\\/\\\\\\\\/")


CREDENTIALS = load(globals(), "credentials", issuers)


HEADERS = load(globals(), "headers", issuers)


FORMS = load(globals(), "forms", issuers)


# Vendors whose keys have no mark of their own.
_VENDORS = known("vendors")
_NEAR_VENDORS = "|".join(_VENDORS)

NAMED = load(globals(), "named", issuers)
