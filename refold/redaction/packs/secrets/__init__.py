"""Packs ``secrets`` and ``secrets-extended``: what opens a door."""

from refold.redaction.packs.secrets.assigned import ASSIGNED
from refold.redaction.packs.secrets.commands import COMMANDS
from refold.redaction.packs.secrets.credentials import CREDENTIALS
from refold.redaction.packs.secrets.forms import FORMS
from refold.redaction.packs.secrets.headers import HEADERS
from refold.redaction.packs.secrets.named import NAMED
from refold.redaction.packs.secrets.vendors import OTHER_VENDORS, VENDORS
from refold.redaction.rule import Rule

SECRETS: tuple[Rule, ...] = (
    *CREDENTIALS, *HEADERS, *ASSIGNED, *COMMANDS, *FORMS, *VENDORS,
)  # fmt: skip
SECRETS_EXTENDED: tuple[Rule, ...] = (*NAMED, *OTHER_VENDORS)
