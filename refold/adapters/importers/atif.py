"""ATIF, the Agent Trajectory Interchange Format of Harbor: import and export.

Steps become events, and events become steps.  Fields of a step that events lack are
stored in ``meta.source``; an export restores them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from refold.adapters.importers import base, messages
from refold.domain import events
from refold.domain.canonical import canonical, repaired, text_digest
from refold.domain.envelope import Envelope, Mark
from refold.domain.events import Event, JsonObject
from refold.projections.models import Usage

NAME = "atif"
VERSION: Final = "ATIF-v1.7"
_VERSION_WITH_SOUND: Final = "ATIF-v1.8"
_PREFIX: Final = "ATIF-v"
# The fields of a trajectory that are stored with its first event.
_HEADER: Final = frozenset(
    {
        "agent",
        "extra",
        "final_metrics",
        "notes",
        "schema_version",
        "trajectory_id",
    }
)
# The fields of a step that its events contain.
_STEP: Final = frozenset(
    {
        "message",
        "metrics",
        "model_name",
        "observation",
        "reasoning_content",
        "step_id",
        "timestamp",
        "tool_calls",
    }
)
# The metrics of a step that its usage contains.
_COUNTED: Final = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
# The fields of a call or a result that are stored with its event.
_EXTRA_FIELDS: Final = ("extra", "subagent_trajectory_ref")
# The fields of a result that an export of Refold adds.
_RESULT_FIELDS: Final = ("status", "untrusted", "duration_ms")
_ACTION: Final = "action"  # the tool of a result without a call
_OWN: Final = "refold"  # the key in ``extra`` of data that no field of ATIF can hold
# Events about the log itself, which other programs cannot use.
_BOOKKEEPING: Final = {"request", "fork", "redaction_applied", "compaction"}
_EDIT: Final = "context_management"
_NEXT: Final = "continued_trajectory_ref"
_LONGEST_ID: Final = 256


def recognises(source: base.Source) -> bool:
    """Whether the first value has a version of this format."""
    first = next(source.lines(), base.Line(0, None))
    return str(base.at(first.value, "schema_version")).startswith(_PREFIX)


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield a transcript for each trajectory, and for each one embedded in it.

    Files that continue a trajectory belong to its transcript.
    """
    for line in source.lines():
        root = base.mapping(line.value)
        if not isinstance(root.get("steps"), list):
            why = "is no ATIF trajectory: it has no steps"
            raise source.failed(why, line=line.number)
        place = f"line {line.number}" if source.is_lines else ""
        name = root.get("session_id") or root.get("trajectory_id")
        session = base.session_name(name)
        yield _recording(source, root, place).transcript(session)
        yield from _embedded(source, root, place, session)


def _embedded(
    source: base.Source, parent: dict[str, Any], place: str, session: str
) -> Iterator[base.Transcript]:
    """Yield the runs of sub-agents in a trajectory, each followed by its own."""
    for index, run in enumerate(base.each(parent, "subagent_trajectories")):
        run_place = f"{place} subagent_trajectories[{index}]".strip()
        name = base.text(run, "trajectory_id") or str(index + 1)
        run_session = base.session_name(f"{session}~{name}") if session else ""
        recording = _recording(source, run, run_place)
        yield recording.transcript(run_session, parent=session)
        yield from _embedded(source, run, run_place, run_session)


def _recording(
    source: base.Source, trajectory: dict[str, Any], place: str
) -> base.Recording:
    """Record a trajectory and the files that continue it, each step once."""
    recording = base.Recording(NAME, source.name)
    context = _Context()
    header: JsonObject = {
        key: trajectory[key] for key in sorted(_HEADER & trajectory.keys())
    }
    read_files = {source.path.name}
    continues_run = False
    while True:
        name = base.text(trajectory, _NEXT)
        path = source.path.with_name(name.rsplit("/", 1)[-1]) if name else None
        continues = path is not None and path.name not in read_files and path.is_file()
        if name and not continues:
            header[_NEXT] = name
            why = "no such file in its folder: import it into a separate session"
            recording.skip(f"continuation: {why}", place)
        steps = _Steps(recording, context, header, place)
        numbered = list(enumerate(base.each(trajectory, "steps")))
        if continues_run:
            numbered = steps.take_copied_context(numbered)
        for index, step in numbered:
            steps.add(index, step)
        if path is None or not continues:
            return recording
        read_files.add(path.name)
        trajectory = base.mapping(base.Source(path).document)
        header = {}
        continues_run = True
        place = base.shown(path.name)


