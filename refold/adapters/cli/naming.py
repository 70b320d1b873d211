"""The sessions that transcripts become: named by their file, or after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from refold.domain.errors import ImportFailed
from refold.domain.ids import MAX_ID

if TYPE_CHECKING:
    from refold.adapters.importers import Transcript

_ROOM = 20  # for what is put behind a name


class Named(NamedTuple):
    """A transcript, the file it is from, and the session it becomes."""

    path: Path
    transcript: Transcript
    session: str


def named(
    read: Sequence[tuple[Path, Sequence[Transcript]]], session: str | None
) -> list[Named]:
    """Give each transcript its session.

    session: what the only conversation is to be called; of several, each is called
             that with a number.  None: as the file says, else by the file's name.

    A sub-agent's run goes by the name of its conversation, ``~`` and a suffix.

    Raises ImportFailed if two of them would become one session.
    """
    given = [
        (path, transcript, name)
        for path, transcripts in read
        for transcript, name in zip(
            transcripts, _main_names(path, transcripts), strict=True
        )
    ]
    if session is not None:
        given = _renamed(given, session)
    made = [*_with_sub_agents(given)]
    _check_apart(made)
    return made


_Given = tuple[Path, "Transcript", str]


def _main_names(path: Path, transcripts: Iterable[Transcript]) -> list[str]:
    """What the file calls each conversation; NAME-0001… where it does not."""
    stem = _usable(path.stem)
    names, nameless = [], 0
    for transcript in transcripts:
        if not transcript.session_id and transcript.parent_session_id is None:
            nameless += 1
            names.append(f"{stem}-{nameless:04}")
        else:
            names.append(transcript.session_id)
    return names


def _usable(stem: str) -> str:
    """A file's name as the beginning of a session's name."""
    printable = "".join(c if c.isprintable() else "?" for c in stem)
    return printable.lstrip("_")[: MAX_ID - _ROOM] or "session"


def _renamed(given: Sequence[_Given], session: str) -> list[_Given]:
    mains = sum(1 for _, transcript, _ in given if transcript.parent_session_id is None)
    renamed, number = [], 0
    for path, transcript, name in given:
        if transcript.parent_session_id is None:
            number += 1
            name = session if mains == 1 else f"{session}-{number:04}"
        renamed.append((path, transcript, name))
    return renamed


def _with_sub_agents(given: Sequence[_Given]) -> Iterable[Named]:
    mains = {
        (path, transcript.session_id): name
        for path, transcript, name in given
        if transcript.parent_session_id is None
    }
    for path, transcript, name in given:
        parent = transcript.parent_session_id
        if parent is not None:
            suffix = transcript.session_id.removeprefix(f"{parent}~") or "sub-agent"
            name = f"{mains.get((path, parent), parent)}~{suffix}"
        yield Named(path, transcript, name)


def _check_apart(made: Iterable[Named]) -> None:
    seen: dict[str, Path] = {}
    for path, _, session in made:
        if session in seen:
            first = seen[session]
            both = f"twice in it and in {first}" if first != path else "twice in it"
            raise ImportFailed(
                str(path),
                f"session {session!r} is {both}: import one of them on its own with "
                "--session NAME",
            )
        seen[session] = path
