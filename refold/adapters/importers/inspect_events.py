"""What the events of an Inspect log add to its messages: times, durations and usage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from refold.adapters.importers.base import (
    Origin,
    mapping,
    milliseconds,
    moment,
    sequence,
    text,
)
from refold.adapters.importers.chat import Message
from refold.domain.events import JsonObject

_TOLD = frozenset({"model", "tool", "score"})
_KNOWN = frozenset(
    {
        "approval",
        "compaction",
        "error",
        "info",
        "input",
        "logger",
        "sample_init",
        "sample_limit",
        "sandbox",
        "score_edit",
        "span_begin",
        "span_end",
        "state",
        "step",
        "store",
        "subtask",
    }
)


class Timing:
    """The events of one sample, found by the message or call that they made."""

    def __init__(self, events: list[Any]) -> None:
        self._answers: dict[str, dict[str, Any]] = {}
        self._calls: dict[str, list[dict[str, Any]]] = {}
        self._kinds: Counter[str] = Counter()
        self._unmatched = 0
        times = [moment(mapping(event).get("timestamp")) for event in events]
        self.started = next((when for when in times if when), None)
        self.ended = next((when for when in reversed(times) if when), None)
        self._begun = False
        for event in map(mapping, events):
            self._add(event)

    def origin(self, message: Message, task: str | None) -> Origin:
        """What the log tells of a message."""
        value = message.value
        message_id = text(value.get("id"))
        of_model = value.get("role") == "assistant"
        answer = self._answers.pop(message_id or "", {}) if of_model else {}
        return Origin(
            message.place,
            ts=self._when(value, answer),
            model=text(value.get("model")) if of_model else None,
            scenario=task,
            response_id=(message_id or f"msg:{message.index}") if of_model else None,
            usage=mapping(mapping(answer.get("output")).get("usage")) or None,
            source=_source(value),
        )

    def took(self, call_id: str) -> float | None:
        """The milliseconds of the oldest run of a call that was not asked for yet."""
        events = self._calls.get(call_id)
        if not events:
            return None
        return milliseconds(events.pop(0).get("working_time"), per_unit=1000.0)

    def left_out(self) -> Iterator[str]:
        """Say what of the events is not in the messages; ask after all messages."""
        for kind, count in sorted(self._kinds.items()):
            yield f"{kind} events ({count}): they are no messages"
        answers = len(self._answers) + self._unmatched
        if answers:
            yield f"model events ({answers}) that no message has the id of"
        calls = sum(map(len, self._calls.values()))
        if calls:
            yield f"tool events ({calls}) whose result is no message here"

    def _when(self, value: dict[str, Any], answer: dict[str, Any]) -> datetime | None:
        """When a message came; those before the first answer came as it all began."""
        role = value.get("role")
        if role == "assistant":
            self._begun = True
            return _end(answer)
        if role == "tool":
            events = self._calls.get(text(value.get("tool_call_id")) or "")
            return _end(events[0]) if events else None
        return None if self._begun else self.started

    def _add(self, event: dict[str, Any]) -> None:
        kind = text(event.get("event")) or ""
        if kind == "tool" and text(event.get("id")):
            self._calls.setdefault(event["id"], []).append(event)
        elif kind == "model":
            choices = sequence(mapping(event.get("output")).get("choices"))
            made = mapping(mapping(choices[0]).get("message")) if choices else {}
            message_id = text(made.get("id"))
            if message_id and message_id not in self._answers:
                self._answers[message_id] = event
            else:
                self._unmatched += 1
        elif kind not in _TOLD:
            self._kinds[kind if kind in _KNOWN else "other"] += 1


def _end(event: dict[str, Any]) -> datetime | None:
    return moment(event.get("completed")) or moment(event.get("timestamp"))


def _source(value: dict[str, Any]) -> JsonObject:
    return {"id": value["id"]} if text(value.get("id")) else {}
