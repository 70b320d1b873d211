"""An import keeps the title that the client gave the session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.redaction.policy import Policy
from refold.store import SessionStore


def entry(uuid: str, text: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "user",
        "uuid": uuid,
        "sessionId": "s-1",
        "timestamp": "2026-02-01T10:00:00Z",
        "message": {"role": "user", "content": text},
        **fields,
    }


def written(folder: Path, *lines: dict[str, Any], name: str = "s-1.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def title_after(store: SessionStore, path: Path) -> tuple[str, str]:
    store.import_transcript(path, user_id="ada")
    (session,) = store.overviews("ada").sessions
    return session.overview.title, session.overview.title_from


@pytest.mark.parametrize(
    ("records", "title"),
    [
        ([{"type": "summary", "summary": "Own", "leafUuid": "u-1"}], "Own"),
        ([{"type": "summary", "summary": "Foreign", "leafUuid": "u-9"}], "Fix it"),
        ([{"type": "ai-title", "aiTitle": "Made", "sessionId": "s-1"}], "Made"),
        (
            [
                {"type": "custom-title", "customTitle": "Chosen", "sessionId": "s-1"},
                {"type": "ai-title", "aiTitle": "Made", "sessionId": "s-1"},
            ],
            "Chosen",
        ),
        ([], "Fix it"),
    ],
)
def test_titles_of_claude_code(
    tmp_path: Path, records: list[dict[str, Any]], title: str
) -> None:
    path = written(tmp_path, entry("u-1", "Fix it"), *records)
    with refold.open("memory://") as store:
        assert title_after(store, path)[0] == title


def test_a_thread_name_of_codex(tmp_path: Path) -> None:
    content = [{"type": "input_text", "text": "Fix it"}]
    named = {"type": "thread_name_updated", "thread_name": "Repair of the build"}
    path = written(
        tmp_path,
        {"type": "session_meta", "payload": {"id": "s-1"}},
        {
            "type": "response_item",
            "payload": {"type": "message", "role": "user", "content": content},
        },
        {"type": "event_msg", "payload": named},
    )
    with refold.open("memory://") as store:
        assert title_after(store, path) == ("Repair of the build", "label")


def test_a_title_is_redacted_and_imported_once(tmp_path: Path) -> None:
    record = {"type": "ai-title", "aiTitle": "Mail to eve@example.com"}
    path = written(tmp_path, entry("u-1", "Fix it"), record)
    with refold.open("memory://") as store:
        title, _ = title_after(store, path)
        events = len(store.session(user_id="ada", session_id="s-1").events())
        (again,) = store.import_transcript(path, user_id="ada")

        assert "eve@example.com" not in title
        assert "EMAIL" in title
        assert again.events == 0
        assert len(store.session(user_id="ada", session_id="s-1").events()) == events


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ("Fix " * 45 + "for jane.doe.long.name@example.com now", "Fix for…"),
        ("修复" * 95 + " 4111 1111 1111 1111 " + "修复" * 20, "修复…"),
        ("x" * 300, "x…"),
        ("word " * 100, "word…"),
    ],
)
def test_a_long_title_never_ends_within_a_redacted_value(
    tmp_path: Path, words: str, end: str
) -> None:
    record = {"type": "ai-title", "aiTitle": words}
    path = written(tmp_path, entry("u-1", "Fix it"), record)
    with refold.open("memory://") as store:
        title, _ = title_after(store, path)
        (again,) = store.import_transcript(path, user_id="ada")

    assert title.endswith(end)
    assert 100 < len(title) <= 200
    assert again.events == 0


def test_a_title_with_a_numbered_value_is_imported_once(tmp_path: Path) -> None:
    record = {"type": "ai-title", "aiTitle": "Mail to eve@example.com"}
    first = entry("u-1", "Not to bob@example.com but to eve@example.com")
    path = written(tmp_path, first, record)
    policy = Policy.parse("version = 1\nnumbered = true\n")
    with refold.open("memory://", policy=policy) as store:
        title, _ = title_after(store, path)
        (again,) = store.import_transcript(path, user_id="ada")

    assert title == "Mail to [EMAIL_2]"
    assert again.events == 0


def test_a_title_of_a_person_stays_and_a_new_one_of_the_client_is_taken(
    tmp_path: Path,
) -> None:
    old = {"type": "ai-title", "aiTitle": "Old"}
    new = {"type": "ai-title", "aiTitle": "New"}
    with refold.open("memory://") as store:
        title_after(store, written(tmp_path, entry("u-1", "Fix it"), old))
        path = written(tmp_path, entry("u-1", "Fix it"), old, new)
        assert title_after(store, path)[0] == "New"

        store.session(user_id="ada", session_id="s-1").label(title="Mine")
        assert (
            title_after(store, written(tmp_path, entry("u-1", "Fix it"), old))[0]
            == "Mine"
        )


def test_a_title_does_not_make_a_session_newer(tmp_path: Path) -> None:
    record = {"type": "ai-title", "aiTitle": "Made"}
    with refold.open("memory://") as store:
        title_after(store, written(tmp_path, entry("u-1", "Fix it"), record))
        (session,) = store.overviews("ada").sessions

    assert session.to_json()["last_event_at"] == "2026-02-01T10:00:00Z"
