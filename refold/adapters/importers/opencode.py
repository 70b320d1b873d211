"""opencode's sessions: its database, an export, or its older folder of JSON files."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from refold.adapters.importers import base, messages
from refold.adapters.importers.openai import attachment_at
from refold.adapters.importers.runs import Run, Runs
from refold.domain.events import JsonObject
from refold.domain.ids import unknown_response_id

NAME = "opencode"
_TABLES: Final = frozenset({"session", "message", "part"})
_CLEARED_TEXT: Final = "[Old tool result content cleared]"
_DONE: Final = frozenset({"completed", "error"})
_UNSEEN: Final = {
    "step-start": "begin of a request",
    "step-finish": "end of a request; its tokens stand on the answer",
    "snapshot": "snapshot of files that the client keeps for undo",
    "patch": "list of files that a step changed",
    "agent": "name of an agent that the user mentioned",
    "compaction": "mark of a compaction, which contexts follow",
}


@dataclass
class _Session:
    """A session with its messages, each with its parts, in their order."""

    info: dict[str, Any]
    messages: list[tuple[dict[str, Any], list[dict[str, Any]]]] = field(
        default_factory=list
    )
    damaged: list[base.Skipped] = field(default_factory=list)


def recognises(source: base.Source) -> bool:
    """Whether the file is a database, an export, or a session file of opencode."""
    if source.content == "sqlite":
        with source.database() as database:
            return _is_of_opencode(database)
    document = base.mapping(source.document) if not source.is_lines else {}
    info = base.mapping(document, "info")
    if isinstance(document.get("messages"), list) and "id" in info:
        return "projectID" in info or "directory" in info
    return "projectID" in document and (base.text(document, "id") or "").startswith(
        "ses_"
    )


def _is_of_opencode(database: sqlite3.Connection) -> bool:
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    names = {row["name"] for row in database.execute(query)}
    if not names >= _TABLES:
        return False
    columns = {row["name"] for row in database.execute("PRAGMA table_info(part)")}
    return {"message_id", "data"} <= columns


def read(source: base.Source) -> Iterable[base.Transcript]:
    """Return a transcript for each session; a sub-agent's belongs to its parent."""
    if source.content == "sqlite":
        with source.database() as database:
            if not _is_of_opencode(database):
                raise source.failed("is a database of another program than opencode")
            sessions = [*_in_database(database)]
        return [_transcript(source, session) for session in sessions]
    document = base.mapping(source.document)
    if "messages" in document:
        session = _Session(base.mapping(document, "info"))
        for message in base.each(document, "messages"):
            parts = [*base.each(message, "parts")]
            session.messages.append((base.mapping(message, "info"), parts))
        return [_transcript(source, session)]
    return [_transcript(source, _in_folder(source.path, document))]


def _in_database(database: sqlite3.Connection) -> Iterator[_Session]:
    """Yield the sessions of a database, parents first."""
    rows = database.execute("SELECT * FROM session ORDER BY time_created, id")
    for row in rows.fetchall():
        columns = dict(row)
        session = _Session(
            {
                "id": columns["id"],
                "title": columns.get("title"),
                "directory": columns.get("directory"),
                "parentID": columns.get("parent_id"),
                "revert": _json(columns.get("revert"))[0],
            }
        )
        parts: dict[str, list[dict[str, Any]]] = {}
        query = "SELECT id, message_id, data FROM part WHERE session_id = ? ORDER BY id"
        for part in database.execute(query, (columns["id"],)):
            data = _data(session, part, "part")
            parts.setdefault(part["message_id"], []).append(data)
        query = (
            "SELECT id, data FROM message WHERE session_id = ? "
            "ORDER BY time_created, id"
        )
        for message in database.execute(query, (columns["id"],)):
            info = _data(session, message, "message")
            session.messages.append((info, parts.pop(message["id"], [])))
        for message_id in parts:
            why = "part of a message that is not in the database"
            session.damaged.append(base.Skipped(f"message {message_id}", why))
        yield session


