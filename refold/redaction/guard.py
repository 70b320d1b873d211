"""The size guard: what is too large for an event is cut, its whole goes to a blob.

So does what is nothing but base64, from a smaller size on: nobody reads it in an event.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Final, TypeAlias, cast

import orjson

from refold.domain.envelope import STANDS_FOR, Blob
from refold.redaction.types import LONGEST
from refold.redaction.values import NO_SKIP, JsonObject, JsonValue, Skip, below

# A stub and the row of a blob take some hundred bytes: below this little is won, and
# keys, certificates and tokens, which people do read in a log, are smaller.
FROM_BYTES: Final = 4096

_URI: Final = re.compile(r"data:[\w!#$%&'*+./;=^`|~\"-]{0,200};base64,", re.A | re.I)
# PEM breaks after 64 characters, mail after 76; lists of words after fewer.
_LEAST_WIDTH: Final = 60
_CHARACTERS: Final = re.compile(r"[A-Za-z0-9+/_=\r\n-]+")
_STANDARD: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_URL_SAFE: Final = re.compile(r"[A-Za-z0-9_-]+={0,2}")
# Of each kind of character the least share.  In base64 of binaries and of text about
# two fifths are capitals, two fifths small and a tenth digits; in words run together
# one in six is a capital at most, and hex has one kind of letter.
_ENCODED_LEAST: Final = (
    (ascii_uppercase.encode(), 0.2),
    (ascii_lowercase.encode(), 0.2),
    (digits.encode(), 0.04),
)


def start_of_payload(text: str) -> int | None:
    """Where the payload begins, if ``text`` is one from there on; None if it is not.

    A payload is base64 that decodes, of at least ``FROM_BYTES`` with what is before
    it: a ``data:`` URI's head, or nothing.  Bare, it must look encoded too, for
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
    return start if uri or _mixed(payload.encode()) else None


def _on_one_line(text: str) -> str:
    """Without the breaks after each so many characters that mail and PEM put in."""
    lines = text.splitlines()
    if len(lines) == 1:
        return lines[0]
    width = len(lines[0]) if lines else 0
    even = {len(line) for line in lines[:-1]} == {width} and len(lines[-1]) <= width
    return "".join(lines) if even and width >= _LEAST_WIDTH else ""


def _mixed(payload: bytes) -> bool:
    return all(
        len(payload.translate(None, kind)) <= len(payload) * (1 - least)
        for kind, least in _ENCODED_LEAST
    )


def _decodes(payload: str) -> bool:
    """Whether it is base64, padded, or of the URL-safe kind, padded or not."""
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


_LEAST = 1024
# A text that is kept apart goes to a blob from this many bytes on.
_APART_FROM = 1024
# What to cut after, the best first: a line, a word, what is never inside a value.
_ENDS = tuple(
    map(
        re.compile,
        (r"\n", r"(?<![0-9+(). \-/])[ \t,;]", r"[^\s0-9A-Za-z._%+@/=:#()\\\-]"),
    )
)

# A placeholder, or a character as an escape of it.
_WHOLE = re.compile(rf"{STANDS_FOR.pattern}|\\\\+(?:u[0-9a-fA-F]{{0,4}}|[^u\s])")
_STUB_SIGN = "\n[refold: "
# Also in JSON, where the line break is escaped.
STUB_MARK = _STUB_SIGN.strip()
_STUB = re.compile(
    r"\n\[refold: [0-9]+ of [0-9]+ bytes left out here; "
    r'whole text: session\.blob\("(?P<sha256>[0-9a-f]{64})"\)\]\n'
)
# Gives the blob of a SHA-256 in hex, or None.
Read: TypeAlias = Callable[[str], bytes | None]


class TooLarge(Exception):
    """A payload is over a limit that no cut can help with; both are in bytes."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes are over the limit of {limit}")
        self.size, self.limit = size, limit


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is kept: bytes in UTF-8 of one text, and of a payload's compact JSON."""

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
    """A payload within the limits, and what was cut from it, whole."""

    payload: JsonObject
    blobs: tuple[Blob, ...]

    def __repr__(self) -> str:
        return f"Guarded({len(self.blobs)} blobs)"


def guard(payload: JsonObject, limits: Limits, *, skip: Skip = NO_SKIP) -> Guarded:
    """Cut each text of the redacted ``payload`` that is over the limit.

    It becomes its head, a line that says what is missing and how to read it, and its
    tail: at most ``limits.leaf_bytes`` together.  No placeholder is cut in two, and
    where there is a line or a word to cut at, none of those.  A text that is base64
    or a ``data:`` URI, and long (``FROM_BYTES``), loses all of that, within
    the limit too.  What a path in ``skip`` leads to is not cut.  A payload in which
    nothing is cut is returned itself.

    Raises TooLarge for a key over the limit, and for a payload that still is.
    """
    blobs: dict[str, Blob] = {}
    guarded = cast(JsonObject, _guarded(payload, limits.leaf_bytes, skip, blobs))
    size = _size(guarded)
    if size > limits.event_bytes:
        raise TooLarge(size, limits.event_bytes)
    return Guarded(guarded, tuple(blobs.values()))


