"""``refold restore``, ``readmit`` and ``hold``: what undoes or forbids an erasure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.commands.erase import Operator, who
from refold.adapters.cli.options import Json, User
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.domain.certificate import Signed

Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is redacted.")]


def restore(
    context: typer.Context,
    user: User,
    reason: Reason,
    operator: Operator = None,
    as_json: Json = False,
) -> None:
    """Undo an erasure that is held back, before its date; a certificate says so."""
    with opening.existing(context) as store:
        signed = store.restore(user, reason, operator=who(operator))
    _say(signed, as_json, "readable again")


def readmit(
    context: typer.Context,
    user: User,
    reason: Reason,
    operator: Operator = None,
    as_json: Json = False,
) -> None:
    """Let a user who was erased come back with a new key; nothing returns with them."""
    with opening.existing(context) as store:
        signed = store.readmit(user, reason, operator=who(operator))
    _say(signed, as_json, f"readmitted, in epoch {signed.statement['epoch']}")


def hold(
    context: typer.Context,
    user: User,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the hold is called.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why; it is redacted.")
    ] = None,
    release: Annotated[
        bool, typer.Option("--release", help="End the hold instead.")
    ] = False,
    operator: Operator = None,
    as_json: Json = False,
) -> None:
    """Forbid to erase a user, by a named legal hold; without --name, list the holds."""
    if name is not None and not reason:
        raise typer.BadParameter("--reason says why, for the certificate")
    with opening.existing(context) as store:
        if name is None or reason is None:
            holds = [held._asdict() for held in store.holds(user)]
            signed = None
        elif release:
            signed = store.release_hold(user, name, reason, operator=who(operator))
        else:
            signed = store.hold(user, name, reason, operator=who(operator))
    if name is None:
        if as_json:
            print_json(holds)
        else:
            for held in holds:
                typer.echo(f"{held['name']}  {held['reason']}")
    elif signed is None:
        _nothing(as_json)
    else:
        _say(signed, as_json, "released" if release else "held")


def _nothing(as_json: bool) -> None:
    if as_json:
        print_json(None)
    else:
        typer.echo("there is a hold of that name already")


def _say(signed: Signed, as_json: bool, done: str) -> None:
    if as_json:
        print_json(signed.to_json())
    else:
        typer.echo(f"{done}: certificate {signed.statement['certificate_id']}")
