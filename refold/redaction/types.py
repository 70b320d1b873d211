"""The types of what is redacted: their names, other systems' names, and labels."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from refold.domain import envelope
from refold.domain.canonical import shipped

NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{1,39}")
# What a policy may put between the brackets of a placeholder.
LABEL: Final = re.compile(r"[^\W\d_][\w\-]{1,39}")


class Type(NamedTuple):
    """What a placeholder names.

    zh:      what stands in a Chinese label.
    aliases: what Presidio, Google's DLP and Amazon Comprehend call it.
    """

    name: str
    zh: str
    what: str
    aliases: tuple[str, ...]


_SHIPPED: Final = shipped("refold.redaction.checks", "types.toml")
# Types whose values are written with and without spaces, dots and dashes.
GROUPED: Final = frozenset(_SHIPPED["grouped"].split())


TYPES: Final[Mapping[str, Type]] = {
    name: Type(name, zh, what, tuple(aliases))
    for name, (zh, what, *aliases) in _SHIPPED["types"].items()
}
LOCALES: Final = ("en", "zh")

_BY_ALIAS: Final[Mapping[str, str]] = {
    alias: known.name for known in TYPES.values() for alias in known.aliases
}


def canonical(name: str) -> str:
    """Our name of the type that ``name``, perhaps another system's, stands for.

    A name that nobody uses is returned as it is.
    """
    upper = name.upper()
    return _BY_ALIAS.get(upper, upper if upper in TYPES else name)


def well_formed(name: str) -> bool:
    """Whether ``name`` can stand in a placeholder."""
    return bool(NAME.fullmatch(name))


def labels(locale: str, kinds: Iterable[str]) -> dict[str, str]:
    """What stands between the brackets of a placeholder in ``locale``, by type.

    English has none of its own: its placeholder is ``[REDACTED:TYPE]``.

    Raises KeyError for a locale that is not in ``LOCALES``.
    """
    if locale not in LOCALES:
        raise KeyError(locale)
    if locale == "en":
        return {}
    spoken = {kind: TYPES[kind].zh if kind in TYPES else kind for kind in kinds}
    return {kind: f"{word}_已脱敏" for kind, word in spoken.items()}


UNSCANNED: Final = "UNSCANNED"
LONGEST: Final = 64
_MARKS = ("[REDACTED:", envelope.LABELLED)
_RENAMED = re.compile(r"~[0-9]+$")


class Placeholders:
    """How a policy writes placeholders, and how any are recognized.

    labels: by type, what stands between the brackets instead of ``REDACTED:TYPE``.
    kinds:  the types of which values are numbered, if they are.
    """

    __slots__ = ("_labels", "_marks", "_pattern")

    def __init__(self, labels: Mapping[str, str], kinds: Collection[str]) -> None:
        self._labels = labels
        own = [one for one in labels.values() if envelope.LABELLED not in one]
        numbered = [*(f"[{kind}_" for kind in kinds), *(["[~"] if kinds else [])]
        self._marks = (*_MARKS, *(f"[{label}" for label in own), *numbered)
        self._pattern = _pattern(own, kinds)

    def of(self, kind: str, tag: str = "") -> str:
        """The placeholder for a value of type ``kind``."""
        label = self._labels.get(kind) or f"REDACTED:{kind}"
        return f"[{label}#{tag}]" if tag else f"[{label}]"

    def unscanned(self, text: str) -> str:
        """What stands for a ``text`` that was not looked at to its end."""
        size = len(text.encode(errors="replace"))
        return f"[REDACTED:{UNSCANNED} {size} bytes]"

    def within(self, text: str) -> bool:
        """Whether ``text`` may hold a placeholder."""
        if "[" in text:
            for mark in self._marks:
                if mark in text:
                    return True
        return False

    def pieces(self, text: str) -> list[tuple[str, bool]]:
        """Split ``text`` into what may be redacted and the placeholders it has.

        Returns (piece, is a placeholder) in order; joined they are ``text``.
        """
        if not self.within(text):
            return [(text, False)]
        found = []
        end = 0
        for match in self._pattern.finditer(text):
            found += [(text[end : match.start()], False), (match.group(), True)]
            end = match.end()
        found.append((text[end:], False))
        return [(piece, kept) for piece, kept in found if piece]

    def spoken(self, key: str) -> str:
        """What a redacted key still says of its value: its words, no placeholder.

        It is the same before and after ``renamed`` numbered the key, so a second pass
        sees the context of the first.
        """
        if not self.within(key):
            return key
        bare = self._pattern.sub(" ", key)
        return key if bare == key else _RENAMED.sub("", bare)


def _pattern(labels: Iterable[str], kinds: Iterable[str]) -> re.Pattern[str]:
    own = [re.escape(one) for one in sorted(labels, key=len, reverse=True)]
    if numbered := "|".join(sorted(kinds, key=len, reverse=True)):
        own.append(rf"~?(?:{numbered})_[1-9][0-9]{{0,5}}")
    if not own:
        return envelope.PLACEHOLDER
    own = [envelope.REDACTED, envelope.LABEL, *own]
    return re.compile(rf"\[(?:{'|'.join(own)}){envelope.TAG}\]")


def renamed(key: str, taken: set[str], copies: dict[str, int]) -> str:
    """``key``, or ``key~2``, ``key~3``… if it is taken; ``copies`` counts for each."""
    name, copy = key, copies.get(key, 1)
    while name in taken:
        copy += 1
        name = f"{key}~{copy}"
    copies[key] = copy
    return name
