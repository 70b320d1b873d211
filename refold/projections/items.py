"""Items of frameworks: what is left of one beside its events, and it again of both."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Any, Final, NamedTuple

import orjson

from refold.domain.canonical import canonical
from refold.domain.envelope import Envelope

# What stands in an item for a value in its events, for bytes in a blob, for all of it
# as one text, and around an object that has such a key itself.
_REF, _BYTES, _TEXT, _LITERAL = "$ref", "$bytes", "$text", "$literal"
_SIGNS: Final = frozenset({_REF, _BYTES, _TEXT, _LITERAL})
_SIGNED: Final = re.compile(rb'"\$(?:ref|bytes|text|literal)"')
_TELLING: Final = 4  # characters that are looked for inside of other texts
_LEAST: Final = 24  # bytes of JSON that a place is worth naming for
# Redaction drops blocks from these, and what is behind has another place then.
_MOVING: Final = frozenset({"thinking", "blocks", "edits"})
_MARK: Final = re.compile(r"\[[^\[\]\n]{1,60}\]")
_Parts = list[tuple[Any, str]]
Payloads = Sequence[Mapping[str, Any]]


class NativeItem(NamedTuple):
    """What was appended at ``seq``: an item with its events, or an event alone.

    value: the item as its framework wrote it, but for what was redacted.
    """

    seq: int
    format: str
    kind: str
    id: str | None
    value: Any
    events: tuple[Envelope, ...]

    def __repr__(self) -> str:
        return f"NativeItem({self.seq}, {self.format!r}, {len(self.events)} events)"


def without_bytes(value: Any, kept: list[bytes]) -> Any:
    """``value`` as JSON: its bytes are put into ``kept``, and numbered in it."""
    if not kept and _is_plain(value):
        return value
    return _without_bytes(value, kept)


def _is_plain(value: Any) -> bool:
    """Whether there are no bytes in it, and no key that is a sign of ours."""
    try:
        return not _SIGNED.search(orjson.dumps(value))
    except orjson.JSONEncodeError:
        return False


def _without_bytes(value: Any, kept: list[bytes]) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        kept.append(bytes(value))
        return {_BYTES: len(kept) - 1}
    if isinstance(value, list | tuple):
        return [_without_bytes(item, kept) for item in value]
    if isinstance(value, dict):
        pairs = {key: _without_bytes(item, kept) for key, item in value.items()}
        return {_LITERAL: pairs} if _SIGNS & pairs.keys() else pairs
    return value


def has_bytes(value: Any) -> bool:
    """Whether there are bytes in it."""
    without_bytes(value, kept := list[bytes]())
    return bool(kept)


def skeleton(value: Any, payloads: Payloads, *, most: int) -> Any:
    """What an item is beside its events' payloads; over ``most`` bytes, one text."""
    texts: dict[str, str] = {}
    parts: _Parts = []
    for index, payload in enumerate(payloads):
        for name, part in payload.items():
            if name not in _MOVING:
                _places(part, f"{index}/{_step(name)}", texts, parts)
    left = _pointing(value, texts, parts)
    data = orjson.dumps(left)
    return {_TEXT: data.decode()} if len(data) > most else left


def _places(value: Any, place: str, texts: dict[str, str], parts: _Parts) -> None:
    if isinstance(value, str):
        if len(value) >= _LEAST:
            texts.setdefault(value, place)
    elif isinstance(value, dict | list):
        parts.append((value, place))
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in pairs:
            _places(part, f"{place}/{_step(name)}", texts, parts)


def _step(name: object) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")


def _pointing(value: Any, texts: Mapping[str, str], parts: _Parts) -> Any:
    if isinstance(value, str):
        place = texts.get(value) if len(value) >= _LEAST else None
        return value if place is None else {_REF: place}
    if not isinstance(value, dict | list) or not value:
        return value
    for part, place in parts:
        if _is_same(part, value):
            return {_REF: place}
    if isinstance(value, list):
        return [_pointing(item, texts, parts) for item in value]
    return {key: _pointing(item, texts, parts) for key, item in value.items()}


def _is_same(part: Any, value: Any) -> bool:
    """Whether these are the same JSON, and long: equal in Python are 1 and True too."""
    if type(part) is not type(value) or len(part) != len(value) or part != value:
        return False
    data = canonical(value)
    return len(data) >= _LEAST and canonical(part) == data


