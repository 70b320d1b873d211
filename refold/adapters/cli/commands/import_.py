"""``refold import``: transcripts of other programs into the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, get_args

import typer

from refold.adapters.cli.options import Call, NewSession, Transcripts, User, option
from refold.adapters.cli.output import (
    Progress,
    Result,
    Screen,
    counted,
    number,
    shown,
    types,
)
from refold.adapters.importers import read
from refold.domain.errors import ImportFailed, RefoldError
from refold.domain.ids import MAX_ID
from refold.store.sessions import extend

if TYPE_CHECKING:
    from refold.adapters.importers import Skipped, Transcript
    from refold.store import Session
    from refold.store.sessions import Extended


_FORMATS = ", ".join(get_args(Transcripts))


def import_(
    call: Call,
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH…", help="Files with transcripts.")
    ],
    user: User,
    session: NewSession = None,
    form: Transcripts = option(
        "auto", f"Read them as this program's: {_FORMATS}.", "--format", of="FORMAT"
    ),
) -> Result:
    """Bring transcripts into the log, each as a session.

    What they hold is redacted and size-guarded.  Importing again adds nothing, and of
    a transcript that has grown only what is new.  All files are read before anything
    is written.
    """
    different = {path.absolute(): path for path in paths}.values()
    found = [(path, read(path, format=form)) for path in different]
    wanted = [item for item in named(found, session) if item.transcript.drafts]
    skipped = [item for _, all_ in found for one in all_ for item in one.skipped]
    store, done = call.store(new=True), _Done()
    opened = [store.session(user, item.session) for item in wanted]
    with Progress(sum(len(item.transcript.drafts) for item in wanted)) as progress:
        for one, item in zip(opened, wanted, strict=True):
            done.extend(one, item, progress)
    told = {
        "sessions": [item.session for item, _ in done.sessions],
        "events": done.events,
        "duplicates": done.duplicates,
        "redactions": dict(sorted(done.redactions.items())),
        "skipped": [{"where": item.where, "why": item.why} for item in skipped],
    }
    return Result(told, lambda screen: _show(screen, done, skipped))


@dataclass(slots=True)
class _Done:
    """What was written so far, session by session."""

    sessions: list[tuple[Named, Extended]] = field(default_factory=list)
    events: int = 0
    duplicates: int = 0
    redactions: Counter[str] = field(default_factory=Counter)

    def extend(self, session: Session, item: Named, progress: Progress) -> None:
        """Bring one transcript in; if it fails, say what has been written before."""
        where, drafts = str(item.path), item.transcript.drafts
        with progress.of(item.session, len(drafts)) as advance:
            try:
                result = extend(session, drafts, where=where, progress=advance)
            except RefoldError as error:
                why = str(error).removeprefix(f"{where}: ")
                raise ImportFailed(where, self._reason(why, advance.written)) from error
        self.sessions.append((item, result))
        self.events += result.events
        self.duplicates += result.duplicates
        self.redactions += result.redactions

    def _reason(self, why: str, written: int) -> str:
        events, sessions = self.events + written, len(self.sessions)
        if not events:
            said = "" if "nothing was written" in why else "; nothing was written"
            return f"{why}{said}"
        return (
            f"{why}; {counted(events, 'event')} of this import were written before, "
            f"{counted(sessions, 'session')} whole: importing again goes on from there"
        )


def _show(screen: Screen, done: _Done, skipped: Sequence[Skipped]) -> None:
    if done.sessions:
        screen.table(
            ("session", "format", "#events", "#there before", "redacted", "#skipped"),
            (
                (
                    item.session,
                    item.transcript.format,
                    number(result.events),
                    number(result.duplicates),
                    types(result.redactions) or "–",
                    number(len(item.transcript.skipped)),
                )
                for item, result in done.sessions
            ),
        )
        screen.line("")
    found = sum(done.redactions.values())
    screen.line(
        (counted(done.events, "event"), "bold"),
        f" of {counted(len(done.sessions), 'session')} written",
        f", {done.duplicates:,} were there before",
        f", {counted(found, 'value')} redacted" if found else "",
    )
    reasons: dict[str, list[str]] = {}
    for item in skipped:
        reasons.setdefault(item.why, []).append(item.where)
    for why, places in reasons.items():
        several = len(places) > 1
        more = f" and {len(places) - 1:,} more" if several else ""
        screen.line(
            (f"left out {len(places):,} × " if several else "left out ", "yellow"),
            shown(why),
            (f"  ({places[0]}{more})", "dim"),
        )


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
    given = [(path, one) for path, transcripts in read for one in transcripts]
    mains = [item for item in given if item[1].parent_session_id is None]
    names = _main_names(mains, session)
    keys = ((path, one.session_id) for path, one in mains)
    called = dict(zip(keys, names, strict=True))
    unused = iter(names)
    made: dict[str, Named] = {}
    for path, one in given:
        parent = one.parent_session_id
        if parent is None:
            name = next(unused)
        else:
            suffix = one.session_id.removeprefix(f"{parent}~") or "sub-agent"
            name = f"{called.get((path, parent), parent)}~{suffix}"
        if name in made:
            first = made[name].path
            both = f"twice in it and in {first}" if first != path else "twice in it"
            raise ImportFailed(
                str(path),
                f"session {name!r} is {both}: import one of them on its own with "
                "--session NAME",
            )
        made[name] = Named(path, one, name)
    return list(made.values())


def _main_names(
    mains: Sequence[tuple[Path, Transcript]], session: str | None
) -> list[str]:
    """What each conversation is called; by its file, with a number, if by nobody."""
    if session is not None:
        several = [f"{session}-{number:04}" for number in range(1, len(mains) + 1)]
        return [session] if len(mains) == 1 else several
    nameless: Counter[Path] = Counter()
    names = []
    for path, transcript in mains:
        nameless[path] += not transcript.session_id
        printable = "".join(c if c.isprintable() else "?" for c in path.stem)
        stem = printable.lstrip("_")[: MAX_ID - _ROOM] or "session"
        names.append(transcript.session_id or f"{stem}-{nameless[path]:04}")
    return names
