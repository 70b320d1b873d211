"""The lexicon, and of it the names of secrets as patterns, and what joins them.

A name may be joined with anything, in any case: ``DB_PASSWORD``, ``newPassword2``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final, NamedTuple


def _read(file: str) -> Mapping[str, Any]:
    return tomllib.loads((files("refold.redaction.checks") / file).read_text("utf-8"))


LEXICON: Final = _read("lexicon.toml")
_PATTERNS: Final = _read("judges.toml")


def pattern(judges: str, name: str) -> re.Pattern[str]:
    """What judges, of numbers or of secrets, look for under that name."""
    return re.compile("".join(_PATTERNS[judges][name]))


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
JOINED: Final = (
    r"(?P<joined>[0-9]?(?:[_\-.](?:[A-Za-z][A-Za-z0-9]{0,19}|[0-9]{1,4})"
    r"(?![A-Za-z0-9])|(?<=[a-z])[A-Z][a-z0-9]{1,15}){0,3})"
)
OF_KIND: Final = re.compile(
    rf"(?i)[0-9]?(?:[_\-.]?(?:[0-9]{{1,4}}|{'|'.join(words('kinds'))})){{0,3}}"
)
# Short ones stand by themselves, or at the end of others.
LOGIN_WORDS: Final = (
    r"(?i:passwor[dt]|passwrd|passwd|passphrase|passcode|pwd)"
    r"|(?<=[_\-])(?i:pass|pw)|(?<=[\"'])pass(?=[\"'])|(?<=[a-z])Pass(?![a-z])"
    r"|(?<=[A-Z])PASS(?![A-Z])"
    r"|(?i:(?<=db)|(?<=root)|(?<=smtp)|(?<=user)|(?<=ftp))(?i:pass)"
    r"|(?<![A-Za-z.])(?i:pass|pw)(?=\\{0,7}[\"']?[ \t]{0,2}[:=])"
)
KEY_OF: Final = rf"(?i:{'|'.join(KEY_OWNERS)})[\-_ .]?"
