"""The benchmark of compaction measures what it says, and finds the front."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from benchmarks.compaction.boundaries import (
    Boundary,
    Compacted,
    boundaries,
    compacted,
    may_have_compaction,
    survival,
)
from benchmarks.compaction.run import SAMPLE, SPECS, Figure, front, joined
from benchmarks.report import show, table
from refold.adapters.cli import main
from refold.adapters.importers import Transcript, read
from refold.domain.envelope import Draft, Mark, Meta
from refold.domain.events import (
    AgentResponse,
    Event,
    ProviderEdit,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.projections.context.strategies import spec
from tests.importers.samples import user_entry, write_lines


def test_a_short_run_writes_its_figures(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    page = tmp_path / "page.md"
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
    assert [figure["strategy"] for figure in figures] == [*SPECS]
    assert {spec.parse(figure).name for figure in SPECS} == {*spec.STRATEGIES}
    keep = figures[0]
    assert (keep["tokens"], keep["dollars"], keep["recall"]) == (1.0, 1.0, 1.0)
    assert all(0 < figure["tokens"] <= 1 for figure in figures)
    assert "| references kept by history_summary |" in page.read_text()


def test_the_front_has_the_strategies_that_no_other_beats() -> None:
    rows = {"a": (1.0, 1.0, 1.0), "b": (0.5, 0.5, 0.9), "c": (0.6, 0.5, 0.9)}
    figures = [
        Figure(name, file, *row) for name, row in rows.items() for file in ("x", "y")
    ]
    figures.append(Figure("on one file alone", "x", 0.1, 0.1, 1.0))

    means = {figure.strategy: figure.best for figure in front(figures)}

    assert means == {"a": True, "b": True, "c": False}


@pytest.mark.parametrize("answers", [1, 40])
def test_runs_are_joined_until_there_are_enough_answers(answers: int) -> None:
    transcripts = read(SAMPLE)

    runs = list(joined(transcripts, answers))

    types = [draft.event.type for run in runs for draft in run]
    last = [draft.event.type for draft in runs[-1]].count("agent_response")
    assert types.count("agent_response") >= answers
    assert types.count("agent_response") - last < answers


def _history(turns: int) -> list[Draft]:
    events: list[Event] = []
    for number in range(turns):
        name = f"c{number}"
        path = f"src/part_{number}.py"
        events += [
            UserInput(text=f"Now part {number}, and mind the case {number * 7}."),
            AgentResponse(text="I look at it.", stop_reason="tool_use"),
            ToolCall(call_id=name, tool_name="Edit", arguments={"file_path": path}),
            ToolResult(call_id=name, tool_name="Edit", content="a line of it\n" * 400),
            AgentResponse(text=f"Part {number} is done."),
        ]
    return [Draft(event) for event in events]


def _boundary(turns: int) -> Boundary:
    drafts = _history(turns)
    used_later = drafts[2:3]
    return Boundary(
        session="s",
        number=1,
        history=tuple(drafts),
        summary="The client's own words.",
        after=tuple(used_later),
        constraint="mind the case 0",
    )


def test_at_a_boundary_the_words_are_counted_after_one_and_three_compactions() -> None:
    boundary = _boundary(60)

    kept = survival(boundary, compacted(boundary, "history_summary"))
    dropped = survival(boundary, compacted(boundary, "last_turns:n=2"))
    own = survival(boundary, Compacted(boundary.summary))

    assert (kept.words, kept.again, kept.constraint) == (1.0, 1.0, True)
    assert (kept.edited, kept.used_later) == (1.0, 1.0)
    assert 0 < kept.summary < kept.characters
    assert kept.named is None
    assert dropped.words is not None
    assert dropped.words < 0.1
    assert (dropped.again, dropped.named) == (None, True)
    assert (own.words, own.again, own.named) == (0.0, None, False)


def _after_a_clients_compaction(turns: int) -> Boundary:
    """A boundary with the client's own compaction, and turns after it."""
    before = _history(4)
    keyed = [
        Draft(draft.event, key=f"before-{number}")
        for number, draft in enumerate(before)
    ]
    summary = Draft(
        UserInput(text="The client's own words.\nMind the gate."),
        meta=Meta(source={"compact_summary": True}),
        key="summary",
    )
    mark = Mark(
        left_out=tuple(draft.key or "" for draft in keyed), in_place=("summary",)
    )
    edit = Draft(ProviderEdit(reason="compaction"), mark=mark)
    after = _history(4 + turns)[len(before) :]
    return replace(
        _boundary(4),
        summary="The client's own words.\nMind the gate.",
        after=tuple(after),
        recorded=(*keyed, summary, edit, *after),
    )


