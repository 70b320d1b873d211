"""``refold memory``: what a user's sessions show together, and which events show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.options import Json
from refold.adapters.cli.output import print_json
from refold.domain.errors import RefoldError

if TYPE_CHECKING:
    from refold.adapters.cli.screen import Screen
    from refold.projections.memory.items import Item
    from refold.store import SessionStore
    from refold.store.remembering import Memory

_SHOWN, _LINE = 30, 100


def memory(
    context: typer.Context,
    user: Annotated[str, typer.Option(metavar="U", help="Whose memory.")],
    scenario: Annotated[
        str | None, typer.Option(metavar="S", help="Only what was learned in this one.")
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="All sessions as one scenario.")
    ] = False,
    every: Annotated[
        bool,
        typer.Option("--all", help="Also what too few or tainted sessions show."),
    ] = False,
    item: Annotated[
        str | None,
        typer.Option(metavar="ID", help="One item, and the events that show it."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show which tools worked, failed and helped in a user's sessions, and how often.

    Everything comes from the log, and names the events that show it. Nothing is listed
    that fewer than three sessions show, but with --all.
    """
    with opening.existing(context) as store:
        opening.sessions(store, user, None)
        found = store.memory(user, together=together)
        if item is not None:
            _one(store, found, item, as_json)
            return
    items = [
        one
        for one in found.items
        if (every or one.established) and scenario in (None, one.scenario)
    ]
    if as_json:
        print_json([one.to_json() for one in items])
        return
    _list(found, items)


def _list(found: Memory, items: list[Item]) -> None:
    from refold.adapters.cli.screen import Screen, shown
    from refold.adapters.cli.wording import counted

    screen = Screen()
    rows = [
        (
            one.memory_id,
            one.kind,
            shown(one.scenario),
            shown(said(one)),
            str(one.sessions),
            "" if one.success is None else f"{one.success:.0%}",
            f"{one.confidence:.2f}",
        )
        for one in items[:_SHOWN]
    ]
    head = ("item", "kind", "scenario", "what", "#sessions", "#success", "#confidence")
    if rows:
        screen.table(head, rows)
    if len(items) > _SHOWN:
        screen.line((f"and {len(items) - _SHOWN} more: --json has all", "dim"))
    ended = "" if found.success is None else f", {found.success:.0%} of them went well"
    screen.line(
        f"{counted(len(items), 'item')} of {counted(found.sessions, 'session')}{ended}"
    )


def said(item: Item) -> str:
    """What an item says, in a line."""
    content: dict[str, Any] = dict(item.content)
    match item.kind:
        case "path":
            return " → ".join("+".join(step) for step in content["path"])
        case "failure":
            return f"{content['tool']} fails: {content['reason']}"
        case "recovery":
            fix, tool = content["fix"], content["tool"]
            again = "again" if fix == tool else fix
            return f"{tool} fails: {content['reason']}, then {again}"
        case "check":
            return f"checked with {content['tool']}"
        case "effort":
            return f"{content['n']} reflections"


def _one(store: SessionStore, found: Memory, name: str, as_json: bool) -> None:
    one = found.named(name)
    if one is None:
        raise RefoldError(
            f"there is no item {name!r}: `refold memory --all` lists them"
        )
    events = [
        envelope
        for evidence in one.evidence
        for seq in evidence.seqs
        for envelope in store.session(found.user_id, evidence.session_id).events(
            after=seq - 1, limit=1
        )
    ]
    if as_json:
        print_json({**one.to_json(), "events": [e.to_json() for e in events]})
        return
    from refold.adapters.cli.previews import preview
    from refold.adapters.cli.screen import Screen, shown

    screen = Screen()
    _facts(screen, found, one)
    for envelope in events:
        note, body, _ = preview(envelope.payload)
        place = f"{envelope.session_id} seq {envelope.seq}  {envelope.type}  {note}"
        line = next(iter(body.splitlines()), "")
        screen.line(shown(place), "  ", (line[:_LINE], "dim"))


def _facts(screen: Screen, found: Memory, one: Item) -> None:
    from refold.adapters.cli.screen import shown

    screen.line(shown(said(one)))
    if one.success is not None and found.success is not None:
        screen.line(f"success {one.success:.0%}, of all sessions {found.success:.0%}")
    screen.line(f"at least {one.confidence:.0%}, by {one.sessions} sessions")
    if one.established:
        screen.line("established: it may be said to a model")
    elif one.tainted:
        screen.line(f"tainted: {one.tainted_sessions} sessions may not speak for it")
    else:
        screen.line("not established: too few sessions show it")
