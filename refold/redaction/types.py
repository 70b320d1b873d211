"""The types of redacted values: our names, other systems' names, and placeholders."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from refold.domain import envelope
from refold.domain.canonical import load_packaged_toml

NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{1,39}")
# The labels that a policy may put between the brackets of a placeholder.
LABEL: Final = re.compile(r"[^\W\d_][\w\-]{1,39}")


class Type(NamedTuple):
    """A type of value, which its placeholder names.

    zh:      the type in a Chinese label.
    what:    a description.
    aliases: the names of the type in Presidio, Google's DLP and Amazon Comprehend.
    """

    name: str
    zh: str
    what: str
    aliases: tuple[str, ...]


_SHIPPED: Final = load_packaged_toml("refold.redaction.checks", "types.toml")
# Types whose values are written with and without spaces, dots and dashes.
GROUPED: Final = frozenset(_SHIPPED["grouped"].split())


TYPES: Final[Mapping[str, Type]] = {
    name: Type(name, zh, what, tuple(aliases))
    for name, (zh, what, *aliases) in _SHIPPED["types"].items()
}
LOCALES: Final = ("en", "zh")


def _by_alias() -> dict[str, str]:
    names: dict[str, str] = {}
    for type_ in TYPES.values():
        for alias in type_.aliases:
            names[alias] = type_.name
    return names


_BY_ALIAS: Final[Mapping[str, str]] = _by_alias()


def canonical(name: str) -> str:
    """Our name of a type that another system may name differently.

    An unknown name is returned unchanged.
    """
    upper = name.upper()
    if upper in _BY_ALIAS:
        return _BY_ALIAS[upper]
    return upper if upper in TYPES else name


def well_formed(name: str) -> bool:
    """Whether ``name`` may stand in a placeholder."""
    return bool(NAME.fullmatch(name))


def labels(locale: str, kinds: Iterable[str]) -> dict[str, str]:
    """The labels between the brackets of placeholders in ``locale``, by type.

    English has no labels: its placeholder is ``[REDACTED:TYPE]``.

    Raises KeyError for a locale that is not in ``LOCALES``.
    """
    if locale not in LOCALES:
        raise KeyError(locale)
    if locale == "en":
        return {}
    words = {kind: TYPES[kind].zh if kind in TYPES else kind for kind in kinds}
    return {kind: f"{word}_已脱敏" for kind, word in words.items()}


# The type in the placeholder of a text over a limit of work or size.
UNSCANNED: Final = "UNSCANNED"
# The most characters of a placeholder.
LONGEST: Final = 64
# The beginnings of placeholders that every policy recognizes.
_MARKS = ("[REDACTED:", envelope.LABELLED)
_COPY_NUMBER = re.compile(r"~[0-9]+$")


class Placeholders:
    """Writes the placeholders of a policy, and recognizes those of any policy.

    labels: by type, the label between the brackets instead of ``REDACTED:TYPE``.
    kinds:  the types whose values are numbered; empty for a policy without numbers.
    """

    __slots__ = ("_labels", "_marks", "_pattern")

    def __init__(self, labels: Mapping[str, str], kinds: Collection[str]) -> None:
        self._labels = labels
        own = [label for label in labels.values() if envelope.LABELLED not in label]
        marks = list(_MARKS)
        marks += [f"[{label}" for label in own]
        marks += [f"[{kind}_" for kind in kinds]
        if kinds:
            marks.append("[~")
        self._marks = tuple(marks)
        self._pattern = _pattern(own, kinds)

    def of(self, kind: str, tag: str = "") -> str:
        """The placeholder for a value of type ``kind``."""
        label = self._labels.get(kind) or f"REDACTED:{kind}"
        return f"[{label}#{tag}]" if tag else f"[{label}]"

    def unscanned(self, text: str) -> str:
        """The stub for a ``text`` that was not scanned to its end."""
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
        """Split ``text`` at its placeholders.

        Returns (piece, whether it is a placeholder) in order; joined, the pieces are
        ``text``.
        """
        if not self.within(text):
            return [(text, False)]
        pieces: list[tuple[str, bool]] = []
        end = 0
        for match in self._pattern.finditer(text):
            if end < match.start():
                pieces.append((text[end : match.start()], False))
            pieces.append((match.group(), True))
            end = match.end()
        if end < len(text):
            pieces.append((text[end:], False))
        return pieces

    def context_of(self, key: str) -> str:
        """A redacted key without its placeholders: the words that give context.

        They are the same before and after ``renamed`` numbered the key, so a second
        pass sees the same context as the first.
        """
        if not self.within(key):
            return key
        bare = self._pattern.sub(" ", key)
        return key if bare == key else _COPY_NUMBER.sub("", bare)


def _pattern(labels: Iterable[str], kinds: Iterable[str]) -> re.Pattern[str]:
    """The pattern of placeholders: all common forms, own labels, numbered types."""
    own = [re.escape(label) for label in sorted(labels, key=len, reverse=True)]
    numbered = "|".join(sorted(kinds, key=len, reverse=True))
    if numbered:
        own.append(rf"~?(?:{numbered})_[1-9][0-9]{{0,5}}")
    if not own:
        return envelope.PLACEHOLDER
    forms = "|".join([envelope.REDACTED, envelope.LABEL, *own])
    return re.compile(rf"\[(?:{forms}){envelope.TAG}\]")


def renamed(key: str, taken: set[str], copies: dict[str, int]) -> str:
    """``key``, or ``key~2``, ``key~3``… if it is taken.

    copies: the last number of each key, updated by the call.
    """
    name = key
    copy = copies.get(key, 1)
    while name in taken:
        copy += 1
        name = f"{key}~{copy}"
    copies[key] = copy
    return name
