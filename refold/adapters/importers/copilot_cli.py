"""GitHub Copilot CLI's sessions: ``events.jsonl``, with one event in each line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from refold.adapters.importers import base, decisions, messages
from refold.adapters.importers.openai import attachment_at
from refold.adapters.importers.runs import MAIN, Run, Runs
from refold.domain.canonical import canonical
from refold.domain.events import JsonObject
from refold.domain.ids import unknown_response_id

NAME = "copilot-cli"
_START: Final = "session.start"
# The kinds of events that repeat others, or that are no part of the conversation.
_NOTES: Final = {
    "assistant.turn_start": "begin of a turn",
    "assistant.turn_end": "end of a turn",
    "tool.execution_start": "begin of a call, which the answer has already",
    "session.usage_record": "tokens of an answer, which the answer has",
    "assistant.usage": "tokens of an answer, which the answer has",
    "subagent.started": "begin of a sub-agent, which has a session of its own",
    "subagent.completed": "end of a sub-agent, which has a session of its own",
    "subagent.failed": "end of a sub-agent, which has a session of its own",
}
_NOTE: Final = "note of the client, not part of the conversation"
_NOTE_FAMILIES: Final = ("session.", "subagent.", "hook.", "permission.", "skill.")
_MESSAGES: Final = frozenset({"user.message", "assistant.message", "system.message"})
_APPROVED: Final = "approved"
_DENIED: Final = "denied"
_BY_PERSON: Final = "interactively"
_UNRECORDED: Final = "attachment of which the transcript has only the name"


def recognises(source: base.Source) -> bool:
    """Whether the first line is the start of a session of Copilot."""
    if not source.is_lines:
        return False
    first = next(source.lines(), None)
    entry = base.mapping(first.value if first else None)
    return entry.get("type") == _START and "sessionId" in base.mapping(entry, "data")


def read(source: base.Source) -> Iterable[base.Transcript]:
    """Return the transcripts of the session and of each sub-agent's run."""
    session = _Session(source)
    for line in source.lines():
        session.remember(base.mapping(line.value))
    for line in source.lines():
        session.take(f"line {line.number}", base.mapping(line.value))
    return session.transcripts()


