"""Excerpts are cut where a reader would cut, and never inside a placeholder."""

from __future__ import annotations

from hypothesis import given, strategies as st

from refold.projections.context.excerpts import cut_to_sentences

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
