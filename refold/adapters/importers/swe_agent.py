"""SWE-agent's trajectories: the history of the context, with durations from steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold.adapters.importers import base, messages, openai
from refold.adapters.importers.messages import Message

NAME = "swe-agent"
# The types of messages that are no observation of a tool call.
_NO_OBSERVATION = frozenset({"thought", "action", "demonstration", "system_prompt"})
_READ = frozenset({"history", "info"})
_RESULT = ("exit_status", "submission", "model_stats")


def recognises(source: base.Source) -> bool:
    """Whether this is a history with its steps, or one of messages with types."""
    run = base.mapping(source.document)
    if isinstance(run.get("trajectory"), list):
        return isinstance(run.get("history"), list)
    history = [*base.each(run, "history")]
    have_roles = all(base.text(message, "role") for message in history)
    return have_roles and any("message_type" in message for message in history)


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield the run as one transcript.

    Its actions are tool calls, or stand in the text of the responses.
    """
    run = base.mapping(source.document)
    if not isinstance(run.get("history"), list):
        raise source.failed("is not an SWE-agent trajectory: it has no history")
    recording = base.Recording(NAME, source.name)
    history = _History(recording, base.sequence(run, "trajectory"))
    for message in messages.numbered(run["history"], name="history"):
        history.add(message)
    info = base.mapping(run, "info")
    recording.take(_final(info), base.Origin("info"))
    fields = sorted(run.keys() - _READ)
    fields += [f"info.{name}" for name in sorted(info.keys() - set(_RESULT))]
    if fields:
        why = f"fields around the history: {base.field_names(fields)}"
        recording.skip(why, note=True)
    yield recording.transcript("")


class _History:
    """Reads the messages of a run.

    steps: the steps of the trajectory, which have the durations of the actions.
    """

    def __init__(self, recording: base.Recording, steps: list[Any]) -> None:
        self._recording = recording
        self._steps = iter(steps)
        self._calls = openai.UnnamedCalls()
        self._durations: dict[str, float] = {}

    def add(self, message: Message) -> None:
        """Record the events of a message."""
        origin = base.Origin(message.place)
        if message.of_model:
            agent = base.text(message.value, "agent")
            response_id = f"msg:{message.index}"
            origin = base.Origin(message.place, agent=agent, response_id=response_id)
        self._recording.take(self._pieces(message), origin)

    def _pieces(self, message: Message) -> Iterator[base.PieceOrSkipped]:
        value = message.value
        observed = self._observed_calls(value)
        if value.get("is_demo"):
            yield base.Skipped("", "demonstration from another run")
        elif message.of_model:
            yield from self._assistant(message)
        elif observed:
            # Of several calls with one observation, the first has its text.
            for index, call_id in enumerate(observed):
                took = self._durations.pop(call_id, None)
                content = "" if index else value.get("content")
                yield messages.tool_result(call_id, content, took=took)
        else:
            yield from openai.pieces_of(message, self._calls)

    def _assistant(self, message: Message) -> Iterator[base.PieceOrSkipped]:
        """Yield a thought and its action.

        Without tool calls, the action is in the text; a call is made of it.
        """
        value = message.value
        action = value.get("action")
        content = value.get("content")
        calls = list(openai.tool_calls(message, self._calls))
        response = content
        if not calls and base.text(action):
            call_id = f"action:{message.index}"
            calls = [messages.tool_call(call_id, "action", {"command": action})]
            response = base.text(value, "thought") or content
        if isinstance(action, str):
            self._time(calls, action)
        texts = messages.only_texts(response)
        if texts is None and response is not None:
            yield base.Skipped("", "content that is not text alone")
        blocks = base.each(value, "thinking_blocks")
        thinking = [messages.thinking_of(b) for b in blocks if base.text(b, "type")]
        pieces = [*messages.response(texts or [], thinking), *calls]
        yield from pieces or [messages.EMPTY]

    def _time(self, calls: list[base.PieceOrSkipped], action: str) -> None:
        """Keep the duration of an action that is a single call and the next step."""
        step = base.mapping(next(self._steps, None))
        if step.get("action") != action:
            # From here on, the steps do not match the history.
            self._steps = iter(())
            return
        took = base.milliseconds(step, "execution_time", per_unit=1000.0)
        ids = [call.fields["call_id"] for call in calls if isinstance(call, base.Piece)]
        if took is not None and len(ids) == 1:
            self._durations[str(ids[0])] = took

    def _observed_calls(self, value: dict[str, Any]) -> list[str]:
        """The ids of the calls whose observation a message is.

        A message that names no call observes the only call without a result.
        """
        waiting = list(self._recording.waiting)
        only_call = waiting if len(waiting) == 1 else []
        if value.get("role") == "tool":
            ids = [*base.sequence(value, "tool_call_ids"), value.get("tool_call_id")]
            return [call_id for call_id in map(base.text, ids) if call_id] or only_call
        is_observation = base.text(value, "message_type") not in _NO_OBSERVATION
        if value.get("role") == "user" and is_observation:
            return only_call
        return []


def _final(info: dict[str, Any]) -> Iterator[base.Piece]:
    """Yield the end of the run, if it has ended.

    The outcome of a run that submitted something is unknown.
    """
    result = {key: info[key] for key in _RESULT if info.get(key) is not None}
    status = base.text(info, "exit_status")
    submission = base.text(info, "submission")
    if status is None and submission is None:
        return
    submitted = submission is not None or str(status).startswith("submitted")
    outcome = "unknown" if submitted else "failure"
    yield base.Piece("final", {"outcome": outcome, "result": result})
