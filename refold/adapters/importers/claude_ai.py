"""Claude.ai's data export: conversations of messages, with tools and branches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from refold.adapters.importers import base, exports, messages
from refold.adapters.importers.tree import Node, Tree, key
from refold.domain.events import JsonObject
from refold.domain.ids import unknown_response_id

NAME = "claude-ai"
# The parent of first messages.
_NO_MESSAGE: Final = "00000000-0000-4000-8000-000000000000"
_IMAGES: Final = (".gif", ".jpeg", ".jpg", ".png", ".webp")
# The fields of a conversation that are stored with its first event.
_STORED: Final = ("project", "project_uuid", "settings", "summary")
_READ: Final = frozenset(
    {
        *_STORED,
        "account",
        "chat_messages",
        "created_at",
        "current_leaf_message_uuid",
        "model",
        "name",
        "updated_at",
        "uuid",
    }
)
_READ_OF_MESSAGE: Final = frozenset(
    {
        "attachments",
        "compaction_summary",
        "content",
        "created_at",
        "files",
        "index",
        "parent_message_uuid",
        "sender",
        "stop_reason",
        "text",
        "truncated",
        "updated_at",
        "uuid",
    }
)


def recognises(source: base.Source) -> bool:
    """Whether the first conversation has the messages of Claude.ai."""
    with exports.Export(source) as export:
        return _is_conversation(export.first())


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield a transcript for each conversation."""
    with exports.Export(source) as export:
        transcripts = (
            _Conversation(source, item).transcript()
            for item in export.conversations(_is_conversation)
        )
        yield from exports.with_reports(transcripts, export)


def _is_conversation(value: Any) -> bool:
    """Whether a value has a list of messages under the name that Claude.ai uses."""
    fields = base.mapping(value)
    return "uuid" in fields and isinstance(fields.get("chat_messages"), list)