_Numbered = tuple[int, dict[str, Any]]


class _Context:
    """The steps of a run, and those of them that are in the context of the agent.

    The system prompt is none of them: no edit replaces it.
    """

    def __init__(self) -> None:
        # The digest of the content of each step, by its key.
        self._steps: dict[str, str] = {}
        # The keys of the steps in the context, in order.
        self._shown: dict[str, None] = {}
        self._has_prompt = False

    def add(self, key: str, step: dict[str, Any]) -> None:
        """Add a step that was recorded."""
        if step.get("source") == "system" and not self._has_prompt:
            self._has_prompt = True
            return
        self._steps[key] = _content_digest(step)
        self._shown[key] = None

    def replace(self, shown: Sequence[str] = ()) -> Mark:
        """Replace the context by steps with these keys, and return the change."""
        left_out = tuple(key for key in self._shown if key not in shown)
        restored = tuple(key for key in shown if key not in self._shown)
        self._shown = dict.fromkeys(shown)
        return Mark(left_out=left_out, restored=restored)

    def key_of(self, copy: dict[str, Any], others: Collection[str]) -> str | None:
        """Return the key of the newest step that a copy repeats, or None.

        others: the keys of the steps that other copies repeat.
        """
        digest_of_copy = _content_digest(copy)
        for key, digest in reversed(self._steps.items()):
            if digest == digest_of_copy and key not in others:
                return key
        return None


def _content_digest(step: dict[str, Any]) -> str:
    """Return a digest of a step's content; copies of a step have the same digest."""
    names = ("source", "message", "reasoning_content", "tool_calls", "observation")
    content = [step.get(name) or None for name in names]
    return text_digest(canonical(repaired(content)[0]).decode())


