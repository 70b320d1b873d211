"""Inspect's evaluation logs in JSON: samples with messages, timed by their events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from refold.adapters.importers import base, decisions, messages
from refold.adapters.importers.messages import Message
from refold.adapters.importers.openai import located
from refold.adapters.importers.tau_bench import outcome
from refold.domain.errors import counted
from refold.domain.events import JsonObject

NAME = "inspect"
_TOLD = frozenset({"approval", "model", "tool", "score"})
_APPROVALS = {"approve": decisions.APPROVED, "reject": decisions.REJECTED}
# Of the rest of an evaluation; a log may name others, which are not repeated.
_RUN = {"compaction", "error", "info", "input", "logger", "sandbox"}
_SAMPLE = {"sample_init", "sample_limit", "score_edit", "state", "store", "subtask"}
_KNOWN = frozenset(_RUN | _SAMPLE | {"span_begin", "span_end", "step"})


class Timing:
    """The events of one sample, found by the message or call that they made."""

    def __init__(self, events: list[Any]) -> None:
        self._answers: dict[str, dict[str, Any]] = {}
        self._calls: dict[str, list[dict[str, Any]]] = {}
        self._approvals: dict[str, list[dict[str, Any]]] = {}
        self._kinds: Counter[str] = Counter()
        self._unmatched = 0
        times = [base.moment(event, "timestamp") for event in events]
        self.started = next(filter(None, times), None)
        self.ended = next(filter(None, reversed(times)), None)
        self._begun = False
        for event in map(base.mapping, events):
            self._add(event)

    def origin(self, message: Message, task: str | None) -> base.Origin:
        """What the log tells of a message."""
        value, of_model = message.value, message.of_model
        answer = self._answers.pop(base.text(value, "id") or "", {}) if of_model else {}
        return base.Origin(
            message.place,
            ts=self._when(value, answer),
            model=base.text(value, "model") if of_model else None,
            scenario=task,
            response_id=message.response_id if of_model else None,
            usage=base.mapping(answer, "output", "usage") or None,
            source=message.source,
        )

    def took(self, call_id: str) -> float | None:
        """The milliseconds of the oldest run of a call that was not asked for yet."""
        event = events.pop(0) if (events := self._calls.get(call_id)) else None
        return base.milliseconds(event, "working_time", per_unit=1000.0)

    def approvals(self, call_id: Any) -> Iterator[base.Piece]:
        """The decisions on a call, of a person or of a policy."""
        for event in self._approvals.pop(str(call_id), []):
            answer = base.text(event, "decision") or ""
            yield decisions.decision(
                decisions.TOOL,
                _APPROVALS.get(answer, answer),
                call_id=call_id,
                by=base.text(event, "approver") or "",
                reason=base.text(event, "explanation") or "",
            )

    def left_out(self) -> Iterator[str]:
        """Say what of the events is not in the messages; ask after all messages."""
        for kind, count in sorted(self._kinds.items()):
            yield f"{counted(count, f'{kind} event')}: no message"
        if answers := len(self._answers) + self._unmatched:
            yield f"{counted(answers, 'model event')} without a message of that id"
        if calls := sum(map(len, self._calls.values())):
            yield f"{counted(calls, 'tool event')} whose result is no message here"
        if approvals := sum(map(len, self._approvals.values())):
            why = "whose call is in no message here"
            yield f"{counted(approvals, 'approval event')} {why}"

    def _when(self, value: dict[str, Any], answer: dict[str, Any]) -> datetime | None:
        """When a message came; those before the first answer came as it all began."""
        role = value.get("role")
        if role == "assistant":
            self._begun = True
            return _end_of(answer)
        if role == "tool":
            events = self._calls.get(base.text(value, "tool_call_id") or "")
            return _end_of(events[0]) if events else None
        return None if self._begun else self.started

    def _add(self, event: dict[str, Any]) -> None:
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
                self._unmatched += 1
        elif kind not in _TOLD:
            self._kinds[kind if kind in _KNOWN else "other"] += 1


def _end_of(event: dict[str, Any]) -> datetime | None:
    return base.moment(event, "completed") or base.moment(event, "timestamp")


_REFERENCES = ("attachment://", "tc://")
_KINDS = {"image": "image", "document": "document", "audio": "file", "video": "file"}
_OURS = frozenset({"text", "reasoning"})


def _resolved(value: Any, texts: dict[str, Any], lost: list[str]) -> Any:
    """``value`` with the texts it refers to; a reference that is ``lost`` stays."""
    if isinstance(value, str) and value.startswith(_REFERENCES):
        found = texts.get(value.partition("://")[2])
        if isinstance(found, str):
            return found
        lost.append(value)
    if isinstance(value, dict):
        return {key: _resolved(item, texts, lost) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, texts, lost) for item in value]
    return value


def found(message: dict[str, Any], timing: Timing) -> Iterator[base.Found]:
    """The events of one message."""
    content = message.get("content")
    match message.get("role"):
        case "system":
            yield messages.system_message(content)
        case "user":
            parts = [*enumerate(messages.parts(content))]
            why = "part that is neither text nor file"
            yield from messages.heard(parts, messages.words, _file, why)
        case "assistant":
            yield from _assistant(message)
            for call in base.each(message, "tool_calls"):
                yield from timing.approvals(call.get("id"))
        case "tool":
            yield _result(message, timing)
        case role:
            yield messages.of_no_role(role)


def _assistant(message: dict[str, Any]) -> Iterator[base.Found]:
    content = message.get("content")
    made: list[base.Found] = [*messages.unreadable(content)]
    for is_ours, run in messages.runs(messages.parts(content), _is_ours):
        # What is not ours the provider did by itself, such as a search.
        made += _response(run) if is_ours else messages.provider(run)
    for index, call in enumerate(base.each(message, "tool_calls")):
        given = call.get("id"), call.get("function"), call.get("arguments")
        made.append(base.placed(messages.called(*given), f"tool_calls[{index}]"))
    yield from made or [messages.EMPTY]


def _response(run: list[tuple[int, Any]]) -> Iterator[base.Found]:
    parts = [part for _, part in run]
    texts = [told for part in parts if (told := messages.words(part)) is not None]
    thinking = [_thought(p) for p in parts if base.at(p, "type") == "reasoning"]
    yield from messages.answered(texts, thinking)
    for index, part in run:
        if base.sequence(part, "citations"):
            yield base.Skipped(f"content[{index}]", messages.CITATIONS)


def _result(message: dict[str, Any], timing: Timing) -> base.Found:
    call_id = base.text(message, "tool_call_id")
    if call_id is None:
        return messages.NO_CALL
    error, content = base.mapping(message, "error"), message.get("content")
    failure = base.text(error, "message")
    if failure and content != failure:  # what was returned and why it failed, as told
        content = {"error": failure, "content": content} if content else failure
    took = timing.took(call_id)
    return messages.returned(call_id, content, failed=bool(error), took=took)


def _thought(part: dict[str, Any]) -> JsonObject:
    reasoning = base.text(part, "reasoning") or ""
    if part.get("redacted") is True:
        return {"type": "redacted_thinking", "data": reasoning}
    signature = base.text(part, "signature")
    return {"type": "thinking", "thinking": reasoning, "signature": signature}


def _file(part: dict[str, Any]) -> JsonObject | None:
    kind = base.text(part, "type") or ""
    url = base.text(part, kind)
    if kind not in _KINDS or url is None:
        return None
    return located(_KINDS[kind], url, base.text(part, "filename"))


def _is_ours(part: Any) -> bool:
    return isinstance(part, str) or base.text(part, "type") in _OURS


_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
_TAKEN = ("error", "limit", "model_usage", "scores")
_READ = {*_TAKEN, "attachments", "epoch", "events", "id", "messages", "uuid"}


def recognises(source: base.Source) -> bool:
    """Whether this is an evaluation's log, with samples or without."""
    log = base.mapping(source.document)
    return isinstance(log.get("eval"), dict) and log.keys() >= {"status", "version"}


