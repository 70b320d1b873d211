"""Transcripts of other programs as events: one reader for each format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from refold.adapters.importers import (
    anthropic,
    atif,
    claude_code,
    codex,
    inspect,
    letta,
    openai,
    otlp,
    own,
    swe_agent,
    tau_bench,
)
from refold.adapters.importers.base import Importer, Source, replaced, shown
from refold.domain.errors import ImportFailed
from refold.domain.ids import MAX_ID
from refold.domain.ports import Skipped, Transcript

__all__ = ["FORMATS", "Outline", "Skipped", "Transcript", "named", "outlines", "read"]

IMPORTERS: tuple[Importer, ...] = (
    *(claude_code, codex, openai, anthropic, tau_bench),
    *(swe_agent, letta, inspect, atif, otlp, own),
)
AUTO = "auto"
FORMATS: tuple[str, ...] = (AUTO, *(importer.NAME for importer in IMPORTERS))


def read(
    path: Path,
    *,
    format: str = AUTO,  # noqa: A002  - named as the command line's option is
) -> list[Transcript]:
    """The transcripts in the file at ``path``, all of them whole.

    It may be the folder of an export, too.

    Raises ImportFailed for a file that cannot be read or is of no known format.
    """
    path = Path(path)
    try:
        if own.is_folder(path) and format in (AUTO, own.NAME):
            return own.read_folder(path)
        source = Source(path)
        importer = _importer(source, format)
        transcripts = list(importer.read(source))
        empty = not any(found.drafts for found in transcripts)
        if empty and not importer.recognises(source):
            what = f"holds nothing of the format {importer.NAME}"
            raise source.failed(f"{what}: use --format {AUTO}, or another")
    except RecursionError:
        raise ImportFailed(shown(path), "is nested too deeply: flatten it") from None
    named = _named_apart(transcripts)
    if source.repairs and named:  # the first tells what had to be replaced in the file
        repairs = source.repairs.items()
        told = (Skipped(source.at(place), replaced(count)) for place, count in repairs)
        named[0] = replace(named[0], skipped=(*named[0].skipped, *told))
    return named


def _importer(source: Source, name: str) -> Importer:
    if name not in FORMATS:
        why = f"there is no such format: name one of {', '.join(FORMATS)}"
        raise source.failed(why)
    if name != AUTO:
        return next(importer for importer in IMPORTERS if name == importer.NAME)
    found = [importer for importer in IMPORTERS if importer.recognises(source)]
    if len(found) == 1:
        return found[0]
    formats = ", ".join(importer.NAME for importer in found or IMPORTERS)
    raise source.failed(
        "is JSON of no known transcript format: if it is a transcript, name its "
        f"format with --format ({formats})"
    )


def _named_apart(transcripts: Iterable[Transcript]) -> list[Transcript]:
    """Give a session that a file has twice a name of its own each further time."""
    seen: dict[str, int] = {}
    apart = []
    for transcript in transcripts:
        name = transcript.session_id
        seen[name] = seen.get(name, 0) + 1
        if name and seen[name] > 1:
            transcript = replace(transcript, session_id=f"{name}~{seen[name]}")
        apart.append(transcript)
    return apart


_ROOM = 20  # for what is put behind a name


class Outline(NamedTuple):
    """A transcript without its events, and the session it becomes, once that is said.

    ``place`` is its index in the file.
    """

    path: Path
    place: int
    session_id: str
    parent_session_id: str | None
    format: str
    events: int
    session: str = ""


def outlines(path: Path, read: Iterable[Transcript]) -> Iterator[Outline]:
    """The outlines of the transcripts in a file."""
    for at, one in enumerate(read):
        names = one.session_id, one.parent_session_id, one.format
        yield Outline(path, at, *names, len(one.drafts))


def named(
    given: Sequence[Outline], session: str | None, fail: Callable[[ImportFailed], None]
) -> list[Outline]:
    """Give each transcript its session.

    session: what the only conversation is to be called; of several, each is called
             that with a number.  None: as the file says, else by the file's name.
    fail:    told of a transcript that would become a session that another becomes; it
             is left out.

    A sub-agent's run goes by the name of its conversation, ``~`` and a suffix.
    """
    mains = [one for one in given if one.parent_session_id is None]
    names = _main_names(mains, session)
    keys = ((one.path, one.session_id) for one in mains)
    called = dict(zip(keys, names, strict=True))
    unused = iter(names)
    made: dict[str, Outline] = {}
    for one in given:
        path, parent = one.path, one.parent_session_id
        if parent is None:
            name = next(unused)
        else:
            suffix = one.session_id.removeprefix(f"{parent}~") or "sub-agent"
            name = f"{called.get((path, parent), parent)}~{suffix}"
        if name in made:
            first = made[name].path
            both = f"twice in it and in {first}" if first != path else "twice in it"
            why = f"session {name!r} is {both}: import one of them with --session NAME"
            fail(ImportFailed(str(path), why))
            continue
        made[name] = one._replace(session=name)
    return list(made.values())


def _main_names(mains: Sequence[Outline], session: str | None) -> list[str]:
    """What each conversation is called; by its file, with a number, if by nobody."""
    if session is not None:
        several = [f"{session}-{number:04}" for number in range(1, len(mains) + 1)]
        return [session] if len(mains) == 1 else several
    nameless: Counter[Path] = Counter()
    names = []
    for one in mains:
        nameless[one.path] += not one.session_id
        printable = "".join(c if c.isprintable() else "?" for c in one.path.stem)
        stem = printable.lstrip("_")[: MAX_ID - _ROOM] or "session"
        names.append(one.session_id or f"{stem}-{nameless[one.path]:04}")
    return names


def read_named(
    path: Path, form: str, session: str | None
) -> list[tuple[str, Transcript]]:
    """The transcripts in a file, each with the name of the session that it becomes.

    Raises ImportFailed.
    """

    def fail(error: ImportFailed) -> None:
        raise error

    transcripts = read(path, format=form)
    found = named([*outlines(path, transcripts)], session, fail)
    return [(one.session, transcripts[one.place]) for one in found]