class _Conversation:
    """Reads one conversation."""

    def __init__(self, source: base.Source, item: exports.Item) -> None:
        self._place = item.place
        self._fields: dict[str, Any] = item.value
        self._recording = base.Recording(NAME, source.name)
        self._reports = exports.Reports(self._recording)
        self._messages: dict[str, dict[str, Any]] = {}
        self._places: dict[str, str] = {}
        for index, message in enumerate(base.each(item.value, "chat_messages")):
            place = f"{item.place} chat_messages[{index}]".strip()
            name = base.text(message, "uuid") or unknown_response_id(index)
            if name in self._messages:
                self._reports.add("message that repeats an earlier one", place)
                continue
            self._messages[name] = message
            self._places[name] = place
        self._header: JsonObject = {
            name: item.value[name] for name in _STORED if item.value.get(name)
        }
        # The calls without a result that have no id in the file, oldest first.
        self._unnamed: list[tuple[str, str | None]] = []

    def transcript(self) -> base.Transcript:
        """Return the transcript of the conversation."""
        tree = Tree(self._tree_nodes())
        newest = ""
        for step in tree.steps():
            newest = step.node_id
            if step.change is not None:
                change_key = f"{NAME}\0branch\0{step.node_id}"
                origin = base.Origin(self._places[step.node_id], key=change_key)
                mark = step.change.mark(NAME)
                self._recording.mark(mark, origin, step.change.reason)
            self._take(step.node_id)
        for name in tree.broken:
            why = "message whose parent is not in the file: read as a first message"
            self._reports.add(why, self._places[name])
        # The data export does not say which branch is in force: it is the newest one.
        leaf = base.text(self._fields, "current_leaf_message_uuid") or newest
        current = tree.current(leaf)
        if current is not None:
            change_key = f"{NAME}\0current\0{current.digest}"
            origin = base.Origin(self._place, key=change_key)
            self._recording.mark(current.mark(NAME), origin, current.reason)
        self._reports.add_fields("conversation", self._fields, _READ, self._place)
        self._reports.finish()
        return replace(
            self._recording.transcript(base.session_name(self._fields, "uuid")),
            title=base.text(self._fields, "name") or "",
        )

    def _tree_nodes(self) -> Iterator[Node]:
        """Yield the messages with their parents; older files have a list alone."""
        has_parents = any(
            base.text(message, "parent_message_uuid")
            for message in self._messages.values()
        )
        before: str | None = None
        for name, message in self._messages.items():
            parent = base.text(message, "parent_message_uuid")
            if parent == _NO_MESSAGE:
                parent = None
            elif not has_parents:
                parent = before
            written = base.moment(message, "created_at")
            yield Node(
                id=name,
                parent=parent,
                time=None if written is None else written.timestamp(),
                of_user=message.get("sender") == "human",
            )
            before = name

    def _take(self, name: str) -> None:
        """Record the events of a message."""
        message = self._messages[name]
        place = self._places[name]
        source: JsonObject = {"id": name}
        parent = base.text(message, "parent_message_uuid")
        if parent and parent != _NO_MESSAGE:
            source["parent"] = parent
        origin = base.Origin(
            place,
            ts=base.moment(message, "created_at"),
            source=source,
            key=key(NAME, name),
        )
        match message.get("sender"):
            case "human":
                self._record(_user(message), origin)
            case "assistant":
                self._take_answer(name, message, origin)
            case sender:
                self._record([messages.unknown_role(sender)], origin)
        summary = message.get("compaction_summary")
        if summary:
            fields = {"format": NAME, "kind": "compaction_summary", "value": summary}
            self._record([base.Piece("item", fields)], origin)
        self._reports.add_fields("message", message, _READ_OF_MESSAGE, place)

    def _take_answer(
        self, name: str, message: dict[str, Any], origin: base.Origin
    ) -> None:
        """Record an answer: responses with their calls, and the results between them.

        Each response of the model ends where a result begins.
        """
        model = base.text(self._fields, "model")
        blocks = base.sequence(message, "content")
        if not blocks and base.text(message, "text"):
            blocks = [{"type": "text", "text": message["text"]}]
        runs = list(messages.runs(blocks, _kind))
        answer = replace(origin, model=model)
        responses = 0
        has_events = False
        for place, (kind, run) in enumerate(runs):
            ts = _end_of(run) or origin.ts
            if kind == "result":
                for index, block in run:
                    self._record([self._result(index, block)], replace(origin, ts=ts))
                responses += 1
                continue
            response_id = name if responses == 0 else f"{name}:{responses}"
            of_run = replace(answer, ts=ts, response_id=response_id)
            if kind == "unknown":
                pieces = _provider_blocks(run)
            else:
                is_last = place == len(runs) - 1
                reason = _stop_reason(message) if is_last else None
                pieces = self._response(name, run, reason)
            self._record(pieces, of_run)
            has_events = True
        if not has_events and not runs:
            self._record([messages.EMPTY], origin)

    def _record(
        self,
        pieces: Iterator[base.PieceOrSkipped] | list[base.PieceOrSkipped],
        origin: base.Origin,
    ) -> None:
        """Record pieces of a message; the reasons of skipped ones are collected."""
        for piece in pieces:
            if isinstance(piece, base.Skipped):
                place = f"{origin.place} {piece.where}".strip()
                self._reports.add(piece.why, place, note=piece.note)
                continue
            if self._header:
                source = {**origin.source, "conversation": self._header}
                self._header = {}
                self._recording.take([piece], replace(origin, source=source))
            else:
                self._recording.take([piece], origin)

    def _response(
        self, name: str, run: list[tuple[int, Any]], reason: str | None
    ) -> Iterator[base.PieceOrSkipped]:
        """Yield the text and the thinking of a response, then its calls."""
        texts: list[str] = []
        thinking: list[JsonObject] = []
        for _, block in run:
            text = messages.text_of(block)
            if text:
                texts.append(text)
            if base.at(block, "type") == "thinking" and base.text(block, "thinking"):
                thinking.append(messages.thinking_of(block))
        yield from messages.response(texts, thinking, stop_reason=reason)
        for index, block in run:
            place = f"content[{index}]"
            if base.sequence(block, "citations"):
                yield base.Skipped(place, messages.CITATIONS)
            if base.at(block, "type") == "tool_use":
                call_id = base.text(block, "id")
                if call_id is None:
                    call_id = f"{name}:{index}"
                    self._unnamed.append((call_id, base.text(block, "name")))
                call = messages.tool_call(
                    call_id, block.get("name"), block.get("input")
                )
                yield base.placed(call, place)

    def _result(self, index: int, block: Any) -> base.PieceOrSkipped:
        """Return a result; without an id, it answers the oldest call of its tool."""
        call_id = base.text(block, "tool_use_id")
        if call_id is None:
            call_id = self._unnamed_call(base.text(block, "name"))
        if call_id is None:
            return base.placed(messages.NO_CALL, f"content[{index}]")
        start = base.moment(block, "start_timestamp")
        end = base.moment(block, "stop_timestamp")
        took = None
        if start is not None and end is not None and end >= start:
            took = round((end - start).total_seconds() * 1000, 3)
        return messages.tool_result(
            call_id,
            base.at(block, "content"),
            failed=base.at(block, "is_error") is True,
            took=took,
        )

    def _unnamed_call(self, tool: str | None) -> str | None:
        """Remove and return the oldest call of a tool that has no id in the file."""
        for place, (call_id, called) in enumerate(self._unnamed):
            if tool is None or tool == called:
                del self._unnamed[place]
                return call_id
        return None


