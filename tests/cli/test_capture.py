"""`refold capture` follows a program, and has the program run it."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Refold

CLAUDE: tuple[object, ...] = ("capture", "claude-code", "--user", "ada")
CODEX: tuple[object, ...] = ("capture", "codex", "--user", "ada")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "client" / "projects"
    (made / "-work").mkdir(parents=True)
    return made


def written(folder: Path, *texts: str) -> None:
    with (folder / "-work" / "s-1.jsonl").open("w") as file:
        for number, text in enumerate(texts):
            entry: dict[str, Any] = {"type": "user", "uuid": f"u-{number}"}
            entry |= {"sessionId": "s-1", "message": {"role": "user", "content": text}}
            file.write(json.dumps(entry) + "\n")


def test_what_is_new_is_appended_each_time(refold: Refold, folder: Path) -> None:
    written(folder, "mail ann@build.test", "more")
    once = (*CLAUDE, "--folder", folder, "--once")

    assert refold(*once).out == "2 entries appended\n"
    written(folder, "mail ann@build.test", "more", "most")
    assert refold(*once).out == "1 entry appended\n"

    shown = refold("log", "--user", "ada", "--session", "s-1").out
    assert "most" in shown
    assert "ann@build.test" not in shown
    told = refold("capture", "--status").out
    assert "claude-code" in told
    assert "not running" in told


def test_nothing_is_captured_without_a_program(refold: Refold) -> None:
    assert refold("capture", "--user", "ada").code == 2
    assert refold("capture", "--status").out == "nothing is captured yet\n"


def test_the_folder_is_where_the_program_is_told_to_keep_it(
    refold: Refold, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(folder, "hello")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(folder.parent))

    assert refold(*CLAUDE, "--once").out == "1 entry appended\n"


def test_a_folder_that_is_not_there_is_said(refold: Refold, tmp_path: Path) -> None:
    ran = refold(*CLAUDE, "--folder", tmp_path / "none", "--once")

    assert "there is no folder" in ran.err
    assert (ran.code, ran.out) == (0, "0 entries appended\n")


def test_claude_code_runs_it_after_each_turn(refold: Refold, folder: Path) -> None:
    settings = folder.parent / "settings.json"
    theirs = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "x"}]}]}}
    settings.write_text(json.dumps({"model": "opus", **theirs}))
    written(folder, "hello")

    for _ in range(2):
        refold(*CLAUDE, "--folder", folder, "--install")
    hooks = json.loads(settings.read_text())["hooks"]
    assert hooks["Stop"][0] == theirs["hooks"]["Stop"][0]
    (ours,) = hooks["Stop"][1]["hooks"]
    _, *command = shlex.split(ours["command"])
    assert command[:2] == ["-m", "refold"]
    assert refold(*command[2:]).out == "1 entry appended\n"
    refold(*CLAUDE, "--folder", folder, "--uninstall")

    assert json.loads(settings.read_text()) == {"model": "opus", **theirs}


def test_codex_runs_it_after_each_turn(refold: Refold, folder: Path) -> None:
    config = folder.parent / "config.toml"
    config.write_text('model = "gpt-5"\n\n[tools]\nweb = true\n')
    before = config.read_text()

    for _ in range(2):
        refold(*CODEX, "--folder", folder, "--install")
    command = tomllib.loads(config.read_text())["notify"]
    told = '{"type":"agent-turn-complete"}'
    assert refold(*command[3:], told).out == "0 entries appended\n"
    refold(*CODEX, "--folder", folder, "--uninstall")

    assert config.read_text() == before


@pytest.mark.parametrize(
    ("program", "name", "text", "said"),
    [
        ("claude-code", "settings.json", "{", "is no settings file"),
        ("claude-code", "settings.json", '{"hooks": []}', "is no settings file"),
        ("codex", "config.toml", "a = ", "is no TOML"),
        ("codex", "config.toml", 'notify = ["x"]\n', "has a notify program already"),
    ],
)
def test_settings_that_cannot_be_changed_stay_as_they_are(
    refold: Refold, folder: Path, program: str, name: str, text: str, said: str
) -> None:
    (folder.parent / name).write_text(text)

    ran = refold("capture", program, "--user", "a", "--folder", folder, "--install")

    assert ran.code == 2
    assert said in ran.err
    assert (folder.parent / name).read_text() == text


def test_a_password_is_not_written_into_settings(refold: Refold, folder: Path) -> None:
    url = "postgresql://ann:secret@localhost/db"

    refold("--db", url, *CLAUDE, "--folder", folder, "--install")

    said = (folder.parent / "settings.json").read_text()
    assert "secret" not in said
    assert "--db" not in said
