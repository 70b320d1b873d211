"""The searchable text of an event, and the facts that filters ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from refold.domain import events
from refold.domain.canonical import load_packaged_toml
from refold.domain.envelope import Envelope
from refold.projections.context.text import leaves
from refold.projections.rejections import is_rejected

MOST_FOLDERS: Final = 16  # of a path; deeper ones count from the file up
# Fields with digests, names and numbers, which nobody would search for.
_OPAQUE: Final[Mapping[str, frozenset[str]]] = {
    "request": frozenset(events.Request.model_fields) - {"model"},
    "redaction_applied": frozenset(events.RedactionApplied.model_fields),
}
_NO_WORDS: Final = frozenset({"usage", "call_id"})
_NOT_SHOWN: Final = frozenset({"status", "outcome", "stop_reason"})
_OF_THINKING: Final = frozenset({"type", "signature", "data"})
_OF_ATTACHMENT: Final = frozenset({"data", "sha256"})
# A fact begins with a character that no term of a text contains.
TYPE: Final = "=type:"
TOOL: Final = "=tool:"
FILE: Final = "=file:"
FOLDER: Final = "=folder:"
MODEL: Final = "=model:"
FAILED: Final = "=failed"


@cache
def _path_arguments() -> tuple[str, ...]:
    """Return the names of arguments that are paths; lists of sessions need none."""
    table = load_packaged_toml("refold.projections", "data", "tools.toml")
    return tuple(table["paths"])


class Document(NamedTuple):
    """An event as a search sees it.

    text:    the values of its fields, one on each line, with the keys of JSON.
    values:  what was written, on one line each: without keys, agent, and status.
    call_id: the id of a call, which is found but not shown.
    """

    text: str
    values: str
    call_id: str = ""

    @classmethod
    def of(cls, envelope: Envelope) -> Document:
        """Return the document of an event, with its agent before the values."""
        lines = [envelope.agent or ""]
        values: list[str] = []
        opaque = _OPAQUE.get(envelope.type, frozenset())
        payload = envelope.payload.payload()
        for name, value in payload.items():
            if name in _NO_WORDS or name in opaque:
                continue
            readable = _readable(envelope.type, name, value)
            lines += leaves(readable)
            if name not in _NOT_SHOWN:
                values += leaves(readable, keys=False)
        call_id = payload.get("call_id", "")
        return cls("\n".join(lines), "\n".join(values).strip(), str(call_id))


def _readable(event_type: str, name: str, value: Any) -> Any:
    """Return a field's value without signatures, base64 and digests."""
    if event_type == "agent_response" and name == "thinking":
        return [_without(block, _OF_THINKING) for block in value]
    if event_type == "user_input" and name == "attachments":
        return [_without(attachment, _OF_ATTACHMENT) for attachment in value]
    return value


def _without(value: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name not in names}


def facts(envelope: Envelope) -> Iterator[str]:
    """Yield the facts of an event, except its files."""
    event = envelope.payload
    yield TYPE + envelope.type
    if has_failed(event):
        yield FAILED
    tool = getattr(event, "tool_name", None) or envelope.meta.tool_name
    if tool:
        yield from tool_facts(tool)
    model = envelope.meta.model or getattr(event, "model", None)
    if model:
        for part in model_parts(model):
            yield MODEL + part


def has_failed(event: events.Event) -> bool:
    """Whether an event reports a failure: of a call, of a request, or of the run.

    A call that a person rejected is no failure.
    """
    match event:
        case events.ToolResult(status="error"):
            return not is_rejected(event)
        case events.Final(outcome="failure"):
            return True
        case events.AgentError():
            return True
    return False


def tool_facts(name: str) -> Iterator[str]:
    """Yield the facts of a tool: its name, and that of a tool of an MCP server."""
    folded = name.casefold()
    yield TOOL + folded
    _, separator, last = folded.rpartition("__")
    if separator and last:
        yield TOOL + last


def model_parts(name: str) -> list[str]:
    """Return the parts of a model's name: claude, opus, 4."""
    return [part for part in _separated(name.casefold(), "-_./:@ ") if part]


def _separated(text: str, separators: str) -> list[str]:
    for separator in separators[1:]:
        text = text.replace(separator, separators[0])
    return text.split(separators[0])


def file_facts(call: events.ToolCall) -> list[str]:
    """Return the facts of the files that a call names in its arguments.

    A file has one fact for each end of its path, and one for each folder.
    """
    facts: list[str] = []
    if not isinstance(call.arguments, dict):
        return facts
    for name in _path_arguments():
        value = call.arguments.get(name)
        if isinstance(value, str) and value:
            facts += path_facts(value)
    return facts


def path_facts(path: str) -> list[str]:
    """Return the facts of one path."""
    names = path_names(path)[-MOST_FOLDERS:]
    ends = ["/".join(names[start:]) for start in range(len(names))]
    return [FILE + end for end in ends] + [FOLDER + name for name in names[:-1]]


def path_names(path: str) -> list[str]:
    """Return the names of folders and file in a path, without case."""
    names = path.replace("\\", "/").casefold().split("/")
    return [name for name in names if name not in ("", ".")]
