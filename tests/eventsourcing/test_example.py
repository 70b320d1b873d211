"""The example and the page run as written, and again on the data that they left."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stores import ROOT, prepare

PAGE = ROOT / "docs" / "how-to" / "use-as-a-persistence-module.md"
FIRST = ["disk-full: open", "timeout: open", "disk-full: open", "timeout: closed"]


def run(script: Path, *arguments: str) -> list[str]:
    command = [sys.executable, "-W", "error", str(script), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=script.parent)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_tickets_come_from_a_session_and_go_to_a_board(
    sqlite_url: str, tmp_path: Path
) -> None:
    url = prepare(sqlite_url, tmp_path)
    script = ROOT / "examples" / "tickets.py"

    once = run(script, url)
    again = run(script, url)

    assert once == FIRST
    assert len(again) == 8
    assert again[4:].count("timeout: closed") == 1


def test_the_code_of_the_page_runs(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSISTENCE_MODULE", "refold.adapters.eventsourcing")
    monkeypatch.setenv("REFOLD_DB", sqlite_url)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))

    once = run(script)
    again = run(script)

    assert once == ["Fido", "['Fido']"]
    assert again == ["Fido", "['Fido', 'Fido']"]
