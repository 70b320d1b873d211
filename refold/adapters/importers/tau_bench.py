"""tau-bench's result files: a list of runs, each with its messages and its reward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold.adapters.importers import base, messages, openai

NAME = "tau-bench"
_KEYS = {"task_id", "reward", "traj"}


def recognises(source: base.Source) -> bool:
    """Whether this is a list of runs and nothing else."""
    runs = base.sequence(source.document)
    return bool(runs) and all(_is_run(run) for run in runs)


def read(source: base.Source) -> Iterator[base.Transcript]:
    """A transcript for each run, named after its task and its trial."""
    for index, run in enumerate(base.sequence(source.document)):
        yield _run(source, f"[{index}]", base.mapping(run))


def _run(source: base.Source, place: str, run: dict[str, Any]) -> base.Transcript:
    recording = base.Recording(NAME, source.name)
    if not _is_run(run):
        recording.skip("not a run: no task_id, reward and traj", place)
        return recording.transcript("")
    task = base.session_name(run["task_id"])
    origin = base.Origin(place, scenario=f"task-{task}" if task else None)
    chat = messages.numbered(run["traj"], f"{place} ", "traj")
    openai.record(recording, chat, origin)
    recording.take([_final(run)], origin)
    if run.get("info"):
        why = "data of the task, no message"
        recording.skip(why, f"{place} info")
    trial = base.session_name(run, "trial") or "0"
    return recording.transcript(base.session_name(f"task-{task}-trial-{trial}"))


def _final(run: dict[str, Any]) -> base.Piece:
    reward = base.number(run["reward"])
    result = {key: run[key] for key in ("task_id", "trial") if key in run}
    ended = {"outcome": outcome(reward), "reward": reward, "result": result}
    return base.Piece("final", ended)


def outcome(score: float | None) -> str:
    """What a score from 0 to 1 says of a run."""
    if score is None:
        return "unknown"
    return "success" if score == 1 else "partial" if score else "failure"


def _is_run(run: Any) -> bool:
    found = base.mapping(run)
    return found.keys() >= _KEYS and isinstance(found["traj"], list)
