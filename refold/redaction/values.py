"""JSON as Python has it, the paths that are left alone, and what redaction reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

JsonValue: TypeAlias = (
    "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
)
JsonObject: TypeAlias = dict[str, JsonValue]

# Paths from the top of a value; ``*`` stands for any key and any index.
Path: TypeAlias = tuple[str, ...]
Skip: TypeAlias = frozenset[Path]
NO_SKIP: Final[Skip] = frozenset()

MAX_DEPTH: Final = 128
MAX_NESTED: Final = 8


class RedactionError(Exception):
    """Redaction could not be completed.  The message never holds text of the value."""


class OverBudget(RedactionError):
    """A text takes more work than the policy allows.

    index: which of those that were looked at together; ``at``: where it stands.
    """

    def __init__(self, at: str = "", *, index: int = 0) -> None:
        super().__init__(
            f"the text{f' at {at}' if at else ''} takes more work than the policy "
            "allows: split it, raise the policy's scan.work_per_kb, or append it with "
            'unscanned="stub"'
        )
        self.at, self.index = at, index


class Meter:
    """Counts the steps that a text takes: the same on every machine.

    A step is about what a microsecond is enough for: a pattern tried at a place.
    """

    __slots__ = ("limit", "spent")

    def __init__(self, limit: int) -> None:
        self.limit, self.spent = limit, 0

    def spend(self, steps: int) -> None:
        """Count ``steps``.  Raises OverBudget if that is more than the limit."""
        self.spent += steps
        if self.spent > self.limit:
            raise OverBudget


class TooDeep(RedactionError):
    """A value is nested deeper than ``MAX_DEPTH``."""

    def __init__(self) -> None:
        super().__init__(f"nested deeper than {MAX_DEPTH} levels")


@dataclass(slots=True)
class Tally:
    """How often what was redacted: by type, by rule, and where, as JSON pointers."""

    types: dict[str, int] = field(default_factory=dict)
    rules: dict[str, int] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)

    @property
    def n(self) -> int:
        """How many values were redacted."""
        return sum(self.types.values())

    def add(self, type: str, rule: str = "") -> None:  # noqa: A002 - as everywhere here
        """Count one value of ``type`` that ``rule`` found."""
        self.types[type] = self.types.get(type, 0) + 1
        if rule:
            self.rules[rule] = self.rules.get(rule, 0) + 1

    def update(self, other: Tally) -> None:
        """Count all that ``other`` has counted."""
        for kind, n in other.types.items():
            self.types[kind] = self.types.get(kind, 0) + n
        for rule, n in other.rules.items():
            self.rules[rule] = self.rules.get(rule, 0) + n
        self.paths += other.paths

    def __bool__(self) -> bool:
        return bool(self.types)


def below(skip: Skip, step: str) -> Skip:
    """What is left of the paths in ``skip`` one step down."""
    left = []
    for path in skip:
        if path and path[0] in ("*", step):
            left.append(path[1:])
    return frozenset(left) if left else NO_SKIP
