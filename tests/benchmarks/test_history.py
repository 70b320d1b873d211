"""The benchmark of reconstructed contexts holds them against what was billed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import history
from tests.importers.samples import answered, user_entry, words, write_lines
from tests.importers.test_branches import boundary, chained, summary

LONG = "The tide table says when the boats leave the harbour. " * 200


def session(folder: Path, name: str) -> None:
    """A session that is compacted, whose bills follow what was sent."""
    entries: list[dict[str, Any]] = [
        user_entry("u0", "Begin."),
        _answer(0, billed=20_000),
    ]
    for number in range(1, 4):
        entries.append(user_entry(f"u{number}", LONG))
        entries.append(_answer(number, billed=20_000 + number * 2_600))
    entries += [boundary("cb", "a3"), summary("cs", "cb", "In short.")]
    entries.append(_answer(4, billed=20_050))
    entries += [user_entry("u5", LONG), _answer(5, billed=22_650)]
    write_lines(folder, chained(*entries), f"{name}.jsonl")


def _answer(number: int, *, billed: int) -> dict[str, Any]:
    usage = {
        "input_tokens": 3,
        "cache_read_input_tokens": billed - 3,
        "output_tokens": 1,
    }
    text = words(f"Answer {number}.")
    return answered(f"a{number}", f"m{number}", text, usage=usage)


def test_the_straight_list_misses_bills_after_compactions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session(tmp_path, "one")
    session(tmp_path, "two")

    code = history.main([str(tmp_path), "--worst", "1"])

    table = list(history.rows(list(history.sessions(tmp_path))))
    lines = {line.contexts: line for line, _ in table}
    assert code == 0
    assert lines["reconstructed"].near == 1
    assert lines["reconstructed"].near_after_edits == 1
    assert lines["reconstructed"].after_edits == 2
    assert lines["straight list"].near_after_edits == 0
    assert "| straight list | " in capsys.readouterr().out


def test_a_truncated_file_is_counted_separately(tmp_path: Path) -> None:
    session(tmp_path, "one")
    path = tmp_path / "one.jsonl"
    first, *rest = path.read_text().splitlines()
    assert history.begins(path)
    path.write_text("\n".join([*rest, ""]))

    assert not history.begins(path)
    (cut,) = history.sessions(tmp_path)
    assert not cut.whole
    assert first


def test_a_folder_without_sessions_is_an_error(tmp_path: Path) -> None:
    assert history.main([str(tmp_path)]) == 1
