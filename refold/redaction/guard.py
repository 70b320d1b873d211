"""The size guard: cuts texts that are too large for an event and keeps them as blobs.

Long base64 moves to a blob from a smaller size on, since nobody reads it in an event.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Final, cast

import orjson

from refold.domain.envelope import Blob
from refold.domain.placeholders import STANDS_FOR
from refold.domain.stubs import STUB_SIGN, Read, whole
from refold.redaction.types import LONGEST
from refold.redaction.values import NO_SKIP, JsonObject, JsonValue, Skip, below

# A stub and the row of a blob take some hundred bytes, so less than this is not worth
# moving.  Keys, certificates and tokens, which people do read in a log, are smaller.
FROM_BYTES: Final = 4096

_URI: Final = re.compile(r"data:[\w!#$%&'*+./;=^`|~\"-]{0,200};base64,", re.A | re.I)
# PEM breaks lines after 64 characters, mail after 76; lists of words break earlier.
_LEAST_WIDTH: Final = 60
_CHARACTERS: Final = re.compile(r"[A-Za-z0-9+/_=\r\n-]+")
_STANDARD: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_URL_SAFE: Final = re.compile(r"[A-Za-z0-9_-]+={0,2}")
# The least share of each kind of character.  In base64 of binaries and of text about
# two fifths are capitals, two fifths small letters and a tenth digits.  In words run
# together at most one in six is a capital, and hex has one kind of letter.
_ENCODED_LEAST: Final = (
    (ascii_uppercase.encode(), 0.2),
    (ascii_lowercase.encode(), 0.2),
    (digits.encode(), 0.04),
)


def start_of_payload(text: str) -> int | None:
    """Where the base64 payload that fills the rest of ``text`` begins; else None.

    A payload decodes, and has at least ``FROM_BYTES`` together with the head of a
    ``data:`` URI before it.  Without such a head it must also look encoded, because
    letters alone decode as well.
    """
    if len(text) < FROM_BYTES:
        return None
    uri = _URI.match(text)
    start = uri.end() if uri else 0
    if not _CHARACTERS.fullmatch(text, start):
        return None
    payload = _on_one_line(text[start:])
    if not _decodes(payload):
        return None
    if uri or _looks_encoded(payload.encode()):
        return start
    return None


def _on_one_line(text: str) -> str:
    """The text without the regular line breaks of mail and PEM; empty if irregular."""
    lines = text.splitlines()
    if len(lines) == 1:
        return lines[0]
    width = len(lines[0]) if lines else 0
    if width < _LEAST_WIDTH:
        return ""
    widths = {len(line) for line in lines[:-1]}
    if widths != {width} or len(lines[-1]) > width:
        return ""
    return "".join(lines)


def _looks_encoded(payload: bytes) -> bool:
    """Whether the payload has enough capitals, small letters and digits for base64."""
    for characters, least in _ENCODED_LEAST:
        others = len(payload.translate(None, characters))
        if others > len(payload) * (1 - least):
            return False
    return True


def _decodes(payload: str) -> bool:
    """Whether it is padded base64, or URL-safe base64 with or without padding."""
    if _STANDARD.fullmatch(payload) and len(payload) % 4 == 0:
        alphabet = None
    elif _URL_SAFE.fullmatch(payload):
        alphabet = b"-_"
        bare = payload.rstrip("=")
        payload = bare + "=" * (-len(bare) % 4)
    else:
        return False
    try:
        b64decode(payload, altchars=alphabet, validate=True)
    except ValueError:
        return False
    return True


# The smallest limit of a text.
_LEAST = 1024
# A shared text moves to a blob from this many bytes on.
_SHARED_FROM = 1024
# Where to cut, the best place first: after a line, a word, a character that is never
# inside a value.
_ENDS = (
    re.compile(r"\n"),
    re.compile(r"(?<![0-9+(). \-/])[ \t,;]"),
    re.compile(r"[^\s0-9A-Za-z._%+@/=:#()\\\-]"),
)

# Uncut units: a placeholder, or an escaped character.
_UNIT = re.compile(rf"{STANDS_FOR.pattern}|\\\\+(?:u[0-9a-fA-F]{{0,4}}|[^u\s])")


class TooLarge(Exception):
    """A payload is over a limit even after cutting; both sizes are in bytes."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes are over the limit of {limit}")
        self.size = size
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Limits:
    """The most bytes of one text in UTF-8, and of a payload's compact JSON."""

    leaf_bytes: int = 65_536
    event_bytes: int = 1_048_576

    def __post_init__(self) -> None:
        if not _LEAST <= self.leaf_bytes <= self.event_bytes:
            raise ValueError(
                f"limits must be at least {_LEAST} bytes and a leaf no larger than an "
                f"event, got {self.leaf_bytes} and {self.event_bytes}"
            )


