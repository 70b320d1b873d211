"""``refold import``: transcripts of other programs into the log."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from refold.adapters.cli import options, output
from refold.adapters.display import values
from refold.adapters.importers import (
    AUTO,
    FORMATS,
    Outline,
    Skipped,
    WithoutMessages,
    at_places,
    check_format,
    formats,
    named,
    outlines,
    transcripts,
    with_sub_agents,
)
from refold.adapters.importers.homes import AgentFiles, Home, agents_in
from refold.adapters.importers.watch import Watch
from refold.domain import errors
from refold.domain.errors import (
    ImportFailed,
    InvalidConfiguration,
    RefoldError,
    counted,
)
from refold.store.session.imports import append_transcript
from refold.store.work.jobs import spread

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from refold.adapters.importers import Transcript
    from refold.store import Session, SessionStore
    from refold.store.session.imports import Extended


def _format(name: str) -> str:
    """Return the name of a format.  Raises typer.BadParameter for another name."""
    try:
        check_format(name)
    except InvalidConfiguration as error:
        raise typer.BadParameter(str(error)) from None
    return name


def _formats(incomplete: str) -> list[str]:
    """Return the names of formats that complete the word in a shell."""
    return [name for name in formats() if name.startswith(incomplete)]


def import_(
    call: options.Call,
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="Files with transcripts, or folders: all *.jsonl in them and in their "
            "folders.  The sub-agents of a session of Claude Code come with it.  In a "
            "home, such as ~/, the sessions of the coding agents that have some there.",
        ),
    ],
    user: options.UserOption,
    session: Annotated[
        str | None,
        options.session_option(
            "Name of the session; several sessions become S-0001, S-0002 and so "
            "on.  Default: the name in the file, else the name of the file."
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            parser=_format,
            autocompletion=_formats,
            help=f"Read every file as this format: {', '.join(FORMATS)}, or one that "
            "an installed package adds.",
        ),
    ] = "auto",
    keep_going: Annotated[
        bool,
        typer.Option(
            "--keep-going",
            help="If a file fails, import the others; exit with 1 at the end.",
        ),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse a file with a damaged line.  Default: import everything else "
            "in the file, name each damaged line, and exit with 1 if an "
            "entry is lost.",
        ),
    ] = False,
    progress: Annotated[
        bool,
        typer.Option(
            "--progress", help="Show progress even if stderr is not a terminal."
        ),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Import the sessions of all agents in a home without asking; of one "
            "agent with --format.",
        ),
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Go on until Ctrl-C: import new files, and files that have grown.",
        ),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of processes that share the files.  Default: one for each "
            "core, if a folder has several files and many events; else 1.",
        ),
    ] = None,
) -> output.Result:
    """Import transcripts, each as a session.

    Redacts and size-guards all text, and reads all files before it writes anything.
    You can import a file again at any time, also after Ctrl-C: only new entries are
    added.
    """
    if keep_going and session is not None:
        raise typer.BadParameter(
            "--session numbers sessions by their files, and --keep-going may leave "
            "files out: give one of them"
        )
    if watch and session is not None:
        raise typer.BadParameter(
            "--session names the sessions of the files that there are now, and --watch "
            "imports later ones: give one of them"
        )
    sources = _sources(paths, form, yes=yes, as_json=call.as_json)
    if sources.homes and session is not None:
        raise typer.BadParameter(
            "--session names the session of a file, and a home has those of many: give "
            "one of them"
        )
    if watch:
        shows_looks: bool | None = None  # only a long look shows its progress
        if call.as_json:
            shows_looks = False
        elif progress:
            shows_looks = True
        return _watch(call, sources, _Options(user, form, strict, shows_looks))
    keep_going = keep_going or bool(sources.homes)
    shows = not call.as_json and (progress or sys.stderr.isatty())
    work = _Import(
        user,
        form,
        keep_going=keep_going,
        strict=strict,
        shows=shows,
        of_agents=bool(sources.homes),
    )
    try:
        outlines_to_write = work.read(sources.files(), session)
        if outlines_to_write or not work.failed:
            store = call.store(new=True)
            groups = _dependent_files(_by_file(outlines_to_write))
            if jobs is None and store.open_again is not None:
                jobs = _default_jobs(paths, groups)
            work.write(store, groups, call.executor(jobs or 1))
    except KeyboardInterrupt as error:
        work.count(*error.args)
        output.complain(work.reason("interrupted"))
        raise
    value = {
        "sessions": work.names,
        "events": work.events,
        "duplicates": work.duplicates,
        "redactions": dict(sorted(work.redactions.items())),
        "skipped": [{"where": item.where, "why": item.why} for item in work.skipped],
        "damaged": [{"where": item.where, "why": item.why} for item in work.damaged],
        "failed": [{"where": error.where, "why": error.why} for error in work.failed],
    }
    has_lost = any(not item.is_read for item in work.damaged)
    code = 1 if work.failed or has_lost else 0
    return output.Result(value, partial(_show, work=work), code)


class _Sources(NamedTuple):
    """The files and folders to import, and the homes of coding agents."""

    paths: list[Path]
    homes: list[Home]

    def files(self) -> list[Path]:
        """Return the paths, and the files that the agents have now."""
        files = [*self.paths]
        for home in self.homes:
            files += home.files()
        return files


def _sources(paths: Sequence[Path], form: str, *, yes: bool, as_json: bool) -> _Sources:
    """Return the paths to import; in a home, the agents that the user chooses."""
    sources = _Sources([], [])
    for path in paths:
        only = None if form == AUTO else form
        agents = agents_in(path, form=only)
        if not agents:
            sources.paths.append(path)
            continue
        if not yes:
            agents = _chosen(path, agents, as_json=as_json)
        sources.homes.append(Home(path, [files.agent for files in agents]))
    return sources


def _chosen(
    home: Path, agents: Sequence[AgentFiles], *, as_json: bool
) -> list[AgentFiles]:
    """Ask for each agent whether to import its sessions.

    Raises typer.BadParameter without a terminal, and if no agent is chosen.
    """
    descriptions = [
        f"{files.agent.name}: {counted(len(files.files), 'file')}, "
        f"{values.size(files.size)} (--format {files.agent.form})"
        for files in agents
    ]
    if as_json or not sys.stdin.isatty():
        listed = "; ".join(descriptions)
        raise typer.BadParameter(
            f"{output.shown(str(home))} has sessions of coding agents ({listed}): add "
            "--yes to import all of them, and --format for those of one agent"
        )
    chosen: list[AgentFiles] = []
    for files, description in zip(agents, descriptions, strict=True):
        if typer.confirm(f"Import {description}?", err=True):
            chosen.append(files)
    if not chosen:
        raise typer.BadParameter("no agent was chosen: nothing was imported")
    return chosen


class _Options(NamedTuple):
    """The options of an import that each look of a watch uses."""

    user: str
    form: str
    strict: bool
    shows: bool | None


# The shortest and the longest pause between two looks, and the share of the time that
# looks take.
_SHORTEST_SEC: Final = 1.0
_LONGEST_SEC: Final = 30.0
_LOOK_SHARE: Final = 0.01


def _watch(call: options.Call, sources: _Sources, chosen: _Options) -> output.Result:
    """Import the files that are new or have grown, until a signal to stop.

    A file that cannot be imported is reported, and tried again when it changes.  If the
    store is not available, all its files are tried again at the next look.
    """
    from refold.adapters.cli.commands.compact import stopped_by_signals

    store = call.store(new=True, long_running=True)
    watch = Watch(lambda: with_sub_agents(sources.files()))
    stop = Event()
    total = _new_import(chosen)
    count = counted(len(with_sub_agents(sources.files())), "file")
    output.complain(
        f"importing {count}, then new files and new entries; stop with Ctrl-C"
    )
    has_imported = False
    warning = ""
    with stopped_by_signals(stop.set):
        while not stop.is_set():
            started = time.monotonic()
            files = watch.take()
            looked_sec = time.monotonic() - started
            if files:
                try:
                    _import_changed(call, store, chosen, files, total)
                    warning = ""
                    if not has_imported:
                        has_imported = True
                        output.complain(
                            f"{_events_written(total)}; waiting for changes"
                        )
                except (ImportFailed, RefoldError) as error:
                    for path in files:
                        watch.put_back(path)
                    if str(error) != warning:  # once, not at every look
                        warning = str(error)
                        output.complain(f"waiting: {warning}")
            pause = max(_SHORTEST_SEC, looked_sec / _LOOK_SHARE)
            stop.wait(min(pause, _LONGEST_SEC))
    value = {"sessions": total.names, "events": total.events}
    return output.Result(value, _events_written(total))


def _events_written(total: _Import) -> str:
    """Return the number of events that an import has written, in words."""
    events = counted(total.events, "event")
    return f"{events} written to {counted(len(total.names), 'session')}"


def _new_import(chosen: _Options) -> _Import:
    """Return an import with the options of a watch."""
    return _Import(
        chosen.user,
        chosen.form,
        keep_going=True,
        strict=chosen.strict,
        shows=chosen.shows,
        of_agents=True,
    )


def _import_changed(
    call: options.Call,
    store: SessionStore,
    chosen: _Options,
    files: Sequence[Path],
    total: _Import,
) -> None:
    """Import files that changed, and print each session that got events."""
    work = _new_import(chosen)
    outlines_to_write = work.read(files, None)
    work.write(store, _dependent_files(_by_file(outlines_to_write)), None)
    total.sessions += work.sessions
    if call.as_json:
        return
    for name in work.names:
        added = 0
        for outline, extended in work.sessions:
            if outline.session == name:
                added += extended.events
        if added:
            output.complain(f"{output.shown(name)}: {counted(added, 'new event')}")


# Below this number of events, a second process costs more than it saves.
_FEWEST_FOR_JOBS: Final = 2_000
_MOST_DEFAULT_JOBS: Final = 8  # more would wait for the database


def _default_jobs(paths: Sequence[Path], groups: Sequence[_Group]) -> int:
    """Return the number of processes for these paths: 1, or one for each core.

    groups: the files to write, those that depend on each other in one group.
    """
    events = sum(_events_of_group(group) for group in groups)
    has_folder = any(path.is_dir() for path in paths)
    if not has_folder or events < _FEWEST_FOR_JOBS:
        return 1
    return min(_cores(), len(groups), _MOST_DEFAULT_JOBS)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# The outlines of a file, and files that one process writes one after the other.
_File = tuple[Outline, ...]
_Group = tuple[_File, ...]


def _by_file(sessions: Sequence[Outline]) -> list[_File]:
    """Return the outlines of each file, in their order."""
    by_file = groupby(sessions, key=lambda outline: outline.path)
    return [tuple(outlines) for _, outlines in by_file]


def _dependent_files(files: Sequence[_File]) -> list[_Group]:
    """Group the files that must be written one after the other, in this order.

    Files with parts of one session keep their order.  A fork comes after the session
    that it was forked from.
    """
    earlier = _earlier_files(files)
    neighbours: dict[int, set[int]] = {number: set() for number in earlier}
    for number, numbers in earlier.items():
        for other in numbers:
            neighbours[number].add(other)
            neighbours[other].add(number)
    groups: list[_Group] = []
    grouped: set[int] = set()
    for number in neighbours:
        if number in grouped:
            continue
        group = _connected(number, neighbours)
        grouped |= group
        groups.append(tuple(files[member] for member in _in_order(group, earlier)))
    return groups


def _earlier_files(files: Sequence[_File]) -> dict[int, set[int]]:
    """Return, for the number of each file, those of the files to write before it."""
    parts: dict[str, list[int]] = {}  # the files of each session
    for number, file in enumerate(files):
        for outline in file:
            parts.setdefault(outline.session, []).append(number)
    earlier: dict[int, set[int]] = {number: set() for number in range(len(files))}
    for numbers in parts.values():
        for before, number in pairwise(numbers):
            earlier[number].add(before)
    for number, file in enumerate(files):
        in_file = {outline.session_id for outline in file}
        for outline in file:
            if outline.forked_from and outline.forked_from not in in_file:
                earlier[number].update(parts.get(outline.forked_from, ()))
        earlier[number].discard(number)
    return earlier


def _connected(start: int, neighbours: Mapping[int, set[int]]) -> set[int]:
    """Return the number of a file, and those of all files that are connected to it."""
    connected = {start}
    unvisited = [start]
    while unvisited:
        for neighbour in neighbours[unvisited.pop()] - connected:
            connected.add(neighbour)
            unvisited.append(neighbour)
    return connected


def _in_order(group: set[int], earlier: Mapping[int, set[int]]) -> list[int]:
    """Return the files of a group, each after those that must be written before it."""
    later: dict[int, list[int]] = {number: [] for number in group}
    missing = {number: len(earlier[number]) for number in group}
    for number in sorted(group):
        for before in earlier[number]:
            later[before].append(number)
    ready = [number for number in sorted(group) if not missing[number]]
    ordered: list[int] = []
    while ready:
        ordered += ready
        following: list[int] = []
        for done in ready:
            for number in later[done]:
                missing[number] -= 1
                if not missing[number]:
                    following.append(number)
        ready = sorted(following)
    # Forks of each other, which no export of Refold has, come last.
    return ordered + [number for number in sorted(group) if missing[number]]


@dataclass(slots=True)
class _Import:
    """The options of an import, and its results so far.

    of_agents: whether agents wrote the files: they also keep sessions without messages,
               which are reported and are no failure.
    """

    user: str
    form: str
    keep_going: bool
    strict: bool
    shows: bool | None = False
    of_agents: bool = False
    sessions: list[tuple[Outline, Extended]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    damaged: list[Skipped] = field(default_factory=list)
    failed: list[ImportFailed] = field(default_factory=list)
    cut_off: int = 0  # events written of sessions that are not whole
    uncounted: int = 0  # files of which it is not known what was written

    @property
    def events(self) -> int:
        return self.cut_off + sum(result.events for _, result in self.sessions)

    @property
    def names(self) -> list[str]:
        """The sessions; several files may have parts of one."""
        return list(dict.fromkeys(item.session for item, _ in self.sessions))

    @property
    def duplicates(self) -> int:
        return sum(result.duplicates for _, result in self.sessions)

    @property
    def redactions(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for _, result in self.sessions:
            counts.update(result.redactions)
        return counts

    def read(self, paths: Sequence[Path], session: str | None) -> list[Outline]:
        """Read all files; returns the sessions to write, without their events.

        Events are read again when they are written, since memory may not hold those of
        all files at once.
        """
        files = with_sub_agents(paths)
        sessions: list[Outline] = []
        with output.Progress(len(files), of="files", shows=self.shows) as progress:
            for path in files:
                skipped: list[Skipped] = []
                try:
                    sessions += self._outlines(path, skipped)
                    self._report(skipped)
                except ImportFailed as error:
                    if isinstance(error, WithoutMessages) and self.of_agents:
                        note = Skipped(error.where, error.why, note=True)
                        self.skipped.append(note)
                    else:
                        self._fail(error, others=len(files) > 1)
                progress.advance("read", 1)
        with_names = named(sessions, session, self._fail)
        return [
            outline for outline in with_names if outline.events or outline.forked_from
        ]

    def _outlines(self, path: Path, skipped: list[Skipped]) -> list[Outline]:
        """Return the outlines of a file; its skipped entries are added to ``skipped``.

        Raises ImportFailed.
        """

        def read() -> Iterator[Transcript]:
            for transcript in transcripts(path, format=self.form, strict=self.strict):
                skipped.extend(transcript.skipped)
                yield transcript

        return list(outlines(path, read()))

    def _report(self, skipped: Sequence[Skipped]) -> None:
        """Keep skipped entries for the end; print damaged places at once."""
        for item in skipped:
            if item.damaged:
                self.damaged.append(item)
                output.complain(f"{item.where} {item.why}")
            else:
                self.skipped.append(item)

    def _fail(self, error: ImportFailed, *, others: bool = True) -> None:
        """Print that a file is not imported; without --keep-going, raise instead."""
        if self.keep_going:
            self.failed.append(error)
            output.complain(str(error))
            return
        then = "--keep-going imports the other files" if others else ""
        raise ImportFailed(error.where, self.reason(error.why, then), seq=error.seq)

    def write(
        self,
        store: SessionStore,
        groups: list[_Group],
        executor: Executor | None,
    ) -> None:
        """Write the sessions, a file at a time.

        groups: the files with their sessions, as ``_dependent_files`` groups them.
        """
        sessions = [outline for group in groups for file in group for outline in file]
        is_shared = executor is not None and store.open_again is not None
        if is_shared:  # no process begins many events at the end
            groups = sorted(groups, key=_events_of_group, reverse=True)
        else:
            groups = [(file,) for group in groups for file in group]
        write_group = partial(
            _write_group, self.user, self.form, self.strict, self.keep_going
        )
        stopped_by: _Written | None = None
        with output.Progress(_events(sessions), of="events", shows=self.shows) as bar:

            def show_progress(group: _Group, events: int) -> None:
                file = group[0]
                if is_shared:  # the group has ended
                    events = _events_of_group(group)
                bar.reach(file, file[0].session, events)

            results = spread(
                store,
                write_group,
                groups,
                executor,
                show_progress,
                after_stop=self._count_rest,
            )
            with closing(results):
                for group_written in results:
                    self._count_group(group_written)
                    stopped_by = self._stopping(group_written)
                    if stopped_by is not None:
                        break
        if stopped_by is not None:
            self._stop(stopped_by, others=len(sessions) > 1)
        places = {outline: number for number, outline in enumerate(sessions)}
        self.sessions.sort(key=lambda written: places[written[0]])

    def _count_group(self, group_written: Sequence[_Written]) -> None:
        for written in group_written:
            self.count(written.sessions, written.cut_off)

    def _count_rest(self, futures: Iterator[Future[list[_Written]]]) -> None:
        """Count the files that other processes were writing when the import ended."""
        # Until the wait ends.  An interrupt leaves it: then some files are not counted.
        self.uncounted += 1
        for future in futures:
            if future.exception() is None:
                self._count_group(future.result())
            else:
                self.uncounted += 1
        self.uncounted -= 1

    def _stopping(self, group_written: Sequence[_Written]) -> _Written | None:
        """Return the file whose failure ends the import; print other failures."""
        for written in group_written:
            if written.error is None:
                continue
            if _ends_import(written.error, keep_going=self.keep_going):
                return written
            self._fail(_failure(written))
        return None

    def _stop(self, written: _Written, *, others: bool) -> None:
        """Raise the error of a file, with what the import wrote until then."""
        if _concerns_all_files(written.error):
            why = self.reason(str(written.error))
            raise ImportFailed(written.where, why) from written.error
        self._fail(_failure(written), others=others)

    def count(
        self,
        sessions: Sequence[tuple[Outline, Extended]] = (),
        cut_off: int | None = 0,
    ) -> None:
        """Count complete sessions, and the events of an incomplete one, if known."""
        self.sessions += sessions
        for _, result in sessions:
            self._report(result.skipped)
        if cut_off is None:
            self.uncounted += 1
        else:
            self.cut_off += cut_off

    def reason(self, why: str, then: str = "") -> str:
        """Return why an import ended, what it wrote until then, and what to do."""
        sentence = why
        if self.events or self.uncounted:
            complete = counted(len(self.names), "session")
            written = counted(self.events, "event")
            if self.uncounted:
                written = f"at least {written}"
            sentence += f"; {written} written, {complete} complete"
            then = then or "import again to add the rest"
        elif "nothing was written" not in why:
            sentence += "; nothing was written"
        if then:
            sentence += f": {then}"
        return sentence


class _Written(NamedTuple):
    """The sessions that were written of a file.

    sessions: the complete sessions.
    error:    the error that prevented the others; None without one.
    cut_off:  the number of events that were written of an incomplete session; None if
              the store cannot tell.
    """

    where: str
    sessions: list[tuple[Outline, Extended]]
    error: RefoldError | None = None
    cut_off: int | None = 0


def _write_group(
    user: str,
    form: str,
    strict: bool,
    keep_going: bool,
    store: SessionStore,
    group: _Group,
    show_progress: Callable[[int], object],
) -> list[_Written]:
    """Write the files of a group, until one fails with an error that ends the import.

    Raises KeyboardInterrupt as ``_write_file``, for a group of one file.
    """
    results: list[_Written] = []
    for file in group:
        written = _write_file(user, form, strict, store, file, show_progress)
        results.append(written)
        if written.error and _ends_import(written.error, keep_going=keep_going):
            break
    return results


def _write_file(
    user: str,
    form: str,
    strict: bool,
    store: SessionStore,
    file: Sequence[Outline],
    show_progress: Callable[[int], object],
) -> _Written:
    """Write the sessions of a file.

    Raises KeyboardInterrupt with the arguments of ``_Import.count``.
    """
    where = str(file[0].path)
    written: list[tuple[Outline, Extended]] = []
    names: dict[str, str] = {}  # of sessions of the file, here
    session = None
    before = 0  # events that the session had
    events = 0  # of the sessions that are written
    try:
        places = [outline.place for outline in file]
        transcripts = at_places(file[0].path, places, format=form, strict=strict)
        for outline, transcript in zip(file, transcripts, strict=True):
            session = store.session(user_id=user, session_id=outline.session)
            before = _head(session)
            result = append_transcript(
                session,
                transcript,
                where=where,
                names=names,
                progress=partial(_add_progress, show_progress, events),
            )
            written.append((outline, result))
            names[outline.session_id] = outline.session
            events += len(transcript.drafts)
            show_progress(events)
    except (RefoldError, KeyboardInterrupt) as error:
        cut_off = _written_since(session, before) if session else 0
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(written, cut_off) from None
        return _Written(where, written, error, cut_off)
    return _Written(where, written)


def _ends_import(error: RefoldError, *, keep_going: bool) -> bool:
    """Whether no other file is imported after this error."""
    return not keep_going or _concerns_all_files(error)


def _concerns_all_files(error: RefoldError | None) -> bool:
    """Whether this is a failure of the store or of the user."""
    return isinstance(error, (errors.StoreUnavailable, errors.Frozen))


def _failure(written: _Written) -> ImportFailed:
    """Return the error of a file, with its name once."""
    why = str(written.error).removeprefix(f"{written.where}: ")
    return ImportFailed(written.where, why)


def _events(outlines: Sequence[Outline]) -> int:
    """Return the number of events in transcripts."""
    return sum(outline.events for outline in outlines)


def _events_of_group(group: _Group) -> int:
    """Return the number of events in the files of a group."""
    return sum(_events(file) for file in group)


def _add_progress(
    show_progress: Callable[[int], object], before: int, events: int
) -> object:
    """Show the progress of a file; ``before`` counts events of earlier sessions."""
    return show_progress(before + events)


def _written_since(session: Session, before: int) -> int | None:
    """Return the number of events after ``before``; None if the store cannot tell."""
    try:
        return session.head().seq - before
    except errors.StoreUnavailable:
        return None
    except RefoldError:  # it does not exist, or is erased
        return 0


def _head(session: Session) -> int:
    """Return the number of a session's events; 0 for a session that does not exist."""
    with suppress(RefoldError):
        return session.head().seq
    return 0


