"""The terms of texts: stems of words, parts of identifiers, pairs of CJK characters."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

_LONGEST_WORD: Final = 64  # characters that count
_MOST_PARTS: Final = 6  # of an identifier; longer ones are random letters
_WORD: Final = re.compile(r"[^\W_]+")
# Scripts without spaces between words: each pair of neighboring characters is a term.
_CJK_CLASS: Final = (
    "[\u2e80-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
)
_CJK: Final = re.compile(f"{_CJK_CLASS}+")
_TOKEN: Final = re.compile(f"(?P<cjk>{_CJK_CLASS}+)|(?:(?!{_CJK_CLASS})[^\\W_])+")
# Where a word of letters in both cases has its parts: readFile, HTTPServer.
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LETTERS: Final = re.compile("[a-z]+")
_VOWEL: Final = re.compile("[aeiouy]")
_SHORTEST_STEM: Final = 3
# Words of questions and sentences that say nothing about their subject.
_STOP_WORDS: Final = """
a an and are as at be been but by can could did do does for from had has have he her
his how i if in into is it its me my of on or our she so that the their them then
there these they this to was we were what when where which who whom why will with
would you your
"""


def normalized(text: str) -> str:
    """Return the text without the width of letters and other forms of characters."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def stem(word: str) -> str:
    """Return the stem of an English word in lower case; other words are unchanged.

    Only the endings -s, -es, -ies, -ing and -ed, a final -e, and a doubled last letter
    are removed.  A stem has at least three letters and a vowel.
    """
    if len(word) < _SHORTEST_STEM or _LETTERS.fullmatch(word) is None:
        return word
    base = _singular(word)
    for ending in ("ing", "ed"):
        shorter = base.removesuffix(ending)
        if (
            shorter != base
            and len(shorter) >= _SHORTEST_STEM
            and _VOWEL.search(shorter)
        ):
            base = shorter
            break
    if len(base) > _SHORTEST_STEM and base[-1] == base[-2]:
        base = base[:-1]
    if base.endswith("e") and len(base) > _SHORTEST_STEM + 1:
        base = base[:-1]
    if base.endswith("y"):
        base = base[:-1] + "i"
    return base


def _singular(word: str) -> str:
    """Return the singular of a plural, after Harman's S-stemmer."""
    if len(word) <= _SHORTEST_STEM:
        return word
    if word.endswith("ies"):
        return word if word[-4] in "ae" else word[:-3] + "y"
    if word.endswith("es"):
        return word if word[-3] in "aeo" else word[:-1]
    if word.endswith("s"):
        return word if word[-2] in "us" else word[:-1]
    return word


@lru_cache(maxsize=50_000)
def terms_of_word(word: str) -> tuple[str, ...]:
    """Return the terms of a word: its stem, then the stems of an identifier's parts."""
    whole = stem(word.casefold()[:_LONGEST_WORD])
    if word.islower() or word.isupper() or len(word) > _LONGEST_WORD:
        return (whole,)
    parts = _HUMP.split(word)
    if not 1 < len(parts) <= _MOST_PARTS:
        return (whole,)
    return (whole, *(stem(part.casefold()) for part in parts))


def pairs(run: str) -> list[str]:
    """Return the pairs of neighboring characters of a run; a single one is itself."""
    if len(run) == 1:
        return [run]
    return [run[start : start + 2] for start in range(len(run) - 1)]


def terms(text: str) -> Counter[str]:
    """Return the terms of a text, and how often it has each.

    A word of several parts, such as ``readFile``, counts whole and by its parts.  In
    Chinese, Japanese, and Korean, each pair of neighboring characters is a term.
    """
    text = normalized(text)
    counts: Counter[str] = Counter()
    if not text.isascii():
        for run in _CJK.findall(text):
            counts.update(pairs(run))
        text = _CJK.sub(" ", text)
    for word, count in Counter(_WORD.findall(text)).items():
        for term in terms_of_word(word):
            counts[term] = counts.get(term, 0) + count
    return counts


def whole_terms(text: str) -> set[str]:
    """Return the terms of a text without the parts of its identifiers."""
    wholes: set[str] = set()
    for token in _TOKEN.finditer(normalized(text)):
        if token["cjk"]:
            wholes.update(pairs(token[0]))
        else:
            wholes.add(terms_of_word(token[0])[0])
    return wholes


def places(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield each term of a text with its start and its end, in order of the starts."""
    for token in _TOKEN.finditer(text):
        start, end = token.span()
        if token["cjk"]:
            for offset, pair in enumerate(pairs(token[0])):
                yield pair, start + offset, start + offset + len(pair)
            continue
        for word in _WORD.findall(normalized(token[0])):
            for term in terms_of_word(word):
                yield term, start, end


@lru_cache(maxsize=100)
def phrase_pattern(phrase: str) -> re.Pattern[str]:
    """Return an expression that finds a phrase in a folded text.

    Case, punctuation, and the kind of white space between the words do not matter.
    """
    pattern = ""
    end_was_cjk = True
    for token in _TOKEN.finditer(folded(phrase)):
        is_cjk = bool(token["cjk"])
        if pattern:
            pattern += r"[\W_]*" if is_cjk or end_was_cjk else r"[\W_]+"
        elif not is_cjk:
            pattern = r"(?<![^\W_])"
        pattern += re.escape(token[0])
        end_was_cjk = is_cjk
    if not end_was_cjk:
        pattern += r"(?![^\W_])"
    return re.compile(pattern)


def folded(text: str) -> str:
    """Return the text for comparison, without the case and the width of letters."""
    if text.isascii():
        return text.lower()
    return normalized(text).casefold()


# Stems that say nothing about the subject of a question or a sentence.
STOP_STEMS: Final = frozenset(map(stem, _STOP_WORDS.split()))
