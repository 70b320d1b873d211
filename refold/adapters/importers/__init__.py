"""Transcripts of other programs as events: one reader for each format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from refold.adapters.importers import (
    added,
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
from refold.domain.errors import ImportFailed, InvalidConfiguration, counted
from refold.domain.ids import MAX_ID
from refold.domain.ports import Skipped, Transcript

__all__ = ["FORMATS", "Outline", "Skipped", "Transcript", "named", "outlines", "read"]

IMPORTERS: tuple[Importer, ...] = (
    claude_code,
    codex,
    openai,
    anthropic,
    tau_bench,
    swe_agent,
    letta,
    inspect,
    atif,
    otlp,
    own,
)
AUTO = "auto"
FORMATS: tuple[str, ...] = (AUTO, *(importer.NAME for importer in IMPORTERS))


def read(
    path: Path,
    *,
    format: str = AUTO,  # noqa: A002  - named as the command line's option is
    strict: bool = False,
) -> list[Transcript]:
    """The transcripts in the file at ``path``, all of them whole.

    It may be the folder of an export, too.  Damaged lines are left out; the first
    transcript says which.

    strict: a damaged line refuses the file.

    Raises ImportFailed for a file that cannot be read, is of no known format, or has
    nothing that could be imported.
    """
    path = Path(path)
    try:
        if own.is_folder(path) and format in (AUTO, own.NAME):
            return own.read_folder(path)
        source = Source(path, strict=strict)
        importer = _importer(source, format)
        if isinstance(importer, added.AddedImporter):
            # Forget what built-in importers noted while they looked at the file.
            source = Source(path, strict=strict)
        transcripts = list(importer.read(source))
        _check_read(source, importer, transcripts)
    except RecursionError:
        raise ImportFailed(shown(path), "is nested too deeply: flatten it") from None
    named = _named_apart(transcripts)
    repairs = (
        Skipped(source.at(place), replaced(count))
        for place, count in source.repairs.items()
    )
    if beside := (*repairs, *source.damaged):
        first = named[0] if named else Transcript("", importer.NAME, (), ())
        named[:1] = [replace(first, skipped=(*first.skipped, *beside))]
    return named


def _check_read(
    source: Source, importer: Importer, transcripts: Sequence[Transcript]
) -> None:
    """Refuse a file of which nothing was read: it is hardly what it was taken for."""
    if any(one.drafts or one.forked_from for one in transcripts):
        return
    if not importer.recognises(source):
        why = f"holds nothing of the format {importer.NAME}"
        raise source.failed(f"{why}: use --format {AUTO}, or another")
    skipped = [item for one in transcripts for item in one.skipped]
    if not skipped and not source.damaged:
        raise source.failed(f"was read as {importer.NAME}, and holds no messages")
    unread = [item for item in (*source.damaged, *skipped) if not item.note]
    if unread:
        count = counted(len(unread), "place")
        first = f"{unread[0].where}: {unread[0].why}"
        raise source.failed(
            f"was read as {importer.NAME}, and nothing in it could be imported; "
            f"{count} left out, the first is {first}"
        )


def formats() -> list[str]:
    """The names of all formats: the built-in ones, then those that packages add."""
    return [*FORMATS, *added.installed(FORMATS).usable]


def check_format(name: str) -> None:
    """Raise InvalidConfiguration if no importer, built in or added, has this name."""
    if name in FORMATS or added.find(name, FORMATS) is not None:
        return
    remarks = added.installed(FORMATS).remarks()
    raise InvalidConfiguration(
        f"there is no such format: name one of {', '.join(formats())}{remarks}"
    )


def _importer(source: Source, name: str) -> Importer:
    """The importer of this name, or the one that recognises the file.

    Importers of plugins are loaded only for a file that no built-in one recognises.
    """
    if name != AUTO:
        return _named_importer(source, name)
    refusal: ImportFailed | None = None
    recognised: list[Importer] = []
    try:
        recognised = [each for each in IMPORTERS if each.recognises(source)]
    except ImportFailed as error:  # it is no JSON, which a plugin may read
        refusal = error
    names = [importer.NAME for importer in recognised or IMPORTERS]
    remarks = ""
    if not recognised:
        plugins = added.importers(FORMATS)
        recognised, problems = added.recognising(source, plugins.usable)
        names = [importer.NAME for importer in recognised] or [*names, *plugins.names]
        remarks = plugins.remarks + problems
    if len(recognised) == 1:
        return recognised[0]
    if refusal is not None and not recognised:
        raise ImportFailed(refusal.where, f"{refusal.why}{remarks}") from None
    if not recognised and source.damage:
        (line, _), why = min(source.damage.items())
        raise source.failed(f"{why}{remarks}", line=line)
    if not recognised and source.glued:
        line = min(source.glued)
        raise source.failed(
            "holds several values without a newline between them: put each on a line "
            "of its own, or in a file of its own",
            line=line,
        )
    raise source.failed(
        "is JSON of no known transcript format: if it is a transcript, name its "
        f"format with --format ({', '.join(names)}){remarks}"
    )


def _named_importer(source: Source, name: str) -> Importer:
    for importer in IMPORTERS:
        if name == importer.NAME:
            return importer
    try:
        check_format(name)
        return added.load(name, FORMATS)
    except InvalidConfiguration as error:
        raise source.failed(str(error)) from error


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


# Formats of which each entry has a name of its own.
_OF_ENTRIES = frozenset({claude_code.NAME, codex.NAME})
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

    A sub-agent's run goes by the name of its conversation, ``~`` and a suffix.  Several
    files may be of one session if the entries in them have names of their own.
    """
    mains = [one for one in given if one.parent_session_id is None]
    names = _main_names(mains, session)
    called: dict[tuple[Path | None, str], str] = {}
    for main, name in zip(mains, names, strict=True):
        called[main.path, main.session_id] = name
        called.setdefault((None, main.session_id), name)
    unused = iter(names)
    made: dict[str, Outline] = {}
    others: list[Outline] = []  # further files of sessions
    for one in given:
        path, parent = one.path, one.parent_session_id
        if parent is None:
            name = next(unused)
        else:
            suffix = one.session_id.removeprefix(f"{parent}~") or "sub-agent"
            # Its file may be another than its conversation's.
            main_name = called.get((path, parent)) or called.get((None, parent))
            name = f"{main_name or parent}~{suffix}"
        if name in made and one.format in _OF_ENTRIES and made[name].path != path:
            others.append(one._replace(session=name))
            continue
        if name in made:
            first = made[name].path
            both = f"twice in it and in {first}" if first != path else "twice in it"
            why = f"session {name!r} is {both}: import one of them with --session NAME"
            fail(ImportFailed(str(path), why))
            continue
        made[name] = one._replace(session=name)
    return [*made.values(), *others]


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
    path: Path, form: str, session: str | None, *, strict: bool = False
) -> list[tuple[str, Transcript]]:
    """The transcripts in a file, each with the name of the session that it becomes.

    Raises ImportFailed.
    """

    def fail(error: ImportFailed) -> None:
        raise error

    transcripts: dict[tuple[Path, int], Transcript] = {}
    found: list[Outline] = []
    for file in with_sub_agents([path]):
        for outline, one in zip(*_outlined(file, form, strict=strict), strict=True):
            transcripts[outline.path, outline.place] = one
            found.append(outline)
    return [
        (one.session, transcripts[one.path, one.place])
        for one in named(found, session, fail)
    ]


def _outlined(
    path: Path, form: str, *, strict: bool
) -> tuple[list[Outline], list[Transcript]]:
    transcripts = read(path, format=form, strict=strict)
    return [*outlines(path, transcripts)], transcripts


def with_sub_agents(paths: Iterable[Path]) -> list[Path]:
    """The files to read for these paths, each once.

    Behind a session of Claude Code are the files of its sub-agents.  The folder of a
    session stands for both, and one of transcripts for the sessions in it.
    """
    files: dict[Path, Path] = {}
    for path in paths:
        for main in _files_of(path):
            for file in (main, *claude_code.sub_agents_of(main)):
                files.setdefault(file.absolute(), file)
    return list(files.values())


def _files_of(path: Path) -> list[Path]:
    """The files that a path names; what is no folder of transcripts names itself."""
    try:
        if not path.is_dir() or own.is_folder(path):
            return [path]
        main = path.parent / f"{path.name}.jsonl"
        if main.is_file():
            return [main]
        sub_agents = sorted((path / claude_code.SUB_AGENTS).glob("agent-*.jsonl"))
        return sub_agents or sorted(path.glob("*.jsonl")) or [path]
    except (OSError, ValueError):
        return [path]
