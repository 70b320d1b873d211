"""An import keeps the folder in which an agent worked, redacted like its texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import refold
from tests.importers.samples import user_entry, write_lines

CODEX: list[dict[str, Any]] = [
    {"type": "session_meta", "payload": {"id": "s-1", "cwd": "/work/shop"}},
    {
        "type": "response_item",
        "payload": {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "Fix it"}],
        },
    },
]


@pytest.mark.parametrize(
    "lines", [CODEX, [user_entry("u1", "Fix it", cwd="/work/shop")]]
)
def test_lists_show_the_folder_as_the_project(
    lines: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = write_lines(tmp_path, lines)
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")
        (again,) = store.import_transcript(path, user_id="ada")
        (row,) = store.overviews("ada").sessions
        session = store.session(user_id="ada", session_id=row.info.session_id)
        labels = session.labels()

    assert row.overview.project == "/work/shop"
    assert again.events == 0
    assert "project" not in labels


def test_a_folder_is_redacted(tmp_path: Path) -> None:
    folder = "/home/eve@example.com/shop"
    path = write_lines(tmp_path, [user_entry("u1", "Fix it", cwd=folder)])
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")
        (row,) = store.overviews("ada").sessions
        session = store.session(user_id="ada", session_id=row.info.session_id)
        (event,) = session.events()

    assert "eve@example.com" not in str(event)
    assert "EMAIL" in row.overview.project
