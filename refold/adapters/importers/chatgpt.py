"""ChatGPT's data export: conversations as trees of messages, with their branches."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from refold.adapters.importers import base, exports, messages, openai
from refold.adapters.importers.tree import Node, Tree, key
from refold.domain.envelope import Mark
from refold.domain.events import JsonObject

NAME = "chatgpt"
_MOST_OF_IMAGE: Final = 5 << 20  # bytes of an image that is imported
_POINTERS: Final = ("file-service://", "sediment://")
# The fields of a conversation that are stored with its first event.
_STORED: Final = (
    "conversation_template_id",
    "default_model_slug",
    "gizmo_id",
    "gizmo_type",
    "memory_scope",
    "plugin_ids",
)
_READ: Final = frozenset(
    {
        *_STORED,
        "conversation_id",
        "create_time",
        "current_node",
        "id",
        "mapping",
        "title",
        "update_time",
    }
)
# The fields of a message's metadata that are stored with its first event.
_METADATA: Final = ("canvas", "command", "gizmo_id", "status", "thinking_effort")
# The kinds of content that the client shows, and that no model sees.
_RECAP: Final = "reasoning_recap"
_CONTEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "user_editable_context": ("user_profile", "user_instructions"),
    "model_editable_context": ("model_set_context",),
}
# The outcomes of a program that the tool ran.
_FINISHED: Final = frozenset({"success", "running", "in_progress", ""})
_MADE_UP: Final = "reconstructed"  # the mark of a call that the file does not have


def recognises(source: base.Source) -> bool:
    """Whether the first conversation is a tree of ChatGPT's messages."""
    with exports.Export(source) as export:
        return _is_conversation(export.first())


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield a transcript for each conversation."""
    with exports.Export(source) as export:
        transcripts = (
            _Conversation(source, export, item).transcript()
            for item in export.conversations(_is_conversation)
        )
        yield from exports.with_reports(transcripts, export)


def _is_conversation(value: Any) -> bool:
    """Whether a value has messages with their parents and children."""
    nodes = base.mapping(value, "mapping")
    if not nodes:
        return False
    return all(
        base.mapping(node).keys() >= {"id", "message"} for node in nodes.values()
    )


class _Conversation:
    """Reads one conversation."""

    def __init__(
        self, source: base.Source, export: exports.Export, item: exports.Item
    ) -> None:
        self._export = export
        self._place = item.place
        self._fields: dict[str, Any] = item.value
        self._nodes: dict[str, dict[str, Any]] = {
            node_id: base.mapping(node)
            for node_id, node in base.mapping(item.value, "mapping").items()
        }
        self._recording = base.Recording(NAME, source.name)
        self._reports = exports.Reports(self._recording)
        # The call that the results after it answer, by the message of the call.
        self._answered: set[str] = set()
        # The first message of the answer that a message belongs to, and the message of
        # a person or of the model before a message.  Parents come before children, so
        # that each is looked up in one step.
        self._first_of: dict[str, str] = {}
        self._speaker_before: dict[str, str | None] = {}
        self._header: JsonObject = {
            name: item.value[name] for name in _STORED if item.value.get(name)
        }

    def transcript(self) -> base.Transcript:
        """Return the transcript of the conversation."""
        tree = Tree(self._tree_nodes())
        for step in tree.steps():
            origin = self._origin(step.node_id)
            if step.change is not None:
                change_key = f"{NAME}\0branch\0{step.node_id}"
                self._mark(step.change.mark(NAME), step.change.reason, change_key)
            self._take(step.node_id, origin)
        for node_id in tree.broken:
            why = "message whose parent is not in the file: read as a first message"
            self._reports.add(why, self._place_of(node_id))
        current = tree.current(base.text(self._fields, "current_node"))
        if current is not None:
            change_key = f"{NAME}\0current\0{current.digest}"
            self._mark(current.mark(NAME), current.reason, change_key)
        elif tree.has_branches:
            why = "conversation that does not name its current message"
            self._reports.add(why, self._place)
        self._reports.add_fields("conversation", self._fields, _READ, self._place)
        self._reports.finish()
        name = self._fields.get("conversation_id") or self._fields.get("id")
        return replace(
            self._recording.transcript(base.session_name(name)),
            title=base.text(self._fields, "title") or "",
        )

    def _tree_nodes(self) -> Iterator[Node]:
        for node_id, node in self._nodes.items():
            message = base.mapping(node, "message")
            yield Node(
                id=node_id,
                parent=base.text(node, "parent"),
                time=base.number(message, "create_time"),
                of_user=base.at(message, "author", "role") == "user",
            )

    def _mark(self, mark: Mark, reason: Any, change_key: str) -> None:
        """Record a change of the branch, if it changes recorded messages."""
        origin = base.Origin(self._place, key=change_key)
        self._recording.mark(mark, origin, reason)

    def _place_of(self, node_id: str) -> str:
        return f"{self._place} mapping.{base.shown(node_id)}".strip()

    def _origin(self, node_id: str) -> base.Origin:
        """Return the origin of a message's events."""
        message = base.mapping(self._nodes[node_id], "message")
        metadata = base.mapping(message, "metadata")
        source: JsonObject = {"id": node_id}
        parent = base.text(self._nodes[node_id], "parent")
        if parent:
            source["parent"] = parent
        for name in _METADATA:
            if metadata.get(name):
                source[name] = metadata[name]
        if base.text(message, "channel"):
            source["channel"] = message["channel"]
        if metadata.get("is_visually_hidden_from_conversation") is True:
            source["hidden"] = True
        of_model = base.at(message, "author", "role") == "assistant"
        return base.Origin(
            self._place_of(node_id),
            ts=base.moment(message, "create_time"),
            request_id=base.text(metadata, "request_id"),
            model=base.text(metadata, "model_slug") if of_model else None,
            response_id=self._response_of(node_id) if of_model else None,
            source=source,
            key=key(NAME, node_id),
        )

    def _response_of(self, node_id: str) -> str:
        """Return the first message of the model's answer that a message belongs to."""
        first = node_id
        seen = {node_id}
        while True:
            parent = base.text(self._nodes[first], "parent")
            if parent not in self._nodes or parent in seen:
                break
            if self._role_of(parent) != "assistant":
                break
            seen.add(parent)
            first = self._first_of.get(parent, parent)
            if first != parent:
                break
        self._first_of[node_id] = first
        return first

    def _role_of(self, node_id: str) -> Any:
        return base.at(self._nodes[node_id], "message", "author", "role")

    def _take(self, node_id: str, origin: base.Origin) -> None:
        """Record the events of a message."""
        message = self._nodes[node_id].get("message")
        if message is None:  # the root of the tree
            return
        for piece in self._pieces(node_id, base.mapping(message)):
            if isinstance(piece, base.Skipped):
                place = f"{origin.place} {piece.where}".strip()
                self._reports.add(piece.why, place, note=piece.note)
                continue
            piece_origin = origin
            if piece.fields.pop(_MADE_UP, False):
                source = {**origin.source, _MADE_UP: "call"}
                piece_origin = replace(origin, source=source)
            if self._header:
                source = {**piece_origin.source, "conversation": self._header}
                piece_origin = replace(piece_origin, source=source)
                self._header = {}
            self._recording.take([piece], piece_origin)

    def _pieces(
        self, node_id: str, message: dict[str, Any]
    ) -> Iterator[base.PieceOrSkipped]:
        """Yield the events of a message."""
        content = base.mapping(message, "content")
        kind = base.text(content, "content_type") or ""
        role = base.at(message, "author", "role")
        if kind in _CONTEXTS:
            yield _context(content, _CONTEXTS[kind])
        elif role == "system":
            yield _system(content)
        elif role == "user":
            yield from self._user(message, content)
        elif role == "assistant":
            yield from self._assistant(node_id, message, content)
        elif role == "tool":
            yield from self._tool(node_id, message, content)
        else:
            yield messages.unknown_role(role)
        metadata = base.mapping(message, "metadata")
        if base.sequence(metadata, "content_references") or base.sequence(
            metadata, "citations"
        ):
            yield base.Skipped("", messages.CITATIONS)

    def _user(
        self, message: dict[str, Any], content: dict[str, Any]
    ) -> Iterator[base.PieceOrSkipped]:
        """Yield the input of a person, with its files."""
        uploads: dict[str, dict[str, Any]] = {}
        for upload in base.each(message, "metadata", "attachments"):
            asset = base.text(upload, "id")
            if asset is not None:
                uploads.setdefault(asset, upload)
        texts: list[str] = []
        files: list[JsonObject] = []
        for index, part in enumerate(_parts(content)):
            text = _text_of(part)
            asset = _asset_of(part)
            if text is not None:
                texts.append(text)
            elif asset is not None:
                upload = uploads.pop(asset, {})
                files.append(self._file(asset, upload, is_image=_is_image(part)))
            else:
                why = "part that is neither text, image nor file"
                yield base.Skipped(f"parts[{index}]", why)
        for asset, upload in uploads.items():
            files.append(self._file(asset, upload, is_image=False))
        yield messages.user_input(texts, files)

    def _file(
        self, asset_id: str, upload: dict[str, Any], *, is_image: bool
    ) -> JsonObject:
        """Return a file as an attachment, an image with its bytes if they are there.

        upload:   the fields of the file in the message; empty if it has none.
        is_image: whether the message shows the file as an image.
        """
        name = base.text(upload, "name")
        media_type = base.text(upload, "mime_type") or base.text(upload, "mimeType")
        if is_image or (media_type or "").startswith("image/"):
            asset = self._export.asset(asset_id, _MOST_OF_IMAGE)
            image_type = None if asset is None else exports.image_type(asset.data)
            file: JsonObject = {"kind": "image"}
            if name:
                file["name"] = name
            if asset is not None and image_type is not None:
                data = base64.b64encode(asset.data).decode()
                return {**file, "media_type": image_type, "data": data}
            if media_type:
                file["media_type"] = media_type
        else:
            file = {"kind": "file", "media_type": media_type}
            if name:
                file["name"] = name
        why = "content of a file; its name was imported"
        self._reports.add(why, self._place, note=True)
        return {**file, "url": f"file:{asset_id}"}

    def _assistant(
        self, node_id: str, message: dict[str, Any], content: dict[str, Any]
    ) -> Iterator[base.PieceOrSkipped]:
        """Yield a response of the model, or its call of a tool."""
        kind = base.text(content, "content_type")
        recipient = base.text(message, "recipient") or "all"
        if recipient != "all":
            function = {"name": recipient, "arguments": _joined(content)}
            yield from openai.call_of(node_id, function, "")
            return
        if kind == _RECAP:
            yield base.Skipped("", "time that the model thought", note=True)
            return
        if kind == "thoughts":
            thinking: list[JsonObject] = []
            for thought in base.each(content, "thoughts"):
                texts = (base.text(thought, "summary"), base.text(thought, "content"))
                joined = "\n\n".join(text for text in texts if text)
                thinking += messages.thinking_blocks(joined)
            for part in _parts(content):
                thinking += messages.thinking_blocks(_text_of(part))
            yield from messages.response([], thinking)
            if not thinking:
                yield messages.EMPTY
            return
        reason = base.text(message, "metadata", "finish_details", "type")
        text = _joined(content)
        yield from messages.response([text], stop_reason=reason)
        if not text:
            yield messages.EMPTY
        for index, part in enumerate(_parts(content)):
            if _text_of(part) is None:
                why = "part of an answer that is not text"
                yield base.Skipped(f"parts[{index}]", why)

    def _tool(
        self, node_id: str, message: dict[str, Any], content: dict[str, Any]
    ) -> Iterator[base.PieceOrSkipped]:
        """Yield the result of a tool.

        The file has no call for the further results of one call, and for texts that a
        tool shows by itself.  Then a call is made up, without arguments.
        """
        call_id = self._call_of(node_id)
        if call_id is None:
            call_id = node_id
            name = base.text(message, "author", "name") or "tool"
            call = messages.tool_call(call_id, name, {})
            if isinstance(call, base.Piece):
                call.fields[_MADE_UP] = True
            yield call
        self._answered.add(call_id)
        outcome = base.mapping(message, "metadata", "aggregate_result")
        status = base.text(outcome, "status") or ""
        kind = base.text(content, "content_type")
        yield messages.tool_result(
            call_id,
            _result(content),
            failed=kind == "system_error" or status not in _FINISHED,
            took=_duration(outcome),
        )

    def _call_of(self, node_id: str) -> str | None:
        """Return the open call before a result; None if another result answered it."""
        speaker = self._speaker(node_id)
        if speaker is None or self._role_of(speaker) != "assistant":
            return None
        message = base.mapping(self._nodes[speaker], "message")
        called = (base.text(message, "recipient") or "all") != "all"
        is_open = called and speaker not in self._answered
        return speaker if is_open and self._recording.waits(speaker) else None

    def _speaker(self, node_id: str) -> str | None:
        """Return the last message of a person or of the model before a message."""
        seen = {node_id}
        speaker = base.text(self._nodes[node_id], "parent")
        while speaker in self._nodes and speaker not in seen:
            if self._role_of(speaker) in ("assistant", "user"):
                break
            if speaker in self._speaker_before:
                speaker = self._speaker_before[speaker]
                break
            seen.add(speaker)
            speaker = base.text(self._nodes[speaker], "parent")
        if speaker not in self._nodes or speaker in seen:
            speaker = None
        self._speaker_before[node_id] = speaker
        return speaker


