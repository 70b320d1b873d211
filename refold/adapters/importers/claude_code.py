"""Claude Code's session files: one entry a line, one block of a message an entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from refold.adapters.importers import base, messages
from refold.domain.envelope import Draft, Format
from refold.domain.events import JsonObject, is_unreached

_MAIN = ""
_NOTES = {
    "summary": "session title; the model did not see it",
    "system": "notice of the client; the model did not see it",
    "queue-operation": "queue record; the message itself was imported",
    "file-history-snapshot": "snapshot of files that the client keeps for undo",
    "progress": "progress report",
    "attachment": "client's context, in a form that the model did not see",
    **dict.fromkeys(
        (
            "agent-color",
            "agent-name",
            "ai-title",
            "custom-title",
            "last-prompt",
            "mode",
            "permission-mode",
            "pr-link",
            "tag",
            "worktree-state",
        ),
        "note of the client, not part of the conversation",
    ),
}
_FLAGS = {
    "isMeta": "meta",
    "isCompactSummary": "compact_summary",
    "isVisibleInTranscriptOnly": "transcript_only",
}
_DURATIONS = {"durationMs": 1.0, "totalDurationMs": 1.0, "durationSeconds": 1000.0}


class ClaudeCode:
    """Reads the main conversation, and each sub-agent's as a transcript of its own."""

    name = "claude-code"

    def recognises(self, source: base.Source) -> bool:
        """Whether the first message has Claude Code's frame, and only notes before."""
        seen = False
        for line in source.lines():
            entry = base.mapping(line.value)
            if entry.get("type") in ("user", "assistant"):
                framed = entry.keys() & {"sessionId", "parentUuid", "isSidechain"}
                return bool(framed) and isinstance(entry.get("message"), dict | str)
            if base.text(entry.get("type")) not in _NOTES or "role" in entry:
                return False
            seen = True
        return seen

    def read(self, source: base.Source) -> Iterable[base.Transcript]:
        """The transcripts, each in the file's order."""
        reading = _Conversations(source)
        for line in source.lines():
            reading.entry(line.number, line.value)
        return reading.transcripts()


class _Conversations:
    def __init__(self, source: base.Source) -> None:
        self._source = source
        self._recordings: dict[str, base.Recording] = {}
        self._begun: dict[str, None] = {}
        self._skipped: list[base.Skipped] = []
        self._lines: dict[str, int] = {}
        self._sessions: dict[str, None] = {}
        self._chain_of: dict[str, str] = {}
        self._chain_of_agent: dict[str, str] = {}

    def entry(self, number: int, value: Any) -> None:
        place = f"line {number}"
        entry = base.mapping(value)
        uuid = base.text(entry.get("uuid"))
        if uuid and uuid in self._lines:
            self._skip(f"same entry as line {self._lines[uuid]}", place)
            return
        if uuid:
            self._lines[uuid] = number
        if session := base.session_name(entry.get("sessionId")):
            self._sessions.setdefault(session)
        chain = self._chain(entry, place)
        found = _found(entry)
        if isinstance(found, str):
            self._skip(found, place)
        else:
            recording = self._recording(chain)
            recording.take(found, self._origin(entry, place))
            if recording.begun:
                self._begun.setdefault(chain)

    def transcripts(self) -> list[base.Transcript]:
        """Those that began, in that order; what belongs to none is with the first."""
        silent = (chain for chain in self._recordings if chain not in self._begun)
        chains = [*self._begun, *silent]
        # The session that the file is named after; else the first that is named in it,
        # as a resumed one begins with entries of the one that it goes on from.
        stem = self._source.path.stem
        session = stem if stem in self._sessions else next(iter(self._sessions), "")
        first, *others = (
            _transcript(chain, self._recording(chain), session)
            for chain in chains or [_MAIN]
        )
        return [replace(first, skipped=(*first.skipped, *self._skipped)), *others]

    def _skip(self, why: str, place: str) -> None:
        self._skipped.append(base.Skipped(self._source.at(place), why))

    def _recording(self, chain: str) -> base.Recording:
        if chain not in self._recordings:
            self._recordings[chain] = base.Recording(ClaudeCode.name, self._source.name)
        return self._recordings[chain]

    def _chain(self, entry: dict[str, Any], place: str) -> str:
        """The conversation of an entry, named by its first entry's uuid."""
        if entry.get("isSidechain") is not True:
            return _MAIN
        uuid, agent = base.text(entry.get("uuid")), base.text(entry.get("agentId"))
        parents = map(
            base.text, (entry.get("parentUuid"), entry.get("logicalParentUuid"))
        )
        known = (self._chain_of.get(parent) for parent in parents if parent)
        chain = next(filter(None, known), None)
        if chain is None and agent:
            chain = self._chain_of_agent.get(agent)
        if chain is None:
            chain = uuid or agent or place
        if agent:
            self._chain_of_agent.setdefault(agent, chain)
        if uuid:
            self._chain_of[uuid] = chain
        return chain

    def _origin(self, entry: dict[str, Any], place: str) -> base.Origin:
        origin = _origin(entry, place)
        session = base.session_name(entry.get("sessionId"))
        if session and session != next(iter(self._sessions)):
            origin.source["session"] = session
        return origin


