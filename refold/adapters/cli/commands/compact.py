"""``refold compact``: let a strategy compact a session, or all that become due."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.adapters.cli import options as opening
from refold.adapters.cli.options import (
    Json,
    SomeSession,
    SomeUser,
    Summarizer,
    SummarizerModel,
    WritesSummaries,
)
from refold.adapters.cli.output import print_json
from refold.domain.errors import InvalidConfiguration

if TYPE_CHECKING:
    from refold.adapters.cli.output import Screen
    from refold.domain.envelope import Envelope
    from refold.domain.events import Summary
    from refold.domain.ports import SessionInfo
    from refold.projections.context.compaction import Summarizer as Writes
    from refold.projections.context.strategy import Strategy
    from refold.store import Session, SessionStore
    from refold.store.contexts import Settings
    from refold.store.rebuilds import Rebuilt
    from refold.store.workers import Worker


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
            store.session(user, session),
            store.settings.strategy(strategy),
            writes,
            until_idle,
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

    from refold.store.workers import EVERY_SEC, Worker

    with opening.existing(context) as store:
        worker = partial(
            Worker,
            store,
            None if strategy is None else store.settings.strategy(strategy),
            summarizer=writes,
            user_id=user,
            session_id=session,
            every=EVERY_SEC if every is None else every,
        )
        watch(worker, as_lines if as_json else _show_watched)


def _show_watched(session: Session, made: list[tuple[int, Summary]]) -> None:
    from refold.adapters.cli.output import Screen

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
    from refold.adapters.cli.output import Screen
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
    from refold.adapters.cli.output import shown

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
    from refold.adapters.cli.output import counted

    folds = "".join(f", folds summary {seq}" for seq in record.absorbs)
    screen.line(
        (_DONE[record.kind], "bold blue"),
        f"seq {record.first_seq} to {record.last_seq}",
        (f"  {counted(record.source_event_count, 'event')}", "dim"),
        f"  {record.tokens_before:,} → {record.tokens_after:,} tokens",
        (f"  due at seq {record.decided_at_seq}, {record.summarizer.kind}", "dim"),
        (f", level {record.level}{folds}" if record.level > 1 else "", "dim"),
    )


_SIGNALS = (signal.SIGTERM, signal.SIGINT)
Show = Callable[["Session", list[tuple[int, "Summary"]]], None]


def watch(worker: Callable[..., Worker], show: Show) -> None:
    """Run the worker that ``worker(done=…)`` makes until SIGTERM or SIGINT comes.

    The compaction that it is at then ends first; a second signal does not wait.
    """

    def done(session: Session, strategy: Strategy, known: int) -> None:
        show(session, _made(session, strategy, known))
        sys.stdout.flush()

    working = worker(done=done)
    with stopped_by_signals(working.stop):
        working.run()


def as_lines(session: Session, made: list[tuple[int, Summary]]) -> None:
    """Print each record on a line, with whose it is."""
    whose = {"user_id": session.user_id, "session_id": session.session_id}
    for seq, record in made:
        print_json({**whose, **record.payload(), "seq": seq})


def _made(
    session: Session, strategy: Strategy, known: int
) -> list[tuple[int, Summary]]:
    from refold.domain.events import Summary

    derived = session.derived(strategy.fingerprint)
    return [
        (envelope.seq, envelope.payload)
        for envelope in derived
        if envelope.seq > known and isinstance(envelope.payload, Summary)
    ]


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    before: dict[signal.Signals, Any] = {}

    def handle(_signal: int, _frame: object) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        stop()

    for number in _SIGNALS:
        before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number in _SIGNALS:
            signal.signal(number, before[number])


_COUNTED = (
    "events",
    "compactions",
    "there_before",
    "failures",
    "tokens_in",
    "tokens_out",
)


def rebuild(
    context: typer.Context,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="What is to have run: name, name:key=value,… or @file.toml.",
        ),
    ],
    user: SomeUser = None,
    session: SomeSession = None,
    summarizer: WritesSummaries = Summarizer.ABRIDGED,
    model: SummarizerModel = None,
    jobs: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="So many sessions at a time."),
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Ask a model without asking you first.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop where the summarizer fails.")
    ] = False,
    activate: Annotated[
        bool,
        typer.Option(
            "--activate", help="Then make it what readers get who name no strategy."
        ),
    ] = False,
    retire: Annotated[
        str | None,
        typer.Option(
            metavar="OLD", help="Then give up the summaries of this strategy."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the summaries there would be, had a strategy always run.

    The log and the contexts of other strategies stay as they are.  Cut off, it goes
    on where it stopped when it is run again.  Exits with 1 if a summary failed or a
    session could not be rebuilt.
    """
    writes, begun = summarizer_of(summarizer, model), time.monotonic()
    with opening.existing(context) as store:
        found = opening.sessions(store, user, session)
        settings = store.settings
        new, old = settings.strategy(strategy), _fingerprint(settings, retire)
        work = _Work(store, user, session, found, new, old, jobs)
        work.check(activate=activate)
        asks = getattr(writes, "model", None)
        if dry_run or (asks and not yes):
            plan = work.run(None, dry_run=True, strict=False)
            plan.show(as_json=as_json, model=asks, seconds=time.monotonic() - begun)
            if dry_run:
                return
            _ask(as_json=as_json)
        done = work.run(writes, dry_run=False, strict=strict)
        work.switch(done, activate=activate)
    done.show(as_json=as_json, model=None, seconds=time.monotonic() - begun)
    if done.failed:
        raise typer.Exit(1)


