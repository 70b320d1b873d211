"""OpenHands' conversations: the events of its SDK, and its older trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from refold.adapters.importers import base, decisions, messages
from refold.adapters.importers.openai import attachment_at, call_of
from refold.adapters.importers.runs import Run, Runs
from refold.domain.canonical import canonical
from refold.domain.events import JsonObject
from refold.domain.ids import unknown_response_id

NAME = "openhands"
_EVENTS: Final = "events"
_NOTE: Final = "note of the client, not part of the conversation"
_NOTES: Final = frozenset(
    {
        "CondensationRequest",
        "ConversationStateUpdateEvent",
        "HookExecutionEvent",
        "LLMCompletionLogEvent",
        "PauseEvent",
        "StreamingDeltaEvent",
        "TokenEvent",
        # of older versions
        "agent_state_changed",
        "change_agent_state",
        "condensation_request",
        "null",
        "recall",
        "pause",
        "resume",
    }
)
_CONTEXT: Final = (
    "context that the client attached: the model may have seen it, and contexts do not "
    "show it"
)


def recognises(source: base.Source) -> bool:
    """Whether the file has events, or is the state of a conversation next to them."""
    first = _first(source)
    if "agent" in first and "workspace" in first and "id" in first:
        return True
    has_frame = "timestamp" in first and "source" in first
    if has_frame and base.text(first, "kind"):
        return True
    is_old = base.text(first, "action") or base.text(first, "observation")
    return has_frame and bool(is_old) and "role" not in first


def _first(source: base.Source) -> dict[str, Any]:
    if source.is_lines:
        line = next(source.lines(), None)
        return base.mapping(line.value if line else None)
    document = source.document
    if isinstance(document, list):
        return base.mapping(document[0] if document else None)
    return base.mapping(document)


def read(source: base.Source) -> Iterable[base.Transcript]:
    """Return the transcript of a conversation."""
    state: dict[str, Any] = {}
    if not source.is_lines:
        state = base.mapping(source.document)
    reading = _Reading(source, state)
    for place, event in _events(source, reading):
        reading.take(place, event)
    return [reading.transcript()]


def _events(
    source: base.Source, reading: _Reading
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of a list, of lines, or of the folder next to a state."""
    if source.is_lines:
        for line in source.lines():
            yield f"line {line.number}", base.mapping(line.value)
        return
    if isinstance(source.document, list):
        for index, event in enumerate(source.document):
            yield f"[{index}]", base.mapping(event)
        return
    for path in sorted((source.path.parent / _EVENTS).glob("event-*.json")):
        place = base.shown(f"{_EVENTS}/{path.name}")
        try:
            value, changes = base.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            reading.run.recording.skip("is not a readable event", place)
            continue
        if changes:
            reading.run.recording.skip(base.replaced(changes), place)
        yield place, base.mapping(value)


