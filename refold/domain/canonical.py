"""One spelling for each JSON value, so that equal values have equal digests."""

from __future__ import annotations

import hashlib
import re
import tomllib
from importlib.resources import files
from math import isfinite
from typing import Any

import orjson

from refold.domain.errors import InvalidConfiguration

_HALF = re.compile("[\ud800-\udfff]")


def canonical(value: Any) -> bytes:
    """The compact JSON of ``value`` with sorted keys, in UTF-8."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def digest(value: Any) -> str:
    """The SHA-256 of the canonical JSON of ``value``, in hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


def text_digest(text: str) -> str:
    """The SHA-256 of ``text`` in UTF-8, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def repaired(value: Any) -> tuple[Any, int]:
    """``value`` with what JSON in UTF-8 cannot hold replaced, and how often.

    Half surrogates become U+FFFD, integers over 64 bits become their decimal text,
    NaN and infinities their name.
    """
    if isinstance(value, str):
        clean = value if encodable(value) else _HALF.sub("\ufffd", value)
        return clean, int(clean is not value)
    if isinstance(value, dict):
        pairs = [(repaired(key), repaired(item)) for key, item in value.items()]
        changes = sum(key[1] + item[1] for key, item in pairs)
        return {key[0]: item[0] for key, item in pairs}, changes
    if isinstance(value, list | tuple):
        items = [repaired(item) for item in value]
        return [item for item, _ in items], sum(changed for _, changed in items)
    if isinstance(value, float) and not isfinite(value):
        return str(value), 1
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return str(value), 1
    return value, 0


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
