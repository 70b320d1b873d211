"""Why a tool failed, in a closed vocabulary: memory keeps no words of a result."""

from __future__ import annotations

import re
from typing import Final

import orjson
from pydantic import JsonValue

from refold.domain.events import ToolResult

OTHER: Final = "other"
CUT_OFF: Final = "cut_off"
_LOOKED_AT: Final = 400
# What a result begins with that is a failure, whatever its status says.
_FAILED: Final = re.compile(
    r"\s*(?:\{?\s*[\"']?(?:is_)?error[\"']?\s*[:=]"
    r"(?!\s*(?:null|none|false|0|\"\"|''|\[\s*\]|\{\s*\})\s*(?:[,}\s]|$))"
    r"|error\b(?!\s*[\"']?\s*[:=])|fatal\b|traceback \("
    r"|exception\b|[a-z.]{0,40}(?:error|exception)\s*:)",
    re.IGNORECASE,
)
# The first that is found counts.
_REASONS: Final = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("timeout", r"tim(?:ed|e)[ -]?out|deadline"),
        ("rate_limit", r"rate.?limit|too many requests|\b429\b|quota"),
        ("permission", r"permission|denied|forbidden|unauthori[sz]ed|\b40[13]\b"),
        (
            "not_found",
            r"not (?:be )?found|no such|unknown|does(?: not|n't) exist|\b404\b",
        ),
        ("insufficient", r"insufficient|not enough|does not add up|exceed|too large"),
        ("conflict", r"conflict|already|\b409\b|stale"),
        (
            "invalid",
            r"invalid|missing|required|unexpected|malformed|syntax|cannot|must",
        ),
        ("unavailable", r"unavailable|refused|unreachable|connection|\b50[0-9]\b"),
    )
)
REASONS: Final = (*(name for name, _ in _REASONS), CUT_OFF, OTHER)


def reason_of(result: ToolResult) -> str | None:
    """Why the call failed, as one of ``REASONS``; None if it did not.

    Tools that report a failure as an ordinary result are told by how it begins.
    """
    if result.status == "unknown":
        return CUT_OFF
    text = _beginning(result.content)
    if result.status == "ok" and not _FAILED.match(text):
        return None
    for name, pattern in _REASONS:
        if pattern.search(text):
            return name
    return OTHER


def said_failed(content: JsonValue) -> tuple[str, str]:
    """The words by which a result says that it failed, and what a text has behind.

    Both are empty if nothing at its beginning says so.
    """
    match = _FAILED.match(_beginning(content))
    if match is None:
        return "", ""
    rest = content[match.end() :].lstrip() if isinstance(content, str) else ""
    return " ".join(match[0].split()), rest


def _beginning(content: JsonValue) -> str:
    if isinstance(content, str):
        return content[:_LOOKED_AT]
    if isinstance(content, list) and content and isinstance(content[0], dict):
        first = content[0].get("text")
        if isinstance(first, str):
            return first[:_LOOKED_AT]
    return orjson.dumps(content)[:_LOOKED_AT].decode(errors="replace")
