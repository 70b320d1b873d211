"""The complete and checked settings of a redactor, and the pseudonyms of values."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

import orjson

from refold.redaction.types import GROUPED, TYPES, canonical
from refold.redaction.values import NO_SKIP, JsonValue, Skip

if TYPE_CHECKING:
    from refold.redaction.engines import EngineName
    from refold.redaction.rules.rule import Rule

Action: TypeAlias = Literal["redact", "keep", "drop_leaf"]
# Twice the steps that the densest list of telephone numbers or passwords takes.
WORK_PER_KB: Final = 4096
# From (type, value) to the eight characters that always stand for that value.
Tagger: TypeAlias = Callable[[str, str], str]


def _default_rules() -> tuple[Rule, ...]:
    """The rules of Refold's own plan, which are read on the first use."""
    from refold.redaction.rules.default import DEFAULT_RULES

    return DEFAULT_RULES


@dataclass(frozen=True, slots=True)
class Plan:
    """Rules, and what a redactor does with their findings.

    min_score:      the least score of a finding, from 0 to 1.
    actions:        by type: ``redact`` (the default), ``keep``, or ``drop_leaf``, which
                    replaces the whole text that holds such a value.
    allow_values:   exact values that are never redacted; they win over every rule.
    allow_patterns: patterns; a value that one matches as a whole is never redacted.
    skip:           paths of a value that are left alone.
    skip_keys:      keys under which everything is left alone, at any depth.
    keys:           whether keys are redacted too.
    numbers:        integers are redacted with context or a checksum, never, or like
                    text.
    nested_json:    whether JSON in strings is redacted as JSON.
    labels:         by type: the label in the brackets of its placeholder, instead of
                    ``REDACTED:TYPE``.
    audit:          a receipt says only that a value was scanned, or has counts, or also
                    paths.
    on_error:       an error refuses the value, or replaces the text it happened in.
    max_leaf_bytes: the most bytes of a text.
    budget_ms:      the most time for one value; 0: no limit.
    work_per_kb:    the most steps of a text for each 1024 characters; 0: no limit.
    over_budget:    a text that takes more steps refuses the value, or is replaced by a
                    stub.
    files:          in an image or PDF file, parts with findings are removed, or the
                    file is refused: a placeholder stands for all of it.
    pseudonyms:     placeholders carry a tag, the same for equal values of a user.
    numbered:       placeholders carry a number, the same for equal values of a session.
    kept:           types whose values are kept, encrypted, for readers with permission.
    kept_sec:       how long, in seconds; 0: as long as the session.
    """

    name: str = "default"
    rules: tuple[Rule, ...] = field(default_factory=_default_rules)
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
    work_per_kb: int = WORK_PER_KB
    over_budget: Literal["refuse", "stub"] = "refuse"
    files: Literal["clean", "refuse"] = "clean"
    pseudonyms: bool = False
    numbered: bool = False
    kept: frozenset[str] = frozenset()
    kept_sec: int = 0

    @property
    def numbered_types(self) -> frozenset[str]:
        """The types whose placeholders carry numbers."""
        if not self.numbered:
            return frozenset()
        return frozenset(TYPES).union(rule.type for rule in self.rules)

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that identify all settings that decide what is redacted.

        The engine is no part of it, because all engines find the same.
        """
        rules = sorted(self.rules, key=lambda rule: rule.id)
        settings = [
            [rule.canonical() for rule in rules],
            self.min_score,
            sorted(self.actions.items()),
            sorted(self.allow_values),
            sorted(self.allow_patterns),
            sorted(map(list, self.skip)),
            sorted(self.skip_keys),
            self.keys,
            self.numbers,
            self.nested_json,
            sorted(self.labels.items()),
            self.audit,
            self.on_error,
            self.max_leaf_bytes,
            self.pseudonyms,
        ]
        # Later settings count only if they are set: the fingerprints of other plans
        # stay the same.
        if self.numbered:
            settings.append("numbered")
        if self.files != "clean":
            settings.append(f"files={self.files}")
        return hashlib.sha256(orjson.dumps(settings)).hexdigest()[:12]


_NOT_DIGIT = re.compile(r"[^0-9]")
_NOT_ALNUM = re.compile(r"[\W_]")
_CHINA = re.compile(r"(?:00)?86(?=1[3-9][0-9]{9}$)")


def tag(key: bytes, type: str, value: str) -> str:  # noqa: A002 - what it is called
    """The eight characters that stand for a value of ``type`` under a user's key.

    With the key, somebody could try all telephone numbers.  Keep it apart from the
    events, and destroy it with the user.
    """
    kind = canonical(type)
    return exact_tag(key, kind, plain(kind, value))


def exact_tag(key: bytes, type: str, value: str) -> str:  # noqa: A002 - what it is called
    """The eight characters that stand for this one spelling of a value."""
    message = f"{type}\0{value}".encode("utf-8", "surrogatepass")
    digest = hmac.digest(key, message, "sha256")
    return base64.b32encode(digest).decode().lower()[:8]


def plain(type: str, value: str) -> str:  # noqa: A002 - what it is called
    """One spelling for all spellings of ``value``, so that they get one tag."""
    from refold.redaction.engines.fold import fold

    text = fold(value).text.strip()
    if type == "PHONE":
        return _CHINA.sub("", _NOT_DIGIT.sub("", text))
    if type == "EMAIL":
        return text.replace("%40", "@").lower()
    if type in GROUPED:
        return _NOT_ALNUM.sub("", text).upper()
    return text


def tagger(user_key: bytes) -> Tagger:
    """A tagger with this user's key."""
    return partial(tag, user_key)


def tag_reading_key(
    read_user_key: Callable[[], bytes],
    type: str,  # noqa: A002 - what it is called
    value: str,
) -> str:
    """The tag of a value; the user's key is read only when this is called."""
    return tag(read_user_key(), type, value)


class Spellings(Protocol):
    """A tagger whose tags tell how a value is written."""

    def value_of(self, tag: str) -> str | None:
        """The value that this tag stands for; None if this tagger did not make it."""

    def respelled(self, tag: str, written: str, *, is_number: bool = False) -> str:
        """The tag that stands for the same value in another spelling.

        written:   the new spelling: the characters that the placeholder replaces.
        is_number: they are a number of JSON, and not a text.
        """


class Numbers(Protocol):
    """A tagger whose tags ``with_numbers`` replaces by numbers."""

    def __call__(self, kind: str, value: str) -> str:
        """The tag of a value."""

    def with_numbers(self, value: JsonValue, *, ours: bool) -> JsonValue:
        """``value``, redacted with this tagger, with numbers instead of tags.

        ours: the model wrote the value, so numbered placeholders in it are references
        to placeholders that the model was sent.
        """