@dataclass(slots=True)
class _Done:
    """What was done, or would be, in each session, and the switches that followed."""

    dry_run: bool
    sessions: list[Rebuilt] = field(default_factory=list)
    switched: Counter[str] = field(default_factory=Counter)

    @property
    def failed(self) -> bool:
        return any(one.problem or one.failures for one in self.sessions)

    @property
    def totals(self) -> dict[str, int]:
        return {
            what: sum(getattr(one, what) for one in self.sessions) for what in _COUNTED
        }

    def show(self, *, as_json: bool, model: str | None, seconds: float) -> None:
        """Print it; ``model`` is the one whose price is said."""
        cost = _cost(model, self.totals) if model else None
        if as_json:
            print_json(self._as_json(model, cost, seconds))
            return
        from refold.adapters.cli.output import Screen

        screen = Screen()
        for one in self.sessions:
            _session(screen, one, dry_run=self.dry_run)
        self._total(screen, model, cost)

    def _as_json(
        self, model: str | None, cost: float | None, seconds: float
    ) -> dict[str, Any]:
        told: dict[str, Any] = {
            "sessions": len(self.sessions),
            **self.totals,
            "seconds": round(seconds, 3),
            "problems": [
                {
                    "user_id": one.user_id,
                    "session_id": one.session_id,
                    "detail": one.problem,
                }
                for one in self.sessions
                if one.problem
            ],
        }
        if self.dry_run:
            return {**told, "dry_run": True, "model": model, "cost": cost}
        switched = {what: self.switched[what] for what in ("activated", "retired")}
        return {**told, **switched}

    def _total(self, screen: Screen, model: str | None, cost: float | None) -> None:
        from refold.adapters.cli.output import counted

        totals = self.totals
        made = counted(totals["compactions"], "summary", "summaries")
        walked = counted(totals["events"], "event")
        where = f"{walked} of {counted(len(self.sessions), 'session')}"
        screen.line((f"{made} {'to make' if self.dry_run else 'made'}", "bold"),
                    f" from {where}", *_rest(totals, self.switched))  # fmt: skip
        if model:
            price = "an unknown price" if cost is None else f"about ${cost:,.2f}"
            screen.line(
                f"{model} would read about {totals['tokens_in']:,} tokens and write at "
                f"most {totals['tokens_out']:,}: {price}"
            )