def replaced(value: Any, said: Mapping[str, str]) -> Any:
    """``value`` with other texts where one of ``said`` is, or is a part of one."""
    if isinstance(value, str) and value in said:
        return said[value]
    if isinstance(value, str):
        for known, other in said.items():
            if len(known) >= _TELLING:
                value = value.replace(known, other)
        return value
    if isinstance(value, list):
        return [replaced(item, said) for item in value]
    if isinstance(value, dict):
        return {key: replaced(item, said) for key, item in value.items()}
    return value


def changed_texts(before: Any, after: Any) -> Iterator[tuple[str, str]]:
    """The texts of ``before`` that read otherwise, or are not there, in ``after``.

    And the parts of them for which a placeholder stands now.
    """
    if isinstance(before, str):
        if before != after:
            yield before, after if isinstance(after, str) else ""
            yield from _stood_for(before, str(after))
    elif isinstance(before, list):
        same = isinstance(after, list) and len(after) == len(before)
        for item, other in zip(before, after if same else repeat(None), strict=False):
            yield from changed_texts(item, other)
    elif isinstance(before, dict):
        known = after if isinstance(after, dict) else {}
        for key, item in before.items():
            yield from changed_texts(item, known.get(key))


def _stood_for(before: str, after: str) -> Iterator[tuple[str, str]]:
    """Each placeholder of ``after`` with what stood in its place."""
    marks = [*_MARK.finditer(after)]
    ends = [0, *(mark.end() for mark in marks)]
    starts = [*(mark.start() for mark in marks), len(after)]
    first, *kept = [after[at:to] for at, to in zip(ends, starts, strict=True)]
    if not (kept and before.startswith(first) and before.endswith(kept[-1])):
        return
    at, found = len(first), list[tuple[str, str]]()
    for mark, text in zip(marks, kept, strict=True):
        # The first place is as good as any: a search for all would take for ever.
        last = len(before) - len(text) if mark is marks[-1] else before.find(text, at)
        if last < at:
            return
        found.append((before[at:last], mark[0]))
        at = last + len(text)
    yield from ((value, mark) for value, mark in found if value and value != mark)


Bytes = Callable[[str], bytes | None]


def whole(native: Mapping[str, Any], payloads: Payloads, read: Bytes) -> Any:
    """The item that ``native`` is left of, ``read`` giving bytes by their digest.

    What has expired, or was dropped when it was redacted again, is None.
    """
    digests, left = native.get("bytes") or [], native.get("value")
    if _is_plain(left):
        return left

    def again(value: Any) -> Any:
        if isinstance(value, list):
            return [again(item) for item in value]
        if not isinstance(value, dict):
            return value
        sign = next(iter(value)) if len(value) == 1 else None
        if sign == _REF:
            return again(_at(payloads, str(value[_REF])))
        if sign == _TEXT:
            try:
                return again(orjson.loads(value[_TEXT]))
            except orjson.JSONDecodeError:
                return None  # the blob of it has expired
        if sign == _BYTES:
            index = value[_BYTES]
            return read(str(digests[index])) if index in range(len(digests)) else None
        inner = value[_LITERAL] if sign == _LITERAL else value
        return {key: again(item) for key, item in inner.items()}

    return again(left)


def _at(payloads: Payloads, place: str) -> Any:
    index, *steps = place.split("/")
    found: Any = payloads[int(index)]
    try:
        for step in steps:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found[int(name)] if isinstance(found, list) else found[name]
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    return found


def first_of(envelopes: Sequence[Envelope]) -> int:
    """Which of these is the first that is not one of an item that began before them."""
    begun = (index for index, one in enumerate(envelopes) if one.meta.native)
    return next(begun, len(envelopes))


def groups(
    envelopes: Iterable[Envelope],
) -> Iterator[tuple[Mapping[str, Any] | None, tuple[Envelope, ...]]]:
    """Each item's record with its events, in order; events that are of none alone."""
    rest = iter(envelopes)
    for first in rest:
        native = first.meta.native
        n = native.get("n") if native else 0
        if isinstance(n, int) and n >= 1:
            yield native, (first, *islice(rest, n - 1))
        else:
            yield None, (first,)
