"""What stands in for a redacted value: ``[REDACTED:PHONE]``, or a policy's label."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

_TAG = r"(?:#[a-z2-7]{8})?"
# The labels that come with Refold end like this, whatever the policy of a text was.
_LABELLED = "_已脱敏"
_REDACTED = r"REDACTED:[A-Z][A-Z0-9_]{1,39}"
_LABEL = rf"[^\s\[\]#:]{{1,32}}{_LABELLED}"
PLACEHOLDER: Final = re.compile(rf"\[(?:{_REDACTED}|{_LABEL}){_TAG}\]")
LONGEST: Final = 64
_MARKS = ("[REDACTED:", _LABELLED)
_RENAMED = re.compile(r"~[0-9]+$")


class Placeholders:
    """How a policy writes placeholders, and how any are recognized.

    labels: by type, what stands between the brackets instead of ``REDACTED:TYPE``.
    """

    __slots__ = ("_labels", "_marks", "_pattern")

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self._labels = dict(labels or {})
        own = [label for label in self._labels.values() if _LABELLED not in label]
        self._marks = (*_MARKS, *(f"[{label}" for label in own))
        self._pattern = _pattern(own)

    def of(self, kind: str, tag: str = "") -> str:
        """The placeholder for a value of type ``kind``."""
        label = self._labels.get(kind) or f"REDACTED:{kind}"
        return f"[{label}#{tag}]" if tag else f"[{label}]"

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


def _pattern(labels: Iterable[str]) -> re.Pattern[str]:
    own = "|".join(map(re.escape, sorted(labels, key=len, reverse=True)))
    return (
        re.compile(rf"\[(?:{_REDACTED}|{_LABEL}|{own}){_TAG}\]") if own else PLACEHOLDER
    )


def renamed(key: str, taken: set[str], copies: dict[str, int]) -> str:
    """``key``, or ``key~2``, ``key~3``… if it is taken; ``copies`` counts for each."""
    name, copy = key, copies.get(key, 1)
    while name in taken:
        copy += 1
        name = f"{key}~{copy}"
    copies[key] = copy
    return name
