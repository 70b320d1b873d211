"""The work of an import grows with the size of its file, not with its square."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from refold.adapters import importers
from tests.importers.export_samples import run
from tests.importers.samples import write_document, write_lines

_SIZE = 150


def lines_run(work: Callable[[], object]) -> int:
    """Return the number of lines of Python that a function runs."""
    lines = 0

    def trace(_: FrameType, event: str, __: object) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(former)
    return lines


def answers(folder: Path, size: int) -> Path:
    """Write a conversation of ChatGPT in which an answer has many messages."""
    return _chat(folder, ["assistant"] * size)


def results(folder: Path, size: int) -> Path:
    """Write a conversation of ChatGPT in which a call has many results."""
    return _chat(folder, ["assistant", *["tool"] * size])


def _chat(folder: Path, roles: list[str]) -> Path:
    nodes: dict[str, Any] = {}
    parent: str | None = None
    for number, role in enumerate(roles):
        name = f"n{number}"
        message = {
            "author": {"role": role},
            "create_time": 1_700_000_000 + number,
            "content": {"content_type": "text", "parts": [str(number)]},
        }
        nodes[name] = {"id": name, "parent": parent, "message": message}
        parent = name
    conversation = {"conversation_id": "c", "current_node": parent, "mapping": nodes}
    return write_document(folder, [conversation])


def branches(folder: Path, size: int) -> Path:
    """Write a conversation of ChatGPT in which each message was edited once."""
    nodes: dict[str, Any] = {}
    parent: str | None = None
    for number in range(size):
        for version in "ab":
            name = f"n{number}{version}"
            message = {
                "author": {"role": "user"},
                "create_time": 1_700_000_000 + number,
                "content": {"content_type": "text", "parts": [name]},
            }
            nodes[name] = {"id": name, "parent": parent, "message": message}
        parent = f"n{number}b"
    conversation = {"conversation_id": "c", "current_node": parent, "mapping": nodes}
    return write_document(folder, [conversation])


def agents(folder: Path, size: int) -> Path:
    """Write a trace of LangSmith in which each call is that of another agent."""
    runs: list[dict[str, Any]] = []
    for number in range(size):
        asked = {"messages": [{"role": "user", "content": str(number)}]}
        runs.append(run(number, "llm", asked, {"output": "Yes"}))
    return write_lines(folder, runs)


def requests(folder: Path, size: int) -> Path:
    """Write a task of Cline whose list of requests has none of its answers."""
    path = folder / "task" / "api_conversation_history.json"
    path.parent.mkdir()
    messages: list[dict[str, Any]] = []
    for number in range(size):
        tokens = {"prompt": number + 1, "completion": 1}
        answer = {"role": "assistant", "content": [{"type": "text", "text": "Yes"}]}
        messages.append({**answer, "metrics": {"tokens": tokens}})
    path.write_text(json.dumps(messages), "utf-8")
    request = {"say": "api_req_started", "text": '{"tokensIn": 0, "tokensOut": 0}'}
    listed = [request] * size
    path.with_name("ui_messages.json").write_text(json.dumps(listed), "utf-8")
    return path


@pytest.mark.parametrize("write", [answers, results, branches, agents, requests])
def test_twice_the_entries_take_twice_the_work(
    tmp_path: Path, write: Callable[[Path, int], Path]
) -> None:
    counts: list[int] = []
    for size in (_SIZE, 2 * _SIZE):
        folder = tmp_path / str(size)
        folder.mkdir()
        path = write(folder, size)
        importers.read(path)  # loads the importer
        counts.append(lines_run(lambda path=path: importers.read(path)))  # type: ignore[misc]  # mypy infers no type from a default

    assert counts[1] < 2.3 * counts[0]
