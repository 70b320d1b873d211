"""One spelling for each JSON value, so that equal values have equal digests."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Container
from importlib.resources import files
from math import isfinite
from typing import Any, Final

import orjson

from refold.domain.errors import InvalidConfiguration

_HALF: Final = re.compile("[\ud800-\udfff]")
# Levels of nesting: those that a value may have, which are those that redaction takes;
# those that a repaired value keeps; and those that the JSON encoder takes.
NESTED: Final = 128
DEEPEST: Final = 120
MOST_LEVELS: Final = 254


def canonical(value: Any) -> bytes:
    """The compact JSON of ``value`` with sorted keys, in UTF-8."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def json_text(value: Any) -> str:
    """The JSON text of ``value``: canonical, but for numbers that only a text can hold.

    Raises TypeError or ValueError for what is no JSON.
    """
    _, changes = repaired(value)
    if not changes:
        return canonical(value).decode()
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def digest(value: Any) -> str:
    """The SHA-256 of the canonical JSON of ``value``, in hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


def text_digest(text: str) -> str:
    """The SHA-256 of ``text`` in UTF-8, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def repaired(value: Any) -> tuple[Any, int]:
    """``value`` as JSON in UTF-8 can hold it, and how many replacements that took.

    The result depends on ``value`` alone, so a retry repairs in the same way:

    - half of a surrogate pair becomes U+FFFD;
    - an integer over 64 bits becomes its decimal text;
    - NaN and the infinities become their names;
    - what lies deeper than ``DEEPEST`` levels becomes its JSON text;
    - a key that another key of the object was repaired to gets ``~2``, ``~3``, …

    Other objects, such as a ``datetime``, are returned as they are.
    """
    return _repaired(value, DEEPEST)


def _repaired(value: Any, levels: int) -> tuple[Any, int]:
    if isinstance(value, str):
        if encodable(value):
            return value, 0
        return _HALF.sub("\ufffd", value), 1
    if isinstance(value, bool):
        return value, 0
    if isinstance(value, float) and not isfinite(value):
        return str(value), 1
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return decimal(value), 1
    if not isinstance(value, dict | list | tuple):
        return value, 0
    if not levels:
        return json.dumps(value), 1
    if isinstance(value, dict):
        return _repaired_object(value, levels)
    items: list[Any] = []
    changes = 0
    for item in value:
        clean, changed = _repaired(item, levels - 1)
        items.append(clean)
        changes += changed
    return items, changes


def _repaired_object(value: dict[Any, Any], levels: int) -> tuple[dict[Any, Any], int]:
    clean: dict[Any, Any] = {}
    changes = 0
    for key, item in value.items():
        clean_key, changed_key = _repaired(key, levels)
        if changed_key:
            clean_key = _unused(clean_key, value.keys() | clean.keys())
        clean[clean_key], changed_item = _repaired(item, levels - 1)
        changes += changed_key + changed_item
    return clean, changes


def _unused(key: str, others: Container[str]) -> str:
    """``key``, with a number behind it if it is among the others."""
    chosen = key
    number = 2
    while chosen in others:
        chosen = f"{key}~{number}"
        number += 1
    return chosen


def decimal(value: int) -> str:
    """The decimal text of an integer; of one with thousands of digits, hexadecimal.

    Python converts no longer integer to decimal, since that takes quadratic time.
    """
    try:
        return str(value)
    except ValueError:
        return hex(value)


def encodable(text: str) -> bool:
    """Whether ``text`` is Unicode: it holds no half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parsed(text: str | bytes, *, otherwise: str) -> dict[str, Any]:
    """The tables of TOML.  Raises InvalidConfiguration that says what is needed."""
    try:
        return tomllib.loads(text if isinstance(text, str) else text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidConfiguration(otherwise) from None


def shipped(package: str, *place: str) -> dict[str, Any]:
    """The tables of a TOML file that comes with a package of ours."""
    return tomllib.loads(files(package).joinpath(*place).read_text("utf-8"))
