"""The database of simonw's ``llm``: conversations, or threads of newer versions.

Up to version 0.30, ``llm`` logs a row for each response, with its prompt.  Newer ones
store each message once, under a hash of it and of the message before it; the turns of a
thread name them.  A database that was migrated may have both.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from refold.adapters.importers import base, exports, messages, openai
from refold.adapters.importers.tree import Node, Tree, key
from refold.domain.events import JsonObject

if TYPE_CHECKING:
    import sqlite3

NAME = "llm"
_MIGRATIONS: Final = "_llm_migrations"
_STORED: Final = ("options_json", "resolved_model", "token_details")
_IMAGE: Final = "image/"
# The columns that this module needs of each table that a database has.
_COLUMNS: Final = {
    "responses": (
        "id",
        "conversation_id",
        "datetime_utc",
        "model",
        "prompt",
        "system",
        "response",
        "prompt_json",
        "response_json",
    ),
    "conversations": ("id",),
    "tool_calls": ("id", "response_id", "name", "arguments", "tool_call_id"),
    "tool_results": ("id", "response_id", "name", "output", "tool_call_id"),
    "schemas": ("id", "content"),
    "fragments": ("id", "content"),
    "prompt_fragments": ("response_id", "fragment_id", "order"),
    "system_fragments": ("response_id", "fragment_id", "order"),
    "attachments": ("id", "type", "path", "url", "content"),
    "prompt_attachments": ("response_id", "attachment_id", "order"),
    "tool_results_attachments": ("tool_result_id", "attachment_id", "order"),
    "part_attachments": ("part_id", "attachment_id", "order"),
    "threads": ("id", "tip_message_hash"),
    "turns": ("thread_id", "datetime_utc", "tip_message_hash", "model"),
    "messages": ("hash", "parent_hash", "role"),
    "parts": ("id", "message_hash", "position", "type", "text", "payload"),
}
_Row = dict[str, Any]


def recognises(source: base.Source) -> bool:
    """Whether this is a database with the tables of ``llm``."""
    if source.content != "sqlite":
        return False
    with source.database() as database:
        tables = _tables(database)
    return {_MIGRATIONS, "responses", "conversations"} <= tables


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield a transcript for each conversation and thread, oldest first."""
    with source.database() as database:
        store = _Store(database)
        if not {"responses", "conversations"} <= store.tables:
            raise source.failed("is no database of llm: it has no responses")
        lacks = store.missing_column()
        if lacks is not None:
            raise source.failed(
                f"is a database of an unknown version of llm: {lacks} is missing"
            )
        last: base.Transcript | None = None
        for name in store.names():
            if last is not None:
                yield last
            last = _Session(source, store, name).transcript()
        reports = [
            base.Skipped(source.name, why, note=True) for why in store.left_out()
        ]
        if last is not None:
            yield replace(last, skipped=(*last.skipped, *reports))


def _tables(database: sqlite3.Connection) -> set[str]:
    rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return {str(row[0]) for row in rows}


class _Store:
    """Reads the rows of the database; tables and columns differ by version."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self.tables = _tables(database)

    def missing_column(self) -> str | None:
        """Return the first column that a table lacks, as ``table.column``, or None."""
        for table, columns in _COLUMNS.items():
            if table not in self.tables:
                continue
            rows = self._database.execute(f"PRAGMA table_info({table})")
            present = {str(row["name"]) for row in rows}
            for column in columns:
                if column not in present:
                    return f"{table}.{column}"
        return None

    def rows(self, table: str, where: str = "", *values: Any) -> list[_Row]:
        """Return rows of a table; none if this version has no such table."""
        if table not in self.tables:
            return []
        # The names of tables and the conditions are those of this module.
        statement = f"SELECT * FROM {table} {where}"  # noqa: S608  # both are constants of this module
        return [dict(row) for row in self._database.execute(statement, values)]

    def names(self) -> list[str]:
        """Return the ids of the conversations and threads, oldest first.

        A response without a conversation is one of its own.
        """
        first_times: dict[str, str] = {}
        for row in self._database.execute(
            "SELECT COALESCE(conversation_id, id) AS name, MIN(datetime_utc) AS time "
            "FROM responses GROUP BY 1"
        ):
            first_times[str(row["name"])] = str(row["time"])
        if "turns" in self.tables:
            for row in self._database.execute(
                "SELECT thread_id AS name, MIN(datetime_utc) AS time FROM turns "
                "GROUP BY 1"
            ):
                first_times.setdefault(str(row["name"]), str(row["time"]))
        return sorted(first_times, key=lambda name: (first_times[name], name))

    def row(self, table: str, row_id: Any) -> _Row:
        """Return the row with this id, or an empty one."""
        rows = self.rows(table, "WHERE id = ?", row_id)
        return rows[0] if rows else {}

    def fragments(self, table: str, response_id: str) -> list[str]:
        """Return the texts that a response's prompt was made of, in their order."""
        texts: list[str] = []
        order = 'WHERE response_id = ? ORDER BY "order"'
        for row in self.rows(table, order, response_id):
            texts.append(str(self.row("fragments", row["fragment_id"]).get("content")))
        return texts

    def attachments(self, table: str, owner: str, owner_id: Any) -> list[JsonObject]:
        """Return the files of a prompt, a part, or a result, in their order."""
        files: list[JsonObject] = []
        for row in self.rows(table, f'WHERE {owner} = ? ORDER BY "order"', owner_id):
            files.append(_file(self.row("attachments", row["attachment_id"])))
        return files

    def left_out(self) -> Iterator[str]:
        """Yield reports of what no transcript has."""
        if self._database.execute(
            "SELECT 1 FROM responses WHERE prompt_json IS NOT NULL "
            "OR response_json IS NOT NULL LIMIT 1"
        ).fetchone():
            yield "raw requests and responses of the providers"
        if self.rows("tools", "LIMIT 1"):
            yield "descriptions of the tools that were offered"
        if self.rows("logs", "LIMIT 1"):
            yield "table logs of versions before 0.5"