class _Steps:
    """Reads the steps of one file.

    context: the steps of this file and of those that it continues.
    header:  the fields of the trajectory, which are stored with its first event.
    """

    def __init__(
        self,
        recording: base.Recording,
        context: _Context,
        header: JsonObject,
        place: str,
    ) -> None:
        self._recording = recording
        self._context = context
        self._header = header
        self._place = place
        # Whether the last step was an edit that replaces the context, without the new
        # content.  Then the user's next message is a summary.
        self._replaces_context = False

    def take_copied_context(self, steps: list[_Numbered]) -> list[_Numbered]:
        """Set the context to the copied steps at the start of a continuing file.

        Copies of steps that the run has are not recorded again.  Other steps of the
        earlier context are left out.  Returns the steps that remain to be added.
        """
        copies: list[_Numbered] = []
        for index, step in steps:
            if step.get("is_copied_context") is not True:
                break
            copies.append((index, step))
        new: list[_Numbered] = []
        shown_keys: list[str] = []
        for index, step in copies:
            key = self._context.key_of(step, shown_keys)
            is_prompt = key is None and step.get("source") == "system"
            if key is None and not is_prompt:
                new.append((index, step))
                continue
            if key is not None:
                shown_keys.append(key)
            why = "copied context of the run that it continues"
            self._recording.skip(why, self._place_of(index))
        if not copies:
            return steps
        change = self._context.replace(shown_keys)
        if change.keys:
            place = self._place_of(copies[0][0])
            origin = base.Origin(place, key=f"{NAME}\0{place}\0context")
            self._recording.mark(change, origin, "compaction")
        return [*new, *steps[len(copies) :]]

    def _place_of(self, index: int) -> str:
        """Return the place of a step in the file."""
        return f"{self._place} steps[{index}]".strip()

    def add(self, index: int, step: dict[str, Any]) -> None:
        """Record the events of a step."""
        place = self._place_of(index)
        key = f"{NAME}\0{place}"
        metrics = base.mapping(step, "metrics")
        origin = base.Origin(
            place,
            ts=base.moment(step, "timestamp"),
            model=base.text(step, "model_name"),
            response_id=place if step.get("source") == "agent" else None,
            usage=_usage(metrics),
            key=key,
        )
        boundary = _boundary(step)
        if boundary == "replace" and step.get("source") == "system":
            self._replace(step, origin, _other_fields(step, metrics))
            return
        # The other fields of the step are stored with its first event only.
        step_fields: JsonObject = {"step": _other_fields(step, metrics)}
        if self._header:
            step_fields["trajectory"] = self._header
            self._header = {}
        for piece, own_fields in self._pieces(step, place):
            source = {**step_fields, **own_fields}
            self._recording.take([piece], replace(origin, source=source))
            if isinstance(piece, base.Piece):
                origin = replace(origin, usage=None)
                step_fields = {}
        self._context.add(key, step)
        if boundary == "replace":
            self._replace(step, origin, None)
        elif boundary not in (None, "append"):
            why = "edit of the context that does not name what it takes out"
            self._recording.skip(why, place, note=True)

    def _replace(
        self, step: dict[str, Any], origin: base.Origin, fields: JsonObject | None
    ) -> None:
        """Record that a step replaced the context, and the summary that replaces it.

        The summary is the text of the step's observation, or without one the user's
        next message.

        fields: the other fields of the step, if it has no other event.
        """
        edit = base.mapping(step, "extra", _EDIT)
        message = step.get("message")
        source: JsonObject = {"of_edit": True}
        if fields is not None:
            fields = {**fields, "message": message}
            if "observation" in step:
                fields["observation"] = step["observation"]
            source = {"step": fields}
            if self._header:
                source["trajectory"] = self._header
                self._header = {}
        self._recording.mark(
            self._context.replace(),
            replace(origin, source=source, key=f"{origin.key}\0edit", usage=None),
            "compaction",
            edits=({"type": _EDIT, "text": message, **edit},),
        )
        texts = _observed_texts(step)
        self._replaces_context = not texts
        if texts:
            key = f"{origin.key}\0summary"
            summary = replace(
                origin,
                source={"of_edit": True, "compact_summary": True},
                key=key,
                usage=None,
                response_id=None,
            )
            self._recording.take([messages.user_input(texts)], summary)
            self._context.add(key, {"source": "user", "message": texts})

    def _pieces(
        self, step: dict[str, Any], place: str
    ) -> Iterator[tuple[base.PieceOrSkipped, JsonObject]]:
        """Yield the events of a step in order, each with the fields stored with it."""
        has_event = False
        message = step.get("message")
        is_hand_off = self._replaces_context and step.get("source") == "user"
        self._replaces_context = False
        for piece in self._message_pieces(step):
            if isinstance(piece, base.Piece):
                has_event = True
            own_fields: JsonObject = {}
            if isinstance(message, list):
                own_fields["message"] = message
            if is_hand_off:
                own_fields["compact_summary"] = True
            yield piece, own_fields
        for call in base.each(step, "tool_calls"):
            call_fields = _extra_fields(call)
            if message and not has_event:
                # A message without text has no event of its own.
                call_fields = {**call_fields, "message": message}
            has_event = True
            yield _read_call(call), call_fields
        for number, result in enumerate(base.each(step, "observation", "results")):
            call_id = base.text(result, "source_call_id")
            if call_id is None:
                call_id = f"{place}:{number}"[-_LONGEST_ID:]
                unnamed_fields: JsonObject = {"unnamed": True}
                if message and not has_event:
                    unnamed_fields["message"] = message
                yield messages.tool_call(call_id, _ACTION, {}), unnamed_fields
            has_event = True
            yield _read_result(call_id, result), _extra_fields(result)
        if not has_event:
            fields = {
                "format": NAME,
                "kind": str(step.get("source")),
                "value": {"message": message},
            }
            yield base.Piece("item", fields), {}

    def _message_pieces(self, step: dict[str, Any]) -> Iterator[base.PieceOrSkipped]:
        """Yield the events of a step's message."""
        message = step.get("message")
        edit = base.mapping(step, "extra").get(_EDIT)
        own = _own(step)
        match step.get("source"):
            case "agent":
                texts, files = _read_message(message)
                reasoning = base.text(step, "reasoning_content")
                yield from messages.response(texts, messages.thinking_blocks(reasoning))
                if files:
                    why = "image or sound in a model's message; its export has it"
                    yield base.Skipped("message", why)
            case "system" if own:
                yield base.Piece(str(own.get("type")), base.mapping(own, "payload"))
            case "system" if (
                isinstance(edit, dict) and edit.get("boundary") != "append"
            ):
                yield _edit_piece({"type": _EDIT, "text": message, **edit})
            case "system":
                if message and not step.get("observation"):
                    yield messages.system_message(message)
            case "user":
                texts, files = _read_message(message)
                if texts or files:
                    yield messages.user_input(texts, files)
            case _:
                yield base.Skipped("", "step of an unknown source")