@dataclass(frozen=True, slots=True)
class _Work:
    """Which sessions are rebuilt for which strategy, and what is retired then."""

    store: SessionStore
    user: str | None
    session: str | None
    sessions: Sequence[SessionInfo]
    strategy: Strategy
    old: str | None
    jobs: int

    def check(self, *, activate: bool) -> None:
        """Refuse, before anything is done, to retire what stays in use.

        Raises InvalidConfiguration.
        """
        from refold.store.rebuilds import default_fingerprint

        if self.old is None:
            return
        if self.old == self.strategy.fingerprint:
            raise InvalidConfiguration("--retire names the strategy that is rebuilt")
        for info in self._open():
            session = self.store.session(info.user_id, info.session_id)
            if not activate and default_fingerprint(session) == self.old:
                raise InvalidConfiguration(
                    f"session {info.session_id!r} is read under the strategy that is "
                    "to be retired: add --activate"
                )

    def run(self, writes: Writes | None, *, dry_run: bool, strict: bool) -> _Done:
        """Rebuild, with a progress bar."""
        from refold.adapters.cli.output import Part, Progress

        done = _Done(dry_run)
        progress = Progress(sum(info.head_seq for info in self.sessions))
        parts: dict[tuple[str, str], Part] = {}

        def walked(info: SessionInfo, events: int) -> None:
            name = (info.user_id, info.session_id)
            parts.setdefault(name, Part(progress, info.session_id))(events)

        # Before the bar is shown: its thread would forbid processes.
        rebuilt = self.store.rebuild(
            self.strategy,
            self.user,
            self.session,
            summarizer=writes,
            strict=strict,
            dry_run=dry_run,
            jobs=self.jobs,
            progress=walked,
        )
        with progress:
            done.sessions += rebuilt
        done.sessions.sort(key=lambda one: (one.user_id, one.session_id))
        return done

    def switch(self, done: _Done, *, activate: bool) -> None:
        """Activate and retire in the sessions that were rebuilt to their end."""
        from refold.store import rebuilds as switching

        for one in done.sessions:
            if one.problem:
                continue
            session = self.store.session(one.user_id, one.session_id)
            if activate and switching.activate(session, self.strategy):
                done.switched["activated"] += 1
            if self.old and switching.default_fingerprint(session) != self.old:
                done.switched["retired"] += switching.retire(
                    session, self.old, why=f"replaced by {self.strategy.fingerprint}"
                )

    def _open(self) -> list[SessionInfo]:
        return [info for info in self.sessions if info.status == "open"]


def _fingerprint(settings: Settings, given: str | None) -> str | None:
    """What ``--retire`` names: a strategy, or the fingerprint of one not known now."""
    if given is None or re.fullmatch("[0-9a-f]{64}", given):
        return given
    return settings.strategy(given).fingerprint


def _ask(*, as_json: bool) -> None:
    """Go on only if a person says so.  Raises InvalidConfiguration where none can."""
    if as_json or not sys.stdin.isatty():
        raise InvalidConfiguration("asking a model costs money: --yes goes on with it")
    typer.confirm("Go on?", err=True, abort=True)


def _cost(model: str, totals: dict[str, int]) -> float | None:
    """US dollars; None if the model's prices are not known."""
    from refold.domain.errors import UnknownModel
    from refold.projections import models

    try:
        prices = models.price_of(model)
    except UnknownModel:
        return None
    spent = totals["tokens_in"] * prices.input + totals["tokens_out"] * prices.output
    return round(spent / models.MILLION, 4)


def _session(screen: Screen, one: Rebuilt, *, dry_run: bool) -> None:
    from refold.adapters.cli.output import counted, shown

    name = shown(f"{one.user_id} / {one.session_id}")
    if one.problem:
        screen.line(("✗ ", "bold red"), name, "  ", shown(one.problem))
        return
    made = counted(one.compactions, "summary", "summaries")
    before = f", {one.there_before:,} were there before" if one.there_before else ""
    failed = f", {counted(one.failures, 'attempt')} failed" if one.failures else ""
    mark = ("! ", "bold yellow") if one.failures else ("✓ ", "bold green")
    verb = "to make" if dry_run else "made"
    screen.line(mark, name, f"  {made} {verb}", (before, "dim"), (failed, "yellow"))


def _rest(totals: dict[str, int], switched: Counter[str]) -> list[str]:
    told = [f", {totals['there_before']:,} were there before"]
    told += [f", {totals['failures']:,} failed"] if totals["failures"] else []
    return told + [
        f", {switched[what]:,} {what}" for what in ("activated", "retired")
        if switched[what]
    ]  # fmt: skip
