"""Canonical JSON: one text for each value, so that equal values have equal digests."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Container
from math import isfinite
from pkgutil import get_data
from typing import Any, Final

import orjson

from refold.domain.errors import InvalidConfiguration

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# Levels of nesting that a value may have; redaction accepts the same number.
NESTED: Final = 128
# Levels of nesting that a repaired value keeps.
DEEPEST: Final = 120
# Levels of nesting that the JSON encoder accepts.
MOST_LEVELS: Final = 254


def canonical(value: Any) -> bytes:
    """Return the compact JSON of ``value`` with sorted keys, in UTF-8."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def json_text(value: Any) -> str:
    """Return the JSON text of ``value``.

    It is canonical, except that it may contain NaN, infinities, and long integers.

    Raises TypeError or ValueError for a value that is not JSON.
    """
    _, changes = repaired(value)
    if not changes:
        return canonical(value).decode()
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of ``value``, in hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


def text_digest(text: str) -> str:
    """Return the SHA-256 of ``text`` in UTF-8, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def repaired(value: Any) -> tuple[Any, int]:
    """Replace the parts of ``value`` that JSON in UTF-8 cannot represent.

    - Half of a surrogate pair becomes U+FFFD.
    - An integer over 64 bits becomes its decimal text.
    - NaN and the infinities become their names.
    - A value deeper than ``DEEPEST`` levels becomes its JSON text.
    - A repaired key that the object has already gets the suffix ``~2``, ``~3``, ….

    Objects of other types, such as ``datetime``, stay unchanged.  The result depends on
    ``value`` alone, so a retry repairs it in the same way.

    Returns the repaired value and the number of replacements.
    """
    return _repaired(value, DEEPEST)


def _repaired(value: Any, levels: int) -> tuple[Any, int]:
    """Repair a value that may have this number of levels; see ``repaired``."""
    if isinstance(value, str):
        if encodable(value):
            return value, 0
        return _SURROGATE.sub("\ufffd", value), 1
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
    """Repair the keys and the values of an object."""
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
    """Return the key, with a number at its end if the others contain it."""
    chosen = key
    number = 2
    while chosen in others:
        chosen = f"{key}~{number}"
        number += 1
    return chosen


def decimal(value: int) -> str:
    """Return the decimal text of an integer, or the hexadecimal text of a huge one.

    Python refuses to convert integers of thousands of digits to decimal, because that
    takes quadratic time.
    """
    try:
        return str(value)
    except ValueError:
        return hex(value)


def encodable(text: str) -> bool:
    """Whether ``text`` can be encoded: it contains no half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_toml(text: str | bytes, *, otherwise: str) -> dict[str, Any]:
    """Parse TOML.

    otherwise: the message of the InvalidConfiguration that invalid TOML raises.
    """
    try:
        return tomllib.loads(text if isinstance(text, str) else text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidConfiguration(otherwise) from None


def load_packaged_toml(package: str, *place: str) -> dict[str, Any]:
    """Return the content of a TOML file that is part of a package of Refold."""
    content = get_data(package, "/".join(place))
    if content is None:
        raise FileNotFoundError(f"{package} has no file {'/'.join(place)}")
    return tomllib.loads(content.decode())
