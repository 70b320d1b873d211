"""A format is detected by the contents of a file; a named format is not guessed."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from refold.adapters import importers
from refold.adapters.importers import FORMATS, registry
from refold.adapters.importers.base import Source
from tests.importers import samples
from tests.importers.samples import (
    read_one,
    refusal,
    returned,
    use,
    words,
    write_document,
    write_lines,
    write_sample,
)

NAMES = [name for name in FORMATS if name != "auto"]


def recognising(path: Path) -> list[str]:
    """Return the names of all built-in importers that recognise a file."""
    source = Source(path)
    return [
        importer.NAME
        for importer in registry.reading([source.content])
        if importer.recognises(source)
    ]


def test_the_formats_are_those_of_the_command_line() -> None:
    assert FORMATS == (
        "auto",
        "claude-code",
        "codex",
        "gemini-cli",
        "qwen-code",
        "copilot-cli",
        "opencode",
        "openhands",
        "cline",
        "openai",
        "anthropic",
        "tau-bench",
        "swe-agent",
        "letta",
        "inspect",
        "atif",
        "otlp",
        "chatgpt",
        "claude-ai",
        "llm",
        "aider",
        "openai-responses",
        "langfuse",
        "langsmith",
        "refold",
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_format_is_recognised_by_one_importer(tmp_path: Path, name: str) -> None:
    assert recognising(write_sample(tmp_path, name)) == [name]


@pytest.mark.parametrize("name", NAMES)
def test_a_named_format_reads_the_same(tmp_path: Path, name: str) -> None:
    path = write_sample(tmp_path, name)

    assert importers.read(path, format=name) == importers.read(path)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", NAMES)
def test_a_file_read_as_another_format_fails_or_skips_but_never_breaks(
    tmp_path: Path, name: str, other: str
) -> None:
    path = write_sample(tmp_path, name)
    chats = {"openai", "anthropic", "letta", "inspect", "cline"}

    if other != name and not {name, other} <= chats:
        assert refusal(path, other).startswith(str(path))


def test_a_format_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = write_sample(tmp_path, "openai")

    assert "there is no such format: name one of auto, claude-code" in refusal(
        path, "x"
    )


@pytest.mark.parametrize(
    ("messages", "form"),
    [
        ([{"role": "user", "content": "Hi"}], "openai"),
        ([{"role": "user", "content": [words("Hi")]}], "openai"),
        ([{"role": "developer", "content": "Hi"}], "openai"),
        ([{"role": "assistant", "content": [use("c1")]}], "anthropic"),
        ([{"role": "user", "content": [returned("c1")]}], "anthropic"),
        (
            [{"role": "system", "content": "x"}, *samples.ANTHROPIC["messages"]],
            "anthropic",
        ),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "openai"),
    ],
)
def test_messages_are_recognized_by_fields_of_one_api(
    tmp_path: Path, messages: list[Any], form: str
) -> None:
    path = write_document(tmp_path, {"messages": messages})

    assert recognising(path) == [form]


CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}],
}
ASKED = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("document", "form"),
    [
        ([ASKED, {"role": "assistant", "content": [use("c1")]}], "cline"),
        ([ASKED, CALLED], "openai"),
        ([{"role": "system", "content": "x"}, ASKED], "openai"),
        ({"messages": [ASKED]}, "openai"),
        ({"system": "x", "messages": [ASKED]}, "anthropic"),
    ],
)
def test_a_file_named_like_a_task_of_cline_is_recognized_by_its_messages(
    tmp_path: Path, document: Any, form: str
) -> None:
    path = tmp_path / "api_conversation_history.json"
    path.write_text(json.dumps(document))

    assert recognising(path) == [form]


def test_a_system_prompt_next_to_plain_messages_means_the_messages_api(
    tmp_path: Path,
) -> None:
    plain = [{"role": "user", "content": "Hi"}]

    assert (
        read_one(write_document(tmp_path, {"system": "x", "messages": plain})).format
        == "anthropic"
    )
    assert read_one(write_document(tmp_path, plain)).format == "openai"


def test_a_chat_of_either_api_gives_the_same_events(tmp_path: Path) -> None:
    path = write_document(
        tmp_path,
        [
            {"role": "user", "content": [words("One."), words("Two.")]},
            {"role": "assistant", "content": [words("Three. "), words("Four.")]},
            {"role": "user", "content": "Five."},
        ],
    )

    from_openai, from_anthropic = (
        read_one(path, form) for form in ("openai", "anthropic")
    )

    assert samples.events(from_openai) == samples.events(from_anthropic)


def test_messages_of_two_apis_are_not_recognized(tmp_path: Path) -> None:
    mixed = [
        {"role": "assistant", "content": [use("c1")]},
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
    ]

    assert "name its format" in refusal(write_document(tmp_path, mixed))


def test_messages_in_claude_codes_frame_are_no_chat(tmp_path: Path) -> None:
    path = write_lines(tmp_path, samples.CLAUDE_CODE[:1])

    assert read_one(path).format == "claude-code"
    assert read_one(path).drafts == ()


def test_a_history_alone_is_a_trajectory_if_its_messages_have_kinds(
    tmp_path: Path,
) -> None:
    kind = {"message_type": "observation"}
    message = {"role": "user", "content": "Fix it."}

    path = write_document(tmp_path, {"history": [{**message, **kind}]})
    assert read_one(path).format == "swe-agent"

    path = write_document(tmp_path, {"history": [message]})
    assert "no known transcript" in refusal(path)


def test_a_database_of_no_known_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE notes (text)")
        database.commit()

    assert "is a SQLite database of no known transcript format" in refusal(path)
    assert "is a SQLite database: use --format auto" in refusal(path, "codex")