def _data(session: _Session, row: sqlite3.Row, kind: str) -> dict[str, Any]:
    """Return the value in a row, with its id."""
    value, is_whole = _json(row["data"])
    if not is_whole:
        place = f"{kind} {row['id']}"
        session.damaged.append(base.Skipped(place, "is not valid JSON", damaged=True))
    return {**base.mapping(value), "id": row["id"]}


def _json(text: Any) -> tuple[Any, bool]:
    """Return the JSON in a column, and whether it is valid; None is valid."""
    if not isinstance(text, str | bytes):
        return None, text is None
    try:
        return json.loads(text), True
    except ValueError:
        return None, False


def _in_folder(path: Path, info: dict[str, Any]) -> _Session:
    """Return the session of a file in ``storage/session/PROJECT/``."""
    session = _Session(info)
    storage = path.absolute().parents[2]
    session_id = base.session_name(info, "id")
    for message_file in sorted((storage / "message" / session_id).glob("*.json")):
        message = _in_file(session, message_file)
        parts: list[dict[str, Any]] = []
        for part_file in sorted((storage / "part" / message_file.stem).glob("*.json")):
            parts.append(_in_file(session, part_file))
        session.messages.append((message, parts))
    return session


def _in_file(session: _Session, path: Path) -> dict[str, Any]:
    """Return the value in a file of the folder."""
    value: Any = None
    is_whole = False
    try:
        value, is_whole = _json(path.read_bytes())
    except OSError as error:
        place = base.shown(path.name)
        session.damaged.append(base.Skipped(place, f"cannot be read: {error.strerror}"))
    if not is_whole:
        place = base.shown(path.name)
        session.damaged.append(base.Skipped(place, "is not valid JSON", damaged=True))
    return {"id": path.stem, **base.mapping(value)}


def _transcript(source: base.Source, session: _Session) -> base.Transcript:
    """Return the transcript of a session."""
    reading = _Reading(source, session)
    return reading.transcript()


