"""The benchmark of token counts measures the texts it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import tokens

TEXT = "def walk(path):\n    return [name for name in path if name]\n" * 200


def quarter(text: str) -> int:
    return len(text) // 4


def test_the_error_of_each_count_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for half in ("train", "test"):
        folder = tmp_path / "code" / half
        folder.mkdir(parents=True)
        (folder / "walk.txt").write_text(TEXT)
    counter = f"{__name__}:quarter"

    code = tokens.main([str(tmp_path), "--counter", counter, "--tokenizer", "o200k"])

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert code == 0
    assert [row[1] for row in rows] == ["stored", "start", "1", "3", "10", "20"]
    assert rows[0][2:] == ["0.0%", "(0.0%)"], "that is the stored estimate's rule"
    assert float(rows[-1][2].rstrip("%")) < float(rows[1][2].rstrip("%"))
