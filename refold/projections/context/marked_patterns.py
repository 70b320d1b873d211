"""Regular expressions that are only tried on sentences with certain words.

A pattern is a list of alternatives.  Braces in them mark phrases, one of which is in
each match, as whole words: ``{keep|leave} the \\w+ {alone|as is}``.  So a sentence
without "keep" and "leave" cannot match.  Braces stand outside of groups.  An
alternative of plain words needs none.  Looking for words is much faster than matching.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import Final

# A quantifier such as {2,40} is no mark.
_MARK: Final = re.compile(r"\{([a-z'][^{}]*)\}")
_PLAIN_WORDS: Final = re.compile(r"[a-z' -]+")
# A word in a phrase.  "compatib\w+" is any word that begins so; a "\w+" is no word.
_PHRASE_WORD: Final = re.compile(r"(?<![a-z\\])[a-z]+(?:\\w\+)?")
_ANY_END: Final = r"\w+"

_WORD: Final = re.compile(r"[^\W_]+")
# Dotless i, long s, i with a dot, and the kelvin sign: an expression that ignores case
# equates them with ASCII letters.
_EQUATED: Final = frozenset("\u0131\u017f\u0130\u212a")
_SPACES: Final = {
    code: " " for code in range(128) if not (chr(code).isalnum() and code < 128)
}


class MarkedPattern:
    """A regular expression that ignores case, and the words that a match needs.

    A sentence may match if it has one of ``words``, a word that begins with one of
    ``beginnings``, or a word of each set of one of ``combinations``.

    whole_words: whether a match begins and ends at the edges of words.
    first_words: the words with which a match begins; None if others are possible.
    last_words:  the words of the last set of each combination.

    Raises ValueError for an alternative without a mark.
    """

    def __init__(self, marked: Iterable[str], *, whole_words: bool = False) -> None:
        alternatives = [_Alternative(text) for text in marked]
        sources = "|".join(alternative.source for alternative in alternatives)
        self.source = f"(?:{sources})"
        if whole_words:
            self.source = rf"\b{self.source}\b"
        self.expression = re.compile(self.source, re.IGNORECASE)
        self.match = self.expression.match
        self.search = self.expression.search

        words: set[str] = set()
        last_words: set[str] = set()
        self.beginnings: list[str] = []
        self.combinations: list[list[frozenset[str]]] = []
        for alternative in alternatives:
            *other_sets, last_set = alternative.word_sets
            if other_sets:
                self.combinations.append(alternative.word_sets)
                last_words |= last_set
                continue
            for word in last_set:
                if word.endswith(_ANY_END):
                    self.beginnings.append(word.removesuffix(_ANY_END))
                else:
                    words.add(word)
        self.words = frozenset(words)
        self.last_words = frozenset(last_words)
        self.needs_one_word = not self.beginnings and not self.combinations

        first_words = [alternative.first_words for alternative in alternatives]
        self.first_words: frozenset[str] | None = None
        if all(first_words):
            self.first_words = frozenset().union(*first_words)

    @property
    def marked_words(self) -> frozenset[str]:
        """All words by which the pattern is skipped, except beginnings of words."""
        return self.words.union(*chain.from_iterable(self.combinations))

    def may_begin(self, clause: str) -> bool:
        """Whether a match can begin with the first word of a clause."""
        if self.first_words is None:
            return True
        word = _WORD.match(clause)
        if word is None:
            return False
        return word[0].lower() in self.first_words or not word[0].isascii()


class _Alternative:
    """An alternative of a pattern.

    source:      the regular expression without the braces.
    word_sets:   a set for each mark; each match has a word of each set.
    first_words: the words with which a match begins; empty if it may begin with others.
    """

    def __init__(self, marked: str) -> None:
        if _PLAIN_WORDS.fullmatch(marked):
            marked = f"{{{marked}}}"
        before, *parts = _MARK.split(marked)
        if not parts:
            raise ValueError(f"the pattern {marked} marks no words")
        self.source = _group(before)
        self.word_sets: list[frozenset[str]] = []
        for mark, after in zip(parts[::2], parts[1::2], strict=True):
            # A pattern is matched where a word begins, and so is a mark at its front.
            if self.source:
                self.source += r"\b"
            self.source += rf"{_group(mark)}\b{_group(after)}"
            self.word_sets.append(frozenset(map(_longest_word, mark.split("|"))))
        self.first_words: frozenset[str] = frozenset()
        if not before:
            self.first_words = frozenset(map(_first_word, parts[0].split("|")))


def _group(expression: str) -> str:
    """Keep an "or" in an expression from including what is around it."""
    return f"(?:{expression})" if "|" in expression else expression


def _first_word(phrase: str) -> str:
    return str(_PHRASE_WORD.findall(phrase)[0])


def _longest_word(phrase: str) -> str:
    """Return a word that each match of a phrase has, preferably a rare one."""
    return str(max(_PHRASE_WORD.findall(phrase), key=len))


class SentenceWords:
    """The words of a sentence by which patterns are skipped.

    A word is a run of letters and digits.  ``words`` is None if the sentence has
    letters that expressions equate with others, so that it may match any pattern.

    marked_words: the words of all patterns; others of the sentence are left out.
    """

    __slots__ = ("_lowered", "words")

    def __init__(self, sentence: str, marked_words: frozenset[str]) -> None:
        self._lowered = sentence.lower()
        self.words: frozenset[str] | None = None
        if sentence.isascii():
            words = self._lowered.translate(_SPACES).split()
            self.words = marked_words.intersection(words)
        elif _EQUATED.isdisjoint(sentence):
            self.words = marked_words.intersection(_WORD.findall(self._lowered))

    def may_match(self, pattern: MarkedPattern) -> bool:
        """Whether the sentence has the words that a match of the pattern needs."""
        words = self.words
        if words is None or not words.isdisjoint(pattern.words):
            return True
        if pattern.needs_one_word:
            return False
        for beginning in pattern.beginnings:
            if beginning in self._lowered:
                return True
        if words.isdisjoint(pattern.last_words):
            return False
        for combination in pattern.combinations:
            for one_of in combination:
                if words.isdisjoint(one_of):
                    break
            else:
                return True
        return False
