"""Events cut to a size at which many of them fit into one bundle."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pydantic import JsonValue

from refold.domain.canonical import canonical
from refold.domain.envelope import Envelope
from refold.domain.events import JsonObject
from refold.projections.review.triggers import risks

_MARK: Final = " [… {} characters left out …] "
# What was redacted is named in brackets: half of a name would say nothing.
_OPEN: Final = re.compile(r"\[[^\[\]\s]{0,80}$")
_SHUT: Final = re.compile(r"^[^\[\]\s]{0,80}\]")


class Fit(NamedTuple):
    """How much of an event is kept: bytes of JSON of one text, entries of a list."""

    bytes: int
    items: int


FITS: Final = (Fit(2_000, 20), Fit(500, 10), Fit(160, 3))
# What may be any JSON, and is shown as text where it is large.
_ANY: Final = frozenset({"content", "arguments", "plan", "result"})
# What is not needed to see what happened: signatures, files, and other bundles.
_LEFT_OUT: Final = frozenset({"thinking", "usage", "bundle"})


def slim(
    envelope: Envelope, fit: Fit, *, call: str, keep: Sequence[JsonValue] = ()
) -> JsonObject:
    """The payload of an event, cut.

    call: what the call is called that it is, or answers.
    keep: the issues that stay, whichever go.
    """
    payload: dict[str, Any] = envelope.payload.payload()
    names = [str(code) for code in keep]
    slimmed: dict[str, Any] = {}
    for key, value in payload.items():
        if key in _LEFT_OUT:
            continue
        if key == "issues":
            value = sorted(value, key=lambda issue: not risks([issue], names))
        slimmed[key] = call if key == "call_id" else _cut(key, value, fit)
    return slimmed


def _cut(key: str, value: Any, fit: Fit) -> Any:
    if isinstance(value, str):
        return cut(value, fit.bytes)
    if key == "attachments":
        return [_attachment(one) for one in value[: fit.items]]
    if key in ("issues", "results"):
        return [_small(one, fit) for one in value[: fit.items]]
    if key in _ANY:
        text = canonical(value)
        return value if len(text) <= fit.bytes else cut(text.decode(), fit.bytes)
    if key == "context" and len(canonical(value)) > fit.bytes:
        return {"cut": cut(canonical(value).decode(), fit.bytes)}
    return value


def _small(value: Any, fit: Fit) -> Any:
    """An issue, or the verdict on an item, which is an object of texts."""
    if isinstance(value, str):
        return cut(value, fit.bytes)
    if len(canonical(value)) <= fit.bytes:
        return value
    if isinstance(value, dict) and "verdict" in value:
        return {k: v[:30] if isinstance(v, str) else v for k, v in value.items()}
    if isinstance(value, dict) and isinstance(value.get("code"), str):
        return {"code": cut(value["code"], fit.bytes)}
    return cut(canonical(value).decode(), fit.bytes)


def _attachment(value: dict[str, Any]) -> dict[str, Any]:
    """What came with a text: what it is, not what is in it."""
    named = ("kind", "media_type", "name")
    return {key: value[key][:100] for key in named if value.get(key)}


def cut(text: str, most: int) -> str:
    """Head and tail of ``text`` in at most ``most`` bytes of JSON, or all of it."""
    size = _size(text)
    keep = len(text) if size <= most else len(text) * most // size
    while keep < len(text):
        shown = _ends(text, keep)
        if _size(shown) <= most:
            return shown
        keep = keep * 9 // 10
        if keep < 2:
            return ""
    return text


def _ends(text: str, keep: int) -> str:
    head = _OPEN.sub("", text[: keep - keep // 3])
    tail = _SHUT.sub("", text[len(text) - keep // 3 :])
    return f"{head}{_MARK.format(len(text) - len(head) - len(tail))}{tail}"


def _size(text: str) -> int:
    return len(canonical(text))
