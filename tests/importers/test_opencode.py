"""opencode's sessions: the database, an export, and the older folder say the same."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import refold
from refold.adapters import importers
from refold.domain.events import AgentResponse, ProviderEdit, ToolResult
from tests.importers.agent_samples import (
    OPENCODE,
    OPENCODE_SESSION,
    opencode_message,
    opencode_text,
    opencode_tool,
)
from tests.importers.samples import (
    Entry,
    context_texts,
    events,
    kinds,
    read_one,
    reasons,
    refusal,
    write_document,
)


def session(*messages: Entry, **info: Any) -> Entry:
    listed = [*OPENCODE["messages"], *messages]
    return {"info": {**OPENCODE["info"], **info}, "messages": listed}


def write_database(folder: Path, *sessions: Entry) -> Path:
    path = folder / "opencode.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            """
            CREATE TABLE session (id TEXT PRIMARY KEY, parent_id TEXT, directory TEXT,
                title TEXT, revert TEXT, time_created INTEGER);
            CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT,
                time_created INTEGER, data TEXT);
            CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT,
                data TEXT);
            """
        )
        for index, each in enumerate(sessions):
            info = each["info"]
            parent = info.get("parentID")
            row = (info["id"], parent, info["directory"], info["title"], None, index)
            database.execute("INSERT INTO session VALUES (?, ?, ?, ?, ?, ?)", row)
            for message in each["messages"]:
                data = {k: v for k, v in message["info"].items() if k != "id"}
                message_id = message["info"]["id"]
                created = message["info"]["time"]["created"]
                database.execute(
                    "INSERT INTO message VALUES (?, ?, ?, ?)",
                    (message_id, info["id"], created, json.dumps(data)),
                )
                for part in message["parts"]:
                    data = {k: v for k, v in part.items() if k != "id"}
                    database.execute(
                        "INSERT INTO part VALUES (?, ?, ?, ?)",
                        (part["id"], message_id, info["id"], json.dumps(data)),
                    )
        database.commit()
    return path


def write_storage(folder: Path, each: Entry) -> Path:
    storage = folder / "storage"
    info = each["info"]
    files = {storage / "session" / "global" / f"{info['id']}.json": info}
    for message in each["messages"]:
        message_id = message["info"]["id"]
        of_session = storage / "message" / info["id"]
        files[of_session / f"{message_id}.json"] = message["info"]
        for part in message["parts"]:
            files[storage / "part" / message_id / f"{part['id']}.json"] = part
    for path, value in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    return storage / "session" / "global" / f"{info['id']}.json"


def test_an_export(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, OPENCODE))

    assert transcript.format == "opencode"
    assert transcript.title == "Run two commands"
    assert transcript.folder == "/work/shop"
    assert kinds(transcript) == [
        "user_input",
        "agent_response",
        "tool_call",
        "tool_call",
        "tool_result",
        "tool_result",
        "agent_response",
    ]
    answer = events(transcript)[1]
    assert isinstance(answer, AgentResponse)
    assert answer.usage == {
        "input_tokens": 40,
        "output_tokens": 13,
        "cache_read_input_tokens": 60,
        "cache_creation_input_tokens": 0,
    }
    results = [e for e in events(transcript) if isinstance(e, ToolResult)]
    assert [(r.status, r.duration_ms) for r in results] == [("ok", 250), ("error", 250)]
    assert all(item.note for item in transcript.skipped)


def test_the_database_and_the_folder_give_the_same_events(tmp_path: Path) -> None:
    exported = read_one(write_document(tmp_path, OPENCODE))

    assert read_one(write_database(tmp_path, OPENCODE)).drafts == exported.drafts
    assert read_one(write_storage(tmp_path, OPENCODE)).drafts == exported.drafts


def test_a_database_is_imported_once_with_its_sub_agents(tmp_path: Path) -> None:
    message = opencode_message("msg_9", "user", opencode_text("Hi."))
    info = {"id": "ses_2", "parentID": OPENCODE_SESSION, "directory": "/", "title": "x"}
    path = write_database(tmp_path, OPENCODE, {"info": info, "messages": [message]})

    with refold.open("memory://") as store:
        first = store.import_transcript(path, user_id="ada")
        again = store.import_transcript(path, user_id="ada")

    names = [OPENCODE_SESSION, f"{OPENCODE_SESSION}~ses_2"]
    assert [each.session_id for each in first] == names
    assert [each.events for each in again] == [0, 0]


def test_an_answer_in_progress_waits_for_the_next_import(tmp_path: Path) -> None:
    running = opencode_message("msg_9", "assistant", opencode_text("I"))
    del running["info"]["time"]["completed"]
    done = opencode_message("msg_9", "assistant", opencode_text("I end."))

    with refold.open("memory://") as store:
        path = write_document(tmp_path, session(running))
        (first,) = store.import_transcript(path, user_id="ada")
        path = write_document(tmp_path, session(done))
        (second,) = store.import_transcript(path, user_id="ada")

    assert "is not complete" in " ".join(item.why for item in first.skipped)
    assert second.events == 1


def test_a_compaction_shows_its_summary(tmp_path: Path) -> None:
    request = opencode_message("msg_5", "user", {"type": "compaction", "auto": True})
    summary = opencode_message(
        "msg_6",
        "assistant",
        opencode_text("Both ran."),
        summary=True,
        parentID="msg_5",
    )
    later = opencode_message("msg_7", "user", opencode_text("Go on."))
    path = write_document(tmp_path, session(request, summary, later))

    assert context_texts(path) == ["What did we do so far?", "Both ran.", "Go on."]


def test_a_cleared_result_is_cleared_from_the_next_message_on(tmp_path: Path) -> None:
    cleared = opencode_message(
        "msg_4", "assistant", opencode_tool("c3", "long", compacted=1_795_743_077_000)
    )
    later = opencode_message("msg_1000", "user", opencode_text("Go on."))
    path = write_document(tmp_path, session(cleared, later))

    edit = next(e for e in events(read_one(path)) if isinstance(e, ProviderEdit))

    assert edit.reason == "clearing"
    assert "[Old tool result content cleared]" in context_texts(path)


def test_a_revert_leaves_out_a_message_and_all_after_it(tmp_path: Path) -> None:
    path = write_document(tmp_path, session(revert={"messageID": "msg_2"}))

    assert context_texts(path) == ["Run both."]


def test_errors_files_and_unknown_parts(tmp_path: Path) -> None:
    picture = {
        "type": "file",
        "mime": "image/png",
        "filename": "a.png",
        "url": "data:image/png;base64,iVBORw0KGgo=",
    }
    error = {"name": "APIError", "data": {"message": "Overloaded"}}
    path = write_document(
        tmp_path,
        session(
            opencode_message("msg_5", "user", opencode_text("See."), picture),
            opencode_message("msg_6", "assistant", {"type": "unheard"}, error=error),
        ),
    )

    transcript = read_one(path)

    assert kinds(transcript)[-2:] == ["user_input", "error"]
    assert events(transcript)[-2].payload()["attachments"] == [
        {
            "kind": "image",
            "name": "a.png",
            "media_type": "image/png",
            "data": "iVBORw0KGgo=",
        }
    ]
    assert "part of an unknown type" in reasons(transcript).values()


def test_damage_in_a_database_is_reported(tmp_path: Path) -> None:
    path = write_database(tmp_path, OPENCODE)
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE part SET data = '{' WHERE id = 'prt_msg_1_0'")
        database.execute("UPDATE part SET message_id = 'gone' WHERE id = 'prt_msg_3_0'")
        database.commit()

    (transcript,) = importers.read(path)

    why = reasons(transcript)
    assert why["opencode.db part prt_msg_1_0"] == "is not valid JSON"
    assert why["opencode.db message gone"] == (
        "part of a message that is not in the database"
    )


def test_another_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE session (id TEXT)")
        database.commit()

    assert "of no known transcript format" in refusal(path)
    assert "of another program than opencode" in refusal(path, "opencode")
