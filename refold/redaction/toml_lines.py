"""Where in a TOML text a value stands, which ``tomllib`` does not say."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Place: TypeAlias = tuple[str | int, ...]

_AT_LINE = re.compile(r"\(at line ([0-9]+), column [0-9]+\)")
_AT_END = re.compile(r"\(at end of document\)")
_HEADER = re.compile(r"\s*\[")
_ARRAY_HEADER = re.compile(r"\s*\[\[")


class Lines(Mapping[Place, int]):
    """The line of each table, key and element, by its place: ``("rules", 0, "id")``."""

    def __init__(self, text: str) -> None:
        self._found: dict[Place, int] = {(): 1}
        self._counts: dict[Place, int] = {}
        self._table: Place = ()
        for number, statement in _statements(text):
            self._read(number, statement)

    def __getitem__(self, place: Place) -> int:
        return self._found[place]

    def __iter__(self) -> Iterator[Place]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def nearest(self, place: Place) -> int:
        """The line of ``place``, or of the closest thing around it that is written."""
        while place not in self._found:
            place = place[:-1]
        return self._found[place]

    def _read(self, number: int, statement: str) -> None:
        value = tomllib.loads(statement)
        if _HEADER.match(statement):
            self._open(number, value, array=bool(_ARRAY_HEADER.match(statement)))
        else:
            self._add(self._table, value, number, statement)

    def _open(self, number: int, header: Any, *, array: bool) -> None:
        place: Place = ()
        while isinstance(header, dict) and header:
            ((name, header),) = header.items()
            # A table within an array of tables is one of the last element's.
            inner = isinstance(header, dict) and header
            place = self._last((*place, name)) if inner else (*place, name)
        if array:
            self._counts[place] = self._counts.get(place, -1) + 1
            self._found.setdefault(place, number)
            place = (*place, self._counts[place])
        self._found[place] = number
        self._table = place

    def _last(self, place: Place) -> Place:
        return (*place, self._counts[place]) if place in self._counts else place

    def _add(self, place: Place, value: Any, number: int, statement: str) -> None:
        self._found.setdefault(place, number)
        if isinstance(value, dict):
            for name, item in value.items():
                self._add((*place, name), item, number, statement)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                line = number + _offset(statement, item)
                self._add((*place, index), item, line, statement)


def line_of_syntax(error: tomllib.TOMLDecodeError, text: str) -> tuple[int, str]:
    """The line of a mistake in the writing of TOML, and what it is."""
    message = str(error)
    found = _AT_LINE.search(message)
    line = int(found[1]) if found else max(1, len(text.splitlines()))
    reason = _AT_END.sub("", _AT_LINE.sub("", message)).strip()
    return line, f"{reason[:1].lower()}{reason[1:]}"


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each header and assignment of a valid TOML text with its first line."""
    held: list[str] = []
    start = 1
    for number, line in enumerate(text.split("\n"), start=1):
        if not held:
            start = number
        held.append(line)
        statement = "\n".join(held)
        try:
            value = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        held = []
        if value:
            yield start, statement


def _offset(statement: str, item: Any) -> int:
    """How many lines into its array an element stands, as far as a text tells."""
    place = statement.find(item) if isinstance(item, str) and item else -1
    return statement.count("\n", 0, place) if place > 0 else 0