def _system(content: dict[str, Any]) -> base.PieceOrSkipped:
    """Return a system message; most are empty."""
    text = _joined(content)
    if not text.strip():
        return base.Skipped("", "empty system message", note=True)
    return messages.system_message(text)


def _context(content: dict[str, Any], names: tuple[str, ...]) -> base.PieceOrSkipped:
    """Return the instructions or the memory of a person as a system message."""
    texts = [base.text(content, name) for name in names]
    joined = "\n\n".join(text for text in texts if text)
    if not joined:
        return base.Skipped("", "empty system message", note=True)
    return messages.system_message(joined)


def _parts(content: dict[str, Any]) -> list[Any]:
    """Return the parts of a content; without parts, its text is the only one."""
    parts = content.get("parts")
    if isinstance(parts, list):
        return parts
    for name in ("text", "result", "content"):
        if base.text(content, name):
            return [content[name]]
    return []


def _joined(content: dict[str, Any]) -> str:
    """Return the texts of a content, joined by line breaks."""
    texts = [_text_of(part) for part in _parts(content)]
    return "\n".join(text for text in texts if text)


def _text_of(part: Any) -> str | None:
    """Return the text of a part that is a text or a transcribed sound, else None."""
    if isinstance(part, str):
        return part
    if base.at(part, "content_type") in ("audio_transcription", "text"):
        text = base.at(part, "text")
        return text if isinstance(text, str) else None
    return None


def _asset_of(part: Any) -> str | None:
    """Return the id of the file that a part shows, None for another part."""
    pointer = base.text(part, "asset_pointer")
    pointer = pointer or base.text(part, "audio_asset_pointer", "asset_pointer")
    for prefix in _POINTERS:
        if pointer and pointer.startswith(prefix):
            return pointer.removeprefix(prefix)
    return pointer


def _is_image(part: Any) -> bool:
    """Whether a part shows its file as an image."""
    return (base.text(part, "content_type") or "").startswith("image")


def _result(content: dict[str, Any]) -> Any:
    """Return the content of a result: a text, or the content as it is in the file."""
    if base.text(content, "content_type") not in ("text", "code", "execution_output"):
        return content
    if any(_text_of(part) is None for part in _parts(content)):
        return content
    return _joined(content)


def _duration(outcome: dict[str, Any]) -> float | None:
    """Return the time that a program ran, in milliseconds."""
    start = base.number(outcome, "start_time")
    end = base.number(outcome, "end_time")
    if start is None or end is None:
        return None
    return base.milliseconds(end - start, per_unit=1000.0)