def _rows(work: _Import) -> Iterator[tuple[str, list[str], list[Path]]]:
    """Return each session with its name, the numbers of its files, and these files."""
    results: dict[str, list[Extended]] = {}
    files: dict[str, list[Path]] = {}
    for outline, result in work.sessions:
        results.setdefault(outline.session, []).append(result)
        files.setdefault(outline.session, []).append(outline.path)
    for name, parts in results.items():
        numbers = [
            values.number(sum(part.events for part in parts)),
            values.number(sum(part.duplicates for part in parts)),
            values.number(sum(part.redactions.total() for part in parts)),
        ]
        yield name, numbers, files[name]


def _show_sessions(screen: output.Screen, work: _Import) -> None:
    """Print a table of the sessions.

    Names the files of several sessions, unless each session has the name of its file.
    """
    rows = list(_rows(work))
    names = ["session", "#new", "#already there", "#redacted"]
    names_files = len(rows) > 1 and any(
        file.stem != name for name, _, files in rows for file in files
    )
    table: list[list[output.Part]] = []
    if names_files:
        names.append("file")
        all_files = [file.absolute() for _, _, files in rows for file in files]
        folder = os.path.commonpath([file.parent for file in all_files])
    for name, numbers, files in rows:
        row: list[output.Part] = [name, *numbers]
        if names_files:
            relative = [os.path.relpath(file.absolute(), folder) for file in files]
            row.append(values.visible("\n".join(relative)))
        table.append(row)
    screen.table(names, table)


