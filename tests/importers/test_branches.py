"""Contexts of Claude Code sessions equal what the client sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import refold
from refold.adapters.importers.follower import Follower
from refold.domain.events import AgentResponse, ProviderEdit
from refold.store import Session, SessionStore
from tests.importers.samples import (
    SESSION,
    answered,
    read_one,
    reasons,
    returned,
    use,
    user_entry,
    words,
    write_lines,
)

Entry = dict[str, Any]


def boundary(uuid: str, parent: str, **metadata: Any) -> Entry:
    return {
        "type": "system",
        "subtype": "compact_boundary",
        "uuid": uuid,
        "parentUuid": None,
        "logicalParentUuid": parent,
        "sessionId": SESSION,
        "isSidechain": False,
        "timestamp": "2026-02-03T04:05:06.789Z",
        "content": "Conversation compacted",
        "compactMetadata": {"trigger": "auto", "preTokens": 9, **metadata},
    }


def summary(uuid: str, parent: str | None, text: str = "SUMMARY") -> Entry:
    flags = {"isCompactSummary": True, "isVisibleInTranscriptOnly": True}
    return user_entry(uuid, text, parentUuid=parent, **flags)


def chained(*entries: Entry) -> list[Entry]:
    """The entries, each with the one before it as its parent unless it names one."""
    before: str | None = None
    chain: list[Entry] = []
    for entry in entries:
        named = entry.get("parentUuid")
        is_root = entry.get("subtype") == "compact_boundary"
        parent = named if named is not None or is_root else before
        chain.append({**entry, "parentUuid": parent})
        before = entry["uuid"]
    return chain


def contexts(store: SessionStore) -> list[list[str]]:
    session = store.session(user_id="ada", session_id=SESSION)
    if not list(store.sessions()):
        return []
    shown: list[list[str]] = []
    for event in session.events():
        if isinstance(event.payload, AgentResponse) and event.seq > 1:
            shown.append(texts(session, event.seq - 1))
    shown.append(texts(session, None))
    return shown


def imported(
    entries: Sequence[Entry], steps: int = 1, shown: Callable[..., Any] = contexts
) -> Any:
    """Return the contexts before each response of a file imported in some steps.

    shown: returns the contexts of a store.
    """
    with refold.open("memory://") as store, TemporaryDirectory() as folder:
        for step in range(1, steps + 1):
            end = len(entries) * step // steps
            if end:
                path = write_lines(Path(folder), entries[:end], f"{SESSION}.jsonl")
                store.import_transcript(path, user_id="ada")
        return shown(store)


def captured(
    entries: Sequence[Entry],
    *,
    restarts: bool = False,
    monkeypatch: Any,
    shown: Callable[..., Any] = contexts,
) -> Any:
    """Return the contexts of a file that is captured line by line.

    restarts: each line is read by another process.
    """
    with refold.open("memory://") as store, TemporaryDirectory() as home:
        monkeypatch.setenv("REFOLD_HOME", home + "/home")
        folder = Path(home, "projects", "-work")
        folder.mkdir(parents=True)
        path = folder / f"{SESSION}.jsonl"
        path.touch()

        def new() -> Follower:
            return Follower(store, "claude-code", user_id="ada", folder=folder.parent)

        follower = new()
        for entry in entries:
            with path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            if restarts:
                follower = new()
            with follower.alone():
                follower.look()
        return shown(store)


def texts(session: Session, at: int | None) -> list[str]:
    shown: list[str] = []
    for message in session.context("keep_all", at=at).messages:
        for block in message["content"]:
            text = block.get("text") or block.get("content") or block.get("name")
            shown.append(str(text))
    return [text for text in shown if not text.startswith("(")]


def edits(path: Path) -> list[ProviderEdit]:
    transcript = read_one(path)
    return [
        draft.event
        for draft in transcript.drafts
        if isinstance(draft.event, ProviderEdit)
    ]


REWOUND = chained(
    user_entry("u1", "Paint the fence."),
    answered("a1", "m1", words("Which colour?")),
    user_entry("x1", "ABANDONED red"),
    answered("x2", "m2", words("ABANDONED red it is")),
    user_entry("k1", "green", parentUuid="a1"),
    answered("k2", "m3", words("Green it is.")),
)


def test_rewound_messages_are_in_no_later_context() -> None:
    *before, second, last = imported(REWOUND)

    assert second == ["Paint the fence.", "Which colour?", "green"]
    assert last == [*second, "Green it is."]
    assert before[-1] == ["Paint the fence.", "Which colour?", "ABANDONED red"]


def test_a_branch_that_the_user_returns_to_comes_back() -> None:
    entries = [*REWOUND, user_entry("u5", "red after all", parentUuid="x2")]

    assert imported(entries)[-1] == [
        "Paint the fence.",
        "Which colour?",
        "ABANDONED red",
        "ABANDONED red it is",
        "red after all",
    ]


def test_parallel_calls_and_their_results_are_no_branches() -> None:
    entries = chained(
        user_entry("u1", "Look."),
        answered("a1", "m1", use("c1", "Read")),
        answered("a2", "m1", use("c2", "Grep")),
        user_entry("r2", [returned("c2", "two")], parentUuid="a2"),
        user_entry("r1", [returned("c1", "one")], parentUuid="a1"),
        answered("a3", "m2", words("Both are there.")),
    )

    assert imported(entries)[-1] == [
        "Look.",
        "Read",
        "Grep",
        "one",
        "two",
        "Both are there.",
    ]


def test_a_compaction_leaves_the_summary_and_what_was_preserved() -> None:
    old = (
        user_entry("u1", "OLD"),
        answered("a1", "m1", words("OLD answer")),
        user_entry("u2", "kept question"),
        answered("a2", "m2", words("kept answer")),
    )
    preserved = {"anchorUuid": "cs", "uuids": ["u2", "a2"], "allUuids": ["u2", "a2"]}
    entries = chained(
        *old,
        boundary("cb", "a2", preservedMessages=preserved),
        summary("cs", "cb"),
        answered("a3", "m3", words("NEW answer")),
    )

    *_, before_answer, last = imported(entries)

    assert before_answer == ["SUMMARY", "kept question", "kept answer"]
    assert last == [*before_answer, "NEW answer"]


@pytest.mark.parametrize(
    ("anchor", "shown"),
    [("cs", ["SUMMARY", "kept", "next"]), ("cb", ["kept", "SUMMARY", "next"])],
)
def test_a_preserved_segment_is_at_its_anchor(anchor: str, shown: list[str]) -> None:
    segment = {"headUuid": "u2", "anchorUuid": anchor, "tailUuid": "u2"}
    entries = chained(
        user_entry("u1", "OLD"),
        user_entry("u2", "kept"),
        boundary("cb", "u2", preservedSegment=segment),
        summary("cs", "cb"),
        user_entry("u3", "next"),
    )

    assert imported(entries)[-1] == shown


def test_a_boundary_without_a_summary_leaves_out_what_was_before() -> None:
    entries = chained(
        user_entry("u1", "OLD"),
        boundary("cb", "u1"),
        user_entry("u2", "next"),
        user_entry("u3", "last"),
    )

    assert imported(entries)[-1] == ["next", "last"]


def test_results_that_the_client_cleared_are_shown_as_cleared() -> None:
    marks = {"compactedToolIds": ["c1"], "clearedAttachmentUUIDs": []}
    entries = chained(
        user_entry("u1", "Look."),
        answered("a1", "m1", use("c1", "Read")),
        user_entry("r1", [returned("c1", "a long file")]),
        {
            "type": "system",
            "subtype": "microcompact_boundary",
            "uuid": "mb",
            "sessionId": SESSION,
            "microcompactMetadata": marks,
        },
        answered("a2", "m2", words("Read it.")),
    )

    assert imported(entries)[-1][2] == "[Old tool result content cleared]"


def test_a_message_that_only_the_user_saw_is_not_sent(tmp_path: Path) -> None:
    hidden = user_entry("u2", "For your eyes", isVisibleInTranscriptOnly=True)
    entries = chained(user_entry("u1", "Hi"), hidden, user_entry("u3", "Go on"))

    assert imported(entries)[-1] == ["Hi", "Go on"]
    assert "never sent" in str(reasons(read_one(write_lines(tmp_path, entries))))


def test_a_broken_chain_follows_the_file_and_is_reported(tmp_path: Path) -> None:
    entries = chained(
        user_entry("u1", "Hi"),
        answered("a1", "m1", words("Hello")),
        user_entry("u2", "Go on", parentUuid="nobody"),
    )
    path = write_lines(tmp_path, entries)

    assert imported(entries)[-1] == ["Hi", "Hello", "Go on"]
    (where,) = reasons(read_one(path))
    assert where.endswith("line 3")
    assert "order of the file" in reasons(read_one(path))[where]
    assert edits(path) == []


def test_a_message_without_a_parent_begins_a_new_chain(tmp_path: Path) -> None:
    hook = {"type": "progress", "uuid": "p", "sessionId": SESSION, "parentUuid": None}
    entries = [
        *chained(user_entry("u1", "Plan it."), answered("a1", "m1", words("A plan."))),
        hook,
        user_entry("u2", "Carry out the plan.", parentUuid="p"),
        answered("a2", "m2", words("Done."), parentUuid="u2"),
    ]

    assert imported(entries)[-1] == ["Carry out the plan.", "Done."]


def test_a_rewind_after_a_compaction_may_reach_behind_it() -> None:
    entries = chained(
        user_entry("u1", "OLD"),
        answered("a1", "m1", words("OLD answer")),
        boundary("cb", "a1"),
        summary("cs", "cb"),
        user_entry("u2", "next"),
        user_entry("u3", "back to the old", parentUuid="a1"),
    )

    assert imported(entries)[-1] == ["OLD", "OLD answer", "back to the old"]


def test_a_capture_finds_what_an_import_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    folder = tmp_path / "projects" / "-work"
    folder.mkdir(parents=True)
    path = write_lines(folder, REWOUND[:4], f"{SESSION}.jsonl")
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")
        write_lines(folder, REWOUND, f"{SESSION}.jsonl")
        follower = Follower(store, "claude-code", user_id="ada", folder=folder.parent)
        with follower.alone():
            follower.look()

        assert contexts(store)[-1] == imported(REWOUND)[-1]
        assert store.import_transcript(path, user_id="ada")[0].events == 0


@st.composite
def trees(draw: st.DrawFn) -> list[Entry]:
    """The entries of a session with rewinds, compactions, and parallel calls."""
    entries: list[Entry] = [user_entry("e0", "first")]
    for number in range(1, draw(st.integers(2, 14))):
        uuid = f"e{number}"
        earlier = [entry["uuid"] for entry in entries]
        parent = earlier[-1]
        if draw(st.integers(0, 3)) == 0:
            parent = draw(st.sampled_from(earlier))
        kind = draw(st.sampled_from(["user", "answer", "call", "result", "compact"]))
        if kind == "user":
            entries.append(user_entry(uuid, f"text {number}", parentUuid=parent))
        elif kind == "answer":
            answer = answered(uuid, f"m{number}", words(f"answer {number}"))
            entries.append({**answer, "parentUuid": parent})
        elif kind == "call":
            call = answered(uuid, f"m{number}", use(f"c{number}", f"tool{number}"))
            entries.append({**call, "parentUuid": parent})
        elif kind == "result":
            call_ids = [entry["uuid"][1:] for entry in entries if _has_call(entry)]
            if call_ids:
                call_id = draw(st.sampled_from(call_ids))
                block = returned(f"c{call_id}", f"result {number}")
                result = user_entry(uuid, [block], parentUuid=f"e{call_id}")
                entries.append(result)
        else:
            uuids = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3))
            preserved = {"anchorUuid": uuid, "uuids": uuids}
            mark = boundary(f"b{number}", parent, preservedMessages=preserved)
            entries += [mark, summary(uuid, mark["uuid"], f"summary {number}")]
    return entries


def _has_call(entry: Entry) -> bool:
    content = entry.get("message", {}).get("content")
    return isinstance(content, list) and content[0].get("type") == "tool_use"


@given(trees())
@settings(deadline=None, max_examples=40)
def test_a_file_gives_the_same_contexts_in_one_piece_and_in_twenty(
    entries: list[Entry],
) -> None:
    assert imported(entries, steps=20) == imported(entries)


@given(trees())
@settings(deadline=None, max_examples=20)
def test_a_capture_gives_the_same_contexts_as_an_import(entries: list[Entry]) -> None:
    whole = imported(entries)
    with pytest.MonkeyPatch.context() as patch:
        assert captured(entries, monkeypatch=patch) == whole
        assert captured(entries, restarts=True, monkeypatch=patch) == whole
