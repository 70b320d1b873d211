"""``refold import``: transcripts of other programs into the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
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
    from refold.store import SessionStore
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
        "auto",
        f"Read them as this program's: {_FORMATS}.",
        "--format",
        of="FORMAT",
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
    for item in wanted:
        store.session(user, item.session)
    with Progress(sum(len(item.transcript.drafts) for item in wanted)) as progress:
        for item in wanted:
            _extend(store, user, item, done, progress)
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

    @property
    def events(self) -> int:
        return sum(result.events for _, result in self.sessions)

    @property
    def duplicates(self) -> int:
        return sum(result.duplicates for _, result in self.sessions)

    @property
    def redactions(self) -> Counter[str]:
        return sum((result.redactions for _, result in self.sessions), Counter())


def _extend(
    store: SessionStore, user: str, item: Named, done: _Done, progress: Progress
) -> None:
    """Bring one transcript in; if it fails, say what has been written before."""
    session = store.session(user, item.session)
    where = str(item.path)
    with progress.of(item.session, len(item.transcript.drafts)) as advance:
        try:
            result = extend(
                session, item.transcript.drafts, where=where, progress=advance
            )
        except RefoldError as error:
            raise ImportFailed(
                where, _reason(error, where, done, advance.written)
            ) from error
    done.sessions.append((item, result))


def _reason(error: Exception, where: str, done: _Done, written: int) -> str:
    why = str(error).removeprefix(f"{where}: ")
    events, sessions = done.events + written, len(done.sessions)
    if not events:
        return why if "nothing was written" in why else f"{why}; nothing was written"
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
    _show_skipped(screen, skipped)


def _show_skipped(screen: Screen, skipped: Sequence[Skipped]) -> None:
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
