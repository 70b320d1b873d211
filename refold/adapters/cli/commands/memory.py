"""``refold memory``: what a user's sessions show together, and which events show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.options import Json
from refold.adapters.cli.output import print_json
from refold.domain.errors import RefoldError

if TYPE_CHECKING:
    from refold.projections.memory.item import Item
    from refold.store import SessionStore
    from refold.store.remembering import Memory


def memory(
    context: typer.Context,
    user: Annotated[str | None, typer.Option(metavar="U", help="Whose memory.")] = None,
    everyone: Annotated[
        bool,
        typer.Option(
            "--everyone", help="What many users show, and nobody in particular."
        ),
    ] = False,
    scenario: Annotated[
        str | None,
        typer.Option(metavar="S", help="Only of this kind of task; general: of all."),
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Also what too few or tainted sessions show."),
    ] = False,
    item: Annotated[
        str | None,
        typer.Option(metavar="ID", help="One item, and the events that show it."),
    ] = None,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="What is known of a user who consented."),
    ] = False,
    advice: Annotated[
        bool, typer.Option("--advice", help="What would be said to a model now.")
    ] = False,
    tokens: Annotated[
        int, typer.Option(metavar="N", min=0, help="How many --advice may cost.")
    ] = 600,
    effect: Annotated[
        bool,
        typer.Option(
            "--effect", help="How sessions ended that were shown an item, or not."
        ),
    ] = False,
    forget: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Take an item away for good, by an event."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show which tools worked, failed and helped in a user's sessions, and how often.

    Everything comes from the log, and names the events that show it. Nothing is listed
    that fewer than three sessions show, but with --all.
    """
    from datetime import timedelta

    from refold.adapters.cli import remembered
    from refold.projections.memory.scenarios import GENERAL

    if (user is None) != everyone:
        raise RefoldError("give --user or --everyone")
    with opening.existing(context) as store:
        if user is None:
            if item or advice or effect or forget or profile:
                raise RefoldError("of --everyone items are listed, and no more")
            everybody = store.shared_memory()
            _listed(everybody, everybody.items, scenario, as_json)
            return
        opening.sessions(store, user, None)
        if forget is not None:
            _forget(store, user, forget, as_json)
            return
        if profile:
            from refold.adapters.cli.profile import show_profile

            show_profile(store.profile(user), as_json)
            return
        if advice:
            said = store.advice(
                user, fresh=timedelta(0), scenario=scenario or GENERAL, tokens=tokens
            )
            remembered.show_advice(said, as_json)
            return
        found = store.memory(user)
        if item is not None:
            remembered.show_item(store, found, _named(found, item), as_json)
            return
    if effect:
        remembered.show_effect(found, as_json)
        return
    items = [one for one in found.items if every or one.established]
    _listed(found, items, scenario, as_json)


def _listed(
    found: Memory, items: list[Item], scenario: str | None, as_json: bool
) -> None:
    from refold.adapters.cli import remembered

    some = [one for one in items if scenario in (None, one.scenario)]
    remembered.show_items(found, some, as_json)


def _named(found: Memory, name: str) -> Item:
    one = found.named(name)
    if one is None:
        raise RefoldError(
            f"there is no item {name!r}: `refold memory --all` lists them"
        )
    return one


def _forget(store: SessionStore, user: str, name: str, as_json: bool) -> None:
    from refold.adapters.cli.screen import Screen

    receipt = store.user(user).forget(name)
    if as_json:
        print_json({"forgotten": name, "seq": receipt.last_seq})
        return
    Screen().line(f"{name} is forgotten, also when memory is made anew")
