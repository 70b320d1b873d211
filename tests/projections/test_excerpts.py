"""Excerpts are cut where a reader would cut, and never inside a placeholder."""

from __future__ import annotations

import re

from hypothesis import given, strategies as st

from refold.projections.context.excerpts import cut_to_sentences, gist
from refold.projections.context.text import cut_around_placeholders

PLACEHOLDER = "[REDACTED:STUDENT_ID]"


def test_a_cut_falls_at_the_end_of_a_sentence() -> None:
    text = "First sentence here. Second one. " * 20

    head, _, rest = cut_to_sentences(text, 200).partition("[…")
    tail = rest.partition("…]")[2]

    assert head.endswith(".")
    assert tail.lstrip().startswith(("First", "Second"))


def test_a_cut_falls_at_the_end_of_a_line() -> None:
    text = "\n".join(f"line {number} of the output" for number in range(40))

    lines = cut_to_sentences(text, 300).splitlines()

    assert lines[0] == "line 0 of the output"
    assert all(line.endswith("of the output") for line in lines if "…]" not in line)


@given(
    st.lists(st.sampled_from(["word ", "x", PLACEHOLDER, ". ", "\n"]), max_size=80),
    st.integers(0, 300),
)
def test_no_cut_leaves_a_part_of_a_placeholder(parts: list[str], limit: int) -> None:
    cut = cut_to_sentences("".join(parts), limit)

    assert len(cut) <= max(limit, 0)
    rest = cut.replace(PLACEHOLDER, "")
    assert "REDACTED" not in rest
    assert "STUDENT" not in rest


ANSWER = """I looked at the parser and at its tests.

The files are long, and most of them are generated.  Some have comments.  Nothing in
them is unusual, and the style is the same everywhere.

1. **Rewrite the lexer**: cleanest, but it takes a week
2. **Patch the escape table**: small, and it fixes both reports

The root cause is the escape table, because it maps two characters to one.

```go
for _, entry := range table { check(entry); check(entry); check(entry) }
```

Which of the two do you prefer?"""


def test_a_gist_keeps_options_findings_and_the_question() -> None:
    text = gist(ANSWER, 330)

    assert text.startswith("I looked at the parser")
    assert "1. **Rewrite the lexer**" in text
    assert "2. **Patch the escape table**" in text
    assert "The root cause is the escape table" in text
    assert text.endswith("Which of the two do you prefer?")
    assert "style is the same" not in text
    assert "check(entry)" not in text


def test_a_gist_of_a_gist_has_no_two_marks_side_by_side() -> None:
    text = gist(gist(ANSWER, 330), 200)

    assert len(text) <= 200
    assert "…][…" not in text


@given(
    st.lists(
        st.sampled_from(
            ["word ", "It fails. ", "1. One", "- two", PLACEHOLDER, "\n", "```\n", "。"]
        ),
        max_size=120,
    ),
    st.integers(0, 400),
)
def test_a_gist_has_sentences_of_its_text_within_the_limit(
    parts: list[str], limit: int
) -> None:
    text = "".join(parts)

    short = gist(text, limit)

    assert len(short) <= max(limit, 0)
    place = 0
    for piece in re.split(r"\[…\d+…\]", short):
        place = text.find(piece.strip("\n"), place)
        assert place >= 0
    rest = short.replace(PLACEHOLDER, "")
    assert "REDACTED" not in rest
    assert "STUDENT" not in rest


@given(
    st.lists(st.sampled_from(["word ", "x", PLACEHOLDER]), max_size=80),
    st.integers(0, 300),
)
def test_a_cut_in_the_middle_leaves_no_part_of_a_placeholder(
    parts: list[str], limit: int
) -> None:
    cut = cut_around_placeholders("".join(parts), limit)

    assert len(cut) <= max(limit, 0)
    rest = cut.replace(PLACEHOLDER, "")
    assert "REDACTED" not in rest
    assert "STUDENT" not in rest
