"""``refold compact`` and ``refold rebuild``: summaries due, or that would have been."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import typer

from refold.adapters.cli.options import Call, Summarizer, sessions
from refold.adapters.cli.output import (
    Progress,
    Result,
    Screen,
    Stretch,
    mark,
    shown,
    whose,
)
from refold.domain.errors import InvalidConfiguration, UnknownModel, counted
from refold.domain.events import Summary
from refold.projections import models
from refold.store.workers import EVERY_SEC, Worker

if TYPE_CHECKING:
    from refold.domain.ports import SessionInfo
    from refold.projections.context.compaction import Summarizer as Writes
    from refold.projections.context.strategy import Strategy
    from refold.store import Session, SessionStore
    from refold.store.rebuilds import Rebuilt


def compact(
    call: Call,
    user: str | None = None,
    session: str | None = None,
    strategy: str | None = None,
    summarizer: Summarizer = "abridged",
    model: str | None = None,
    until_idle: bool = False,
    watch: bool = False,
    every: float | None = None,
) -> Result | None:
    """Compact a session if a compaction is due."""
    writes = _writer(summarizer, model)
    if watch:
        if until_idle:
            raise _wrong("leave --until-idle out: --watch does not end")
        store = call.store()
        worker = Worker(
            store,
            None if strategy is None else store.settings.strategy(strategy),
            summarizer=writes,
            user_id=user,
            session_id=session,
            every=EVERY_SEC if every is None else every,
            done=partial(_tell_done, call),
        )
        # The compaction that it is at ends first; a second signal does not wait.
        with stopped_by_signals(worker.stop):
            worker.run()
        return None
    if user is None or session is None or strategy is None:
        raise _wrong("give --user, --session and --strategy, or --watch")
    if every is not None:
        raise _wrong("use --every with --watch only")
    store = call.store()
    one = store.session(user_id=user, session_id=session)
    decides = store.settings.strategy(strategy)
    before = len(one.derived(decides.fingerprint))
    while one.compact(decides, summarizer=writes) and until_idle:
        pass
    told = one.derived(decides.fingerprint)[before:]
    made = [(e.seq, e.payload) for e in told if isinstance(e.payload, Summary)]
    failed = any(getattr(e.payload, "phase", None) == "failed" for e in told)

    def show(screen: Screen) -> None:
        if made:
            _show(screen, [record for _, record in made])
        elif not failed:
            waits = one.compactor(decides).waits_for()
            screen.line("nothing is due: ", shown(waits))

    every_one = [{**record.payload(), "seq": seq} for seq, record in made]
    return Result(every_one, show, int(failed))  # why has been said, as a warning


def _wrong(why: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"{why}: see `refold compact --help`")


def _writer(name: Summarizer, model: str | None) -> Writes | None:
    """What ``--summarizer`` names; None for the store's own.

    Raises InvalidConfiguration if it cannot be had.
    """
    if name == "abridged":
        if model is not None:
            raise InvalidConfiguration("use --model with --summarizer anthropic only")
        return None
    try:
        from refold.adapters.claude.summarizer import DEFAULT_MODEL, AnthropicSummarizer
    except ModuleNotFoundError as missing:
        raise InvalidConfiguration(
            f"--summarizer anthropic needs the package {missing.name}: "
            "`pip install anthropic` installs what is missing"
        ) from None
    return AnthropicSummarizer(model=model or DEFAULT_MODEL)


def _show(screen: Screen, records: Sequence[Summary]) -> None:
    ref = records[0].strategy
    params = ", ".join(f"{key}={json.dumps(v)}" for key, v in ref.params.items())
    screen.line((ref.name, "bold"), "  ", shown(params))
    for record in records:
        _record(screen, record)


_DONE: Final = {
    "session": "compacted ",
    "scope": "digested for the scope ",
    "notes": "rewrote the notes of ",
}


def _record(screen: Screen, record: Summary) -> None:
    folds = "".join(f", folds summary {seq}" for seq in record.absorbs)
    screen.line(
        (_DONE[record.kind], "bold blue"),
        f"seq {record.first_seq} to {record.last_seq}",
        (f"  {counted(record.source_event_count, 'event')}", "dim"),
        f"  {record.tokens_before:,} → {counted(record.tokens_after, 'token')}",
        (f"  due at seq {record.decided_at_seq}, {record.summarizer.kind}", "dim"),
        (", adopted" if record.adopted else "", "dim"),
        (f", level {record.level}{folds}" if record.level > 1 else "", "dim"),
    )


def _tell_done(call: Call, session: Session, strategy: Strategy, known: int) -> None:
    """Print the summaries that a worker made behind seq ``known``."""
    made = [
        (envelope.seq, envelope.payload)
        for envelope in session.derived(strategy.fingerprint)
        if envelope.seq > known and isinstance(envelope.payload, Summary)
    ]

    def show(screen: Screen) -> None:
        screen.line((f"{session.user_id} {session.session_id}", "bold"))
        for _, record in made:
            _record(screen, record)

    lines = ({**whose(session), **record.payload(), "seq": seq} for seq, record in made)
    call.tell(Result(lines, show))
    sys.stdout.flush()


_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at the first signal to end; the second ends the process."""

    def handle(_signal: int, _frame: object) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        stop()

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number in _SIGNALS:
            signal.signal(number, before[number])


