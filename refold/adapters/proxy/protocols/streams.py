"""Streams of answers: server-sent events, lines of JSON, and arrays that grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from json import JSONDecoder
from typing import Any, Final, NamedTuple

from refold.adapters.importers.lines import BOM
from refold.adapters.proxy.protocols.reading import UNREADABLE, Notes, json_of
from refold.domain.canonical import repaired

DONE: Final = b"[DONE]"
_DECODER: Final = JSONDecoder()
_BLANK: Final = " \t\r\n,"


class ServerEvent(NamedTuple):
    """A server-sent event: its name, which may be empty, and its data."""

    name: str
    data: bytes


def is_events(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a body consists of server-sent events.

    The body decides if the content type does not: some servers omit it.
    """
    content_type = headers.get("content-type", "")
    if content_type.startswith("text/event-stream"):
        return True
    start = body[:64].removeprefix(BOM).lstrip()
    return start.startswith((b"data:", b"event:", b"id:", b"retry:", b":"))


def server_events(body: bytes) -> Iterator[ServerEvent]:
    """Yield the events of a stream, which may be cut off anywhere.

    The last event counts even if the blank line behind it is missing.  Its data may be
    cut off.
    """
    body = body.removeprefix(BOM)
    if b"\r" in body:
        body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    name = ""
    data: list[bytes] = []
    for line in body.split(b"\n"):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"event:"):
            name = line[6:].strip().decode(errors="replace")
        elif not line:
            if data:
                yield ServerEvent(name, b"\n".join(data))
            name = ""
            data = []
    if data:
        yield ServerEvent(name, b"\n".join(data))


def json_events(body: bytes, notes: Notes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and the JSON objects of server-sent events.

    ``[DONE]`` is an event of that name with an empty object.  Data that is no JSON
    object is noted, unless it is the end of a stream that broke off.
    """
    unreadable = False
    for event in server_events(body):
        if unreadable:
            notes.add(UNREADABLE, "server-sent event")
            unreadable = False
        if event.data.strip() == DONE:
            yield DONE.decode(), {}
            continue
        try:
            value, changes = json_of(event.data)
        except ValueError:
            unreadable = True
            continue
        notes.repaired(changes)
        if isinstance(value, dict):
            yield event.name, value
        else:
            notes.add(UNREADABLE, "server-sent event")


def json_lines(body: bytes, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of lines; a last line that is cut off is left out."""
    unreadable = False
    for line in body.removeprefix(BOM).split(b"\n"):
        if not line.strip():
            continue
        if unreadable:
            notes.add(UNREADABLE, "line")
            unreadable = False
        try:
            value, changes = json_of(line)
        except ValueError:
            unreadable = True
            continue
        notes.repaired(changes)
        if isinstance(value, dict):
            yield value
        else:
            notes.add(UNREADABLE, "line")


def json_array(body: bytes, notes: Notes) -> list[dict[str, Any]]:
    """Return the objects of an array, or a single object; a cut-off end is left out."""
    try:
        value, changes = json_of(body.removeprefix(BOM))
    except ValueError:
        return _begun_array(body, notes)
    notes.repaired(changes)
    if isinstance(value, dict):
        return [value]
    objects: list[dict[str, Any]] = []
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict):
            objects.append(item)
        else:
            notes.add(UNREADABLE, "element")
    return objects


def _begun_array(body: bytes, notes: Notes) -> list[dict[str, Any]]:
    """Return the whole objects at the start of an array that is cut off."""
    text = body.decode(errors="replace").removeprefix("\ufeff").lstrip()
    objects: list[dict[str, Any]] = []
    if not text.startswith("["):
        return objects
    place = 1
    while True:
        while place < len(text) and text[place] in _BLANK:
            place += 1
        try:
            value, place = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            return objects
        value, changes = repaired(value)
        notes.repaired(changes)
        if isinstance(value, dict):
            objects.append(value)
