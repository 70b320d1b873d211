"""``refold import``: transcripts of other programs into the log."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.adapters.cli import options, output
from refold.adapters.display import values
from refold.adapters.importers import Outline, named, outlines, read, with_sub_agents
from refold.domain import errors
from refold.domain.errors import ImportFailed, RefoldError, counted
from refold.store.session.imports import take_in
from refold.store.work.jobs import spread

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from refold.adapters.importers import Skipped
    from refold.store import Session, SessionStore
    from refold.store.session.imports import Extended


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
        options.Transcripts,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Read every file as this format: auto, claude-code, codex, openai, "
            "anthropic, tau-bench, swe-agent, letta, inspect, atif, otlp, refold.",
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
    jobs: options.JobsOption = 1,
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
        wanted = work.read(paths, session)
        if wanted or not work.failed:
            work.write(call.store(new=True), wanted, call.executor(jobs))
    except KeyboardInterrupt as error:
        work.took(*error.args)
        output.complain(work.reason("interrupted"))
        raise
    told = {
        "sessions": work.names,
        "events": work.events,
        "duplicates": work.duplicates,
        "redactions": dict(sorted(work.redactions.items())),
        "skipped": [{"where": item.where, "why": item.why} for item in work.skipped],
        "damaged": [{"where": item.where, "why": item.why} for item in work.damaged],
        "failed": [{"where": one.where, "why": one.why} for one in work.failed],
    }
    incomplete = bool(work.failed or work.damaged)
    return output.Result(told, partial(_show, done=work), int(incomplete))


@dataclass(slots=True)
class _Import:
    """How an import is done, and what came of it so far."""

    user: str
    form: options.Transcripts
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
        return sum((result.redactions for _, result in self.sessions), Counter())

    def read(self, paths: Sequence[Path], session: str | None) -> list[Outline]:
        """The sessions there will be, without their events.

        Those are read again when they are written: all at once, they may be more than
        memory holds.
        """
        different = with_sub_agents(paths)
        found: list[Outline] = []
        with output.Progress(len(different), of="files", shows=self.shows) as progress:
            for path in different:
                try:
                    transcripts = read(path, format=self.form, strict=self.strict)
                except ImportFailed as error:
                    self._fail(error, others=len(different) > 1)
                    transcripts = []
                found += outlines(path, transcripts)
                for one in transcripts:
                    self._report(one.skipped)
                progress.advance("read", 1)
        return [one for one in named(found, session, self._fail) if one.events]

    def _report(self, skipped: Sequence[Skipped]) -> None:
        """Keep what was left out for the end; print at once where a file is damaged."""
        for item in skipped:
            if item.damaged:
                self.damaged.append(item)
                output.complain(f"{item.where} {item.why}")
            else:
                self.skipped.append(item)

    def _fail(self, error: ImportFailed, *, others: bool = True) -> None:
        """Say that a file is not imported; raises it, unless the others go on."""
        if self.keep_going:
            self.failed.append(error)
            output.complain(str(error))
            return
        then = "--keep-going imports the other files" if others else ""
        raise ImportFailed(error.where, self.reason(error.why, then), seq=error.seq)

    def write(
        self, store: SessionStore, wanted: Sequence[Outline], executor: Executor | None
    ) -> None:
        """Write them, a file at a time."""
        total = sum(item.events for item in wanted)
        files = [tuple(some) for _, some in groupby(wanted, key=lambda one: one.path)]
        with output.Progress(total, of="events", shows=self.shows) as progress:
            take = partial(_taken, self.user, self.form, self.strict)
            told = lambda f, done: progress.reach(f, f[0].session, done)  # noqa: E731  # short
            done = spread(store, take, files, executor, told)
            for where, whole, error, written in done:
                self.took(whole, written)
                # What is wrong with the store or the user is wrong for every file.
                if isinstance(error, (errors.StoreUnavailable, errors.Frozen)):
                    raise ImportFailed(where, self.reason(str(error))) from error
                if error is not None:
                    why = str(error).removeprefix(f"{where}: ")
                    self._fail(ImportFailed(where, why), others=len(wanted) > 1)

    def took(
        self, done: Sequence[tuple[Outline, Extended]] = (), written: int = 0
    ) -> None:
        """Count sessions that are whole, and events of one that is not."""
        self.sessions += done
        for _, one in done:
            self._report(one.skipped)
        self.cut_off += written

    def reason(self, why: str, then: str = "") -> str:
        """``why`` an import ended, what was written until then, and what to do."""
        written = "" if "nothing was written" in why else "; nothing was written"
        if self.events:
            whole = counted(len(self.names), "session")
            written = f"; {counted(self.events, 'event')} written, {whole} whole"
            then = then or "import again to add the rest"
        return why + written + (f": {then}" if then else "")


def _taken(
    user: str,
    form: str,
    strict: bool,
    store: SessionStore,
    file: Sequence[Outline],
    told: Any,
) -> tuple[str, list[tuple[Outline, Extended]], RefoldError | None, int]:
    """Write the sessions of a file; those, what ended it, and the events of another."""
    done: list[tuple[Outline, Extended]] = []
    names = dict[str, str]()
    where, session, before, walked = str(file[0].path), None, 0, 0
    try:
        transcripts = read(file[0].path, format=form, strict=strict)
        for item in file:
            one = transcripts[item.place]
            session = store.session(user_id=user, session_id=item.session)
            how: Any = {"where": where, "names": names}
            how["progress"] = lambda count, before=walked: told(before + count)
            before = _head(session)
            done.append((item, take_in(session, one, **how)))
            names[item.session_id] = item.session
            walked += len(one.drafts)
            told(walked)
    except IndexError:
        why = "changed while it was imported: import it again"
        return where, done, ImportFailed(where, why), 0
    except (RefoldError, KeyboardInterrupt) as error:
        written = _head(session) - before if session else 0
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(done, written) from None
        return where, done, error, written
    return where, done, None, 0


def _head(session: Session) -> int:
    """How many events it has; one that is not there has none."""
    with suppress(RefoldError):
        return session.head().seq
    return 0


def _rows(done: _Import) -> Iterator[list[str]]:
    """Each session's name, and what its files brought."""
    results: dict[str, list[Extended]] = {}
    for item, result in done.sessions:
        results.setdefault(item.session, []).append(result)
    for name, parts in results.items():
        yield [
            name,
            values.number(sum(part.events for part in parts)),
            values.number(sum(part.duplicates for part in parts)),
            values.number(sum(part.redactions.total() for part in parts)),
        ]


