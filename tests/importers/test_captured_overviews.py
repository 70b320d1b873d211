"""A list shows a captured session like an import of the same transcript."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters.importers.follower import Follower
from refold.store import SessionStore
from refold.store.overviews import SessionOverview
from tests.importers.samples import write_lines

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
SNAPSHOT: dict[str, Any] = {"type": "file-history-snapshot", "messageId": "u-1"}
FOREIGN: dict[str, Any] = {"type": "summary", "summary": "Foreign", "leafUuid": "u-9"}
OWN: dict[str, Any] = {"type": "summary", "summary": "Own", "leafUuid": "u-1"}


def entry(uuid: str, text: str, minute: int = 0) -> dict[str, Any]:
    return {
        "type": "user",
        "uuid": uuid,
        "sessionId": "s-1",
        "cwd": "/work/shop",
        "timestamp": NOON.replace(minute=minute).isoformat(),
        "message": {"role": "user", "content": text},
    }


CODEX: list[dict[str, Any]] = [
    {
        "type": "session_meta",
        "timestamp": NOON.isoformat(),
        "payload": {"id": "s-1", "cwd": "/work/shop"},
    },
    {
        "type": "response_item",
        "timestamp": NOON.replace(minute=1).isoformat(),
        "payload": {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "Fix it"}],
        },
    },
    {
        "type": "event_msg",
        "timestamp": NOON.replace(minute=2).isoformat(),
        "payload": {"type": "thread_name_updated", "thread_name": "Repair"},
    },
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    projects = tmp_path / "projects" / "-work-shop"
    projects.mkdir(parents=True)
    return projects


def captured(store: SessionStore, folder: Path, client: str) -> SessionOverview:
    follower = Follower(store, client, user_id="ada", folder=folder.parent)
    with follower.alone():
        follower.look()
    (session,) = store.overviews("ada").sessions
    return session


def imported(path: Path) -> SessionOverview:
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")
        (session,) = store.overviews("ada").sessions
        return session


@pytest.mark.parametrize(
    ("client", "lines", "title"),
    [
        ("claude-code", [FOREIGN, SNAPSHOT, entry("u-1", "Fix it")], "Fix it"),
        ("claude-code", [entry("u-1", "Fix it"), OWN, FOREIGN, SNAPSHOT], "Own"),
        ("claude-code", [OWN, SNAPSHOT, entry("u-1", "Fix it")], "Own"),
        (
            "claude-code",
            [
                entry("u-1", "Fix it"),
                {"type": "custom-title", "customTitle": "Chosen", "sessionId": "s-1"},
                {"type": "ai-title", "aiTitle": "Made", "sessionId": "s-1"},
                OWN,
            ],
            "Chosen",
        ),
        ("codex", CODEX, "Repair"),
    ],
)
def test_title_project_and_day_are_those_of_an_import(
    folder: Path, client: str, lines: list[dict[str, Any]], title: str
) -> None:
    path = write_lines(folder, lines, name="s-1.jsonl")

    with refold.open("memory://") as store:
        session = captured(store, folder, client)

    of_import = imported(path)
    assert session.overview.title == title == of_import.overview.title
    assert session.overview.title_from == of_import.overview.title_from
    assert session.overview.project == "/work/shop" == of_import.overview.project
    assert session.info.created_at.date() == NOON.date()
    assert session.last_at // 3_600_000_000 == of_import.last_at // 3_600_000_000
    assert not session.is_live


def test_records_without_a_time_get_that_of_the_entry_before_them(
    folder: Path,
) -> None:
    lines = [SNAPSHOT, entry("u-1", "a", 1), SNAPSHOT, entry("u-2", "b", 2), SNAPSHOT]
    write_lines(folder, lines[:3], name="s-1.jsonl")
    with refold.open("memory://") as store:
        captured(store, folder, "claude-code")
        write_lines(folder, [*lines, SNAPSHOT], name="s-1.jsonl")
        captured(store, folder, "claude-code")
        session = store.session(user_id="ada", session_id="s-1")
        minutes = [event.ts.minute for event in session.events()]

    assert minutes == [1, 1, 1, 1, 2, 2, 2]  # the first event records the labels


def test_a_title_is_recorded_once_and_a_person_may_replace_it(folder: Path) -> None:
    lines = [entry("u-1", "Fix it"), OWN]
    write_lines(folder, lines, name="s-1.jsonl")
    with refold.open("memory://") as store:
        first = captured(store, folder, "claude-code")
        again = captured(store, folder, "claude-code")
        assert again.info.head_seq == first.info.head_seq

        newer = {**OWN, "summary": "Newer"}
        write_lines(folder, [*lines, newer], name="s-1.jsonl")
        assert captured(store, folder, "claude-code").overview.title == "Newer"

        store.session(user_id="ada", session_id="s-1").label(title="Mine")
        newest = {**OWN, "summary": "Newest"}
        write_lines(folder, [*lines, newer, newest], name="s-1.jsonl")
        assert captured(store, folder, "claude-code").overview.title == "Mine"


def test_a_folder_that_a_person_names_goes_before_that_of_the_transcript(
    folder: Path,
) -> None:
    write_lines(folder, [entry("u-1", "Fix it")], name="s-1.jsonl")
    with refold.open("memory://") as store:
        captured(store, folder, "claude-code")
        store.session(user_id="ada", session_id="s-1").label(folder="the shop")

        (session,) = store.overviews("ada").sessions

    assert session.overview.project == "the shop"
