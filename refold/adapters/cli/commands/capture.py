"""``refold capture``: what a coding agent writes is appended while it works."""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from pathlib import Path
from threading import Event
from typing import Any, Final, Literal

import typer

from refold.adapters.cli import options, output
from refold.adapters.cli.commands.compact import stopped_by_signals
from refold.adapters.importers.follower import Follower, folder_of, status
from refold.adapters.sql.database import engine_of
from refold.domain.errors import InvalidConfiguration, counted

Program = Literal["claude-code", "codex"]
_HOOKS: Final = ("Stop", "SubagentStop", "PreCompact", "SessionEnd")
_MARK: Final = "# refold capture"


def capture(
    call: options.Call,
    program: Program | None = None,
    _told: str | None = None,
    user: str | None = None,
    folder: Path | None = None,
    once: bool = False,
    install: bool = False,
    uninstall: bool = False,
    state: bool = False,
) -> output.Result | None:
    """Append what a coding agent writes, while it works."""
    if state:
        return _status()
    if program is None or user is None:
        raise typer.BadParameter("give a PROGRAM and --user")
    url = _absolute(call.url)
    where = (folder or folder_of(program)).expanduser().absolute()
    if install or uninstall:
        again = (program, "--user", user, "--folder", str(where), "--once")
        # A server's URL is left to the environment, which keeps its password.
        at = ("--db", url) if url.startswith("sqlite") else ()
        run = [sys.executable, "-m", "refold", *at, "capture"]
        change = _of_claude_code if program == "claude-code" else _of_codex
        path = change(where.parent, [*run, *again] if install else [])
        done = "runs refold after each turn" if install else "does not run refold"
        return output.Result({"file": str(path)}, f"{program} {done}: {path}")
    if not where.exists():
        output.complain(f"there is no folder {where} yet: name another with --folder")
    store, stop = call.store(new=True), Event()
    follower = Follower(store, program, user_id=user, folder=where, url=url)
    with follower.alone(wait=once), stopped_by_signals(stop.set):
        if not once:
            output.complain(f"following {where}; stop with Ctrl-C")
            follower.run(stop)
            return None
        new, refused = follower.look(), follower.refused
    told = f"{counted(new, 'entry', 'entries')} appended"
    return output.Result({"appended": new, "refused_so_far": refused}, told)


def _status() -> output.Result:
    found = status()

    def show(screen: output.Screen) -> None:
        for one in found:
            state = "running" if one["running"] else "not running"
            waits, folder = output.size(one["bytes"]), output.shown(one["folder"])
            told = f"{one['appended']:,} entries, {one['refused']:,} refused, "
            screen.line((one["client"], "bold"), f", {state}: {told}{waits} waiting")
            screen.line("  of ", output.shown(one["user"]), " in ", folder)

    return output.Result(found, show if found else "nothing is captured yet")


def _absolute(url: str) -> str:
    """The URL, which means the same in whatever folder it is used."""
    match engine_of(url):
        case "sqlite", parsed if parsed.database:
            return f"sqlite:///{Path(parsed.database).absolute()}"
    return url


def _of_claude_code(folder: Path, command: list[str]) -> Path:
    """Have its hooks run a command, or none of ours."""
    path = folder / "settings.json"
    try:
        settings = json.loads(path.read_text("utf-8")) if path.exists() else {}
        hooks: dict[str, list[Any]] = settings.setdefault("hooks", {})
        for event in _HOOKS:
            ours = [{"type": "command", "command": shlex.join(command)}]
            others = [one for one in hooks.pop(event, []) if not _is_ours(one)]
            if new := [*others, *([{"hooks": ours}] if command else [])]:
                hooks[event] = new
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidConfiguration(f"{path} is no settings file: {error}") from None
    return _written(path, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


def _is_ours(hook: Any) -> bool:
    return "-m refold " in (said := json.dumps(hook)) and " capture " in said


def _of_codex(folder: Path, command: list[str]) -> Path:
    """Have its ``notify`` run a command, or none of ours."""
    path = folder / "config.toml"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    lines = [line for line in lines if not line.endswith(_MARK)]
    try:
        taken = tomllib.loads("\n".join(lines)).get("notify")
    except ValueError as error:
        raise InvalidConfiguration(f"{path} is no TOML: {error}") from None
    if command:
        if taken:
            raise InvalidConfiguration(
                f"{path} has a notify program already: have that run\n"
                f"  {shlex.join(command)}"
            )
        lines.insert(0, f"notify = {json.dumps(command)}  {_MARK}")
    return _written(path, "\n".join([*lines, ""]))


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.refold")
    new.write_text(text, "utf-8")
    if path.exists():
        new.chmod(path.stat().st_mode)
    return new.replace(path)
