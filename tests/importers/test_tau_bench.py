"""Each run of a tau-bench file is a session that ends with its reward."""

from pathlib import Path
from typing import Any

import pytest

from refold.adapters import importers
from refold.domain.events import Final
from tests.importers import samples
from tests.importers.samples import events, kinds, read_one, reasons, write_document


def test_each_run_is_a_session_named_after_its_task_and_trial(tmp_path: Path) -> None:
    runs = importers.read(write_document(tmp_path, samples.TAU_BENCH))

    assert [run.session_id for run in runs] == [
        "task-0-trial-0",
        "task-1-trial-0",
        "task-2-trial-0",
    ]
    assert kinds(runs[0]) == [
        "system",
        "user_input",
        "tool_call",
        "tool_result",
        "agent_response",
        "final",
    ]
    assert {draft.meta.scenario for draft in runs[1].drafts} == {"task-1"}
    assert (runs[1].drafts[2].meta.source or {})["place"] == "[1] traj[2]"


@pytest.mark.parametrize(
    ("reward", "outcome"),
    [
        (1, "success"),
        (1.0, "success"),
        (0, "failure"),
        (0.5, "partial"),
        (None, "unknown"),
        ("1", "unknown"),
    ],
)
def test_the_reward_tells_the_outcome(
    tmp_path: Path, reward: Any, outcome: str
) -> None:
    run = {**samples.TAU_BENCH[0], "reward": reward}

    final = events(read_one(write_document(tmp_path, [run])))[-1]

    assert isinstance(final, Final)
    assert final.outcome == outcome
    assert final.result == {"task_id": 0, "trial": 0}


def test_a_call_id_may_come_again_once_it_was_answered(tmp_path: Path) -> None:
    run = {**samples.TAU_BENCH[0], "traj": [*samples.OPENAI, *samples.OPENAI[1:]]}

    transcript = read_one(write_document(tmp_path, [run]))

    assert kinds(transcript).count("tool_result") == 2


def test_data_that_the_agent_did_not_see_is_skipped(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, samples.TAU_BENCH[:1]))

    assert list(reasons(transcript)) == ["file.json [0] info"]


def test_runs_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    runs = importers.read(write_document(tmp_path, samples.TAU_BENCH[:1] * 3))

    assert [run.session_id for run in runs] == [
        "task-0-trial-0",
        "task-0-trial-0~2",
        "task-0-trial-0~3",
    ]


def test_reports_entries_that_are_no_runs(tmp_path: Path) -> None:
    path = write_document(tmp_path, [samples.TAU_BENCH[0], {"task_id": 4}])

    good, bad = importers.read(path, format="tau-bench")

    assert len(good.drafts) == 6
    assert bad.drafts == ()
    assert list(reasons(bad)) == ["file.json [1]"]
