"""The benchmark of compaction measures what it says, and finds the front."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.compaction.run import SAMPLE, SPECS, Figure, front, joined
from refold.adapters.cli import main
from refold.adapters.importers import read
from refold.projections.context.strategies import spec


def test_a_short_run_writes_its_figures(tmp_path: Path) -> None:
    file, page = tmp_path / "figures.json", tmp_path / "page.md"
    page.write_text("<!-- results: begin -->\n<!-- results: end -->\n")

    code = main(
        [
            "bench",
            "compaction",
            "--quick",
            "--json",
            str(file),
            "--markdown",
            str(page),
        ]
    )

    figures = json.loads(file.read_text())["figures"]
    assert code == 0
    assert [one["strategy"] for one in figures] == [*SPECS]
    assert {spec.parse(one).name for one in SPECS} == {*spec.STRATEGIES}
    keep = figures[0]
    assert (keep["tokens"], keep["dollars"], keep["recall"]) == (1.0, 1.0, 1.0)
    assert all(0 < one["tokens"] <= 1 for one in figures)
    assert "| references kept by history_summary |" in page.read_text()


def test_on_the_front_is_what_nothing_beats() -> None:
    rows = {"a": (1.0, 1.0, 1.0), "b": (0.5, 0.5, 0.9), "c": (0.6, 0.5, 0.9)}
    figures = [
        Figure(name, file, *row) for name, row in rows.items() for file in ("x", "y")
    ]
    figures.append(Figure("on one file alone", "x", 0.1, 0.1, 1.0))

    means = {one.strategy: one.best for one in front(figures)}

    assert means == {"a": True, "b": True, "c": False}


@pytest.mark.parametrize("answers", [1, 40])
def test_runs_are_joined_until_there_are_enough_answers(answers: int) -> None:
    transcripts = read(SAMPLE)

    runs = list(joined(transcripts, answers))

    made = [draft.event.type for run in runs for draft in run]
    last = [draft.event.type for draft in runs[-1]].count("agent_response")
    assert made.count("agent_response") >= answers
    assert made.count("agent_response") - last < answers
