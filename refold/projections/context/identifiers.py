"""Identifiers in what is said and done: what a later call may name again."""

from __future__ import annotations

import re
from typing import Any, Final

from refold.domain.envelope import STANDS_FOR
from refold.projections.context.text import leaves

_LONGEST: Final = 200
# Plain ASCII words: Chinese text, for one, has no spaces around a number.
_WORD: Final = re.compile(r"https?://[^\s\"'`<>{}|\\^]+|[\w@+~./-]+", re.ASCII)
_QUOTED: Final = re.compile(
    r'"(\w[^"\\\n]{1,78})\\?"'
    r"|`(\w[^`\n]{1,78})`"
    r"|(?<!\w)'(\w[^'\n]{1,78})'(?!\w)"
    r"|“(\w[^”\n]{1,78})”|「([^」\n]{2,78})」|《([^》\n]{2,78})》"
)
_DOTTED: Final = re.compile(r"\w[\w-]+(?:\.[\w-]+)*\.[a-z]\w{0,11}", re.ASCII | re.I)
_SNAKE: Final = re.compile(r"[A-Za-z]+(?:_[A-Za-z]+)+")
_NUMERIC: Final = re.compile(r"[\d./+-]+", re.ASCII)


def in_text(text: str) -> set[str]:
    """The identifiers in ``text``.

    A quoted word in lower case alone is an option rather than a name: it is none.
    Nor is what stands for a value that was redacted.
    """
    text = STANDS_FOR.sub(" ", text)
    found = {name for match in _WORD.finditer(text) if (name := _word(match[0]))}
    for match in _QUOTED.finditer(text):
        name = next(group for group in match.groups() if group).rstrip(" /")
        if _is_name(name):
            found.add(name)
    return found


def in_value(value: Any) -> set[str]:
    """The identifiers in a JSON value; a short text in it is a name, as if quoted."""
    if isinstance(value, str):
        return in_text(value)
    found: set[str] = set()
    for leaf in leaves(value, keys=False):
        found |= in_text(leaf)
        name = leaf.strip().rstrip("/")
        if len(name) < 80 and "\n" not in name and _is_name(name):
            found.add(name)
    return found


def stands_in(text: str, name: str) -> bool:
    """Whether ``text`` has ``name`` in it, and not as a part of a longer word."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        before, behind = text[at - 1 : at], text[end : end + 1]
        if not (_joins(before, name[0]) or _joins(behind, name[-1])):
            return True
        at = text.find(name, at + 1)
    return False


def _joins(neighbour: str, edge: str) -> bool:
    """Whether a character beside a name's edge makes the name part of a word."""
    wordly = neighbour.isascii() and (neighbour.isalnum() or neighbour == "_")
    return wordly and (edge.isalnum() or edge == "_")


def _word(word: str) -> str | None:
    word = word.rstrip(".-/+~@,:;!?)]*").lstrip("-+")
    if len(word) < 3 or len(word) > _LONGEST:
        return None
    if word.startswith(("http://", "https://")):
        return word
    digits = sum(map(str.isdigit, word))
    if _NUMERIC.fullmatch(word):
        return word if digits >= 3 else None
    if "/" in word:
        told = word[0] in "/~." or word.count("/") > 1 or digits or "." in word
        return word if told or "_" in word else None
    if digits:
        return word if len(word) > 3 else None
    return word if _DOTTED.fullmatch(word) or _SNAKE.fullmatch(word) else None


def _is_name(text: str) -> bool:
    if len(text) < 2 or text.isdigit() or STANDS_FOR.search(text):
        return False
    return not (text.isascii() and text.isalpha() and text.islower())
