"""JSON as Python has it, the paths that are left alone, and what redaction raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

JsonValue: TypeAlias = (
    "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
)
JsonObject: TypeAlias = dict[str, JsonValue]
Counts: TypeAlias = Mapping[str, int]

# Paths from the top of a value; ``*`` stands for any key and any index.
Path: TypeAlias = tuple[str, ...]
Skip: TypeAlias = frozenset[Path]
NO_SKIP: Final[Skip] = frozenset()

MAX_DEPTH: Final = 128
MAX_NESTED: Final = 8


class RedactionError(Exception):
    """Redaction could not be completed.  The message never holds text of the value."""


class TooDeep(RedactionError):
    """A value is nested deeper than ``MAX_DEPTH``."""

    def __init__(self) -> None:
        super().__init__(f"nested deeper than {MAX_DEPTH} levels")


def below(skip: Skip, step: str) -> Skip:
    """What is left of the paths in ``skip`` one step down."""
    if not skip:
        return skip
    return frozenset(path[1:] for path in skip if path and path[0] in ("*", step))
