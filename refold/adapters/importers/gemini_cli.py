"""Gemini CLI's chats: a JSON document, or lines with messages and changes to them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from refold.adapters.importers import base, decisions, gemini_parts, messages
from refold.adapters.importers.runs import Run, Runs
from refold.domain.canonical import canonical, text_digest
from refold.domain.events import JsonObject
from refold.domain.ids import unknown_response_id

NAME = "gemini-cli"
# The file with the path of the project, in the folder around the folder of chats.
_PROJECT_FILE: Final = ".project_root"
_LONGEST_PATH: Final = 4096  # bytes
_DIGITS: Final = 32  # of the digest that names a change of the history
_TOKENS: Final = {
    "input": "input",
    "cached": "cached",
    "output": "output",
    "thoughts": "thoughts",
}
# Texts that the client writes in the user's name.
_CLIENT_CONTEXT: Final = re.compile(r"\s*<(session_context|hook_context)>")
_REFUSAL: Final = "User did not allow tool call"
_CHANGES: Final = frozenset({"$set", "$rewindTo"})
_OF_MODEL: Final = frozenset({"gemini", "model"})
_OF_CLIENT: Final = frozenset({"info", "warning"})
_FAILED: Final = frozenset({"error", "cancelled"})
_READ: Final = frozenset(
    {
        "sessionId",
        "projectHash",
        "startTime",
        "lastUpdated",
        "messages",
        "summary",
        "kind",
        "directories",
        "refold",
    }
)


def recognises(source: base.Source) -> bool:
    """Whether the file is a chat with a session and the hash of its project."""
    if source.is_lines:
        first = next(source.lines(), None)
        header = base.mapping(first.value if first else None)
    else:
        header = base.mapping(source.document)
    return "sessionId" in header and "projectHash" in header


def read(source: base.Source) -> Iterable[base.Transcript]:
    """Return the transcript of the chat."""
    chat = _Chat(source)
    for record in _records(source):
        chat.remember(record)
    for record in _records(source):
        chat.take(record)
    return chat.transcripts()


class _Record(NamedTuple):
    """A record of a file: a header, a message, or a change."""

    place: str
    value: dict[str, Any]


def _records(source: base.Source) -> Iterator[_Record]:
    """Yield the records of a file; a document is a header, and then its messages."""
    if source.is_lines:
        for line in source.lines():
            yield _Record(f"line {line.number}", base.mapping(line.value))
        return
    document = base.mapping(source.document)
    yield _Record("", {**document, "messages": None})
    for index, message in enumerate(base.sequence(document, "messages")):
        yield _Record(f"messages[{index}]", base.mapping(message))


class _Unit(NamedTuple):
    """A part of a message with a key of its own: its text, a call, or a result.

    The client completes a message later, so each part is recorded on its own.
    """

    key: str
    pieces: list[base.PieceOrSkipped]


class _Change(NamedTuple):
    """A change of the history that the next message shows to be complete.

    messages: the whole history after the change.
    resumes:  whether the client had begun to load the session again.
    """

    place: str
    messages: list[dict[str, Any]]
    ts: Any
    resumes: bool


class _Chat:
    """Reads the records of one chat in their order."""

    def __init__(self, source: base.Source) -> None:
        self._path = source.path
        self._runs = Runs(NAME, source.name)
        self._run: Run = self._runs.main
        # The most complete version of each message, by its id.
        self._messages: dict[str, dict[str, Any]] = {}
        # The messages of the client's history, each with the keys of its units.
        self._history: dict[str, list[str]] = {}
        # The number of these messages that have a key: a result may be in two.
        self._uses = Counter[str]()
        self._header: dict[str, Any] = {}
        self._has_begun = False
        self._resumes = False
        self._change: _Change | None = None
        # The content of each result as contexts show it, by the key of its unit.
        self._results: dict[str, str] = {}
        self._exported = base.ExportedEntries()

    def remember(self, record: _Record) -> None:
        """Keep the most complete version of the messages in a record."""
        value = record.value
        listed = base.sequence(value, "$set", "messages")
        for message in (value, *map(base.mapping, listed)):
            message_id = base.text(message, "id")
            if message_id is None:
                continue
            known = self._messages.setdefault(message_id, {})
            for name, field in message.items():
                # A later list of all messages has no calls, tokens, or thoughts.
                if message is not value and name in known:
                    continue
                if field or name not in known:
                    known[name] = field

    def take(self, record: _Record) -> None:
        """Take the next record."""
        value = record.value
        if "$rewindTo" in value:
            self._rewind(record)
        elif "$set" in value:
            self._update(record)
        elif base.text(value, "id"):
            self._apply_change()
            self._message(record.place, value)
        elif "sessionId" in value:
            self._resumes = self._has_begun
            self._has_begun = True
            self._header |= value
        else:
            self._run.recording.skip("record of an unknown kind", record.place)

    def transcripts(self) -> list[base.Transcript]:
        """Return the transcript, after the last change of the history."""
        change = self._change
        if change is not None and change.resumes:
            self._change = None
            why = "history of a session that the client is loading"
            self._run.recording.skip(why, change.place, note=True)
        self._apply_change()
        unread = sorted(self._header.keys() - _READ)
        if unread:
            names = base.field_names(unread)
            why = f"fields around the messages: {names}"
            self._run.recording.skip(why, note=True)
        parent = None
        if self._header.get("kind") == "subagent":
            parent = base.session_name(self._path.parent.name) or None
        first, *others = self._runs.transcripts(
            base.session_name(self._header, "sessionId"),
            parent=parent,
            title=base.text(self._header, "summary") or "",
            folder=_folder(self._path),
        )
        return [replace(first, exported=self._exported.exported()), *others]

    def _update(self, record: _Record) -> None:
        """Take new fields of the session; a list of messages is its whole history."""
        update = base.mapping(record.value, "$set")
        self._header |= {k: v for k, v in update.items() if k != "messages"}
        if not isinstance(update.get("messages"), list):
            return
        listed = [base.mapping(message) for message in update["messages"]]
        self._change = _Change(
            record.place, listed, update.get("lastUpdated"), self._resumes
        )

    def _apply_change(self) -> None:
        """Record the last list of messages as the history from here on."""
        change = self._change
        self._change = None
        self._resumes = False
        if change is None:
            return
        shown: list[str] = []
        new: list[str] = []
        self._history = {}
        self._uses.clear()
        for index, message in enumerate(change.messages):
            place = f"{change.place} messages[{index}]"
            message_id = base.text(message, "id")
            if message_id is None:
                why = "message without an id"
                self._run.recording.skip(why, place)
                continue
            for unit in self._units(message_id, message):
                self._add_to_history(message_id, unit.key)
                if not self._run.has(unit.key):
                    self._record(place, message_id, message, unit)
                    new.append(unit.key)
                elif unit.key in self._results:
                    self._mask(unit, change)
                shown.append(unit.key)
        # New messages before others, such as a summary, stand in the place of these.
        first: list[str] = []
        if new and shown[-1] not in new:
            first = [key for key in shown if key in new]
        name = text_digest(canonical([change.place, *shown]).decode())[:_DIGITS]
        origin = base.Origin(
            change.place, ts=base.moment(change.ts), key=f"history:{name}"
        )
        self._run.show_only(shown, origin, "compaction", before_others=first)

    def _rewind(self, record: _Record) -> None:
        """Record that the client left out a message and everything after it."""
        self._apply_change()
        target = str(record.value["$rewindTo"])
        removed: list[list[str]] = []
        while self._history:
            message_id, keys = self._history.popitem()
            removed.append(keys)
            if message_id == target:
                break
        left_out: list[str] = []
        for keys in reversed(removed):
            for key in keys:
                self._uses[key] -= 1
                if not self._uses[key]:
                    left_out.append(key)
        origin = base.Origin(record.place, key=f"rewind:{record.place}:{target}")
        self._run.leave_out(left_out, origin, "rewind")

    def _add_to_history(self, message_id: str, key: str) -> None:
        """Note that a message of the history has a unit with this key."""
        keys = self._history.setdefault(message_id, [])
        if key not in keys:
            keys.append(key)
            self._uses[key] += 1

    def _message(self, place: str, message: dict[str, Any]) -> None:
        """Record the units of a message that the session does not have yet."""
        message_id = message["id"]
        for unit in self._units(message_id, message):
            self._add_to_history(message_id, unit.key)
            self._exported.take(message, unit.key)
            if not self._run.has(unit.key):
                self._record(place, message_id, message, unit)

    def _record(
        self, place: str, message_id: str, message: dict[str, Any], unit: _Unit
    ) -> None:
        """Record a unit of a message."""
        whole = self._messages.get(message_id, message)
        is_of_model = base.text(whole, "type") in _OF_MODEL
        source: JsonObject = {"id": message_id}
        is_result = unit.key.startswith("result:")
        text = messages.joined_text(whole.get("content"))
        for part in gemini_parts.parts_of(whole.get("content")):
            text = text or gemini_parts.text_of(part) or ""
        context = _CLIENT_CONTEXT.match(text)
        if context is not None and not is_of_model:
            source |= {"meta": True, "context": context[1]}
        origin = base.Origin(
            place,
            ts=base.moment(whole, "timestamp"),
            source=source,
            key=unit.key,
        )
        if is_of_model and not is_result:
            origin = base.Origin(
                place,
                ts=origin.ts,
                source=source,
                key=unit.key,
                model=base.text(whole, "model"),
                response_id=unknown_response_id(message_id),
                usage=gemini_parts.usage(base.mapping(whole, "tokens"), _TOKENS),
            )
        self._run.take(unit.pieces, origin)
        if is_result:
            self._results[unit.key] = _shown_content(unit)

    def _mask(self, unit: _Unit, change: _Change) -> None:
        """Record that the client replaced the content of a result."""
        text = _shown_content(unit)
        if text == self._results[unit.key]:
            return
        self._results[unit.key] = text
        name = text_digest(text)[:_DIGITS]
        origin = base.Origin(
            change.place, ts=base.moment(change.ts), key=f"{unit.key}:{name}"
        )
        self._run.clear(unit.key, text, origin)

    def _units(self, message_id: str, message: dict[str, Any]) -> list[_Unit]:
        """Return the units of a message.

        Its calls and tokens are those of the most complete version; a result is that of
        this version, since the client may have replaced its content.
        """
        whole = self._messages.get(message_id, message)
        kind = base.text(whole, "type")
        if kind in _OF_MODEL:
            return self._units_of_model(message_id, whole, message)
        if kind in _OF_CLIENT:
            why = "note of the client, not part of the conversation"
            return [_Unit(message_id, [base.Skipped("", why, note=True)])]
        if kind == "error":
            text = "".join(_texts(whole))
            fields = {"code": "client_error", "message": text, "where": NAME}
            return [_Unit(message_id, [base.Piece("error", fields)])]
        if kind != "user":
            return [_Unit(message_id, [base.Skipped("", "message of an unknown type")])]
        units: list[_Unit] = []
        pieces = list(gemini_parts.user(whole.get("content")))
        for part in gemini_parts.parts_of(message.get("content")):
            response = base.mapping(part, "functionResponse")
            if response:
                units.append(_result_unit(response))
        if pieces or not units:
            units.append(_Unit(message_id, pieces or [messages.EMPTY]))
        return units

    def _units_of_model(
        self, message_id: str, whole: dict[str, Any], message: dict[str, Any]
    ) -> list[_Unit]:
        """Return the text of an answer, then its calls, then their results."""
        answer = gemini_parts.answer(whole.get("content"))
        if not answer.thinking:
            answer = answer._replace(thinking=_thoughts(whole))
        units: list[_Unit] = []
        recorded = [*base.each(whole, "toolCalls")]
        calls = recorded or gemini_parts.answer(message.get("content")).calls
        pieces = list(answer.pieces())
        if pieces or not calls:
            units.append(_Unit(message_id, pieces or [messages.EMPTY]))
        results: list[_Unit] = []
        current_calls: dict[str, dict[str, Any]] = {}  # of this version, by id
        for call in base.each(message, "toolCalls"):
            current_id = base.text(call, "id")
            if current_id:
                current_calls.setdefault(current_id, call)
        for index, call in enumerate(calls):
            call_id = base.text(call, "id") or f"{message_id}:{index}"
            units.append(_Unit(f"call:{call_id}", [gemini_parts.call(call, call_id)]))
            current = current_calls.get(call_id) or call
            results += _results_of(current, call_id)
        return units + results


def _texts(message: dict[str, Any]) -> Iterator[str]:
    for part in gemini_parts.parts_of(message.get("content")):
        text = gemini_parts.text_of(part)
        if text:
            yield text


def _thoughts(message: dict[str, Any]) -> list[JsonObject]:
    """Return the summaries of thoughts, as the client sends them to the model again."""
    blocks: list[JsonObject] = []
    for thought in base.each(message, "thoughts"):
        subject = base.text(thought, "subject")
        description = base.text(thought, "description") or ""
        text = f"**{subject}** {description}" if subject else description
        blocks += messages.thinking_blocks(text)
    return blocks


def _results_of(call: dict[str, Any], call_id: str) -> Iterator[_Unit]:
    """Yield the result of a call, if it has ended."""
    failed = base.text(call, "status") in _FAILED
    responses = [
        base.mapping(part, "functionResponse")
        for part in gemini_parts.parts_of(call.get("result"))
    ]
    # A resumed client lists the results of all parallel calls at each of them.
    own = [each for each in responses if base.text(each, "id") == call_id]
    for response in own or responses:
        if response:
            yield _result_unit({**response, "id": call_id}, failed=failed)
            return
    texts = [
        gemini_parts.text_of(part) or ""
        for part in gemini_parts.parts_of(call.get("result"))
    ]
    shown = call.get("resultDisplay")
    if not texts and failed and isinstance(shown, str):
        texts = [shown]
    if texts:
        response = {"id": call_id, "response": {"output": "".join(texts)}}
        yield _result_unit(response, failed=failed)


def _result_unit(response: dict[str, Any], *, failed: bool = False) -> _Unit:
    """Return the result in a function's response."""
    call_id = base.text(response, "id")
    if call_id is None:
        return _Unit(f"result:{content_name(response)}", [messages.NO_CALL])
    output = gemini_parts.output(response)
    result = messages.tool_result(
        call_id, output.content, failed=failed or output.failed
    )
    pieces: list[base.PieceOrSkipped] = [result]
    if isinstance(output.content, str) and _REFUSAL in output.content:
        refused = decisions.decision(
            decisions.TOOL, decisions.REJECTED, call_id=call_id
        )
        pieces.append(refused)
    return _Unit(f"result:{call_id}", pieces)


def content_name(value: Any) -> str:
    """Return a name for a value without an id."""
    return text_digest(canonical(value).decode())[:_DIGITS]


def _shown_content(unit: _Unit) -> str:
    """Return the content of a result, as a text."""
    for piece in unit.pieces:
        if isinstance(piece, base.Piece) and piece.type == "tool_result":
            content = piece.fields["content"]
            return content if isinstance(content, str) else canonical(content).decode()
    return ""


def _folder(path: Path) -> str:
    """Return the folder of the project of a chat; empty if the client names none."""
    for folder in path.absolute().parents[:3]:
        try:
            with (folder / _PROJECT_FILE).open("rb") as file:
                return file.read(_LONGEST_PATH).decode(errors="replace").strip()
        except OSError:
            continue
    return ""