class _Session:
    """Reads one conversation or thread."""

    def __init__(self, source: base.Source, store: _Store, name: str) -> None:
        self._store = store
        self._name = name
        self._recording = base.Recording(NAME, source.name)
        self._reports = exports.Reports(self._recording)
        self._calls = openai.UnnamedCalls()
        self._system: str | None = None

    def transcript(self) -> base.Transcript:
        """Return the transcript of the session."""
        responses = self._store.rows(
            "responses",
            "WHERE COALESCE(conversation_id, id) = ? ORDER BY datetime_utc, id",
            self._name,
        )
        for response in responses:
            self._take_response(response)
        title = base.text(self._store.row("conversations", self._name), "name") or ""
        thread: _Row = {}
        if "threads" in self._store.tables:
            thread = self._store.row("threads", self._name)
        if thread:
            self._take_thread(thread, goes_on=bool(responses))
            title = base.text(thread, "name") or title
        self._reports.finish()
        transcript = self._recording.transcript(base.session_name(self._name))
        return replace(transcript, title=title)

    # Rows of responses.

    def _take_response(self, row: _Row) -> None:
        """Record a prompt, the results in it, and the response."""
        response_id = str(row["id"])
        place = f"responses {base.shown(response_id)}"
        asked_at = base.moment(row, "datetime_utc")
        asked = base.Origin(
            place,
            ts=asked_at,
            source={"id": response_id},
            key=key(NAME, f"{response_id}\0prompt"),
        )
        self._reports.record(self._prompt(row, response_id), asked)
        took = base.milliseconds(row, "duration_ms")
        answered_at = asked_at
        if asked_at is not None and took is not None:
            answered_at = asked_at + timedelta(milliseconds=took)
        answer = replace(
            asked,
            ts=answered_at,
            model=base.text(row, "model"),
            response_id=response_id,
            usage=_usage(row),
            source={"id": response_id, **self._facts(row)},
            key=key(NAME, response_id),
        )
        thinking = messages.thinking_blocks(base.text(row, "reasoning"))
        text = base.text(row, "response") or ""
        pieces: list[base.PieceOrSkipped] = [*messages.response([text], thinking)]
        order = "WHERE response_id = ? ORDER BY id"
        for call in self._store.rows("tool_calls", order, response_id):
            name = f"{response_id}:{call['id']}"
            pieces += self._call(call, name)
        self._reports.record(pieces or [messages.EMPTY], answer)

    def _prompt(self, row: _Row, response_id: str) -> Iterator[base.PieceOrSkipped]:
        """Yield the system prompt, results of tools, and the input of a response."""
        system = "\n\n".join(
            text
            for text in (
                *self._store.fragments("system_fragments", response_id),
                base.text(row, "system"),
            )
            if text
        )
        if system and system != self._system:
            self._system = system
            yield messages.system_message(system)
        order = "WHERE response_id = ? ORDER BY id"
        has_results = False
        for result in self._store.rows("tool_results", order, response_id):
            has_results = True
            files = self._store.attachments(
                "tool_results_attachments", "tool_result_id", result["id"]
            )
            yield self._result(result, files)
        texts = self._store.fragments("prompt_fragments", response_id)
        prompt = "\n".join([*texts, base.text(row, "prompt") or ""]).rstrip("\n")
        if not texts:
            prompt = base.text(row, "prompt") or ""
        files = self._store.attachments(
            "prompt_attachments", "response_id", response_id
        )
        if prompt or files or not has_results:
            yield messages.user_input([prompt], files)

    # Threads.

    def _take_thread(self, thread: _Row, *, goes_on: bool) -> None:
        """Record the messages of a thread, and put its newest branch in force.

        goes_on: whether it continues a conversation of the older tables, which the
                 messages before its first turn repeat.
        """
        turns = self._store.rows(
            "turns",
            "WHERE thread_id = ? ORDER BY datetime_utc, rowid",
            str(thread["id"]),
        )
        rows, turn_of, before = self._messages(turns)
        left_out: set[str] = set()
        if goes_on and turns:
            left_out = set(_history(rows, before))
        nodes = [
            Node(
                id=name,
                parent=base.text(rows[name], "parent_hash"),
                time=float(number),
                of_user=rows[name].get("role") == "user",
            )
            for number, name in enumerate(rows)
        ]
        tree = Tree(nodes)
        for step in tree.steps():
            if step.change is not None:
                origin = base.Origin("", key=f"{NAME}\0branch\0{step.node_id}")
                mark = step.change.mark(NAME)
                self._recording.mark(mark, origin, step.change.reason)
            if step.node_id not in left_out:
                turn = turn_of[step.node_id]
                self._take_message(rows[step.node_id], turn, thread)
        for name in tree.broken:
            why = "message whose parent is not in the database"
            self._reports.add(why, f"messages {base.shown(name)}")
        current = tree.current(base.text(thread, "tip_message_hash"))
        if current is not None:
            origin = base.Origin("", key=f"{NAME}\0current\0{current.digest}")
            self._recording.mark(current.mark(NAME), origin, current.reason)

    def _messages(
        self, turns: Iterable[_Row]
    ) -> tuple[dict[str, _Row], dict[str, _Row], list[str]]:
        """Return the messages of the turns in the order in which they were added.

        Returns the rows by hash, the turn that added each, and the hashes of those
        that the first turn was given.
        """
        rows: dict[str, _Row] = {}
        turn_of: dict[str, _Row] = {}
        before: list[str] = []
        for turn in turns:
            chain: list[_Row] = []
            name = base.text(turn, "tip_message_hash")
            while name is not None and name not in rows:
                matches = self._store.rows("messages", "WHERE hash = ?", name)
                if not matches or any(row["hash"] == name for row in chain):
                    break
                chain.append(matches[0])
                name = base.text(matches[0], "parent_hash")
            for row in reversed(chain):
                rows[row["hash"]] = row
                turn_of[row["hash"]] = turn
            if not before:
                before = [row["hash"] for row in reversed(chain[1:])]
        return rows, turn_of, before

    def _take_message(self, row: _Row, turn: _Row, thread: _Row) -> None:
        """Record the events of a message; ``turn`` is the one that added it."""
        name = str(row["hash"])
        of_model = row.get("role") == "assistant"
        ts = base.moment(turn, "datetime_utc")
        source: JsonObject = {"id": name}
        if base.text(row, "parent_hash"):
            source["parent"] = row["parent_hash"]
        usage = None
        is_answer = of_model and turn.get("tip_message_hash") == name
        if is_answer:
            source.update(self._facts(turn))
            took = base.milliseconds(turn, "duration_ms")
            if ts is not None and took is not None:
                ts += timedelta(milliseconds=took)
            usage = _usage(turn)
        if not self._recording.begun and base.text(thread, "forked_from"):
            source["forked_from"] = thread["forked_from"]
        origin = base.Origin(
            f"messages {base.shown(name)}",
            ts=ts,
            model=base.text(turn, "model") if is_answer else None,
            response_id=name if of_model else None,
            usage=usage,
            source=source,
            key=key(NAME, name),
        )
        parts = self._store.rows(
            "parts", "WHERE message_hash = ? ORDER BY position", name
        )
        self._reports.record(self._pieces(row, parts), origin)

    def _pieces(
        self, row: _Row, parts: Iterable[_Row]
    ) -> Iterator[base.PieceOrSkipped]:
        """Yield the events of a message with these parts."""
        texts: list[str] = []
        thinking: list[JsonObject] = []
        files: list[JsonObject] = []
        later: list[base.PieceOrSkipped] = []
        for part in parts:
            payload, _ = base.parsed(base.text(part, "payload") or "{}")
            fields = base.mapping(payload)
            place = f"{row['hash']}:{part.get('position')}"
            match part.get("type"):
                case "text":
                    texts.append(self._text(part, fields))
                case "reasoning":
                    thinking += messages.thinking_blocks(self._text(part, fields))
                case "attachment":
                    files += self._store.attachments(
                        "part_attachments", "part_id", part["id"]
                    )
                case "tool_call":
                    later += self._call(fields, place)
                case "tool_result":
                    of_result = self._store.attachments(
                        "part_attachments", "part_id", part["id"]
                    )
                    later.append(self._result(fields, of_result))
                case _:
                    why = "part of an unknown type"
                    later.append(base.Skipped(f"parts[{part.get('position')}]", why))
        text = "\n\n".join(texts)
        match row.get("role"):
            case "system":
                self._system = text
                yield messages.system_message(text)
            case "user":
                yield messages.user_input([text], files)
            case "assistant":
                yield from messages.response(["".join(texts)], thinking)
                if files:
                    yield base.Skipped("", "files in an answer")
                if not (texts or thinking or later):
                    yield messages.EMPTY
            case "tool":
                pass
            case role:
                yield messages.unknown_role(role)
        yield from later

    def _text(self, part: _Row, fields: dict[str, Any]) -> str:
        """Return the text of a part; long texts are made of fragments."""
        pieces: list[str] = []
        for piece in base.each(fields, "text_ref"):
            if "fragment" in piece:
                fragment = self._store.row("fragments", piece["fragment"])
                pieces.append(base.text(fragment, "content") or "")
            else:
                pieces.append(base.text(piece, "literal") or "")
        return "".join(pieces) or base.text(part, "text") or ""

    # Both.

    def _facts(self, row: _Row) -> JsonObject:
        """Return the settings of a response, for ``meta.source``."""
        facts: JsonObject = {}
        for name in _STORED:
            text = base.text(row, name)
            if text is not None:
                value, _ = base.parsed(text)
                facts[name] = text if value is None else value
        schema = base.text(row, "schema_id")
        if schema:
            content, _ = base.parsed(
                base.text(self._store.row("schemas", schema), "content") or ""
            )
            facts["schema"] = content
        took = base.milliseconds(row, "duration_ms")
        if took is not None:
            facts["duration_ms"] = took
        return facts

    def _call(self, call: _Row, place: str) -> Iterator[base.PieceOrSkipped]:
        """Yield a call; a call without an id gets its place as one."""
        call_id = base.text(call, "tool_call_id")
        if call_id is None:
            call_id = self._calls.add(place, call)
        yield from openai.call_of(call_id, call, "")

    def _result(self, result: _Row, files: list[JsonObject]) -> base.PieceOrSkipped:
        """Return the result of a call."""
        call_id = base.text(result, "tool_call_id")
        if call_id is None:
            call_id = self._calls.take(base.text(result, "name"))
        if call_id is None:
            return messages.NO_CALL
        content = result.get("output")
        if files:
            content = {"output": content, "attachments": [*files]}
        exception = base.text(result, "exception")
        if exception and not content:
            content = exception
        return messages.tool_result(call_id, content, failed=exception is not None)


def _history(rows: dict[str, _Row], before: list[str]) -> list[str]:
    """Return the messages up to the last answer among those of a first request."""
    for place in range(len(before), 0, -1):
        if rows[before[place - 1]].get("role") == "assistant":
            return before[:place]
    return []


def _usage(row: _Row) -> JsonObject | None:
    """Return the tokens of a response."""
    usage: JsonObject = {}
    for name in ("input_tokens", "output_tokens"):
        if base.number(row, name) is not None:
            usage[name] = row[name]
    return usage or None


def _file(row: _Row) -> JsonObject:
    """Return a file as an attachment: with its bytes, its address, or its path."""
    media_type = base.text(row, "type")
    is_image = (media_type or "").startswith(_IMAGE)
    file: JsonObject = {"kind": "image" if is_image else "file"}
    if media_type:
        file["media_type"] = media_type
    content = row.get("content")
    if isinstance(content, bytes):
        return {**file, "data": base64.b64encode(content).decode()}
    url = base.text(row, "url")
    path = base.text(row, "path")
    if url is None and path is not None:
        file["name"] = path.replace("\\", "/").rpartition("/")[2]
        url = f"file:{path}"
    return {**file, "url": url or f"file:{row.get('id')}"}
