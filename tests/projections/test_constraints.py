"""Constraints are found without a model, and ordinary sentences are not taken for one.

The held-out sentences were written by somebody who knew no pattern, and measured before
any of them was looked at: recall 0.905, precision 0.958.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from refold.projections.context import constraints
from refold.projections.context.constraints import constraints_in
from refold.projections.context.marked_patterns import MarkedPattern, SentenceWords

FOLDER = Path(__file__).parent / "constraints"
SETS = {
    "own": ("constraints.txt", "other_sentences.txt"),
    "more": ("more_constraints.txt", "more_other_sentences.txt"),
    "held out": ("held_out_constraints.txt", "held_out_other_sentences.txt"),
}


def sentences(name: str) -> list[str]:
    return (FOLDER / name).read_text("utf-8").splitlines()


@pytest.mark.parametrize("name", SETS)
def test_labelled_sentences_are_found_with_high_precision_and_recall(name: str) -> None:
    stated, others = map(sentences, SETS[name])

    recognized = [text for text in stated if [*constraints_in(text)]]
    mistaken = [text for text in others if [*constraints_in(text)]]

    assert len(recognized) / len(stated) >= 0.9
    assert len(recognized) / (len(recognized) + len(mistaken)) >= 0.95


def test_the_sets_are_large_and_half_of_them_are_near_misses() -> None:
    for stated, others in SETS.values():
        assert min(len(sentences(stated)), len(sentences(others))) >= 200


def test_a_constraint_is_found_at_its_place_in_a_long_message() -> None:
    text = (
        "Please add a page for orders. The list is empty at the moment.\n\n"
        "- show the newest first\n- Never edit anything under vendored/.\n"
        "```\n# never do this\n```\n> do not quote me\nThanks!"
    )

    (constraint,) = constraints_in(text)

    assert constraint.text == "Never edit anything under vendored/."
    assert text[constraint.start : constraint.end] == constraint.text
    assert constraint.kind == "prohibition"


def test_a_sentence_that_revokes_a_constraint_is_a_permission() -> None:
    (permission,) = constraints_in("Ok, you may now push to main.")

    assert permission.kind == "permission"


@given(st.text("nev r'do.,;:\n不要 `-", max_size=200))
def test_places_are_in_order_and_inside_of_the_text(text: str) -> None:
    end = 0
    for constraint in constraints_in(text):
        assert end <= constraint.start < constraint.end <= len(text)
        assert text[constraint.start : constraint.end] == constraint.text
        end = constraint.end


@pytest.mark.parametrize(
    "unit", ["never ", "a, ", "you must ", "`", "only the ", "不要", "keep it ", "\n- "]
)
def test_the_time_grows_with_the_length_only(unit: str) -> None:
    def seconds(count: int) -> float:
        text = unit * count
        begin = time.process_time()
        for _ in constraints_in(text):
            pass
        return time.process_time() - begin

    seconds(100)  # loads the patterns

    assert seconds(80_000) < 64 * max(seconds(10_000), 0.01)


def kind_by_all_patterns(sentence: str) -> str | None:
    """Return what a sentence states, without a pattern that is skipped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SentenceWords, "may_match", lambda *_: True)
        patch.setattr(MarkedPattern, "may_begin", lambda *_: True)
        return constraints._kind_of(sentence)


LABELLED = [
    text for names in SETS.values() for name in names for text in sentences(name)
]
WORDS = sorted({word for text in LABELLED for word in text.split()})


@pytest.mark.parametrize("change", [str, str.upper, str.title])
def test_no_labelled_sentence_needs_a_pattern_that_is_skipped(
    change: Callable[[str], str],
) -> None:
    for text in map(change, LABELLED):
        assert constraints._kind_of(text) == kind_by_all_patterns(text), text


@given(
    st.lists(
        st.one_of(
            st.sampled_from(sorted(constraints._MARKED_WORDS)),
            st.sampled_from(WORDS),
            st.sampled_from(LABELLED),
        ),
        min_size=1,
        max_size=9,
    ),
    st.sampled_from([" ", ", ", "_", "-", "'", " — ", '"', "ok "]),
    st.sampled_from(["", "?", " please", "ok", "\u017f", "\u0131", "\u212a"]),
)
def test_no_sentence_of_signs_needs_a_pattern_that_is_skipped(
    parts: list[str], separator: str, ending: str
) -> None:
    sentence = separator.join(parts) + ending

    assert constraints._kind_of(sentence) == kind_by_all_patterns(sentence)


@pytest.mark.parametrize("letter", ["\u017f", "\u0131", "\u0130", "\u212a"])
def test_letters_that_patterns_equate_with_others_are_found(letter: str) -> None:
    """They are the long s, an i without a dot, one with a dot, and the kelvin sign."""
    plain = {"\u017f": "s", "\u212a": "k"}.get(letter, "i")
    text = "Stick to the list, and ask me before the imperative skips it"

    assert constraints._kind_of(text.replace(plain, letter)) == "approval"


def test_a_sentence_without_a_sign_tries_no_clause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unexpected(*_: object) -> None:
        raise AssertionError("patterns are tried")

    for name in ("_kind_of_clause", "_is_standing", "_is_about_others", "_clauses"):
        monkeypatch.setattr(constraints, name, unexpected)

    assert (
        constraints._kind_of("The page shows a table with orders of customers") is None
    )


@pytest.mark.parametrize("ending", ["", " 不要推送。", " \ud800"])
def test_a_message_is_searched_once(
    monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """Every context of a session looks at all of its user's messages."""
    text = f"Never push to main, number {len(ending)}. Thanks for the fix.{ending}"
    first = [*constraints_in(text)]

    def unexpected(_: str) -> None:
        raise AssertionError("the message is searched again")

    monkeypatch.setattr(constraints, "_kind_of", unexpected)

    assert [*constraints_in(text)] == first
    assert first[0].text == f"Never push to main, number {len(ending)}."


def test_memory_of_places_in_messages_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places: dict[bytes, object] = {}
    monkeypatch.setattr(constraints, "_MOST_TEXTS", 10)
    monkeypatch.setattr(constraints, "_places_by_text", places)

    for number in range(35):
        assert [*constraints_in(f"Never push branch {number}.")]
        assert len(places) <= 10