class _Session:
    """Reads the events of a session in their order."""

    def __init__(self, source: base.Source) -> None:
        self._runs = Runs(NAME, source.name)
        self._name = ""
        self._folder = ""
        self._title = ""
        # The tokens of each answer, by the id of the request that it answers.
        self._usage: dict[str, JsonObject] = {}
        # The time at which each call began.
        self._begun: dict[str, Any] = {}
        # The permission that the client asked for, by the id of the question.
        self._questions: dict[str, dict[str, Any]] = {}
        # The sub-agent that a call started, by the id of the call.
        self._agents: dict[str, str] = {}
        # Thoughts that the client recorded before their answer, by run.
        self._thoughts: dict[str, str] = {}
        self._seen: set[str] = set()

    def remember(self, entry: dict[str, Any]) -> None:
        """Keep what later events say about earlier ones."""
        data = base.mapping(entry, "data")
        usage = base.mapping(data, "usage")
        if entry.get("type") == "assistant.usage":
            usage = data
        request = base.text(usage, "apiCallId")
        if request:
            self._usage[request] = _usage_of(usage)
        agent = base.text(entry, "agentId")
        call = base.text(data, "toolCallId")
        if entry.get("type") == "subagent.started" and agent and call:
            self._agents[call] = agent

    def take(self, place: str, entry: dict[str, Any]) -> None:
        """Take the next event."""
        kind = base.text(entry, "type")
        key = base.text(entry, "id")
        if kind is None:
            why = "not an event: no object with a type"
            self._runs.main.recording.skip(why, place)
            return
        if key in self._seen:
            why = "event that stands before it already"
            self._runs.main.recording.skip(why, place, note=True)
            return
        if key is not None:
            self._seen.add(key)
        data = base.mapping(entry, "data")
        self._about_session(kind, data)
        name = self._run_of(entry, data)
        run = self._runs.of(name) if kind in _MESSAGES else self._run(name)
        origin = base.Origin(
            place,
            ts=base.moment(entry, "timestamp"),
            agent=name or None,
            source={"id": key} if key else {},
            key=key,
        )
        self._take(run, name, kind, data, origin)

    def _run(self, name: str) -> Run:
        """Return a run; notes of a sub-agent without messages are the session's."""
        return self._runs.of(name) if self._runs.has(name) else self._runs.main

    def transcripts(self) -> list[base.Transcript]:
        """Return the transcripts, the session first."""
        return self._runs.transcripts(
            self._name, title=self._title, folder=self._folder
        )

    def _about_session(self, kind: str, data: dict[str, Any]) -> None:
        """Keep the name, the folder, and the title of the session."""
        if kind == _START:
            self._name = self._name or base.session_name(data, "sessionId")
        if kind in (_START, "session.resume", "session.context_changed"):
            folder = base.text(data, "context", "cwd") or base.text(data, "cwd")
            self._folder = self._folder or folder or ""
        if kind == "session.title_changed":
            self._title = base.text(data, "title") or self._title

    def _run_of(self, entry: dict[str, Any], data: dict[str, Any]) -> str:
        """Return the run of an event: its agent, or the call that started the agent.

        Versions before 1.0.40 or so wrote no agents.
        """
        agent = base.text(entry, "agentId")
        if agent is not None:
            return agent
        call = base.text(data, "parentToolCallId")
        if call is None:
            return MAIN
        return self._agents.get(call, call)

    def _take(
        self,
        run: Run,
        name: str,
        kind: str,
        data: dict[str, Any],
        origin: base.Origin,
    ) -> None:
        """Record an event in its run."""
        match kind:
            case "user.message":
                run.take(_user(data), _of_user(data, origin))
            case "system.message":
                run.take([_system(data)], origin)
            case "assistant.message":
                thoughts = self._thoughts.pop(name, "")
                run.take(_answer(data, thoughts), self._of_answer(data, origin))
            case "assistant.reasoning":
                self._thoughts[name] = base.text(data, "content") or ""
                run.recording.skip(
                    "thoughts of the next answer", origin.place, note=True
                )
            case "tool.execution_complete":
                run.take(self._result(data, origin), origin)
            case "tool.execution_start":
                call_id = base.text(data, "toolCallId")
                if call_id:
                    self._begun[call_id] = origin.ts
                run.recording.skip(_NOTES[kind], origin.place, note=True)
            case "permission.requested":
                question = base.text(data, "requestId")
                if question:
                    self._questions[question] = data
                run.recording.skip(_NOTE, origin.place, note=True)
            case "permission.completed":
                run.take(self._decision(data), origin)
            case "session.error" | "abort" | "model.call_failure":
                run.take([_error(kind, data)], origin)
            case "session.compaction_complete":
                _compact(run, data, origin)
            case "session.truncation":
                edit: JsonObject = {"type": kind, **data}
                run.take([base.Piece("provider_edit", {"edits": [edit]})], origin)
                why = "removal of messages that the transcript does not name"
                run.recording.skip(why, origin.place)
            case "session.snapshot_rewind":
                self._rewind(run, data, origin)
            case _:
                is_note = kind in _NOTES or kind.startswith(_NOTE_FAMILIES)
                why = _NOTES.get(kind, _NOTE) if is_note else "event of an unknown type"
                run.recording.skip(why, origin.place, note=is_note)

    def _of_answer(self, data: dict[str, Any], origin: base.Origin) -> base.Origin:
        """Return the origin of an answer, with its tokens.

        Old versions recorded the tokens of the output alone.
        """
        request = base.text(data, "apiCallId")
        usage = self._usage.get(request or "")
        output_tokens = base.number(data, "outputTokens")
        if usage is None and output_tokens:
            usage = {"output_tokens": int(output_tokens)}
        response_id = request or base.text(data, "messageId")
        return replace(
            origin,
            model=base.text(data, "model"),
            request_id=base.text(data, "requestId"),
            response_id=(
                response_id or unknown_response_id(origin.key or origin.place)
            ),
            usage=usage,
        )

    def _result(
        self, data: dict[str, Any], origin: base.Origin
    ) -> Iterator[base.PieceOrSkipped]:
        """Yield the result of a call."""
        call_id = base.text(data, "toolCallId")
        if call_id is None:
            yield messages.NO_CALL
            return
        begun = self._begun.get(call_id)
        took = None
        if begun is not None and origin.ts is not None:
            took = max((origin.ts - begun).total_seconds() * 1000, 0.0)
        exit_code = base.number(data, "shellExecution", "exitCode")
        if exit_code is None:
            exit_code = base.number(data, "toolTelemetry", "metrics", "exit_code")
        yield messages.tool_result(
            call_id,
            _content(data),
            failed=data.get("success") is False or bool(exit_code),
            took=took,
        )

    def _decision(self, data: dict[str, Any]) -> Iterator[base.PieceOrSkipped]:
        """Yield the decision about a call that needs a permission."""
        question = self._questions.pop(base.text(data, "requestId") or "", {})
        request = base.mapping(question, "permissionRequest")
        outcome = base.text(data, "result", "kind") or ""
        call_id = base.text(request, "toolCallId") or base.text(data, "toolCallId")
        is_approved = outcome.startswith(_APPROVED)
        if not call_id or not (is_approved or outcome.startswith(_DENIED)):
            yield base.Skipped("", _NOTE, note=True)
            return
        by = "user" if is_approved or _BY_PERSON in outcome else "settings"
        yield decisions.decision(
            decisions.TOOL,
            decisions.APPROVED if is_approved else decisions.REJECTED,
            call_id=call_id,
            question=base.text(request, "intention") or "",
            by=by,
            reason=base.text(data, "result", "feedback") or "",
        )

    def _rewind(self, run: Run, data: dict[str, Any], origin: base.Origin) -> None:
        """Record that the client removed an event and everything after it."""
        target = base.text(data, "upToEventId")
        shown: list[str] = []
        for key in run.visible:
            if key == target:
                break
            shown.append(key)
        run.show_only(shown, origin, "rewind")


