"""A table shows every word and number in full on a terminal of any width."""

import io
import re
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len

import refold as package
from refold.adapters.cli import output
from refold.adapters.display import values
from tests.cli.conftest import Refold

WIDTHS = (40, 80, 200)
OF = ("--user", "lin", "--session", "run")
LONG = "5f0c2a7e-3b41-4d8e-9a56-1c7e8b9d0f24"
SPEC = "turn_window:full_turns=2,cached_turns=2"
COMMANDS = [
    ("stats",),
    ("stats", "--cost"),
    ("compare", *OF),
    ("compare", *OF, "--strategy", SPEC, "--strategy", "keep_all"),
    ("memory", "--user", "lin", "--all"),
    ("review", "list"),
    ("keys", "status"),
    ("erase", "--user", "lin", "--dry-run"),
    ("erase", "--list"),
    ("import", "talk.jsonl", "--user", "ada", "--session", LONG),
]

names = st.text("abcdefghij_ ", min_size=1, max_size=14).filter(str.strip)
texts = st.text("abc-_:=, 中文", max_size=90)
numbers = st.integers(0, 10**9).map(values.number)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    numeric = [False, *draw(st.lists(st.booleans(), min_size=1, max_size=8))]
    heads = [("#" if is_number else "") + draw(names).strip() for is_number in numeric]
    row = st.tuples(*(numbers if is_number else texts for is_number in numeric)).map(
        list
    )
    return heads, draw(st.lists(row, min_size=1, max_size=4))


def rendered(
    monkeypatch: pytest.MonkeyPatch, width: int, heads: list[str], rows: list[list[str]]
) -> str:
    """Return what is written to a terminal of ``width`` columns."""
    written = io.StringIO()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "stdout", written)
    output.Terminal().table(heads, rows)
    return written.getvalue()


def unbreakable_words(text: str) -> set[str]:
    """Return the words that must stay whole; Chinese may break anywhere."""
    return set(re.findall(r"[^\s\u2e80-\uffff]+", text))


@given(table=tables(), width=st.sampled_from(WIDTHS))
def test_no_word_or_number_is_cut(
    table: tuple[list[str], list[list[str]]], width: int
) -> None:
    heads, rows = table

    with pytest.MonkeyPatch.context() as patch:
        written = rendered(patch, width, heads, rows)

    shown = unbreakable_words(written)
    for row in rows:
        for head, cell in zip(heads, row, strict=True):
            assert unbreakable_words(cell) <= shown
            if len(heads) > 2 and cell.strip():
                assert unbreakable_words(head.lstrip("#")) <= shown | unbreakable_words(
                    written.replace(":", " ")
                )
    for line in written.splitlines():
        assert cell_len(line.rstrip()) <= width or max(map(cell_len, line.split())) > 20


def test_wide_tables_continue_below_with_their_first_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heads = ["strategy", "#tokens", "#peak", "#uncached"]
    rows = [["recursive_summary", "348,594", "12,000", "34"]]

    lines = rendered(monkeypatch, 40, heads, rows).splitlines()

    assert [line.split() for line in lines] == [
        ["strategy", "tokens", "peak"],
        ["recursive_summary", "348,594", "12,000"],
        [],
        ["strategy", "uncached"],
        ["recursive_summary", "34"],
    ]


def test_a_table_without_room_becomes_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = ["user", "session", "#events"]

    written = rendered(monkeypatch, 40, heads, [["ada", LONG, "348,594"]])

    assert written == f"user: ada\nsession: {LONG}\nevents: 348,594\n".replace(
        "session: ", "session:\n"
    )


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
@pytest.mark.usefixtures("packaged_models")
def test_every_cell_of_a_command_is_printed(
    refold: Refold,
    sample: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    width: int,
) -> None:
    (tmp_path / "talk.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "mail bob@build.test"}]}\n'
    )
    with package.open(f"sqlite:///{sample}") as store:
        store.session(user_id="eve", session_id=LONG).append(
            package.Reflection(pass_=False, issues=("data_loss",))
        )
        store.session(user_id="gone", session_id=LONG).append(
            package.UserInput(text="Forget me.")
        )
        store.erase("gone", "asked for, by letter and by mail")
    refold("review", "scan")
    refold("compact", *OF, "--strategy", SPEC)
    cells: list[str] = []
    table = output.Terminal.table

    def keep_heads(screen: output.Terminal, columns: list[str], rows: Any) -> None:
        plain_rows = [[output._plain(cell) for cell in row] for row in rows]
        cells.extend(chain.from_iterable(plain_rows))
        table(screen, columns, plain_rows)

    monkeypatch.setattr(output.Terminal, "table", keep_heads)
    monkeypatch.setattr(output, "paint", lambda show: show(output.Terminal()))
    monkeypatch.setenv("COLUMNS", str(width))
    ran = refold(*args)

    assert ran.code == 0, ran.err
    assert cells
    listed = re.sub(r":(?=\s)", "", ran.out)
    assert unbreakable_words(" ".join(cells)) <= unbreakable_words(
        ran.out
    ) | unbreakable_words(listed)
