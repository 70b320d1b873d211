"""The redactor: text or JSON in, the same without secrets and personal data out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar, overload

import orjson

from refold.redaction.rule import Rule
from refold.redaction.rules import DEFAULT_RULES
from refold.redaction.scan import Scanner
from refold.redaction.settle import Finds, Settler
from refold.redaction.values import (
    NO_SKIP,
    Counts,
    JsonObject,
    JsonValue,
    RedactionError,
    Skip,
)
from refold.redaction.walk import redacted

__all__ = ["NO_SKIP", "Counts", "RedactionError", "Redactor", "Skip"]

_Result = TypeVar("_Result")


class Redactor:
    """A set of rules to redact with.  Immutable: threads may share it.

    A second pass changes nothing: ``text(text(x)) == text(x)``, and so for ``value``.
    """

    __slots__ = ("_engine", "_rule_set")

    def __init__(
        self, rules: Sequence[Rule] = DEFAULT_RULES, *, name: str = "default"
    ) -> None:
        self._engine: Finds = Scanner(rules)
        self._rule_set = f"{name}-1:{_fingerprint(rules)}"

    @property
    def rule_set(self) -> str:
        """The name of the rules and a digest of all that decides what they find."""
        return self._rule_set

    @property
    def engine(self) -> str:
        """What runs the rules."""
        return self._engine.engine

    def text(self, text: str, *, key: str | None = None) -> tuple[str, Counts]:
        """Redact ``text``, which stands under ``key``; count what was found by type.

        Raises RedactionError.
        """

        def work() -> tuple[str, Counts]:
            counts: Counter[str] = Counter()
            survey = self._engine.survey([text, key or ""])
            rules = [*survey.by_text.get(text, ())]
            rules += [rule for rule in survey.by_key if rule not in rules]
            return Settler(self._engine, counts).text(text, rules, key or ""), counts

        return _failing_closed(work)

    @overload
    def value(
        self, value: JsonObject, *, skip: Skip = NO_SKIP
    ) -> tuple[JsonObject, Counts]: ...

    @overload
    def value(
        self, value: JsonValue, *, skip: Skip = NO_SKIP
    ) -> tuple[JsonValue, Counts]: ...

    def value(
        self, value: JsonValue, *, skip: Skip = NO_SKIP
    ) -> tuple[JsonValue, Counts]:
        """Redact every string, key and telling number of ``value``.

        It is copied where it changes; a clean value is returned itself.  A key, its
        parent, or the name beside a ``value`` gives context to what stands under it.
        Strings that hold JSON are redacted as JSON.  What a path in ``skip`` leads to
        is left alone.

        Raises RedactionError, also for what is not JSON or nested too deep.
        """

        def work() -> tuple[JsonValue, Counts]:
            counts: Counter[str] = Counter()
            return redacted(value, self._engine, counts, skip), counts

        return _failing_closed(work)

    def receipt(self, counts: Counts) -> JsonObject:
        """What an event says of its redaction: never what, where or how long."""
        types: JsonObject = {kind: n for kind, n in sorted(counts.items()) if n}
        receipt: JsonObject = {
            "rules": self.rule_set,
            "engine": self.engine,
            "n": sum(counts.values()),
        }
        return {**receipt, "types": types} if types else receipt


def _failing_closed(work: Callable[[], _Result]) -> _Result:
    """Raise nothing but RedactionError, with no trace of the text that was at hand."""
    try:
        return work()
    except RedactionError as error:
        failure = error.with_traceback(None)
    except Exception as error:
        failure = RedactionError(f"redaction stopped with {type(error).__name__}")
    # Outside of `except`, so that no context is attached.
    raise failure


def _fingerprint(rules: Sequence[Rule]) -> str:
    ordered = sorted(rules, key=lambda rule: rule.id)
    canonical = orjson.dumps([rule.canonical() for rule in ordered])
    return hashlib.sha256(canonical).hexdigest()[:12]