def _usage_of(usage: dict[str, Any]) -> JsonObject:
    """Return the tokens of an answer.  Copilot counts cached tokens in the input."""
    cached = int(base.number(usage, "cacheReadTokens") or 0)
    written = int(base.number(usage, "cacheWriteTokens") or 0)
    input_tokens = int(base.number(usage, "inputTokens") or 0)
    return {
        "input_tokens": max(input_tokens - cached - written, 0),
        "output_tokens": int(base.number(usage, "outputTokens") or 0),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": written,
    }


def _of_user(data: dict[str, Any], origin: base.Origin) -> base.Origin:
    """Return the origin of an input, which the client may have written itself."""
    author = base.text(data, "source")
    if author is None or author == "user":
        return origin
    return replace(origin, source={**origin.source, "meta": True, "author": author})


def _user(data: dict[str, Any]) -> Iterator[base.PieceOrSkipped]:
    """Yield the input as the model got it, with its files."""
    text = base.text(data, "transformedContent") or base.text(data, "content") or ""
    files: list[JsonObject] = []
    for index, item in enumerate(base.each(data, "attachments")):
        content = base.text(item, "data")
        media_type = base.text(item, "mimeType") or "application/octet-stream"
        name = base.text(item, "displayName")
        if content is None:
            yield base.Skipped(f"attachments[{index}]", _UNRECORDED, note=True)
            continue
        kind = "image" if media_type.startswith("image/") else "file"
        url = f"data:{media_type};base64,{content}"
        files.append(attachment_at(kind, url, name))
    yield messages.user_input([text], files)


def _system(data: dict[str, Any]) -> base.PieceOrSkipped:
    """Return the system prompt; a later one takes its place."""
    piece = messages.system(data.get("content"))
    if isinstance(piece, base.Piece) and data.get("role") == "developer":
        piece.fields["where"] = "conversation"
    return piece


def _answer(data: dict[str, Any], thoughts: str) -> Iterator[base.PieceOrSkipped]:
    """Yield the response of the model, and then its calls."""
    text = base.text(data, "content") or ""
    thinking = messages.thinking_blocks(base.text(data, "reasoningText") or thoughts)
    signature = base.text(data, "reasoningOpaque")
    if signature and thinking:
        thinking[0]["signature"] = signature
    elif signature:
        thinking = [{"type": "redacted_thinking", "data": signature}]
    pieces: list[base.PieceOrSkipped] = [*messages.response([text], thinking)]
    for index, call in enumerate(base.each(data, "toolRequests")):
        arguments = call.get("arguments")
        if isinstance(arguments, str):
            parsed, _ = base.parsed(arguments)
            arguments = parsed if isinstance(parsed, dict) else arguments
        piece = messages.tool_call(call.get("toolCallId"), call.get("name"), arguments)
        pieces.append(base.placed(piece, f"toolRequests[{index}]"))
    yield from pieces or [messages.EMPTY]


def _content(data: dict[str, Any]) -> Any:
    """Return the content of a result as the model got it."""
    result = base.at(data, "result")
    text = base.text(result, "content") or ""
    if isinstance(result, str):
        text = result
    error = data.get("error")
    if not text and error:
        text = base.text(error, "message") or base.text(error) or ""
        text = text or canonical(error).decode()
    blocks: list[JsonObject] = []
    for binary in base.each(result, "binaryResultsForLlm"):
        source = {
            "type": "base64",
            "media_type": binary.get("mimeType"),
            "data": binary.get("data"),
        }
        kind = "image" if binary.get("type") == "image" else "document"
        blocks.append({"type": kind, "source": source})
    if not blocks:
        return text
    return [{"type": "text", "text": text}, *blocks]


def _error(kind: str, data: dict[str, Any]) -> base.Piece:
    """Return an error of the provider, or an interruption by the user."""
    message = base.text(data, "message") or base.text(data, "errorMessage")
    fields: dict[str, Any] = {
        "code": base.text(data, "errorType") or kind,
        "message": message or base.text(data, "reason") or "",
        "where": NAME,
    }
    status = base.number(data, "statusCode")
    if status is not None:
        fields["context"] = {"status": int(status)}
    return base.Piece("error", fields)


def _compact(run: Run, data: dict[str, Any], origin: base.Origin) -> None:
    """Record that a summary stands in the place of everything before it."""
    summary = base.text(data, "summaryContent")
    if data.get("success") is False or summary is None:
        run.recording.skip("compaction without a summary", origin.place, note=True)
        return
    source = {**origin.source, "meta": True, "compact_summary": True}
    run.take([messages.user_input([summary])], replace(origin, source=source))
    if origin.key is not None:
        edit = replace(origin, key=f"{origin.key}\0compaction")
        run.show_only([origin.key], edit, "compaction")
