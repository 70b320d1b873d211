"""The tables of the command reference come from the help, and notes in them stay."""

from __future__ import annotations

import pytest

from tools import cli_reference
from tools.cli_reference import END, PAGE, notes, page, problems

MARK = "<!-- options of seal: old -->\n"


def test_the_options_of_a_command_come_from_its_help() -> None:
    written = page(f"before\n{MARK}{END}after\n")

    assert "refold seal [OPTION]…\n" in written
    assert "| `--sweep` | Check every stream, not only those with new events. |" in (
        written.splitlines()
    )
    assert "--db" not in written
    assert written.startswith("before\n")
    assert written.endswith("after\n")


def test_a_note_stays_when_the_help_changes() -> None:
    old = f"{MARK}| `--sweep` | An older help.<br>A note, see [x](y.md). |\n{END}"

    written = page(old)

    assert "An older help" not in written
    assert "with new events.<br>A note, see [x](y.md). |" in written
    assert notes(written) == {"--sweep": "A note, see [x](y.md)."}
    assert page(written) == written


def test_a_common_option_is_listed_only_with_a_note() -> None:
    written = page(f"{MARK}| `--json` | Print.<br>One line. |\n{END}")

    assert "| `--json` | Print JSON.<br>One line. |" in written.splitlines()


def test_choices_and_defaults_are_shown() -> None:
    written = page(f"<!-- options of redact: old -->\n{END}")

    assert "One of `auto`, `vectorscan`, `stdlib`." in written
    assert "`text`; `json`: one value" in written
    assert "Default: `text`." in written


def test_a_missing_command_and_a_note_without_an_option_are_reported() -> None:
    reported = list(problems(f"{MARK}| `--gone` | x<br>A note. |\n{END}"))

    assert f"{PAGE}: `seal` has no --gone, but a note about it" in reported
    assert any("`refold log` has no mark" in problem for problem in reported)
    assert not any("`refold seal` has no mark" in problem for problem in reported)


def test_a_page_that_is_out_of_date_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli_reference.main(["--check"]) == 0
    monkeypatch.setattr(cli_reference, "page", lambda old: old + "new\n")

    assert cli_reference.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().out
