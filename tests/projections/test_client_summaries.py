"""A summary of the client that is over its budget is cut by its structure."""

from __future__ import annotations

import pytest

from refold.domain.tokens import estimate_text
from refold.projections.context.client_summaries import ClientSummary, shortened

CODE = "\n".join(f"    line {number} of the code" for number in range(40))
FILES = "\n".join(f"   - src/part_{number}.py has a part." for number in range(60))
TEXT = f"""This session is being continued from a previous conversation.

Summary:
1. Primary Request and Intent:
   - The fence must be green, and the gate stays locked.

3. Files and Code Sections:
{FILES}
   ```py
{CODE}
   ```

6. All user messages:
   - "Never edit anything under vendored/."

9. Optional Next Step:
   Paint the gate."""


def whole(text: str, seq: int = 1) -> ClientSummary:
    return ClientSummary(seq, 7, text, text)


def test_a_summary_within_its_budget_stays_whole() -> None:
    (summary,) = shortened([whole(TEXT)], 4_000)

    assert summary.text == TEXT
    assert (summary.is_cut, summary.notice) == (False, "")


def test_code_and_then_the_longest_section_are_cut_first() -> None:
    (summary,) = shortened([whole(TEXT)], whole(TEXT).tokens - 1)
    (shorter,) = shortened([whole(TEXT)], 400)

    assert "src/part_59.py" in summary.text
    assert "line 39 of the code" not in summary.text
    for text in (summary.text, shorter.text):
        assert "the gate stays locked" in text
        assert "Never edit anything under vendored/." in text
        assert "Paint the gate." in text
    assert "src/part_0.py" in shorter.text
    assert "src/part_59.py" not in shorter.text
    hidden = dict(shorter.left_out)["Files and Code Sections"]
    assert f"[… {hidden} lines left out …]" in shorter.text
    assert shorter.notice == (
        f"(Left out of the client's summary: {hidden} lines of Files and Code "
        "Sections. The log has all of it in turn 7.)"
    )


@pytest.mark.parametrize("budget", [0, 100, 200, 400, 900])
@pytest.mark.parametrize("text", [TEXT, "word " * 4_000, "x" * 9_000, f"```\n{CODE}"])
def test_a_summary_never_exceeds_its_budget(text: str, budget: int) -> None:
    (summary,) = shortened([whole(text)], budget)

    if summary.text:
        assert summary.tokens <= budget
    else:
        assert summary.tokens == estimate_text(summary.notice)
    assert summary.is_cut == (summary.text != text)
    assert ("Left out of the client's summary" in summary.notice) == summary.is_cut


def test_the_newest_of_several_summaries_gets_its_room_first() -> None:
    budget = estimate_text(TEXT) + 100

    older, newer = shortened([whole(TEXT, 1), whole(TEXT, 9)], budget)

    assert newer.text == TEXT
    assert older.is_cut


def test_a_heading_inside_code_begins_no_section() -> None:
    text = (
        "Summary:\n```\n# not a heading\n"
        + "a line\n" * 400
        + "```\n2. Next Step:\n  x"
    )

    (summary,) = shortened([whole(text)], whole(text).tokens // 2)

    assert {name for name, _ in summary.left_out} == {"Summary"}
    assert "2. Next Step:\n  x" in summary.text
