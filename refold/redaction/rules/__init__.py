"""Packs of rules, by the names that policies use."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from refold.redaction.checks.names import IBANS
from refold.redaction.rules.rule import Rule, load
from refold.redaction.rules.secrets import SECRETS, SECRETS_EXTENDED

PACKS: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        "pii-common": (
            *load("common", "pii_common", {"IBANS": IBANS}),
            *load("personal", "personal"),
            *load("network", "network_in_context"),
            *load("address", "address_en"),
        ),
        "pii-cn": (*load("china", "pii_cn"), *load("address", "address_cn")),
        "pii-us": load("us", "pii_us"),
        "secrets": SECRETS,
        "pii-eu": load("europe", "pii_eu"),
        "network": load("network", "network"),
        "secrets-extended": SECRETS_EXTENDED,
        "person": load("person", "person"),
    }
)
DEFAULT_PACKS = ("pii-common", "pii-cn", "pii-us", "secrets")
DEFAULT_RULES: tuple[Rule, ...] = tuple(
    rule for pack in DEFAULT_PACKS for rule in PACKS[pack]
)
