"""The lexicon, and of it the names of secrets as patterns, and what joins them.

A name may be joined with anything, in any case: ``DB_PASSWORD``, ``newPassword2``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from refold.domain.canonical import shipped

LEXICON: Final = shipped("refold.redaction.checks", "lexicon.toml")
_JUDGES: Final = shipped("refold.redaction.checks", "judges.toml")


class Patterns:
    """Patterns by name, in one piece or several, each compiled when it is asked for."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._told = told

    def __getattr__(self, name: str) -> re.Pattern[str]:
        found = vars(self)[name] = re.compile("".join(self._told[name]))
        return found


def patterns(judges: str) -> Patterns:
    """What judges of numbers, secrets, extents, people or events look for."""
    return Patterns(_JUDGES[judges])


def words(name: str) -> tuple[str, ...]:
    """The words that the lexicon has under ``name``."""
    return tuple(LEXICON["words"][name].split())


class Names(NamedTuple):
    """Literals, one of which is in each name, and a pattern from there on."""

    gate: tuple[str, ...]
    pattern: str


def _names(table: str) -> Names:
    entries = [name.partition(":") for some in LEXICON[table].values() for name in some]
    return Names(
        tuple(dict.fromkeys(gate for gate, _, _ in entries)),
        "|".join(rf"{re.escape(gate)}{rest}" for gate, _, rest in entries),
    )


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
