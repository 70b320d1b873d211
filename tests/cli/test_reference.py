"""The reference of the command line has every command and option, and no others."""

import re
from enum import StrEnum

import pytest

from refold.adapters.cli.commands import COMMANDS as TABLE
from refold.adapters.cli.options import As, Engines, Transcripts, Values, Verbosity
from refold.adapters.cli.run import application, command as loaded
from refold.adapters.importers import FORMATS
from tests.cli.conftest import ROOT

PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text()
COMMANDS = {name: loaded(name) for name in TABLE}
_OPTION = re.compile(r"^\| `(--[a-z-]+)[ `]", re.MULTILINE)
_ARGUMENT = re.compile(r"^\| `([A-Z]+)…?` \|", re.MULTILINE)


def section(command: str) -> str:
    found = re.search(
        rf"^## `refold {command}`$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
    assert found, f"docs/reference/cli.md has no section for `refold {command}`"
    return found[1]


def test_every_command_has_a_section() -> None:
    documented = re.findall(r"^## `refold ([a-z-]+)`$", PAGE, re.MULTILINE)

    assert sorted(documented) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_documented_and_no_other(command: str) -> None:
    options = {
        option
        for param in COMMANDS[command].params
        if param.param_type_name == "option"
        for option in param.opts
    }

    assert set(_OPTION.findall(section(command))) == options - {"--help", "--db"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_is_documented_and_no_other(command: str) -> None:
    arguments = {
        (param.metavar or "").strip("[]…").partition("|")[0]
        for param in COMMANDS[command].params
        if param.param_type_name == "argument"
    }

    assert set(_ARGUMENT.findall(section(command))) == arguments


def test_options_of_the_program_are_documented() -> None:
    options = {option for param in application().params for option in param.opts}
    head = PAGE.partition("## `refold import`")[0]

    assert set(_OPTION.findall(head)) == options | {"--help"}


@pytest.mark.parametrize(
    ("command", "choices"),
    [
        ("import", Transcripts),
        ("log", Verbosity),
        ("context", As),
        ("redact", Values),
        ("redact", Engines),
    ],
)
def test_every_choice_is_documented(command: str, choices: type[StrEnum]) -> None:
    for choice in choices:
        assert f"`{choice}`" in section(command)


def test_the_formats_are_those_of_the_importers() -> None:
    assert [form.value for form in Transcripts] == list(FORMATS)