def _other_fields(step: dict[str, Any], metrics: dict[str, Any]) -> JsonObject:
    """The fields of a step that its events lack."""
    fields: JsonObject = {key: step[key] for key in sorted(step.keys() - _STEP)}
    extra = base.mapping(fields, "extra")
    if _OWN in extra:
        fields["extra"] = {key: extra[key] for key in extra if key != _OWN}
    other_metrics = {key: metrics[key] for key in metrics if key not in _COUNTED}
    if other_metrics:
        fields["metrics"] = other_metrics
    return fields


def _boundary(step: dict[str, Any]) -> str | None:
    """Return how a step changes the context for later steps; None if it does not."""
    edit = base.mapping(step, "extra").get(_EDIT)
    if not isinstance(edit, dict):
        return None
    return base.text(edit, "boundary") or ""


def _observed_texts(step: dict[str, Any]) -> list[str]:
    """The texts in the observation of a step."""
    texts: list[str] = []
    for result in base.each(step, "observation", "results"):
        for part in messages.parts(result.get("content")):
            text = messages.text_of(part)
            if text:
                texts.append(text)
    return texts


def _edit_piece(edit: dict[str, Any]) -> base.Piece:
    """Return an edit of the context as an event."""
    return base.Piece("provider_edit", {"edits": [edit]})


def _read_message(message: Any) -> tuple[list[str], list[JsonObject]]:
    """The texts of a message, and its files."""
    if isinstance(message, str):
        return [message] if message else [], []
    texts: list[str] = []
    files: list[JsonObject] = []
    for part in map(base.mapping, base.sequence(message)):
        text = messages.text_of(part)
        path = base.text(part, "source", "path")
        if text is not None:
            texts.append(text)
        elif path is not None:
            kind = "image" if part.get("type") == "image" else "file"
            media_type = base.text(part, "source", "media_type")
            files.append({"kind": kind, "media_type": media_type, "url": path})
    return texts, files


def _read_call(call: dict[str, Any]) -> base.PieceOrSkipped:
    """Return the event of a call."""
    arguments = call.get("arguments")
    if _own(call).get("text") is True:
        arguments = base.at(arguments, "arguments")
    return messages.tool_call(
        call.get("tool_call_id"), call.get("function_name"), arguments
    )


def _read_result(call_id: str, result: dict[str, Any]) -> base.Piece:
    """Return the event of a result."""
    content = result.get("content")
    own = _own(result)
    if own.get("json") is True and isinstance(content, str):
        content, _ = base.parsed(content)
    piece = messages.tool_result(call_id, content)
    for key in _RESULT_FIELDS:
        if key in own:
            piece.fields[key] = own[key]
    return piece