class _Reading:
    """Reads the events of one conversation."""

    def __init__(self, source: base.Source, state: dict[str, Any]) -> None:
        self._path = source.path
        self._state = state
        self._runs = Runs(NAME, source.name)
        self.run: Run = self._runs.main
        self._usage: dict[str, JsonObject] = {}
        self._models: dict[str, str] = {}
        self._seen_responses: set[str] = set()
        self._model = base.text(state, "agent", "llm", "model")
        metrics = base.mapping(state, "stats", "usage_to_metrics")
        for usages in metrics.values():
            for usage in base.each(usages, "token_usages"):
                response = base.text(usage, "response_id")
                if response:
                    self._usage[response] = _usage(usage)
                    self._models[response] = base.text(usage, "model") or ""

    def transcript(self) -> base.Transcript:
        """Return the transcript of everything that was read."""
        name = base.session_name(self._state, "id")
        folder = base.text(self._state, "workspace", "working_dir") or ""
        title = base.text(self._state, "title") or ""
        (transcript,) = self._runs.transcripts(name, title=title, folder=folder)
        return transcript

    def take(self, place: str, event: dict[str, Any]) -> None:
        """Record the next event."""
        event_id = event.get("id")
        key = None
        if isinstance(event_id, str | int) and not isinstance(event_id, bool):
            key = f"event:{event_id}"
        if key is not None and self.run.has(key):
            why = "event that stands before it already"
            self.run.recording.skip(why, place, note=True)
            return
        origin = base.Origin(
            place,
            ts=base.moment(event, "timestamp"),
            source={"id": str(event_id)} if key else {},
            key=key,
        )
        kind = base.text(event, "kind")
        if kind is not None:
            self._event(kind, event, origin)
        elif base.text(event, "action"):
            self._old_action(event["action"], event, origin)
        elif base.text(event, "observation"):
            self._old_observation(event["observation"], event, origin)
        else:
            self.run.recording.skip("event of an unknown kind", place)

    # The events of the SDK.

    def _event(self, kind: str, event: dict[str, Any], origin: base.Origin) -> None:
        """Record an event of the SDK."""
        match kind:
            case "SystemPromptEvent" | "SystemPromptUpdateEvent":
                texts = [
                    base.text(event, "system_prompt", "text") or "",
                    base.text(event, "dynamic_context", "text") or "",
                ]
                prompt = "\n\n".join(text for text in texts if text)
                self.run.take([messages.system(prompt)], origin)
            case "MessageEvent":
                self._message(event, origin)
            case "ActionEvent":
                self._action(event, origin)
            case "ObservationEvent":
                self.run.take([_result(event)], origin)
            case "UserRejectObservation":
                self._rejection(event, origin)
            case "AgentErrorEvent":
                call_id = base.text(event, "tool_call_id") or ""
                text = base.text(event, "error")
                self.run.take(
                    [messages.tool_result(call_id, text, failed=True)], origin
                )
            case "Condensation":
                self._condense(event, origin)
            case "ConversationErrorEvent":
                fields = {
                    "code": base.text(event, "code") or kind,
                    "message": base.text(event, "detail") or "",
                    "where": NAME,
                }
                self.run.take([base.Piece("error", fields)], origin)
            case _:
                is_note = kind in _NOTES
                why = _NOTE if is_note else "event of an unknown kind"
                self.run.recording.skip(why, origin.place, note=is_note)

    def _of_model(self, response: str | None, origin: base.Origin) -> base.Origin:
        """Return the origin of an event of the model, with its response's tokens."""
        response = response or unknown_response_id(origin.key or origin.place)
        return replace(
            origin,
            model=self._models.get(response) or self._model,
            response_id=response,
            usage=self._usage.get(response),
        )

    def _message(self, event: dict[str, Any], origin: base.Origin) -> None:
        """Record a message of the user, of the agent, or of the environment."""
        message = base.mapping(event, "llm_message")
        content = [
            *base.sequence(message, "content"),
            *base.sequence(event, "extended_content"),
        ]
        if isinstance(message.get("content"), str):
            content = [message["content"], *base.sequence(event, "extended_content")]
        if event.get("source") == "agent" and message.get("role") != "user":
            response = base.text(event, "llm_response_id")
            texts = [messages.text_of(part) or "" for part in content]
            pieces = messages.response(texts, _thinking(message))
            self.run.take(
                [*pieces] or [messages.EMPTY], self._of_model(response, origin)
            )
            return
        if event.get("source") != "user":
            origin = replace(origin, source={**origin.source, "meta": True})
        self.run.take(_input(content), origin)

    def _action(self, event: dict[str, Any], origin: base.Origin) -> None:
        """Record a call, and the thought before it.

        Parallel calls share a response, whose first call has its thought.
        """
        response = base.text(event, "llm_response_id")
        texts = [messages.text_of(part) or "" for part in base.each(event, "thought")]
        pieces: list[base.PieceOrSkipped] = [
            *messages.response(texts, _thinking(event))
        ]
        call = base.mapping(event, "tool_call")
        function = base.mapping(call, "function") or call
        call_id = base.text(call, "id") or base.text(event, "tool_call_id") or ""
        if not function:
            function = {
                "name": event.get("tool_name"),
                "arguments": base.mapping(event, "action"),
            }
        pieces += call_of(call_id, function, "tool_call")
        self.run.take(pieces, self._of_model(response, origin))

    def _rejection(self, event: dict[str, Any], origin: base.Origin) -> None:
        """Record the result of a call that was rejected, and the decision."""
        call_id = base.text(event, "tool_call_id") or ""
        reason = base.text(event, "rejection_reason") or ""
        by = "settings" if event.get("rejection_source") == "hook" else "user"
        text = f"Action rejected: {reason}"
        self.run.take(
            [
                messages.tool_result(call_id, text, failed=True),
                decisions.decision(
                    decisions.TOOL,
                    decisions.REJECTED,
                    call_id=call_id,
                    by=by,
                    reason=reason,
                ),
            ],
            origin,
        )

    def _condense(self, event: dict[str, Any], origin: base.Origin) -> None:
        """Record that contexts leave out some events, and show a summary of them."""
        forgotten = {
            f"event:{event_id}"
            for event_id in base.sequence(event, "forgotten_event_ids")
        }
        first_id = base.number(event, "forgotten_events_start_id")
        last_id = base.number(event, "forgotten_events_end_id")
        if first_id is not None and last_id is not None:
            ids = range(int(first_id), int(last_id) + 1)
            forgotten |= {f"event:{event_id}" for event_id in ids}
        remaining = [key for key in self.run.visible if key not in forgotten]
        summary = base.text(event, "summary")
        if summary is None:
            if origin.key is None or len(remaining) == len(self.run.visible):
                self.run.recording.skip(_NOTE, origin.place, note=True)
                return
            self.run.show_only(remaining, origin, "compaction")
            return
        source = {**origin.source, "meta": True, "compact_summary": True}
        self.run.take([messages.user_input([summary])], replace(origin, source=source))
        if origin.key is None:
            return
        offset = int(base.number(event, "summary_offset") or 0)
        # The system prompt counts, too, but no client leaves it out.
        before = remaining[: max(offset - 1, 0)]
        edit = replace(origin, key=f"{origin.key}:condensation")
        self.run.show_only(
            [*remaining, origin.key],
            edit,
            "compaction",
            before_others=[*before, origin.key],
        )

    # The events of versions before the SDK.

    def _old_action(
        self, action: str, event: dict[str, Any], origin: base.Origin
    ) -> None:
        """Record an action of an older trajectory."""
        args = base.mapping(event, "args")
        if action == "system":
            self.run.take([messages.system(args.get("content"))], origin)
            return
        if action == "condensation":
            self._condense(args, origin)
            return
        if action in _NOTES:
            self.run.recording.skip(_NOTE, origin.place, note=True)
            return
        is_of_agent = event.get("source") == "agent"
        if action == "message" and not is_of_agent:
            images = [
                {"type": "image", "image_urls": base.sequence(args, "image_urls")}
            ]
            self.run.take(_input([args.get("content"), *images]), origin)
            return
        metadata = base.mapping(event, "tool_call_metadata")
        answer = base.mapping(metadata, "model_response")
        response = base.text(answer, "id")
        if response:
            self._usage.setdefault(
                response, _openai_usage(base.mapping(answer, "usage"))
            )
            self._models.setdefault(response, base.text(answer, "model") or "")
        if not is_of_agent:
            origin = replace(origin, source={**origin.source, "author": "user"})
        self.run.take(
            self._old_pieces(action, args, metadata, response, event),
            self._of_model(response, origin),
        )

    def _old_pieces(
        self,
        action: str,
        args: dict[str, Any],
        metadata: dict[str, Any],
        response: str | None,
        event: dict[str, Any],
    ) -> Iterator[base.PieceOrSkipped]:
        """Yield the response of the model in an action, and its call."""
        if action == "message":
            text = base.text(args, "content") or ""
            pieces: list[base.PieceOrSkipped] = [*messages.response([text])]
            yield from pieces or [messages.EMPTY]
            return
        if not metadata:
            thought = base.text(args, "thought") or ""
            if action == "finish":
                thought = base.text(args, "final_thought") or thought
            yield from messages.response([thought])
            arguments = {k: v for k, v in args.items() if k != "thought"}
            yield messages.tool_call(f"action:{event.get('id')}", action, arguments)
            return
        choices = [*base.each(metadata, "model_response", "choices")]
        message = base.mapping(choices[0] if choices else None, "message")
        if response is None or response not in self._seen_responses:
            texts = messages.only_texts(message.get("content")) or []
            yield from messages.response(texts, _thinking(message))
            if response is not None:
                self._seen_responses.add(response)
        call_id = base.text(metadata, "tool_call_id") or ""
        for call in base.each(message, "tool_calls"):
            if call.get("id") == call_id:
                yield from call_of(
                    call_id, base.mapping(call, "function"), "tool_calls"
                )
                return
        yield messages.tool_call(call_id, metadata.get("function_name"), args)

    def _old_observation(
        self, observation: str, event: dict[str, Any], origin: base.Origin
    ) -> None:
        """Record an observation of an older trajectory: the result of an action."""
        call_id = base.text(event, "tool_call_metadata", "tool_call_id")
        call_id = call_id or f"action:{event.get('cause')}"
        extras = base.mapping(event, "extras")
        text = event.get("content")
        exit_code = base.number(extras, "metadata", "exit_code")
        if exit_code is None:
            exit_code = base.number(extras, "exit_code")
        failed = observation == "error" or exit_code not in (None, 0, -1)
        if self.run.recording.waits(call_id):
            pieces = [messages.tool_result(call_id, text, failed=failed)]
            if observation == "user_rejected":
                pieces.append(
                    decisions.decision(
                        decisions.TOOL, decisions.REJECTED, call_id=call_id
                    )
                )
            self.run.take(pieces, origin)
        elif observation == "error":
            fields = {
                "code": base.text(extras, "error_id") or "error",
                "message": base.text(text) or "",
                "where": NAME,
            }
            self.run.take([base.Piece("error", fields)], origin)
        elif observation == "recall":
            self.run.recording.skip(_CONTEXT, origin.place)
        else:
            is_note = observation in _NOTES or not text
            why = _NOTE if is_note else "observation of no action that waits for it"
            self.run.recording.skip(why, origin.place, note=is_note)


