"""Labels that people and models write: which are names, and which are the same name.

A label that holds a sentence would be a way for it into memory, so it is dropped.  Two
that are spelt almost alike are one; two whose meaning may differ are not.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Mapping
from difflib import SequenceMatcher
from functools import lru_cache
from math import ceil
from typing import Final

_LONGEST, _WORDS = 64, 6
_ALIKE: Final = 0.9
_PARTED: Final = re.compile(r"[ _.\-]+")
# Scripts that part no words, and about how many characters of them are one.
_HAN: Final = re.compile(
    "[\u2e80-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_THAI: Final = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
_PER_WORD: Final = ((_HAN, 2), (_THAI, 6))


def name_of(label: str) -> str | None:
    """The one spelling of a label, or None if it is not a name.

    A name has one line of letters of any language, digits and ``_ - .`` and spaces, up
    to 64 and at most six words; of Chinese and Japanese two characters count as a word.
    """
    if len(label) > _LONGEST:
        return None
    folded = _folded(label)
    words = [word for word in _PARTED.split(folded) if word]
    if not words or len(folded) > _LONGEST or sum(map(_size, words)) > _WORDS:
        return None
    return "_".join(words) if all(map(_is_word, words)) else None


def _folded(label: str) -> str:
    # As Unicode's NFKC_Casefold, which needs both twice to come to rest.
    folded = unicodedata.normalize("NFD", label).casefold()
    folded = unicodedata.normalize("NFKC", folded).casefold()
    return unicodedata.normalize("NFKC", folded)


def _is_word(word: str) -> bool:
    return all(unicodedata.category(character)[0] in "LMN" for character in word)


def _size(word: str) -> int:
    """How many words it is."""
    for script, together in _PER_WORD:
        if found := len(script.findall(word)):
            return ceil(found / together)
    return 1


def alike(one: str, other: str) -> bool:
    """Whether two names are over 90 % alike, word by word and in any order of words.

    Words are alike if difflib's ratio of them is over 0.9 and they begin alike for half
    their length: opposites (inter-, intra-) differ in front, endings and spellings
    behind.  A word with a digit, or in a script of which one character may be the
    contrary, is alike to itself alone.
    """
    ours, theirs = sorted(one.split("_")), sorted(other.split("_"))
    return len(ours) == len(theirs) and all(map(_same_word, ours, theirs))


def _same_word(one: str, other: str) -> bool:
    if one == other:
        return True
    first, second = sorted((one, other))  # the ratio depends on their order
    half = ceil(min(len(first), len(second)) / 2)
    if first[:half] != second[:half] or _is_exact(one) or _is_exact(other):
        return False
    return SequenceMatcher(None, first, second, autojunk=False).ratio() > _ALIKE


@lru_cache(maxsize=4096)
def _is_exact(word: str) -> bool:
    numeric = any(unicodedata.category(character)[0] == "N" for character in word)
    return numeric or any(script.search(word) for script, _ in _PER_WORD)


def merged(samples: Mapping[str, int]) -> dict[str, str]:
    """For each name the one that it goes by: the alike one with the most samples.

    Names are taken by falling samples, equals by spelling, and each is held against
    those that stand for themselves: so the order in which they came does not matter,
    and no chain of small steps makes two different names one.
    """
    heads: dict[tuple[str, ...], list[str]] = defaultdict(list)
    found: dict[str, str] = {}
    for name in sorted(samples, key=lambda name: (-samples[name], name)):
        some = heads[_beginnings(name)]
        head = next((head for head in some if alike(head, name)), None)
        if head is None:
            some.append(name)
        found[name] = head or name
    return found


def _beginnings(name: str) -> tuple[str, ...]:
    """How its words begin: the same for names that are alike.

    Words that are alike and not equal have five letters or more, for a ratio over 0.9,
    and so begin with the same three.
    """
    return tuple(word[:3] for word in sorted(name.split("_")))
