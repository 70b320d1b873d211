"""Error types and their categories: packaged as data, or a user's own."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple, NoReturn

from refold.domain.errors import InvalidConfiguration
from refold.projections.memory.declared.labels import alike, name_of

OTHER: Final = "other"
_PRACTICE: Final = "practice"
_KEYS: Final = {"advice", "also", "types"}


class _Entry(NamedTuple):
    """An error type, and all its spellings."""

    error: str
    category: str
    spellings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Taxonomy:
    """Which error types there are, each in a category.

    category: of each error type; a category is an error type of its own.
    advice:   what helps against errors of a category, a verb.
    known:    the error type of each spelling.
    """

    category: Mapping[str, str]
    advice: Mapping[str, str]
    known: Mapping[str, str]

    def error_of(self, name: str) -> str:
        """The error type that ``name`` is a spelling of, or is over 90 % like.

        ``name`` itself if it is unknown.  Of several the first by the alphabet.
        """
        if name in self.known:
            return self.known[name]
        like = next((one for one in sorted(self.known) if alike(one, name)), None)
        return name if like is None else self.known[like]

    def category_of(self, error: str) -> str:
        """Of an error type; ``other`` of one that is unknown."""
        return self.category.get(error, OTHER)

    def advice_on(self, error: str) -> str:
        """What helps against it."""
        return self.advice.get(self.category_of(error), _PRACTICE)

    @classmethod
    def parse(cls, text: str, *, where: str = "the taxonomy") -> Taxonomy:
        """Read TOML in the form of ``refold/data/errors.toml``.

        Raises InvalidConfiguration, naming ``where`` and what is wrong.
        """
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InvalidConfiguration(f"{where}: {error}") from None
        entries = [entry for name in tables for entry in _category(name, tables, where)]
        known: dict[str, str] = {}
        for entry in entries:
            for spelling in entry.spellings:
                if known.setdefault(spelling, entry.error) != entry.error:
                    _wrong(where, f"{spelling!r} names two error types")
        advice = {name: tables[name].get("advice", _PRACTICE) for name in tables}
        return cls({one.error: one.category for one in entries}, advice, known)


@cache
def packaged() -> Taxonomy:
    """The taxonomy that comes with Refold."""
    text = (files("refold") / "data" / "errors.toml").read_text("utf-8")
    return Taxonomy.parse(text, where="errors.toml")


def _category(name: str, tables: Mapping[str, Any], where: str) -> Iterator[_Entry]:
    table, where = tables[name], f"{where}: [{name}]"
    if not isinstance(table, Mapping) or not table.keys() <= _KEYS:
        _wrong(where, "must be a table of advice, also and types")
    advice, types = table.get("advice", _PRACTICE), table.get("types", {})
    if not isinstance(advice, str) or name_of(advice) != advice:
        _wrong(where, "advice must be a name of lower-case words with _ between")
    if not isinstance(types, Mapping):
        _wrong(where, "types must be a table of error types")
    if name == OTHER:
        _wrong(where, "is the category of what is in no other")
    yield _entry(name, name, table.get("also", []), where)
    for error, also in types.items():
        yield _entry(error, name, also, where)


def _entry(error: str, category: str, also: Any, where: str) -> _Entry:
    if not isinstance(also, list) or not all(isinstance(one, str) for one in also):
        _wrong(where, "other names must be a list of texts")
    if name_of(error) != error:
        _wrong(where, f"{error!r} must be a name of lower-case words with _ between")
    spellings = [name_of(one) for one in (error, *also)]
    names = tuple(one for one in spellings if one is not None)
    if len(names) < len(spellings):
        _wrong(where, f"another name of {error!r} is no name")
    return _Entry(error, category, names)


def _wrong(where: str, why: str) -> NoReturn:
    raise InvalidConfiguration(f"{where}: {why}")
