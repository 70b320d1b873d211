"""Items of frameworks: an item is stored as its events plus what they do not hold.

``skeleton`` removes from an item every value that its events already hold, and
``whole`` puts the item together again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Any, Final, NamedTuple

import orjson

from refold.domain.canonical import canonical
from refold.domain.envelope import Envelope

# The single keys of the objects that stand for something else in a stored item: a value
# of the events, bytes in a blob, a whole item as one JSON text, and an object of the
# item that itself has one of these keys.
_REF: Final = "$ref"
_BYTES: Final = "$bytes"
_TEXT: Final = "$text"
_LITERAL: Final = "$literal"
_RESERVED: Final = frozenset({_REF, _BYTES, _TEXT, _LITERAL})
_RESERVED_KEY: Final = re.compile(rb'"\$(?:ref|bytes|text|literal)"')
# Texts shorter than this are replaced only as a whole, not inside of other texts.
_LEAST_SUBSTRING: Final = 4  # characters
# Shorter values are stored again: a reference would be as long.
_LEAST_REFERENCE: Final = 24  # bytes of JSON
# Redaction drops blocks from these fields, which moves the blocks behind them, so no
# reference may point into them.
_UNSTABLE: Final = frozenset({"thinking", "blocks", "edits"})
_PLACEHOLDER: Final = re.compile(r"\[[^\[\]\n]{1,60}\]")
Payloads = Sequence[Mapping[str, Any]]


class NativeItem(NamedTuple):
    """A framework's item with its events, or a single event that belongs to no item.

    seq:   of the first event.
    value: the item as its framework wrote it, except for redacted values.
    """

    seq: int
    format: str
    kind: str
    id: str | None
    value: Any
    events: tuple[Envelope, ...]

    def __repr__(self) -> str:
        return f"NativeItem({self.seq}, {self.format!r}, {len(self.events)} events)"


def without_bytes(value: Any, blobs: list[bytes]) -> Any:
    """Return ``value`` as JSON: bytes move to ``blobs`` and leave their index."""
    if not blobs and _is_plain(value):
        return value
    return _without_bytes(value, blobs)


def _is_plain(value: Any) -> bool:
    """Whether a value has neither bytes nor a reserved key."""
    try:
        return not _RESERVED_KEY.search(orjson.dumps(value))
    except orjson.JSONEncodeError:
        return False


def _without_bytes(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        blobs.append(bytes(value))
        return {_BYTES: len(blobs) - 1}
    if isinstance(value, list | tuple):
        return [_without_bytes(item, blobs) for item in value]
    if isinstance(value, dict):
        converted = {key: _without_bytes(item, blobs) for key, item in value.items()}
        if _RESERVED & converted.keys():
            return {_LITERAL: converted}
        return converted
    return value


def has_bytes(value: Any) -> bool:
    """Whether a value contains bytes, however deep it is nested."""
    if _is_plain(value):
        return False
    unchecked = [value]
    while unchecked:
        part = unchecked.pop()
        if isinstance(part, bytes | bytearray | memoryview):
            return True
        if isinstance(part, list | tuple):
            unchecked.extend(part)
        elif isinstance(part, dict):
            unchecked.extend(part.values())
    return False


def skeleton(value: Any, payloads: Payloads, *, most: int) -> Any:
    """Return an item with references instead of values that its events hold.

    payloads: of the item's events, in order.
    most:     bytes of JSON; a longer result becomes one JSON text.
    """
    places = _Places()
    for index, payload in enumerate(payloads):
        for name, part in payload.items():
            if name not in _UNSTABLE:
                places.add(part, f"{index}/{_step(name)}")
    remainder = places.replace(value)
    data = orjson.dumps(remainder)
    if len(data) > most:
        return {_TEXT: data.decode()}
    return remainder


class _Places:
    """The values of an item's events, with the place of each."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._containers: list[tuple[Any, str]] = []

    def add(self, value: Any, place: str) -> None:
        """Add a value and everything in it."""
        if isinstance(value, str):
            if len(value) >= _LEAST_REFERENCE:
                self._texts.setdefault(value, place)
        elif isinstance(value, dict):
            self._containers.append((value, place))
            for name, part in value.items():
                self.add(part, f"{place}/{_step(name)}")
        elif isinstance(value, list):
            self._containers.append((value, place))
            for index, part in enumerate(value):
                self.add(part, f"{place}/{index}")

    def replace(self, value: Any) -> Any:
        """Replace every value that has a place by a reference to it."""
        if isinstance(value, str):
            place = self._texts.get(value)
            return value if place is None else {_REF: place}
        if not isinstance(value, dict | list) or not value:
            return value
        for container, place in self._containers:
            if _is_same(container, value):
                return {_REF: place}
        if isinstance(value, list):
            return [self.replace(item) for item in value]
        literal = value.get(_LITERAL)
        if isinstance(literal, dict) and len(value) == 1:
            # A reference in its place would be read as a part of the item.
            return {_LITERAL: self._replace_members(literal)}
        return self._replace_members(value)

    def _replace_members(self, value: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self.replace(item) for key, item in value.items()}


def _step(name: object) -> str:
    """Return a key as one step of a place, escaped as in a JSON pointer."""
    return str(name).replace("~", "~0").replace("/", "~1")


