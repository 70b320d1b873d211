"""JSON values, the paths that redaction skips, and the tally of what it replaced."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, TypeAlias

JsonValue: TypeAlias = (
    "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
)
JsonObject: TypeAlias = dict[str, JsonValue]

# Paths from the top of a value; ``*`` stands for any key and any index.
Path: TypeAlias = tuple[str, ...]
Skip: TypeAlias = frozenset[Path]
NO_SKIP: Final[Skip] = frozenset()

# The beginnings of files in base64: PNG, JPEG, GIF, RIFF (WebP), PDF.
FILE_BEGINNINGS: Final = ("iVBORw0KGg", "/9j/", "R0lGOD", "UklGR", "JVBERi")

# The most levels of a value, and of JSON in strings of JSON.
MAX_DEPTH: Final = 128
MAX_NESTED: Final = 8


class RedactionError(Exception):
    """Redaction could not be completed.  The message never holds text of the value."""


class OverBudget(RedactionError):
    """A text takes more work than the policy allows.

    at:    its JSON pointer in the value.
    index: its index among texts that were redacted together.
    """

    def __init__(self, at: str = "", *, index: int = 0) -> None:
        place = f" at {at}" if at else ""
        super().__init__(
            f"the text{place} takes more work than the policy "
            "allows: split it, raise the policy's scan.work_per_kb, or append it with "
            'unscanned="stub"'
        )
        self.at = at
        self.index = index


class OverTime(RedactionError):
    """A value takes longer than the policy's ``budget_ms``."""

    def __init__(self) -> None:
        super().__init__("it took longer than the policy's budget_ms")


# How many steps pass between two looks at the clock.
_STEPS_BETWEEN_LOOKS: Final = 64


class Meter:
    """Counts the steps that a text or a value takes, the same on every machine.

    A step, such as one try of a pattern at one place, takes about a microsecond.

    limit: the most steps.
    whole: the meter of the value that holds the text, which counts the same steps.
    until: the time at which the value's ``budget_ms`` ends; 0: never.
    """

    __slots__ = ("_next_look", "limit", "spent", "until", "whole")

    def __init__(
        self, limit: int, *, until: float = 0.0, whole: Meter | None = None
    ) -> None:
        self.limit: int = limit
        self.spent: int = 0
        self.whole: Meter | None = whole
        self.until: float = until if whole is None else whole.until
        # The steps after which the clock is looked at next.
        self._next_look: int = 0

    def add(self, steps: int) -> None:
        """Count ``steps``; the next ``spend`` raises if they are too many."""
        self.spent += steps
        if self.whole is not None:
            self.whole.spent += steps

    def spend(self, steps: int) -> None:
        """Count ``steps``.

        Raises OverBudget if they exceed the limit of the text or of the whole value,
        and OverTime.
        """
        self.spent += steps
        if self.spent > self.limit:
            raise OverBudget
        whole = self.whole
        if whole is not None:
            whole.spent += steps
            if whole.spent > whole.limit:
                raise OverBudget
        if self.until and self.spent >= self._next_look:
            self._next_look = self.spent + _STEPS_BETWEEN_LOOKS
            self.check_time()

    def check_time(self) -> None:
        """Raise OverTime after the end of ``budget_ms``."""
        if self.until and perf_counter() > self.until:
            raise OverTime


class TooDeep(RedactionError):
    """A value is nested deeper than ``MAX_DEPTH``."""

    def __init__(self) -> None:
        super().__init__(f"nested deeper than {MAX_DEPTH} levels")


@dataclass(slots=True)
class Tally:
    """Counts of redacted values by type and by rule, and their JSON pointers.

    secrets: (type, value) of each that a session may learn.  They stay in memory.
    """

    types: dict[str, int] = field(default_factory=dict)
    rules: dict[str, int] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    secrets: list[tuple[str, str]] = field(default_factory=list, repr=False)

    @property
    def n(self) -> int:
        """The number of redacted values."""
        return sum(self.types.values())

    def add(self, type: str, rule: str = "") -> None:  # noqa: A002 - as everywhere here
        """Count one value of ``type`` that ``rule`` found."""
        self.types[type] = self.types.get(type, 0) + 1
        if rule:
            self.rules[rule] = self.rules.get(rule, 0) + 1

    def update(self, other: Tally) -> None:
        """Add the counts and paths of ``other``."""
        for type, count in other.types.items():  # noqa: A001  # as everywhere here
            self.types[type] = self.types.get(type, 0) + count
        for rule, count in other.rules.items():
            self.rules[rule] = self.rules.get(rule, 0) + count
        self.paths += other.paths
        self.secrets += other.secrets

    def __bool__(self) -> bool:
        return bool(self.types)


def below(skip: Skip, step: str) -> Skip:
    """Return the paths in ``skip`` that go through ``step``, each from there on."""
    remaining = []
    for path in skip:
        if path and path[0] in ("*", step):
            remaining.append(path[1:])
    return frozenset(remaining) if remaining else NO_SKIP
