"""``refold compact``, ``rebuild`` and ``worker``: summaries and background work."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.adapters.cli import output
from refold.adapters.cli.options import (
    Call,
    JobsOption,
    SessionFilter,
    Summarizer,
    UserFilter,
    duration,
    optional_session_name,
    session_name,
    session_option,
    sessions,
    user_option,
)
from refold.adapters.cli.output import Progress, Result, Screen, mark, names_of, shown
from refold.adapters.cli.parameters import strategy_parts
from refold.domain.erasure import RetentionPolicy
from refold.domain.errors import InvalidConfiguration, UnknownModel, counted
from refold.domain.events import Summary
from refold.projections import models
from refold.redaction.json_text import compact_json
from refold.store.work.workers import EVERY_SEC, Worker

if TYPE_CHECKING:
    from refold.domain.ports import SessionInfo
    from refold.projections.context.compaction import Summarizer as SummarizerPort
    from refold.projections.context.strategy import Strategy
    from refold.store import Session, SessionStore
    from refold.store.work.rebuilds import Rebuilt
    from refold.store.work.workers import Unit


SummarizerOption = Annotated[
    Summarizer,
    typer.Option(help="Writer of the summaries; abridged needs no model."),
]
ModelOption = Annotated[
    str | None, typer.Option(metavar="M", help="Model for the summarizer anthropic.")
]


def compact(
    call: Call,
    user: Annotated[
        str | None, user_option("User of the session; with --watch: only this user.")
    ] = None,
    session: Annotated[
        str | None,
        session_option(
            "Name of the session; with --watch: only sessions of this name."
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Strategy to compact with: name, name:key=value or @file.toml.  "
            "Default: the strategy of the last request, else history_summary.",
        ),
    ] = None,
    summarizer: SummarizerOption = "abridged",
    model: ModelOption = None,
    until_idle: Annotated[
        bool,
        typer.Option(
            "--until-idle", help="Repeat until the strategy asks for no more summaries."
        ),
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Keep running and compact sessions as they grow; stop with Ctrl-C.",
        ),
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SEC",
            help="With --watch: seconds between checks for new events; default 30.",
        ),
    ] = None,
) -> Result | None:
    """Compact a session if its strategy decides to.

    Needs --user and --session.  Makes one summary, and says if the strategy asks for
    more; --until-idle repeats until it asks for no more.  Events stay in the log.  If
    the summarizer fails, the context does not change.

    --watch compacts all sessions, or only those of --user or --session.  Without
    --strategy, it uses the strategy of each session.
    """
    writer = _summarizer(summarizer, model)
    if watch:
        if until_idle:
            raise _wrong_usage("leave --until-idle out: --watch does not end")
        store = call.store(long_running=True)
        seconds_between_checks = EVERY_SEC["compact"] if every is None else every
        worker = Worker(
            store,
            _strategy(store, strategy),
            duties={"compact": seconds_between_checks},
            summarizer=writer,
            user_id=user,
            session_id=session,
            done=partial(_print_task, call),
        )
        # The current compaction ends first; a second signal does not wait for it.
        with stopped_by_signals(worker.stop):
            worker.run()
        return None
    if user is None or session is None:
        raise _wrong_usage("give --user and --session, or --watch")
    if every is not None:
        raise _wrong_usage("use --every with --watch only")
    store = call.store()
    session = session_name(store, user, session)
    opened = store.session(user_id=user, session_id=session)
    chosen = _strategy(store, strategy) or opened.strategies.compactor().strategy
    return _compact_session(opened, chosen, writer, until_idle=until_idle)


def _compact_session(
    session: Session,
    strategy: Strategy,
    writer: SummarizerPort | None,
    *,
    until_idle: bool,
) -> Result:
    """Compact a session once, or until its strategy asks for no more."""
    events_before = len(session.history.derived(strategy.fingerprint))
    while session.compact(strategy, summarizer=writer):
        if not until_idle:
            break
    summaries: list[tuple[int, Summary]] = []
    failed = False  # a warning has given the reason
    for envelope in session.history.derived(strategy.fingerprint)[events_before:]:
        if isinstance(envelope.payload, Summary):
            summaries.append((envelope.seq, envelope.payload))
        elif getattr(envelope.payload, "phase", None) == "failed":
            failed = True

    def show(screen: Screen) -> None:
        if summaries:
            screen.line(*strategy_parts(strategy))
            for _, summary in summaries:
                _show_summary(screen, summary)
            _show_adopted(screen, [summary for _, summary in summaries])
            if _is_pending(session, strategy) and not failed:
                screen.line(
                    ("the strategy asks for more summaries: ", "yellow"),
                    "add --until-idle to make them all",
                )
        elif not failed:
            waits = session.strategies.compactor(strategy).waits_for()
            screen.line("nothing to compact: ", shown(waits))

    values = [{**summary.payload(), "seq": seq} for seq, summary in summaries]
    return Result(values, show, int(failed))


def _is_pending(session: Session, strategy: Strategy) -> bool:
    """Whether the strategy asks for another summary of the session now."""
    compactor = session.strategies.compactor(strategy)
    return compactor.is_due(compactor.viewer.current(compactor.strategy))


def _show_adopted(screen: Screen, summaries: Sequence[Summary]) -> None:
    """Explain summaries that were written under other parameters, if there are any."""
    adopted = [summary for summary in summaries if summary.adopted is not None]
    if not adopted:
        return
    screen.line(
        (f"{counted(len(adopted), 'adopted summary', 'adopted summaries')}: ", "dim"),
        "written earlier, under other parameters of this strategy",
    )
    screen.line(
        "  its text is reused unchanged; parameters such as summary_tokens apply only "
        "to new summaries"
    )


def _strategy(store: SessionStore, spec: str | None) -> Strategy | None:
    """Return the strategy that an option names; None without the option."""
    if spec is None:
        return None
    return store.settings.strategy(spec)


def _wrong_usage(reason: str) -> InvalidConfiguration:
    """Return the error for options that do not go together."""
    return InvalidConfiguration(f"{reason}: see `refold compact --help`")


def _summarizer(name: Summarizer, model: str | None) -> SummarizerPort | None:
    """Return the summarizer of this name; None means the store's own.

    Raises InvalidConfiguration if the options do not go together, or if a package is
    missing.
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


