"""``refold review``: what humans are asked, by which rules, and what they decided."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.commands.erase import who
from refold.adapters.cli.options import Json, SomeSession, SomeUser
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.store import SessionStore


class Action(StrEnum):
    """What to do with questions to humans."""

    LIST = "list"
    SHOW = "show"
    DECIDE = "decide"
    SCAN = "scan"


class Decision(StrEnum):
    """What can be decided."""

    ACCEPT = "accept"
    REJECT = "reject"
    CORRECTED = "corrected"
    DISMISSED = "dismissed"


def review(
    context: typer.Context,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")],
    name: Annotated[
        str | None,
        typer.Argument(metavar="[SESSION]", help="show, decide: the question's."),
    ] = None,
    seq: Annotated[
        int | None, typer.Argument(metavar="[SEQ]", help="Where the question is.")
    ] = None,
    user: SomeUser = None,
    session: SomeSession = None,
    every: Annotated[
        bool, typer.Option("--all", help="list: those that are decided, too.")
    ] = False,
    decision: Annotated[
        Decision | None, typer.Option(help="decide: what was decided.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="decide: who decided; left out, the login."),
    ] = None,
    note: Annotated[
        str, typer.Option(metavar="TEXT", help="decide: why; it is redacted.")
    ] = "",
    rules: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="scan: rules in TOML, for those shipped."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what humans are asked, show it, decide it, or look for what is to be asked.

    scan applies rules to the sessions of a user, or of all, and asks what is not asked
    yet.  show and decide take the session and the seq of a question, and its --user.
    """
    given = _given(name, seq, user)
    if (action in (Action.SHOW, Action.DECIDE)) is (given is None):
        raise typer.BadParameter(
            "show and decide take SESSION, SEQ and --user; list and scan neither "
            "SESSION nor SEQ"
        )
    if (action is Action.DECIDE) is (decision is None):
        raise typer.BadParameter("--decision says what was decided, for decide alone")
    from refold.adapters.cli import reviewing

    with opening.existing(context) as store:
        if given is not None and decision is not None:
            _decide(store, given, decision, who(by), note, as_json)
        elif given is not None:
            reviewing.show(store, *given, as_json=as_json)
        elif action is Action.SCAN:
            reviewing.scan(store, rules, user, session, as_json=as_json)
        else:
            if user is not None or session is not None:
                opening.sessions(store, user, session)
            found = store.reviews(user, session, open_only=not every)
            reviewing.show_list(found, every=every, as_json=as_json)


def _given(
    name: str | None, seq: int | None, user: str | None
) -> tuple[str, str, int] | None:
    """Which question is meant; None if none is."""
    if name is None and seq is None:
        return None
    if name is None or seq is None or user is None:
        raise typer.BadParameter("a question is named by SESSION, SEQ and --user")
    return user, name, seq


def _decide(
    store: SessionStore,
    question: tuple[str, str, int],
    decision: Decision,
    by: str,
    note: str,
    as_json: bool,
) -> None:
    user, name, seq = question
    receipt = store.session(user, name).decide(seq, decision.value, by=by, note=note)
    if as_json:
        print_json({"seq": receipt.last_seq, "decision": decision.value})
    else:
        typer.echo(f"recorded at seq {receipt.last_seq}: {decision.value}")
