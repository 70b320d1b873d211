"""``refold retain``: erase what nobody used for as long as a policy says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.commands.erase import Operator, who
from refold.adapters.cli.durations import duration
from refold.adapters.cli.options import Json
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.domain.retention import RetentionPolicy
    from refold.store.retaining import Retained


def retain(
    context: typer.Context,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='TOML: sessions = "30d", audit = "14d" …'),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="seed: sessions 30d, memory 90d, audit 14d."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go; change nothing.")
    ] = False,
    key_backups: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long backups of the key store survive: 35d, …"
        ),
    ] = None,
    operator: Operator = None,
    as_json: Json = False,
) -> None:
    """Erase what nobody used for as long as a policy says; nothing expires without.

    Each user's expired sessions are erased with a certificate.  Those stay that are
    used meanwhile, held, frozen, or gone on from by a fork in use.  Cut off, it is
    completed by the next run.
    """
    chosen, survive = _policy(policy, preset), duration(key_backups)
    with opening.existing(context) as store:
        done = store.retain(
            chosen, dry_run=dry_run, operator=who(operator), key_backups=survive
        )
    if as_json:
        print_json(_as_json(done))
    else:
        _show(done)


def _policy(file: Path | None, preset: str | None) -> RetentionPolicy:
    from refold.domain.retention import RetentionPolicy

    if (file is None) == (preset is None):
        raise typer.BadParameter("give one of --policy FILE and --preset NAME")
    if file is not None:
        return RetentionPolicy.read(file.read_bytes())
    return RetentionPolicy.preset(preset or "")


def _as_json(done: Retained) -> dict[str, Any]:
    certificates = [
        {"certificate": one.certificate.to_json(), "salt": one.salt}
        for one in done.erasures
        if one.certificate is not None
    ]
    return {
        "dry_run": done.dry_run,
        "sessions": [
            {"user_id": user, "session_id": name} for user, name in done.sessions
        ],
        "kept": done.kept,
        "completed": done.completed,
        "blobs": done.blobs,
        "audit": done.audit,
        "certificates": certificates,
    }


def _show(done: Retained) -> None:
    from refold.adapters.cli.screen import Screen, shown
    from refold.adapters.cli.wording import counted

    screen = Screen()
    for user, name in done.sessions:
        screen.line(shown(f"{user} / {name}"))
    went = "would be erased" if done.dry_run else "erased"
    told = [f"{counted(len(done.sessions), 'session')} {went}"]
    told += [f"{number:,} kept ({why})" for why, number in sorted(done.kept.items())]
    if done.completed:
        told.append(f"{counted(done.completed, 'erasure')} of before completed")
    for what, number in (("blob", done.blobs), ("audit record", done.audit)):
        if number is not None:
            told.append(f"{counted(number, what)} {went}")
    screen.line(", ".join(told))
