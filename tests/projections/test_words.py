"""The count of words does not depend on the characters next to them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from refold.projections.context.text import count_words

_LETTERS = (
    "ab1 _-.,:\n\t\x1c“”é漢字ｶ\u3000\xa0\u0301🙂"  # characters that may be in a log
)


@given(st.text(alphabet=_LETTERS, max_size=30))
def test_each_character_of_cjk_and_each_other_run_with_a_letter_is_a_word(
    text: str,
) -> None:
    count = 0
    in_run = False
    for character in text:
        if character in "漢字ｶ":
            count += 1
            in_run = False
        elif character.isspace():
            in_run = False
        elif character.isalnum() and not in_run:
            count += 1
            in_run = True

    assert count_words(text) == count
    # The rest is searched for among much ASCII.
    assert count_words(f"{'a b. ' * 40}{text}\t{'- c' * 9}") == 89 + count


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        ("a_b.py -- see lines 4-602", 4),
        ("“quoted” – and plain", 3),  # as it is printed
        ("漢字 and kana", 4),
        ("_ . — ___", 0),
    ],
)
def test_words_of_a_text(text: str, words: int) -> None:
    assert count_words(text) == words
