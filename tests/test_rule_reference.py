"""The reference of the rules describes them, and shows no complete secret."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

from refold.redaction.rules import PACKS
from refold.redaction.types import TYPES
from tools import rule_reference

PAGE = rule_reference.page()
RULES = list(chain.from_iterable(PACKS.values()))


def test_every_pack_rule_and_type_is_there() -> None:
    used = {rule.type for rule in RULES}

    assert [f"## `{name}`" for name in PACKS] == re.findall("^## `.*?`", PAGE, re.M)
    for rule in RULES:
        expected = [f"\n| `{rule.id}` | "]
        if rule.of_list:  # the page lists the programs, in their form for a shell
            expected = [
                f"`{name}`" for name in rule.gate if not re.search("['\"]", name)
            ]
        assert expected
        assert all(text in PAGE for text in expected)
    for name in used & set(TYPES):
        assert f"\n| `{name}` | " in PAGE


def test_every_row_has_as_many_cells_as_its_table() -> None:
    cells = 0
    for line in PAGE.splitlines():
        bars = len(re.findall(r"(?<!\\)\|", line))
        if not line.startswith("|"):
            cells = 0
        else:
            assert bars == (cells or bars), line
            cells = bars


def test_an_example_is_marked_where_it_is_redacted() -> None:
    assert (
        "| `email` | `EMAIL` | `write to «lin.wei+work@mail.example.org».` | |"
    ) in PAGE


def test_an_example_without_a_mark_is_marked_by_its_change() -> None:
    marked = rule_reference._marked("call 12 now", "call [REDACTED:PHONE] now")

    assert marked == "call «12» now"


def test_no_key_is_shown_completely() -> None:
    keys = [
        value
        for rule in RULES
        if rule.type == "API_KEY"
        for example in rule.examples
        if isinstance(example, str)
        for value in re.findall("«(.*?)»", example)
    ]

    assert len(keys) > 100
    assert [key for key in keys if key in PAGE] == []


def test_a_page_that_is_out_of_date_is_noticed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "rules.md"
    monkeypatch.setattr(rule_reference, "PAGE", page)

    assert rule_reference.main(["--check"]) == 1
    assert rule_reference.main([]) == 0
    assert rule_reference.main(["--check"]) == 0
    page.write_text(page.read_text() + "\n")
    assert rule_reference.main(["--check"]) == 1


def test_programs_are_listed_once_and_in_code_without_quotes() -> None:
    section = PAGE.split("### Arguments of commands")[1].split("\n#")[0]
    listed = re.findall("`([^`]*)`", section.partition(":\n")[2])

    assert "kubectl create secret" in listed
    assert listed == sorted(set(listed))
    assert not [program for program in listed if re.search("['\"\n]", program)]