@dataclass(frozen=True, slots=True)
class Guarded:
    """A payload within the limits, and the whole texts that were cut, as blobs."""

    payload: JsonObject
    blobs: tuple[Blob, ...]

    def __repr__(self) -> str:
        return f"Guarded({len(self.blobs)} blobs)"


def guard(payload: JsonObject, limits: Limits, *, skip: Skip = NO_SKIP) -> Guarded:
    """Cut each text of the redacted ``payload`` that is over the limit.

    A text that is cut keeps its head and its tail.  Between them is a line that says
    how much is missing and how to read it.  All three together take at most
    ``limits.leaf_bytes``.  A cut never divides a placeholder; it is made after a line
    or a word if there is one.

    A text of at least ``FROM_BYTES`` that is base64 or a ``data:`` URI loses all of
    its base64, even within the limit.  Texts at the paths in ``skip`` are not cut.  A
    payload without cuts is returned itself.

    Raises TooLarge for a key over the limit, and for a payload that still is.
    """
    blobs: dict[str, Blob] = {}
    guarded = cast(JsonObject, _guarded(payload, limits.leaf_bytes, skip, blobs))
    size = _size(guarded)
    if size > limits.event_bytes:
        raise TooLarge(size, limits.event_bytes)
    return Guarded(guarded, tuple(blobs.values()))


def moved_to_blobs(payload: JsonObject, name: str) -> Guarded:
    """Move the long texts under ``name`` to blobs, which many events can share."""
    texts = payload.get(name)
    if not isinstance(texts, dict):
        return Guarded(payload, ())
    blobs: list[Blob] = []
    short: dict[str, JsonValue] = {}
    for key, text in texts.items():
        short[key] = text
        if isinstance(text, str) and _bytes(text) >= _SHARED_FROM:
            short[key], blob = _stub(text, "")
            blobs.append(blob)
    return Guarded({**payload, name: short}, tuple(blobs))


def _guarded(
    value: JsonValue, limit: int, skip: Skip, blobs: dict[str, Blob]
) -> JsonValue:
    """``value`` with its texts cut; itself if there is nothing to cut."""
    if () in skip:  # a skipped path ends here
        return value
    if isinstance(value, str):
        return _fitted(value, limit, blobs)
    if isinstance(value, dict):
        for key in value:
            size = _bytes(key)
            if size > limit:
                raise TooLarge(size, limit)
        pairs: dict[str, JsonValue] = {}
        changed = False
        for key, item in value.items():
            pairs[key] = _guarded(item, limit, below(skip, key), blobs)
            changed = changed or pairs[key] is not item
        return pairs if changed else value
    if isinstance(value, list):
        items: list[JsonValue] = []
        changed = False
        for index, item in enumerate(value):
            items.append(_guarded(item, limit, below(skip, str(index)), blobs))
            changed = changed or items[index] is not item
        return items if changed else value
    return value


def restored(value: JsonObject, read: Read) -> JsonObject:
    """``value`` with the whole texts in place of those that were cut.

    A text stays cut if ``read`` returns None for it.  A text that only looks cut stays
    as it is.
    """
    return cast(JsonObject, _restored(value, read, whole))