def _own(value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that an export of Refold added to a step, a call, or a result."""
    return base.mapping(value, "extra", _OWN)


def _extra_fields(value: dict[str, Any]) -> JsonObject:
    """The fields of a call or a result that its event lacks."""
    fields = {key: value[key] for key in _EXTRA_FIELDS if value.get(key)}
    if "content" in value and value["content"] is None:
        fields["content"] = None
    return {"more": fields} if fields else {}


def _usage(metrics: dict[str, Any]) -> JsonObject | None:
    """The usage of a response; the prompt tokens of ATIF include cached ones."""
    counts = {
        key: metrics[key] for key in _COUNTED if base.number(metrics, key) is not None
    }
    if not counts:
        return None
    prompt_tokens = counts.get("prompt_tokens", 0)
    cached_tokens = counts.get("cached_tokens", 0)
    usage: JsonObject = {
        "input_tokens": max(prompt_tokens - cached_tokens, 0),
        "output_tokens": counts.get("completion_tokens", 0),
    }
    if "cached_tokens" in counts:
        usage["cache_read_input_tokens"] = cached_tokens
    if "cost_usd" in counts:
        usage["cost_usd"] = counts["cost_usd"]
    return usage


def trajectory(
    envelopes: Iterable[Envelope],
    session_id: str,
    sub_agents: Mapping[str, Iterable[Envelope]] | None = None,
) -> JsonObject:
    """Return the trajectory of a session's events.

    sub_agents: the events of its sub-agents' sessions, by their ids in the trajectory.
    """
    writer = _Writer()
    for envelope in envelopes:
        writer.add(envelope)
    header = {"schema_version": VERSION, "session_id": session_id, **writer.header}
    if header["schema_version"] != _VERSION_WITH_SOUND:
        header["schema_version"] = VERSION
    header.setdefault("agent", writer.agent)
    steps = writer.steps
    header["steps"] = steps or [{"step_id": 1, "source": "system", "message": ""}]
    metrics = header.get("final_metrics") or {}
    has_grown = metrics.get("total_steps", len(steps)) != len(steps)
    if has_grown or not metrics:
        header["final_metrics"] = {**metrics, **writer.metrics()}
    runs: list[Any] = []
    for name, run in (sub_agents or {}).items():
        runs.append({**trajectory(run, session_id), "trajectory_id": name})
    if runs:
        header["subagent_trajectories"] = runs
    return header


_UNNAMED: Final = ""  # the id of a response without one


class _CallStep(NamedTuple):
    """The step of a call; ``is_named`` unless the importer made up its id."""

    step: dict[str, Any]
    is_named: bool


class _Writer:
    """Makes the steps of a trajectory from events, one after the other."""

    def __init__(self) -> None:
        self.header: dict[str, Any] = {}
        self.agent: dict[str, Any] = {"name": "agent", "version": "unknown"}
        self.steps: list[dict[str, Any]] = []
        self._calls: dict[str, _CallStep] = {}
        # The newest step, which further calls of its response join.
        self._response: dict[str, Any] | None = None
        # The id of that response; None if the next call begins a step.
        self._response_id: str | None = None
        self._used = Usage()
        self._has_prompt = False

    def add(self, envelope: Envelope) -> None:
        """Add an event: to its step, or as a new one."""
        event = envelope.payload
        if event.type in _BOOKKEEPING:
            return
        source = envelope.meta.source or {}
        if source.get("format") != NAME:
            source = {}
        if source.get("of_edit"):
            return  # the step of the edit has it
        self.header |= base.mapping(source, "trajectory")
        if envelope.agent:
            self.agent["name"] = envelope.agent
        step = self._step(envelope, source)
        match event:
            case events.ToolCall():
                is_named = source.get("unnamed") is not True
                self._calls[event.call_id] = _CallStep(step, is_named)
                if is_named:
                    step.setdefault("tool_calls", []).append(_call(event, source))
            case events.ToolResult():
                self._add_result(event, envelope, source)
            case events.AgentResponse(thinking=blocks):
                thoughts = [block.thinking for block in blocks if block.thinking]
                if thoughts:
                    step["reasoning_content"] = "\n\n".join(thoughts)
        usage = getattr(event, "usage", None) or envelope.meta.usage
        if usage and step["source"] == "agent":
            self._count(step, usage)

    def metrics(self) -> JsonObject:
        """The usage of all steps together."""
        used = self._used
        return {
            "total_prompt_tokens": used.input + used.written + used.read,
            "total_completion_tokens": used.output,
            "total_cached_tokens": used.read,
            "total_steps": len(self.steps),
        }

    def _step(self, envelope: Envelope, source: Mapping[str, Any]) -> dict[str, Any]:
        """Return the step of an event: that of its call or response, or a new one."""
        event = envelope.payload
        if isinstance(event, events.ToolResult) and event.call_id in self._calls:
            if self._response_id == _UNNAMED:
                self._response_id = None
            return self._calls[event.call_id].step
        response_id = envelope.meta.response_id or _UNNAMED
        is_same_response = self._response_id == response_id and "step" not in source
        is_call = isinstance(event, events.ToolCall)
        if is_call and is_same_response and self._response is not None:
            return self._response
        step: dict[str, Any] = {
            "step_id": len(self.steps) + 1,
            "timestamp": _timestamp(envelope),
            **self._message(event),
            **base.mapping(source, "step"),
        }
        if "message" in source:
            step["message"] = source["message"]
        is_agent = step["source"] == "agent"
        if is_agent and envelope.meta.model:
            step["model_name"] = envelope.meta.model
        self.steps.append(step)
        self._response = step
        self._response_id = response_id if is_agent or source else None
        return step

    def _message(self, event: Event) -> dict[str, Any]:
        """Return the source and the message of the step that an event begins.

        A reader takes the first system step for the prompt, and others for texts in
        the conversation.  Where that is wrong, the step contains the event itself.
        """
        if not isinstance(event, events.SystemPrompt) or event.text is None:
            return _message(event)
        had_prompt = self._has_prompt
        self._has_prompt = had_prompt or event.is_prompt
        if event.is_prompt == had_prompt:
            return _own_step(event)
        return _message(event)

    def _add_result(
        self, event: events.ToolResult, envelope: Envelope, source: Mapping[str, Any]
    ) -> None:
        """Add a result to the observation of its call's step."""
        call = self._calls.get(event.call_id)
        step = self.steps[-1] if call is None else call.step
        own: dict[str, Any] = {}
        content = _content(event.content, own)
        if event.status != "ok":
            own["status"] = event.status
        if event.untrusted:
            own["untrusted"] = True
        if event.duration_ms is not None:
            own["duration_ms"] = event.duration_ms
        if _timestamp(envelope) != step["timestamp"]:
            own["timestamp"] = _timestamp(envelope)
        result: dict[str, Any] = {}
        if call is not None and call.is_named:
            result["source_call_id"] = event.call_id
        result["content"] = content
        if own and not source:
            result["extra"] = {_OWN: own}
        result |= base.mapping(source, "more")
        observation = step.setdefault("observation", {"results": []})
        observation["results"].append(result)

    def _count(self, step: dict[str, Any], usage: JsonObject) -> None:
        """Add a response's usage to the metrics of its step and to the total."""
        counts = Usage.of(usage)
        if counts is None or step.get("llm_call_count") == 0:
            return
        self._used += counts
        metrics: dict[str, Any] = {
            **base.mapping(step, "metrics"),
            "prompt_tokens": counts.input + counts.written + counts.read,
            "completion_tokens": counts.output,
        }
        if counts.read or "cache_read_input_tokens" in usage:
            metrics["cached_tokens"] = counts.read
        if base.number(usage, "cost_usd") is not None:
            metrics["cost_usd"] = usage["cost_usd"]
        step["metrics"] = metrics


def _message(event: Event) -> dict[str, Any]:
    """The source and the message of the step that an event begins."""
    match event:
        case events.UserInput():
            return {"source": "user", "message": _input_message(event)}
        case events.SystemPrompt(text=str(text), closed=False):
            return {"source": "system", "message": text}
        case events.AgentResponse(text=text):
            return {"source": "agent", "message": text}
        case events.ToolCall() | events.ToolResult():
            return {"source": "agent", "message": ""}
        case events.ProviderEdit(edits=[{"type": "hand_off", "text": text}]):
            # Earlier versions recorded the summary of a replaced context like this.
            return {"source": "user", "message": text}
        case events.ProviderEdit(edits=[{"boundary": _, "text": text}]):
            return {"source": "system", "message": text}
    if event.type == "item" and getattr(event, "format", "") == NAME:
        return {"source": "system", **base.mapping(getattr(event, "value", None))}
    return _own_step(event)


def _own_step(event: Event) -> dict[str, Any]:
    """Return a step that contains an event as Refold records it."""
    own = {"type": event.type, "payload": event.payload()}
    return {"source": "system", "message": "", "extra": {_OWN: own}}


_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


def _input_message(event: events.UserInput) -> str | Sequence[JsonObject]:
    """The texts of an input, with the images that others can fetch."""
    images: list[JsonObject] = []
    texts: list[str] = []
    for file in event.attachments:
        if file.kind == "image" and file.url and file.media_type in _IMAGES:
            images.append(
                {
                    "type": "image",
                    "source": {"media_type": file.media_type, "path": file.url},
                }
            )
        if file.text:
            texts.append(file.text)
    if event.text or not images:
        texts.insert(0, event.text)
    if not images:
        return "\n\n".join(texts)
    parts: list[JsonObject] = [{"type": "text", "text": text} for text in texts]
    return parts + images


def _call(event: events.ToolCall, source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call in the form of ATIF."""
    call: dict[str, Any] = {
        "tool_call_id": event.call_id,
        "function_name": event.tool_name,
        "arguments": event.arguments,
    }
    if isinstance(event.arguments, str):
        call["arguments"] = {"arguments": event.arguments}
        call["extra"] = {_OWN: {"text": True}}
    return {**call, **base.mapping(source, "more")}


def _content(content: Any, own: dict[str, Any]) -> Any:
    """Return the content of a result, as JSON in a text if ATIF has no form for it.

    own: Refold's fields of the result.  They record that the text is JSON.
    """
    if isinstance(content, str | None):
        return content
    if isinstance(content, list) and all(map(_is_part, content)):
        return content
    own["json"] = True
    return orjson.dumps(content).decode()


def _is_part(part: Any) -> bool:
    """Whether ATIF has this form of a part."""
    match part:
        case {"type": "text", "text": str(), **more}:
            return not more
        case {
            "type": "image" | "audio",
            "source": {"path": str(), "media_type": str()},
        }:
            return len(part) == 2
    return False


def _timestamp(envelope: Envelope) -> str:
    """Return the time of an event in the form of ATIF."""
    return envelope.ts.isoformat().replace("+00:00", "Z")
