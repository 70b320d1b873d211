"""Packs of rules, by the names that policies use."""

from collections.abc import Mapping
from types import MappingProxyType

from refold.redaction.packs.china import PII_CN
from refold.redaction.packs.common import PII_COMMON
from refold.redaction.packs.europe import PII_EU
from refold.redaction.packs.network import NETWORK
from refold.redaction.packs.person import PERSON
from refold.redaction.packs.secrets import SECRETS, SECRETS_EXTENDED
from refold.redaction.packs.us import PII_US
from refold.redaction.rule import Rule

PACKS: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        "pii-common": PII_COMMON,
        "pii-cn": PII_CN,
        "secrets": SECRETS,
        "pii-us": PII_US,
        "pii-eu": PII_EU,
        "network": NETWORK,
        "secrets-extended": SECRETS_EXTENDED,
        "person": PERSON,
    }
)
DEFAULT_PACKS = ("pii-common", "pii-cn", "secrets")
