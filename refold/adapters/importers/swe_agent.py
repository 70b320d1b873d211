"""SWE-agent's trajectories: the history of the context, with durations from steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold.adapters.importers import base, messages, openai
from refold.adapters.importers.messages import Message
from refold.domain.ids import unknown_response_id

NAME = "swe-agent"
# The types of messages that are no observation of a tool call.
_NO_OBSERVATION = frozenset({"thought", "action", "demonstration", "system_prompt"})
_READ = frozenset({"history", "info"})  # fields of a run
_RESULT = ("exit_status", "submission", "model_stats")  # fields of ``info``


def recognises(source: base.Source) -> bool:
    """Whether this is a history with steps, or a history of messages with types."""
    run = base.mapping(source.document)
    if isinstance(run.get("trajectory"), list):
        return isinstance(run.get("history"), list)
    history = [*base.each(run, "history")]
    have_roles = all(base.text(message, "role") for message in history)
    return have_roles and any("message_type" in message for message in history)


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield the run as one transcript."""
    run = base.mapping(source.document)
    if not isinstance(run.get("history"), list):
        raise source.failed("is not an SWE-agent trajectory: it has no history")
    recording = base.Recording(NAME, source.name)
    history = _History(recording, base.sequence(run, "trajectory"))
    for message in messages.numbered(run["history"], name="history"):
        history.add(message)
    info = base.mapping(run, "info")
    recording.take(_final(info), base.Origin("info"))
    unread = sorted(run.keys() - _READ)
    unread += [f"info.{name}" for name in sorted(info.keys() - set(_RESULT))]
    if unread:
        report = f"fields around the history: {base.field_names(unread)}"
        recording.skip(report, note=True)
    yield recording.transcript("")


class _History:
    """Reads the messages of a run.

    steps: the steps of the trajectory, which have the durations of the actions.
    """

    def __init__(self, recording: base.Recording, steps: list[Any]) -> None:
        self._recording = recording
        self._steps = iter(steps)
        self._calls = openai.UnnamedCalls()
        # The milliseconds that calls took, by the id of the call.
        self._durations: dict[str, float] = {}

    def add(self, message: Message) -> None:
        """Record the events of a message."""
        origin = base.Origin(message.place)
        if message.of_model:
            agent = base.text(message.value, "agent")
            response_id = unknown_response_id(message.index)
            origin = base.Origin(message.place, agent=agent, response_id=response_id)
        self._recording.take(self._pieces(message), origin)

    def _pieces(self, message: Message) -> Iterator[base.PieceOrSkipped]:
        """Yield the events of a message."""
        value = message.value
        observed = self._observed_calls(value)
        if value.get("is_demo"):
            yield base.Skipped("", "demonstration from another run")
        elif message.of_model:
            yield from self._assistant(message)
        elif observed:
            # Of several calls with one observation, the first has its text.
            for index, call_id in enumerate(observed):
                duration_ms = self._durations.pop(call_id, None)
                content = value.get("content") if index == 0 else ""
                yield messages.tool_result(call_id, content, took=duration_ms)
        else:
            yield from openai.pieces_of(message, self._calls)

    def _assistant(self, message: Message) -> Iterator[base.PieceOrSkipped]:
        """Yield a thought and its action.

        An answer without tool calls has its action in the text.  Its call has the tool
        name "action" and an id that is made of the message's index.
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
            self._keep_duration(calls, action)
        texts = messages.only_texts(response)
        if texts is None and response is not None:
            yield base.Skipped("", "content that is not text alone")
        blocks = base.each(value, "thinking_blocks")
        thinking = [
            messages.thinking_of(block) for block in blocks if base.text(block, "type")
        ]
        pieces = [*messages.response(texts or [], thinking), *calls]
        yield from pieces or [messages.EMPTY]

    def _keep_duration(self, calls: list[base.PieceOrSkipped], action: str) -> None:
        """Keep the duration of the only call of an action, from the next step.

        If the next step has another action, no later step is used either.
        """
        step = base.mapping(next(self._steps, None))
        if step.get("action") != action:
            # From here on, the steps do not match the history.
            self._steps = iter(())
            return
        duration_ms = base.milliseconds(step, "execution_time", per_unit=1000.0)
        ids = [call.fields["call_id"] for call in calls if isinstance(call, base.Piece)]
        if duration_ms is not None and len(ids) == 1:
            self._durations[str(ids[0])] = duration_ms

    def _observed_calls(self, value: dict[str, Any]) -> list[str]:
        """Return the ids of the calls whose observation a message is.

        A message that names no call is the observation of the only call without a
        result.  If there are several such calls, it is no observation.
        """
        waiting = list(self._recording.waiting)
        only_call = waiting if len(waiting) == 1 else []
        if value.get("role") == "tool":
            ids = [*base.sequence(value, "tool_call_ids"), value.get("tool_call_id")]
            named_calls = [call_id for call_id in map(base.text, ids) if call_id]
            return named_calls or only_call
        is_observation = base.text(value, "message_type") not in _NO_OBSERVATION
        if value.get("role") == "user" and is_observation:
            return only_call
        return []


def _final(info: dict[str, Any]) -> Iterator[base.Piece]:
    """Yield the end of the run, if it has ended.

    The outcome is "unknown" for a run that submitted a solution, which nothing here
    judges, and "failure" for any other run.
    """
    result = {key: info[key] for key in _RESULT if info.get(key) is not None}
    status = base.text(info, "exit_status")
    submission = base.text(info, "submission")
    if status is None and submission is None:
        return
    submitted = submission is not None or str(status).startswith("submitted")
    outcome = "unknown" if submitted else "failure"
    yield base.Piece("final", {"outcome": outcome, "result": result})