def _input(content: list[Any]) -> Iterator[base.PieceOrSkipped]:
    """Yield the input in a content of texts and images."""
    texts: list[str] = []
    files: list[JsonObject] = []
    for index, part in enumerate(content):
        text = messages.text_of(part)
        if text is not None:
            texts.append(text)
        elif base.at(part, "type") == "image":
            for url in base.sequence(part, "image_urls"):
                if isinstance(url, str):
                    files.append(attachment_at("image", url))
        elif part is not None:
            yield base.Skipped(f"content[{index}]", "part that is no text or image")
    yield messages.user_input(texts, files)


def _thinking(value: dict[str, Any]) -> list[JsonObject]:
    """Return the thinking blocks of a message or an action, else its reasoning."""
    blocks = [
        messages.thinking_of(block)
        for block in base.each(value, "thinking_blocks")
        if base.text(block, "type")
    ]
    return blocks or messages.thinking_blocks(base.text(value, "reasoning_content"))


def _result(event: dict[str, Any]) -> base.PieceOrSkipped:
    """Return the result of a call in an observation."""
    call_id = base.text(event, "tool_call_id")
    if call_id is None:
        return messages.NO_CALL
    observation = base.mapping(event, "observation")
    exit_code = base.number(observation, "exit_code")
    failed = observation.get("is_error") is True or exit_code not in (None, 0, -1)
    parts = base.sequence(observation, "content")
    texts: list[str] = []
    blocks: list[JsonObject] = []
    for part in [*parts, *base.sequence(event, "extended_content")]:
        text = messages.text_of(part)
        if text is not None:
            texts.append(text)
        for url in base.sequence(part, "image_urls"):
            file = attachment_at("image", str(url))
            source = {
                "type": "base64",
                "media_type": file.get("media_type"),
                "data": file.get("data"),
            }
            if "url" in file:
                source = {"type": "url", "url": file["url"]}
            blocks.append({"type": "image", "source": source})
    if not parts:  # each tool of older versions had fields of its own
        own = base.text(observation, "output") or base.text(observation, "content")
        fields = {k: v for k, v in observation.items() if k != "kind"}
        texts.insert(0, own or canonical(fields).decode())
    content: Any = "\n".join(texts)
    if blocks:
        content = [{"type": "text", "text": content}, *blocks]
    return messages.tool_result(call_id, content, failed=failed)


def _usage(usage: dict[str, Any]) -> JsonObject:
    """Return the tokens of a response.  The prompt counts cached tokens, too."""
    cached = int(base.number(usage, "cache_read_tokens") or 0)
    written = int(base.number(usage, "cache_write_tokens") or 0)
    prompt = int(base.number(usage, "prompt_tokens") or 0)
    return {
        "input_tokens": max(prompt - cached - written, 0),
        "output_tokens": int(base.number(usage, "completion_tokens") or 0),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": written,
    }


def _openai_usage(usage: dict[str, Any]) -> JsonObject:
    """Return the tokens of a response of an older trajectory."""
    cached = base.number(usage, "prompt_tokens_details", "cached_tokens")
    written = base.number(usage, "cache_creation_input_tokens")
    return _usage({**usage, "cache_read_tokens": cached, "cache_write_tokens": written})
