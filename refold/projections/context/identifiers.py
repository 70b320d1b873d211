"""Identifiers in texts and values: names that a later call may use again."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

from refold.domain.placeholders import STANDS_FOR
from refold.projections.context.text import leaves

_LONGEST: Final = 200  # characters of an identifier
_LONGEST_LEAF: Final = 80  # characters of a JSON text that may be a name as a whole
# Words are ASCII only, because Chinese text has no spaces around a number or a path.
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
_HASH: Final = re.compile(r"(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}")
_ISSUE: Final = re.compile(r"#\d+|[A-Z][A-Z0-9]*-\d+|\w[\w./-]*#\d+", re.ASCII)
_HOST: Final = re.compile(
    r"(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?"
    r"|(?:[\w-]+\.)+(?:com|org|net|io|dev|ai|app|cn|de|uk|eu|edu|gov)(?::\d+)?"
    r"|localhost:\d+",
    re.ASCII | re.IGNORECASE,
)
# Symbols of programs: with a dot, an underscore, a change of case, or a digit.
_SYMBOL: Final = re.compile(
    r"[A-Za-z_$][\w$]*(?:(?:\.|::|-)[\w$]+)*(?:\(\))?", re.ASCII
)
_MARKED: Final = re.compile(r"[._$:-]|[a-z][A-Z]|\d|\(\)")
_CODE: Final = re.compile(r"[=<>|&;{}\[\]\\^%*?!\"`$~@]|\.\s|\w\(|,")
_FEWEST_TITLE_WORDS: Final = 3
_MOST_TITLE_WORDS: Final = 12
_LONGEST_NAME: Final = 3  # words of a name that is no identifier of a program

Kind = Literal["url", "host", "hash", "issue", "path", "symbol", "number", "name"]


def in_text(text: str) -> set[str]:
    """Return the identifiers in ``text``.

    A quoted word of lower-case letters alone is an option rather than a name, and does
    not count.  Neither does a placeholder of a redacted value.
    """
    text = STANDS_FOR.sub(" ", text)
    identifiers: set[str] = set()
    for word in set(_WORD.findall(text)):
        if word.isalpha():
            continue  # most words are of letters alone, which is no identifier
        identifier = _identifier(word)
        if identifier is not None:
            identifiers.add(identifier)
    for match in _QUOTED.finditer(text):
        name = match[match.lastindex or 0].rstrip(" /")
        if _is_name(name):
            identifiers.add(name)
    return identifiers


def in_value(value: Any) -> set[str]:
    """Return the identifiers in a JSON value.

    A short text of an object or a list is a name, as if it were quoted.
    """
    if isinstance(value, str):
        return in_text(value)
    identifiers: set[str] = set()
    for leaf in leaves(value, keys=False):
        identifiers |= in_text(leaf)
        name = leaf.strip().rstrip("/")
        if len(name) < _LONGEST_LEAF and "\n" not in name and _is_name(name):
            identifiers.add(name)
    return identifiers


def kind_of(identifier: str) -> Kind | None:
    """Return the kind of an identifier, or None for a piece of prose or code.

    A name has at most three words, each with a capital letter, a digit, or no case.
    """
    if identifier.startswith(("http://", "https://")):
        return "url"
    for pattern, kind in _KINDS:
        if pattern.fullmatch(identifier):
            return kind
    words = identifier.split()
    # A package of a scope, or what follows the credentials in a URL, begins with "@".
    path = identifier.removeprefix("@")
    if len(words) == 1 and "/" in path and not _CODE.search(path):
        return "path"
    if _SYMBOL.fullmatch(identifier) and _MARKED.search(identifier):
        return "symbol"
    if len(words) > _LONGEST_NAME or _CODE.search(identifier):
        return None
    is_name = not any(word.islower() for word in words)
    return "name" if is_name else None


_KINDS: Final[tuple[tuple[re.Pattern[str], Kind], ...]] = (
    (_ISSUE, "issue"),
    (_HOST, "host"),
    (_NUMERIC, "number"),
    (_HASH, "hash"),
)


def is_title(text: str) -> bool:
    """Whether a quote is a title in prose, such as the subject of a commit."""
    words = text.split()
    if not _FEWEST_TITLE_WORDS <= len(words) <= _MOST_TITLE_WORDS:
        return False
    return text[0].isupper() and not _CODE.search(text.replace(",", ""))


def stands_in(text: str, name: str) -> bool:
    """Whether ``text`` contains ``name``, and not only as a part of a longer word."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        before = text[at - 1 : at]
        after = text[end : end + 1]
        if not _joins(before, name[0]) and not _joins(after, name[-1]):
            return True
        at = text.find(name, at + 1)
    return False


def _joins(neighbor: str, edge: str) -> bool:
    """Whether the character next to a name's edge makes the name part of a word."""
    if not neighbor.isascii():
        return False
    return _is_word_character(neighbor) and _is_word_character(edge)


def _is_word_character(character: str) -> bool:
    return character.isalnum() or character == "_"


def _identifier(word: str) -> str | None:
    """Return the identifier in a word, without punctuation at its ends; None without.

    These are identifiers: URLs, numbers of three digits or more, paths, words with a
    digit, names with a file extension, and names with underscores.
    """
    word = word.rstrip(".-/+~@,:;!?)]*").lstrip("-+")
    if len(word) < 3 or len(word) > _LONGEST:
        return None
    if word.startswith(("http://", "https://")):
        return word
    digits = sum(1 for character in word if character.isdigit())
    if _NUMERIC.fullmatch(word):
        is_identifier = digits >= 3
    elif "/" in word:
        is_identifier = _is_path(word)
    elif digits:
        is_identifier = len(word) > 3
    else:
        is_identifier = bool(_DOTTED.fullmatch(word) or _SNAKE.fullmatch(word))
    return word if is_identifier else None


def _is_path(word: str) -> bool:
    """Whether a word with a slash is a path, and not two words such as ``and/or``."""
    has_digit = any(character.isdigit() for character in word)
    is_deep = word.count("/") > 1
    return word[0] in "/~." or is_deep or has_digit or "." in word or "_" in word


def _is_name(text: str) -> bool:
    """Whether a quoted text is a name."""
    if len(text) < 2 or text.isdigit() or STANDS_FOR.search(text):
        return False
    is_plain_word = text.isascii() and text.isalpha() and text.islower()
    return not is_plain_word
