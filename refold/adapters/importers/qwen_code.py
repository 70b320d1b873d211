"""Qwen Code's chats: lines with entries, whose messages have Gemini's parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from refold.adapters.importers import base, decisions, gemini_parts, messages
from refold.adapters.importers.identity import content_digest
from refold.adapters.importers.runs import MAIN, Run, Runs
from refold.domain.events import JsonObject
from refold.domain.ids import unknown_response_id

NAME = "qwen-code"
_TOKENS: Final = {
    "input": "promptTokenCount",
    "cached": "cachedContentTokenCount",
    "output": "candidatesTokenCount",
    "thoughts": "thoughtsTokenCount",
}
_TYPES: Final = frozenset({"user", "assistant", "tool_result", "system"})
_COMPRESSION: Final = "chat_compression"
_PARENT: Final = "parent_session"
# The kind of a message that the user typed while the agent worked.
_QUEUED: Final = "mid_turn_user_message"
_TITLES: Final = frozenset({"custom_title", "session_title"})
_FAILED: Final = frozenset({"error", "cancelled"})


def recognises(source: base.Source) -> bool:
    """Whether the first entry has an id, a session, and a message with parts."""
    if not source.is_lines:
        return False
    for line in source.lines():
        entry = base.mapping(line.value)
        if not ("uuid" in entry and "sessionId" in entry and "version" in entry):
            return False
        if isinstance(base.at(entry, "message", "parts"), list):
            return True
        if entry.get("type") != "system" or "subtype" not in entry:
            return False
    return False


def read(source: base.Source) -> Iterable[base.Transcript]:
    """Return the transcripts of the main conversation and of each sub-agent's run."""
    chat = _Chat(source)
    for line in source.lines():
        chat.take(f"line {line.number}", base.mapping(line.value))
    return chat.transcripts()


