"""Packs ``secrets`` and ``secrets-extended``: what opens a door."""

from refold.redaction.rules.rule import Rule
from refold.redaction.rules.secrets.assigned import ASSIGNED, COMMANDS
from refold.redaction.rules.secrets.forms import CREDENTIALS, FORMS, HEADERS, NAMED
from refold.redaction.rules.secrets.issuers import OTHER_VENDORS, VENDORS

SECRETS: tuple[Rule, ...] = (
    *CREDENTIALS, *HEADERS, *ASSIGNED, *COMMANDS, *FORMS, *VENDORS,
)  # fmt: skip
SECRETS_EXTENDED: tuple[Rule, ...] = (*NAMED, *OTHER_VENDORS)
