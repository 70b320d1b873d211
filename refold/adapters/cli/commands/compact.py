"""``refold compact``: let a strategy compact a session, one step or all due."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.options import Json, OneSession, Summarizer, User
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.adapters.cli.screen import Screen
    from refold.domain.envelope import Envelope
    from refold.domain.events import Summary
    from refold.store import Session


def compact(
    context: typer.Context,
    user: User,
    session: OneSession,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="What decides: name, name:key=value,… or @file.toml.",
        ),
    ],
    summarizer: Annotated[
        Summarizer,
        typer.Option(help="What writes the summary; abridged needs no model."),
    ] = Summarizer.ABRIDGED,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Go on until nothing is due.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Do what a strategy decides: one compaction if one is due.

    The events stay in the log; the summary goes to the strategy's own stream.
    """
    from refold.domain.errors import InvalidConfiguration

    if summarizer is Summarizer.ANTHROPIC:
        raise InvalidConfiguration(
            "the summarizer anthropic is not available yet: use --summarizer abridged"
        )
    with opening.existing(context) as store:
        made = _compacted(store.session(user, session), strategy, until_idle)
    if as_json:
        print_json(
            [{**envelope.payload.payload(), "seq": envelope.seq} for envelope in made]
        )
    else:
        _show(made)


def _compacted(session: Session, strategy: str, until_idle: bool) -> list[Envelope]:
    """Do the steps that are due; returns the summaries that they made."""
    first: Envelope | None = None
    while step := session.compact(strategy):
        first = first or step
        if not until_idle:
            break
    if first is None:
        return []
    derived = session.derived(first.stream)
    return [e for e in derived if e.seq >= first.seq and e.type == "summary"]


def _show(made: list[Envelope]) -> None:
    from refold.adapters.cli.screen import Screen
    from refold.domain.events import Summary

    screen = Screen()
    records = [e.payload for e in made if isinstance(e.payload, Summary)]
    if not records:
        screen.line("nothing is due: the context stays as it is")
        return
    _strategy(screen, records[0])
    for record in records:
        _record(screen, record)


def _strategy(screen: Screen, record: Summary) -> None:
    from refold.adapters.cli.screen import shown

    params = ", ".join(
        f"{key}={value}" for key, value in record.strategy.params.items()
    )
    screen.line((record.strategy.name, "bold"), "  ", shown(params))


def _record(screen: Screen, record: Summary) -> None:
    from refold.adapters.cli.wording import counted

    folds = "".join(f", folds summary {seq}" for seq in record.absorbs)
    screen.line(
        ("compacted ", "bold blue"),
        f"seq {record.first_seq} to {record.last_seq}",
        (f"  {counted(record.source_event_count, 'event')}", "dim"),
        f"  {record.tokens_before:,} → {record.tokens_after:,} tokens",
        (f"  due at seq {record.decided_at_seq}, {record.summarizer.kind}", "dim"),
        (f", level {record.level}{folds}" if record.level > 1 else "", "dim"),
    )
