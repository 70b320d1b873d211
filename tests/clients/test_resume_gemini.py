"""Gemini CLI continues an exported session with the messages of its context."""

from __future__ import annotations

import json
from pathlib import Path

from tests.clients.desk import (
    PROMPT,
    Desk,
    answers_of,
    origin_of,
    parts_of_messages,
    program,
    record,
)
from tests.support.provider import Provider, answer


def test_gemini_cli_continues_an_exported_session(tmp_path: Path) -> None:
    with Provider() as provider:
        desk = Desk(tmp_path, provider)
        record(desk)
        settings = desk.home / ".gemini"
        chats = settings / "tmp/work/chats"
        chats.mkdir(parents=True)
        projects = {"projects": {str(desk.work): "work"}}
        (settings / "projects.json").write_text(json.dumps(projects))
        (settings / "tmp/work/.project_root").write_text(str(desk.work))
        session_id = "5c0f3f6e-7a0b-4a53-9a58-0d5f8d1f2a11"
        file = chats / f"session-2026-01-01T00-00-{session_id}.jsonl"
        export = ("export", "--user", "ada", "--session", "s", "--format", "gemini")
        desk.refold(*export, "--out", str(file))

        _check_continued(desk, file, "latest")


def test_gemini_cli_continues_a_session_that_refold_resumes(tmp_path: Path) -> None:
    with Provider() as provider:
        desk = Desk(tmp_path, provider)
        record(desk)
        session_id = desk.export("s", "gemini")
        (file,) = desk.home.rglob("session-*.jsonl")

        _check_continued(desk, file, session_id)


def _check_continued(desk: Desk, file: Path, name: str) -> None:
    """Check what Gemini CLI sends that resumes a session by this name."""
    chosen = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    (desk.home / ".gemini/settings.json").write_text(json.dumps(chosen))
    desk.provider.reply(answer("The tests pass."))

    desk.run(
        [str(program("gemini")), "-p", PROMPT, "-r", name, "--yolo", "--skip-trust"]
    )

    contents = desk.provider.requests[-1].json["contents"]
    parts = [part for content in contents for part in content["parts"]]
    texts = [part["text"] for part in parts if "text" in part]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    results = [part["functionResponse"] for part in parts if "functionResponse" in part]
    expected = parts_of_messages(desk.messages("s"), thinking=False, errors=False)
    written = [part.value for part in expected if part.kind in ("user", "assistant")]
    assert texts[-len(written) - 1 :] == [*written, PROMPT]
    expected_calls = [part.value for part in expected if part.kind == "call"]
    assert [
        (call["id"], call["name"], call["args"]) for call in calls
    ] == expected_calls
    assert [result["id"] for result in results] == [
        call_id for call_id, _, _ in expected_calls
    ]
    assert sum("inlineData" in part for part in parts) == 2
    desk.refold("import", str(file), "--user", "ada")
    (fork,) = [info for info in desk.sessions().values() if info.session_id != "s"]
    assert origin_of(fork) == "s"
    assert answers_of(fork) == ["The tests pass."]
