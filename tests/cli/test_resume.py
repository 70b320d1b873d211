"""``resume`` and exports of contexts write a session for another program."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import refold as package
from refold.adapters import config, exporters
from refold.adapters.importers import read
from refold.adapters.proxy.recorder import StoreRecorder
from tests.cli.conftest import SAMPLE, Refold
from tests.support.wire import WireClient, check_contexts

ID = "5c0f3f6e-7a0b-4a53-9a58-0d5f8d1f2a11"
RUN = ("--user", "ada", "--session", "s")
CLIENTS = {"claude-code": "claude", "codex": "codex", "gemini": "gemini"}


@pytest.fixture
def recorded(refold: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refold:
    """A command line with the sample session, and without installed clients."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    monkeypatch.setenv("GEMINI_CLI_HOME", str(tmp_path / "gemini"))
    monkeypatch.setenv("PATH", "")
    refold("import", SAMPLE, *RUN)
    return refold


def transcripts(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.jsonl") if path.parent != folder]


def install(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program in the path that writes its arguments and its folder to a file."""
    started = folder / "said"
    program = folder / "bin" / name
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$PWD $*" > {started}\nexit 7\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return started


@pytest.mark.parametrize("client", CLIENTS)
def test_resume_writes_the_session_and_prints_the_command(
    recorded: Refold, tmp_path: Path, client: str
) -> None:
    ran = recorded("resume", "s", "--user", "ada", "--in", client, "--print-command")

    (path,) = transcripts(tmp_path)
    session = ran.out.split()[-1]
    assert ran.code == 0, ran.err
    assert ran.out.split()[0] == CLIENTS[client]
    assert session[:8] in path.name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "is not installed" not in ran.err
    (transcript,) = read(path)
    assert transcript.session_id == str(UUID(session))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_that_is_not_installed_is_reported_with_its_command(
    recorded: Refold, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")

    ran = recorded("resume", "s", "--user", "ada", "--in", client)

    assert ran.out.split()[0] == CLIENTS[client]
    assert f"{CLIENTS[client]} is not installed" in ran.err


@pytest.mark.parametrize("client", CLIENTS)
def test_the_resumed_session_is_a_fork_before_the_client_starts(
    recorded: Refold, client: str
) -> None:
    ran = recorded("resume", "s", "--user", "ada", "--in", client, "--print-command")

    name = ran.out.split()[-1]
    listed = recorded("sessions", "--user", "ada", "--json").json()
    log = recorded("log", "--user", "ada", "--session", name, "--json").lines()
    (origin,) = [info for info in listed if info["session_id"] == "s"]
    (fork,) = [info for info in listed if info["session_id"] == name]
    assert fork["parent"] == "s"
    assert [event["type"] for event in log] == ["fork", "state"]
    assert log[0]["payload"] == {"session_id": "s", "at_seq": origin["head_seq"]}


def test_the_proxy_records_only_new_events_of_a_resumed_session(
    recorded: Refold, tmp_path: Path
) -> None:
    resumed = ("resume", "s", "--user", "ada", "--in", "claude-code")
    ran = recorded(*resumed, "--print-command")
    name = ran.out.split()[-1]
    context = recorded("context", *RUN, "--json").json()
    with package.open(f"sqlite:///{tmp_path / 'refold.db'}") as store:
        client = WireClient(StoreRecorder(store, user_id="ada"), name)
        client.messages[:] = context["messages"]
        client.say("Go on.", "I go on.")

        assert check_contexts(store, client, "ada") == 1
        fork = store.session(user_id="ada", session_id=name)
        assert fork.head().state.forked_from == ("s", context["at"])
        content = ("user_input", "agent_response", "tool_call", "tool_result")
        new = [event.type for event in fork.events(types=content)]
        assert new == ["user_input", "agent_response"]
        assert fork.labels()["recorded_by"] == "proxy"


@pytest.mark.parametrize("client", CLIENTS)
def test_resume_writes_to_the_home_if_no_variable_names_a_folder(
    recorded: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    home = tmp_path / "person"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR")
    monkeypatch.delenv("CODEX_HOME")
    monkeypatch.delenv("GEMINI_CLI_HOME")

    ran = recorded("resume", "s", "--user", "ada", "--in", client, "--print-command")

    assert ran.code == 0, ran.err
    (path,) = transcripts(tmp_path)
    assert path.relative_to(home).parts[0] == f".{CLIENTS[client]}"


@pytest.mark.parametrize("client", CLIENTS)
def test_resume_reports_a_home_that_cannot_be_written(
    recorded: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "file" / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "file" / "codex"))
    monkeypatch.setenv("GEMINI_CLI_HOME", str(tmp_path / "file" / "gemini"))

    ran = recorded("resume", "s", "--user", "ada", "--in", client)

    assert ran.code != 0
    assert "Traceback" not in ran.err
    assert str(tmp_path / "file") in ran.err


@pytest.mark.parametrize("client", CLIENTS)
def test_resume_starts_an_installed_client_in_this_folder(
    recorded: Refold,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    client: str,
) -> None:
    started = install(tmp_path, CLIENTS[client], monkeypatch)

    ran = recorded("resume", "s", "--user", "ada", "--in", client)

    (path,) = transcripts(tmp_path)
    folder, *arguments = started.read_text().split()
    assert ran.code == 7
    assert ran.out == ""
    assert os.path.samefile(folder, tmp_path)
    assert arguments[-1][:8] in path.name


def test_gemini_finds_the_session_under_its_name_for_the_folder(
    recorded: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def project() -> str:
        recorded("resume", "s", "--user", "ada", "--in", "gemini", "--print-command")
        newest = max(transcripts(tmp_path), key=lambda path: path.stat().st_mtime_ns)
        marker = newest.parent.parent / ".project_root"
        assert marker.read_text() == str(Path.cwd().resolve())
        return marker.parent.name

    monkeypatch.setenv("REFOLD_DB", f"sqlite:///{tmp_path / 'refold.db'}")
    settings = tmp_path / "gemini" / ".gemini"
    folders = [tmp_path / "one" / "My Shop", tmp_path / "two" / "my_shop"]
    for folder in folders:
        folder.mkdir(parents=True)
    names = []
    for folder in [*folders, folders[0]]:
        monkeypatch.chdir(folder)
        names.append(project())
    of_client = {"projects": {str(folders[1]): "chosen-by-the-client"}}
    (settings / "projects.json").write_text(json.dumps(of_client))
    monkeypatch.chdir(folders[1])
    names.append(project())

    assert names == ["my-shop", "my-shop-1", "my-shop", "chosen-by-the-client"]


def test_a_missing_session_and_one_of_another_user_cannot_be_resumed(
    recorded: Refold, tmp_path: Path
) -> None:
    missing = recorded("resume", "t", "--user", "ada", "--in", "codex")
    of_ada = recorded("resume", "s", "--user", "bob", "--in", "codex")

    assert missing.code == of_ada.code == 1
    assert missing.err.replace("'t'", "'s'").replace("ada", "bob") == of_ada.err
    assert transcripts(tmp_path) == []


@pytest.mark.parametrize("form", exporters.FORMS)
def test_an_export_has_the_messages_of_the_context(
    recorded: Refold, tmp_path: Path, form: str
) -> None:
    out = tmp_path / f"{ID}.jsonl"

    ran = recorded("export", *RUN, "--format", form, "--out", out, "--json")
    printed = recorded("export", *RUN, "--format", form)

    context = recorded("context", *RUN, "--json").json()
    assert ran.code == printed.code == 0, ran.err + printed.err
    assert ran.json()["messages"] == len(context["messages"])
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert len(out.read_text().splitlines()) == len(printed.out.splitlines())
    for line in printed.out.splitlines():
        json.loads(line)


def test_an_export_has_the_id_in_the_name_of_its_file(
    recorded: Refold, tmp_path: Path
) -> None:
    out = tmp_path / f"rollout-2026-01-01T00-00-00-{ID}.jsonl"

    recorded("export", *RUN, "--format", "codex", "--out", out)

    first = json.loads(out.read_text().splitlines()[0])
    assert first["payload"]["id"] == ID


def test_an_existing_file_is_overwritten_only_by_force(
    recorded: Refold, tmp_path: Path
) -> None:
    out = tmp_path / f"{ID}.jsonl"
    out.write_text("a transcript\n")
    export = ("export", *RUN, "--format", "claude-code", "--out", out)

    refused = recorded(*export)
    before = out.read_text()
    forced = recorded(*export, "--force")

    assert refused.code == 2
    assert "overwrite it with --force" in refused.err
    assert before == "a transcript\n"
    assert forced.code == 0, forced.err
    assert ID in out.read_text()


def test_an_export_at_a_seq_has_the_context_of_that_event(
    recorded: Refold,
) -> None:
    at = ("--at", "2")

    ran = recorded("export", *RUN, "--format", "anthropic", *at)

    context = recorded("context", *RUN, *at, "--json").json()
    assert json.loads(ran.out)["messages"] == context["messages"]


def test_an_export_under_a_strategy_has_its_summaries(recorded: Refold) -> None:
    strategy = ("--strategy", "turn_window:full_turns=1,cached_turns=1")
    recorded("compact", *RUN, *strategy)

    ran = recorded("export", *RUN, "--format", "anthropic", *strategy)

    context = recorded("context", *RUN, *strategy, "--json").json()
    assert json.loads(ran.out)["messages"] == context["messages"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--user", "ada", "--format", "codex"), "one session: give --session"),
        ((*RUN, "--format", "codex", "--jobs", "2"), "--jobs is for a folder"),
        ((*RUN, "--at", "1"), "--at is for the formats of a context"),
        ((*RUN, "--format", "atif", "--reveal"), "--reveal is for the formats"),
        ((*RUN, "--format", "otlp", "--force"), "--force is for the formats"),
    ],
)
def test_options_of_contexts_need_a_format_of_contexts(
    recorded: Refold, arguments: tuple[str, ...], why: str
) -> None:
    ran = recorded("export", *arguments)

    assert ran.code == 2
    assert why in " ".join(ran.err.split())


def test_an_erasure_names_the_exports_of_a_context(
    recorded: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_ACCESS_LOG", "table")
    out = tmp_path / f"{ID}.jsonl"
    recorded("export", *RUN, "--format", "claude-code", "--out", out)
    recorded("resume", "s", "--user", "ada", "--in", "codex", "--print-command")

    audit = recorded("audit", "--user", "ada", "--json").lines()
    erased = recorded("erase", "--user", "ada", "--reason", "asked", "--yes", "--json")

    exports = [record for record in audit if record["event"] == "export"]
    assert len(exports) == 2
    assert str(out) in erased.out
    (rollout,) = (tmp_path / "codex").rglob("*.jsonl")
    assert str(rollout) in erased.out


def test_an_export_reveals_values_only_if_asked(
    recorded: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = "ada.lovelace@example.org"
    rules = tmp_path / "policy.toml"
    rules.write_text(
        'version = 1\nnumbered = true\n[vault]\ntypes = ["EMAIL"]\ndays = 1\n'
    )
    monkeypatch.setenv("REFOLD_POLICY", str(rules))
    url = f"sqlite:///{tmp_path / 'refold.db'}"
    with package.open(url, policy=config.policy(None)) as store:
        session = store.session(user_id="ada", session_id="mails")
        session.append(package.UserInput(text=f"Write to {mail}."))
    mails: tuple[Any, ...] = ("--user", "ada", "--session", "mails")

    hidden = recorded("export", *mails, "--format", "anthropic")
    shown = recorded("export", *mails, "--format", "anthropic", "--reveal")

    assert mail not in hidden.out
    assert mail in shown.out
    assert "real values in place of placeholders (EMAIL)" in shown.err
