"""``refold why``: what a context is made of, what is not in it, and the proof."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.options import Json, OneSession, SomeStrategy, User
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.store.explained import Explanation


def why(
    context: typer.Context,
    user: User,
    session: OneSession,
    at: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="SEQ",
            help="As it was when this event was the last; a request: as it was sent.  "
            "Left out: now.",
        ),
    ] = None,
    message: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Only its N-th message, event by event."),
    ] = None,
    open_: Annotated[
        int | None,
        typer.Option(
            "--open",
            min=1,
            metavar="SUMMARY",
            help="What this summary absorbed and was made of, down to events.",
        ),
    ] = None,
    strategy: SomeStrategy = None,
    as_json: Json = False,
) -> None:
    """Say why a context is as it is, and prove it.

    Each part with the events behind it and the decision that made it so, asked for
    again; what is left out, and why.  Exits with 1 if a proof does not hold.
    """
    if message is not None and open_ is not None:
        raise typer.BadParameter("give one of --message and --open", ctx=context)
    with opening.existing(context) as store:
        chosen = store.session(user, session)
        explained = chosen.why(strategy, at=at, message=message)
        if open_ is not None:
            records = explained.opened(open_)
    if as_json:
        told = explained.to_json()
        if open_ is not None:
            seqs = {record.node.seq for record in records}
            opened = [one for one in told["summaries"] if one["seq"] in seqs]
            told = {"summary": open_, "summaries": opened}
        print_json(told)
    else:
        from refold.adapters.cli import reasons
        from refold.adapters.cli.screen import Screen

        if open_ is not None:
            reasons.show_opened(Screen(), explained, records)
        else:
            reasons.show_why(Screen(), explained)
    if _broken(explained):
        raise typer.Exit(1)


def _broken(explained: Explanation) -> bool:
    """Whether something is not what was written; what was superseded is."""
    sent = explained.sent
    return (
        any(chain.problems for chain in explained.chains)
        or any(record.source == "broken" for record in explained.records)
        or (sent is not None and sent.proof == "broken")
    )