def _show(screen: output.Screen, work: _Import) -> None:
    """Print a table of the sessions, the totals, and the problems."""
    if work.sessions:
        _show_sessions(screen, work)
        screen.line("")
    redactions = work.redactions.total()
    screen.line(
        (f"{counted(work.events, 'event')} written", "bold"),
        f" to {counted(len(work.names), 'session')}",
        f", {work.duplicates:,} already there",
        f", {counted(redactions, 'value')} redacted" if redactions else "",
    )
    formats = sorted({outline.format for outline, _ in work.sessions})
    if formats:
        screen.line((f"format: {', '.join(formats)}", "dim"))
    if redactions:
        screen.line(("redacted: ", "dim"), (values.type_counts(work.redactions), "red"))
    if work.failed:
        failed = counted(len({error.where for error in work.failed}), "file")
        screen.line((f"{failed} not imported; stderr says why", "bold red"))
    if work.damaged:
        damaged = counted(len(work.damaged), "damaged place")
        screen.line((f"{damaged} in the files; stderr names each", "bold red"))
    reasons: dict[str, list[str]] = {}
    for skipped in work.skipped:
        reasons.setdefault(skipped.why, []).append(skipped.where)
    for why, places in reasons.items():
        more = f" and {len(places) - 1:,} more" if len(places) > 1 else ""
        screen.line(
            (f"skipped {len(places):,} × ", "yellow"),
            output.shown(why),
            end=[(f"({places[0]}{more})", "dim")],
        )
