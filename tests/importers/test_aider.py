"""Aider's history becomes a session for each chat, with the client's own lines."""

from __future__ import annotations

from pathlib import Path

import pytest

import refold
from refold.adapters import importers
from refold.domain.events import AgentResponse, Item, UserInput
from tests.importers.export_samples import AIDER
from tests.importers.samples import (
    accepted,
    events,
    kinds,
    read_one,
    refusal,
    texts_shown,
)


def write(folder: Path, text: str, name: str = ".aider.chat.history.md") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def chat(*parts: str, started: str = "2025-12-03 14:43:45") -> str:
    return "\n".join([f"\n# aider chat started at {started}\n", *parts])


def asked(*lines: str) -> str:
    return "\n" + "".join(f"#### {line}  \n" for line in lines)


def test_a_chat_becomes_inputs_answers_and_output(tmp_path: Path) -> None:
    transcript = read_one(write(tmp_path, AIDER))

    assert (transcript.format, transcript.session_id) == (
        "aider",
        "aider-20251203-144345",
    )
    notes, question, answer, applied, command, added = events(transcript)
    assert isinstance(notes, Item)
    assert (notes.format, notes.kind) == ("aider", "output")
    assert question == UserInput(text="Add a function\n\nthat doubles a number")
    assert answer == AgentResponse(
        text=("Here it is:\n\n#### A heading of the answer\n\n> A quote in the answer"),
        usage={"input_tokens": 2400, "output_tokens": 104, "cost_usd": 0.00042},
    )
    assert isinstance(applied, Item)
    assert str(applied.value).endswith("Applied edit to double.py")
    assert command == Item(format="aider", kind="command", value="/add other.py")
    assert isinstance(added, Item)
    drafts = transcript.drafts
    assert drafts[2].meta.model == "openrouter/openai/gpt-4o-mini"
    assert [str(draft.ts) for draft in drafts[:2]] == [
        "2025-12-03 14:43:45+00:00",
        "None",
    ]
    assert accepted(drafts)


@pytest.mark.parametrize(
    ("line", "usage"),
    [
        (
            "Tokens: 12k sent, 1,234 received. Cost: $0.02 message, $0.5 session.",
            {"input_tokens": 12000, "output_tokens": 1234, "cost_usd": 0.02},
        ),
        (
            "Tokens: 5.4k sent, 812 received.",
            {"input_tokens": 5400, "output_tokens": 812},
        ),
        (
            "Tokens: 9.1k sent, 2k cache write, 3k cache hit, 10 received. "
            "Cost: $0.1 message, $0.2 session.",
            {
                "input_tokens": 9100,
                "output_tokens": 10,
                "cache_creation_input_tokens": 2000,
                "cache_read_input_tokens": 3000,
                "cost_usd": 0.1,
            },
        ),
    ],
)
def test_the_tokens_line_is_the_usage_of_the_answer(
    tmp_path: Path, line: str, usage: dict[str, float]
) -> None:
    text = chat(asked("Hi"), "Hello.\n", f"> {line}  ")

    answer = events(read_one(write(tmp_path, text)))[1]

    assert isinstance(answer, AgentResponse)
    assert answer.usage == usage


def test_two_inputs_in_a_row_stay_two(tmp_path: Path) -> None:
    text = chat(asked("One"), asked("Two", "lines"))

    assert events(read_one(write(tmp_path, text))) == [
        UserInput(text="One"),
        UserInput(text="Two\nlines"),
    ]


def test_an_output_of_several_lines_is_no_answer(tmp_path: Path) -> None:
    output = "> Traceback\n  File x\nValueError: no  "
    text = chat(asked("/run make"), output)

    command, shown_output = events(read_one(write(tmp_path, text)))

    assert isinstance(command, Item)
    assert isinstance(shown_output, Item)
    assert shown_output.value == "Traceback\n  File x\nValueError: no"


def test_a_file_whose_line_ends_were_trimmed_is_read(tmp_path: Path) -> None:
    trimmed = "\n".join(line.rstrip() for line in AIDER.splitlines())

    kinds_of_file = kinds(read_one(write(tmp_path, trimmed)))

    assert kinds_of_file[:3] == ["item", "user_input", "agent_response"]


@pytest.mark.parametrize("command", ["/clear", "/reset"])
def test_a_cleared_history_is_in_no_later_context(tmp_path: Path, command: str) -> None:
    text = chat(asked("One"), "First.\n", asked(command), asked("Two"), "Second.\n")
    path = write(tmp_path, text)
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")
        (again,) = store.import_transcript(path, user_id="ada")

        assert again.events == 0
        assert texts_shown(store) == ["Two", "Second."]


def test_a_grown_file_adds_only_what_is_new(tmp_path: Path) -> None:
    path = write(tmp_path, chat(asked("One"), "First.\n"))
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")
        later = chat(asked("Three"), started="2025-12-04 08:00:00")
        write(tmp_path, chat(asked("One"), "First.\n", asked("Two")) + later)
        grown = store.import_transcript(path, user_id="ada")

        assert [imported.events for imported in grown] == [1, 1]


def test_a_chat_without_messages_is_reported(tmp_path: Path) -> None:
    empty = chat("> Aider v0.86.1  ")
    text = empty + chat(asked("One"), started="2025-12-04 08:00:00")

    transcripts = importers.read(write(tmp_path, text))

    assert [transcript.session_id for transcript in transcripts] == [
        "",
        "aider-20251204-080000",
    ]
    assert transcripts[0].skipped[0].why == "chat without messages"


def test_another_text_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "# Notes\n\n#### One  \n", "notes.md")

    assert "is not valid JSON" in refusal(path)
    assert "no line begins a chat" in refusal(path, "aider")


def test_a_chat_whose_begin_is_no_time_has_no_time(tmp_path: Path) -> None:
    path = tmp_path / "history.md"
    path.write_text("# aider chat started at 2026-13-45 99:99:99\n\n#### Hi  \n\nYes\n")

    transcript = read_one(path)

    assert kinds(transcript) == ["user_input", "agent_response"]
    assert transcript.drafts[0].ts is None