def rebuild(
    call: Call,
    strategy: str,
    user: str | None = None,
    session: str | None = None,
    summarizer: Summarizer = "abridged",
    model: str | None = None,
    jobs: int = 1,
    dry_run: bool = False,
    yes: bool = False,
    strict: bool = False,
    activate: bool = False,
    retire: str | None = None,
) -> Result:
    """Make the summaries a strategy would have made."""
    writes, begun = _writer(summarizer, model), time.monotonic()
    store = call.store()
    found = sessions(store, user, session)
    new, old = store.settings.strategy(strategy), retire
    if retire is not None and not re.fullmatch("[0-9a-f]{64}", retire):
        old = store.settings.strategy(retire).fingerprint
    work = _Work(store, user, session, found, new, old, jobs)
    work.check(activate=activate)
    asks = getattr(writes, "model", None)
    if dry_run or (asks and not yes):
        plan = work.run(None, dry_run=True, strict=False)
        planned = plan.result(model=asks, seconds=time.monotonic() - begun)
        if dry_run:
            return planned._replace(code=0)
        call.tell(planned)
        if call.as_json or not sys.stdin.isatty():
            raise InvalidConfiguration("asking a model costs money: add --yes to go on")
        typer.confirm("Go on?", err=True, abort=True)
    done = work.run(writes, dry_run=False, strict=strict)
    work.switch(done, activate=activate)
    return done.result(model=None, seconds=time.monotonic() - begun)


_COUNTED: Final = (
    *("events", "compactions", "there_before"),
    *("failures", "tokens_in", "tokens_out"),
)


@dataclass(slots=True)
class _Done:
    """What was done, or would be, in each session, and the switches that followed."""

    dry_run: bool
    sessions: list[Rebuilt] = field(default_factory=list)
    switched: Counter[str] = field(default_factory=Counter)

    @property
    def totals(self) -> dict[str, int]:
        rebuilt = self.sessions
        return {what: sum(getattr(one, what) for one in rebuilt) for what in _COUNTED}

    def result(self, *, model: str | None, seconds: float) -> Result:
        """``model`` is the one whose price is said, in US dollars, if it is known."""
        cost, totals = None, self.totals
        if model:
            with suppress(UnknownModel):
                prices = models.price_of(model)
                spent = totals["tokens_in"] * prices.input
                spent += totals["tokens_out"] * prices.output
                cost = round(spent / models.MILLION, 4)

        def show(screen: Screen) -> None:
            for one in self.sessions:
                _session(screen, one, dry_run=self.dry_run)
            self._total(screen, model, cost)

        told: dict[str, Any] = {
            "sessions": len(self.sessions),
            **totals,
            "seconds": round(seconds, 3),
            "problems": [
                {**whose(one), "detail": one.problem}
                for one in self.sessions
                if one.problem
            ],
        }
        if self.dry_run:
            told |= {"dry_run": True, "model": model, "cost": cost}
        else:
            told |= {what: self.switched[what] for what in ("activated", "retired")}
        failed = any(one.problem or one.failures for one in self.sessions)
        return Result(told, show, int(failed))

    def _total(self, screen: Screen, model: str | None, cost: float | None) -> None:
        totals = self.totals
        made = counted(totals["compactions"], "summary", "summaries")
        walked = counted(totals["events"], "event")
        rest = [f", {totals['there_before']:,} already there"]
        rest += [f", {totals['failures']:,} failed"] if totals["failures"] else []
        rest += [f", {count:,} {what}" for what, count in self.switched.items()]
        screen.line(
            (f"{made} {'to make' if self.dry_run else 'made'}", "bold"),
            f" from {walked} of {counted(len(self.sessions), 'session')}",
            *rest,
        )
        if model:
            price = "price unknown" if cost is None else f"about ${cost:,.2f}"
            screen.line(
                f"{model} would read about {counted(totals['tokens_in'], 'token')} and "
                f"write at most {totals['tokens_out']:,}: {price}"
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
        if self.old is None:
            return
        if self.old == self.strategy.fingerprint:
            raise InvalidConfiguration(
                "--retire names the strategy to rebuild: name another"
            )
        for info in self.sessions if not activate else ():
            session = self.store.session(**whose(info))
            is_open = info.status == "open"
            if is_open and session.default_fingerprint() == self.old:
                raise InvalidConfiguration(
                    f"session {info.session_id!r} still uses the strategy to retire: "
                    "add --activate"
                )

    def run(self, writes: Writes | None, *, dry_run: bool, strict: bool) -> _Done:
        """Rebuild, with a progress bar."""
        done = _Done(dry_run)
        progress = Progress(sum(info.head_seq for info in self.sessions), of="events")
        parts: dict[tuple[str, str], Stretch] = {}

        def walked(info: SessionInfo, events: int) -> None:
            part = Stretch(progress, info.session_id)
            parts.setdefault((info.user_id, info.session_id), part)(events)

        # Before the bar is shown: its thread would forbid processes.
        rebuilt = self.store.rebuild(
            self.strategy,
            user_id=self.user,
            session_id=self.session,
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
        for one in done.sessions:
            if one.problem:
                continue
            session = self.store.session(**whose(one))
            if activate and session.activate(self.strategy):
                done.switched["activated"] += 1
            if self.old and session.default_fingerprint() != self.old:
                why = f"replaced by {self.strategy.fingerprint}"
                retired = session.retire(self.old, why=why)
                done.switched += Counter(retired=int(retired))


def _session(screen: Screen, one: Rebuilt, *, dry_run: bool) -> None:
    name = shown(f"{one.user_id} / {one.session_id}")
    if one.problem:
        screen.line(mark(False), name, "  ", shown(one.problem))
        return
    made = counted(one.compactions, "summary", "summaries")
    before = f", {one.there_before:,} already there" if one.there_before else ""
    failed = f", {counted(one.failures, 'attempt')} failed" if one.failures else ""
    done = f"  {made} {'to make' if dry_run else 'made'}"
    sign = mark(None if one.failures else True)
    screen.line(sign, name, done, (before, "dim"), (failed, "yellow"))
