"""``refold context``: what a model is sent, or was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.options import As, Json, OneSession, SomeStrategy, User
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.store import Session


def context(
    context: typer.Context,
    user: User,
    session: OneSession,
    strategy: SomeStrategy = None,
    at: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="SEQ", help="As it was when this event was the last."
        ),
    ] = None,
    before_call: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="What it was sent before the response that made its N-th tool call.",
        ),
    ] = None,
    before_response: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="What it was sent before its N-th response."
        ),
    ] = None,
    as_: Annotated[
        As,
        typer.Option(
            "--as",
            help="sent: with the summaries that were there then; rebuilt: with those "
            "that the strategy would have had.",
        ),
    ] = As.SENT,
    as_json: Json = False,
) -> None:
    """Show what a model is sent, or was sent earlier.

    Nothing is compacted by asking: `refold compact` does that.
    """
    given = [place for place in (at, before_call, before_response) if place is not None]
    if len(given) > 1:
        raise typer.BadParameter(
            "give one of --at, --before-call and --before-response", ctx=context
        )
    with opening.existing(context) as store:
        chosen = store.session(user, session)
        chosen.head()
        place = _place(chosen, at, before_call, before_response)
        view = chosen.context(strategy, at=place, as_=as_.value)
        if as_json:
            print_json(view.to_json())
        else:
            from refold.adapters.cli.screen import Screen
            from refold.adapters.cli.views import show_view

            show_view(Screen(), view, chosen.pages(upto=view.at))


def _place(
    session: Session, at: int | None, call: int | None, response: int | None
) -> int | None:
    from refold.adapters.cli import numbering

    if call is not None:
        return numbering.before_call(session.pages(), call)
    if response is not None:
        return numbering.before_response(session.pages(), response)
    return at
