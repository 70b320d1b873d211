"""Labels that people and models write: normalization, and merging of similar spellings.

A label that holds a sentence could carry instructions into memory, so it is dropped.
Two labels that are spelled almost alike become one; two whose meaning may differ do
not.
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
from typing import Any, Final, NamedTuple, NoReturn

from refold.domain.errors import InvalidConfiguration

_MOST_CHARACTERS: Final = 64
_MOST_WORDS: Final = 6
_ALIKE: Final = 0.9
_SEPARATORS: Final = re.compile(r"[ _.\-]+")
# Scripts without spaces between words, and about how many characters form a word.
_HAN: Final = re.compile(
    "[\u2e80-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_THAI: Final = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
_CHARACTERS_PER_WORD: Final = ((_HAN, 2), (_THAI, 6))


def name_of(label: str) -> str | None:
    """Normalize a label to the one spelling of its name, or None if it is not a name.

    A name is one line of letters of any language, digits, ``_``, ``-``, ``.``, and
    spaces: at most 64 characters and six words.  Two characters of Chinese or Japanese
    count as a word.
    """
    if len(label) > _MOST_CHARACTERS:
        return None
    # Unicode's NFKC_Casefold; a second pass makes the result stable.
    folded = unicodedata.normalize("NFD", label).casefold()
    folded = unicodedata.normalize("NFKC", folded).casefold()
    folded = unicodedata.normalize("NFKC", folded)
    if len(folded) > _MOST_CHARACTERS:
        return None
    words = [word for word in _SEPARATORS.split(folded) if word]
    if not words or sum(_word_count(word) for word in words) > _MOST_WORDS:
        return None
    # The first letter of a category: L, M, N are letters, marks, and numbers.
    categories = {unicodedata.category(character)[0] for character in "".join(words)}
    if not categories <= set("LMN"):
        return None
    return "_".join(words)


def _word_count(word: str) -> int:
    """Return the number of words in a text without separators."""
    for script, characters_per_word in _CHARACTERS_PER_WORD:
        characters = len(script.findall(word))
        if characters:
            return ceil(characters / characters_per_word)
    return 1


def alike(name: str, other: str) -> bool:
    """Whether two names are over 90 % alike, word by word, in any order of words.

    Two words are alike if difflib's ratio for them is over 0.9 and the first halves of
    their letters are equal: opposites (inter-, intra-) differ at the front, endings and
    spellings at the back.  A word with a digit, or in a script in which one character
    may reverse the meaning, is alike only to itself.
    """
    words = sorted(name.split("_"))
    other_words = sorted(other.split("_"))
    if len(words) != len(other_words):
        return False
    return all(map(_alike_words, words, other_words))


def _alike_words(word: str, other: str) -> bool:
    if word == other:
        return True
    first, second = sorted((word, other))  # difflib's ratio depends on the order
    half = ceil(min(len(first), len(second)) / 2)
    if first[:half] != second[:half]:
        return False
    if _must_be_equal(first) or _must_be_equal(second):
        return False
    return SequenceMatcher(None, first, second, autojunk=False).ratio() > _ALIKE


@lru_cache(maxsize=4096)
def _must_be_equal(word: str) -> bool:
    if any(unicodedata.category(character)[0] == "N" for character in word):
        return True
    return any(script.search(word) for script, _ in _CHARACTERS_PER_WORD)


def merged(samples: Mapping[str, int]) -> dict[str, str]:
    """Map each name to the similar name that has the most samples, or to itself.

    Names are visited by falling samples, then by spelling, and compared only with names
    that stand for themselves.  The result therefore does not depend on the order of the
    input, and a chain of small differences never merges two different names.
    """
    heads: dict[tuple[str, ...], list[str]] = defaultdict(list)
    head_of: dict[str, str] = {}
    for name in sorted(samples, key=lambda name: (-samples[name], name)):
        candidates = heads[_prefixes(name)]
        similar = (head for head in candidates if alike(head, name))
        head = next(similar, None)
        if head is None:
            head = name
            candidates.append(name)
        head_of[name] = head
    return head_of


def _prefixes(name: str) -> tuple[str, ...]:
    """Return the first three letters of each word: names that are alike share them.

    A ratio over 0.9 for two different words requires at least five letters, and so
    equal halves of at least three.
    """
    return tuple(word[:3] for word in sorted(name.split("_")))


OTHER: Final = "other"
_DEFAULT_ADVICE: Final = "practice"
_KEYS: Final = {"advice", "also", "types"}


class _ErrorType(NamedTuple):
    """An error type, its category, and all its spellings."""

    name: str
    category: str
    spellings: list[str]


@dataclass(frozen=True, slots=True)
class Taxonomy:
    """The error types that a judge may name, each in a category.

    category: by error type; a category is also an error type.
    advice:   by category, a verb: what helps against its errors.
    known:    by spelling, the error type.
    """

    category: Mapping[str, str]
    advice: Mapping[str, str]
    known: Mapping[str, str]

    def error_of(self, name: str) -> str:
        """Return the error type with this spelling, or with one over 90 % alike.

        Of several, the first in alphabetical order.  An unknown name stays as it is.
        """
        if name in self.known:
            return self.known[name]
        for spelling in sorted(self.known):
            if alike(spelling, name):
                return self.known[spelling]
        return name

    def category_of(self, error: str) -> str:
        """Return the category of an error type; ``other`` if it is unknown."""
        return self.category.get(error, OTHER)

    def advice_on(self, error: str) -> str:
        """Return the verb that says what helps against the error."""
        return self.advice.get(self.category_of(error), _DEFAULT_ADVICE)

    @classmethod
    def parse(cls, text: str, *, where: str = "the taxonomy") -> Taxonomy:
        """Read TOML in the form of ``refold/projections/data/errors.toml``.

        where: the name of the text in error messages.

        Raises InvalidConfiguration with the place and the reason.
        """
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InvalidConfiguration(f"{where}: {error}") from None
        category: dict[str, str] = {}
        advice: dict[str, str] = {}
        known: dict[str, str] = {}
        for name, table in tables.items():
            for error_type in _error_types(name, table, f"{where}: [{name}]"):
                category[error_type.name] = error_type.category
                for spelling in error_type.spellings:
                    if known.setdefault(spelling, error_type.name) != error_type.name:
                        _refuse(where, f"{spelling!r} names two error types")
            advice[name] = table.get("advice", _DEFAULT_ADVICE)
        return cls(category, advice, known)


@cache
def packaged() -> Taxonomy:
    """Return the taxonomy that Refold ships."""
    text = (files("refold.projections") / "data" / "errors.toml").read_text("utf-8")
    return Taxonomy.parse(text, where="errors.toml")


def _error_types(category: str, table: Any, where: str) -> Iterator[_ErrorType]:
    """Yield the error types of a table: the category itself, then its ``types``."""
    if not isinstance(table, Mapping) or not table.keys() <= _KEYS:
        _refuse(where, "must be a table of advice, also and types")
    advice = table.get("advice", _DEFAULT_ADVICE)
    if not isinstance(advice, str) or name_of(advice) != advice:
        _refuse(where, "advice must be a name of lower-case words with _ between")
    types = table.get("types", {})
    if not isinstance(types, Mapping):
        _refuse(where, "types must be a table of error types")
    if category == OTHER:
        _refuse(where, "is the category of what is in no other")
    yield _error_type(category, category, table.get("also", []), where)
    for name, other_names in types.items():
        yield _error_type(name, category, other_names, where)


def _error_type(name: str, category: str, other_names: Any, where: str) -> _ErrorType:
    is_list = isinstance(other_names, list)
    if not is_list or not all(isinstance(text, str) for text in other_names):
        _refuse(where, "other names must be a list of texts")
    if name_of(name) != name:
        _refuse(where, f"{name!r} must be a name of lower-case words with _ between")
    spellings = [name]
    for other_name in other_names:
        spelling = name_of(other_name)
        if spelling is None:
            _refuse(where, f"another name of {name!r} is not a name")
        spellings.append(spelling)
    return _ErrorType(name, category, spellings)


def _refuse(where: str, reason: str) -> NoReturn:
    raise InvalidConfiguration(f"{where}: {reason}")
