"""Histories of files as people and programs see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from refold.adapters.display.values import rfc3339

if TYPE_CHECKING:
    from refold.projections.files.history import (
        BlamedLine,
        Doubt,
        Entry,
        FileHistory,
        Reason,
    )

_REASONS: Final[dict[str, str]] = {
    "command": "a command may have changed the file",
    "agent": "a sub-agent without a recorded session may have changed the file",
    "reported": "the client reports that somebody else changed the file",
    "left": "the user left the client, and files may have changed since",
    "other_run": "another run used the file last",
    "outside": "a read shows other lines than the recorded edits yield",
    "not_found": "the replaced text is not in the known content",
    "ambiguous": "the replaced text is in several places of the known content",
    "not_replayed": "this edit cannot be replayed",
    "redacted": "the edit contains redacted values",
    "not_read": "the edit is at a place that no event shows",
    "other_path": "an event changed a file whose path may mean this one",
    "no_result": "no result says whether a change of the file took place",
}


def reason_text(reason: Reason, detail: str = "") -> str:
    """Return the sentence for a reason, with the command if there is one."""
    text = _REASONS[reason]
    return f"{text}: {detail}" if detail else text


def entry_json(entry: Entry) -> dict[str, Any]:
    """Return an entry of a file's history as JSON."""
    return {
        "kind": entry.kind,
        "path": entry.path,
        "session_id": entry.place.session_id,
        "seq": entry.place.seq,
        "result_seq": entry.result,
        "ts": rfc3339(entry.ts),
        "tool": entry.tool,
        "asked_by": entry.asked._asdict(),
        "changes": [change._asdict() for change in entry.changes],
        "diffs": list(entry.diffs),
        "added": entry.added,
        "removed": entry.removed,
        "lines": None if entry.lines is None else list(entry.lines),
        "reason": entry.reason,
        "detail": entry.detail,
        "moved_to": entry.moved_to or None,
        "agrees": entry.agrees,
    }


def file_json(history: FileHistory) -> dict[str, Any]:
    """Return the totals of a file as JSON."""
    changes = history.changes
    last = changes[-1] if changes else None
    return {
        "path": history.path,
        "reads": history.reads,
        "edits": len(changes),
        "rejected": history.rejected,
        "added": history.added,
        "removed": history.removed,
        "last_write": None if last is None else rfc3339(last.ts),
        "last_seq": None if last is None else last.place.seq,
        "unknown_since": _doubt_json(history.doubt) if history.doubt else None,
    }


def blamed_json(line: BlamedLine) -> dict[str, Any]:
    """Return a line with its origin as JSON."""
    return {
        "line": line.number,
        "text": line.text,
        "origin": line.origin,
        "session_id": None if line.entry is None else line.entry.place.session_id,
        "seq": None if line.entry is None else line.entry.place.seq,
        "unknown_since": None if line.doubt is None else _doubt_json(line.doubt),
    }


def _doubt_json(doubt: Doubt) -> dict[str, Any]:
    """Return why a file may have changed."""
    return {
        "reason": doubt.reason,
        "session_id": doubt.place.session_id,
        "seq": doubt.place.seq,
        "detail": doubt.detail,
    }
