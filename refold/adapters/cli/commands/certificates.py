"""``refold verify --certificate``: whether a certificate is what this store signed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.output import print_json
from refold.domain.errors import RefoldError

if TYPE_CHECKING:
    from refold.domain.certificate import Signed


def check_certificate(
    context: typer.Context,
    file: Path,
    public_key: Path | None,
    *,
    user: str | None,
    session: str | None,
    salt: str | None,
    as_json: bool,
) -> None:
    """Check its signature, and with a salt whose it is; exits with 1 if not."""
    from refold.domain.certificate import Signed

    try:
        signed = Signed.read(file.read_bytes())
    except ValueError as error:
        raise RefoldError(f"{file}: {error}") from None
    problems = _problems(context, signed, public_key)
    if salt is not None:
        problems += _of(signed, user, session, salt)
    told = {"ok": not problems, "certificate": signed.statement, "problems": problems}
    if as_json:
        print_json(told)
    else:
        _show(signed.statement, problems)
    if problems:
        raise typer.Exit(1)


def _problems(
    context: typer.Context, signed: Signed, public_key: Path | None
) -> list[str]:
    from refold.adapters.signing import read_public_key, signed_by

    kept: list[Signed] = []
    if public_key is not None:
        key = read_public_key(public_key.read_text("utf-8", errors="replace"))
    else:
        with opening.existing(context) as store:
            key, kept = store.public_key(), store.certificates()
    if not signed_by(key, signed.signature, signed.message()):
        return ["it is not signed by this key: it is forged, or of another store"]
    if public_key is None and signed.statement not in [one.statement for one in kept]:
        return ["the store signed it, and does not have it: it was taken out"]
    return []


def _of(signed: Signed, user: str | None, session: str | None, salt: str) -> list[str]:
    from refold.domain.certificate import subject

    if user is None:
        raise typer.BadParameter("--salt needs --user: whose it is said to be")
    try:
        secret = bytes.fromhex(salt)
    except ValueError:
        raise typer.BadParameter("a salt is 64 hex digits") from None
    sessions = None if session is None else (session,)
    if subject(secret, user, sessions) != signed.statement.get("subject"):
        return ["it is of another user, or the salt is another's"]
    return []


def _show(statement: dict[str, Any], problems: list[str]) -> None:
    from refold.adapters.cli.screen import Screen, shown

    screen = Screen()
    for problem in problems:
        screen.line(("✗ ", "bold red"), problem)
    if problems:
        return
    screen.line(("✓ ", "bold green"), "signed by this store's key")
    for name in ("act", "scope", "completed_at", "reason", "certificate_id"):
        screen.line(f"  {name.replace('_', ' '):16}", shown(statement.get(name, "")))
