"""Texts and other JSON cut to a size: what may be one value stays whole, or goes.

A rule of redaction that is added later must find what is left: half of a number or a
key would stay for good.
"""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

from refold.domain.canonical import canonical, repaired

DEEPEST: Final = 20  # that a value in a bundle is nested
_MARK: Final = " [… {} characters left out …] "
_MORE: Final = "[… {} more …]"
_NESTED: Final = '\\\\\\"'  # JSON in JSON in JSON: it would be tried for too long
_TOO_DEEP: Final = "[… too deep to show …]"
_STOPS: Final = "，。；：！？、"  # noqa: RUF001 - they end words where no spaces do
_NEAR: Final = 80  # characters in which a word next to a cut is looked for
_LEAST, _SPARE, _LONGEST_KEY = 60, 30, 100


def cut(text: str, most: int) -> str:
    """Head and tail of ``text`` in at most ``most`` bytes of JSON, or all of it.

    It is cut between words only, and not between words with digits: a number may be
    written in groups.  What has no such place is left out.  JSON stays JSON.
    """
    size = _size(text)
    if size <= most:
        return text
    as_json = _cut_json(text, most)
    if as_json is not None:
        return as_json
    keep = len(text) * most // size
    while keep >= 2:
        shown = _ends(text, keep)
        if _size(shown) <= most:
            return shown
        keep = keep * 9 // 10
    return "…" if _size("…") <= most else ""


def squeezed(value: Any, most: int, items: int) -> Any:
    """JSON in at most ``most`` bytes, of the same shape as far as there is room.

    items: how many entries are kept of a list or an object.
    """
    short = _squeezed(value, most, items, DEEPEST)
    if _size(short) <= most:
        return short
    return _TOO_DEEP if _size(_TOO_DEEP) <= most else ""


def _ends(text: str, keep: int) -> str:
    head, tail = keep - keep // 3, len(text) - keep // 3
    while head > 0 and not _between(text, head):
        head -= 1
    while tail < len(text) and not _between(text, tail):
        tail += 1
    return f"{text[:head]}{_MARK.format(tail - head)}{text[tail:]}".strip(" ")


def _between(text: str, at: int) -> bool:
    """Whether nothing that may be one value is parted at this place."""
    before, after = text[at - 1], text[at : at + 1]
    if before == "\n" or after in ("\n", ""):
        return True
    if not (before.isspace() or after.isspace() or before in _STOPS):
        return False
    last, first = text[max(at - _NEAR, 0) : at].split(), text[at : at + _NEAR].split()
    return not (_has_digit(last[-1:]) and _has_digit(first[:1]))


def _has_digit(words: list[str]) -> bool:
    return any(character.isdigit() for word in words for character in word)


def _cut_json(text: str, most: int) -> str | None:
    """JSON in a text, cut as JSON; None if there is none in it."""
    if not text.lstrip().startswith(("{", "[")) or _NESTED in text:
        return None
    try:
        # No number loses digits: half of them would be half of a value.
        value, _ = repaired(json.loads(text, parse_float=str))
    except (ValueError, RecursionError):
        return None
    room = most
    while room > _LEAST:
        short = orjson.dumps(squeezed(value, room, most)).decode()
        if _size(short) <= most:
            return short
        room = room * 3 // 4
    return None


def _squeezed(value: Any, room: int, items: int, depth: int) -> Any:
    if isinstance(value, str):
        return cut(value, room)
    if not isinstance(value, dict | list):
        return value
    if _size(value) <= room and not deeper(value, depth):
        return value
    if not depth:
        return _TOO_DEEP
    if isinstance(value, list):
        made = _entries([("", one) for one in value], room, items, depth)
        return [one for _, one in made]
    return dict(_entries(list(value.items()), room, items, depth))


def _entries(
    pairs: list[tuple[str, Any]], room: int, items: int, depth: int
) -> list[tuple[str, Any]]:
    """The first entries, each with its share of the room, and how many more."""
    made: list[tuple[str, Any]] = []
    names: set[str] = set()
    left, count = room - _SPARE, min(len(pairs), items)
    for index, (key, value) in enumerate(pairs[:count]):
        if left < _LEAST // 2:
            break
        share = max(left // (count - index), min(left, _LEAST))
        name = cut(key, min(max(share // 2, 40), _LONGEST_KEY))
        if key and name in names:
            break  # another long one of that length
        names.add(name)
        used = _size(name) + 2
        made.append((name, _squeezed(value, share - used, items, depth - 1)))
        left -= used + _size(made[-1][1])
    if len(made) < len(pairs):
        made.append(("…", _MORE.format(len(pairs) - len(made))))
    return made


def deeper(value: Any, most: int) -> bool:
    """Whether lists and objects are nested more than ``most`` deep."""
    if not isinstance(value, dict | list):
        return False
    if not most:
        return True
    inner = value.values() if isinstance(value, dict) else value
    return any(deeper(one, most - 1) for one in inner)


def _size(value: Any) -> int:
    return len(canonical(value))
