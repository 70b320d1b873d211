"""A check that first looks for words of a slow pattern decides as the pattern alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from refold.redaction.checks import numbers, people, secrets
from refold.redaction.checks.names import patterns
from tests.redaction import second_corpus

NUMBERS = patterns("numbers")
PEOPLE = patterns("people")
SECRETS = patterns("secrets")
_AFTER_WORD = ("", " ", ": ", "=", '": ', " is ", " the ", "\n", "：", "#")
_BEFORE_WORD = ("", " ", "x", "my_", "the ", "号")


def words_in(pattern: re.Pattern[str]) -> list[str]:
    """The letters and signs that stand together in a pattern."""
    return re.findall(r"[a-zA-Z]+|[\u4e00-\u9fff]+|[#+\-.*_]+", pattern.pattern)


def texts_of(pattern: re.Pattern[str]) -> Iterator[str]:
    """Texts that end with a word of the pattern, and ends of a corpus of documents."""
    words = words_in(pattern)
    for first, second in zip(words, ["", *words], strict=False):
        for word in (first, first.upper(), second + first, f"{second} {first}"):
            for before in _BEFORE_WORD:
                for after in _AFTER_WORD:
                    yield f"{before}{word}{after}"
    for document in second_corpus.documents():
        for value in re.finditer(r"[0-9]{3,}|[=:]", document.text):
            yield document.text[max(0, value.start() - 40) : value.start()]


def has_mobiles_at_its_end(text: str) -> bool:
    return NUMBERS.MOBILES_BEFORE.search(text) is not None


@pytest.mark.parametrize(
    ("pattern", "check"),
    [
        (NUMBERS.COUNT, numbers._is_name_of_count),
        (NUMBERS.CALLED, numbers._has_phone_word),
        (SECRETS.STAND_IN, lambda text: secrets._has_stand_in(text.lower())),
    ],
    ids=["names of counts", "words about calling", "stand-ins"],
)
def test_words_decide_as_their_pattern(
    pattern: re.Pattern[str], check: Callable[[str], bool]
) -> None:
    texts = list(texts_of(pattern))
    if pattern is SECRETS.STAND_IN:
        texts = [text.lower() for text in texts]
    if pattern is NUMBERS.COUNT:
        # A number behind a sign is judged before, and none stands below a name.
        texts = [text for text in texts if not text.endswith(("#", "+", "-", "\n"))]

    wrong = [text for text in texts if check(text) != bool(pattern.search(text))]

    assert any(map(pattern.search, texts))
    assert wrong == []


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (PEOPLE.SPOKEN, people._INTRODUCES),
        (PEOPLE.RANKED, people._RANKS),
    ],
    ids=["introductions", "ranks"],
)
def test_each_match_has_a_word_that_is_looked_for(
    pattern: re.Pattern[str], words: tuple[str, ...]
) -> None:
    matched = [text for text in texts_of(pattern) if pattern.search(text)]

    assert matched
    assert [text for text in matched if not people._has_any(text.lower(), words)] == []


@pytest.mark.parametrize(
    "before",
    [
        "13912345670, ",
        "13912345670 or 13812345678 and ",
        "call 13912345670 not +86 ",
        "139 1234 5670、86-",
        "13888888888/8613888888888和",
    ],
)
def test_numbers_before_a_number_are_seen(before: str) -> None:
    assert has_mobiles_at_its_end(before)

    assert numbers._may_end_with_mobiles(before)


@pytest.mark.parametrize(
    "value", ["none", "None", "STRING=", "v2", "V10", "uint64", "sha-256", "b64decode"]
)
def test_literals_of_languages_are_no_secrets(value: str) -> None:
    assert secrets._is_literal(value)


@pytest.mark.parametrize("value", ["v", "v2a", "version", "nones", "v²", "hunter2"])
def test_other_words_are_no_literals(value: str) -> None:
    assert not secrets._is_literal(value)
