"""Every system or developer message counts: the first is the prompt, others stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import refold
from refold.adapters.importers import codex
from refold.domain.events import SystemPrompt
from refold.store import Session, SessionStore
from tests.importers.samples import (
    Entry,
    events,
    read_one,
    write_document,
    write_lines,
)
from tests.importers.test_codex import framed
from tests.support.nested import blocks_of

PROMPT = "Never give refunds."
NOTE = "The user is in Rome."


@pytest.fixture
def store() -> Iterator[SessionStore]:
    with refold.open("memory://") as opened:
        yield opened


def imported(store: SessionStore, path: Path) -> Session:
    store.import_transcript(path, user_id="ada", session_id="s")
    return store.session(user_id="ada", session_id="s")


def texts(session: Session) -> list[tuple[str, list[str]]]:
    """The texts of each message of the context."""
    return [
        (message["role"], [block["text"] for block in message["content"]])
        for message in session.context("keep_all").messages
    ]


def chat(*messages: tuple[str, str]) -> list[Entry]:
    return [{"role": role, "content": content} for role, content in messages]


MIDDLE = chat(
    ("system", PROMPT),
    ("user", "Hello."),
    ("assistant", "Hi."),
    ("system", NOTE),
    ("user", "Where am I?"),
    ("assistant", "In Rome."),
)


def test_a_note_in_the_middle_of_a_chat_keeps_the_prompt(
    store: SessionStore, tmp_path: Path
) -> None:
    session = imported(store, write_document(tmp_path, MIDDLE))

    assert session.context("keep_all").system == PROMPT
    assert texts(session) == [
        ("user", ["Hello."]),
        ("assistant", ["Hi."]),
        ("user", [f"<system>\n{NOTE}\n</system>", "Where am I?"]),
        ("assistant", ["In Rome."]),
    ]


@pytest.mark.parametrize("note", ["developer", "system"])
def test_a_second_message_before_the_user_comes_after_the_prompt(
    store: SessionStore, tmp_path: Path, note: str
) -> None:
    messages = chat(("system", PROMPT), (note, NOTE), ("user", "Hello."))

    session = imported(store, write_document(tmp_path, messages))

    assert session.context("keep_all").system == PROMPT
    assert texts(session) == [("user", [f"<system>\n{NOTE}\n</system>", "Hello."])]


def test_a_text_with_its_own_tags_is_shown_as_sent(
    store: SessionStore, tmp_path: Path
) -> None:
    tagged = '<reminder kind="todo">\nThe list is empty.\n</reminder>\n'
    messages = chat(("system", PROMPT), ("user", "Hello."), ("system", tagged))

    session = imported(store, write_document(tmp_path, messages))

    assert texts(session) == [("user", ["Hello.", tagged])]


def test_a_text_cannot_end_its_own_tags(store: SessionStore, tmp_path: Path) -> None:
    messages = chat(("system", PROMPT), ("system", "a</system>b"), ("user", "Hello."))

    session = imported(store, write_document(tmp_path, messages))

    assert texts(session) == [
        ("user", ["<system>\na<\\/system>b\n</system>", "Hello."])
    ]


ROLES = st.sampled_from(["system", "developer", "user", "assistant"])
CHATS = st.lists(st.tuples(ROLES, st.text("abc", min_size=1)), min_size=1, max_size=8)


@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(messages=CHATS, cut=st.integers(0, 8))
def test_every_message_counts_however_the_file_grew(
    tmp_path: Path, messages: list[tuple[str, str]], cut: int
) -> None:
    with refold.open("memory://") as store:
        for number, part in enumerate((messages[:cut], messages)):
            if part:
                path = write_document(tmp_path, chat(*part), f"{number}.json")
                store.import_transcript(
                    path, user_id="ada", session_id="s", format="openai"
                )
        session = store.session(user_id="ada", session_id="s")
        system = session.context("keep_all").system
        shown = [text for _, blocks in texts(session) for text in blocks]

    expected = [words for role, words in messages if role in ("system", "developer")]
    assert system == (expected[0] if expected else None)
    notes = [text for text in shown if text.startswith("<system>")]
    assert notes == [f"<system>\n{words}\n</system>" for words in expected[1:]]


def test_an_inspect_log_keeps_its_prompt(tmp_path: Path) -> None:
    sample = {"id": 1, "epoch": 1, "messages": MIDDLE}
    log = {"version": 2, "status": "success", "eval": {"task": "t"}}

    transcript = read_one(write_document(tmp_path, {**log, "samples": [sample]}))

    assert [e for e in events(transcript) if isinstance(e, SystemPrompt)] == [
        SystemPrompt(text=PROMPT),
        SystemPrompt(text=NOTE, where="conversation"),
    ]


def test_lines_of_codex_alone_give_the_texts_of_the_file(tmp_path: Path) -> None:
    lines = [
        framed("session_meta", id="r", base_instructions={"text": PROMPT}),
        framed("response_item", type="message", role="developer", content=NOTE),
    ]
    view = codex.format_of(None).view

    transcript = read_one(write_lines(tmp_path, lines))
    alone: list[Any] = []
    for line in lines:
        alone += [getattr(draft, "event", None) for draft in view("", line, {})]

    assert alone == events(transcript)
    assert alone == [
        SystemPrompt(text=PROMPT),
        SystemPrompt(text=NOTE, where="conversation"),
    ]


def live(store: SessionStore) -> Session:
    session = store.session(user_id="ada", session_id="live")
    session.append(
        [
            refold.SystemPrompt(text=PROMPT),
            refold.UserInput(text="Hello."),
            refold.AgentResponse(text="Hi."),
            refold.SystemPrompt(text=NOTE, where="conversation"),
            refold.UserInput(text="Where am I?"),
        ]
    )
    return session


def test_a_new_prompt_of_a_live_session_replaces_the_one_before(
    store: SessionStore,
) -> None:
    session = live(store)
    before = session.context("keep_all")
    session.append(refold.SystemPrompt(text="Always give refunds."))

    after = session.context("keep_all")

    assert (before.system, after.system) == (PROMPT, "Always give refunds.")
    assert after.messages == before.messages


def test_a_note_in_the_conversation_is_compacted_with_its_turn(
    store: SessionStore,
) -> None:
    session = live(store)
    session.append(refold.AgentResponse(text="In Rome."))
    for number in range(4):
        question = refold.UserInput(text=f"Question {number}?")
        session.append([question, refold.AgentResponse(text=f"Answer {number}.")])
    strategy = "turn_window:full_turns=1,cached_turns=1"
    while session.compact(strategy):
        pass

    view = session.context(strategy)
    seen = [block["text"] for block in blocks_of(view.messages)]
    explained = session.why(strategy)

    assert view.system == PROMPT
    assert [text for text in seen if NOTE in text]
    assert not [text for text in seen if text.startswith("<system>")]
    assert {event.seq: event.why for event in explained.unshown}[4] == "compacted"


def test_why_names_the_note_as_a_part(store: SessionStore) -> None:
    explained = live(store).why("keep_all")

    assert [part.seqs for part in explained.parts if 4 in part.seqs]
    assert not [event for event in explained.unshown if event.seq == 4]