def _show(screen: output.Screen, done: _Import) -> None:
    if done.sessions:
        names = ("session", "#new", "#already there", "#redacted")
        screen.table(names, _rows(done))
        screen.line("")
    found = done.redactions.total()
    screen.line(
        (f"{counted(done.events, 'event')} written", "bold"),
        f" to {counted(len(done.names), 'session')}",
        f", {done.duplicates:,} already there",
        f", {counted(found, 'value')} redacted" if found else "",
    )
    formats = sorted({item.format for item, _ in done.sessions})
    if formats:
        screen.line((f"format: {', '.join(formats)}", "dim"))
    if found:
        screen.line(("redacted: ", "dim"), (values.types(done.redactions), "red"))
    if done.failed:
        failed = counted(len({one.where for one in done.failed}), "file")
        screen.line((f"{failed} not imported; stderr says why", "bold red"))
    if done.damaged:
        damaged = counted(len(done.damaged), "damaged place")
        screen.line((f"{damaged} in the files; stderr names each", "bold red"))
    reasons: dict[str, list[str]] = {}
    for item in done.skipped:
        reasons.setdefault(item.why, []).append(item.where)
    for why, places in reasons.items():
        more = f" and {len(places) - 1:,} more" if len(places) > 1 else ""
        screen.line(
            (f"skipped {len(places):,} × ", "yellow"),
            output.shown(why),
            (f"  ({places[0]}{more})", "dim"),
        )
