"""Packs of rules, by the names that policies use."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from refold.redaction.rules.china import PII_CN
from refold.redaction.rules.common import PII_COMMON
from refold.redaction.rules.europe import PII_EU
from refold.redaction.rules.network import NETWORK
from refold.redaction.rules.person import PERSON
from refold.redaction.rules.rule import Rule
from refold.redaction.rules.secrets import SECRETS, SECRETS_EXTENDED
from refold.redaction.rules.us import PII_US

PACKS: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        "pii-common": PII_COMMON,
        "pii-cn": PII_CN,
        "pii-us": PII_US,
        "secrets": SECRETS,
        "pii-eu": PII_EU,
        "network": NETWORK,
        "secrets-extended": SECRETS_EXTENDED,
        "person": PERSON,
    }
)
DEFAULT_PACKS = ("pii-common", "pii-cn", "pii-us", "secrets")
DEFAULT_RULES: tuple[Rule, ...] = tuple(
    rule for pack in DEFAULT_PACKS for rule in PACKS[pack]
)
