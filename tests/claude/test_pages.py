"""The pages about agents and captures run as written."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import anthropic
import pytest

import refold
from tests.support.messages_api import MessagesApi, message, overloaded, tool_use

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each page in an empty folder, where it makes its store."""
    monkeypatch.chdir(tmp_path)


def program_of(page: str) -> str:
    """Return the Python of a page as one program; later blocks continue the first."""
    blocks = re.findall(
        r"^```python\n(.*?)^```", (PAGES / page).read_text(), re.M | re.S
    )
    return "\n".join(blocks)


def types_by_session() -> list[list[str]]:
    """Return the types of the events of each session that verifies."""
    types: list[list[str]] = []
    with refold.open("sqlite:///agent.db") as store:
        for info, verification in store.verify():
            if not verification.problems:
                session = store.session(
                    user_id=info.user_id, session_id=info.session_id
                )
                types.append([event.type for event in session.events()])
    return types


def test_the_page_about_recording_claude_runs_as_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with MessagesApi() as api:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-for-tests")
        api.reply(
            overloaded(retry_after=0.01),
            message(tool_use("bash", {"command": "make"})),
            message("a.o is missing."),
            message("Answer 0."),
            message("Answer 1."),
            message(tool_use("lines_of", {"file": "a.c"})),
            message("It has 12 lines."),
            message('{"file": "a.c", "line": 3}'),
            message("In short."),
            message("Answer 2."),
            message("Answer 3."),
        )

        names: dict[str, Any] = {}
        with redirect_stdout(StringIO()) as printed:
            exec(program_of("record-claude.md"), names)  # noqa: S102  # our own page
        for client in (names["claude"].client, names["client"]):
            client.close()

    assert printed.getvalue() == ("Answer 0.tool_use\nend_turn\nfile='a.c' line=3\n")
    first, forks, second = types_by_session()
    assert first.count("request") == 9
    assert first.count("agent_response") == 9
    assert "error" not in first
    assert forks == ["fork"]
    assert second == ["user_input", "request", "agent_response"]


def test_the_page_about_several_agents_runs_as_written() -> None:
    names: dict[str, Any] = {}

    exec(program_of("several-agents.md"), names)  # noqa: S102  # our own page

    lead = str(names["lead"].messages)
    helper = str(names["helper"].messages)
    assert "A drink." in lead
    assert "Reading" not in lead
    assert "Reading" in helper
    assert "What is tea" not in helper
    assert len(types_by_session()) == 4


def test_the_page_about_memory_as_a_tool_runs_as_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with MessagesApi() as api:
        client = api.client()
        monkeypatch.setattr(anthropic, "Anthropic", lambda: client)
        api.reply(
            message("I ask.", tool_use("memory_retrieval", {"user_id": "ada"})),
            message("Booked."),
        )

        exec(program_of("memory-as-a-tool.md"), {})  # noqa: S102  # our own page

    assert [types.count("tool_result") for types in types_by_session()] == [1]
