"""Labels that people and models write: which are names, and which are the same name.

A label that holds a sentence would be a way for it into memory, so it is dropped.  Two
that are spelt almost alike are one; two whose meaning may differ are not.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache, lru_cache
from importlib.resources import files
from math import ceil
from typing import Any, Final, NoReturn, TypeAlias

from refold.domain.errors import InvalidConfiguration

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
    # As Unicode's NFKC_Casefold, which needs both twice to come to rest.
    folded = unicodedata.normalize("NFD", label).casefold()
    folded = unicodedata.normalize("NFKC", folded).casefold()
    folded = unicodedata.normalize("NFKC", folded)
    words = [word for word in _PARTED.split(folded) if word]
    if not words or len(folded) > _LONGEST or sum(map(_size, words)) > _WORDS:
        return None
    kinds = {unicodedata.category(character)[0] for character in "".join(words)}
    return "_".join(words) if kinds <= set("LMN") else None


def _size(word: str) -> int:
    found = ((len(script.findall(word)), together) for script, together in _PER_WORD)
    return next((ceil(count / together) for count, together in found if count), 1)


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


OTHER: Final = "other"
_PRACTICE: Final = "practice"
_KEYS: Final = {"advice", "also", "types"}
# An error type, its category, and all its spellings.
_Entry: TypeAlias = tuple[str, str, list[str]]


@dataclass(frozen=True, slots=True)
class Taxonomy:
    """Which error types there are, each in a category.

    category: of each error type; a category is an error type of its own.
    advice:   what helps against errors of a category, a verb.
    known:    the error type of each spelling.
    """

    category: Mapping[str, str]
    advice: Mapping[str, str]
    known: Mapping[str, str]

    def error_of(self, name: str) -> str:
        """The error type that ``name`` is a spelling of, or is over 90 % like.

        ``name`` itself if it is unknown.  Of several the first by the alphabet.
        """
        if name in self.known:
            return self.known[name]
        like = next((one for one in sorted(self.known) if alike(one, name)), None)
        return name if like is None else self.known[like]

    def category_of(self, error: str) -> str:
        """Of an error type; ``other`` of one that is unknown."""
        return self.category.get(error, OTHER)

    def advice_on(self, error: str) -> str:
        """What helps against it."""
        return self.advice.get(self.category_of(error), _PRACTICE)

    @classmethod
    def parse(cls, text: str, *, where: str = "the taxonomy") -> Taxonomy:
        """Read TOML in the form of ``refold/projections/data/errors.toml``.

        Raises InvalidConfiguration, naming ``where`` and what is wrong.
        """
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InvalidConfiguration(f"{where}: {error}") from None
        entries = [entry for name in tables for entry in _category(name, tables, where)]
        known: dict[str, str] = {}
        for kind, _, spellings in entries:
            for spelling in spellings:
                if known.setdefault(spelling, kind) != kind:
                    _wrong(where, f"{spelling!r} names two error types")
        advice = {name: tables[name].get("advice", _PRACTICE) for name in tables}
        return cls({kind: category for kind, category, _ in entries}, advice, known)


@cache
def packaged() -> Taxonomy:
    """The taxonomy that comes with Refold."""
    text = (files("refold.projections") / "data" / "errors.toml").read_text("utf-8")
    return Taxonomy.parse(text, where="errors.toml")


def _category(name: str, tables: Mapping[str, Any], where: str) -> Iterator[_Entry]:
    table, where = tables[name], f"{where}: [{name}]"
    if not isinstance(table, Mapping) or not table.keys() <= _KEYS:
        _wrong(where, "must be a table of advice, also and types")
    advice, types = table.get("advice", _PRACTICE), table.get("types", {})
    if not isinstance(advice, str) or name_of(advice) != advice:
        _wrong(where, "advice must be a name of lower-case words with _ between")
    if not isinstance(types, Mapping):
        _wrong(where, "types must be a table of error types")
    if name == OTHER:
        _wrong(where, "is the category of what is in no other")
    yield _entry(name, name, table.get("also", []), where)
    for error, also in types.items():
        yield _entry(error, name, also, where)


def _entry(error: str, category: str, also: Any, where: str) -> _Entry:
    if not isinstance(also, list) or not all(isinstance(one, str) for one in also):
        _wrong(where, "other names must be a list of texts")
    if name_of(error) != error:
        _wrong(where, f"{error!r} must be a name of lower-case words with _ between")
    names = [name for one in (error, *also) if (name := name_of(one)) is not None]
    if len(names) <= len(also):
        _wrong(where, f"another name of {error!r} is no name")
    return error, category, names


def _wrong(where: str, why: str) -> NoReturn:
    raise InvalidConfiguration(f"{where}: {why}")
