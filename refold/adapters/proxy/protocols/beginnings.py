"""Recognizes the beginning of a body by its bytes, so that only its end is read.

Each request of a conversation repeats the messages of the one before it.  Where the
bytes of a message are the same at the same place, its events are the same, too.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol, Self, TypeAlias

import orjson

from refold.adapters.importers import base
from refold.adapters.proxy.conversation import WireMessage
from refold.adapters.proxy.protocols.reading import (
    Notes,
    body_of,
    json_of,
    settled_message,
)
from refold.domain.events import JsonObject

# The most bytes of messages that are remembered, and the most bodies.
_MOST_BYTES: Final = 32 << 20
_MOST_BODIES: Final = 32
# The most bytes of one request in which the ends of messages are searched for.
_MOST_SEARCHED: Final = 256 << 10
# The most bytes of a first message by which other conversations are recognized.
_SAMPLE_BYTES: Final = 64
# Stands for the messages that are known.  No client can send it.
_MARK: Final = secrets.token_hex(16)
_MARK_JSON: Final = orjson.dumps(_MARK)
NO_NOTES: Final = Notes()
# By call id, the number of calls without a result.
Waiting: TypeAlias = Mapping[str, int]
_VALUE: Final = json.JSONDecoder()
_SPACE: Final = r"[ \t\n\r]*"
_START: Final = re.compile(rf"{_SPACE}\{{{_SPACE}")
_COLON: Final = re.compile(rf"{_SPACE}:{_SPACE}")
_COMMA: Final = re.compile(rf"{_SPACE},{_SPACE}")
_BEFORE_ITEM: Final = re.compile(rf"{_SPACE},?{_SPACE}")


class Reading(Protocol):
    """Reads the messages of one request, in their order.

    key:     two readings with the same key read the same messages as the same events.
    settles: whether each result must answer a call of the same request.
    system:  the system prompt; None if no message was one.
    tools:   those that stand among the messages.
    """

    key: Hashable
    settles: bool
    system: str | None
    tools: Sequence[Any]

    def copy(self) -> Self:
        """Return a reading that continues independently from here."""

    def take(self, message: Any, place: str, notes: Notes) -> Sequence[WireMessage]:
        """Take the next message; returns those that are complete now."""

    def end(self, notes: Notes) -> Sequence[WireMessage]:
        """Return the messages that were not complete before the end."""


class Frame(NamedTuple):
    """The fields of a body besides its messages, as events record them.

    fields: as the client sent them, with an empty list in place of the messages.
    """

    fields: JsonObject
    system: str | None
    tools: tuple[JsonObject, ...]
    options: JsonObject
    notes: Notes


class Part(NamedTuple):
    """A message of a body.

    messages: those that are complete with it; each result answers a call before it.
    settings: its fields besides the content.
    notes:    of its conversion.
    orphans:  notes of results without a call.
    waiting:  the calls without a result behind it.
    reading:  the state behind it.
    """

    messages: Sequence[WireMessage]
    settings: JsonObject
    notes: Notes
    orphans: Notes
    waiting: Waiting
    reading: Reading


class Body(NamedTuple):
    """A body that was read.

    end: of its messages.
    """

    frame: Frame
    parts: Sequence[Part]
    end: Part

    @property
    def reading(self) -> Reading:
        """The state behind all messages."""
        return self.end.reading

    def messages(self) -> tuple[WireMessage, ...]:
        """Return the messages that have events."""
        return tuple(
            [
                message
                for part in (*self.parts, self.end)
                for message in part.messages
                if message.events
            ]
        )

    def notes(self) -> Notes:
        """Return all notes, in the order in which a whole body has them."""
        notes = Notes()
        notes.add_all(self.frame.notes)
        parts = (*self.parts, self.end)
        for part in parts:
            if part.notes is not NO_NOTES:
                notes.add_all(part.notes)
        for part in parts:
            if part.orphans is not NO_NOTES:
                notes.add_all(part.orphans)
        return notes

    def settings(self) -> JsonObject:
        """Return the settings of messages that have any, by their index."""
        settings: JsonObject = {}
        for index, part in enumerate(self.parts):
            if part.settings:
                settings[str(index)] = part.settings
        return settings


class _Sample(NamedTuple):
    """Bytes at a place of a body."""

    start: int
    end: int
    bytes: bytes


class _Beginning(NamedTuple):
    """The bytes of a body, and what they say.

    head:    the bytes up to the bracket that begins the messages.
    pieces:  the bytes of each message, with the comma before it.
    parts:   what the pieces say.
    closing: the bytes behind the last message; None if they are not known.
    key:     of the reading.
    """

    head: bytes
    pieces: list[bytes]
    parts: list[Part]
    closing: bytes | None
    frame: Frame
    length: int
    key: Hashable

    @property
    def sample(self) -> _Sample:
        """The end of its first message."""
        end = len(self.head) + len(self.pieces[0])
        ending = self.pieces[0][-_SAMPLE_BYTES:]
        return _Sample(end - len(ending), end, ending)

    def shared(self, body: bytes) -> tuple[int, int]:
        """Return the number of messages with which a body begins, and their end."""
        if not body.startswith(self.head):
            return 0, 0
        end = len(self.head)
        count = 0
        for piece in self.pieces:
            if not body.startswith(piece, end):
                break
            end += len(piece)
            count += 1
        return count, end


def _no_settings(_: Any) -> JsonObject:
    return {}


class Beginnings:
    """Reads bodies, and remembers those that were read last, in memory only.

    protocol: its name.
    field:    the name of the list of messages.
    frame:    converts the fields besides the messages.
    settings: returns the other fields of a message.
    """

    def __init__(
        self,
        protocol: str,
        *,
        field: str = "messages",
        frame: Callable[[JsonObject, Notes], Frame],
        settings: Callable[[Any], JsonObject] = _no_settings,
    ) -> None:
        self._protocol = protocol
        self._field = field
        self._frame = frame
        self._settings = settings
        # Those that were used last come last.
        self._known: list[tuple[_Sample, _Beginning]] = []
        self._bytes = 0
        self._lock = Lock()

    def read(self, body: bytes, begin: Callable[[Frame], Reading]) -> Body:
        """Return the content of a body.  Raises NotRecordable.

        begin: returns a new reading for a body with these other fields.
        """
        with self._lock:
            known, count, end = self._longest(body)
            if known is not None:
                continued = self._continued(body, known, count, end, begin)
                if continued is not None:
                    return continued
            return self._whole(body, begin)

    def read_messages(
        self, frame: Frame, messages: Sequence[Any], begin: Callable[[Frame], Reading]
    ) -> Body:
        """Return the content of a body that was parsed."""
        first = begin(frame)
        return self._body(frame, first, self._converted([], messages, first))

    def _longest(self, body: bytes) -> tuple[_Beginning | None, int, int]:
        """Return the known body that shares the most messages with this one.

        Also returns the number of these messages, and their end.
        """
        longest: _Beginning | None = None
        most = 0
        end_of_most = 0
        for sample, known in self._known:
            # Most bodies are of other conversations, which cost no call of a function.
            if body[sample.start : sample.end] != sample.bytes:
                continue
            count, end = known.shared(body)
            if count > most:
                longest = known
                most = count
                end_of_most = end
        return longest, most, end_of_most

    def _continued(
        self,
        body: bytes,
        known: _Beginning,
        count: int,
        end: int,
        begin: Callable[[Frame], Reading],
    ) -> Body | None:
        """Read a body behind the messages that it shares with a known one.

        One value stands for these messages.  JSON is valid with it exactly if it is
        valid with them.

        Returns None for a body that must be read as a whole.
        """
        closing = known.closing
        if (
            closing is not None
            and body.endswith(closing)
            and (len(body) - len(closing) >= end)
        ):
            frame = known.frame
            rest = body[end : len(body) - len(closing)]
            lists = _json(b"[[" + _MARK_JSON + rest + b"]]")
            if not isinstance(lists, list) or len(lists) != 1:
                return None
            messages = base.sequence(lists[0])
        else:
            closing = None
            rest = body[end:]
            fields = _json(known.head + _MARK_JSON + rest)
            if not isinstance(fields, dict):
                return None
            frame = self._framed(fields, Notes())
            messages = base.sequence(fields, self._field)
        first = begin(frame)
        if messages[:1] != [_MARK] or first.key != known.key:
            return None
        new = messages[1:]
        parts = known.parts[:count]
        parts += self._converted(parts, new, first)
        pieces, length = _pieces(rest, new)
        if len(pieces) < len(new):
            closing = None
        elif closing is None:
            closing = rest[length:]
        beginning = _Beginning(
            head=known.head,
            pieces=known.pieces[:count] + pieces,
            parts=parts[: count + len(pieces)],
            closing=closing,
            frame=frame,
            length=end + length,
            key=known.key,
        )
        # A shorter one is another conversation with the same beginning.
        is_continued = 2 * count >= len(known.pieces)
        self._remember(beginning, known if is_continued else None)
        return self._body(frame, first, parts)

    def _whole(self, body: bytes, begin: Callable[[Frame], Reading]) -> Body:
        """Read all of a body.  Raises NotRecordable."""
        notes = Notes()
        fields = body_of(body, notes)
        is_exact = not notes
        frame = self._framed(fields, notes)
        messages = base.sequence(fields, self._field)
        first = begin(frame)
        parts = self._converted([], messages, first)
        head = _head(body, self._field) if is_exact else None
        if head is not None:
            rest = body[len(head) :]
            pieces, length = _pieces(rest, messages)
            beginning = _Beginning(
                head=head,
                pieces=pieces,
                parts=parts[: len(pieces)],
                closing=rest[length:] if len(pieces) == len(messages) else None,
                frame=frame,
                length=len(head) + length,
                key=first.key,
            )
            self._remember(beginning, None)
        return self._body(frame, first, parts)

    def _framed(self, fields: JsonObject, notes: Notes) -> Frame:
        """Convert the fields besides the messages."""
        if isinstance(fields.get(self._field), list):
            fields = {**fields, self._field: []}
        return self._frame(fields, notes)

    def _converted(
        self, before: Sequence[Part], messages: Sequence[Any], first: Reading
    ) -> list[Part]:
        """Convert messages that follow others.

        first: the state before all messages.
        """
        parts: list[Part] = []
        reading = before[-1].reading if before else first
        waiting: Waiting = before[-1].waiting if before else {}
        for index, message in enumerate(messages, start=len(before)):
            notes = Notes()
            reading = reading.copy()
            place = f"{self._field}[{index}]"
            converted = reading.take(message, place, notes)
            settings = self._settings(message)
            part = self._part(converted, settings, notes, waiting, reading)
            waiting = part.waiting
            parts.append(part)
        return parts

    def _part(
        self,
        messages: Sequence[WireMessage],
        settings: JsonObject,
        notes: Notes,
        waiting: Waiting,
        reading: Reading,
    ) -> Part:
        """Return converted messages with each result behind a call.

        waiting: the calls without a result before them.
        """
        orphans = Notes()
        if reading.settles and messages:
            open_calls = dict(waiting)
            messages = [
                settled_message(message, open_calls, self._protocol, orphans)
                for message in messages
            ]
            waiting = {call_id: count for call_id, count in open_calls.items() if count}
        return Part(
            messages, settings, notes or NO_NOTES, orphans or NO_NOTES, waiting, reading
        )

    def _body(self, frame: Frame, first: Reading, parts: Sequence[Part]) -> Body:
        """Return a body with the messages that its end completes."""
        reading = parts[-1].reading.copy() if parts else first
        waiting: Waiting = parts[-1].waiting if parts else {}
        notes = Notes()
        messages = reading.end(notes)
        return Body(frame, parts, self._part(messages, {}, notes, waiting, reading))

    def _remember(self, beginning: _Beginning, replaced: _Beginning | None) -> None:
        """Remember a body, in the place of one that it continues."""
        if not beginning.pieces:
            return
        for index, (_, known) in enumerate(self._known):
            if known is replaced:
                del self._known[index]
                self._bytes -= known.length
                break
        self._known.append((beginning.sample, beginning))
        self._bytes += beginning.length
        while len(self._known) > 1 and (
            self._bytes > _MOST_BYTES or len(self._known) > _MOST_BODIES
        ):
            _, oldest = self._known.pop(0)
            self._bytes -= oldest.length


def _json(data: bytes) -> Any:
    """Return a JSON value; None for data that is not JSON, or has to be repaired."""
    try:
        value, changes = json_of(data)
    except ValueError:
        return None
    return None if changes else value


def _head(body: bytes, field: str) -> bytes | None:
    """Return a body up to the bracket that begins its messages; None without it.

    field: the name of the list of messages.
    """
    text = body[:_MOST_SEARCHED].decode(errors="ignore")
    match = _START.match(text)
    try:
        while match is not None:
            name, end = _VALUE.raw_decode(text, match.end())
            match = _COLON.match(text, end)
            if match is None:
                return None
            if name == field:
                end = match.end() + 1
                return text[:end].encode() if text[match.end() : end] == "[" else None
            _, end = _VALUE.raw_decode(text, match.end())
            match = _COMMA.match(text, end)
    except (ValueError, RecursionError):
        pass  # the messages begin behind the part that is searched
    return None


def _pieces(rest: bytes, messages: Sequence[Any]) -> tuple[list[bytes], int]:
    """Return the bytes of messages, as far as they are found, and their length.

    rest:     the body from the first of the messages on.
    messages: their values.
    """
    text = rest[:_MOST_SEARCHED].decode(errors="ignore")
    pieces: list[bytes] = []
    start = 0
    length = 0
    for message in messages:
        before = _BEFORE_ITEM.match(text, start)
        if before is None or not isinstance(message, dict):
            break  # the bytes of another value do not show its end
        try:
            value, end = _VALUE.raw_decode(text, before.end())
        except (ValueError, RecursionError):
            break  # it ends behind the text that is searched
        if value != message:
            break  # the body has two lists of messages
        piece = text[start:end].encode()
        pieces.append(piece)
        length += len(piece)
        start = end
    return pieces, length
