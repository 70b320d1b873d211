"""A pattern is skipped only for sentences that cannot match it."""

from __future__ import annotations

import re

import pytest

from refold.projections.context import constraints
from refold.projections.context.marked_patterns import MarkedPattern, SentenceWords


def may_match(pattern: MarkedPattern, sentence: str) -> bool:
    return SentenceWords(sentence, pattern.marked_words).may_match(pattern)


def test_a_sentence_needs_a_word_of_each_mark() -> None:
    pattern = MarkedPattern([r"{keep|leave} the \w+ {alone|as is}"])

    assert pattern.match("Leave the tests as is")
    assert may_match(pattern, "Leave the tests as is")
    assert may_match(pattern, "I keep it alone")
    assert not may_match(pattern, "Leave the tests")
    assert not may_match(pattern, "The keeper is alone")


def test_an_alternative_of_plain_words_needs_no_mark() -> None:
    pattern = MarkedPattern(["going forward", "never"])

    assert pattern.marked_words == {"forward", "never"}
    assert pattern.match("going forward, no")
    assert not pattern.match("going forwards")


def test_a_mark_is_a_whole_word_also_for_an_expression_that_goes_on() -> None:
    pattern = MarkedPattern([r"{keep}\w*", "x{only}"])

    assert not pattern.match("keeper")
    assert not pattern.match("xonly")


def test_a_word_can_be_marked_by_its_beginning() -> None:
    pattern = MarkedPattern([r"{compatib\w+}"])

    assert may_match(pattern, "It is backwards COMPATIBLE")
    assert not may_match(pattern, "It is comparable")


def test_the_first_words_of_a_pattern_are_those_of_its_front_marks() -> None:
    pattern = MarkedPattern(["{do not|don't} go", "it's {fine}", "{you} may"])
    fronts = MarkedPattern(["{do not|don't} go", "{you} may"])

    assert pattern.first_words is None
    assert fronts.first_words == frozenset({"do", "don", "you"})
    assert fronts.may_begin("Don't go")
    assert not fronts.may_begin("It may")


@pytest.mark.parametrize("letter", ["\u017f", "\u0131", "\u0130", "\u212a"])
def test_no_pattern_is_skipped_for_letters_that_equal_others(letter: str) -> None:
    assert may_match(MarkedPattern(["skip"]), f"{letter} is another letter")


def test_an_alternative_without_a_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="marks no words"):
        MarkedPattern([r"\w+ed"])


@pytest.mark.parametrize("table", ["anywhere", "beginnings"])
def test_marks_of_constraints_stand_outside_of_groups(table: str) -> None:
    """Each part between two marks compiles as a regular expression."""
    for alternatives in constraints._WORDS[table].values():
        for alternative in alternatives:
            for part in re.split(r"\{[a-z'<][^{}]*\}", alternative):
                re.compile(constraints._with_lists(part))
