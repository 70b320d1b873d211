"""Attachments of Claude Code are system text in the context, where they were sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from refold.domain.events import SystemPrompt, UserInput
from tests.importers.samples import (
    SESSION,
    events,
    read_one,
    reasons,
    user_entry,
    write_lines,
)
from tests.importers.test_branches import chained, imported

LISTING = {
    "type": "agent_listing_delta",
    "addedTypes": ["Explore"],
    "addedLines": ["- Explore: finds files"],
    "removedTypes": [],
    "isInitial": True,
}
FILE = {
    "type": "file",
    "filename": "/srv/a.py",
    "content": {"type": "text", "file": {"content": "x = 1\ny = 2", "startLine": 1}},
}


def attached(uuid: str, attachment: Any) -> dict[str, Any]:
    about = {"type": "attachment", "uuid": uuid, "sessionId": SESSION}
    return {**about, "isSidechain": False, "attachment": attachment}


def test_a_file_that_the_user_named_is_in_the_context() -> None:
    entries = chained(user_entry("u1", "Read @a.py"), attached("x", FILE))

    words, file = imported(entries)[-1]

    assert words == "Read @a.py"
    assert file.startswith("<system-reminder>\nCalled the Read tool")
    assert "     1→x = 1\n     2→y = 2" in file


@pytest.mark.parametrize(
    ("attachment", "part"),
    [
        (LISTING, "- Explore: finds files"),
        ({"type": "skill_listing", "content": "- pdf: reads PDF"}, "Skill tool"),
        ({"type": "date_change", "newDate": "2026-02-04"}, "is now 2026-02-04"),
        ({"type": "compact_file_reference", "filename": "b.py"}, "Note: b.py was read"),
        ({"type": "edited_text_file", "filename": "b", "snippet": "1→z"}, "1→z"),
        ({"type": "directory", "path": "/srv", "content": "a.py"}, "a.py"),
        (
            {
                "type": "nested_memory",
                "content": {"path": "C.md", "content": "Be kind"},
            },
            "Contents of C.md:\n\nBe kind",
        ),
        (
            {
                "type": "todo_reminder",
                "content": [{"status": "pending", "content": "t"}],
            },
            "1. [pending] t",
        ),
        (
            {"type": "hook_success", "hookName": "Start", "content": "ready"},
            "Start hook success: ready",
        ),
        ({"type": "of_a_later_version", "content": "Read me"}, "Read me"),
    ],
)
def test_an_attachment_is_system_text(
    tmp_path: Path, attachment: dict[str, Any], part: str
) -> None:
    entries = chained(user_entry("u1", "Go"), attached("x", attachment))

    transcript = read_one(write_lines(tmp_path, entries))

    event = events(transcript)[1]
    assert isinstance(event, SystemPrompt)
    assert event.where == "conversation"
    assert part in str(event.text)
    assert str(event.text).startswith("<system-reminder>")
    source = transcript.drafts[1].meta.source or {}
    assert source["attachment"] == attachment["type"]


def test_an_attached_image_is_an_image(tmp_path: Path) -> None:
    content = {"type": "image", "file": {"base64": "AAAA", "type": "image/png"}}
    attachment = {"type": "file", "filename": "a.png", "content": content}
    entries = chained(user_entry("u1", "See @a.png"), attached("x", attachment))

    event = events(read_one(write_lines(tmp_path, entries)))[1]

    assert isinstance(event, UserInput)
    assert event.attachments[0].data == "AAAA"


def test_a_note_of_the_client_for_itself_is_no_event(tmp_path: Path) -> None:
    note = {"type": "structured_output", "content": "secret"}
    entries = chained(user_entry("u1", "Go"), attached("x", note))

    transcript = read_one(write_lines(tmp_path, entries))

    assert len(events(transcript)) == 1
    assert "never sent" in str(reasons(transcript))


def test_an_attachment_of_an_abandoned_branch_is_left_out() -> None:
    entries = chained(
        user_entry("u1", "Go"),
        user_entry("u2", "left"),
        attached("x", LISTING),
        user_entry("u3", "on", parentUuid="u1"),
    )

    assert imported(entries)[-1] == ["Go", "on"]
