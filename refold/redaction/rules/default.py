"""The rules of the packs that Refold uses by default."""

from __future__ import annotations

from typing import Final

from refold.redaction.rules import DEFAULT_PACKS, PACKS
from refold.redaction.rules.rule import Rule

DEFAULT_RULES: Final[tuple[Rule, ...]] = tuple(
    rule for pack in DEFAULT_PACKS for rule in PACKS[pack]
)
