"""The README's recording shows the real commands, and needs no other file."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from tools.recording import COMMANDS, PICTURE, ROWS, SECONDS, picture, record, timed

SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = 300_000


def without_figures(lines: list[str]) -> list[str]:
    """Return the lines without numbers, such as sizes, which may differ a little."""
    return [" ".join(re.sub(r"[\d.,]+", "N", line).split()) for line in lines]


def shown(drawn: str) -> list[str]:
    """Return the lines of text of a picture."""
    root = ElementTree.fromstring(drawn)  # noqa: S314 - drawn by the project itself
    texts = root.iter(f"{SVG}text")
    return ["".join(text.itertext()) for text in texts]


def test_each_command_is_followed_by_its_output() -> None:
    lines, length = timed([("one", "a\n\n\x1b[1;32mb\x1b[0m <c>"), ("two", "d")])

    drawn = picture(lines, length)

    assert shown(drawn) == ["$ one", "a", "b <c>", "$ two", "d"]
    assert 'font-weight="bold"' in drawn
    assert [line.at for line in lines] == sorted(line.at for line in lines)


def test_a_line_breaks_at_the_width_of_the_terminal() -> None:
    lines, length = timed([("one", "x" * 100)])

    assert shown(picture(lines, length)) == ["$ one", "x" * 96, "x" * 4]


def test_without_animation_the_end_is_shown() -> None:
    lines, length = timed([("one", "\n".join("abcdefghij" * 4))])

    drawn = picture(lines, length)

    hidden = len(lines) - ROWS
    assert f"transform:translateY(-{hidden * 19}px)" in drawn
    assert "prefers-reduced-motion" in drawn


def test_the_picture_in_the_readme_shows_the_commands_and_is_small() -> None:
    drawn = PICTURE.read_text("utf-8")

    assert [f"$ {command}" for command in COMMANDS] == [
        line for line in shown(drawn) if line.startswith("$ ")
    ]
    assert len(drawn.encode()) < MOST_BYTES
    assert SECONDS == 20
    assert "<script" not in drawn
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")


def test_the_picture_in_the_readme_shows_what_the_commands_print() -> None:
    now = picture(*timed(record()))

    assert without_figures(shown(PICTURE.read_text("utf-8"))) == without_figures(
        shown(now)
    ), "run `make recording`"
