"""``refold import``: transcripts of other programs into the log."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from refold.adapters.cli import options, output
from refold.adapters.importers import Outline, named, outlines, read
from refold.domain.errors import (
    Frozen,
    ImportFailed,
    RefoldError,
    StoreUnavailable,
    counted,
)
from refold.store.sessions import take_in

if TYPE_CHECKING:
    from refold.adapters.importers import Skipped, Transcript
    from refold.store import Session, SessionStore
    from refold.store.sessions import Extended


def import_(
    call: options.Call,
    paths: list[Path],
    user: str,
    session: str | None = None,
    form: options.Transcripts = "auto",
    keep_going: bool = False,
    progress: bool = False,
) -> output.Result:
    """Import transcripts, each as a session."""
    if keep_going and session is not None:
        raise typer.BadParameter(
            "--session numbers sessions by their files, and --keep-going may leave "
            "files out: give one of them"
        )
    shows = not call.as_json and (progress or sys.stderr.isatty())
    work = _Import(user, form, keep_going=keep_going, shows=shows)
    try:
        wanted = work.read(paths, session)
        if wanted or not work.failed:
            work.write(call.store(new=True), wanted)
    except KeyboardInterrupt:
        output.complain(work.reason("interrupted"))
        raise
    told = {
        "sessions": [item.session for item, _ in work.sessions],
        "events": work.events,
        "duplicates": work.duplicates,
        "redactions": dict(sorted(work.redactions.items())),
        "skipped": [{"where": item.where, "why": item.why} for item in work.skipped],
        "failed": [{"where": one.where, "why": one.why} for one in work.failed],
    }
    return output.Result(
        told, lambda screen: _show(screen, work), int(bool(work.failed))
    )


# What is wrong with the store or the user is wrong for every file.
_FATAL: Final = (StoreUnavailable, Frozen)


@dataclass(slots=True)
class _Import:
    """How an import is done, and what came of it so far."""

    user: str
    form: options.Transcripts
    keep_going: bool
    shows: bool
    sessions: list[tuple[Outline, Extended]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    failed: list[ImportFailed] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # of sessions, by the file's
    cut_off: int = 0  # events written of sessions that are not whole

    @property
    def events(self) -> int:
        return self.cut_off + sum(result.events for _, result in self.sessions)

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
        different = list({path.absolute(): path for path in paths}.values())
        found: list[Outline] = []
        with output.Progress(len(different), of="files", shows=self.shows) as progress:
            for path in different:
                try:
                    transcripts = read(path, format=self.form)
                except ImportFailed as error:
                    self._fail(error, others=len(different) > 1)
                    transcripts = []
                found += outlines(path, transcripts)
                self.skipped += [item for one in transcripts for item in one.skipped]
                progress.advance("read", 1)
        return [one for one in named(found, session, self._fail) if one.events]

    def _fail(self, error: ImportFailed, *, others: bool = True) -> None:
        """Say that a file is not imported; raises it, unless the others go on."""
        if self.keep_going:
            self.failed.append(error)
            output.complain(str(error))
            return
        then = "--keep-going imports the other files" if others else ""
        raise ImportFailed(error.where, self.reason(error.why, then), seq=error.seq)

    def write(self, store: SessionStore, wanted: Sequence[Outline]) -> None:
        """Write them, one file after the other."""
        total = sum(item.events for item in wanted)
        with output.Progress(total, of="events", shows=self.shows) as progress:
            for path, items in groupby(wanted, key=lambda item: item.path):
                try:
                    transcripts = read(path, format=self.form)
                    for item in items:
                        one = transcripts[item.place]
                        self._write(store, item, one, progress)
                except ImportFailed as error:
                    self._fail(error, others=len(wanted) > 1)
                except _FATAL as error:
                    raise ImportFailed(str(path), self.reason(str(error))) from error
                except IndexError:
                    why = "changed while it was imported: import it again"
                    self._fail(ImportFailed(str(path), why))

    def _write(
        self,
        store: SessionStore,
        item: Outline,
        transcript: Transcript,
        progress: output.Progress,
    ) -> None:
        session = store.session(user_id=self.user, session_id=item.session)
        where, before = str(item.path), _head(session)
        try:
            with progress.of(item.session, len(transcript.drafts)) as advance:
                result = take_in(
                    session, transcript, where=where, progress=advance, names=self.names
                )
        except (RefoldError, KeyboardInterrupt) as error:
            self.cut_off += _head(session) - before
            if isinstance(error, (KeyboardInterrupt, *_FATAL)):
                raise
            why = str(error).removeprefix(f"{where}: ")
            raise ImportFailed(where, why) from error
        self.names[item.session_id] = item.session
        self.skipped += result.skipped
        self.sessions.append((item, result))

    def reason(self, why: str, then: str = "") -> str:
        """``why`` an import ended, what was written until then, and what to do."""
        written = "" if "nothing was written" in why else "; nothing was written"
        if self.events:
            whole = counted(len(self.sessions), "session")
            written = f"; {counted(self.events, 'event')} written, {whole} whole"
            then = then or "import again to add the rest"
        return why + written + (f": {then}" if then else "")


def _head(session: Session) -> int:
    """How many events it has; one that is not there has none."""
    with suppress(RefoldError):
        return session.head().seq
    return 0


def _row(item: Outline, result: Extended) -> list[str]:
    counts = (result.events, result.duplicates, result.redactions.total())
    return [item.session, *map(output.number, counts)]


def _show(screen: output.Screen, done: _Import) -> None:
    if done.sessions:
        names = ("session", "#new", "#already there", "#redacted")
        screen.table(names, (_row(*one) for one in done.sessions))
        screen.line("")
    found = done.redactions.total()
    screen.line(
        (f"{counted(done.events, 'event')} written", "bold"),
        f" to {counted(len(done.sessions), 'session')}",
        f", {done.duplicates:,} already there",
        f", {counted(found, 'value')} redacted" if found else "",
    )
    formats = sorted({item.format for item, _ in done.sessions})
    if formats:
        screen.line((f"format: {', '.join(formats)}", "dim"))
    if found:
        screen.line(("redacted: ", "dim"), (output.types(done.redactions), "red"))
    if done.failed:
        failed = counted(len({one.where for one in done.failed}), "file")
        screen.line((f"{failed} not imported; stderr says why", "bold red"))
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
