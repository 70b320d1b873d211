"""The rules that are used unless others are given."""

from refold.redaction.credentials import CREDENTIALS
from refold.redaction.personal import PERSONAL
from refold.redaction.rule import Rule
from refold.redaction.vendors import VENDORS

DEFAULT_RULES: tuple[Rule, ...] = (*PERSONAL, *CREDENTIALS, *VENDORS)

__all__ = ["DEFAULT_RULES", "Rule"]