def filled(value: JsonObject, read: Read) -> JsonObject:
    """``value`` with only the base64 restored that was within the limit.

    A model gets this form, so it sees every text that is short enough for an event.
    """
    return cast(JsonObject, _restored(value, read, _whole_base64))


def _restored(
    value: JsonValue, read: Read, fill: Callable[[str, Read], str]
) -> JsonValue:
    """``value`` with ``fill`` applied to every text that may be cut."""
    if isinstance(value, str):
        return fill(value, read) if STUB_SIGN in value else value
    if isinstance(value, dict):
        return {key: _restored(item, read, fill) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item, read, fill) for item in value]
    return value


def _whole_base64(text: str, read: Read) -> str:
    """The whole text, if only its base64 was moved to a blob; else ``text``."""
    # A text that was cut for its length has its tail after the stub.
    if not text.endswith("]\n"):
        return text
    original = whole(text, read)
    start = start_of_payload(original)
    if start is None:
        return text
    short, _ = _stub(original, original[:start])
    return original if short == text else text


def _fitted(text: str, limit: int, blobs: dict[str, Blob]) -> str:
    """``text`` within the limit and without long base64; its blob goes to ``blobs``."""
    if len(text) * 4 > limit and _bytes(text) > limit:
        head, tail = _ends_of(text, limit)
    else:
        start = start_of_payload(text)
        if start is None:
            return text
        head = text[:start]
        tail = ""
    short, blob = _stub(text, head, tail)
    blobs[blob.sha256] = blob
    return short


def _ends_of(text: str, limit: int) -> tuple[str, str]:
    """The head and the tail that stay of a text over the limit.

    They take at most half of it, three quarters of that for the head.
    """
    data = text.encode("utf-8", "surrogatepass")
    head = text[: _end_of_head(text, _characters(data, limit * 3 // 8))]
    tail = text[_start_of_tail(text, _characters(data, len(data) - limit // 8)) :]
    return head, tail


def _stub(text: str, head: str, tail: str = "") -> tuple[str, Blob]:
    """The text that replaces ``text`` between its head and tail, and its blob."""
    data = text.encode("utf-8", "surrogatepass")
    blob = Blob(hashlib.sha256(data).hexdigest(), data)
    missing = len(data) - _bytes(head) - _bytes(tail)
    short = (
        f"{head}\n[refold: {missing} of {len(data)} bytes left out here; "
        f'whole text: session.blob("{blob.sha256}")]\n{tail}'
    )
    return short, blob


def _characters(data: bytes, length: int) -> int:
    """The number of whole characters in the first ``length`` bytes."""
    while data[length] & 0xC0 == 0x80:
        length -= 1
    return len(data[:length].decode("utf-8", "surrogatepass"))


def _end_of_head(text: str, end: int) -> int:
    """Where the head ends: at the last good place in the second half before ``end``."""
    for ends in _ENDS:
        matches = list(ends.finditer(text, end // 2, end))
        if matches:
            end = matches[-1].end()
            break
    before, _ = _around_unit(text, end)
    return before


def _start_of_tail(text: str, start: int) -> int:
    """Where the tail starts: at the first good place in the half after ``start``."""
    for ends in _ENDS:
        match = ends.search(text, start, (start + len(text)) // 2)
        if match:
            start = match.end()
            break
    _, after = _around_unit(text, start)
    return after


def _around_unit(text: str, place: int) -> tuple[int, int]:
    """The ends of the placeholder or escape around ``place``; ``place`` twice if none.

    An escape must stay whole because without its backslash ``\\nada`` is a name.
    """
    start = max(0, place - LONGEST)
    for match in _UNIT.finditer(text, start, place + LONGEST):
        if match.start() < place < match.end():
            return match.span()
    return place, place


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _size(payload: JsonObject) -> int:
    """The length of the compact JSON in UTF-8."""
    try:
        return len(orjson.dumps(payload))
    except orjson.JSONEncodeError:
        # Integers over 64 bits, halves of surrogate pairs.
        return _bytes(json.dumps(payload, ensure_ascii=False, separators=(",", ":")))
