"""The types of redacted values: our names, other systems' names, and placeholders."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from refold.domain import placeholders
from refold.domain.canonical import load_packaged_toml

# The name of a type, as a placeholder and a policy write it.
NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{1,39}")
# The labels that a policy may put between the brackets of a placeholder.
LABEL: Final = re.compile(r"[^\W\d_][\w\-]{1,39}")


class Type(NamedTuple):
    """A type of value, which its placeholder names.

    zh:          the type in a Chinese label.
    description: what the values are, in one line.
    aliases:     the names of the type in Presidio, Google's DLP and Amazon Comprehend.
    """

    name: str
    zh: str
    description: str
    aliases: tuple[str, ...]


_SHIPPED: Final = load_packaged_toml("refold.redaction.checks", "types.toml")
# Types whose values are written with and without spaces, dots and dashes.
GROUPED: Final = frozenset(_SHIPPED["grouped"].split())


TYPES: Final[Mapping[str, Type]] = {
    name: Type(name, zh, description, tuple(aliases))
    for name, (zh, description, *aliases) in _SHIPPED["types"].items()
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
    """Return Refold's name of a type, given any system's name of it.

    An unknown name is returned unchanged.
    """
    upper = name.upper()
    if upper in _BY_ALIAS:
        return _BY_ALIAS[upper]
    return upper if upper in TYPES else name


def well_formed(name: str) -> bool:
    """Whether ``name`` may stand in a placeholder."""
    return bool(NAME.fullmatch(name))


def labels(locale: str, types: Iterable[str]) -> dict[str, str]:
    """Return the labels between the brackets of placeholders in ``locale``, by type.

    English has no labels: its placeholder is ``[REDACTED:TYPE]``.

    Raises KeyError for a locale that is not in ``LOCALES``.
    """
    if locale not in LOCALES:
        raise KeyError(locale)
    if locale == "en":
        return {}
    by_type: dict[str, str] = {}
    for type_ in types:
        word = TYPES[type_].zh if type_ in TYPES else type_
        by_type[type_] = f"{word}{placeholders.CHINESE_SUFFIX}"
    return by_type


# The type in the placeholder of a text over a limit of work or size.
UNSCANNED: Final = "UNSCANNED"
# The most characters of a placeholder.
LONGEST: Final = 64
# Every placeholder that all policies recognize contains one of these.
_MARKS = ("[REDACTED:", placeholders.CHINESE_SUFFIX)
# The number that ``renamed`` adds to a key that occurs twice.
_COPY_NUMBER = re.compile(r"~[0-9]+$")


class Placeholders:
    """Writes the placeholders of a policy, and recognizes those of any policy.

    labels:         by type, the label between the brackets instead of
                    ``REDACTED:TYPE``.
    numbered_types: the types whose placeholders may have a number, such as
                    ``[EMAIL_1]``, or ``[~EMAIL_1]`` if the number is of another
                    session; empty for a policy without numbers.
    """

    __slots__ = ("_labels", "_marks", "_pattern")

    def __init__(
        self, labels: Mapping[str, str], numbered_types: Collection[str]
    ) -> None:
        self._labels = labels
        # The Chinese labels of Refold are recognized under every policy.
        own_labels: list[str] = []
        for label in labels.values():
            if placeholders.CHINESE_SUFFIX not in label:
                own_labels.append(label)
        marks = list(_MARKS)
        marks += [f"[{label}" for label in own_labels]
        marks += [f"[{type_}_" for type_ in numbered_types]
        if numbered_types:
            marks.append("[~")
        self._marks = tuple(marks)
        self._pattern = _pattern(own_labels, numbered_types)

    def of(self, type_: str, tag: str = "") -> str:
        """Return the placeholder for a value of a type.

        tag: a keyed hash of the value, which the placeholder shows after ``#``.
        """
        label = self._labels.get(type_) or f"REDACTED:{type_}"
        return f"[{label}#{tag}]" if tag else f"[{label}]"

    def unscanned(self, text: str) -> str:
        """Return the stub for a ``text`` that was not scanned to its end."""
        size = len(text.encode(errors="replace"))
        return f"[REDACTED:{UNSCANNED} {size} bytes]"

    def within(self, text: str) -> bool:
        """Whether ``text`` may contain a placeholder: a quick check for the marks."""
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
        """Return the words of a redacted key, without its placeholders.

        The words are the context of the key's value.  The number that ``renamed`` added
        to a key with a placeholder is removed too, so a second pass over the redacted
        document sees the same context as the first.
        """
        if not self.within(key):
            return key
        words = self._pattern.sub(" ", key)
        if words == key:
            return key
        return _COPY_NUMBER.sub("", words)


def _pattern(labels: Iterable[str], numbered_types: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of the placeholders that a policy recognizes.

    These are the forms of every policy, the policy's own labels, and numbered types.
    """
    # Longer names come first: a pattern takes the first alternative that matches.
    own_forms = [re.escape(label) for label in sorted(labels, key=len, reverse=True)]
    types = "|".join(sorted(numbered_types, key=len, reverse=True))
    if types:
        own_forms.append(rf"~?(?:{types})_{placeholders.NUMBER}")
    if not own_forms:
        return placeholders.PLACEHOLDER
    forms = "|".join([placeholders.REDACTED, placeholders.CHINESE_LABEL, *own_forms])
    return re.compile(rf"\[(?:{forms}){placeholders.VALUE_TAG}\]")


def renamed(key: str, taken: set[str], copies: dict[str, int]) -> str:
    """Return a name for a key of an object that no other key has.

    This is ``key``, or ``key~2``, ``key~3``… if ``key`` is taken.

    copies: the last number of each key, updated by the call.
    """
    name = key
    copy = copies.get(key, 1)
    while name in taken:
        copy += 1
        name = f"{key}~{copy}"
    copies[key] = copy
    return name
