"""The benchmark of warnings replays sessions in order of time and cites events."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks import warnings
from tests.importers.samples import answered, user_entry, write_lines
from tests.importers.test_branches import chained

UNREAD = "<tool_use_error>File has not been read yet. Read it first.</tool_use_error>"
DAY = datetime(2026, 1, 1, tzinfo=UTC)


def used(name: str, tool: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": tool, "input": {}}


def returned(name: str, content: str, *, failed: bool) -> dict[str, Any]:
    block = {
        "type": "tool_result",
        "tool_use_id": name,
        "content": content,
        "is_error": failed,
    }
    return user_entry(f"u-{name}", [block])


def session(folder: Path, number: int, *, fix: str) -> None:
    """A session of a day in which an Edit fails, and another tool helps."""
    name = f"s{number}"
    entries = chained(
        user_entry(f"u-{name}", "Go on."),
        answered(f"a-{name}", f"m-{name}", used(f"{name}e", "Edit")),
        returned(f"{name}e", UNREAD, failed=True),
        answered(f"b-{name}", f"n-{name}", used(f"{name}r", fix)),
        returned(f"{name}r", "content", failed=False),
    )
    for minute, entry in enumerate(entries):
        time = DAY + timedelta(days=number, minutes=minute)
        entry["timestamp"] = time.isoformat().replace("+00:00", "Z")
        entry["sessionId"] = name
    write_lines(folder, entries, f"{name}.jsonl")


def test_warnings_of_a_session_come_only_from_earlier_sessions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(6):
        session(tmp_path, number, fix="Grep" if number == 5 else "Read")
    file = tmp_path / "figures.json"

    status = warnings.main([str(tmp_path), "--json", str(file)])

    figures = json.loads(file.read_text())
    assert status == 0
    printed = capsys.readouterr().out
    assert "tested failure warnings that held   3/3 1.00" in printed
    assert "tested recovery warnings that held  2/3 0.67" in printed
    assert (figures["sessions"], figures["failures"]) == (6, 6)
    assert (figures["right"], figures["tested"]) == (5, 6)
    # The first three sessions establish the item; the fourth is the first warned.
    recoveries = [
        warning for warning in figures["warnings"] if warning["kind"] == "recovery"
    ]
    first = recoveries[0]
    assert [recovery["right"] for recovery in recoveries] == [True, True, False]
    assert [recovery["session"] for recovery in recoveries] == ["s3", "s4", "s5"]
    assert (first["tool"], first["reason"], first["fix"]) == (
        "Edit",
        "not_read",
        "Read",
    )
    assert len(first["evidence"]) == 3
    assert all(place["seqs"] for place in first["evidence"])
    assert len(first["came"]) == 2
    recurrences = figures["recurrences"]
    assert [bool(entry["warned"]) for entry in recurrences] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert all(len(entry["seqs"]) == 2 for entry in recurrences)


def test_an_empty_folder_has_no_figures(tmp_path: Path) -> None:
    assert warnings.main([str(tmp_path)]) == 1
