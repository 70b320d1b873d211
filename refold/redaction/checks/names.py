"""The lexicon, and patterns made of it: names of secrets, account numbers.

A name may be joined with other words, in any case: ``DB_PASSWORD``, ``newPassword2``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from refold.domain.canonical import load_packaged_toml

LEXICON: Final = load_packaged_toml("refold.redaction.checks", "lexicon.toml")
_JUDGES: Final = load_packaged_toml("refold.redaction.checks", "judges.toml")


class Patterns:
    """Patterns by name, written as one text or several, each compiled on first use."""

    def __init__(self, written: Mapping[str, Any]) -> None:
        self._written = written

    def __getattr__(self, name: str) -> re.Pattern[str]:
        pattern = re.compile("".join(self._written[name]))
        vars(self)[name] = pattern
        return pattern


def patterns(group: str) -> Patterns:
    """The patterns of a group: numbers, secrets, extents, people or events."""
    return Patterns(_JUDGES[group])


def words(name: str) -> tuple[str, ...]:
    """The words that the lexicon has under ``name``."""
    return tuple(LEXICON["words"][name].split())


class Names(NamedTuple):
    """A pattern of names, and literals of which each name begins with one."""

    gate: tuple[str, ...]
    pattern: str


def _names(table: str) -> Names:
    """The names in a table, each written as a literal and the rest of its pattern."""
    literals: dict[str, None] = {}
    alternatives: list[str] = []
    for names in LEXICON[table].values():
        for name in names:
            literal, _, rest = name.partition(":")
            literals[literal] = None
            alternatives.append(rf"{re.escape(literal)}{rest}")
    return Names(tuple(literals), "|".join(alternatives))


PASSWORDS: Final = _names("passwords")
TOKENS: Final = _names("tokens")
CHINESE: Final = words("chinese")
KEY_OWNERS: Final = words("key_owners")
NO_KEY_OF: Final = words("no_key_of")
ABOUT: Final = re.compile(
    rf"(?i)(?:^|[_\-.]|(?<=[a-z])(?=[A-Z]))(?:{'|'.join(words('about'))})"
    r"(?:$|[_\-.]|(?=[A-Z]))"
)
OF_KIND: Final = re.compile(
    rf"(?i)[0-9]?(?:[_\-.]?(?:[0-9]{{1,4}}|{'|'.join(words('kinds'))})){{0,3}}"
)
KEY_OF: Final = rf"(?i:{'|'.join(KEY_OWNERS)})[\-_ .]?"


@cache
def programs() -> frozenset[str]:
    """The first words of the names of programs that take secrets.

    An array of strings that begins with one is a command.
    """
    names: set[str] = set()
    for row in LEXICON["commands"]:
        names.update(program.split()[0] for program in row.split(","))
    return frozenset(names)


# The countries whose account numbers have a length, by that length.
_IBAN_COUNTRIES: Final = {
    int(length): countries.split()
    for length, countries in LEXICON["numbers"]["iban"].items()
}


def _ibans() -> str:
    """A pattern of account numbers, each as long as its country has them."""
    forms: list[str] = []
    for length, countries in _IBAN_COUNTRIES.items():
        # The exact length, so that no word after the number is taken for a part of it.
        rest = rf"(?:[ \-]?[0-9A-Za-z]){{{length - 4}}}"
        forms.append(rf"(?:{'|'.join(countries)})[0-9]{{2}}{rest}")
    return f"(?i:{'|'.join(forms)})"


IBANS: Final = _ibans()


def iban_lengths() -> dict[str, int]:
    """The length of an account number, by country."""
    lengths: dict[str, int] = {}
    for length, countries in _IBAN_COUNTRIES.items():
        for country in countries:
            lengths[country] = length
    return lengths
