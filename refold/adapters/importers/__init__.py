"""Importers of transcripts of other programs: one module for each format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from refold.adapters.importers import added, registry
from refold.adapters.importers.base import (
    Content,
    Importer,
    Source,
    replaced,
    shown,
    too_large,
)
from refold.domain.errors import ImportFailed, InvalidConfiguration, counted
from refold.domain.ids import MAX_ID
from refold.domain.ports import Skipped, Transcript

__all__ = [
    "FORMATS",
    "Outline",
    "Skipped",
    "Transcript",
    "WithoutMessages",
    "named",
    "outlines",
    "read",
    "transcripts",
]

AUTO = "auto"
FORMATS: tuple[str, ...] = (AUTO, *registry.NAMES)


def read(
    path: Path,
    *,
    format: str = AUTO,  # noqa: A002  - named as the command line's option is
    strict: bool = False,
) -> list[Transcript]:
    """Return the transcripts in a file, as ``transcripts`` yields them."""
    return list(transcripts(path, format=format, strict=strict))


def transcripts(
    path: Path,
    *,
    format: str = AUTO,  # noqa: A002  - named as the command line's option is
    strict: bool = False,
) -> Iterator[Transcript]:
    """Yield the transcripts in a file, or in the folder of an export.

    Memory holds all of them, except for the formats of ``registry.STREAMING``, of which
    it holds one or two.

    Damaged lines are left out, and the first transcript reports them.  In a format that
    streams, the last one does.

    strict: a damaged line refuses the file.

    Raises ImportFailed for a file that cannot be read, has no known format, or holds
    nothing to import.
    """
    from refold.adapters.importers import own

    path = Path(path)
    try:
        if own.is_folder(path) and format in (AUTO, own.NAME):
            yield from own.read_folder(path)
            return
        source = Source(path, strict=strict)
        importer = _importer(source, format)
        if isinstance(importer, added.AddedImporter):
            # Forget the reports of built-in importers that tried the file.
            source = Source(path, strict=strict)
        if importer.NAME in registry.STREAMING:
            yield from _with_unique_names(_streamed(source, importer))
            return
        in_file = list(importer.read(source))
        _check_read(source, importer, in_file)
    except RecursionError:
        raise ImportFailed(shown(path), "is nested too deeply: flatten it") from None
    in_file = list(_with_unique_names(in_file))
    reports = _reports(source)
    if reports:
        first = Transcript("", importer.NAME, (), ())
        if in_file:
            first = in_file.pop(0)
        reported = replace(first, skipped=(*first.skipped, *reports))
        in_file.insert(0, reported)
    yield from in_file


def _streamed(source: Source, importer: Importer) -> Iterator[Transcript]:
    """Yield the transcripts of a file one after the other.

    Raises ImportFailed at the end if the file has no event.
    """
    without_events: list[Transcript] = []
    has_events = False
    last: Transcript | None = None
    for transcript in importer.read(source):
        if last is not None:
            yield last
        last = transcript
        if transcript.drafts:
            has_events = True
            without_events = []
        elif not has_events:
            without_events.append(transcript)
    if not has_events:
        _check_read(source, importer, without_events)
    if last is not None:
        yield replace(last, skipped=(*last.skipped, *_reports(source)))


def _reports(source: Source) -> list[Skipped]:
    """Return the reports on replaced values and on damaged places of a file."""
    reports = [
        Skipped(source.at(place), replaced(count))
        for place, count in source.repairs.items()
    ]
    return [*reports, *source.damaged]


class WithoutMessages(ImportFailed):
    """A file of a known format has no messages."""


def _check_read(
    source: Source, importer: Importer, transcripts: Sequence[Transcript]
) -> None:
    """Refuse a file without any event; it probably has another format."""
    for transcript in transcripts:
        if transcript.drafts or transcript.forked_from:
            return
    if not importer.recognises(source):
        why = f"holds nothing of the format {importer.NAME}"
        raise source.failed(f"{why}: use --format {AUTO}, or another")
    skipped: list[Skipped] = []
    for transcript in transcripts:
        skipped += transcript.skipped
    if not skipped and not source.damaged:
        why = f"was read as {importer.NAME}, and holds no messages"
        raise WithoutMessages(source.failed(why).where, why)
    unread = [item for item in (*source.damaged, *skipped) if not item.note]
    if unread:
        count = counted(len(unread), "place")
        first = f"{unread[0].where}: {unread[0].why}"
        raise source.failed(
            f"was read as {importer.NAME}, and nothing in it could be imported; "
            f"{count} left out, the first is {first}"
        )


def formats() -> list[str]:
    """Return the names of all formats: built-in ones, then those of packages."""
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
    """Return the importer of this name, or the one that recognises the file.

    Importers of plugins load only for a file that no built-in one recognises.
    """
    if name != AUTO:
        return _named_importer(source, name)
    refusal: ImportFailed | None = None
    recognised: list[Importer] = []
    try:
        recognised = _recognising(source)
    except InvalidConfiguration as error:
        raise source.failed(str(error)) from error
    except ImportFailed as error:  # it is no JSON, which a plugin may read
        refusal = error
    names: list[str] = [importer.NAME for importer in recognised]
    remarks = ""
    if not recognised:
        plugins = added.importers(FORMATS)
        recognised, problems = added.recognising(source, plugins.usable)
        names = [importer.NAME for importer in recognised]
        names = names or [*_names_for(source), *plugins.names]
        remarks = plugins.remarks + problems
    if len(recognised) == 1:
        return recognised[0]
    if refusal is not None and not recognised:
        raise ImportFailed(refusal.where, f"{refusal.why}{remarks}") from None
    if source.content == "zip":
        raise source.failed(f"is compressed (zip): unpack it first{remarks}")
    if source.content == "list":
        raise source.failed(f"{too_large(source.path.stat().st_size)}{remarks}")
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
        f"is {_LABELS[source.content]} of no known transcript format: if it is a "
        f"transcript, name its format with --format ({', '.join(names)}){remarks}"
    )


# The name of each kind of file in a message.
_LABELS: Final[Mapping[Content, str]] = {
    "json": "JSON",
    "list": "a list",
    "sqlite": "a SQLite database",
    "text": "text",
    "zip": "an archive",
}


def _recognising(source: Source) -> list[Importer]:
    """Return the built-in importers that recognise the file.

    A file that no importer of texts recognises may be JSON with a damaged beginning.

    Raises ImportFailed for a file that must be JSON and is not.
    """
    if source.begins_with_list:
        # These look at the first item alone; the others read the whole file.
        recognised = [each for each in registry.streaming() if each.recognises(source)]
        if recognised:
            return recognised
    for content in _contents(source):
        importers = registry.reading([content])
        recognised = [each for each in importers if each.recognises(source)]
        if recognised:
            return recognised
    return []


def _contents(source: Source) -> tuple[Content, ...]:
    """Return the kinds of file that this file may be, in the order to try them."""
    if source.content == "text":
        return ("text", "json")
    return (source.content,)


def _names_for(source: Source) -> list[str]:
    """Return the names of the built-in formats that the file may have."""
    contents = _contents(source)
    names: list[str] = []
    for importer in registry.BUILT_IN:
        if importer.reads in contents or importer.reads_also in contents:
            names.append(importer.name)
    return names


def _named_importer(source: Source, name: str) -> Importer:
    """Return the importer of this name, built in or added.  Raises ImportFailed."""
    try:
        importer = registry.load(name)
        if importer is not None:
            return importer
        check_format(name)
        return added.load(name, FORMATS)
    except InvalidConfiguration as error:
        raise source.failed(str(error)) from error


def _with_unique_names(transcripts: Iterable[Transcript]) -> Iterator[Transcript]:
    """Number the sessions whose name occurs in the file before."""
    counts: Counter[str] = Counter()
    for transcript in transcripts:
        name = transcript.session_id
        counts[name] += 1
        if name and counts[name] > 1:
            transcript = replace(transcript, session_id=f"{name}~{counts[name]}")
        yield transcript


_SUFFIX_ROOM = 20  # characters for a suffix of a session's name


class Outline(NamedTuple):
    """A transcript without its events.

    place:       its index in the file.
    session:     the session that it becomes; ``named`` sets it.
    forked_from: the session from which it was forked, in an export of Refold.
    """

    path: Path
    place: int
    session_id: str
    parent_session_id: str | None
    format: str
    events: int
    session: str = ""
    forked_from: str | None = None


def outlines(path: Path, transcripts: Iterable[Transcript]) -> Iterator[Outline]:
    """Yield the outlines of the transcripts in a file."""
    for place, transcript in enumerate(transcripts):
        yield _outline(path, place, transcript)


def _outline(path: Path, place: int, transcript: Transcript) -> Outline:
    """Return the outline of the transcript at a place in a file."""
    forked_from: str | None = None
    if transcript.forked_from is not None:
        forked_from, _ = transcript.forked_from
    return Outline(
        path=path,
        place=place,
        session_id=transcript.session_id,
        parent_session_id=transcript.parent_session_id,
        format=transcript.format,
        events=len(transcript.drafts),
        forked_from=forked_from,
    )


def named(
    outlines: Sequence[Outline],
    session: str | None,
    fail: Callable[[ImportFailed], None],
) -> list[Outline]:
    """Return the outlines with their sessions.

    session: the name of the only conversation; several conversations are numbered.
             None is the name in the file, else the file's name.
    fail:    called for a transcript whose session another transcript becomes; it is
             left out.

    The run of a sub-agent has the name of its conversation, ``~``, and a suffix.
    Several files may hold one session if their entries have ids.
    """
    mains = [outline for outline in outlines if outline.parent_session_id is None]
    main_names = _main_names(mains, session)
    # By file and name in the file; without a file, the first conversation of that name.
    name_of: dict[tuple[Path | None, str], str] = {}
    for main, name in zip(mains, main_names, strict=True):
        name_of[main.path, main.session_id] = name
        name_of.setdefault((None, main.session_id), name)
    next_names = iter(main_names)
    first_files: dict[str, Outline] = {}
    further_files: list[Outline] = []
    for outline in outlines:
        path = outline.path
        parent = outline.parent_session_id
        if parent is None:
            name = next(next_names)
        else:
            suffix = outline.session_id.removeprefix(f"{parent}~") or "sub-agent"
            # The conversation may be in another file.
            main_name = name_of.get((path, parent)) or name_of.get((None, parent))
            name = f"{main_name or parent}~{suffix}"
        named_outline = outline._replace(session=name)
        if name not in first_files:
            first_files[name] = named_outline
            continue
        first_path = first_files[name].path
        if outline.format in registry.WITH_ENTRY_IDS and first_path != path:
            further_files.append(named_outline)
            continue
        places = "twice in it"
        if first_path != path:
            places = f"twice in it and in {first_path}"
        why = f"session {name!r} is {places}: import one of them with --session NAME"
        fail(ImportFailed(str(path), why))
    return [*first_files.values(), *further_files]


def _main_names(mains: Sequence[Outline], session: str | None) -> list[str]:
    """Return the names of conversations, in their order.

    A conversation without a name gets the name of its file and a number.
    """
    if session is not None:
        if len(mains) == 1:
            return [session]
        return [f"{session}-{number:04}" for number in range(1, len(mains) + 1)]
    nameless: Counter[Path] = Counter()
    names: list[str] = []
    for main in mains:
        if main.session_id:
            names.append(main.session_id)
            continue
        nameless[main.path] += 1
        printable = "".join(c if c.isprintable() else "?" for c in main.path.stem)
        stem = printable.lstrip("_")[: MAX_ID - _SUFFIX_ROOM] or "session"
        names.append(f"{stem}-{nameless[main.path]:04}")
    return names


def read_named(
    path: Path, form: str, session: str | None, *, strict: bool = False
) -> Iterator[tuple[str, Transcript]]:
    """Yield the transcripts in a file, each with the name of its session.

    The whole file is read before the first one.  A format that streams is read twice,
    because memory may not hold all of its transcripts.

    Raises ImportFailed.
    """

    def fail(error: ImportFailed) -> None:
        raise error

    in_memory: dict[tuple[Path, int], Transcript] = {}
    all_outlines: list[Outline] = []
    files = with_sub_agents([path])
    for file in files:
        for place, transcript in enumerate(
            transcripts(file, format=form, strict=strict)
        ):
            if transcript.format not in registry.STREAMING:
                in_memory[file, place] = transcript
            all_outlines.append(_outline(file, place, transcript))
    chosen = named(all_outlines, session, fail)
    for file, of_file in groupby(chosen, key=lambda outline: outline.path):
        in_file = list(of_file)
        if in_file[0].format in registry.STREAMING:
            places = [outline.place for outline in in_file]
            read_again = at_places(file, places, format=form, strict=strict)
            for outline, transcript in zip(in_file, read_again, strict=True):
                yield outline.session, transcript
            continue
        for outline in in_file:
            yield outline.session, in_memory.pop((file, outline.place))


def at_places(
    path: Path,
    places: Sequence[int],
    *,
    format: str = AUTO,  # noqa: A002  - named as the command line's option is
    strict: bool = False,
) -> Iterator[Transcript]:
    """Yield the transcripts at these places of a file, which are in order.

    Raises ImportFailed, also for a file that has fewer transcripts.
    """
    wanted = iter(places)
    next_place = next(wanted, None)
    if next_place is None:
        return
    for place, transcript in enumerate(transcripts(path, format=format, strict=strict)):
        if place == next_place:
            yield transcript
            next_place = next(wanted, None)
            if next_place is None:
                return
    why = "changed while it was imported: import it again"
    raise ImportFailed(shown(path), why)


def with_sub_agents(paths: Iterable[Path]) -> list[Path]:
    """Return the files to read for these paths, each once.

    The files of sub-agents follow their session of Claude Code.  The folder of a
    session stands for both, and a folder of transcripts for the sessions in it and in
    its folders.
    """
    from refold.adapters.importers import claude_code

    files: dict[Path, Path] = {}
    for path in paths:
        for main in _files_of(path):
            sub_agents = claude_code.sub_agents_of(main) + _sub_agents_of_qwen(main)
            for file in (main, *sub_agents):
                files.setdefault(file.absolute(), file)
    return list(files.values())


def _sub_agents_of_qwen(main: Path) -> list[Path]:
    """Return the files of the sub-agents of a session of Qwen Code."""
    if main.parent.name != "chats":
        return []
    folder = main.parent.parent / "subagents" / main.stem
    try:
        return sorted(folder.glob("agent-*.jsonl"))
    except OSError:
        return []


def _files_of(path: Path) -> list[Path]:
    """Return the files that a path stands for; for other folders, the path itself."""
    from refold.adapters.importers import own

    try:
        if not path.is_dir() or own.is_folder(path):
            return [path]
        for main in (_session_of_folder(path), path / _STATE_FILE):
            if main.is_file():
                return [main]
        return _files_in(path) or [path]
    except (OSError, ValueError):
        return [path]


def _is_session_of_agent(path: Path) -> bool:
    """Whether a file that is no ``*.jsonl`` has the name of an agent's session.

    These are chats of Gemini CLI, the database and older sessions of opencode, and
    tasks of Cline.
    """
    if path.name in ("opencode.db", "api_conversation_history.json"):
        return True
    if path.suffix != ".json":
        return False
    if path.parent.name == "chats":
        return path.name.startswith("session-")
    is_in_storage = path.parent.parent.name == "session"
    return is_in_storage and path.name.startswith("ses_")


# The file of a conversation of OpenHands, whose events are in a folder next to it.
_STATE_FILE: Final = "base_state.json"


def _session_of_folder(folder: Path) -> Path:
    """Return the file of the session of Claude Code whose further files are here."""
    return folder.parent / f"{folder.name}.jsonl"


def _files_in(folder: Path) -> list[Path]:
    """Return the transcripts in a folder, then those in its folders, each by name.

    Hidden folders and links to folders are left out, and so is the folder of a session
    whose file is there.
    """
    from refold.adapters.importers import claude_code, own

    sub_agents = sorted((folder / claude_code.SUB_AGENTS).glob("agent-*.jsonl"))
    if sub_agents:
        return sub_agents
    files: list[Path] = []
    folders: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            is_hidden = path.name.startswith(".") or path.is_symlink()
            if not is_hidden and not _session_of_folder(path).is_file():
                folders.append(path)
        elif path.suffix == ".jsonl" or _is_session_of_agent(path):
            files.append(path)
    for path in folders:
        if own.is_folder(path):
            files.append(path)
        elif (path / _STATE_FILE).is_file():
            files.append(path / _STATE_FILE)
        else:
            files += _files_in(path)
    return files
