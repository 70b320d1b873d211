"""JSON as Python has it, the paths that are left alone, and what redaction reports."""

from __future__ import annotations

from collections.abc import Mapping
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


def check_length(text: str, limit: int) -> None:
    """Refuse a text of more than ``limit`` bytes in UTF-8."""
    if len(text) * 4 > limit and len(text.encode(errors="replace")) > limit:
        raise RedactionError(f"a text is over the policy's limit of {limit} bytes")


class TooDeep(RedactionError):
    """A value is nested deeper than ``MAX_DEPTH``."""

    def __init__(self) -> None:
        super().__init__(f"nested deeper than {MAX_DEPTH} levels")


class Tally:
    """How often what was redacted: by type, by rule, and where, as JSON pointers."""

    __slots__ = ("_types", "paths", "rules")

    def __init__(self) -> None:
        self._types: dict[str, int] = {}
        self.rules: dict[str, int] = {}
        self.paths: list[str] = []

    @property
    def n(self) -> int:
        """How many values were redacted."""
        return sum(self._types.values())

    @property
    def types(self) -> Mapping[str, int]:
        """How many of each type, for those that there were."""
        return self._types

    def add(self, type: str, rule: str = "") -> None:  # noqa: A002 - as everywhere here
        """Count one value of ``type`` that ``rule`` found."""
        self._types[type] = self._types.get(type, 0) + 1
        if rule:
            self.rules[rule] = self.rules.get(rule, 0) + 1

    def update(self, other: Tally) -> None:
        """Count all that ``other`` has counted."""
        for kind, n in other._types.items():
            self._types[kind] = self._types.get(kind, 0) + n
        for rule, n in other.rules.items():
            self.rules[rule] = self.rules.get(rule, 0) + n
        self.paths += other.paths

    def __add__(self, other: Tally) -> Tally:
        both = Tally()
        both.update(self)
        both.update(other)
        return both

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tally):
            return NotImplemented
        return (self._types, self.rules, self.paths) == (
            other._types,
            other.rules,
            other.paths,
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __bool__(self) -> bool:
        return bool(self._types)

    def __repr__(self) -> str:
        return f"Tally({self._types})"


def below(skip: Skip, step: str) -> Skip:
    """What is left of the paths in ``skip`` one step down."""
    if not skip:
        return skip
    return frozenset(path[1:] for path in skip if path and path[0] in ("*", step))