# The first words of the line about a summary, by its kind.
_ACTIONS: Final = {
    "session": "compacted ",
    "scope": "summarized for the scope: ",
    "notes": "updated the notes: ",
}


def _show_summary(screen: Screen, summary: Summary) -> None:
    """Print what a summary stands for, without its text."""
    level = ""
    if summary.level > 1:
        level = f", level {summary.level}"
        for seq in summary.absorbs:
            level += f", folds summary {seq}"
    events = counted(summary.source_event_count, "event")
    spanned = summary.last_seq - summary.first_seq + 1
    if summary.source_event_count < spanned:  # the client may leave some out
        events = f"{summary.source_event_count:,} of {counted(spanned, 'event')}"
    screen.line(
        (_ACTIONS[summary.kind], "bold blue"),
        f"seq {summary.first_seq} to {summary.last_seq}",
        (f"  {events}", "dim"),
        f"  {summary.tokens_before:,} → {counted(summary.tokens_after, 'token')}",
        (
            f"  decided at seq {summary.decided_at_seq}, by {summary.summarizer.kind}",
            "dim",
        ),
        (", adopted" if summary.adopted else "", "dim"),
        (level, "dim"),
    )


def _print_task(call: Call, unit: Unit, outcome: Any) -> None:
    """Print a task that a worker completed; people see summaries without their text.

    A verification is printed only if it found problems.
    """
    if unit.duty == "compact":
        outcome_json = {**outcome.payload.payload(), "seq": outcome.seq}
    else:
        outcome_json = outcome.to_json()
    value = {**unit._asdict(), **outcome_json}

    def show(screen: Screen) -> None:
        if unit.duty == "compact":
            screen.line((f"{unit.user_id} {unit.session_id}", "bold"))
            _show_summary(screen, outcome.payload)
        elif unit.duty == "seal":
            screen.line(output.tree_head(outcome))
        else:
            screen.line(shown(compact_json(value)))

    if unit.duty == "verify" and not outcome_json["problems"]:
        return
    call.report(Result(value, show, changed=unit.duty != "verify"))
    sys.stdout.flush()


