"""``refold memory``: what a user's sessions show together, and which events show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Final

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.options import Json
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.projections.memory.item import Item
    from refold.store import SessionStore
    from refold.store.remembering import Memory

_TOKENS: Final = 600
_WRONG: Final = {
    "--scenario": "--scenario is for a list of items and for --advice",
    "--all": "--all is for the list of a --user's items",
    "--tokens": "--tokens is for --advice",
}


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
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help=f"How many --advice may cost; left out, {_TOKENS}.",
        ),
    ] = None,
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
    refresh: Annotated[
        bool,
        typer.Option(
            "--refresh", help="Make the memory of all users, or of one, by now."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show which tools worked, failed and helped in a user's sessions, and how often.

    Everything comes from the log, and names the events that show it. Nothing is listed
    that fewer than three sessions show, but with --all.
    """
    shows = {"item": item, "advice": advice, "profile": profile, "effect": effect}
    does = {"forget": forget, "refresh": refresh}
    _check(
        [*_given(shows), *_given(does)],
        _given({"user": user, "everyone": everyone}),
        _given({"scenario": scenario, "all": every, "tokens": tokens}),
    )
    from refold.adapters.cli import refreshing, remembered

    with opening.existing(context) as store:
        if user is not None:
            opening.sessions(store, user, None)  # says if there is no such user
        if refresh:
            refreshing.refresh(store, user, as_json=as_json)
        elif user is None:
            everybody = store.shared_memory()
            _listed(everybody, everybody.items, scenario, as_json)
        elif forget is not None:
            _forget(store, user, forget, as_json)
        elif item is not None:
            remembered.show_item(store, user, item, as_json)
        elif profile:
            _profile(store, user, as_json)
        elif advice:
            most = _TOKENS if tokens is None else tokens
            _advice(store, user, scenario, most, as_json)
        elif effect:
            remembered.show_effect(store.memory(user), as_json)
        else:
            found = store.memory(user)
            items = [one for one in found.items if every or one.established]
            _listed(found, items, scenario, as_json)


def _given(options: Mapping[str, object]) -> list[str]:
    """Those that were given, as they are written."""
    return [
        f"--{name}"
        for name, value in options.items()
        if value is not None and value is not False
    ]


def _check(what: list[str], whose: list[str], how: Iterable[str]) -> None:
    """Refuse options that do not go together.

    what: is asked for; nothing is a list.  ``how`` is what was said of it.

    Raises typer.BadParameter.
    """
    if len(what) > 1:
        raise typer.BadParameter(f"{_and(what)} do not go together: give one of them")
    one = what[0] if what else ""
    if one == "--refresh" and "--everyone" in whose:
        raise typer.BadParameter(
            "--refresh is of all users, or of one: --user says who"
        )
    if one != "--refresh" and len(whose) != 1:
        raise typer.BadParameter("give --user or --everyone")
    if one and "--everyone" in whose:
        raise typer.BadParameter("of --everyone items are listed, and no more")
    takes = {"": "--scenario --all", "--advice": "--scenario --tokens"}.get(one, "")
    for option in how:
        if option not in takes.split():
            raise typer.BadParameter(_WRONG[option])
        if option == "--all" and "--everyone" in whose:
            raise typer.BadParameter(_WRONG[option])


def _and(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _profile(store: SessionStore, user: str, as_json: bool) -> None:
    from refold.adapters.cli.profile import show_profile

    show_profile(store.profile(user), store.clock(), as_json)


def _advice(
    store: SessionStore, user: str, scenario: str | None, tokens: int, as_json: bool
) -> None:
    from datetime import timedelta

    from refold.adapters.cli import remembered
    from refold.projections.memory.scenarios import GENERAL

    said = store.advice(
        user, fresh=timedelta(0), scenario=scenario or GENERAL, tokens=tokens
    )
    remembered.show_advice(said, as_json)


def _listed(
    found: Memory, items: list[Item], scenario: str | None, as_json: bool
) -> None:
    from refold.adapters.cli import remembered

    some = [one for one in items if scenario in (None, one.scenario)]
    remembered.show_items(found, some, as_json)


def _forget(store: SessionStore, user: str, name: str, as_json: bool) -> None:
    from refold.adapters.cli.screen import Screen

    receipt = store.user(user).forget(name)
    if as_json:
        print_json({"forgotten": name, "seq": receipt.last_seq})
        return
    Screen().line(f"{name} is forgotten, also when memory is made anew")
