"""Refold's own export is appended again: the same session, under new keys."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st

import refold
from refold.domain.errors import ImportFailed
from refold.domain.events import (
    AgentError,
    AgentResponse,
    Event,
    Final,
    Item,
    ProviderEdit,
    StateUpdate,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.store import Session, SessionStore
from tests.support.nested import problems_of

WINDOW = "turn_window:full_turns=2,cached_turns=1"
LONG = "word " * 20_000


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SessionStore]:
    """A store with a session that has everything, and a fork of it."""
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    with refold.open(tmp_path / "old.db") as store:
        session = store.session(user_id="ada", session_id="s-1")
        for number in range(6):
            session.append(
                [
                    refold.UserInput(text=f"question {number} " + "why " * 60),
                    refold.AgentResponse(text="I look. " + "because " * 60),
                    refold.ToolCall(call_id=f"c{number}", tool_name="bash"),
                    refold.ToolResult(call_id=f"c{number}", content="fine"),
                ],
                request_id=f"r-{number}",
                meta={"scenario": "tea"},
            )
            session.record_request(
                session.prepare(WINDOW, system="You help."), model="claude-x"
            )
        session.append([refold.UserInput(text=LONG), refold.Pin(seqs=(2,))])
        session.label(project="refold")
        fork = session.fork(8, session_id="fork")
        fork.append(refold.UserInput(text="else"))
        store.user("ada").consent("declarative_memory")
        yield store


@pytest.fixture
def new(tmp_path: Path, old: SessionStore) -> Iterator[SessionStore]:  # its home
    with refold.open(tmp_path / "new.db") as store:
        yield store


def exported(session: Session, path: Path) -> Path:
    lines = [orjson.dumps(entry.to_json()) for entry in session.history.timeline()]
    path.write_bytes(b"\n".join(lines))
    return path


def contents(session: Session) -> list[Any]:
    return [
        (
            event.seq,
            event.type,
            event.payload,
            event.ts,
            event.request_id,
            event.meta.scenario,
        )
        for event in session.events()
    ]


def verifies(store: SessionStore) -> bool:
    return not problems_of(store.verify())


def test_an_export_of_a_user_becomes_the_same_sessions(
    old: SessionStore, new: SessionStore, tmp_path: Path
) -> None:
    old.export_user("ada", tmp_path / "out")
    seen: list[tuple[str, int, int]] = []

    done = new.import_transcript(
        tmp_path / "out", user_id="eve", progress=lambda *place: seen.append(place)
    )

    assert [result.session_id for result in done if result.events] == ["s-1", "fork"]
    for name in ("s-1", "fork"):
        original = old.session(user_id="ada", session_id=name)
        copy = new.session(user_id="eve", session_id=name)
        forked = int(name == "fork")  # which is done now
        assert contents(copy)[forked:] == contents(original)[forked:]
        assert copy.context().digest == original.context().digest
        assert copy.events()[-1].hash != original.events()[-1].hash
    again = new.session(user_id="eve", session_id="s-1")
    assert len(again.history.derived(again.strategies.default_fingerprint())) > 0
    assert [replayed[1].digest for replayed in again.proofs.replay()] == [
        replayed[0].payload.digest  # type: ignore[union-attr]  # they are requests
        for replayed in old.session(user_id="ada", session_id="s-1").proofs.replay()
    ]
    labelled = new.sessions("eve", label={"project": "refold"})
    assert [info.session_id for info in labelled] == ["fork", "s-1"]
    assert not new.user("eve").status().declarative_memory
    assert seen[-1] == ("fork", 2, 2)
    assert verifies(new)


def test_importing_again_adds_only_what_is_new(
    old: SessionStore, new: SessionStore, tmp_path: Path
) -> None:
    session = old.session(user_id="ada", session_id="s-1")
    old.export_user("ada", tmp_path / "first")
    new.import_transcript(tmp_path / "first", user_id="ada")
    session.append(refold.UserInput(text="And now?"))
    session.record_request(session.prepare(WINDOW))
    old.export_user("ada", tmp_path / "second")

    done = new.import_transcript(tmp_path / "second", user_id="ada")

    assert {
        result.session_id: result.events for result in done if result.duplicates
    } == {
        "s-1": 2,
        "fork": 0,
    }
    assert contents(new.session(user_id="ada", session_id="s-1")) == contents(session)
    assert verifies(new)


def test_a_file_is_a_session_without_what_it_does_not_hold(
    old: SessionStore, new: SessionStore, tmp_path: Path
) -> None:
    session = old.session(user_id="ada", session_id="s-1")
    path = exported(session, tmp_path / "one.jsonl")

    (done,) = new.import_transcript(path, user_id="ada", session_id="copy")

    copy = new.session(user_id="ada", session_id="copy")
    kinds = [event.type for event in session.events() if event.type != "request"]
    assert [event.type for event in copy.events()] == kinds
    assert [skipped.why.partition(":")[0] for skipped in done.skipped] == [
        "requests and summaries"
    ]
    (pin,) = (event for event in copy.events() if event.type == "pin")
    assert pin.payload == refold.Pin(seqs=(2,))
    assert copy.context("keep_all").digest == session.context("keep_all").digest
    assert verifies(new)


def test_new_redactions_make_another_session(old: SessionStore, tmp_path: Path) -> None:
    old.export_user("ada", tmp_path / "out")
    registered = refold.redaction.Registered()
    registered.register("because because")

    with refold.open(tmp_path / "other.db", registered=registered) as store:
        done = store.import_transcript(tmp_path / "out", user_id="ada")
        session = store.session(user_id="ada", session_id="s-1")
        assert "because because" not in str(session.context().messages)
        assert session.history.streams() == ["main"]
        assert not [event for event in session.events() if event.type == "request"]
        assert done[0].redactions or done[1].redactions
        assert verifies(store)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"user_id": "bob"}, "several users"),
        ({"session_id": None, "hash": None}, "is not an envelope"),
    ],
)
def test_refuses_files_that_are_no_export_of_one_user(
    old: SessionStore,
    new: SessionStore,
    tmp_path: Path,
    change: dict[str, Any],
    why: str,
) -> None:
    path = exported(old.session(user_id="ada", session_id="s-1"), tmp_path / "x.jsonl")
    first, second, *rest = map(orjson.loads, path.read_bytes().splitlines())
    second |= change
    second = {key: value for key, value in second.items() if value is not None}
    path.write_bytes(b"\n".join(map(orjson.dumps, [first, second, *rest])))

    with pytest.raises(ImportFailed, match=why):
        new.import_transcript(path, user_id="ada")

    assert new.sessions() == []


def test_a_manifest_names_no_file_outside(
    old: SessionStore, new: SessionStore, tmp_path: Path
) -> None:
    old.export_user("ada", tmp_path / "out")
    file = tmp_path / "out" / "manifest.json"
    secret = tmp_path / "secret.jsonl"
    secret.write_text("{}")
    file.write_text(file.read_text().replace("sessions/00002/", "../"))

    with pytest.raises(ImportFailed, match="outside of its folder"):
        new.import_transcript(tmp_path / "out", user_id="ada")


def test_a_link_in_the_folder_leads_to_no_file_outside(
    old: SessionStore, new: SessionStore, tmp_path: Path
) -> None:
    old.export_user("ada", tmp_path / "out")
    for number, file in enumerate((tmp_path / "out" / "sessions").rglob("*.jsonl")):
        outside = tmp_path / f"{number}.jsonl"
        file.rename(outside)
        file.symlink_to(outside)

    with pytest.raises(ImportFailed, match="outside of its folder"):
        new.import_transcript(tmp_path / "out", user_id="ada")
    assert new.sessions() == []


def test_a_fork_may_use_the_id_of_a_call_again_after_its_result(
    old: SessionStore, new: SessionStore, tmp_path: Path
) -> None:
    session = old.session(user_id="ada", session_id="calls")
    session.append(ToolCall(call_id="c", tool_name="bash"))
    fork = session.fork(1, session_id="calls-fork")
    for _ in range(2):
        fork.append(ToolResult(call_id="c", content="ok"))
        fork.append(ToolCall(call_id="c", tool_name="bash"))
    for exported_session in (session, fork):
        exported(exported_session, tmp_path / f"{exported_session.session_id}.jsonl")
    path = tmp_path / "both.jsonl"
    files = [tmp_path / "calls.jsonl", tmp_path / "calls-fork.jsonl"]
    path.write_bytes(b"\n".join(file.read_bytes() for file in files))

    imported = new.import_transcript(path, user_id="ada")

    assert [result.skipped for result in imported] == [(), ()]
    copy = new.session(user_id="ada", session_id="calls-fork")
    assert contents(copy)[1:] == contents(fork)[1:]


def test_a_fork_needs_the_session_that_it_goes_on_from(
    old: SessionStore, new: SessionStore, tmp_path: Path
) -> None:
    path = exported(old.session(user_id="ada", session_id="fork"), tmp_path / "f.jsonl")

    with pytest.raises(ImportFailed, match="goes on from session 's-1'"):
        new.import_transcript(path, user_id="ada")


ENTRIES: tuple[tuple[Event, ...], ...] = (
    (SystemPrompt(text="You help."),),
    (UserInput(text="question"),),
    (AgentResponse(text="answer"),),
    (
        ToolCall(call_id="c", tool_name="bash", arguments={"command": "ls"}),
        ToolResult(call_id="c", content="ok"),
    ),
    (AgentError(code="overloaded", message="later", retryable=True),),
    (StateUpdate(set={"summary": "title", "type": "user"}),),
    (Item(format="claude-code", kind="summary", value={"type": "summary"}),),
    (ProviderEdit(blocks=({"type": "server_tool_use", "id": "s"},)),),
    (Final(outcome="success", text="done"),),
)


@settings(deadline=None, max_examples=40)
@given(
    entries=st.lists(st.sampled_from(ENTRIES), min_size=1, max_size=4),
    name=st.sampled_from(["s", "7d1e0000-0000-4000-8000-000000000001"]),
)
def test_an_export_of_any_session_is_read_back(
    entries: list[tuple[Event, ...]], name: str
) -> None:
    events = list(chain.from_iterable(entries))

    with (
        tempfile.TemporaryDirectory() as folder,
        refold.open("memory://") as old,
        refold.open("memory://") as new,
    ):
        session = old.session(user_id="ada", session_id=name)
        session.append(events)
        path = exported(session, Path(folder) / "export.jsonl")
        new.import_transcript(path, user_id="eve")
        again = new.session(user_id="eve", session_id=name)
        read = [event.payload for event in again.events()]
        written = [event.payload for event in session.events()]

    assert read == written
