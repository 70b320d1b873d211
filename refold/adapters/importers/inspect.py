"""Inspect's evaluation logs in JSON: samples of messages, with times from events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from refold.adapters.importers import base, decisions, messages
from refold.adapters.importers.messages import Message
from refold.adapters.importers.openai import attachment_at
from refold.adapters.importers.tau_bench import outcome
from refold.domain.errors import counted
from refold.domain.events import JsonObject

NAME = "inspect"
# The kinds of events that are imported.
_IMPORTED = frozenset({"approval", "model", "tool", "score"})
_APPROVALS = {"approve": decisions.APPROVED, "reject": decisions.REJECTED}
# The other kinds that Inspect writes.  A report names no kind but these, because the
# name may be content.
_OTHER_KINDS = frozenset(
    {
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
    """The events of one sample, by the message or call that they belong to."""

    def __init__(self, events: list[Any]) -> None:
        # The model events by the id of their message, then the events of tools and of
        # approvals by the id of their call.
        self._answers: dict[str, dict[str, Any]] = {}
        self._calls: dict[str, list[dict[str, Any]]] = {}
        self._approvals: dict[str, list[dict[str, Any]]] = {}
        # The number of events of each kind that is not imported.
        self._other_kinds: Counter[str] = Counter()
        # The number of model events without the id of a message, or with a repeated id.
        self._unmatched_answers = 0
        times = [base.moment(event, "timestamp") for event in events]
        self.started_at = next(filter(None, times), None)
        self.ended_at = next(filter(None, reversed(times)), None)
        # Whether a model has answered.
        self._has_begun = False
        for event in map(base.mapping, events):
            self._add(event)

    def origin(self, message: Message, task: str | None) -> base.Origin:
        """Return the origin of a message, with its time and usage from the events.

        Call it for the messages in their order.  It uses up the model event of an
        answer.
        """
        value = message.value
        if not message.of_model:
            return base.Origin(
                message.place,
                ts=self._time(value, {}),
                scenario=task,
                source=message.source,
            )
        answer = self._answers.pop(base.text(value, "id") or "", {})
        return base.Origin(
            message.place,
            ts=self._time(value, answer),
            model=base.text(value, "model"),
            scenario=task,
            response_id=message.response_id,
            usage=base.mapping(answer, "output", "usage") or None,
            source=message.source,
        )

    def pop_duration(self, call_id: str) -> float | None:
        """Remove the oldest run of a call; return its duration in milliseconds."""
        runs = self._calls.get(call_id)
        event = runs.pop(0) if runs else None
        return base.milliseconds(event, "working_time", per_unit=1000.0)

    def approvals(self, call_id: Any) -> Iterator[base.Piece]:
        """Yield the decisions on a call, by people and by policies."""
        for event in self._approvals.pop(str(call_id), []):
            choice = base.text(event, "decision") or ""
            yield decisions.decision(
                decisions.TOOL,
                _APPROVALS.get(choice, choice),
                call_id=call_id,
                by=base.text(event, "approver") or "",
                reason=base.text(event, "explanation") or "",
            )

    def left_out(self) -> Iterator[str]:
        """Yield reports of events without a message; call it after all messages."""
        for kind, count in sorted(self._other_kinds.items()):
            yield f"{counted(count, f'{kind} event')}: no message"
        answers = len(self._answers) + self._unmatched_answers
        if answers:
            yield f"{counted(answers, 'model event')} without a message of that id"
        calls = sum(map(len, self._calls.values()))
        if calls:
            yield f"{counted(calls, 'tool event')} whose result is not a message here"
        approvals = sum(map(len, self._approvals.values()))
        if approvals:
            approval_events = counted(approvals, "approval event")
            yield f"{approval_events} whose call is in no message here"

    def _time(self, value: dict[str, Any], answer: dict[str, Any]) -> datetime | None:
        """Return the time of a message, None if no event tells it.

        Messages before the first answer have the time at which the sample started.

        answer: the model event of the message; empty if there is none.
        """
        role = value.get("role")
        if role == "assistant":
            self._has_begun = True
            return _end_of(answer)
        if role == "tool":
            events = self._calls.get(base.text(value, "tool_call_id") or "")
            return _end_of(events[0]) if events else None
        return None if self._has_begun else self.started_at

    def _add(self, event: dict[str, Any]) -> None:
        """Keep an event for its message or call, or count it."""
        kind = base.text(event, "event") or ""
        if kind == "tool" and base.text(event, "id"):
            self._calls.setdefault(event["id"], []).append(event)
        elif kind == "approval":
            call_id = base.text(event, "call", "id") or ""
            self._approvals.setdefault(call_id, []).append(event)
        elif kind == "model":
            choice = next(base.each(event, "output", "choices"), None)
            message_id = base.text(choice, "message", "id")
            if message_id and message_id not in self._answers:
                self._answers[message_id] = event
            else:
                self._unmatched_answers += 1
        elif kind in _OTHER_KINDS:
            self._other_kinds[kind] += 1
        elif kind not in _IMPORTED:
            self._other_kinds["other"] += 1


def _end_of(event: dict[str, Any]) -> datetime | None:
    """Return the time at which an event ended, else the time at which it was logged."""
    return base.moment(event, "completed") or base.moment(event, "timestamp")


_REFERENCES = ("attachment://", "tc://")
# The kind of the attachment for each type of a part that has a file.
_KINDS = {"image": "image", "document": "document", "audio": "file", "video": "file"}
# The types of parts that belong to a response; all others are the provider's.
_RESPONSE_TYPES = frozenset({"text", "reasoning"})


def _resolved(value: Any, texts: dict[str, Any], missing: list[str]) -> Any:
    """Return ``value`` with the texts of its references to attachments.

    texts:   the attachments of the sample, by the digest that a reference names.
    missing: receives the references without a text, which stay in the value.
    """
    if isinstance(value, str) and value.startswith(_REFERENCES):
        text = texts.get(value.partition("://")[2])
        if isinstance(text, str):
            return text
        missing.append(value)
    if isinstance(value, dict):
        return {key: _resolved(item, texts, missing) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, texts, missing) for item in value]
    return value


def pieces_of(message: dict[str, Any], timing: Timing) -> Iterator[base.PieceOrSkipped]:
    """Yield the events of one message."""
    content = message.get("content")
    match message.get("role"):
        case "system":
            yield messages.system_message(content)
        case "user":
            parts = [*enumerate(messages.parts(content))]
            why = "part that is neither text nor file"
            yield from messages.user_parts(parts, messages.text_of, _file, why)
        case "assistant":
            yield from _assistant(message)
            for call in base.each(message, "tool_calls"):
                yield from timing.approvals(call.get("id"))
        case "tool":
            yield _result(message, timing)
        case role:
            yield messages.unknown_role(role)


def _assistant(message: dict[str, Any]) -> Iterator[base.PieceOrSkipped]:
    """Yield the responses, blocks of the provider, and calls of an answer."""
    content = message.get("content")
    pieces: list[base.PieceOrSkipped] = [*messages.unreadable(content)]
    for is_response, run in messages.runs(messages.parts(content), _is_response):
        if is_response:
            pieces += _response(run)
        else:
            # The provider did this by itself, such as a search.
            pieces += messages.provider_blocks(run)
    for index, call in enumerate(base.each(message, "tool_calls")):
        piece = messages.tool_call(
            call.get("id"), call.get("function"), call.get("arguments")
        )
        pieces.append(base.placed(piece, f"tool_calls[{index}]"))
    yield from pieces or [messages.EMPTY]


def _response(run: list[tuple[int, Any]]) -> Iterator[base.PieceOrSkipped]:
    """Yield the response that successive parts make, and the citations left out.

    run: the parts, each with its index in the message's content.
    """
    texts: list[str] = []
    thinking: list[JsonObject] = []
    for _, part in run:
        text = messages.text_of(part)
        if text is not None:
            texts.append(text)
        if base.at(part, "type") == "reasoning":
            thinking.append(_thinking_block(part))
    yield from messages.response(texts, thinking)
    for index, part in run:
        if base.sequence(part, "citations"):
            yield base.Skipped(f"content[{index}]", messages.CITATIONS)


def _result(message: dict[str, Any], timing: Timing) -> base.PieceOrSkipped:
    """Return the result of a call.

    If the message has an error and a different content, the result has both.
    """
    call_id = base.text(message, "tool_call_id")
    if call_id is None:
        return messages.NO_CALL
    error = base.mapping(message, "error")
    content = message.get("content")
    reason = base.text(error, "message")
    if reason and not content:
        content = reason
    elif reason and content != reason:
        content = {"error": reason, "content": content}
    duration_ms = timing.pop_duration(call_id)
    failed = bool(error)
    return messages.tool_result(call_id, content, failed=failed, took=duration_ms)


def _thinking_block(part: dict[str, Any]) -> JsonObject:
    """Return a part with reasoning as a block of Anthropic's API."""
    reasoning = base.text(part, "reasoning") or ""
    if part.get("redacted") is True:
        return {"type": "redacted_thinking", "data": reasoning}
    signature = base.text(part, "signature")
    return {"type": "thinking", "thinking": reasoning, "signature": signature}


