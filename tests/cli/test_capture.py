"""`refold capture` records a client's transcripts and can install a hook in it."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from refold.adapters.cli import client_settings
from refold.domain.inventory import outside
from tests.cli.conftest import Refold

CLAUDE: tuple[object, ...] = ("capture", "claude-code", "--user", "ada")
CODEX: tuple[object, ...] = ("capture", "codex", "--user", "ada")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    projects = tmp_path / "client" / "projects"
    (projects / "-work").mkdir(parents=True)
    return projects


def append_inputs(folder: Path, *texts: str) -> None:
    with (folder / "-work" / "s-1.jsonl").open("w") as file:
        for number, text in enumerate(texts):
            entry: dict[str, Any] = {"type": "user", "uuid": f"u-{number}"}
            entry |= {"sessionId": "s-1", "message": {"role": "user", "content": text}}
            file.write(json.dumps(entry) + "\n")


def test_each_capture_appends_new_entries(refold: Refold, folder: Path) -> None:
    append_inputs(folder, "mail ann@build.test", "more")
    once = (*CLAUDE, "--folder", folder, "--once")

    assert refold(*once).out == "2 entries appended\n"
    append_inputs(folder, "mail ann@build.test", "more", "most")
    assert refold(*once).out == "1 entry appended\n"

    shown = refold("log", "--user", "ada", "--session", "s-1").out
    assert "most" in shown
    assert "ann@build.test" not in shown
    status = refold("capture", "--status").out
    assert "claude-code" in status
    assert "not running" in status


def test_nothing_is_captured_without_a_program(refold: Refold) -> None:
    assert refold("capture", "--user", "ada").code == 2
    assert refold("capture", "--status").out == "nothing is captured yet\n"


def test_the_folder_defaults_to_the_one_in_the_clients_settings(
    refold: Refold, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_inputs(folder, "hello")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(folder.parent))

    assert refold(*CLAUDE, "--once").out == "1 entry appended\n"


def test_a_missing_folder_is_reported(refold: Refold, tmp_path: Path) -> None:
    ran = refold(*CLAUDE, "--folder", tmp_path / "none", "--once")

    assert "there is no folder" in ran.err
    assert (ran.code, ran.out) == (0, "0 entries appended\n")


def test_lines_that_are_refused_fail_the_command(refold: Refold, folder: Path) -> None:
    append_inputs(folder, "hello")
    with (folder / "-work" / "s-1.jsonl").open("a") as file:
        file.write("not JSON\n")

    ran = refold(*CLAUDE, "--folder", folder, "--once", "--json")

    assert ran.code == 1
    (refusal,) = ran.json()["refusals"]
    assert refusal["line"] == 2
    assert refusal["path"].endswith("s-1.jsonl")
    assert "line 2 is text that is no JSON object" in ran.err
    again = refold(*CLAUDE, "--folder", folder, "--once")
    assert (again.code, again.out) == (0, "0 entries appended\n")
    assert "line 2 is text" in refold("capture", "--status").out


OURS = "refold.adapters.capture_hook"


def hooks_of(settings: Path, event: str) -> list[Any]:
    groups = json.loads(settings.read_text())["hooks"][event]
    return [hook for group in groups for hook in group["hooks"]]


def test_claude_code_runs_a_hook_after_each_turn(refold: Refold, folder: Path) -> None:
    settings = folder.parent / "settings.json"
    theirs = {"type": "command", "command": "x"}
    before = json.dumps(
        {"model": "opus", "hooks": {"Stop": [{"hooks": [theirs]}]}}, indent=4
    )
    settings.write_text(before)

    for _ in range(2):
        refold(*CLAUDE, "--folder", folder, "--install")

    assert hooks_of(settings, "Stop")[0] == theirs
    for event, count in {"Stop": 2, "SessionEnd": 1, "PreCompact": 1}.items():
        hooks = hooks_of(settings, event)
        assert len(hooks) == count
        assert OURS in hooks[-1]["command"]
        assert hooks[-1]["command"].endswith("&"), "the client waits for a shell alone"
    refold(*CLAUDE, "--folder", folder, "--uninstall")
    assert settings.read_text() == before


def test_codex_runs_a_hook_after_each_turn(refold: Refold, folder: Path) -> None:
    config = folder.parent / "config.toml"
    before = b'model = "gpt-5"\r\n\r\n[tools]\r\nweb = true # \xe2\x80\xa8'
    config.write_bytes(before)

    for _ in range(2):
        refold(*CODEX, "--folder", folder, "--install")
    command = tomllib.loads(config.read_text())["notify"]
    assert command[1:5] == ["-P", "-m", OURS, "codex"]
    refold(*CODEX, "--folder", folder, "--uninstall")

    assert config.read_bytes() == before


@pytest.mark.parametrize("command", [CLAUDE, CODEX], ids=["claude-code", "codex"])
def test_the_hook_is_removed_by_the_advice_of_an_erasure(
    refold: Refold, folder: Path, command: tuple[object, ...]
) -> None:
    (place,) = (place for place in outside() if place.name.startswith("hooks in"))
    (advice,) = re.findall("`refold (.+)`", place.remark)
    program = str(command[1])
    installed = refold(*command, "--folder", folder, "--install", "--json").json()
    assert Path(installed["file"]).exists()

    ran = refold(*advice.replace("CLIENT", program).split(), "--folder", folder)

    assert ran.code == 0, ran.err
    assert not Path(installed["file"]).exists()


@pytest.mark.parametrize("program", ["claude-code", "codex"])
def test_settings_that_contained_only_the_hook_are_removed_with_it(
    refold: Refold, folder: Path, program: str
) -> None:
    command = ("capture", program, "--user", "a", "--folder", folder)

    assert refold(*command, "--uninstall").code == 0
    assert [path.name for path in folder.parent.iterdir()] == ["projects"]
    refold(*command, "--install")
    refold(*command, "--uninstall")

    assert [path.name for path in folder.parent.iterdir()] == ["projects"]


def test_an_older_hook_is_replaced_and_other_hooks_stay(
    refold: Refold, folder: Path
) -> None:
    settings = folder.parent / "settings.json"
    older = "/py -m refold --db sqlite:////x capture claude-code --user ada --folder /f"
    theirs = {"type": "command", "command": "python -m refold capture --status"}
    group = {"matcher": "", "hooks": [{"command": f"{older} --once"}, theirs]}
    settings.write_text(json.dumps({"hooks": {"Stop": [group]}}))

    refold(*CLAUDE, "--folder", folder, "--install")
    assert [hook["command"] for hook in hooks_of(settings, "Stop")][:1] == [
        theirs["command"]
    ]
    assert len(hooks_of(settings, "Stop")) == 2
    refold(*CLAUDE, "--folder", folder, "--uninstall")

    expected = {"hooks": {"Stop": [{"matcher": "", "hooks": [theirs]}]}}
    assert json.loads(settings.read_text()) == expected


def test_a_link_to_settings_stays_a_link(refold: Refold, folder: Path) -> None:
    elsewhere = folder.parent / "dotfiles.json"
    elsewhere.write_text("{}")
    settings = folder.parent / "settings.json"
    settings.symlink_to(elsewhere)

    refold(*CLAUDE, "--folder", folder, "--install")
    assert "hooks" in json.loads(elsewhere.read_text())
    refold(*CLAUDE, "--folder", folder, "--uninstall")

    assert settings.is_symlink()
    assert json.loads(settings.read_text()) == {}


@pytest.mark.parametrize(
    ("program", "name", "text", "reason"),
    [
        ("claude-code", "settings.json", "{", "Expecting property name"),
        ("claude-code", "settings.json", "[]", "no JSON object"),
        ("claude-code", "settings.json", '{"hooks": []}', "no JSON object"),
        ("claude-code", "settings.json", '{"hooks": {"Stop": {}}}', "not a list"),
        ("claude-code", "settings.json", '{"hooks": {"Stop": [1]}}', "no list"),
        ("claude-code", "settings.json", '{"a": 1, "a": 2}', "a key twice"),
        ("claude-code", "settings.json", '{"a": 1} // note', "Extra data"),
        ("codex", "config.toml", "a = ", "Invalid value"),
        ("codex", "config.toml", 'notify = ["x"]\n', "has a notify program already"),
    ],
)
@pytest.mark.parametrize("change", ["--install", "--uninstall"])
def test_settings_that_cannot_be_changed_stay_as_they_are(
    refold: Refold,
    folder: Path,
    program: str,
    name: str,
    text: str,
    reason: str,
    change: str,
) -> None:
    (folder.parent / name).write_text(text)

    ran = refold("capture", program, "--user", "a", "--folder", folder, change)

    assert (folder.parent / name).read_text() == text
    assert [*folder.parent.glob("*.refold")] == []
    if "notify" not in text or change == "--install":
        assert ran.code == 2
        assert reason in ran.err


def test_a_password_is_not_written_into_settings(refold: Refold, folder: Path) -> None:
    url = "postgresql://ann:secret@localhost/db"

    refold("--db", url, *CLAUDE, "--folder", folder, "--install")

    text = (folder.parent / "settings.json").read_text()
    assert "secret" not in text
    assert "--db" not in text


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--once", "--install"), "give only one of --once and --install"),
        (("--uninstall", "--status"), "give only one of --uninstall and --status"),
        (("--once", "--linger", "3"), "give only one of --once and --linger"),
        (("--linger", "nan"), "--linger takes a number of seconds, from 0 on"),
        (("--linger", "-1"), "--linger takes a number of seconds, from 0 on"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    refold: Refold, folder: Path, options: tuple[str, ...], why: str
) -> None:
    ran = refold(*CLAUDE, *options, "--folder", str(folder))

    assert ran.code == 2
    assert why in ran.err
    assert [*folder.parent.glob("settings.json")] == []


def test_a_file_in_place_of_the_folder_is_refused(
    refold: Refold, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()

    ran = refold(*CLAUDE, "--once", "--folder", str(file))

    assert ran.code == 2
    assert "is not a folder: name one with --folder" in ran.err


OTHERS = """{
\t"permissions": {"allow": ["Bash(ls)",  "Read"]}, "n": 1.0e5,
\t"hooks": {
\t\t"Stop": [{"hooks": [{"type": "command", "command": "say hi"}]}],
\t\t"Notification": []
\t}, "sign": "\\u00e9"
}
"""


@pytest.mark.parametrize(
    "text",
    [
        OTHERS,
        OTHERS.replace("\n", "\r\n"),
        '{"model":"opus"}',
        '{ "big": 123456789012345678901234567890.5 }\n',
        '{"hooks":{"Stop":[{"matcher":"","hooks":[]}]},"model":"opus"}',
        "",
        " \n",
        "{}",
        "{ \n}\n",
        '{"hooks": {}}\n',
        '{\n  "hooks": {\n  },\n  "model": "opus"\n}\n',
        '{"model": "opus", "hooks": { }}',
        '{"hooks": {"Stop": [], "SubagentStop": [ ], "SessionEnd": [\n]}, "a": "é"}',
        '{"hooks": {"Stop": []}}',
    ],
)
def test_removing_the_hook_leaves_the_settings_byte_for_byte(
    refold: Refold, folder: Path, text: str
) -> None:
    settings = folder.parent / "settings.json"
    settings.write_bytes(text.encode())

    for _ in range(2):
        assert refold(*CLAUDE, "--folder", folder, "--install").code == 0
    installed = json.loads(settings.read_bytes())
    commands = [hook["command"] for hook in hooks_of(settings, "SessionEnd")]
    assert refold(*CLAUDE, "--folder", folder, "--uninstall").code == 0

    assert len(commands) == 1
    assert OURS in commands[0]
    before = json.loads(text) if text.strip() else {}
    assert installed.keys() == before.keys() | {"hooks"}
    assert settings.read_bytes() == text.encode()


@pytest.mark.parametrize("program", ["claude-code", "codex"])
@pytest.mark.parametrize("is_there", [False, True])
def test_an_empty_settings_file_stays_and_a_missing_one_stays_missing(
    refold: Refold, folder: Path, program: str, is_there: bool
) -> None:
    name = {"claude-code": "settings.json", "codex": "config.toml"}[program]
    settings = folder.parent / name
    if is_there:
        settings.touch()
    command = ("capture", program, "--user", "ada", "--folder", folder)

    for _ in range(2):
        assert refold(*command, "--install").code == 0
    assert refold(*command, "--uninstall").code == 0

    assert settings.exists() == is_there
    assert not is_there or settings.read_bytes() == b""


def test_removing_the_hook_keeps_later_edits(refold: Refold, folder: Path) -> None:
    settings = folder.parent / "settings.json"
    settings.write_text('{"hooks": {}}')
    refold(*CLAUDE, "--folder", folder, "--install")
    edited = json.loads(settings.read_text()) | {"model": "opus"}
    settings.write_text(json.dumps(edited))

    refold(*CLAUDE, "--folder", folder, "--uninstall")

    assert json.loads(settings.read_text()) == {"model": "opus"}


def test_a_hook_runs_in_the_background_and_names_its_undo(
    refold: Refold, folder: Path
) -> None:
    settings = folder.parent / "settings.json"
    settings.write_text("{}")
    refold(*CLAUDE, "--folder", folder, "--install")
    (command,) = {hook["command"] for hook in hooks_of(settings, "Stop")}

    program, _, comment = command.partition(" # ")

    assert program.endswith("&")
    assert comment.startswith("before: ")
    assert "\n" not in comment
    subprocess.run(["/bin/sh", "-nc", command], check=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


GROUPS = st.lists(
    st.fixed_dictionaries(
        {"hooks": st.lists(st.fixed_dictionaries({"command": st.just("say hi")}))}
    ),
    max_size=2,
)
SETTINGS = st.dictionaries(st.sampled_from(["model", "env", "é"]), JSON, max_size=2)
HOOKS = st.dictionaries(st.sampled_from(["Stop", "SessionEnd", "Other"]), GROUPS)


@given(
    settings=SETTINGS,
    hooks=st.none() | HOOKS,
    indent=st.sampled_from([None, 2, "\t"]),
    gap=st.sampled_from(["", " ", "   "]),
)
def test_any_settings_are_the_same_bytes_after_install_and_removal(
    settings: Any, hooks: Any, indent: Any, gap: str
) -> None:
    if hooks is not None:
        settings = {**settings, "hooks": hooks}
    before = json.dumps(settings, indent=indent).replace("{}", "{" + gap + "}")

    first = client_settings._edit_claude_code(before, ["py", "-m", OURS])
    second = client_settings._edit_claude_code(first, ["other", "-m", OURS])
    after = client_settings._edit_claude_code(second, None)

    assert second is not None
    assert second.count("other") == 4
    assert after == before


@example(old=[1, 1], new=[True, 1.0], indent=None)
@given(old=JSON, new=JSON, indent=st.sampled_from([None, 1, 2, "\t"]))
def test_an_edited_text_is_the_new_value(old: Any, new: Any, indent: Any) -> None:
    text = json.dumps(old, indent=indent)

    edited = client_settings._edited(text, old, new, step="  ")

    assert json.dumps(json.loads(edited), sort_keys=True) == json.dumps(
        new, sort_keys=True
    )