def apart(payload: JsonObject, name: str) -> Guarded:
    """Move the long texts under ``name`` to blobs, whole: many events may share one."""
    texts = payload.get(name)
    if not isinstance(texts, dict):
        return Guarded(payload, ())
    blobs: list[Blob] = []
    short: dict[str, JsonValue] = {}
    for key, text in texts.items():
        short[key] = text
        if isinstance(text, str) and _bytes(text) >= _APART_FROM:
            short[key], blob = _stub(text, "")
            blobs.append(blob)
    return Guarded({**payload, name: short}, tuple(blobs))


def _guarded(
    value: JsonValue, limit: int, skip: Skip, blobs: dict[str, Blob]
) -> JsonValue:
    if () in skip:
        return value
    if isinstance(value, str):
        return _fitted(value, limit, blobs)
    if isinstance(value, dict):
        for key in value:
            if (size := _bytes(key)) > limit:
                raise TooLarge(size, limit)
        pairs = {k: _guarded(v, limit, below(skip, k), blobs) for k, v in value.items()}
        same = all(pairs[key] is item for key, item in value.items())
        return value if same else pairs
    if isinstance(value, list):
        items = [
            _guarded(item, limit, below(skip, str(index)), blobs)
            for index, item in enumerate(value)
        ]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else items
    return value


def restored(value: JsonObject, read: Read) -> JsonObject:
    """``value`` with the whole texts in place of the cut ones, as far as ``read`` goes.

    ``read`` gives the blob of a SHA-256, or None.  A text that only looks as if it
    was cut stays as it is.
    """
    return cast(JsonObject, _restored(value, read, _uncut))


def filled(value: JsonObject, read: Read) -> JsonObject:
    """``value`` with the base64 in place that was within the limit, and nothing else.

    What a model is sent is that: a size that an event may have is one it may see.
    """
    return cast(JsonObject, _restored(value, read, _unmoved))


def _restored(
    value: JsonValue, read: Read, whole: Callable[[str, Read], str]
) -> JsonValue:
    if isinstance(value, str):
        return whole(value, read) if _STUB_SIGN in value else value
    if isinstance(value, dict):
        return {key: _restored(item, read, whole) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item, read, whole) for item in value]
    return value


def _unmoved(text: str, read: Read) -> str:
    # What was cut for its length shows a part of itself behind the stub.
    if not text.endswith("]\n"):
        return text
    whole = _uncut(text, read)
    start = start_of_payload(whole)
    return text if start is None or _stub(whole, whole[:start])[0] != text else whole


def _uncut(text: str, read: Read) -> str:
    for stub in _STUB.finditer(text):
        head, tail = text[: stub.start()], text[stub.end() :]
        data = read(stub["sha256"])
        whole = data.decode("utf-8", "surrogatepass") if data is not None else ""
        if data is not None and whole.startswith(head) and whole.endswith(tail):
            return whole
    return text


def _fitted(text: str, limit: int, blobs: dict[str, Blob]) -> str:
    if len(text) * 4 > limit and _bytes(text) > limit:
        kept = _ends_of(text, limit)
    elif (start := start_of_payload(text)) is not None:
        kept = text[:start], ""
    else:
        return text
    short, blob = _stub(text, *kept)
    blobs[blob.sha256] = blob
    return short


def _ends_of(text: str, limit: int) -> tuple[str, str]:
    """The head and the tail that stay of a text over the limit."""
    data = text.encode("utf-8", "surrogatepass")
    head = text[: _end_of_head(text, _characters(data, limit * 3 // 8))]
    tail = text[_start_of_tail(text, _characters(data, len(data) - limit // 8)) :]
    return head, tail


def _stub(text: str, head: str, tail: str = "") -> tuple[str, Blob]:
    """What stands for ``text`` where only its ends are kept, and its whole."""
    data = text.encode("utf-8", "surrogatepass")
    blob = Blob(hashlib.sha256(data).hexdigest(), data)
    missing = len(data) - _bytes(head) - _bytes(tail)
    short = (
        f"{head}\n[refold: {missing} of {len(data)} bytes left out here; "
        f'whole text: session.blob("{blob.sha256}")]\n{tail}'
    )
    return short, blob


def _characters(data: bytes, length: int) -> int:
    """How many whole characters the first ``length`` bytes hold."""
    while data[length] & 0xC0 == 0x80:
        length -= 1
    return len(data[:length].decode("utf-8", "surrogatepass"))


def _end_of_head(text: str, end: int) -> int:
    """Where to cut: at the last good place in the second half of the head."""
    found = ([*ends.finditer(text, end // 2, end)] for ends in _ENDS)
    return _apart(text, next((each[-1].end() for each in found if each), end))[0]


def _start_of_tail(text: str, start: int) -> int:
    """Where to cut: at the first good place in the first half of the tail."""
    found = (ends.search(text, start, (start + len(text)) // 2) for ends in _ENDS)
    return _apart(text, next((first.end() for first in found if first), start))[1]


def _apart(text: str, place: int) -> tuple[int, int]:
    """The places before and after what must not be cut at ``place``, if it is there.

    That is a placeholder, or an escape: without its backslash ``\\nada`` is a name.
    """
    start = max(0, place - LONGEST)
    for match in _WHOLE.finditer(text, start, place + LONGEST):
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
