"""``refold consent``: what a user allows, and recording that it changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.options import Json, User
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.store.users import ConsentStatus


def consent(
    context: typer.Context,
    user: User,
    grant: Annotated[
        str | None,
        typer.Option(metavar="K", help="The user allows it: declarative_memory …"),
    ] = None,
    withdraw: Annotated[
        str | None, typer.Option(metavar="K", help="The user does not any more.")
    ] = None,
    opt_out: Annotated[
        bool, typer.Option("--opt-out", help="Nothing of the user goes to memory.")
    ] = False,
    opt_in: Annotated[
        bool, typer.Option("--opt-in", help="Take the opt-out back.")
    ] = False,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why; it is recorded with it.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show what a user allows, or record one change of it as an event.

    What was never asked is not allowed; an opt-out of memory outweighs every grant.
    """
    wanted = [name for name in (grant, withdraw) if name is not None]
    if len(wanted) + opt_out + opt_in > 1:
        raise typer.BadParameter(
            "give one of --grant, --withdraw, --opt-out and --opt-in"
        )
    with opening.existing(context) as store:
        whole = store.user(user)
        if wanted:
            whole.consent(wanted[0], granted=grant is not None, reason=reason)
        elif opt_out:
            whole.opt_out(reason=reason)
        elif opt_in:
            whole.opt_in(reason=reason)
        status = whole.status()
    if as_json:
        print_json(status.to_json())
    else:
        _show(status)


def _show(status: ConsentStatus) -> None:
    from refold.adapters.cli.screen import Screen, shown

    screen = Screen()
    out = "opted out" if status.memory_opt_out else "not opted out"
    screen.line("memory  ", (out, "bold"))
    yes = "allowed" if status.declarative_memory else "not allowed"
    screen.line("declarative memory  ", (yes, "bold"))
    for scope, said in sorted(status.scopes.items()):
        word = "granted" if said.granted else "withdrawn"
        screen.line(("  ", ""), shown(scope), (f"  {word} {said.at}", "dim"))
