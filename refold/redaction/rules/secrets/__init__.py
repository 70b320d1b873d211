"""Packs ``secrets`` and ``secrets-extended``: what opens a door."""

from refold.redaction.rules.secrets.assigned import ASSIGNED
from refold.redaction.rules.secrets.commands import COMMANDS
from refold.redaction.rules.secrets.forms import CREDENTIALS, FORMS, HEADERS, NAMED
from refold.redaction.rules.secrets.issuers import OTHER_VENDORS, VENDORS

SECRETS = (*CREDENTIALS, *HEADERS, *ASSIGNED, *COMMANDS, *FORMS, *VENDORS)
SECRETS_EXTENDED = (*NAMED, *OTHER_VENDORS)