def read(source: base.Source) -> Iterator[base.Transcript]:
    """A transcript for each sample."""
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
    recording = base.Recording(NAME, source.name)
    texts, lost = base.mapping(sample, "attachments"), list[str]()
    told = {key: sample.get(key) for key in ("messages", *_TAKEN)}
    told = _resolved(told, texts, lost)
    timing = Timing(base.sequence(sample, "events"))
    for message in messages.numbered(base.sequence(told, "messages"), f"{place} "):
        origin = timing.origin(message, task)
        recording.take(found(message.value, timing), origin)
    recording.take(_end(told), base.Origin(place, ts=timing.ended, scenario=task))
    if lost:
        why = "to attachments that are not in the log"
        recording.skip(f"{counted(len(lost), 'reference')} {why}", place)
    for why in timing.left_out():
        recording.skip(why, place)
    if fields := sorted(sample.keys() - _READ):
        why = f"fields of the sample: {base.field_names(fields)}"
        recording.skip(why, place, note=True)
    return recording.transcript(_session(sample, task))


def _session(sample: dict[str, Any], task: str | None) -> str:
    if named := base.session_name(sample, "uuid"):
        return named
    parts = (task or "", *(base.session_name(sample, x) for x in ("id", "epoch")))
    return base.session_name("-".join(parts)) if all(parts) else ""


def _end(sample: Any) -> Iterator[base.Piece]:
    """How the sample ended: its error, then its scores."""
    if error := base.mapping(sample, "error"):
        message = base.text(error, "message") or ""
        yield base.Piece("error", {"code": "sample_error", "message": message})
    scores = base.mapping(sample, "scores")
    if scores or error:
        values = [_value(base.at(score, "value")) for score in scores.values()]
        known = [value for value in values if value is not None and 0 <= value <= 1]
        told = list({outcome(value) for value in known})
        kept = ("scores", "model_usage", "limit")
        fields = {
            # The outcome that all scores from 0 to 1 agree on, else a partial one.
            "outcome": "unknown" if not told else "partial" if told[1:] else told[0],
            "reward": values[0] if len(values) == 1 else None,
            "result": {key: sample[key] for key in kept if sample.get(key)},
        }
        yield base.Piece("final", fields)


def _value(value: Any) -> float | None:
    """A score as a number: a grade, or what it is."""
    if isinstance(value, bool):
        return float(value)
    return _GRADES.get(value) if isinstance(value, str) else base.number(value)
