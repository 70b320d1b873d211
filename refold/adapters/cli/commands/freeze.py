"""``refold freeze``: keep all of a user as it is, to be read and not to be changed."""

from __future__ import annotations

from typing import Annotated

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.commands.erase import Operator, who
from refold.adapters.cli.options import Json, User
from refold.adapters.cli.output import print_json


def freeze(
    context: typer.Context,
    user: User,
    reason: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Why; it is redacted.  Left out: only show."),
    ] = None,
    lift: Annotated[
        bool, typer.Option("--lift", help="Let the user go on instead.")
    ] = False,
    operator: Operator = None,
    as_json: Json = False,
) -> None:
    """Take nothing of a user any more, or with --lift again; a certificate says so.

    What is there can be read.  The database itself refuses appends, whoever makes
    them, and neither `refold erase` nor `refold retain` takes anything.
    """
    if lift and reason is None:
        raise typer.BadParameter("--reason says why, for the certificate")
    with opening.existing(context) as store:
        signed = None
        if reason is not None:
            change = store.unfreeze if lift else store.freeze
            signed = change(user, reason, operator=who(operator))
        frozen = store.is_frozen(user)
    if as_json:
        certificate = signed and signed.to_json()
        print_json({"frozen": frozen, "certificate": certificate})
    else:
        typer.echo("frozen" if frozen else "not frozen")
