"""The rules that are used unless others are given."""

from refold.redaction.packs import DEFAULT_PACKS, PACKS
from refold.redaction.rule import Rule

DEFAULT_RULES: tuple[Rule, ...] = tuple(
    rule for pack in DEFAULT_PACKS for rule in PACKS[pack]
)

__all__ = ["DEFAULT_RULES", "Rule"]
