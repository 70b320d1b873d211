"""Rules for what carries its own form: keys in PEM, JWT, URLs, hashes, headers."""

from __future__ import annotations

from refold.redaction.checks.names import words as known
from refold.redaction.rules.rule import load
from refold.redaction.rules.secrets import issuers

# Up to where a key may go on: lines, with dashes here and there, of no other key.
_BODY = r"(?:[^\-]{0,16384}+(?:-(?!----(?:BEGIN|END))[^\-]{0,160}+){0,128}+){0,2}+"
# JSON may escape them, and JSON in JSON escapes what escapes them.
_SLASHES = ("://", ":\\/\\/", ":\\\\/\\\\/", ":\\\\\\\\/\\\\\\\\/")


CREDENTIALS = load(globals(), "credentials", issuers)


_COOKIES = (
    r"[A-Za-z_][\w.\-]{0,64}=[^\s\"'`\\;]{1,4096}+"
    r"(?:;[ \t]?[\w.\-]{1,64}(?:=[^\s\"'`\\;]{0,4096}+)?){0,40}"
)

HEADERS = load(globals(), "headers", issuers)


FORMS = load(globals(), "forms", issuers)


# Vendors whose keys have no mark of their own.
_VENDORS = known("vendors")
_NEAR_VENDORS = "|".join(_VENDORS)

NAMED = load(globals(), "named", issuers)
