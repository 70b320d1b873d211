"""``refold import``: transcripts of other programs into the log."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from refold.adapters.cli import options, output
from refold.adapters.display import values
from refold.adapters.importers import (
    Outline,
    check_format,
    formats,
    named,
    outlines,
    read,
    with_sub_agents,
)
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
    from concurrent.futures import Executor

    from refold.adapters.importers import Skipped
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
            help="Files with transcripts, or folders of them.  The sub-agents of a "
            "session of Claude Code come with it.",
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
            help="Read every file as this format: auto, claude-code, codex, openai, "
            "anthropic, tau-bench, swe-agent, letta, inspect, atif, otlp, refold, or "
            "one that an installed package adds.",
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
            "in the file, name each damaged line, and exit with 1.",
        ),
    ] = False,
    progress: Annotated[
        bool,
        typer.Option(
            "--progress", help="Show progress even if stderr is not a terminal."
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
    shows = not call.as_json and (progress or sys.stderr.isatty())
    work = _Import(user, form, keep_going=keep_going, strict=strict, shows=shows)
    try:
        outlines_to_write = work.read(paths, session)
        if outlines_to_write or not work.failed:
            store = call.store(new=True)
            if jobs is None and store.open_again is not None:
                jobs = _default_jobs(paths, outlines_to_write)
            work.write(store, outlines_to_write, call.executor(jobs or 1))
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
    code = 1 if work.failed or work.damaged else 0
    return output.Result(value, partial(_show, work=work), code)


# Below this number of events, a second process costs more than it saves.
_FEWEST_FOR_JOBS: Final = 2_000
_MOST_DEFAULT_JOBS: Final = 8  # more would wait for the database


def _default_jobs(paths: Sequence[Path], sessions: Sequence[Outline]) -> int:
    """Return the number of processes for these paths: 1, or one for each core.

    sessions: those to write.
    """
    files = {outline.path for outline in sessions}
    parts = {(outline.session, outline.path) for outline in sessions}
    names = {name for name, _ in parts}
    events = sum(outline.events for outline in sessions)
    has_folder = any(path.is_dir() for path in paths)
    # Files with parts of one session are imported in their order.
    if not has_folder or events < _FEWEST_FOR_JOBS or len(parts) > len(names):
        return 1
    return max(1, min(_cores(), len(files), _MOST_DEFAULT_JOBS))


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(slots=True)
class _Import:
    """The options of an import, and its results so far."""

    user: str
    form: str
    keep_going: bool
    strict: bool
    shows: bool
    sessions: list[tuple[Outline, Extended]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    damaged: list[Skipped] = field(default_factory=list)
    failed: list[ImportFailed] = field(default_factory=list)
    cut_off: int = 0  # events written of sessions that are not whole

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
                try:
                    transcripts = read(path, format=self.form, strict=self.strict)
                except ImportFailed as error:
                    self._fail(error, others=len(files) > 1)
                    transcripts = []
                sessions += outlines(path, transcripts)
                for transcript in transcripts:
                    self._report(transcript.skipped)
                progress.advance("read", 1)
        with_names = named(sessions, session, self._fail)
        return [outline for outline in with_names if outline.events]

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
        sessions: Sequence[Outline],
        executor: Executor | None,
    ) -> None:
        """Write the sessions, a file at a time."""
        total = sum(outline.events for outline in sessions)
        by_file = groupby(sessions, key=lambda outline: outline.path)
        files = [tuple(outlines) for _, outlines in by_file]
        if executor is not None:  # no process begins a long file at the end
            files.sort(key=_events, reverse=True)
        write_file = partial(_write_file, self.user, self.form, self.strict)
        with output.Progress(total, of="events", shows=self.shows) as progress:

            def show_progress(file: Sequence[Outline], events: int) -> None:
                progress.reach(file, file[0].session, events)

            for written in spread(store, write_file, files, executor, show_progress):
                self.count(written.sessions, written.cut_off)
                error = written.error
                # A failure of the store or of the user concerns every file.
                if isinstance(error, (errors.StoreUnavailable, errors.Frozen)):
                    why = self.reason(str(error))
                    raise ImportFailed(written.where, why) from error
                if error is not None:
                    why = str(error).removeprefix(f"{written.where}: ")
                    failure = ImportFailed(written.where, why)
                    self._fail(failure, others=len(sessions) > 1)
        places = {outline: number for number, outline in enumerate(sessions)}
        self.sessions.sort(key=lambda written: places[written[0]])

    def count(
        self, sessions: Sequence[tuple[Outline, Extended]] = (), cut_off: int = 0
    ) -> None:
        """Count complete sessions, and the events of an incomplete one."""
        self.sessions += sessions
        for _, result in sessions:
            self._report(result.skipped)
        self.cut_off += cut_off

    def reason(self, why: str, then: str = "") -> str:
        """Return why an import ended, what it wrote until then, and what to do."""
        sentence = why
        if self.events:
            complete = counted(len(self.names), "session")
            written = counted(self.events, "event")
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
    cut_off:  the number of events that were written of an incomplete session.
    """

    where: str
    sessions: list[tuple[Outline, Extended]]
    error: RefoldError | None = None
    cut_off: int = 0


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
        transcripts = read(file[0].path, format=form, strict=strict)
        for outline in file:
            transcript = transcripts[outline.place]
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
    except IndexError:
        why = "changed while it was imported: import it again"
        return _Written(where, written, ImportFailed(where, why))
    except (RefoldError, KeyboardInterrupt) as error:
        cut_off = _head(session) - before if session else 0
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(written, cut_off) from None
        return _Written(where, written, error, cut_off)
    return _Written(where, written)


def _events(file: Sequence[Outline]) -> int:
    """Return the number of events of a file."""
    return sum(outline.events for outline in file)


def _add_progress(
    show_progress: Callable[[int], object], before: int, events: int
) -> object:
    """Show the progress of a file; ``before`` counts events of earlier sessions."""
    return show_progress(before + events)


def _head(session: Session) -> int:
    """Return the number of a session's events; 0 for a session that does not exist."""
    with suppress(RefoldError):
        return session.head().seq
    return 0


def _rows(work: _Import) -> Iterator[list[str]]:
    """Return a row for each session, with its name and the numbers of its files."""
    results: dict[str, list[Extended]] = {}
    for outline, result in work.sessions:
        results.setdefault(outline.session, []).append(result)
    for name, parts in results.items():
        yield [
            name,
            values.number(sum(part.events for part in parts)),
            values.number(sum(part.duplicates for part in parts)),
            values.number(sum(part.redactions.total() for part in parts)),
        ]


def _show(screen: output.Screen, work: _Import) -> None:
    """Print a table of the sessions, the totals, and the problems."""
    if work.sessions:
        names = ("session", "#new", "#already there", "#redacted")
        screen.table(names, _rows(work))
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
            (f"  ({places[0]}{more})", "dim"),
        )