def _file(part: dict[str, Any]) -> JsonObject | None:
    """Return the attachment of a part, None for a part without a file."""
    part_type = base.text(part, "type") or ""
    # The field with the file has the name of the part's type.
    url = base.text(part, part_type)
    if part_type not in _KINDS or url is None:
        return None
    return attachment_at(_KINDS[part_type], url, base.text(part, "filename"))


def _is_response(part: Any) -> bool:
    """Whether a part belongs to a response of the model."""
    return isinstance(part, str) or base.text(part, "type") in _RESPONSE_TYPES


# The scores of Inspect's grades: correct, incorrect, partly correct, no answer.
_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
# The fields of a sample that its end is made of.
_END_FIELDS = ("error", "limit", "model_usage", "scores")
_READ = {*_END_FIELDS, "attachments", "epoch", "events", "id", "messages", "uuid"}


def recognises(source: base.Source) -> bool:
    """Whether this is the log of an evaluation; it may have no samples."""
    log = base.mapping(source.document)
    return isinstance(log.get("eval"), dict) and log.keys() >= {"status", "version"}


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield a transcript for each sample."""
    log = base.mapping(source.document)
    samples = base.sequence(log, "samples")
    if not samples:
        raise source.failed(
            "holds no samples of an Inspect evaluation: log it with samples, or "
            "name another --format"
        )
    task = base.text(log, "eval", "task")
    for index, value in enumerate(samples):
        yield _sample(source, f"samples[{index}]", base.mapping(value), task)


def _sample(
    source: base.Source, place: str, sample: dict[str, Any], task: str | None
) -> base.Transcript:
    """Return the transcript of one sample.

    place: the sample's place in the log, such as "samples[0]".
    task:  the name of the evaluation's task.
    """
    recording = base.Recording(NAME, source.name)
    texts = base.mapping(sample, "attachments")
    missing: list[str] = []
    fields = {key: sample.get(key) for key in ("messages", *_END_FIELDS)}
    resolved = _resolved(fields, texts, missing)
    timing = Timing(base.sequence(sample, "events"))
    chat = base.sequence(resolved, "messages")
    for message in messages.numbered(chat, f"{place} "):
        origin = timing.origin(message, task)
        recording.take(pieces_of(message.value, timing), origin)
    recording.take(
        _end(resolved), base.Origin(place, ts=timing.ended_at, scenario=task)
    )
    if missing:
        references = counted(len(missing), "reference")
        recording.skip(f"{references} to attachments that are not in the log", place)
    for report in timing.left_out():
        recording.skip(report, place)
    unread = sorted(sample.keys() - _READ)
    if unread:
        report = f"fields of the sample: {base.field_names(unread)}"
        recording.skip(report, place, note=True)
    return recording.transcript(_session_name(sample, task))


def _session_name(sample: dict[str, Any], task: str | None) -> str:
    """Return the session's name: the sample's UUID, else task, id, and epoch.

    The name is empty if one of them is missing.
    """
    uuid = base.session_name(sample, "uuid")
    if uuid:
        return uuid
    sample_id = base.session_name(sample, "id")
    epoch = base.session_name(sample, "epoch")
    if not (task and sample_id and epoch):
        return ""
    return base.session_name(f"{task}-{sample_id}-{epoch}")


def _end(sample: Any) -> Iterator[base.Piece]:
    """Yield the end of a sample: its error, then its scores."""
    error = base.mapping(sample, "error")
    if error:
        message = base.text(error, "message") or ""
        yield base.Piece("error", {"code": "sample_error", "message": message})
    scores = base.mapping(sample, "scores")
    if scores or error:
        values = [_score(base.at(score, "value")) for score in scores.values()]
        result_fields = ("scores", "model_usage", "limit")
        fields = {
            "outcome": _joint_outcome(values),
            "reward": values[0] if len(values) == 1 else None,
            "result": {key: sample[key] for key in result_fields if sample.get(key)},
        }
        yield base.Piece("final", fields)


def _joint_outcome(scores: list[float | None]) -> str:
    """Return the outcome that all scores agree on, "partial" if they differ.

    Scores outside 0 to 1 have no outcome.  Without scores it is "unknown".
    """
    outcomes = {
        outcome(score) for score in scores if score is not None and 0 <= score <= 1
    }
    if not outcomes:
        return "unknown"
    if len(outcomes) > 1:
        return "partial"
    return outcomes.pop()


def _score(value: Any) -> float | None:
    """Return a score as a number, also that of a grade; None if it is neither."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        return _GRADES.get(value)
    return base.number(value)