class _Chat:
    """Reads the entries of a file in their order."""

    def __init__(self, source: base.Source) -> None:
        self._runs = Runs(NAME, source.name)
        self._session = ""
        self._folder = ""
        self._title = ""
        # The parent of each entry, and the run and keys of the last entry of each run.
        self._parents: dict[str, str | None] = {}
        self._last: dict[str, str] = {}
        self._durations: dict[str, float] = {}
        self._parent = ""
        # The entry of each part, by a digest of the part.
        self._keys_of_parts: dict[str, str] = {}

    def take(self, place: str, entry: dict[str, Any]) -> None:
        """Take the next entry."""
        uuid = base.text(entry, "uuid")
        if uuid is None or base.text(entry, "type") not in _TYPES:
            why = "entry of an unknown type"
            self._runs.main.recording.skip(why, place)
            return
        if uuid in self._parents:
            why = "entry that stands before it already"
            self._runs.main.recording.skip(why, place, note=True)
            return
        self._session = self._session or base.session_name(entry, "sessionId")
        self._folder = self._folder or base.text(entry, "cwd") or ""
        name = MAIN
        if entry.get("isSidechain") is True:
            name = base.text(entry, "agentId") or uuid
        run = self._runs.of(name)
        self._parents[uuid] = base.text(entry, "parentUuid")
        self._follow(run, name, place, uuid, entry)
        self._last[name] = uuid
        if entry["type"] == "system":
            self._system(run, place, uuid, entry)
        else:
            run.take(self._pieces(entry), self._origin(place, uuid, entry))
            self._remember_parts(uuid, base.at(entry, "message", "parts"))

    def transcripts(self) -> list[base.Transcript]:
        """Return the transcripts, the main conversation first."""
        return self._runs.transcripts(
            self._session,
            parent=self._parent or None,
            title=self._title,
            folder=self._folder,
        )

    def _remember_parts(self, key: str, content: Any) -> None:
        """Remember which entry has these parts: a compression may repeat them."""
        for part in gemini_parts.parts_of(content):
            self._keys_of_parts[content_digest(part)] = key

    def _follow(
        self, run: Run, name: str, place: str, uuid: str, entry: dict[str, Any]
    ) -> None:
        """Record a rewind if the entry's parent is not the entry before it."""
        parent = self._parents[uuid]
        before = self._last.get(name)
        if before is None or parent == before:
            return
        path: set[str] = set()
        ancestor = parent
        while ancestor is not None and ancestor not in path:
            path.add(ancestor)
            ancestor = self._parents.get(ancestor)
        shown = [key for key in run.visible if key.partition("\0")[0] in path]
        ts = base.moment(entry, "timestamp")
        origin = base.Origin(place, ts=ts, key=f"{uuid}\0rewind")
        run.show_only(shown, origin, "rewind")

    def _origin(self, place: str, uuid: str, entry: dict[str, Any]) -> base.Origin:
        """Return the origin of an entry's events."""
        source: JsonObject = {"id": uuid}
        is_of_model = entry["type"] == "assistant"
        subtype = base.text(entry, "subtype")
        if entry["type"] == "user" and subtype == _QUEUED:
            source["queued"] = True
        elif entry["type"] == "user" and subtype:
            source["meta"] = True
        usage = None
        if is_of_model:
            metadata = base.mapping(entry, "usageMetadata")
            usage = gemini_parts.usage(metadata, _TOKENS)
        return base.Origin(
            place,
            ts=base.moment(entry, "timestamp"),
            agent=base.text(entry, "agentId"),
            model=base.text(entry, "model") if is_of_model else None,
            response_id=unknown_response_id(uuid) if is_of_model else None,
            usage=usage,
            source=source,
            key=uuid,
        )

    def _pieces(self, entry: dict[str, Any]) -> Iterator[base.PieceOrSkipped]:
        """Yield the events of a message."""
        content = base.at(entry, "message", "parts")
        if entry["type"] == "assistant":
            answer = gemini_parts.answer(content)
            yield from answer.pieces()
            for index, call in enumerate(answer.calls):
                call_id = base.text(call, "id") or f"{entry['uuid']}:{index}"
                yield gemini_parts.call(call, call_id)
            if not (answer.texts or answer.thinking or answer.calls or answer.blocks):
                yield messages.EMPTY
            return
        has_result = False
        for part in gemini_parts.parts_of(content):
            response = base.mapping(part, "functionResponse")
            if response:
                has_result = True
                yield from self._result(response, entry)
        others = list(gemini_parts.user(content))
        if others or not has_result:
            yield from others or [messages.EMPTY]

    def _result(
        self, response: dict[str, Any], entry: dict[str, Any]
    ) -> Iterator[base.PieceOrSkipped]:
        """Yield the result of a call, and the decision of a person about the call."""
        call_id = base.text(response, "id") or base.text(
            entry, "toolCallResult", "callId"
        )
        if call_id is None:
            yield messages.NO_CALL
            return
        status = base.text(entry, "toolCallResult", "status")
        output = gemini_parts.output(response)
        yield messages.tool_result(
            call_id,
            output.content,
            failed=output.failed or status in _FAILED,
            took=self._durations.get(call_id),
        )
        if status == "cancelled":
            yield decisions.decision(
                decisions.TOOL, decisions.REJECTED, call_id=call_id
            )

    def _system(self, run: Run, place: str, uuid: str, entry: dict[str, Any]) -> None:
        """Take an entry about the session: a compression, a title, or a note."""
        subtype = base.text(entry, "subtype") or ""
        payload = base.mapping(entry, "systemPayload")
        event = base.mapping(payload, "uiEvent")
        call_id = base.text(event, "call_id")
        duration = base.milliseconds(event, "duration_ms")
        if call_id and duration is not None:
            self._durations[call_id] = duration
        if subtype == _COMPRESSION:
            self._compress(run, place, uuid, entry)
            return
        if subtype == _PARENT:
            self._parent = base.session_name(payload, "parentSessionId")
        if subtype in _TITLES:
            title = base.text(payload, "customTitle") or base.text(payload, "title")
            self._title = title or self._title
        why = "note of the client, not part of the conversation"
        run.recording.skip(why, place, note=True)

    def _compress(self, run: Run, place: str, uuid: str, entry: dict[str, Any]) -> None:
        """Record the history after a compression: it replaces everything before.

        Messages that were in the history already stay; new ones, such as the summary,
        are recorded.
        """
        history = base.sequence(entry, "systemPayload", "compressedHistory")
        ts = base.moment(entry, "timestamp")
        shown: list[str] = []
        new: list[str] = []
        for index, content in enumerate(history):
            message = base.mapping(content)
            known = self._known_keys(message)
            if known:
                shown += known
                continue
            key = f"{uuid}\0history{index}"
            origin = base.Origin(
                f"{place} compressedHistory[{index}]",
                ts=ts,
                source={"id": uuid, "replacement": True},
                key=key,
            )
            run.take(_of_history(message), origin)
            self._remember_parts(key, message.get("parts"))
            shown.append(key)
            new.append(key)
        origin = base.Origin(place, ts=ts, key=f"{uuid}\0compaction")
        first = new if new and shown[-1] not in new else []
        run.show_only(shown, origin, "compaction", before_others=first)

    def _known_keys(self, message: dict[str, Any]) -> list[str]:
        """Return the entries with the parts of a message; none if a part is new."""
        keys: dict[str, None] = {}
        for part in gemini_parts.parts_of(message.get("parts")):
            key = self._keys_of_parts.get(content_digest(part))
            if key is None:
                return []
            keys[key] = None
        return [*keys]


def _of_history(message: dict[str, Any]) -> Iterator[base.PieceOrSkipped]:
    """Yield the events of a message in a compressed history."""
    parts = gemini_parts.parts_of(message.get("parts"))
    own_parts: list[dict[str, Any]] = []
    for part in parts:
        if "functionCall" in part or "functionResponse" in part:
            why = "call or result that the compressed history changed"
            yield base.Skipped("", why)
        else:
            own_parts.append(part)
    parts = own_parts
    if not parts:
        return
    if message.get("role") == "model":
        yield from gemini_parts.answer(parts).pieces()
    else:
        yield from gemini_parts.user(parts)
