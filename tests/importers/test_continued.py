"""A client that continues an export continues its session: nothing is doubled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters import exporters
from refold.adapters.exporters import base
from refold.adapters.importers import read
from refold.adapters.importers.follower import Follower
from refold.domain.events import AgentResponse, ToolCall, ToolResult, UserInput
from refold.store import Session, SessionStore
from refold.store.session.imports import Extended, append_transcript
from tests.importers.samples import user_entry, words

CLIENTS = ("claude-code", "codex")
QUESTION = "Why does the build fail?"
NEW = "And the tests?"


def recorded(store: SessionStore, name: str = "origin") -> Session:
    session = store.session(user_id="ada", session_id=name)
    session.append(UserInput(text=QUESTION))
    session.append(ToolCall(call_id="c1", tool_name="bash", arguments={"n": 1}))
    session.append(ToolResult(call_id="c1", content="error"))
    session.append(AgentResponse(text="A file is missing."))
    session.label(title="The build", team="red")
    return session


def exported(
    session: Session, client: str, folder: Path, at: int | None = None
) -> Path:
    """The file of a client that an export of the session begins."""
    target = base.Target(folder=Path("/work"))
    module: Any = exporters.writer(client)
    conversation = base.conversation_of(session, session.context(at=at))
    path = folder / "chats" / f"session-{target.session_id}.jsonl"
    if client != "gemini":
        path = module.place(folder, target)
    path.parent.mkdir(parents=True)
    lines = module.write(conversation, target).values
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def continue_in(client: str, path: Path) -> None:
    """Add a question and an answer to a session, as the client does."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if client == "claude-code":
        chain = [line for line in lines if "uuid" in line]
        session = chain[0]["sessionId"]
        uuid = "7a0b0000-0000-4a53-9a58-0d5f8d1f2a11"
        new = user_entry(uuid, [words(NEW)])
        new |= {"sessionId": session, "parentUuid": chain[-1]["uuid"]}
    elif client == "gemini":
        new = {
            "id": "08202264-01fe-4c70-b8cb-61b7bcd457f9",
            "timestamp": "2027-01-01T00:00:00.000Z",
            "type": "user",
            "content": [{"text": NEW}],
        }
    else:
        content = [{"type": "input_text", "text": NEW}]
        payload = {"type": "message", "role": "user", "content": content}
        new = {
            "timestamp": "2027-01-01T00:00:00.000Z",
            "type": "response_item",
            "payload": payload,
        }
    with path.open("a") as file:
        file.write(json.dumps(new) + "\n")


def import_into(store: SessionStore, path: Path) -> tuple[Session, Extended]:
    (transcript,) = read(path)
    session = store.session(user_id="ada", session_id=transcript.session_id)
    return session, append_transcript(session, transcript, where=path.name)


def questions(session: Session) -> list[str]:
    """The texts of the user in the context of a session."""
    texts: list[str] = []
    for message in session.context("keep_all").messages:
        if message["role"] == "user":
            texts += [b["text"] for b in message["content"] if b["type"] == "text"]
    return texts


@pytest.mark.parametrize("client", [*CLIENTS, "gemini"])
def test_an_imported_continuation_is_a_fork_with_only_the_new_events(
    store: SessionStore, tmp_path: Path, client: str
) -> None:
    origin = recorded(store)
    path = exported(origin, client, tmp_path)
    continue_in(client, path)

    session, result = import_into(store, path)
    _, again = import_into(store, path)

    assert session.head().state.forked_from == ("origin", origin.head().seq)
    assert [e.type for e in session.history.pages()].count("user_input") == 1
    assert questions(session) == [QUESTION, NEW]
    assert result.events == 1
    assert again.events == 0
    assert session.labels() == {"title": "The build", "team": "red"}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_captured_continuation_is_the_same_fork(
    store: SessionStore, tmp_path: Path, client: str
) -> None:
    origin = recorded(store)
    path = exported(origin, client, tmp_path)
    follower = Follower(store, client, user_id="ada", folder=tmp_path)
    with follower.alone():
        follower.look()
        continue_in(client, path)
        follower.look()
    (transcript,) = read(path)

    session, result = import_into(store, path)

    assert session.session_id == transcript.session_id
    assert session.head().state.forked_from == ("origin", origin.head().seq)
    assert questions(session) == [QUESTION, NEW]
    assert result.events == 0
    assert session.labels()["client"] == client
    assert session.labels()["team"] == "red"


def test_a_continuation_of_an_earlier_event_is_a_fork_there(
    store: SessionStore, tmp_path: Path
) -> None:
    origin = recorded(store)
    path = exported(origin, "claude-code", tmp_path, at=3)
    continue_in("claude-code", path)

    session, _ = import_into(store, path)

    assert session.head().state.forked_from == ("origin", 3)
    assert questions(session) == [QUESTION, NEW]


@pytest.mark.parametrize("client", [*CLIENTS, "gemini"])
def test_another_store_imports_the_whole_file(
    store: SessionStore, tmp_path: Path, client: str
) -> None:
    path = exported(recorded(store), client, tmp_path / "client")
    continue_in(client, path)

    with refold.open(f"sqlite:///{tmp_path / 'other.db'}") as other:
        session, _ = import_into(other, path)

        assert session.head().state.forked_from is None
        assert questions(session) == [QUESTION, NEW]


def test_a_session_of_the_same_name_with_other_events_is_not_continued(
    store: SessionStore, tmp_path: Path
) -> None:
    path = exported(recorded(store), "claude-code", tmp_path / "client")
    continue_in("claude-code", path)

    with refold.open(f"sqlite:///{tmp_path / 'other.db'}") as other:
        recorded(other)
        session, _ = import_into(other, path)

        assert session.head().state.forked_from is None
        assert questions(session) == [QUESTION, NEW]


def test_another_user_does_not_continue_the_session(
    store: SessionStore, tmp_path: Path
) -> None:
    path = exported(recorded(store), "claude-code", tmp_path)
    (transcript,) = read(path)

    session = store.session(user_id="eve", session_id=transcript.session_id)
    append_transcript(session, transcript, where="file")

    assert session.head().state.forked_from is None
