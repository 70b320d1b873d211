"""Inspect's evaluation logs in JSON: samples with messages, timed by their events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold.adapters.importers import inspect_events, inspect_messages
from refold.adapters.importers.base import (
    Origin,
    Piece,
    Transcript,
    mapping,
    number,
    sequence,
    session_name,
    text,
)
from refold.adapters.importers.chat import Message
from refold.adapters.importers.recording import Recording
from refold.adapters.importers.source import Source
from refold.adapters.importers.tau_bench import outcome

_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
_READ = frozenset(
    {
        "attachments",
        "epoch",
        "error",
        "events",
        "id",
        "limit",
        "messages",
        "model_usage",
        "scores",
        "uuid",
    }
)


class Inspect:
    """Reads each sample of a log as a session."""

    name = "inspect"

    def recognises(self, source: Source) -> bool:
        """Whether this is an evaluation's log, with samples or without."""
        log = mapping(source.document)
        return (
            isinstance(log.get("eval"), dict) and "status" in log and "version" in log
        )

    def read(self, source: Source) -> Iterator[Transcript]:
        """A transcript for each sample."""
        log = mapping(source.document)
        samples = sequence(log.get("samples"))
        if not samples:
            raise source.failed(
                "holds no samples of an Inspect evaluation: log it with samples, or "
                "name another format"
            )
        task = text(mapping(log.get("eval")).get("task"))
        for index, value in enumerate(samples):
            yield self._sample(source, f"samples[{index}]", mapping(value), task)

    def _sample(
        self, source: Source, place: str, sample: dict[str, Any], task: str | None
    ) -> Transcript:
        recording = Recording(self.name, source.name)
        attachments = inspect_messages.Attachments(mapping(sample.get("attachments")))
        timing = inspect_events.Timing(sequence(sample.get("events")))
        for index, raw in enumerate(sequence(sample.get("messages"))):
            value = mapping(attachments.resolved(raw))
            message = Message(f"{place} messages[{index}]", index, value)
            origin = timing.origin(message, task)
            recording.take(inspect_messages.found(value, timing), origin)
        end = Origin(place, ts=timing.ended, scenario=task)
        recording.take(_end(attachments.resolved(_without_log(sample))), end)
        for why in (*attachments.missing(), *timing.left_out(), *_more(sample)):
            recording.skip(why, place)
        return recording.transcript(_session(sample, task))


def _session(sample: dict[str, Any], task: str | None) -> str:
    if named := session_name(sample.get("uuid")):
        return named
    parts = (task, session_name(sample.get("id")), session_name(sample.get("epoch")))
    return session_name("-".join(parts)) if all(parts) else ""  # type: ignore[arg-type]  # all are there


def _without_log(sample: dict[str, Any]) -> dict[str, Any]:
    return {key: sample.get(key) for key in ("error", "limit", "model_usage", "scores")}


def _end(sample: Any) -> Iterator[Piece]:
    """How the sample ended: its error, then its scores."""
    error = mapping(sample.get("error"))
    if error:
        message = text(error.get("message")) or ""
        yield Piece("error", {"code": "sample_error", "message": message})
    scores = mapping(sample.get("scores"))
    if scores or error:
        values = [_value(mapping(score).get("value")) for score in scores.values()]
        kept = ("scores", "model_usage", "limit")
        fields = {
            "outcome": _outcome(values),
            "reward": values[0] if len(values) == 1 else None,
            "result": {key: sample[key] for key in kept if sample.get(key)},
        }
        yield Piece("final", fields)


def _value(value: Any) -> float | None:
    """A score as a number: a grade, or what it is."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        return _GRADES.get(value)
    return number(value)


def _outcome(values: list[float | None]) -> str:
    """The outcome that all scores from 0 to 1 agree on, else a partial one."""
    told = {outcome(value) for value in values if value is not None and 0 <= value <= 1}
    if not told:
        return "unknown"
    return told.pop() if len(told) == 1 else "partial"


def _more(sample: dict[str, Any]) -> Iterator[str]:
    more = len(sample.keys() - _READ)
    if more:
        yield f"further fields ({more}): the dataset's, and what the sample computed"