def _is_same(container: Any, value: Any) -> bool:
    """Whether two containers are the same JSON and long enough for a reference."""
    if type(container) is not type(value) or len(container) != len(value):
        return False
    if container != value:
        return False
    # Python also holds 1 and True for equal, so the JSON decides.
    data = canonical(value)
    return len(data) >= _LEAST_REFERENCE and canonical(container) == data


def replaced(value: Any, replacements: Mapping[str, str]) -> Any:
    """Replace texts in a JSON value, and occurrences of them inside of other texts."""
    if isinstance(value, str):
        if value in replacements:
            return replacements[value]
        for text, replacement in replacements.items():
            if len(text) >= _LEAST_SUBSTRING:
                value = value.replace(text, replacement)
        return value
    if isinstance(value, list):
        return [replaced(item, replacements) for item in value]
    if isinstance(value, dict):
        return {key: replaced(item, replacements) for key, item in value.items()}
    return value


def changed_texts(before: Any, after: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts of ``before`` that are different in ``after``, with the new text.

    A text that is missing in ``after`` becomes "".  Of a text with placeholders, the
    parts that they replaced are yielded too, each with its placeholder.
    """
    if isinstance(before, str):
        if before != after:
            yield before, after if isinstance(after, str) else ""
            yield from _redacted_parts(before, str(after))
    elif isinstance(before, list):
        is_comparable = isinstance(after, list) and len(after) == len(before)
        others = after if is_comparable else repeat(None)
        for item, other in zip(before, others, strict=False):
            yield from changed_texts(item, other)
    elif isinstance(before, dict):
        others_by_key = after if isinstance(after, dict) else {}
        for key, item in before.items():
            yield from changed_texts(item, others_by_key.get(key))


def _redacted_parts(before: str, after: str) -> Iterator[tuple[str, str]]:
    """Yield each part of ``before`` that a placeholder of ``after`` stands for.

    Yields nothing if the texts around the placeholders are not those of ``before``.
    """
    placeholders = list(_PLACEHOLDER.finditer(after))
    if not placeholders:
        return
    ends = [0, *(placeholder.end() for placeholder in placeholders)]
    starts = [*(placeholder.start() for placeholder in placeholders), len(after)]
    around = [after[end:start] for end, start in zip(ends, starts, strict=True)]
    if not (before.startswith(around[0]) and before.endswith(around[-1])):
        return
    parts: list[tuple[str, str]] = []
    at = len(around[0])
    for placeholder, following in zip(placeholders, around[1:], strict=True):
        if placeholder is placeholders[-1]:
            end = len(before) - len(following)
        else:
            # The first occurrence is as good as any other; trying all of them would
            # take exponential time.
            end = before.find(following, at)
        if end < at:
            return
        parts.append((before[at:end], placeholder[0]))
        at = end + len(following)
    for part, text in parts:
        if part and part != text:
            yield part, text


Bytes = Callable[[str], bytes | None]


def whole(native: Mapping[str, Any], payloads: Payloads, read: Bytes) -> Any:
    """Put an item together again.

    Values that have expired, or that a later redaction dropped, are None.

    native:   the item's record in ``meta.native``.
    payloads: of the item's events, in order.
    read:     returns a blob by its digest.
    """
    value = native.get("value")
    if _is_plain(value):
        return value
    return _Assembler(payloads, native.get("bytes") or [], read).value(value)


class _Assembler:
    """Replaces the references of a stored item."""

    def __init__(
        self, payloads: Payloads, digests: Sequence[object], read: Bytes
    ) -> None:
        self._payloads = payloads
        self._digests = digests
        self._read = read

    def value(self, value: Any) -> Any:
        """Return the value without references."""
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if not isinstance(value, dict):
            return value
        match value:
            case {"$ref": place, **others} if not others:
                return self.value(_at(self._payloads, str(place)))
            case {"$text": text, **others} if not others:
                return self._parsed(text)
            case {"$bytes": index, **others} if not others:
                if index not in range(len(self._digests)):
                    return None
                return self._read(str(self._digests[index]))
            case {"$literal": dict(inner), **others} if not others:
                return self._members(inner)
        return self._members(value)

    def _members(self, value: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self.value(item) for key, item in value.items()}

    def _parsed(self, text: Any) -> Any:
        try:
            return self.value(orjson.loads(text))
        except orjson.JSONDecodeError:
            return None  # its blob has expired


def _at(payloads: Payloads, place: str) -> Any:
    """Return the value at a place, or None if it is gone."""
    index, *steps = place.split("/")
    value: Any = payloads[int(index)]
    try:
        for step in steps:
            name = step.replace("~1", "/").replace("~0", "~")
            value = value[int(name)] if isinstance(value, list) else value[name]
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    return value


def first_of(envelopes: Sequence[Envelope]) -> int:
    """Return the index of the first event that begins an item.

    Events before it belong to an item that began earlier.
    """
    for index, envelope in enumerate(envelopes):
        if envelope.meta.native:
            return index
    return len(envelopes)


def groups(
    envelopes: Iterable[Envelope],
) -> Iterator[tuple[Mapping[str, Any] | None, tuple[Envelope, ...]]]:
    """Yield each item's record with its events, in order.

    An event that belongs to no item comes alone, with None.
    """
    remaining = iter(envelopes)
    for first in remaining:
        native = first.meta.native
        count = native.get("n") if native else 0
        if isinstance(count, int) and count >= 1:
            yield native, (first, *islice(remaining, count - 1))
        else:
            yield None, (first,)