def worker(
    call: Call,
    do: Annotated[
        str,
        typer.Option(
            metavar="DUTIES",
            help="Comma-separated duties, each with an optional interval: "
            "compact=30s,index=60s,seal=60s,erase=60s,verify=7d,rebuild,retain=1h.",
        ),
    ] = "compact,seal,erase",
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Strategy that decides when to compact.  Default: the strategy of "
            "each session.",
        ),
    ] = None,
    rebuild: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="Run the duty rebuild, for this strategy."),
    ] = None,
    retain: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Run the duty retain, with this policy in TOML."
        ),
    ] = None,
    summarizer: SummarizerOption = "abridged",
    model: ModelOption = None,
    lease: Annotated[
        float,
        typer.Option(
            metavar="SEC",
            help="Seconds until another worker takes over the task of one that died.",
        ),
    ] = 6.0,
    most_per_second: Annotated[
        float,
        typer.Option(metavar="N", help="Maximum number of tasks to start per second."),
    ] = 1000.0,
    health: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve /health, /health/ready and /metrics on this port of "
            "127.0.0.1; 0 chooses a free one.",
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Number of processes that look for events to seal."
        ),
    ] = 1,
) -> None:
    """Run background work: compact, index, seal, erase, verify.

    Runs until SIGTERM or Ctrl-C; it finishes its current task first.  Start as many
    workers as you like, on as many machines as you like: they share the work by
    leases.  If one dies, another takes over its task.  Prints each completed task.

    Duties: compact (sessions whose strategy asks for it), index (new events, for
    lists and searches), seal (new events), erase (interrupted erasures, and those
    whose grace period is over), verify (each session, and the tree).  The options
    --rebuild and --retain add the duties rebuild (each session once) and retain.
    Index is not a default: it looks at each session when a worker starts, and then
    reads new events.  It reads a session with fewer than 256 events again from its
    beginning.
    """
    store = call.store(long_running=True)
    duty_texts = do.split(",")  # such as "seal" or "seal=60s"
    if rebuild is not None:
        duty_texts.append("rebuild")
    retention = None
    if retain is not None:
        duty_texts.append("retain")
        retention = RetentionPolicy.read(retain.read_bytes())
    duties: dict[str, float] = {}
    for text in duty_texts:
        name, _, interval = text.partition("=")
        if interval:
            duties[name] = duration(interval).total_seconds()
        elif name not in duties:
            # --rebuild and --retain keep an interval given in --do.
            duties[name] = EVERY_SEC.get(name, 0.0)
    background = Worker(
        store,
        _strategy(store, strategy),
        duties=duties,
        summarizer=_summarizer(summarizer, model),
        rebuilds=_strategy(store, rebuild),
        retains=retention,
        executor=call.executor(jobs),
        lease=lease,
        most_per_second=most_per_second,
        done=partial(_print_task, call),
    )
    if health is not None:
        from refold.adapters.cli.health import served

        call.with_resource(served(background, health))
    with stopped_by_signals(background.stop):
        background.run()


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
    strategy: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="Strategy to make summaries for: name, name:key=value or @file.toml.",
        ),
    ],
    user: UserFilter = None,
    session: SessionFilter = None,
    summarizer: SummarizerOption = "abridged",
    model: ModelOption = None,
    jobs: JobsOption = 1,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show planned work and its cost; change nothing."
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Compare with the summaries that the session has; change nothing.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before paying for a model.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Stop when the summarizer fails for the first time."
        ),
    ] = False,
    activate: Annotated[
        bool,
        typer.Option(
            "--activate",
            help="Afterwards, make this the default strategy of each session.",
        ),
    ] = False,
    retire: Annotated[
        str | None,
        typer.Option(
            metavar="OLD", help="Afterwards, retire the summaries of this strategy."
        ),
    ] = None,
) -> Result:
    """Make the summaries that a strategy would have made.

    The log and the contexts of other strategies do not change.  If it is
    interrupted, run it again to complete it.  Exits with 1 if a summary failed or a
    session could not be rebuilt.

    --check exits with 1 if the rebuild would make other summaries than the session
    made.  Summaries after the last model call are not compared.
    """
    started = time.monotonic()
    writer = _summarizer(summarizer, model)
    store = call.store()
    session = optional_session_name(store, user, session)
    infos = list(sessions(store, user, session))
    new = store.settings.strategy(strategy)
    old_fingerprint: str | None
    if retire is None or re.fullmatch("[0-9a-f]{64}", retire):
        old_fingerprint = retire
    else:
        old_fingerprint = store.settings.strategy(retire).fingerprint
    if old_fingerprint == new.fingerprint:
        raise InvalidConfiguration(
            "--retire names the strategy to rebuild: name another"
        )
    if old_fingerprint is not None and not activate:
        _check_unused(store, infos, old_fingerprint)
    # Model calls only wait, so threads are enough, and the client cannot move to
    # another process.
    executor = ThreadPoolExecutor(jobs) if writer else call.executor(jobs)
    run = partial(
        _rebuild_sessions,
        store,
        new,
        infos,
        user_id=user,
        session_id=session,
        executor=executor,
    )
    if check:
        checked = run(checks=True)
        return _rebuild_result(
            checked, time.monotonic() - started, changes_nothing=True
        )
    paid_model = getattr(writer, "model", None)
    if dry_run or (paid_model and not yes):
        planned = run(dry_run=True)
        seconds = time.monotonic() - started
        plan = _rebuild_result(planned, seconds, changes_nothing=True, model=paid_model)
        if dry_run:
            # A dry run succeeds whatever it finds.
            return plan._replace(code=0)
        call.report(plan)
        if call.as_json or not sys.stdin.isatty():
            raise InvalidConfiguration("asking a model costs money: add --yes to go on")
        typer.confirm("Continue?", err=True, abort=True)
    reports = run(summarizer=writer, strict=strict)
    sessions_by_action: Counter[str] = Counter()
    for report in reports:
        if report.problem:
            continue
        rebuilt = store.session(user_id=report.user_id, session_id=report.session_id)
        if activate and rebuilt.strategies.activate(new):
            sessions_by_action["activated"] += 1
        if old_fingerprint and _retire_old(rebuilt, old_fingerprint, new.fingerprint):
            sessions_by_action["retired"] += 1
    return _rebuild_result(
        reports, time.monotonic() - started, actions=sessions_by_action
    )


