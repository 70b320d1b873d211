"""tau-bench's result files: a list of runs, each with its messages and its reward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold.adapters.importers import base, messages, openai

NAME = "tau-bench"
_KEYS = {"task_id", "reward", "traj"}  # of a run


def recognises(source: base.Source) -> bool:
    """Whether the document is a list, not empty, that has only runs."""
    runs = base.sequence(source.document)
    return bool(runs) and all(_is_run(run) for run in runs)


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield a transcript for each run, named after its task and its trial."""
    for index, run in enumerate(base.sequence(source.document)):
        yield _run(source, f"[{index}]", base.mapping(run))


def _run(source: base.Source, place: str, run: dict[str, Any]) -> base.Transcript:
    """Return the transcript of one run; it is empty for any other value.

    place: the run's place in the list, such as "[0]".
    """
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
        recording.skip("data of the task, no message", f"{place} info")
    trial = base.session_name(run, "trial") or "0"
    return recording.transcript(base.session_name(f"task-{task}-trial-{trial}"))


def _final(run: dict[str, Any]) -> base.Piece:
    """Return the end of a run, with its reward."""
    reward = base.number(run["reward"])
    result = {key: run[key] for key in ("task_id", "trial") if key in run}
    fields = {"outcome": outcome(reward), "reward": reward, "result": result}
    return base.Piece("final", fields)


def outcome(score: float | None) -> str:
    """Return the outcome of a run with this score, which is from 0 to 1."""
    if score is None:
        return "unknown"
    if score == 1:
        return "success"
    if score == 0:
        return "failure"
    return "partial"


def _is_run(run: Any) -> bool:
    """Whether a value has the keys of a run and a list of messages."""
    fields = base.mapping(run)
    return fields.keys() >= _KEYS and isinstance(fields["traj"], list)
