"""Claude Code's session files: one entry a line, one block of a message an entry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from refold.adapters.importers import base, messages
from refold.domain.envelope import Draft, Format
from refold.domain.events import JsonObject, is_unreached

NAME = "claude-code"
_MAIN = ""
_NOTES = {
    "summary": "session title; the model did not see it",
    "system": "notice of the client; the model did not see it",
    "queue-operation": "queue record; the message itself was imported",
    "file-history-snapshot": "snapshot of files that the client keeps for undo",
    "progress": "progress report",
    "attachment": "client's context, in a form that the model did not see",
}
_NOTE = "note of the client, not part of the conversation"
_OF_SESSION = ("agent-color", "agent-name", "ai-title", "custom-title", "tag")
_OF_WORK = ("last-prompt", "mode", "permission-mode", "pr-link", "worktree-state")
_NOTES |= dict.fromkeys(_OF_SESSION + _OF_WORK, _NOTE)
_FLAGS = {
    "isMeta": "meta",
    "isCompactSummary": "compact_summary",
    "isVisibleInTranscriptOnly": "transcript_only",
}
_DURATIONS = {"durationMs": 1.0, "totalDurationMs": 1.0, "durationSeconds": 1000.0}


def recognises(source: base.Source) -> bool:
    """Whether the first message has Claude Code's frame, and only notes before."""
    seen = False
    for line in source.lines():
        entry = base.mapping(line.value)
        if entry.get("type") in ("user", "assistant"):
            framed = entry.keys() & {"sessionId", "parentUuid", "isSidechain"}
            return bool(framed) and isinstance(entry.get("message"), dict | str)
        if base.text(entry, "type") not in _NOTES or "role" in entry:
            return False
        seen = True
    return seen


def read(source: base.Source) -> Iterable[base.Transcript]:
    """The main conversation, and each sub-agent's as a transcript of its own."""
    reading = _Conversations(source)
    for line in source.lines():
        reading.entry(line.number, line.value)
    return reading.transcripts()


class _Conversations:
    def __init__(self, source: base.Source) -> None:
        made = partial(base.Recording, NAME, source.name)
        self._stem = source.path.stem
        self._recordings = defaultdict[str, base.Recording](made)
        self._aside = made()  # what belongs to no conversation
        self._begun: dict[str, None] = {}
        self._lines: dict[str, int] = {}
        self._sessions: dict[str, None] = {}
        self._chain_of: dict[str, str] = {}
        self._chain_of_agent: dict[str, str] = {}

    def entry(self, number: int, value: Any) -> None:
        place = f"line {number}"
        entry = base.mapping(value)
        uuid = base.text(entry, "uuid")
        if uuid and self._lines.setdefault(uuid, number) != number:
            self._aside.skip(f"same entry as line {self._lines[uuid]}", place)
            return
        if session := base.session_name(entry, "sessionId"):
            self._sessions.setdefault(session)
        chain = self._chain(entry, place)
        found = _found(entry)
        if isinstance(found, str):
            self._aside.skip(found, place)
        else:
            recording = self._recordings[chain]
            recording.take(found, self._origin(entry, place))
            if recording.begun:
                self._begun.setdefault(chain)

    def transcripts(self) -> list[base.Transcript]:
        """Those that began, in that order; what belongs to none is with the first."""
        silent = (chain for chain in self._recordings if chain not in self._begun)
        chains = [*self._begun, *silent]
        # The session that the file is named after; else the first that is named in it,
        # as a resumed one begins with entries of the one that it goes on from.
        named = self._stem in self._sessions
        session = self._stem if named else next(iter(self._sessions), "")
        first, *others = (self._told(chain, session) for chain in chains or [_MAIN])
        skipped = *first.skipped, *self._aside.transcript("").skipped
        return [replace(first, skipped=skipped), *others]

    def _told(self, chain: str, session: str) -> base.Transcript:
        recording = self._recordings[chain]
        if chain == _MAIN or not session:
            return recording.transcript(session if chain == _MAIN else "")
        name = base.session_name(f"{session}~{chain[:8]}")
        return recording.transcript(name, parent=session)

    def _chain(self, entry: dict[str, Any], place: str) -> str:
        """The conversation of an entry, named by its first entry's uuid."""
        if entry.get("isSidechain") is not True:
            return _MAIN
        uuid, agent = base.text(entry, "uuid"), base.text(entry, "agentId")
        parents = (base.text(entry, x) for x in ("parentUuid", "logicalParentUuid"))
        known = [self._chain_of.get(parent or "") for parent in parents]
        known.append(self._chain_of_agent.get(agent or ""))
        chain = next(filter(None, known), None) or uuid or agent or place
        if agent:
            self._chain_of_agent.setdefault(agent, chain)
        if uuid:
            self._chain_of[uuid] = chain
        return chain

    def _origin(self, entry: dict[str, Any], place: str) -> base.Origin:
        origin = _origin(entry, place)
        session = base.session_name(entry, "sessionId")
        if session and session != next(iter(self._sessions)):
            origin.source["session"] = session
        return origin


def _origin(entry: dict[str, Any], place: str) -> base.Origin:
    source: JsonObject = {
        name: entry[key]
        for name, key in (("id", "uuid"), ("parent", "parentUuid"))
        if base.text(entry, key)
    }
    source |= {name: True for flag, name in _FLAGS.items() if entry.get(flag) is True}
    if entry.get("type") == "attachment":
        typed = base.at(entry, "attachment", "commandMode") in (None, "prompt")
        source["queued"] = True
        if base.at(entry, "attachment", "isMeta") is True or not typed:
            source["meta"] = True
    message = base.mapping(entry, "message")
    of_model = entry.get("type") == "assistant"
    response = base.text(message, "id") or f"msg:{entry.get('uuid') or place}"
    return base.Origin(
        place,
        ts=base.moment(entry, "timestamp"),
        request_id=base.text(entry, "requestId"),
        agent=base.text(entry, "agentId"),
        model=base.text(message, "model"),
        response_id=response if of_model else None,
        usage=base.mapping(message, "usage") or None,
        source=source,
    )


def _view(_: str, entry: Any, __: object) -> Iterator[Draft]:
    found, entry = _found(base.mapping(entry)), base.mapping(entry)
    return base.typed(() if isinstance(found, str) else found, _origin(entry, ""))


# A line of a session file.
FORMAT = Format(
    NAME,
    _view,
    lambda entry: base.text(entry, "type") or "",
    lambda entry: base.text(entry, "uuid"),
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
        told = base.mapping(entry, "toolUseResult")
        for key, unit in _DURATIONS.items():
            took = base.milliseconds(told, key, per_unit=unit)
            if took is not None:
                results[0].fields.setdefault("duration_ms", took)
    yield from found


def _assistant(entry: dict[str, Any]) -> Iterator[base.Found]:
    content = _content(entry)
    if entry.get("isApiErrorMessage") is True:
        message = "".join(messages.plain(content) or [])
        code = base.text(entry, "error") or "api_error"
        fields = {"code": code, "message": message, "retryable": is_unreached(code)}
        return iter([base.Piece("error", fields)])
    reason = base.at(entry, "message", "stop_reason")
    return messages.agent(content, stop_reason=reason)


def _content(entry: dict[str, Any]) -> Any:
    message = entry.get("message")
    return message if isinstance(message, str) else base.at(message, "content")


def _is_queued(entry: dict[str, Any]) -> bool:
    """Whether this is what a user typed while the agent worked."""
    queued = base.at(entry, "attachment", "type") == "queued_command"
    return entry.get("type") == "attachment" and queued