def _check_unused(
    store: SessionStore, infos: Sequence[SessionInfo], fingerprint: str
) -> None:
    """Raise InvalidConfiguration if an open session uses the strategy to retire."""
    for info in infos:
        if info.status != "open":
            continue
        session = store.session(user_id=info.user_id, session_id=info.session_id)
        if session.strategies.default_fingerprint() == fingerprint:
            raise InvalidConfiguration(
                f"session {info.session_id!r} still uses the strategy to retire: "
                "add --activate"
            )


def _rebuild_sessions(
    store: SessionStore,
    strategy: Strategy,
    infos: Sequence[SessionInfo],
    **options: Any,
) -> list[Rebuilt]:
    """Rebuild sessions with a progress bar; ``options`` go to ``store.rebuild``."""
    progress = Progress(sum(info.head_seq for info in infos), of="events")

    def show_progress(info: SessionInfo, events: int) -> None:
        progress.reach((info.user_id, info.session_id), info.session_id, events)

    with progress:
        reports = store.rebuild(strategy, progress=show_progress, **options)
        return sorted(reports, key=lambda report: (report.user_id, report.session_id))


def _retire_old(session: Session, old: str, new: str) -> bool:
    """Retire the summaries of a strategy, unless the session still uses it.

    old: the fingerprint of that strategy.
    new: the fingerprint of the strategy that replaces it.

    Returns whether this call retired them.
    """
    if session.strategies.default_fingerprint() == old:
        return False
    return bool(session.strategies.retire(old, why=f"replaced by {new}"))


