"""ATIF, the Agent Trajectory Interchange Format of Harbor: read, and written.

Steps become events, and events steps.  What a step says beside them stands in
``meta.source``: an export has it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from refold.adapters.importers import base, messages
from refold.domain import events
from refold.domain.envelope import Envelope
from refold.domain.events import Event, JsonObject
from refold.projections.models import Usage

NAME = "atif"
VERSION: Final = "ATIF-v1.7"
_WITH_SOUND: Final = "ATIF-v1.8"
_PREFIX: Final = "ATIF-v"
_HEADER: Final = frozenset(
    {"agent", "notes", "final_metrics", "extra", "trajectory_id", "schema_version"}
)
_STEP: Final = frozenset(
    {"step_id", "timestamp", "message", "reasoning_content", "tool_calls"}
    | {"observation", "metrics", "model_name"}
)
_COUNTED: Final = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
_ACTION: Final = "action"  # what a result without a call is of
_OWN: Final = "refold"  # what an event stands under that no other field can say
# Of the log it was in: neither is anything to another program.
_BOOKKEEPING: Final = {"request", "fork", "redaction_applied", "compaction"}
_EDIT: Final = "context_management"
_NEXT: Final = "continued_trajectory_ref"
_HAND_OFF: Final = "hand_off"


def recognises(source: base.Source) -> bool:
    """Whether the first value says that it is one."""
    first = next(source.lines(), base.Line(0, None))
    return str(base.at(first.value, "schema_version")).startswith(_PREFIX)


def read(source: base.Source) -> Iterator[base.Transcript]:
    """A transcript for each trajectory, embedded ones too, with what continues it."""
    for line in source.lines():
        root = base.mapping(line.value)
        if not isinstance(root.get("steps"), list):
            why = "is no ATIF trajectory: it has no steps"
            raise source.failed(why, line=line.number)
        place = f"line {line.number}" if source.is_lines else ""
        named = root.get("session_id") or root.get("trajectory_id")
        session = base.session_name(named)
        yield _whole(source, root, place).transcript(session)
        yield from _below(source, root, place, session)


def _below(
    source: base.Source, root: dict[str, Any], place: str, session: str
) -> Iterator[base.Transcript]:
    """The runs of sub-agents that are embedded in a trajectory, and theirs."""
    for index, below in enumerate(base.each(root, "subagent_trajectories")):
        where = f"{place} subagent_trajectories[{index}]".strip()
        name = base.text(below, "trajectory_id") or str(index + 1)
        named = base.session_name(f"{session}~{name}") if session else ""
        yield _whole(source, below, where).transcript(named, parent=session)
        yield from _below(source, below, where, named)


def _whole(
    source: base.Source, trajectory: dict[str, Any], place: str
) -> base.Recording:
    """A trajectory and what continues it in files beside, each step of it once."""
    recording = base.Recording(NAME, source.name)
    header: JsonObject = {k: trajectory[k] for k in sorted(_HEADER & trajectory.keys())}
    seen = {source.path.name}
    skips = False
    while True:
        name = base.text(trajectory, _NEXT)
        path = source.path.with_name(name.rsplit("/", 1)[-1]) if name else None
        goes_on = path is not None and path.name not in seen and path.is_file()
        if name and not goes_on:
            header[_NEXT] = name
            why = "no such file beside it: import that into a session of its own"
            recording.skip(f"continuation: {why}", place)
        reading = _Steps(recording, header, place, skips=skips)
        for index, step in enumerate(base.each(trajectory, "steps")):
            reading.step(index, step)
        if path is None or not goes_on:
            return recording
        seen.add(path.name)
        trajectory = base.mapping(base.Source(path).document)
        header, skips, place = {}, True, base.shown(path.name)


class _Steps:
    """Reads the steps of one file; ``skips`` those that were copied from another."""

    def __init__(
        self, recording: base.Recording, header: JsonObject, place: str, *, skips: bool
    ) -> None:
        self._recording, self._header = recording, header
        self._place, self._skips = place, skips
        self._replaces = False

    def step(self, index: int, step: dict[str, Any]) -> None:
        place = f"{self._place} steps[{index}]".strip()
        if self._skips and step.get("is_copied_context") is True:
            self._recording.skip("copied context of the run that it continues", place)
            return
        told = {k: step[k] for k in sorted(step.keys() - _STEP)}
        if _OWN in base.mapping(told, "extra"):
            told["extra"] = {k: v for k, v in told["extra"].items() if k != _OWN}
        beside: JsonObject = {"step": told}
        if self._header:
            beside["trajectory"], self._header = self._header, {}
        metrics = base.mapping(step, "metrics")
        if rest := {k: v for k, v in metrics.items() if k not in _COUNTED}:
            told["metrics"] = rest
        origin = base.Origin(
            place,
            ts=base.moment(step, "timestamp"),
            model=base.text(step, "model_name"),
            response_id=place if step.get("source") == "agent" else None,
            usage=_usage(metrics),
        )
        for piece, more in self._found(step, place):
            one = replace(origin, source={**beside, **more})
            self._recording.take([piece], one)
            if isinstance(piece, base.Piece):
                origin, beside = replace(origin, usage=None), {}

    def _found(
        self, step: dict[str, Any], place: str
    ) -> Iterator[tuple[base.Found, JsonObject]]:
        """What a step says, in its order, each with what stands beside it."""
        begun, message = False, step.get("message")
        for piece in self._said(step):
            begun |= isinstance(piece, base.Piece)
            yield piece, {"message": message} if isinstance(message, list) else {}
        for call in base.each(step, "tool_calls"):
            begun = True
            yield _called(call), _more(call)
        for number, result in enumerate(base.each(step, "observation", "results")):
            call_id = base.text(result, "source_call_id")
            if call_id is None:
                call_id = f"{place}:{number}"[-_LONGEST:]
                said = {} if begun or not message else {"message": message}
                yield messages.called(call_id, _ACTION, {}), {"unnamed": True, **said}
            begun = True
            yield _returned(call_id, result), _more(result)
        if not begun:
            item = {"kind": str(step.get("source")), "value": {"message": message}}
            yield base.Piece("item", {"format": NAME, **item}), {}

    def _said(self, step: dict[str, Any]) -> Iterator[base.Found]:
        """What the message of a step is; what was made of a context is no input."""
        extra, message = base.mapping(step, "extra"), step.get("message")
        edit = extra.get(_EDIT)
        after, self._replaces = self._replaces, False
        match step.get("source"):
            case "agent":
                texts, files = _read(message)
                thought = messages.thought(base.text(step, "reasoning_content"))
                yield from messages.answered(texts, thought)
                if files:
                    why = "image or sound in a model's message; its export has it"
                    yield base.Skipped("message", why)
            case "system" if own := _own(step):
                yield base.Piece(str(own.get("type")), base.mapping(own, "payload"))
            case "system" if isinstance(edit, dict):
                self._replaces = edit.get("boundary") == "replace"
                told: Any = {"type": _EDIT, "text": message, **edit}
                yield base.Piece("provider_edit", {"edits": [told]})
            case "user" if after:
                told = {"type": _HAND_OFF, "text": message}
                yield base.Piece("provider_edit", {"edits": [told]})
            case "system":
                if message and not step.get("observation"):
                    yield messages.system_message(message)
            case "user":
                texts, files = _read(message)
                if texts or files:
                    yield messages.said(texts, files)
            case _:
                yield base.Skipped("", "step of an unknown source")


_LONGEST: Final = 256
_BESIDE: Final = ("extra", "subagent_trajectory_ref")
_RETURNED: Final = ("status", "untrusted", "duration_ms")


def _read(message: Any) -> tuple[list[str], list[JsonObject]]:
    """The texts of a message, and its files."""
    if isinstance(message, str):
        return [message] if message else [], []
    texts, files = [], list[JsonObject]()
    for part in map(base.mapping, base.sequence(message)):
        if (said := messages.words(part)) is not None:
            texts.append(said)
        elif path := base.text(part, "source", "path"):
            kind = "image" if part.get("type") == "image" else "file"
            media = base.text(part, "source", "media_type")
            files.append({"kind": kind, "media_type": media, "url": path})
    return texts, files


def _called(call: dict[str, Any]) -> base.Found:
    made = call.get("arguments")
    if _own(call).get("text") is True:
        made = base.at(made, "arguments")
    return messages.called(call.get("tool_call_id"), call.get("function_name"), made)


def _returned(call_id: str, result: dict[str, Any]) -> base.Piece:
    content, own = result.get("content"), _own(result)
    if own.get("json") is True and isinstance(content, str):
        content = base.parsed(content)[0]
    returned = messages.returned(call_id, content)
    returned.fields.update({k: own[k] for k in _RETURNED if k in own})
    return returned


def _own(value: Mapping[str, Any]) -> dict[str, Any]:
    """What an export of Refold says beside."""
    return base.mapping(value, "extra", _OWN)


def _more(value: dict[str, Any]) -> JsonObject:
    """What a call or a result says that its event does not."""
    rest = {k: value[k] for k in _BESIDE if value.get(k)}
    if "content" in value and value["content"] is None:
        rest["content"] = None
    return {"more": rest} if rest else {}


def _usage(metrics: dict[str, Any]) -> JsonObject | None:
    """The usage of a response; ATIF counts what was read from a cache as prompt."""
    told = {k: metrics[k] for k in _COUNTED if base.number(metrics, k) is not None}
    if not told:
        return None
    given, made, read = (told.get(name, 0) for name in _COUNTED[:3])
    usage = {"input_tokens": max(given - read, 0), "output_tokens": made}
    usage |= {"cache_read_input_tokens": read} if "cached_tokens" in told else {}
    return usage | ({"cost_usd": told["cost_usd"]} if "cost_usd" in told else {})


def trajectory(
    envelopes: Iterable[Envelope],
    session_id: str,
    below: Mapping[str, Iterable[Envelope]] | None = None,
) -> JsonObject:
    """The trajectory that a session's events are.

    below: the sessions of its sub-agents, by what each is called in it.
    """
    made = _Written()
    for envelope in envelopes:
        made.add(envelope)
    runs: list[Any] = [
        {**trajectory(run, session_id), "trajectory_id": name}
        for name, run in (below or {}).items()
    ]
    header = {"schema_version": VERSION, "session_id": session_id, **made.header}
    if header["schema_version"] != _WITH_SOUND:
        header["schema_version"] = VERSION
    header.setdefault("agent", made.agent)
    header["steps"] = made.steps or [{"step_id": 1, "source": "system", "message": ""}]
    told = header.get("final_metrics") or {}
    if told.get("total_steps", len(made.steps)) != len(made.steps) or not told:
        header["final_metrics"] = {**told, **made.metrics()}  # of what has grown since
    return header | ({"subagent_trajectories": runs} if runs else {})


_UNNAMED: Final = ""  # the id of a response without one


class _Written:
    """Steps, made of events one after the other."""

    def __init__(self) -> None:
        self.header: dict[str, Any] = {}
        self.agent: dict[str, Any] = {"name": "agent", "version": "unknown"}
        self.steps: list[dict[str, Any]] = []
        self._of: dict[str, tuple[dict[str, Any], bool]] = {}  # of calls, their steps
        self._response: dict[str, Any] | None = None  # the newest of a model
        self._response_id: str | None = None  # None: a call begins another
        self._used = Usage()
        self._has_prompt = False

    def add(self, envelope: Envelope) -> None:
        event, source = envelope.payload, envelope.meta.source or {}
        if event.type in _BOOKKEEPING:
            return
        own = source if source.get("format") == NAME else {}
        self.header |= base.mapping(own, "trajectory")
        if envelope.agent:
            self.agent["name"] = envelope.agent
        step = self._step(envelope, own)
        match event:
            case events.ToolCall():
                named = own.get("unnamed") is not True
                self._of[event.call_id] = step, named
                if named:
                    step.setdefault("tool_calls", []).append(_call(event, own))
            case events.ToolResult():
                self._returned(event, envelope, own)
            case events.AgentResponse(thinking=thinking):
                if thoughts := [one.thinking for one in thinking if one.thinking]:
                    step["reasoning_content"] = "\n\n".join(thoughts)
        usage = getattr(event, "usage", None) or envelope.meta.usage
        if usage and step["source"] == "agent":
            self._count(step, usage)

    def metrics(self) -> JsonObject:
        """What all steps used together."""
        used = self._used
        return {
            "total_prompt_tokens": used.input + used.written + used.read,
            "total_completion_tokens": used.output,
            "total_cached_tokens": used.read,
            "total_steps": len(self.steps),
        }

    def _step(self, envelope: Envelope, own: Mapping[str, Any]) -> dict[str, Any]:
        """The step that the event is a part of: a new one, if it begins one."""
        event = envelope.payload
        if isinstance(event, events.ToolResult) and event.call_id in self._of:
            if self._response_id == _UNNAMED:
                self._response_id = None
            return self._of[event.call_id][0]
        response_id = envelope.meta.response_id or _UNNAMED
        goes_on = self._response_id == response_id and "step" not in own
        if (
            isinstance(event, events.ToolCall)
            and self._response is not None
            and goes_on
        ):
            return self._response
        step: dict[str, Any] = {
            "step_id": len(self.steps) + 1,
            "timestamp": _when(envelope),
            **self._message(event),
            **base.mapping(own, "step"),
        }
        if "message" in own:
            step["message"] = own["message"]
        if step["source"] == "agent" and envelope.meta.model:
            step["model_name"] = envelope.meta.model
        self.steps.append(step)
        self._response = step
        self._response_id = response_id if step["source"] == "agent" or own else None
        return step

    def _message(self, event: Event) -> dict[str, Any]:
        """Whose step an event begins, and its message.

        A reader takes the first system step for the prompt, and others for texts in
        the conversation.  Where that is wrong, the step holds the event itself.
        """
        if not isinstance(event, events.SystemPrompt) or event.text is None:
            return _message(event)
        had_prompt = self._has_prompt
        self._has_prompt = had_prompt or event.is_prompt
        if event.is_prompt == had_prompt:
            return _own_step(event)
        return _message(event)

    def _returned(
        self, event: events.ToolResult, envelope: Envelope, own: Mapping[str, Any]
    ) -> None:
        step, named = self._of.get(event.call_id, (self.steps[-1], False))
        told: dict[str, Any] = {"source_call_id": event.call_id} if named else {}
        extra: dict[str, Any] = {}
        told["content"] = _content(event.content, extra)
        extra |= {"status": event.status} if event.status != "ok" else {}
        extra |= {"untrusted": True} if event.untrusted else {}
        if event.duration_ms is not None:
            extra["duration_ms"] = event.duration_ms
        if _when(envelope) != step["timestamp"]:
            extra["timestamp"] = _when(envelope)
        told |= {"extra": {_OWN: extra}} if extra and not own else {}
        told |= base.mapping(own, "more")
        observed = step.setdefault("observation", {"results": []})
        observed["results"].append(told)

    def _count(self, step: dict[str, Any], usage: JsonObject) -> None:
        read = Usage.of(usage)
        if read is None or step.get("llm_call_count") == 0:
            return
        self._used += read
        counts = {
            "prompt_tokens": read.input + read.written + read.read,
            "completion_tokens": read.output,
        }
        if read.read or "cache_read_input_tokens" in usage:
            counts["cached_tokens"] = read.read
        if base.number(usage, "cost_usd") is not None:
            counts["cost_usd"] = usage["cost_usd"]  # type: ignore[assignment]  # a number
        step["metrics"] = {**base.mapping(step, "metrics"), **counts}


def _message(event: Event) -> dict[str, Any]:
    """Whose step an event begins, and its message."""
    match event:
        case events.UserInput():
            return {"source": "user", "message": _spoken(event)}
        case events.SystemPrompt(text=str(text), closed=False):
            return {"source": "system", "message": text}
        case events.AgentResponse(text=text):
            return {"source": "agent", "message": text}
        case events.ToolCall() | events.ToolResult():
            return {"source": "agent", "message": ""}
        case events.ProviderEdit(edits=[{"type": "hand_off", "text": text}]):
            return {"source": "user", "message": text}
        case events.ProviderEdit(edits=[{"type": "context_management", "text": text}]):
            return {"source": "system", "message": text}
    if event.type == "item" and getattr(event, "format", "") == NAME:
        return {"source": "system", **base.mapping(getattr(event, "value", None))}
    return _own_step(event)


def _own_step(event: Event) -> dict[str, Any]:
    """A step that holds an event as Refold records it."""
    own = {"type": event.type, "payload": event.payload()}
    return {"source": "system", "message": "", "extra": {_OWN: own}}


def _spoken(event: events.UserInput) -> str | Sequence[JsonObject]:
    """The text of an input, with its images if others can fetch them."""
    shown: list[JsonObject] = [
        {"type": "image", "source": {"media_type": one.media_type, "path": one.url}}
        for one in event.attachments
        if one.kind == "image" and one.url and one.media_type in _IMAGES
    ]
    texts = [event.text] if event.text or not shown else []
    texts += [one.text for one in event.attachments if one.text]
    if not shown:
        return "\n\n".join(texts)
    said: list[JsonObject] = [{"type": "text", "text": text} for text in texts]
    return said + shown


_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


def _call(event: events.ToolCall, own: Mapping[str, Any]) -> dict[str, Any]:
    made, extra = event.arguments, {}
    if isinstance(made, str):
        made, extra = {"arguments": made}, {"extra": {_OWN: {"text": True}}}
    named = {"tool_call_id": event.call_id, "function_name": event.tool_name}
    return {**named, "arguments": made, **extra, **base.mapping(own, "more")}


def _content(content: Any, extra: dict[str, Any]) -> Any:
    """A result's content as ATIF has it; of another shape, as JSON in a text."""
    if isinstance(content, str | None):
        return content
    if isinstance(content, list) and all(map(_is_part, content)):
        return content
    extra["json"] = True
    return orjson.dumps(content).decode()


def _is_part(part: Any) -> bool:
    match part:
        case {"type": "text", "text": str(), **more}:
            return not more
        case {
            "type": "image" | "audio",
            "source": {"path": str(), "media_type": str()},
        }:
            return len(part) == 2
    return False


def _when(envelope: Envelope) -> str:
    return envelope.ts.isoformat().replace("+00:00", "Z")
