"""What a redactor is to do, checked and complete: a policy becomes one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import orjson

from refold.redaction.engines import EngineName
from refold.redaction.rule import Rule
from refold.redaction.rules import DEFAULT_RULES
from refold.redaction.values import NO_SKIP, Skip

Action: TypeAlias = Literal["redact", "keep", "drop_leaf"]
# (type, value) to the eight characters that stand for the value, always the same.
Tagger: TypeAlias = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Plan:
    """Rules, and what is done with what they find.

    min_score:      from which score on a value is found, from 0 to 1.
    actions:        by type: ``redact`` (the default), ``keep``, or ``drop_leaf``, which
                    replaces the whole text that holds such a value.
    allow_values:   exact values that are never redacted; they win over every rule.
    allow_patterns: patterns; a value that one matches as a whole is never redacted.
    skip:           paths of a value that are left alone.
    skip_keys:      keys under which everything is left alone, wherever they stand.
    keys:           whether keys are redacted too.
    numbers:        integers are redacted with context or a checksum, never, or like
                    text.
    nested_json:    whether JSON in strings is redacted as JSON.
    labels:         by type: what stands between the brackets of its placeholder,
                    instead of ``REDACTED:TYPE``.
    audit:          what a receipt says: that it was scanned, counts, or also paths.
    on_error:       an error refuses the value, or replaces the text it happened in.
    max_leaf_bytes: a longer text is refused.
    budget_ms:      how long one value may take at most; 0: as long as it needs.
    pseudonyms:     placeholders carry a tag, the same for equal values of a user.
    """

    name: str = "default"
    rules: tuple[Rule, ...] = DEFAULT_RULES
    engine: EngineName = "auto"
    min_score: float = 0.6
    actions: Mapping[str, Action] = field(default_factory=dict)
    allow_values: frozenset[str] = frozenset()
    allow_patterns: tuple[str, ...] = ()
    skip: Skip = NO_SKIP
    skip_keys: frozenset[str] = frozenset()
    keys: bool = True
    numbers: Literal["contextual", "never", "always"] = "contextual"
    nested_json: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    audit: Literal["silent", "counts", "paths"] = "counts"
    on_error: Literal["block", "drop_leaf"] = "block"
    max_leaf_bytes: int = 16_777_216
    budget_ms: int = 0
    pseudonyms: bool = False

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that stand for all that decides what is redacted.

        The engine is not part of it: all engines find the same.
        """
        rules = [rule.canonical() for rule in sorted(self.rules, key=lambda r: r.id)]
        canonical = [
            *(rules, self.min_score, sorted(self.actions.items())),
            *(sorted(self.allow_values), sorted(self.allow_patterns)),
            *(sorted(map(list, self.skip)), sorted(self.skip_keys)),
            *(self.keys, self.numbers, self.nested_json, sorted(self.labels.items())),
            *(self.audit, self.on_error, self.max_leaf_bytes, self.pseudonyms),
        ]
        return hashlib.sha256(orjson.dumps(canonical)).hexdigest()[:12]
