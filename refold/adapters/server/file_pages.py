"""Files of a run as pages show them: a list, and the history of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from markupsafe import Markup

from refold.adapters.server.run_pages import marked
from refold.projections.files.history import (
    BlamedLine,
    Doubt,
    Entry,
    FileHistories,
    FileHistory,
)

MOST_READ: Final = 20_000  # events that a page reads without a confirmation
_MOST_ENTRIES: Final = 200
_MOST_ROWS: Final = 200  # lines of a diff
_MOST_LINES: Final = 2_000  # lines of a file
_LONGEST_LINE: Final = 600  # characters of a line
# The number of the first new line in the row of a diff that states a place.
_FIRST_LINE: Final = re.compile(r"\+(\d+)")

RowKind: TypeAlias = Literal["added", "gone", "place", "same"]


class Row(NamedTuple):
    """A line of a diff."""

    kind: RowKind
    text: Markup


class ShownEntry(NamedTuple):
    """A use of a file with the lines of its diffs; ``left`` more are left out."""

    entry: Entry
    rows: Sequence[Row]
    left: int


class ShownLine(NamedTuple):
    """A line of a file.

    first:     whether its origin differs from that of the line before.
    after_gap: whether lines before it are not known.
    """

    line: BlamedLine
    text: Markup
    first: bool
    after_gap: bool


class FilePage(NamedTuple):
    """The page of a file.

    entries, lines: as far as the page has room for them.
    """

    path: str
    history: FileHistory
    doubt: Doubt | None
    entries: Sequence[ShownEntry]
    entries_in_all: int
    lines: Sequence[ShownLine]
    lines_in_all: int

    @classmethod
    def of(cls, history: FileHistory) -> FilePage:
        """Prepare the history of a file for its page."""
        blamed = history.blame()
        entries = history.entries[-_MOST_ENTRIES:]
        return cls(
            path=history.path,
            history=history,
            doubt=history.doubt,
            entries=[_shown_entry(entry) for entry in entries],
            entries_in_all=len(history.entries),
            lines=_shown_lines(blamed[:_MOST_LINES]),
            lines_in_all=len(blamed),
        )


def listed(histories: FileHistories, text: str) -> list[FileHistory]:
    """Return the files whose path contains a text, the last changed ones first."""
    files = [file for path, file in histories.files.items() if text in path]

    def last_change(file: FileHistory) -> tuple[bool, float]:
        """Return whether a file was changed, and when it was last changed or used."""
        changes = file.changes
        uses = changes or file.entries
        if not uses:
            return False, 0.0
        return bool(changes), uses[-1].ts.timestamp()

    return sorted(files, key=last_change, reverse=True)


def _shown_entry(entry: Entry) -> ShownEntry:
    texts: list[str] = []
    for diff in entry.diffs:
        if diff:
            texts += diff.split("\n")
    rows = [_row(text) for text in texts[:_MOST_ROWS]]
    return ShownEntry(entry, rows, max(0, len(texts) - _MOST_ROWS))


def _row(text: str) -> Row:
    kinds: dict[str, RowKind] = {"+": "added", "-": "gone", "@": "place"}
    kind = kinds.get(text[:1], "same")
    if kind == "place":
        place = _FIRST_LINE.search(text)
        text = "⋯" if place is None else f"⋯ {place[1]}"
    return Row(kind, marked(_cut(text)))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"


def _shown_lines(blamed: Sequence[BlamedLine]) -> list[ShownLine]:
    lines: list[ShownLine] = []
    previous: BlamedLine | None = None
    for line in blamed:
        number = 0 if previous is None else previous.number
        origin = None if previous is None else (previous.origin, previous.entry)
        lines.append(
            ShownLine(
                line=line,
                text=marked(_cut(line.text or "")),
                first=origin != (line.origin, line.entry),
                after_gap=line.number != number + 1,
            )
        )
        previous = line
    return lines