def _origin(entry: dict[str, Any], place: str) -> base.Origin:
    source: JsonObject = {
        name: entry[key]
        for name, key in (("id", "uuid"), ("parent", "parentUuid"))
        if base.text(entry.get(key))
    }
    source |= {name: True for flag, name in _FLAGS.items() if entry.get(flag) is True}
    if entry.get("type") == "attachment":
        attachment = base.mapping(entry.get("attachment"))
        typed = attachment.get("commandMode") in (None, "prompt")
        source["queued"] = True
        if attachment.get("isMeta") is True or not typed:
            source["meta"] = True
    message = base.mapping(entry.get("message"))
    of_model = entry.get("type") == "assistant"
    response = base.text(message.get("id")) or f"msg:{entry.get('uuid') or place}"
    return base.Origin(
        place,
        ts=base.moment(entry.get("timestamp")),
        request_id=base.text(entry.get("requestId")),
        agent=base.text(entry.get("agentId")),
        model=base.text(message.get("model")),
        response_id=response if of_model else None,
        usage=base.mapping(message.get("usage")) or None,
        source=source,
    )


def _view(_: str, entry: Any, __: object) -> Iterator[Draft]:
    found, entry = _found(base.mapping(entry)), base.mapping(entry)
    return base.typed(() if isinstance(found, str) else found, _origin(entry, ""))


# A line of a session file.
FORMAT = Format(
    ClaudeCode.name,
    _view,
    lambda entry: base.text(base.mapping(entry).get("type")) or "",
    lambda entry: base.text(base.mapping(entry).get("uuid")),
)


def _transcript(chain: str, recording: base.Recording, session: str) -> base.Transcript:
    if chain == _MAIN or not session:
        return recording.transcript(session if chain == _MAIN else "")
    return recording.transcript(
        base.session_name(f"{session}~{chain[:8]}"), parent=session
    )


def _found(entry: dict[str, Any]) -> Iterator[base.Found] | str:
    """The events of an entry, or why there are none."""
    kind = entry.get("type")
    if kind == "user" or _is_queued(entry):
        return _user(entry)
    if kind == "assistant":
        return _assistant(entry)
    if entry.get("subtype") == "compact_boundary":
        return "compaction mark; the summary itself was imported"
    if not isinstance(kind, str):
        return "not an entry: no object with a type"
    return _NOTES.get(kind, "entry of an unknown type")


def _user(entry: dict[str, Any]) -> Iterator[base.Found]:
    content = _content(entry)
    if _is_queued(entry):
        content = entry["attachment"].get("prompt")
    found = list(messages.user(content))
    pieces = [item for item in found if isinstance(item, base.Piece)]
    results = [piece for piece in pieces if piece.type == "tool_result"]
    if len(results) == 1:
        told = base.mapping(entry.get("toolUseResult"))
        for key, unit in _DURATIONS.items():
            took = base.milliseconds(told.get(key), per_unit=unit)
            if took is not None:
                results[0].fields.setdefault("duration_ms", took)
    yield from found


def _assistant(entry: dict[str, Any]) -> Iterator[base.Found]:
    content = _content(entry)
    if entry.get("isApiErrorMessage") is True:
        message = "".join(messages.plain(content) or [])
        code = base.text(entry.get("error")) or "api_error"
        passing = is_unreached(code)
        fields = {"code": code, "message": message, "retryable": passing}
        return iter([base.Piece("error", fields)])
    reason = base.mapping(entry.get("message")).get("stop_reason")
    return messages.agent(content, stop_reason=reason)


def _content(entry: dict[str, Any]) -> Any:
    message = entry.get("message")
    return message if isinstance(message, str) else base.mapping(message).get("content")


def _is_queued(entry: dict[str, Any]) -> bool:
    """Whether this is what a user typed while the agent worked."""
    attachment = base.mapping(entry.get("attachment"))
    queued = attachment.get("type") == "queued_command"
    return entry.get("type") == "attachment" and queued
