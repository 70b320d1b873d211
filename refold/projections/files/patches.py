"""Patches in the format of ``apply_patch``: which lines they replace in which files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_BEGIN: Final = "*** Begin Patch"
_END: Final = "*** End Patch"
_ADD: Final = "*** Add File: "
_DELETE: Final = "*** Delete File: "
_UPDATE: Final = "*** Update File: "
_MOVE: Final = "*** Move to: "
_END_OF_FILE: Final = "*** End of File"


class Hunk(NamedTuple):
    """Lines of a file and the lines that take their place.

    anchors: lines of the file that come before, in order.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    anchors: tuple[str, ...] = ()


class FilePatch(NamedTuple):
    """The change of one file by a patch.

    text:     the whole text of an added file; otherwise None.
    moved_to: the new path of the file; empty if it stays.
    """

    path: str
    text: str | None = None
    deleted: bool = False
    moved_to: str = ""
    hunks: tuple[Hunk, ...] = ()


def patch_in(text: str) -> str | None:
    """Return the patch in a text, such as a command; None without a whole one."""
    first = text.find(_BEGIN)
    last = text.find(_END, first + 1)
    if first < 0 or last < 0:
        return None
    return text[first : last + len(_END)]


def files_of(patch: str) -> Iterator[FilePatch]:
    """Yield what a patch does to each of its files, in order."""
    sections: list[list[str]] = []
    for line in patch.split("\n"):
        if line.startswith((_ADD, _DELETE, _UPDATE)):
            sections.append([])
        if sections and line.rstrip() != _END:
            sections[-1].append(line)
    for head, *body in sections:
        if head.startswith(_ADD):
            added = [line[1:] for line in body if line.startswith("+")]
            text = "".join(f"{line}\n" for line in added)
            yield FilePatch(head.removeprefix(_ADD).strip(), text=text)
        elif head.startswith(_DELETE):
            yield FilePatch(head.removeprefix(_DELETE).strip(), deleted=True)
        else:
            yield _update(head.removeprefix(_UPDATE).strip(), body)


def _update(path: str, body: list[str]) -> FilePatch:
    """Return the changes of an existing file.

    body: the lines of the patch after the one with the path.
    """
    moved_to = ""
    if body and body[0].startswith(_MOVE):
        moved_to = body[0].removeprefix(_MOVE).strip()
        body = body[1:]
    hunks: list[Hunk] = []
    anchors: list[str] = []
    old: list[str] = []
    new: list[str] = []

    def end_hunk() -> None:
        if old or new:
            hunks.append(Hunk(tuple(old), tuple(new), tuple(anchors)))
            anchors.clear()
            old.clear()
            new.clear()

    for line in body:
        if line.startswith("@@"):
            end_hunk()
            anchor = line[2:].strip()
            if anchor:
                anchors.append(anchor)
        elif line == _END_OF_FILE:
            end_hunk()
        elif line.startswith("-"):
            old.append(line[1:])
        elif line.startswith("+"):
            new.append(line[1:])
        else:  # an empty line of the patch is an empty line of the file
            old.append(line[1:])
            new.append(line[1:])
    end_hunk()
    return FilePatch(path, moved_to=moved_to, hunks=tuple(hunks))
