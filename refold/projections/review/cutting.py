"""Events cut to a size at which many of them fit into one bundle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pydantic import JsonValue

from refold.domain.canonical import canonical
from refold.domain.envelope import Envelope
from refold.domain.events import JsonObject, ToolResult
from refold.projections.memory.reasons import reason_of, said_failed
from refold.projections.review.texts import cut, squeezed
from refold.projections.review.triggers import risks


class Fit(NamedTuple):
    """How much of an event is kept: bytes of JSON of one text, entries of a list."""

    bytes: int
    items: int


FITS: Final = (Fit(2_000, 20), Fit(500, 10), Fit(160, 3))
# What may be any JSON.
_ANY: Final = frozenset({"content", "arguments", "plan", "result"})
# What is not needed to see what happened: signatures, files, and other bundles.
_LEFT_OUT: Final = frozenset({"thinking", "usage", "bundle"})
_CODE: Final = 1_000  # bytes of an error's code: rules look at all of it


def slim(
    envelope: Envelope, fit: Fit, *, call: str, keep: Sequence[JsonValue] = ()
) -> JsonObject:
    """The payload of an event, cut; what rules look at stays as it is for them.

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
            slimmed[key] = [_issue(one, fit, names) for one in value[: fit.items]]
        else:
            slimmed[key] = call if key == "call_id" else _cut(key, value, fit)
    if isinstance(envelope.payload, ToolResult):
        slimmed["content"] = _still_failed(envelope.payload, slimmed["content"], fit)
    return slimmed


def _cut(key: str, value: Any, fit: Fit) -> Any:
    if isinstance(value, str):
        return cut(value, max(fit.bytes, _CODE) if key == "code" else fit.bytes)
    if key == "attachments":
        return [_attachment(one) for one in value[: fit.items]]
    if key == "results":
        return [_verdict(one, fit) for one in value[: fit.items]]
    if key in _ANY:
        return squeezed(value, fit.bytes, fit.items)
    if key == "context":
        short = squeezed(value, fit.bytes, fit.items)
        return {"cut": short} if isinstance(short, str) else short
    return value


def _still_failed(result: ToolResult, content: Any, fit: Fit) -> Any:
    """What is left of a result, with the words by which it says that it failed."""
    if reason_of(result) is None or _fails(result, content):
        return content
    words, rest = said_failed(result.content)
    room = max(fit.bytes - len(canonical(words)), 0)
    for more in (cut(rest, room), ""):
        if _fails(result, f"{words} {more}"):
            return f"{words} {more}"
    return words


def _fails(result: ToolResult, content: Any) -> bool:
    return reason_of(result.model_copy(update={"content": content})) is not None


def _issue(value: Any, fit: Fit, names: Sequence[str]) -> Any:
    short = squeezed(value, fit.bytes, fit.items)
    found = risks([value], names)
    return short if risks([short], names) == found else found[0]


def _verdict(value: dict[str, Any], fit: Fit) -> dict[str, Any]:
    """The verdict on an item, which is an object of texts."""
    if len(canonical(value)) <= fit.bytes:
        return value
    return {k: cut(v, 40) if isinstance(v, str) else v for k, v in value.items()}


def _attachment(value: dict[str, Any]) -> dict[str, Any]:
    """What came with a text: what it is, not what is in it."""
    named = ("kind", "media_type", "name")
    return {key: cut(value[key], 100) for key in named if value.get(key)}
