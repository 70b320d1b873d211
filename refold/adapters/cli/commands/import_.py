"""``refold import``: transcripts of other programs into the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.options import Json, NewSession, Transcripts, User
from refold.adapters.cli.output import print_json
from refold.adapters.cli.wording import counted, number, types

if TYPE_CHECKING:
    from refold.adapters.cli.naming import Named
    from refold.adapters.cli.progress import Progress
    from refold.adapters.cli.screen import Screen
    from refold.adapters.importers import Skipped, Transcript
    from refold.store import SessionStore
    from refold.store.extending import Extended


def import_(
    context: typer.Context,
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH…", help="Files with transcripts.")
    ],
    user: User,
    session: NewSession = None,
    form: Annotated[
        Transcripts, typer.Option("--format", help="Of what program they are.")
    ] = Transcripts.AUTO,
    as_json: Json = False,
) -> None:
    """Bring transcripts into the log, each as a session.

    What they hold is redacted and size-guarded.  Importing again adds nothing, and of
    a transcript that has grown only what is new.  All files are read before anything
    is written.
    """
    from refold.adapters.cli.naming import named
    from refold.adapters.cli.progress import Progress

    read = _read(paths, form)
    wanted = [item for item in named(read, session) if item.transcript.drafts]
    skipped = [item for _, found in read for one in found for item in one.skipped]
    with opening.new_or_existing(context) as store:
        for item in wanted:
            store.session(user, item.session)
        total = sum(len(item.transcript.drafts) for item in wanted)
        with Progress(total) as progress:
            done = _Done()
            for item in wanted:
                _extend(store, user, item, done, progress)
    if as_json:
        print_json(_as_json(done, skipped))
    else:
        _show(done, skipped)


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


def _read(
    paths: Sequence[Path], form: Transcripts
) -> list[tuple[Path, list[Transcript]]]:
    from refold.adapters.importers import read

    different = {path.absolute(): path for path in paths}.values()
    return [(path, read(path, format=form.value)) for path in different]


def _extend(
    store: SessionStore, user: str, item: Named, done: _Done, progress: Progress
) -> None:
    """Bring one transcript in; if it fails, say what has been written before."""
    from refold.domain.errors import ImportFailed, RefoldError
    from refold.store.extending import extend

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


def _as_json(done: _Done, skipped: Sequence[Skipped]) -> dict[str, object]:
    return {
        "sessions": [item.session for item, _ in done.sessions],
        "events": done.events,
        "duplicates": done.duplicates,
        "redactions": dict(sorted(done.redactions.items())),
        "skipped": [{"where": item.where, "why": item.why} for item in skipped],
    }


def _show(done: _Done, skipped: Sequence[Skipped]) -> None:
    from refold.adapters.cli.screen import Screen

    screen = Screen()
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
    from refold.adapters.cli.screen import shown

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
