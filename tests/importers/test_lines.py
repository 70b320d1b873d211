"""Every complete object of a damaged line is read, and every other byte is reported."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold.adapters.importers.lines import Line, parse_line, raw_lines


def entry(number: int, **more: Any) -> dict[str, Any]:
    return {
        "type": "user",
        "uuid": f"u-{number}",
        "sessionId": "s",
        "timestamp": "2026-03-01T10:00:00Z",
        "message": {"role": "user", "content": [{"type": "text", "text": "{x"}]},
        **more,
    }


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def values(line: Line) -> list[Any]:
    return [value.value for value in line.values]


def whys(line: Line) -> list[str]:
    return [damage.why for damage in line.damage]


def test_a_sound_line_is_one_value() -> None:
    raw = b"\xef\xbb\xbf " + dumped(entry(1)) + b"\r\n"

    line = parse_line(raw)

    assert values(line) == [entry(1)]
    assert line.damage == ()
    assert not line.glued
    assert raw[line.values[0].start : line.values[0].end].strip() == dumped(entry(1))


@pytest.mark.parametrize("raw", [b"", b"\n", b" \t\r\n"])
def test_a_blank_line_is_neither_a_value_nor_damage(raw: bytes) -> None:
    assert parse_line(raw) == Line((), ())


@pytest.mark.parametrize("between", [b"", b" ", b"\r", b"\t"])
def test_two_entries_without_a_newline_between_them_are_both_read(
    between: bytes,
) -> None:
    line = parse_line(dumped(entry(1)) + between + dumped(entry(2)) + b"\n")

    assert values(line) == [entry(1), entry(2)]
    assert line.glued
    assert line.damage == ()


def test_an_entry_behind_any_torn_start_is_read() -> None:
    """The first entry is cut at each of its bytes."""
    first = dumped(entry(1, ok=True, none=None, n=-1.5e3, s='\\"\u00e9'))
    second = dumped(entry(2))

    for cut in range(1, len(first)):
        line = parse_line(first[:cut] + second + b"\n")

        assert values(line) == [entry(2)], first[:cut]
        assert line.values[0].start == cut
        assert [(damage.start, damage.end) for damage in line.damage] == [(0, cut)]


def test_a_torn_entry_gives_none_of_its_parts() -> None:
    inner = entry(2)
    torn = dumped({"type": "progress", "data": [inner, inner]})[:-3]

    line = parse_line(torn + b"\n")

    assert values(line) == []
    assert whys(line) == ["is the start of an entry that was never finished"]


def test_runs_of_nul_bytes_are_counted_and_passed_over() -> None:
    line = parse_line(b"\0" * 5 + dumped(entry(1)) + b"\0" * 4096 + b"\n")

    assert values(line) == [entry(1)]
    assert whys(line) == [
        "holds 5 NUL bytes in place of text",
        "holds 4,096 NUL bytes in place of text",
    ]


def test_a_torn_entry_before_nul_bytes_and_an_entry_is_passed_over() -> None:
    torn = dumped(entry(1))[:70]

    line = parse_line(torn + b"\0" * 9 + dumped(entry(2)) + b"\n")

    assert values(line) == [entry(2)]
    assert [(damage.start, damage.end) for damage in line.damage] == [(0, 79)]


def test_bytes_in_another_encoding_spoil_only_their_entry() -> None:
    latin = json.dumps(entry(1, name="caf\u00e9"), ensure_ascii=False).encode("latin-1")

    line = parse_line(latin + dumped(entry(2)) + b"\n")

    assert values(line) == [entry(2)]
    assert "is not UTF-8" in whys(line)[0]
    assert "is not UTF-8" in whys(parse_line(latin + b"\n"))[0]


def test_a_lone_surrogate_is_replaced_and_counted() -> None:
    raw = dumped(entry(1)).replace(b"{x", b"\\ud800")

    line = parse_line(raw)

    assert line.values[0].changes == 1
    assert line.damage == ()


def test_an_entry_nested_too_deeply_is_damage() -> None:
    deep = b'{"type": "user", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"

    line = parse_line(deep + b"\n")

    assert values(line) == []
    assert whys(line) == ["is nested too deeply: flatten or remove it"]


def test_a_cut_line_may_be_completed_only_at_the_end_of_a_file() -> None:
    cut = dumped(entry(1))[:-9]

    assert "once it is complete" in whys(parse_line(cut))[0]
    assert whys(parse_line(cut + b"\n")) == [
        "is the start of an entry that was never finished"
    ]


def test_text_behind_an_entry_is_reported() -> None:
    line = parse_line(dumped(entry(1)) + b"}}, and more\n")

    assert values(line) == [entry(1)]
    assert whys(line) == ["is text that is no JSON object"]


@given(st.binary(max_size=300))
def test_every_byte_that_is_not_blank_is_a_value_or_damage(raw: bytes) -> None:
    raw = raw.replace(b"\n", b"")

    line = parse_line(raw)

    places = [(value.start, value.end) for value in line.values]
    places += [(damage.start, damage.end) for damage in line.damage]
    covered = {at for start, end in places for at in range(start, end)}
    start = 3 if raw.startswith(b"\xef\xbb\xbf") else 0
    for at in range(start, len(raw)):
        assert at in covered or raw[at] in b" \t\r\n\0"


@given(
    st.lists(st.integers(1, 99), min_size=1, max_size=4),
    st.binary(max_size=40),
    st.binary(max_size=40),
)
def test_entries_are_read_whatever_bytes_stand_before_them(
    numbers: list[int], before: bytes, behind: bytes
) -> None:
    entries = [entry(number) for number in numbers]
    middle = b"".join(map(dumped, entries))
    before = before.translate(None, b"\n[{")
    behind = behind.translate(None, b"\n").lstrip(b",]}: \t\r\0")
    raw = before + middle + behind

    read = values(parse_line(raw))

    assert [value for value in read if value in entries] == entries


def test_lines_know_their_places_and_whether_they_are_complete() -> None:
    file = io.BytesIO(b"ab\n\ncd")

    lines = [*raw_lines(file)]

    assert [tuple(line) for line in lines] == [
        (1, 0, 3, b"ab\n", True),
        (2, 3, 4, b"\n", True),
        (3, 4, 6, b"cd", False),
    ]
    assert [line.data for line in raw_lines(file, 4)] == [b"cd"]


@pytest.mark.parametrize(
    ("text", "ended"), [(b"x" * 40 + b"\ny\n", True), (b"x" * 40, False)]
)
def test_a_line_beyond_the_limit_is_passed_over(text: bytes, ended: bool) -> None:
    first, *rest = raw_lines(io.BytesIO(text), limit=8)

    assert tuple(first) == (1, 0, 41 if ended else 40, None, ended)
    assert [line.data for line in rest] == ([b"y\n"] if ended else [])
