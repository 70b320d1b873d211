"""``refold log``: what happened in a session, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.options import Json, OneSession, User, Verbosity
from refold.adapters.cli.output import complain, print_json

if TYPE_CHECKING:
    from refold.adapters.cli.numbering import Numbered
    from refold.domain.envelope import Envelope
    from refold.store import Session


def log(
    context: typer.Context,
    user: User,
    session: OneSession,
    after: Annotated[
        int, typer.Option(min=0, metavar="N", help="Begin behind this seq.")
    ] = 0,
    limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Show at most N entries.")
    ] = None,
    verbosity: Annotated[
        Verbosity,
        typer.Option(
            help="default: everything; compact: a line each, but for what the user "
            "said and each turn's answer; quiet: the last answer alone."
        ),
    ] = Verbosity.DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the timeline of a session.

    Responses and tool calls are numbered, and a call is joined to its result.
    Summaries stand behind the seq at which they were decided, with their stream.
    On a terminal a long text is cut; piped, or with --json, nothing is.
    """
    with opening.existing(context) as store:
        chosen = store.session(user, session)
        last = chosen.head().seq
        entries = chosen.timeline(after=after, limit=limit)
        if as_json:
            for envelope in entries:
                print_json(envelope.to_json())
        elif verbosity is Verbosity.QUIET:
            _answer(entries)
        else:
            numbered = _numbered(chosen, entries, after)
            if not _show(numbered, verbosity, last):
                complain(f"there is nothing behind seq {after}")


def _numbered(
    session: Session, entries: Iterable[Envelope], after: int
) -> Iterator[Numbered]:
    """The entries with their numbers, counted from the session's first event on."""
    from refold.adapters.cli.numbering import Numbering

    numbering = Numbering()
    for _ in numbering.number(session.pages(upto=after) if after else ()):
        pass
    return numbering.number(entries)


def _show(numbered: Iterable[Numbered], verbosity: Verbosity, last: int) -> int:
    from refold.adapters.cli.screen import Screen
    from refold.adapters.cli.timeline import Timeline

    return Timeline(Screen(), verbosity, last_seq=last).show(numbered)


def _answer(entries: Iterable[Envelope]) -> None:
    """Print the last thing that the agent said as an answer, and nothing else."""
    from refold.adapters.cli.screen import Screen, shown
    from refold.domain.events import AgentResponse, Final

    answer = ""
    for envelope in entries:
        if (
            isinstance(envelope.payload, AgentResponse | Final)
            and envelope.payload.text
        ):
            answer = envelope.payload.text
    if answer:
        Screen().text(shown(answer))
    else:
        complain("there is no answer in this part of the session")
