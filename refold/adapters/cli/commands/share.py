"""``refold share``: one HTML file with a run, for somebody else."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.adapters import config
from refold.adapters.cli import options, output
from refold.adapters.cli.commands.operate import Language
from refold.adapters.cli.files import Destination
from refold.adapters.display import values
from refold.domain.canonical import repaired
from refold.domain.errors import RefoldError, counted
from refold.domain.events import UserInput

if TYPE_CHECKING:
    from refold.redaction.policy import Policy
    from refold.store import SessionStore
    from refold.store.session.session import Session

_MOST_FINDINGS: Final = 5  # places that the error names


def share(
    call: options.Call,
    user: options.UserOption,
    session: options.SessionOption,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Write to this file, completely or not at all."
        ),
    ],
    yes: Annotated[
        bool, typer.Option("--yes", help="Write without asking for confirmation.")
    ] = False,
    lang: Annotated[Language, typer.Option(help="Language of the file.")] = "en",
) -> output.Result:
    """Write a run as one HTML file for somebody else, after a check of its redaction.

    Searches the run with the rules of all packs, also those that the policy leaves
    out.  If they find something, writes nothing.  Then shows what the file will
    contain, and asks for confirmation on a terminal; elsewhere it needs --yes.

    The file opens without a network.  It cannot expire, and says so.  The access log
    records the export, and a later erasure names the file.
    """
    from refold.adapters.frameworks import import_extra

    import_extra("jinja2", "server")
    store = call.store(policy=_strictest())
    opened = store.session(user_id=user, session_id=session)
    opened.head()  # raises if there is no such session
    with Destination(out) as destination:
        preview = _preview(opened)
        _check_redaction(store, user, session)
        _confirm(call, preview, yes=yes)
        size = _write(store, opened, destination, out, lang)
    path, _ = repaired(str(out))
    value = {"out": path, "bytes": size, "expires": None, **preview}

    def show(screen: output.Screen) -> None:
        if yes:
            _show_preview(screen, preview)
        screen.line(f"wrote {values.size(size)} to {values.visible(str(out))}")
        screen.line("the file cannot expire: delete it when it is no longer needed")

    return output.Result(value, show, acted=True)


def _strictest() -> Policy:
    """Return the policy of the settings with all packs."""
    from refold.redaction.policy import Policy
    from refold.redaction.rules import PACKS

    policy = config.policy(None) or Policy(version=1)
    return policy.with_packs(tuple(dict.fromkeys([*policy.packs, *PACKS])))


def _preview(session: Session) -> dict[str, Any]:
    """Return the numbers of what the file will contain."""
    from refold.store.files import file_histories, with_sub_agents

    events = 0
    images = 0
    attachments = 0
    redacted: Counter[str] = Counter()
    for envelope in session.history.pages():
        events += 1
        types = envelope.redaction.get("types")
        if isinstance(types, dict):
            redacted.update({str(name): int(str(n)) for name, n in types.items()})
        if isinstance(envelope.payload, UserInput):
            for attachment in envelope.payload.attachments:
                if attachment.kind == "image":
                    images += 1
                else:
                    attachments += 1
    histories = file_histories(with_sub_agents(session)[:1])
    return {
        "events": events,
        "files": len(histories.files),
        "images": images,
        "attachments": attachments,
        "redacted": dict(redacted),
        "findings": 0,
    }


def _check_redaction(store: SessionStore, user: str, session: str) -> None:
    """Raise RefoldError if the rules of all packs find something in the session."""
    for rechecked in store.recheck(user, session_id=session):
        if rechecked.problem is not None:
            raise RefoldError(f"the run was not shared: {rechecked.problem}")
        if not rechecked.exposures:
            continue
        found: Counter[str] = Counter()
        for exposure in rechecked.exposures:
            found.update(exposure.types)
        seqs = [f"seq {exposure.seq}" for exposure in rechecked.exposures]
        places = ", ".join(seqs[:_MOST_FINDINGS])
        if len(seqs) > _MOST_FINDINGS:
            places += f" and {len(seqs) - _MOST_FINDINGS} more"
        packs = ",".join(_strictest().packs)
        run = f"--user {shlex.quote(user)} --session {shlex.quote(session)}"
        raise RefoldError(
            f"the run was not shared: the rules of all packs find "
            f"{values.type_counts(found)} ({places}).  Redact it again first: `refold "
            f"redact --recheck --apply {run} --packs {packs}`"
        )


def _confirm(call: options.Call, preview: dict[str, Any], *, yes: bool) -> None:
    """Show what the file will contain, and ask; raises an error for a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            "the file will leave this store: add --yes if you mean it"
        )
    call.remark(lambda screen: _show_preview(screen, preview))
    typer.confirm("Write the file?", abort=True, err=True)


def _show_preview(screen: output.Screen, preview: dict[str, Any]) -> None:
    parts = [
        counted(preview["events"], "event"),
        f"names and texts of {counted(preview['files'], 'file')}",
        counted(preview["images"], "image"),
        counted(preview["attachments"], "other attachment"),
    ]
    screen.line("contains ", ", ".join(parts))
    redacted = values.type_counts(preview["redacted"]) or "nothing"
    screen.line(f"redacted: {redacted}; the rules of all packs find nothing more")


def _write(
    store: SessionStore,
    session: Session,
    destination: Destination,
    out: Path,
    lang: Language,
) -> int:
    """Write the file, and record the copy; return its bytes."""
    from refold.adapters.server.run_pages import html_file
    from refold.store.exports import CopyRecords
    from refold.store.recorded import recorded_as

    copies = CopyRecords(store.writer, "share", out, sessions=(session.session_id,))
    copies.record(session.user_id)
    with copies.dropped_on_failure():
        with recorded_as("export"):
            page = html_file(session, lang, shared=True).encode() + b"\n"
        destination.write(page)
        destination.commit()
    if copies.unrecorded:
        output.complain(f"a later erasure cannot name this file: {copies.unrecorded}")
    return len(page)
