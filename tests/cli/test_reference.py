"""The reference documents exactly the commands and options that exist."""

import re
from collections.abc import Iterable
from typing import Any, get_args

import pytest

from refold.adapters.cli.commands import COMMANDS as TABLE, GROUPS
from refold.adapters.cli.options import As, Engines, Values, Verbosity
from refold.adapters.cli.run import application, command as loaded
from refold.adapters.importers import FORMATS
from tests.cli.conftest import ROOT, Refold

PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text()
COMMANDS = {name: loaded(name) for name in TABLE}
_OPTION = re.compile(r"^\| `(--[a-z-]+)[ `]", re.MULTILINE)
_SHORT_OPTION = re.compile(r"^\| `--[a-z-]+`, `(-[a-z])` \|", re.MULTILINE)
_ARGUMENT = re.compile(r"^\| `([A-Z]+)…?` \|", re.MULTILINE)


def section(command: str) -> str:
    match = re.search(
        rf"^## `refold {command}`$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
    assert match, f"docs/reference/cli.md has no section for `refold {command}`"
    return match[1]


def options_of(params: Iterable[Any]) -> set[str]:
    """Return the names of the options among the parameters of a command."""
    options: set[str] = set()
    for param in params:
        if param.param_type_name == "option":
            options.update(param.opts)
    return options


def test_every_command_has_a_section() -> None:
    documented = re.findall(r"^## `refold ([a-z-]+)`$", PAGE, re.MULTILINE)

    assert sorted(documented) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_exactly_the_existing_options_are_documented(command: str) -> None:
    options = options_of(COMMANDS[command].params)

    short = {option for option in options if not option.startswith("--")}
    documented = set(_OPTION.findall(section(command))) | {"--json"}
    long = (options | {"--json"}) - short
    assert documented == long - {"--help", "--db", "--make-key"}
    assert short == set(_SHORT_OPTION.findall(section(command)))


@pytest.mark.parametrize("command", COMMANDS)
def test_exactly_the_existing_arguments_are_documented(command: str) -> None:
    arguments = {
        (param.metavar or "").strip("[]…").partition("|")[0]
        for param in COMMANDS[command].params
        if param.param_type_name == "argument" and not getattr(param, "hidden", False)
    }

    assert set(_ARGUMENT.findall(section(command))) == arguments


def test_options_of_every_command_are_documented() -> None:
    options = options_of(application().params)
    head = PAGE.partition("## `refold import`")[0]

    assert set(_OPTION.findall(head)) == options | {"--help"}


@pytest.mark.parametrize(
    ("command", "choices"),
    [
        ("log", Verbosity),
        ("context", As),
        ("redact", Values),
        ("redact", Engines),
    ],
)
def test_every_choice_is_documented(command: str, choices: Any) -> None:
    for choice in get_args(choices):
        assert f"`{choice}`" in section(command)


def test_the_help_of_import_lists_the_built_in_formats() -> None:
    [option] = [
        parameter for parameter in COMMANDS["import"].params if parameter.name == "form"
    ]
    assert ", ".join(FORMATS) in option.help


@pytest.mark.parametrize("command", COMMANDS)
def test_the_list_of_commands_repeats_the_first_line_of_each_docstring(
    command: str,
) -> None:
    first, _, _ = (COMMANDS[command].help or "").partition("\n")

    assert first == TABLE[command].summary


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_and_argument_has_a_help_text(command: str) -> None:
    silent = [
        param.name
        for param in COMMANDS[command].params
        if not (param.help or getattr(param, "hidden", False))
    ]

    assert silent == []


@pytest.mark.parametrize("command", ["", *COMMANDS])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_fits_a_terminal_and_is_not_cut(
    refold: Refold, command: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    ran = refold(*filter(None, [command, option]))

    lines = [line for line in ran.out.splitlines() if not line.startswith("Usage:")]
    assert ran.code == 0
    assert [line for line in lines if line.endswith(("…", "..."))] == []
    assert [line for line in lines if len(line) > 80] == []


def test_help_shows_the_commands_in_groups(refold: Refold) -> None:
    ran = refold("--help")

    positions = [ran.out.index(f"\n{group}:\n") for group in GROUPS]
    assert positions == sorted(positions)
    assert list(GROUPS) == ["Look", "Change", "Protect", "Operate"]


def test_completion_can_be_shown_and_completes(
    refold: Refold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")

    script = refold("--show-completion", "bash")
    monkeypatch.setenv("_REFOLD_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "refold se")
    monkeypatch.setenv("COMP_CWORD", "1")
    completed = refold()

    assert "_REFOLD_COMPLETE" in script.out
    assert sorted(completed.out.split()) == ["seal", "search", "serve", "sessions"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_plain(command: str) -> None:
    """Help texts use none of the phrases that this project replaced by plain ones."""
    helps = [COMMANDS[command].help or ""]
    helps += [getattr(param, "help", None) or "" for param in COMMANDS[command].params]

    for text in " ".join(helps).split(".  "):
        assert not re.search(r"Left out:|[Ss]o (many|often|long)\b|is to have", text)


def test_every_count_agrees_with_its_noun() -> None:
    nouns = (
        "sessions events tokens requests rows keys files values items messages turns"
    )
    nouns += " streams blobs findings problems questions users leaves summaries tables"
    bare = re.compile(rf"\}} ({nouns.replace(' ', '|')})\b")
    sources = (ROOT / "refold" / "adapters" / "cli").rglob("*.py")

    bare_counts = []
    for file in sources:
        bare_counts += bare.findall(file.read_text())

    assert bare_counts == []


def test_the_help_command_prints_the_same_as_the_option(refold: Refold) -> None:
    assert refold("help").out == refold("--help").out
    assert refold("help", "export").out == refold("export", "--help").out