class _Reading:
    """Reads the messages of one session."""

    def __init__(self, source: base.Source, session: _Session) -> None:
        self._source = source
        self._session = session
        self._runs = Runs(NAME, source.name)
        self._run: Run = self._runs.main
        # The keys of each message, by its id.
        self._keys: dict[str, list[str]] = {}
        # The results that the client cleared, with the time, until a later message.
        self._cleared: list[tuple[float, str]] = []

    def transcript(self) -> base.Transcript:
        """Record all messages, and return the transcript."""
        session = self._session
        last = len(session.messages) - 1
        for index, (info, parts) in enumerate(session.messages):
            self._clear_before(base.number(info, "time", "created"))
            self._message(info, parts, is_last=index == last)
        self._clear_before(None)
        self._revert()
        for item in session.damaged:
            self._run.recording.skip(item.why, item.where)
        info = session.info
        (transcript,) = self._runs.transcripts(
            base.session_name(info, "id"),
            parent=base.session_name(info, "parentID") or None,
            title=base.text(info, "title") or "",
            folder=base.text(info, "directory") or "",
        )
        return transcript

    def _message(
        self, info: dict[str, Any], parts: list[dict[str, Any]], *, is_last: bool
    ) -> None:
        """Record a message: its text and files, its calls, and their results."""
        message_id = base.text(info, "id") or ""
        place = f"message {message_id}"
        is_of_model = info.get("role") == "assistant"
        if info.get("role") not in ("user", "assistant"):
            self._run.recording.skip("message of an unknown role", place)
            return
        is_complete = base.at(info, "time", "completed") is not None
        if is_of_model and is_last and not is_complete and not info.get("error"):
            why = "answer that is not complete: import again when it is"
            self._run.recording.skip(why, place, note=True)
            return
        origin = base.Origin(
            place,
            ts=base.moment(info, "time", "created"),
            agent=base.text(info, "agent") or base.text(info, "mode"),
            source={"id": message_id},
            key=message_id,
        )
        keys = self._keys.setdefault(message_id, [])
        if is_of_model:
            self._answer(info, parts, origin, keys)
        else:
            self._take(list(_input(parts)), origin, keys)
        if is_of_model and info.get("summary") is True:
            self._compact(info, origin)

    def _take(
        self,
        pieces: Iterable[base.PieceOrSkipped],
        origin: base.Origin,
        keys: list[str],
    ) -> None:
        self._run.take(pieces, origin)
        if origin.key is not None:
            keys.append(origin.key)

    def _answer(
        self,
        info: dict[str, Any],
        parts: list[dict[str, Any]],
        origin: base.Origin,
        keys: list[str],
    ) -> None:
        """Record an answer: its text, then its calls, then their results."""
        of_model = replace(
            origin,
            model=base.text(info, "modelID"),
            response_id=unknown_response_id(origin.key),
            usage=_usage(base.mapping(info, "tokens")),
        )
        texts: list[str] = []
        thinking: list[JsonObject] = []
        calls: list[dict[str, Any]] = []
        skipped: list[base.PieceOrSkipped] = []
        for part in parts:
            match part.get("type"):
                case "text":
                    texts.append(base.text(part, "text") or "")
                case "reasoning":
                    thinking += messages.thinking_blocks(base.text(part, "text"))
                case "tool":
                    calls.append(part)
                case kind:
                    skipped.append(_unread(part, kind))
        stop_reason = base.text(info, "finish")
        pieces = [*messages.response(texts, thinking, stop_reason=stop_reason)]
        self._take([*pieces, *skipped], of_model, keys)
        for part in calls:
            call = messages.tool_call(
                part.get("callID"), part.get("tool"), base.at(part, "state", "input")
            )
            key = f"call:{part.get('id')}"
            self._take([call], replace(of_model, key=key), keys)
        for part in calls:
            self._result(part, origin, keys)
        error = base.mapping(info, "error")
        if error:
            fields = {
                "code": base.text(error, "name") or "error",
                "message": base.text(error, "data", "message") or "",
                "where": NAME,
            }
            key = f"error:{origin.key}"
            self._take([base.Piece("error", fields)], replace(origin, key=key), keys)

    def _result(
        self, part: dict[str, Any], origin: base.Origin, keys: list[str]
    ) -> None:
        """Record the result of a call that has ended."""
        state = base.mapping(part, "state")
        call_id = base.text(part, "callID")
        if base.text(state, "status") not in _DONE or call_id is None:
            return
        begun_at = base.number(state, "time", "start")
        ended_at = base.number(state, "time", "end")
        took = (
            ended_at - begun_at
            if begun_at is not None and ended_at is not None
            else None
        )
        failed = state["status"] == "error" or bool(
            base.number(state, "metadata", "exit")
        )
        text = base.text(state, "output") or base.text(state, "error") or ""
        content: Any = text
        files = [_file(file) for file in base.each(state, "attachments")]
        blocks = [_block(file) for file in files if file is not None]
        if blocks:
            content = [{"type": "text", "text": text}, *blocks]
        result = messages.tool_result(
            call_id,
            content,
            failed=failed,
            took=None if took is None else max(took, 0.0),
        )
        key = f"result:{part.get('id')}"
        ts = base.moment(state, "time", "end") or origin.ts
        self._take([result], replace(origin, key=key, ts=ts), keys)
        cleared = base.number(state, "time", "compacted")
        if cleared is not None:
            self._cleared.append((cleared, key))

    def _clear_before(self, created: float | None) -> None:
        """Record the results that were cleared before a message; None is the end."""
        later: list[tuple[float, str]] = []
        for time, key in self._cleared:
            if created is not None and time > created:
                later.append((time, key))
                continue
            origin = base.Origin(key, ts=base.moment(time), key=f"{key}:cleared")
            self._run.clear(key, _CLEARED_TEXT, origin)
        self._cleared = later

    def _compact(self, info: dict[str, Any], origin: base.Origin) -> None:
        """Record that contexts begin with the request for a summary, and the summary.

        Newer versions keep the last messages before them, too.
        """
        request = base.text(info, "parentID") or ""
        first = [*self._keys.get(request, []), *self._keys[str(origin.key)]]
        tail: list[str] = []
        for message, parts in self._session.messages:
            if message.get("id") != request:
                continue
            for part in parts:
                start = base.text(part, "tail_start_id")
                if part.get("type") == "compaction" and start:
                    tail = self._from(start, before=request)
        edit = replace(origin, key=f"{origin.key}:compaction")
        self._run.show_only(
            [*first, *tail], edit, "compaction", before_others=first if tail else ()
        )

    def _from(self, start: str, *, before: str) -> list[str]:
        """Return the keys from a message on, up to another one."""
        keys: list[str] = []
        has_begun = False
        for message_id, message_keys in self._keys.items():
            if message_id == before:
                break
            has_begun = has_begun or message_id == start
            if has_begun:
                keys += message_keys
        return keys

    def _revert(self) -> None:
        """Record that the user took back a message and all after it."""
        target = base.text(self._session.info, "revert", "messageID")
        if target is None:
            return
        shown: list[str] = []
        for message_id, keys in self._keys.items():
            if message_id == target:
                break
            shown += keys
        visible = frozenset(self._run.visible)
        remaining = [key for key in shown if key in visible]
        origin = base.Origin("revert", key=f"revert:{target}")
        self._run.show_only(remaining, origin, "rewind")


