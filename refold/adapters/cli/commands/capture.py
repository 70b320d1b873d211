"""``refold capture``: what a coding agent writes is appended while it works."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Annotated, Any, Final, Literal

import typer

from refold.adapters.capture_state import absolute
from refold.adapters.cli import options, output
from refold.adapters.cli.commands.compact import stopped_by_signals
from refold.adapters.display import values
from refold.adapters.importers.follower import (
    AlreadyCaptured,
    Follower,
    Refusal,
    Unreadable,
    folder_of,
    status,
)
from refold.domain.errors import counted

Program = Literal["claude-code", "codex"]
# A request that waited longer should have been answered.
_STALLED_SEC: Final = 60
_TAKEOVER_SEC: Final = 0.5  # between two tries


def capture(
    call: options.Call,
    program: Annotated[
        Program | None,
        typer.Argument(
            metavar="PROGRAM", help="Program to follow: claude-code or codex."
        ),
    ] = None,
    _told: Annotated[str | None, typer.Argument(metavar="JSON", hidden=True)] = None,
    user: Annotated[str | None, options.user_option("Name of the user.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Folder of the transcripts.  Default: where the program stores them.",
        ),
    ] = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Append new entries, then exit.  If another process captures, leave "
            "them to it.",
        ),
    ] = False,
    linger: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Follow, and exit after this time without new entries.",
        ),
    ] = None,
    lock: Annotated[int | None, typer.Option(hidden=True)] = None,
    install: Annotated[
        bool,
        typer.Option(
            "--install",
            help="Have the program run a hook after each turn that starts a capture.",
        ),
    ] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Remove that hook.")
    ] = False,
    state: Annotated[
        bool,
        typer.Option("--status", help="Show captured sessions and pending entries."),
    ] = False,
) -> output.Result | None:
    """Record what a coding agent writes, while it works.

    Follows its transcripts until Ctrl-C.  Each entry is redacted and appended
    exactly once, whatever happens to the files.  After a stop, it continues where
    it was.
    """
    asked = {
        "--once": once,
        "--linger": linger is not None,
        "--install": install,
        "--uninstall": uninstall,
        "--status": state,
    }
    chosen = [option for option, is_given in asked.items() if is_given]
    if len(chosen) > 1:
        raise typer.BadParameter(f"give only one of {' and '.join(chosen)}")
    if state:
        return _status()
    if program is None or user is None:
        raise typer.BadParameter("give a PROGRAM and --user")
    if linger is not None and not linger >= 0:  # NaN, too
        raise typer.BadParameter("--linger takes a number of seconds, from 0 on")
    url = absolute(call.url)
    where = (folder or folder_of(program)).expanduser().absolute()
    if install:
        return _install(program, url=url, user=user, folder=where)
    if uninstall:
        return _uninstall(program, where)
    if not where.exists():
        output.complain(f"there is no folder {where} yet: name another with --folder")
    elif not where.is_dir():
        raise typer.BadParameter(f"{where} is no folder: --folder names one")
    store = call.store(new=True)
    follower = Follower(store, program, user_id=user, folder=where, url=url)
    stop = Event()
    with stopped_by_signals(stop.set):
        if once:
            return _catch_up(follower)
        _follow(follower, stop, linger=linger, lock=lock)
    return None


def _catch_up(follower: Follower) -> output.Result:
    waited = follower.state.waiting()
    caught_up = follower.catch_up()
    if caught_up is None:
        holder = follower.state.holder()
        pid = holder.pid if holder else 0
        process = f"process {pid}" if pid else "another process"
        if waited > _STALLED_SEC:
            output.complain(
                f"{process} has not looked for {waited:.0f} s: it may be stopped, or "
                "wait for its store; `refold capture --status` shows what waits"
            )
        return output.Result(
            {
                "appended": 0,
                "refused": 0,
                "refusals": [],
                "unreadable": [],
                "captured_by": pid,
            },
            f"{process} captures {follower.folder} already and appends what is new",
        )
    appended, refused = caught_up
    refusals = follower.refusals[-refused:] if refused else []
    text = f"{counted(appended, 'entry', 'entries')} appended"
    if refused:
        text += f", {counted(refused, 'line')} not captured"
    unreadable = follower.unreadable
    if unreadable:
        text += f", {counted(len(unreadable), 'path')} not readable"
    value = {
        "appended": appended,
        "refused": refused,
        "refusals": [refusal._asdict() for refusal in refusals],
        "unreadable": [problem._asdict() for problem in unreadable],
    }
    return output.Result(value, text, code=1 if refused or unreadable else 0)


def _follow(
    follower: Follower, stop: Event, *, linger: float | None, lock: int | None
) -> None:
    waits = False
    while not stop.is_set():
        try:
            with follower.alone(inherited=lock, temporary=linger is not None):
                if linger is None:
                    output.complain(f"following {follower.folder}; stop with Ctrl-C")
                follower.run(stop, linger=linger)
        except AlreadyCaptured as captured:
            if not captured.temporary:
                raise
            if not waits:
                output.complain(f"{captured}, but not for long: waiting for its end")
            waits = True
            stop.wait(_TAKEOVER_SEC)
        else:
            # Another process may have relied on this one while it ended.
            follower.answer()
            return


def _status() -> output.Result:
    captures = status()

    def show(screen: output.Screen) -> None:
        for capture in captures:
            _show_status(screen, capture)

    return output.Result(captures, show if captures else "nothing is captured yet")


def _show_status(screen: output.Screen, capture: dict[str, Any]) -> None:
    state = "running" if capture["running"] else "not running"
    waiting = values.size(capture["bytes"])
    entries = counted(capture["appended"], "entry", "entries")
    counts = f"{entries}, {capture['refused']:,} refused, "
    client = capture["client"] or "a capture that has not looked yet"
    screen.line((client, "bold"), f", {state}: {counts}{waiting} waiting")
    if capture["user"] is not None:
        user = output.shown(capture["user"])
        folder = output.shown(capture["folder"])
        screen.line("  of ", user, " in ", folder)
    waited = capture["request_waits_sec"]
    if capture["running"] and waited > _STALLED_SEC:
        screen.line(f"  it has not looked for {waited:.0f} s")
    for refusal in capture["refusals"]:
        screen.line("  ", output.shown_in_line(Refusal(**refusal)))
    for problem in capture["unreadable"]:
        screen.line("  ", output.shown_in_line(Unreadable(**problem)))
    if capture["log"]:
        screen.line("  the last process that a hook started wrote:")
        for line in capture["log"]:
            screen.line("    ", output.shown_in_line(line))


def _install(program: Program, *, url: str, user: str, folder: Path) -> output.Result:
    from refold.adapters.cli import client_settings

    path = client_settings.install(program, url=url, user=user, folder=folder)
    return output.Result(
        {"file": str(path)}, f"{program} runs refold after each turn: {path}"
    )


def _uninstall(program: Program, folder: Path) -> output.Result:
    from refold.adapters.cli import client_settings

    path = client_settings.uninstall(program, folder)
    return output.Result({"file": str(path)}, f"{program} does not run refold: {path}")