# The figures of a session's report that are added up.
_COUNTED: Final = (
    "events",
    "compactions",
    "there_before",
    "failures",
    "tokens_in",
    "tokens_out",
)


def _rebuild_result(
    reports: Sequence[Rebuilt],
    seconds: float,
    *,
    actions: Mapping[str, int] = MappingProxyType({}),
    changes_nothing: bool = False,
    model: str | None = None,
) -> Result:
    """Return the result of a rebuild, or of a dry run or check.

    actions:         the number of sessions by action.
    changes_nothing: whether summaries were only planned or compared.
    model:           the model that would cost money.
    """
    totals = dict.fromkeys(_COUNTED, 0)
    for report in reports:
        for name in _COUNTED:
            totals[name] += getattr(report, name)
    cost = None
    if model:
        with suppress(UnknownModel):
            prices = models.price_of(model)
            spent = totals["tokens_in"] * prices.input
            spent += totals["tokens_out"] * prices.output
            cost = round(spent / models.MILLION, 4)
    to_make = "to make" if changes_nothing else "made"

    def show(screen: Screen) -> None:
        for report in reports:
            _show_session(screen, report, to_make)
        summaries = counted(totals["compactions"], "summary", "summaries")
        events = counted(totals["events"], "event")
        details = [
            f" from {events} of {counted(len(reports), 'session')}",
            f", {totals['there_before']:,} already there",
        ]
        if totals["failures"]:
            details.append(f", {totals['failures']:,} failed")
        for action, count in actions.items():
            details.append(f", {count:,} {action}")
        screen.line((f"{summaries} {to_make}", "bold"), *details)
        if model:
            price = "price unknown" if cost is None else f"about ${cost:,.2f}"
            screen.line(
                f"{model} would read about {counted(totals['tokens_in'], 'token')} and "
                f"write at most {totals['tokens_out']:,}: {price}"
            )

    problems = [
        {**names_of(report), "detail": report.problem}
        for report in reports
        if report.problem
    ]
    value: dict[str, Any] = {
        "sessions": len(reports),
        **totals,
        "seconds": round(seconds, 3),
        "problems": problems,
    }
    if changes_nothing:
        value["dry_run"] = True
        value["model"] = model
        value["cost"] = cost
    else:
        value["activated"] = actions.get("activated", 0)
        value["retired"] = actions.get("retired", 0)
    failed = any(report.problem or report.failures for report in reports)
    return Result(value, show, int(failed))


def _show_session(screen: Screen, report: Rebuilt, to_make: str) -> None:
    """Print a line about a session; ``to_make`` says whether summaries were made."""
    name = shown(f"{report.user_id} / {report.session_id}")
    if report.problem:
        screen.line(mark(ok=False), name, "  ", shown(report.problem))
        return
    summaries = counted(report.compactions, "summary", "summaries")
    before = ""
    if report.there_before:
        before = f", {report.there_before:,} already there"
    failed = ""
    if report.failures:
        failed = f", {counted(report.failures, 'attempt')} failed"
    screen.line(
        mark(ok=None if report.failures else True),
        name,
        f"  {summaries} {to_make}",
        (before, "dim"),
        (failed, "yellow"),
    )