def _input(parts: list[dict[str, Any]]) -> Iterator[base.PieceOrSkipped]:
    """Yield the input of a user's message, after the parts that are left out."""
    texts: list[str] = []
    files: list[JsonObject] = []
    asks_for_summary = False
    for part in parts:
        kind = part.get("type")
        file = _file(part) if kind == "file" else None
        if kind == "text" and part.get("ignored") is not True:
            texts.append(base.text(part, "text") or "")
        elif kind == "subtask":
            texts.append(base.text(part, "prompt") or "")
        elif file is not None:
            files.append(file)
        else:
            asks_for_summary = asks_for_summary or kind == "compaction"
            yield _unread(part, kind)
    if asks_for_summary and not texts:
        texts.append("What did we do so far?")  # the client's own words
    yield messages.user_input(texts, files)


def _unread(part: dict[str, Any], kind: Any) -> base.Skipped:
    """Return the report of a part that is not imported."""
    place = f"part {part.get('id')}"
    if kind == "retry":
        return base.Skipped(place, "request that was sent again", note=True)
    if kind == "text":
        return base.Skipped(place, "text that the client did not send", note=True)
    why = _UNSEEN.get(str(kind))
    if why is not None:
        return base.Skipped(place, why, note=True)
    return base.Skipped(place, "part of an unknown type")


def _file(part: dict[str, Any]) -> JsonObject | None:
    """Return the file in a part."""
    url = base.text(part, "url")
    if url is None:
        return None
    media_type = base.text(part, "mime") or ""
    kind = "image" if media_type.startswith("image/") else "file"
    file = attachment_at(kind, url, base.text(part, "filename"))
    if media_type and not file.get("media_type"):
        file["media_type"] = media_type
    return file


def _block(file: JsonObject) -> JsonObject:
    """Return a file as a block of a tool's result."""
    kind = "image" if file["kind"] == "image" else "document"
    if "data" in file:
        source: JsonObject = {
            "type": "base64",
            "media_type": file.get("media_type"),
            "data": file["data"],
        }
    else:
        source = {"type": "url", "url": file.get("url")}
    return {"type": kind, "source": source}


def _usage(tokens: dict[str, Any]) -> JsonObject | None:
    """Return the tokens of an answer.  opencode counts reasoning apart from output."""
    counts = {
        "input_tokens": int(base.number(tokens, "input") or 0),
        "output_tokens": int(base.number(tokens, "output") or 0),
        "cache_read_input_tokens": int(base.number(tokens, "cache", "read") or 0),
        "cache_creation_input_tokens": int(base.number(tokens, "cache", "write") or 0),
    }
    reasoning = int(base.number(tokens, "reasoning") or 0)
    if base.number(tokens, "total") != sum(counts.values()):
        counts["output_tokens"] += reasoning
    usage: JsonObject = dict(counts)
    return usage if any(counts.values()) else None
