"""``refold compact``: let a strategy compact a session, or all that become due."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.options import (
    Json,
    SomeSession,
    SomeUser,
    Summarizer,
    SummarizerModel,
    WritesSummaries,
)
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.adapters.cli.screen import Screen
    from refold.domain.envelope import Envelope
    from refold.domain.events import Summary
    from refold.projections.context.strategy import Strategy
    from refold.projections.context.summarizer import Summarizer as Writes
    from refold.store import Session


def compact(
    context: typer.Context,
    user: SomeUser = None,
    session: SomeSession = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="What decides: name, name:key=value,… or @file.toml.",
        ),
    ] = None,
    summarizer: WritesSummaries = Summarizer.ABRIDGED,
    model: SummarizerModel = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Go on until nothing is due.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Compact whatever becomes due, until SIGTERM or Ctrl-C."
        ),
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SEC",
            help="How often --watch looks for new events; 30 if left out.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Do what a strategy decides: one compaction if one is due.

    The events stay in the log; the summary goes to the strategy's own stream.
    Nothing is changed if the summarizer fails.  With --watch it goes on for ever, on
    all sessions, or those of a user or a name; --strategy left out is then each
    session's own.
    """
    from refold.store.choosing import chosen

    writes = summarizer_of(summarizer, model)
    if watch:
        if until_idle:
            raise _wrong("--until-idle is not for --watch, which is never idle")
        _watch(context, user, session, strategy, writes, every, as_json)
        return
    if user is None or session is None or strategy is None:
        raise _wrong("--user, --session and --strategy are needed, but for --watch")
    if every is not None:
        raise _wrong("--every is for --watch")
    with opening.existing(context) as store:
        told = _compacted(
            store.session(user, session), chosen(strategy, None), writes, until_idle
        )
    made = [envelope for envelope in told if envelope.type == "summary"]
    failed = any(getattr(e.payload, "phase", None) == "failed" for e in told)
    if as_json:
        print_json(
            [{**envelope.payload.payload(), "seq": envelope.seq} for envelope in made]
        )
    elif made or not failed:
        _show(made)
    if failed:  # why has been said, as a warning
        raise typer.Exit(1)


def _wrong(why: str) -> Exception:
    from refold.domain.errors import InvalidConfiguration

    return InvalidConfiguration(f"{why}: `refold compact --help` shows what it takes")


def _watch(
    context: typer.Context,
    user: str | None,
    session: str | None,
    strategy: str | None,
    writes: Writes | None,
    every: float | None,
    as_json: bool,
) -> None:
    from functools import partial

    from refold.adapters.cli.commands.watch import as_lines, watch
    from refold.store.choosing import chosen
    from refold.store.working import EVERY_SEC, Worker

    with opening.existing(context) as store:
        worker = partial(
            Worker,
            store,
            None if strategy is None else chosen(strategy, None),
            summarizer=writes,
            user_id=user,
            session_id=session,
            every=EVERY_SEC if every is None else every,
        )
        watch(worker, as_lines if as_json else _show_watched)


def _show_watched(session: Session, made: list[tuple[int, Summary]]) -> None:
    from refold.adapters.cli.screen import Screen

    screen = Screen()
    screen.line((f"{session.user_id} {session.session_id}", "bold"))
    for _, record in made:
        _record(screen, record)


def summarizer_of(name: Summarizer, model: str | None) -> Writes | None:
    """What ``--summarizer`` names; None for the store's own.

    Raises InvalidConfiguration if it cannot be had.
    """
    from refold.domain.errors import InvalidConfiguration

    if name is Summarizer.ABRIDGED:
        if model is not None:
            raise InvalidConfiguration("--model is for --summarizer anthropic")
        return None
    try:
        from refold.adapters.claude.summarizer import DEFAULT_MODEL, AnthropicSummarizer
    except ModuleNotFoundError as missing:
        raise InvalidConfiguration(
            f"--summarizer anthropic needs the package {missing.name}: "
            "`pip install anthropic` installs what is missing"
        ) from None
    return AnthropicSummarizer(model=model or DEFAULT_MODEL)


def _compacted(
    session: Session, strategy: Strategy, writes: Writes | None, until_idle: bool
) -> list[Envelope]:
    """Do the steps that are due; returns the events that tell of them."""
    before = len(session.derived(strategy.fingerprint))
    while session.compact(strategy, summarizer=writes) and until_idle:
        pass
    return session.derived(strategy.fingerprint)[before:]


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


_DONE = {
    "session": "compacted ",
    "scope": "digested for the scope ",
    "notes": "rewrote the notes of ",
}


def _record(screen: Screen, record: Summary) -> None:
    from refold.adapters.cli.wording import counted

    folds = "".join(f", folds summary {seq}" for seq in record.absorbs)
    screen.line(
        (_DONE[record.kind], "bold blue"),
        f"seq {record.first_seq} to {record.last_seq}",
        (f"  {counted(record.source_event_count, 'event')}", "dim"),
        f"  {record.tokens_before:,} → {record.tokens_after:,} tokens",
        (f"  due at seq {record.decided_at_seq}, {record.summarizer.kind}", "dim"),
        (f", level {record.level}{folds}" if record.level > 1 else "", "dim"),
    )
