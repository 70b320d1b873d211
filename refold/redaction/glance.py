"""A look at a value of a few texts, as most events are: mostly nothing is in them.

To see that, plain texts under keys that say nothing need not be laid flat as a whole
value is, and a word like *password* or a long number in them costs little more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from refold.redaction.flat import VALUES, long, opens
from refold.redaction.placeholder import Placeholders
from refold.redaction.plan import Plan
from refold.redaction.scan import Scanner
from refold.redaction.values import NO_SKIP, JsonValue, Skip, below

_DEEPEST: Final = 4
# In a longer text something is found more often, and is looked for twice then.
_LONGEST: Final = 16_384
_SILENT: Final = (float, bool)


class Unsure(Exception):
    """The value is not of the kind that a glance is for."""


class Glance:
    """Looks at values as ``plan`` says.  It holds none: threads may share it."""

    def __init__(
        self, plan: Plan, scanner: Scanner, placeholders: Placeholders
    ) -> None:
        self._scanner, self._placeholders = scanner, placeholders
        self._longest = min(plan.max_leaf_bytes // 4, _LONGEST)
        self._suits = not (
            plan.skip or plan.skip_keys or plan.budget_ms or plan.on_error != "block"
        )
        # Keys that hold nothing and give no context, as those of events are.
        self._quiet: set[str] = set()

    def sees_nothing(self, value: JsonValue, skip: Skip) -> bool | None:
        """Whether no rule finds anything in ``value``; None if a glance cannot tell.

        What else may find something has to be asked besides.
        """
        if not self._suits or type(value) is not dict:
            return None
        try:
            texts = [*self._texts(value, skip, "", 0)]
        except Unsure:
            return None
        findings = self._scanner.findings
        return not any(
            findings(prepared, whole=True)
            for prepared in self._scanner.survey(texts).values()
        )

    def _texts(
        self, value: dict[str, JsonValue], skip: Skip, parent: str, depth: int
    ) -> Iterator[str]:
        """The texts of an object in which no key says anything.  Raises Unsure."""
        if depth == _DEEPEST or VALUES[0] in value or VALUES[1] in value:
            raise Unsure
        for key, item in value.items():
            if key not in self._quiet:
                self._hear(key)
            inside = below(skip, key)
            if () in inside or item is None or item == []:
                continue
            if inside or (parent and self._scanner.concern(f"{parent} {key}").rules):
                raise Unsure
            yield from self._of_item(item, key, depth)

    def _of_item(self, item: JsonValue, key: str, depth: int) -> Iterator[str]:
        kind = type(item)
        if kind is str:
            self._check(item)  # type: ignore[arg-type]  # a str, by its type
            yield item  # type: ignore[misc]  # a str, by its type
        elif kind is dict:
            yield from self._texts(item, NO_SKIP, key, depth + 1)  # type: ignore[arg-type]  # one
        elif kind is list:
            for one in item:  # type: ignore[union-attr]  # a list, by its type
                if type(one) is not dict:
                    raise Unsure
                yield from self._texts(one, NO_SKIP, key, depth + 1)
        elif not (kind in _SILENT or (kind is int and not long(item))):  # type: ignore[arg-type]  # an int
            raise Unsure

    def _check(self, text: str) -> None:
        """Refuse what is not looked at as a text alone.  Raises Unsure."""
        if len(text) > self._longest or self._placeholders.within(text) or opens(text):
            raise Unsure

    def _hear(self, key: str) -> None:
        """Remember that ``key`` says nothing.  Raises Unsure if it does."""
        if len(key) < 2 or self._scanner.concern(key).rules or self._scanner.look(key):
            raise Unsure
        if len(self._quiet) < 1000 and len(key) < 100:
            self._quiet.add(key)
