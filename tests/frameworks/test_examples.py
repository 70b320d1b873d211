"""An example for each framework runs, and continues when it is started again."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

import refold
from tests.frameworks.contract import all_stored_text
from tests.support.stores import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("with_*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_continues_where_it_stopped(
    example: Path,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [str(example), url])

    runpy.run_path(str(example), run_name="__main__")
    first = capsys.readouterr().out
    runpy.run_path(str(example), run_name="__main__")
    second = capsys.readouterr().out

    assert first.startswith("Your parcel is at the desk.\n")
    assert "parcel of [REDACTED:EMAIL]: desk 2" in first
    assert second.startswith("You are welcome.\n")
    with refold.open(url) as store:
        assert "ada@example.org" not in first + second + all_stored_text(store)
        assert not any(proof.problems for _, proof in store.verify())
