"""``refold capture``: appends the transcripts of a coding agent while it works."""

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
# A capture that has not looked for new entries for this time may be stopped.
_STALLED_SEC: Final = 60
# The time between two attempts to follow a folder that another process still captures.
_RETRY_SEC: Final = 0.5


def capture(
    call: options.Call,
    program: Annotated[
        Program | None,
        typer.Argument(
            metavar="PROGRAM", help="Program to follow: claude-code or codex."
        ),
    ] = None,
    # Codex appends a description of the turn to the command of its hook.
    _event: Annotated[str | None, typer.Argument(metavar="JSON", hidden=True)] = None,
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
    lock: Annotated[
        int | None,
        typer.Option(
            hidden=True,
            metavar="N",
            help="For hooks: the descriptor of the lock on the folder.",
        ),
    ] = None,
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
    show_status: Annotated[
        bool,
        typer.Option("--status", help="Show captured sessions and pending entries."),
    ] = False,
) -> output.Result | None:
    """Record what a coding agent writes, while it works.

    Follows its transcripts until Ctrl-C.  Each entry is redacted and appended
    exactly once, whatever happens to the files.  After a stop, it continues where
    it was.
    """
    modes = {
        "--once": once,
        "--linger": linger is not None,
        "--install": install,
        "--uninstall": uninstall,
        "--status": show_status,
    }
    chosen = [option for option, is_chosen in modes.items() if is_chosen]
    if len(chosen) > 1:
        raise typer.BadParameter(f"give only one of {' and '.join(chosen)}")
    if show_status:
        return _status()
    if program is not None and uninstall:
        return _uninstall(program, _transcripts(program, folder))
    if program is None or user is None:
        required = "a PROGRAM" if uninstall else "a PROGRAM and --user"
        raise typer.BadParameter(f"give {required}")
    is_valid = linger is None or linger >= 0  # false for NaN
    if not is_valid:
        raise typer.BadParameter("--linger takes a number of seconds, from 0 on")
    url = absolute(call.url)
    folder = _transcripts(program, folder)
    if install:
        return _install(program, url=url, user=user, folder=folder)
    if not folder.exists():
        output.complain(f"there is no folder {folder} yet: name another with --folder")
    elif not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder: name one with --folder")
    store = call.store(new=True, long_running=not once and linger is None)
    follower = Follower(store, program, user_id=user, folder=folder, url=url)
    stop = Event()
    with stopped_by_signals(stop.set):
        if once:
            return _catch_up(follower)
        _follow(follower, stop, linger=linger, lock=lock)
    return None


def _transcripts(program: Program, folder: Path | None) -> Path:
    """Return the folder of the transcripts, by default that of the program."""
    if folder is None:
        folder = folder_of(program)
    return folder.expanduser().absolute()


def _catch_up(follower: Follower) -> output.Result:
    """Append the new entries, unless another process captures them."""
    waited = follower.state.waiting()
    counts = follower.catch_up()
    if counts is None:  # another process captures the folder
        return _captured_elsewhere(follower, waited)
    appended, refused = counts
    # ``follower`` also has the refusals of earlier processes, oldest first.
    refusals: list[Refusal] = []
    if refused:
        refusals = follower.refusals[-refused:]
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


def _captured_elsewhere(follower: Follower, waited: float) -> output.Result:
    """Report that another process captures the folder.

    waited: the seconds for which a request to look for entries has waited.
    """
    holder = follower.state.holder()
    pid = holder.pid if holder else 0
    process = f"process {pid}" if pid else "another process"
    if waited > _STALLED_SEC:
        output.complain(
            f"{process} has not looked for {waited:.0f} s: it may be stopped, or "
            "wait for its store; `refold capture --status` shows pending entries"
        )
    value = {
        "appended": 0,
        "refused": 0,
        "refusals": [],
        "unreadable": [],
        "captured_by": pid,
    }
    text = f"{process} already captures {follower.folder} and appends new entries"
    return output.Result(value, text)


def _follow(
    follower: Follower, stop: Event, *, linger: float | None, lock: int | None
) -> None:
    """Append new entries until ``stop``, or for ``linger`` seconds after the last.

    While another process captures the folder for a limited time, this one waits.

    lock: the descriptor of a lock on the folder that this process inherited.

    Raises AlreadyCaptured if another process captures it without a limit.
    """
    has_complained = False
    while not stop.is_set():
        try:
            with follower.alone(inherited=lock, temporary=linger is not None):
                if linger is None:
                    output.complain(f"following {follower.folder}; stop with Ctrl-C")
                follower.run(stop, linger=linger)
        except AlreadyCaptured as captured:
            if not captured.temporary:
                raise
            if not has_complained:
                output.complain(f"{captured}, but not for long: waiting for its end")
            has_complained = True
            stop.wait(_RETRY_SEC)
        else:
            # While this process was ending, another one may have asked it to look for
            # new entries, and exited.
            follower.answer_requests()
            return


def _status() -> output.Result:
    """Return the state of all captures."""
    captures = status()

    def show(screen: output.Screen) -> None:
        for capture in captures:
            _show_status(screen, capture)

    return output.Result(captures, show if captures else "nothing is captured yet")


def _show_status(screen: output.Screen, capture: dict[str, Any]) -> None:
    """Print the state of a capture."""
    state = "running" if capture["running"] else "not running"
    entries = counted(capture["appended"], "entry", "entries")
    refused = f"{capture['refused']:,} refused"
    waiting = f"{values.size(capture['bytes'])} waiting"
    client = capture["client"] or "a capture that has not looked yet"
    screen.line((client, "bold"), f", {state}: {entries}, {refused}, {waiting}")
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
    """Add the hook to the program's settings."""
    from refold.adapters.cli import client_settings

    path = client_settings.install(program, url=url, user=user, folder=folder)
    return output.Result(
        {"file": str(path)}, f"{program} runs refold after each turn: {path}"
    )


def _uninstall(program: Program, folder: Path) -> output.Result:
    """Remove the hook from the program's settings."""
    from refold.adapters.cli import client_settings

    path = client_settings.uninstall(program, folder)
    return output.Result({"file": str(path)}, f"{program} does not run refold: {path}")