def _user(message: dict[str, Any]) -> Iterator[base.PieceOrSkipped]:
    """Yield the input of a person, with attached texts and files."""
    texts: list[str] = []
    for index, block in enumerate(base.sequence(message, "content")):
        text = messages.text_of(block)
        if text is None:
            yield base.Skipped(f"content[{index}]", "block of an unknown type")
        else:
            texts.append(text)
    if not texts and base.text(message, "text"):
        texts.append(message["text"])
    files: list[JsonObject] = []
    for attachment in base.each(message, "attachments"):
        files.append(_attachment(attachment))
    for file in base.each(message, "files"):
        name = base.text(file, "file_name")
        file_id = base.text(file, "file_uuid") or base.text(file, "uuid")
        is_image = (name or "").lower().endswith(_IMAGES)
        fields: JsonObject = {"kind": "image" if is_image else "file"}
        if name:
            fields["name"] = name
        if file_id:
            fields["url"] = f"file:{file_id}"
        files.append(fields)
    if base.sequence(message, "files"):
        why = "content of a file, which the export does not have"
        yield base.Skipped("files", why, note=True)
    yield messages.user_input(texts, files)


def _attachment(attachment: dict[str, Any]) -> JsonObject:
    """Return an attachment as a document with its text."""
    fields: JsonObject = {"kind": "document"}
    name = base.text(attachment, "file_name")
    if name:
        fields["name"] = name
    media_type = base.text(attachment, "file_type")
    if media_type and "/" in media_type:
        fields["media_type"] = media_type
    text = base.text(attachment, "extracted_content")
    if text:
        fields["text"] = text
    return fields


def _kind(block: Any) -> str:
    """Return the part of an answer to which a block belongs."""
    match base.at(block, "type"):
        case "tool_result":
            return "result"
        case "text" | "thinking" | "tool_use":
            return "response"
    return "response" if isinstance(block, str) else "unknown"


def _provider_blocks(run: list[tuple[int, Any]]) -> Iterator[base.PieceOrSkipped]:
    """Yield blocks that only Claude.ai interprets, byte for byte."""
    blocks: list[tuple[int, Any]] = []
    for index, block in run:
        if isinstance(block, dict):
            blocks.append((index, block))
        else:
            yield base.Skipped(
                f"content[{index}]", "not a block: no object with a type"
            )
    if blocks:
        yield from messages.provider_blocks(blocks)


def _end_of(run: list[tuple[int, Any]]) -> datetime | None:
    """Return the time at which the last block of a run ended."""
    for _, block in reversed(run):
        end = base.moment(block, "stop_timestamp")
        if end is not None:
            return end
    return None


def _stop_reason(message: dict[str, Any]) -> str | None:
    """Return why an answer ended, if the file says so."""
    reason = base.text(message, "stop_reason")
    if reason is None and message.get("truncated") is True:
        return "truncated"
    return reason
