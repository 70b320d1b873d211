"""SWE-agent's trajectories: the history of the model's context, timed by the steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold.adapters.importers import base, messages, openai
from refold.adapters.importers.messages import Message

NAME = "swe-agent"
_NOT_OBSERVED = frozenset({"thought", "action", "demonstration", "system_prompt"})
_TOLD = frozenset({"history", "info"})
_RESULT = ("exit_status", "submission", "model_stats")


def recognises(source: base.Source) -> bool:
    """Whether this is a history with its steps, or of messages with a kind."""
    run = base.mapping(source.document)
    if isinstance(run.get("trajectory"), list):
        return isinstance(run.get("history"), list)
    messages = [*base.each(run, "history")]
    roles = all(base.text(message, "role") for message in messages)
    return roles and any("message_type" in message for message in messages)


def read(source: base.Source) -> Iterator[base.Transcript]:
    """The run as one transcript, of tool calls or of actions in the text."""
    run = base.mapping(source.document)
    if not isinstance(run.get("history"), list):
        raise source.failed("is not an SWE-agent trajectory: it has no history")
    recording = base.Recording(NAME, source.name)
    reading = _History(recording, base.sequence(run, "trajectory"))
    for message in messages.numbered(run["history"], name="history"):
        reading.message(message)
    info = base.mapping(run, "info")
    recording.take(_final(info), base.Origin("info"))
    fields = sorted(run.keys() - _TOLD)
    fields += [f"info.{name}" for name in sorted(info.keys() - set(_RESULT))]
    if fields:
        why = f"fields around the history: {base.field_names(fields)}"
        recording.skip(why, note=True)
    yield recording.transcript("")


class _History:
    def __init__(self, recording: base.Recording, steps: list[Any]) -> None:
        self._recording, self._steps = recording, iter(steps)
        self._calls = openai.UnnamedCalls()
        self._durations: dict[str, float] = {}

    def message(self, message: Message) -> None:
        origin = base.Origin(message.place)
        if message.of_model:
            agent = base.text(message.value, "agent")
            response_id = f"msg:{message.index}"
            origin = base.Origin(message.place, agent=agent, response_id=response_id)
        self._recording.take(self._found(message), origin)

    def _found(self, message: Message) -> Iterator[base.Found]:
        value = message.value
        if value.get("is_demo"):
            yield base.Skipped("", "demonstration from another run")
        elif message.of_model:
            yield from self._assistant(message)
        elif ids := self._answered(value):
            # Of several calls made together, the first has the text.
            for index, call_id in enumerate(ids):
                took = self._durations.pop(call_id, None)
                content = "" if index else value.get("content")
                yield messages.returned(call_id, content, took=took)
        else:
            yield from openai.found(message, self._calls)

    def _assistant(self, message: Message) -> Iterator[base.Found]:
        """A thought and its action; without tool calls the action is in the text."""
        value = message.value
        action, content = value.get("action"), value.get("content")
        calls = list(openai.called(message, self._calls))
        spoken = content
        if not calls and base.text(action):
            call_id = f"action:{message.index}"
            calls = [messages.called(call_id, "action", {"command": action})]
            spoken = base.text(value, "thought") or content
        if isinstance(action, str):
            self._time(calls, action)
        texts = messages.plain(spoken)
        if texts is None and spoken is not None:
            yield base.Skipped("", "content that is not text alone")
        blocks = base.each(value, "thinking_blocks")
        thinking = [messages.thinking_of(b) for b in blocks if base.text(b, "type")]
        made = [*messages.answered(texts or [], thinking), *calls]
        yield from made or [messages.EMPTY]

    def _time(self, calls: list[base.Found], action: str) -> None:
        """Keep how long an action took: if it is a single call, and the next step."""
        step = base.mapping(next(self._steps, None))
        if step.get("action") != action:
            self._steps = iter(())  # steps and history do not agree any more
            return
        took = base.milliseconds(step, "execution_time", per_unit=1000.0)
        ids = [call.fields["call_id"] for call in calls if isinstance(call, base.Piece)]
        if took is not None and len(ids) == 1:
            self._durations[str(ids[0])] = took

    def _answered(self, value: dict[str, Any]) -> list[str]:
        """The calls that a message is the observation of."""
        waiting = self._recording.waiting
        if value.get("role") == "tool":
            named = *base.sequence(value, "tool_call_ids"), value.get("tool_call_id")
            ids = [call for call in map(base.text, named) if call]
            return ids or list(waiting if len(waiting) == 1 else ())
        observed = base.text(value, "message_type") not in _NOT_OBSERVED
        is_reply = value.get("role") == "user" and observed and len(waiting) == 1
        return list(waiting) if is_reply else []


def _final(info: dict[str, Any]) -> Iterator[base.Piece]:
    """How the run ended, if it has; whether what it submitted is right is not told."""
    result = {key: info[key] for key in _RESULT if info.get(key) is not None}
    status, submission = (base.text(info, x) for x in _RESULT[:2])
    if status is None and submission is None:
        return
    submitted = submission is not None or str(status).startswith("submitted")
    outcome = "unknown" if submitted else "failure"
    yield base.Piece("final", {"outcome": outcome, "result": result})
