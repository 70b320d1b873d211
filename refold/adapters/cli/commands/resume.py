"""``refold resume`` and exports of contexts: a session continued in another program."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from uuid import UUID

import orjson
import typer

from refold.adapters import exporters
from refold.adapters.cli import options, output
from refold.adapters.cli.files import Destination
from refold.adapters.display import values
from refold.adapters.exporters import base
from refold.domain.canonical import repaired
from refold.domain.errors import InvalidConfiguration, counted

if TYPE_CHECKING:
    from refold.projections.context.view import View
    from refold.store import Session

Client = Literal["claude-code", "codex", "gemini"]
_UUID_LENGTH: Final = 36

AtOption = Annotated[
    int | None,
    typer.Option(
        metavar="SEQ",
        min=1,
        help="Continue from the context as it was after this event.  Default: the "
        "newest one.",
    ),
]
RevealOption = Annotated[
    bool,
    typer.Option(
        "--reveal",
        help="Write real values in place of numbered placeholders, as far as the "
        "vault has them.",
    ),
]


def resume(
    call: options.Call,
    session: Annotated[
        str,
        typer.Argument(
            metavar="SESSION", help="Name of the session, or its beginning."
        ),
    ],
    client: Annotated[
        Client,
        typer.Option(
            "--in",
            metavar="CLIENT",
            help="Continue in this client: claude-code, codex, or gemini.",
        ),
    ],
    user: options.ReaderOption = None,
    at: AtOption = None,
    strategy: options.StrategyOption = None,
    reveal: RevealOption = False,
    print_command: Annotated[
        bool,
        typer.Option(
            "--print-command", help="Print the client's command; do not start it."
        ),
    ] = False,
) -> output.Result:
    """Continue a session in another program, in the current folder.

    Writes the session's context where the client looks for its sessions, and starts
    the client with it.  Prints the command instead if the client is not installed.  The
    client's session has a new id.  In this store, it is a fork of the session: a
    capture, an import, and ``refold run`` record only the new events in it.

    The access log records the export, and a later erasure names the file.
    """
    store = call.store()
    opened = options.found_session(store, user, session)
    view = _context(opened, strategy, at, reveal=reveal)
    module: Any = exporters.writer(client)
    target = base.Target(folder=Path.cwd().resolve())
    path: Path = module.place(_settings_of(client), target)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if client == "gemini":
        module.claim_folder(path, target)
    conversation = base.conversation_of(opened, view)
    written = _write(opened, conversation, client, target, path, overwrite=False)
    _fork(opened, conversation.origin, client, target)
    command: list[str] = module.command(target.session_id)
    _warn(view, written)
    program = shutil.which(command[0])
    if not print_command and program is not None and not call.as_json:
        finished = subprocess.run([program, *command[1:]], check=False)
        return output.Result(None, "", finished.returncode, changed=True)
    out, _ = repaired(str(path))
    value = {
        "session": str(target.session_id),
        "out": out,
        "command": command,
        "installed": program is not None,
        "messages": len(view.messages),
        "left_out": dict(written.left_out),
        "revealed": dict(view.revealed),
    }
    if program is None and not print_command:
        output.complain(
            f"{command[0]} is not installed: install it, and run its command"
        )
    return output.Result(value, shlex.join(command), changed=True)


def _settings_of(client: Client) -> Path:
    """Return the folder with the settings and sessions of a client."""
    if client == "gemini":
        home = os.environ.get("GEMINI_CLI_HOME") or "~"
        return Path(home, ".gemini").expanduser()
    from refold.adapters.importers.follower import folder_of

    return folder_of(client).parent


def export_context(
    call: options.Call,
    user: str | None,
    session: str,
    form: str,
    out: Path | None,
    *,
    at: int | None,
    strategy: str | None,
    reveal: bool,
    force: bool,
) -> output.Result | None:
    """Write a session's context in the form of a client or an API.

    user: None means the only user who has such a session.
    """
    opened = options.found_session(call.store(), user, session)
    view = _context(opened, strategy, at, reveal=reveal)
    target = base.Target(folder=Path.cwd().resolve())
    named = _id_in_name(out)
    if named is not None:
        target = base.Target(named, target.folder)
    conversation = base.conversation_of(opened, view)
    written = _write(opened, conversation, form, target, out, overwrite=force)
    _warn(view, written)
    if out is None:
        return None
    path, _ = repaired(str(out))
    messages = counted(len(view.messages), "message")
    value = {
        "out": path,
        "messages": len(view.messages),
        "left_out": dict(written.left_out),
        "revealed": dict(view.revealed),
    }
    return output.Result(value, f"wrote {messages} to {values.visible(str(out))}")


def _fork(
    session: Session, origin: base.Origin, client: str, target: base.Target
) -> None:
    """Make the client's session a fork of the exported one, before it has events.

    So the fork is there however the client goes on: a proxy sees only its requests,
    which name no origin.
    """
    from refold.domain.ports import Exported
    from refold.store.session.forking import continue_exported

    exported = Exported(origin.session_id, origin.seq, str(origin.event_id))
    stream = session.stream._replace(session_id=str(target.session_id))
    child = replace(session, stream=stream)
    if continue_exported(child, exported):
        child.label(client=client, folder=str(target.folder))


def _context(
    session: Session, strategy: str | None, at: int | None, *, reveal: bool
) -> View:
    """Return the context to write; the access log records an export."""
    from refold.store.recorded import recorded_as

    session.head()  # raises if there is no such session
    with recorded_as("export"):
        return session.context(strategy, at=at, reveal=reveal)


def _id_in_name(out: Path | None) -> UUID | None:
    """Return the session's id at the end of a file's name; None without one."""
    if out is None:
        return None
    try:
        return UUID(out.stem[-_UUID_LENGTH:])
    except ValueError:
        return None


def _write(
    session: Session,
    conversation: base.Conversation,
    form: str,
    target: base.Target,
    out: Path | None,
    *,
    overwrite: bool,
) -> base.Written:
    """Write a conversation to a file or stdout, and record the copy."""
    from refold.store.exports import CopyRecords
    from refold.store.session.forking import lineage

    module = exporters.writer(form)
    written = module.write(conversation, target)
    lines = [orjson.dumps(value) for value in written.values]
    copies = CopyRecords(
        session.writer,
        form,
        "stdout" if out is None else out,
        sessions=lineage(session),
    )
    opened = nullcontext() if out is None else _opened(out, overwrite=overwrite)
    with copies.dropped_on_failure(), opened as destination:
        copies.record(session.user_id)
        if destination is None:
            for line in lines:
                output.write_line(line)
        else:
            for line in lines:
                destination.write(line + b"\n")
            destination.commit()
    if copies.unrecorded:
        output.complain(f"a later erasure cannot name this export: {copies.unrecorded}")
    return written


def _opened(out: Path, *, overwrite: bool) -> Destination:
    """Return the file to write.

    Raises InvalidConfiguration for one that exists, unless it may be overwritten.
    """
    if not overwrite and out.is_file() and out.stat().st_size:
        raise InvalidConfiguration(
            f"{out} exists already: name a new file, or overwrite it with --force"
        )
    return Destination(out, overwrite=overwrite)


def _warn(view: View, written: base.Written) -> None:
    """Warn about real values in the export, and about parts that it lacks."""
    if view.revealed:
        counts = values.type_counts(Counter(view.revealed))
        output.complain(
            f"the export contains real values in place of placeholders ({counts}): "
            "delete it when you no longer need it"
        )
    if written.left_out:
        parts = ", ".join(
            f"{kind} ({count})" for kind, count in sorted(written.left_out.items())
        )
        output.complain(f"the form cannot hold these, so they are left out: {parts}")
