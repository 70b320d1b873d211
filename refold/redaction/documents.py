"""JSON that a string holds: one document, or one a line, read without loss."""

from __future__ import annotations

import json
import re
from math import isinf
from typing import NoReturn

from refold.redaction.values import JsonObject, JsonValue

_OPENS = re.compile(r"\s*[\[{]")


def parsed(text: str) -> list[tuple[str, JsonValue]] | None:
    """The JSON documents in ``text``, each with its source; empty lines have none."""
    try:
        return [(text, _loaded(text))]
    except (ValueError, RecursionError):
        pass
    lines = text.split("\n")
    if len(lines) == 1 or not all(
        _OPENS.match(line) or not line.strip() for line in lines
    ):
        return None
    try:
        return [(line, _loaded(line) if line.strip() else None) for line in lines]
    except (ValueError, RecursionError):
        return None


def _loaded(text: str) -> JsonValue:
    value: JsonValue = json.loads(
        text,
        strict=False,
        object_pairs_hook=_unique,
        parse_constant=_refused,
        parse_float=_finite,
    )
    return value


def _unique(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """Refuse an object that has a key twice: the first value would not be seen."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key stands twice")
    return value


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError("a number is too large")
    return number


def dumped(value: JsonValue) -> str:
    """``value`` as compact JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair can only be written as its escape.
        return json.dumps(value, separators=(",", ":"))
    return text