def test_after_the_clients_compaction_words_and_its_summary_are_counted() -> None:
    boundary = _after_a_clients_compaction(30)

    kept = survival(boundary, compacted(boundary, "history_summary"))
    dropped = survival(boundary, compacted(boundary, "last_turns:n=2"))

    assert (kept.later_words, kept.later_constraint) == (1.0, True)
    assert kept.later_lines == 1.0
    assert kept.later_edited == 1.0
    assert kept.later_used is None  # nothing follows
    assert (dropped.later_words, dropped.later_lines) == (None, None)


def test_a_context_with_the_clients_summary_as_it_was_does_not_count() -> None:
    boundary = _after_a_clients_compaction(1)

    kept = survival(boundary, compacted(boundary, "history_summary"))

    assert kept.later_words is None


def test_files_of_later_work_are_expected_after_the_clients_compaction() -> None:
    boundary = _after_a_clients_compaction(30)
    following = [
        draft for draft in boundary.recorded if draft.event.type == "tool_call"
    ]

    kept = survival(
        replace(boundary, following=(following[0], following[-1])),
        compacted(boundary, "history_summary"),
    )

    assert kept.later_used == 1.0


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"isCompactSummary": True}, True),
        ({"type": "session.compaction_complete"}, True),
        ({"action": "condensation"}, True),
        ({"extra": {"context_management": {"edits": []}}}, True),
        ({"context_management": None}, False),
        ({"text": 'It says "compact_boundary" or "condensation".'}, False),
        ({"text": "Make the table more compact."}, False),
    ],
)
def test_only_transcripts_with_a_mark_of_a_compaction_are_imported(
    entry: dict[str, object], expected: bool, tmp_path: Path
) -> None:
    path = write_lines(tmp_path, [{"type": "user", "text": "Hello."}, entry])

    assert may_have_compaction(path) is expected


def test_values_that_redaction_would_replace_are_measured_too() -> None:
    boundary = _boundary(12)
    asks = Draft(UserInput(text="Write to ada.lovelace@example.com about it."))
    boundary = replace(boundary, history=(asks, *boundary.history))

    assert survival(boundary, compacted(boundary, "history_summary")).words == 1.0


def test_only_transcripts_with_a_compaction_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [user_entry("u1", "Look at it.")]
    summary = user_entry("u2", "The words so far.", isCompactSummary=True)
    after = user_entry("u3", "Go on.")
    write_lines(tmp_path, entries, "whole.jsonl")
    write_lines(tmp_path, [*entries, summary, after], "with.jsonl")
    imported: list[str] = []

    def read_and_count(path: Path) -> list[Transcript]:
        imported.append(path.name)
        return list(read(path))

    monkeypatch.setattr("benchmarks.compaction.boundaries.read", read_and_count)

    (boundary,) = boundaries(tmp_path)

    assert boundary.session == "with"
    assert boundary.summary == "The words so far."
    assert imported == ["with.jsonl"]


def test_a_short_history_has_no_three_compactions() -> None:
    boundary = _boundary(12)

    assert compacted(boundary, "history_summary").again is None


def test_an_option_of_another_benchmark_is_named_as_it_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["bench", "redaction", "--with-command", "cat"])

    assert code == 2
    assert "--with-command" in capsys.readouterr().err


@pytest.mark.parametrize("width", [80, 200])
def test_a_table_fits_the_terminal_with_whole_words(width: int) -> None:
    figures = table("13 compactions", "", "instructions", "constraints", "identifiers")
    figures.add_row("turn_window:full_turns=2", *["0.912 (0.88-0.95)"] * 3)
    figures.add_row("a-strategy-with-a-long-name-" * 2, *["–"] * 3)
    console = Console(width=width, record=True, file=io.StringIO())

    show(console, figures)

    text = console.export_text()
    assert max(map(cell_len, text.splitlines())) <= width
    for word in ("instructions", "identifiers", "turn_window:full_turns=2", "0.912"):
        assert word in text
    assert "…" not in text
