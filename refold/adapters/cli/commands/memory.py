"""``refold memory`` and ``refold consent``: learned items, and the user's grants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from refold.adapters.cli.options import (
    Call,
    ReasonOption,
    check_user,
    chosen_user,
    pages,
    used,
    user_option,
)
from refold.adapters.cli.output import Result, Screen, complain, shown
from refold.adapters.display.events import preview
from refold.domain import errors
from refold.domain.errors import RefoldError, counted
from refold.projections.memory.advice import (
    Choice,
    describe,
    why_not as why_not_advised,
)
from refold.projections.memory.profile import (
    describe as describe_declarative,
    topic_name,
    why_not as why_not_in_profile,
)
from refold.projections.memory.sessions import GENERAL

if TYPE_CHECKING:
    from refold.domain.envelope import Envelope
    from refold.projections.context.budget import Advice
    from refold.projections.memory.items import Item, Lift
    from refold.projections.memory.profile import Profile
    from refold.store import SessionStore
    from refold.store.memory.procedural import Memory

_TOKENS: Final = 600
# The messages for details that an action does not take.
_WRONG_DETAILS: Final = {
    "--scenario": "use --scenario with the list of items or with --advice",
    "--all": "use --all with the list of a user's items",
    "--tokens": "use --tokens with --advice",
}


def memory(
    call: Call,
    user: Annotated[
        str | None,
        user_option(
            "Show this user's memory.  Default: that of the only user; --forget needs "
            "--user."
        ),
    ] = None,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="Show only items that many users share.")
    ] = False,
    scenario: Annotated[
        str | None,
        typer.Option(
            metavar="S",
            help="Only items for this kind of task; `general` items apply to "
            "all tasks.",
        ),
    ] = None,
    include_weak: Annotated[
        bool,
        typer.Option(
            "--all", help="Include items with too few sessions, or with tainted ones."
        ),
    ] = False,
    item: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Show one item and the events behind it."),
    ] = None,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Show the profile of a user who consented."),
    ] = False,
    advice: Annotated[
        bool,
        typer.Option("--advice", help="Show the advice that a model would get now."),
    ] = False,
    tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Budget of --advice in tokens; default 600."
        ),
    ] = None,
    effect: Annotated[
        bool,
        typer.Option(
            "--effect", help="Compare how sessions ended with and without an item."
        ),
    ] = False,
    forget: Annotated[
        str | None, typer.Option(metavar="ID", help="Forget an item for good.")
    ] = None,
    refresh: Annotated[
        bool,
        typer.Option(
            "--refresh", help="Bring memory up to date, for all users or one."
        ),
    ] = False,
) -> Result:
    """Show what was learned from a user's sessions.

    Lists which tools worked, failed and helped, and how often.  Every item is
    computed from the log and names its events.  An item needs three sessions; --all
    also lists items with fewer.
    """
    _check_options(
        actions=_used_options(
            item=item,
            advice=advice,
            profile=profile,
            effect=effect,
            forget=forget,
            refresh=refresh,
        ),
        subjects=_used_options(user=user, everyone=everyone),
        details=_used_options(scenario=scenario, all=include_weak, tokens=tokens),
    )
    store = call.store()
    if user is not None:
        check_user(store, user)
    if refresh:
        return _refresh_users(store, user)
    if everyone:
        shared = store.memory.shared()
        return _items(shared, shared.items, scenario)
    user = chosen_user(store, user)
    if forget is not None:
        receipt = store.user(user).forget(forget)
        text = f"{forget} stays forgotten when memory is recomputed"
        return Result({"forgotten": forget, "seq": receipt.last_seq}, text)
    if item is not None:
        return _item(store, user, item)
    if profile:
        return profile_report(store.memory.profile(user), store.clock())
    if advice:
        return _advice(
            store.memory.advice(
                user,
                fresh=timedelta(0),
                scenario=scenario or GENERAL,
                tokens=_TOKENS if tokens is None else tokens,
            )
        )
    of_user = store.memory.of(user)
    if effect:
        return _effect(of_user)
    items = [entry for entry in of_user.items if include_weak or entry.established]
    return _items(of_user, items, scenario)


def _used_options(**options: object) -> list[str]:
    """Return the options that are on the command line, with their dashes."""
    return [f"--{name}" for name in used(options)]


def _check_options(
    *, actions: list[str], subjects: list[str], details: list[str]
) -> None:
    """Raise typer.BadParameter for options that do not go together.

    actions:  options for something other than the list of items.
    subjects: options that name the owner of the memory.
    details:  options of an action, or of the list.
    """
    if len(actions) > 1:
        several = f"{', '.join(actions[:-1])} and {actions[-1]}"
        raise typer.BadParameter(f"{several} do not go together: give one of them")
    action = actions[0] if actions else ""
    everyone = "--everyone" in subjects
    if action == "--refresh" and everyone:
        raise typer.BadParameter("--refresh updates all users, or the one in --user")
    if len(subjects) > 1:
        raise typer.BadParameter("give --user or --everyone, not both")
    if action == "--forget" and not subjects:
        raise typer.BadParameter("--forget needs --user")
    if action and everyone:
        raise typer.BadParameter("--everyone only lists items")
    if action == "":
        allowed = ["--scenario"] if everyone else ["--scenario", "--all"]
    elif action == "--advice":
        allowed = ["--scenario", "--tokens"]
    else:
        allowed = []
    for name in details:
        if name not in allowed:
            raise typer.BadParameter(_WRONG_DETAILS[name])


def profile_report(profile: Profile, now: int) -> Result:
    """Return the report of a user's profile, which is empty without consent.

    now: the current time in microseconds since 1970.
    """

    def row(item: Item) -> tuple[str, ...]:
        return (
            item.memory_id,
            _kind(item),
            shown(describe_declarative(item)),
            str(item.sessions),
            f"{item.confidence:.2f}",
            "; ".join(_why_withheld(profile, item, now)),
        )

    def show(screen: Screen) -> None:
        head = ("item", "kind", "what", "#sessions", "#confidence", "withheld because")
        if profile.items:
            screen.table(head, map(row, profile.items))
        for area in profile.improvement_areas:
            because = f"  because of {', '.join(area.because)}"
            screen.line("improve: ", shown(area.name), (because, "dim"))
        for subject, topics in sorted(profile.levels.items()):
            for topic, error_counts in sorted(topics.items()):
                name = topic_name({"topic": topic, "subject": subject}) or "unnamed"
                texts = [
                    f"{error} {count:,}×"
                    for error, count in sorted(error_counts.items())
                ]
                if texts:
                    screen.line(shown(f"{name}: {', '.join(texts)}"))
        items = counted(len(profile.items), "item")
        total = f"{items} of {counted(profile.sessions, 'session')} with verdicts"
        if profile.tainted_sessions:
            total += f", {profile.tainted_sessions:,} of them tainted"
        screen.line(total)

    return Result(profile.to_json, show)


def _kind(item: Item) -> str:
    """Return the kind of an item for people."""
    if item.kind == "topic":
        return f"{item.content['standing']} topic"
    return item.kind


def _why_withheld(profile: Profile, item: Item, now: int) -> list[str]:
    """Return the reasons for which the default settings keep an item from a model."""
    return why_not_in_profile(profile, item, now=now, threshold=Choice().threshold)


_SHOWN: Final = 30  # items that are listed
_LINE: Final = 100  # characters of an event behind an item


def _items(memory: Memory, items: Iterable[Item], scenario: str | None) -> Result:
    """Return the list of the items of a scenario, or of all."""
    listed = [item for item in items if scenario is None or item.scenario == scenario]

    def row(item: Item) -> tuple[str, ...]:
        return (
            item.memory_id,
            item.kind,
            shown(item.scenario),
            shown(describe(item)),
            str(item.sessions),
            _formatted(item.success),
            f"{item.confidence:.2f}",
        )

    def show(screen: Screen) -> None:
        head = (
            "item",
            "kind",
            "scenario",
            "what",
            "#sessions",
            "#success",
            "#confidence",
        )
        if listed:
            screen.table(head, map(row, listed[:_SHOWN]))
        more = len(listed) - _SHOWN
        if more > 0:
            screen.line((f"and {more:,} more: use --json to see all", "dim"))
        if memory.opted_out:
            screen.line("the user opted out of memory")
            return
        total = counted(len(listed), "item")
        total += f" of {counted(memory.sessions, 'session')}"
        if memory.success is not None:
            total += f", {memory.success:.0%} of them went well"
        screen.line(total)

    return Result([item.to_json() for item in listed], show)


def _item(store: SessionStore, user: str, name: str) -> Result:
    """Return an item, whether a model may get it, and the events behind it."""
    report = _find_item(store, user, name)
    events = list(_events(store, report.item))
    value: dict[str, Any] = report.item.to_json()

    def show(screen: Screen) -> None:
        screen.line(shown(report.text))
        for fact in report.facts:
            screen.line(fact)
        screen.line(f"seen {value['created_at']} to {value['updated_at']}")
        if not report.withheld:
            screen.line(f"a model may get this until {value['expires_at']}")
        for reason in report.withheld:
            screen.line(f"withheld from a model: {reason}")
        for event in events:
            content = preview(event.payload)
            place = f"{event.session_id} seq {event.seq}  {event.type}  {content.note}"
            line = next(iter(content.body.splitlines()), "")
            screen.line(shown(place), "  ", (line[:_LINE], "dim"))

    value["not_said"] = report.withheld
    value["events"] = [envelope.to_json() for envelope in events]
    return Result(value, show)


class _ItemReport(NamedTuple):
    """An item for people.

    withheld: the reasons for which a model does not get it.
    facts:    lines about its evidence.
    """

    item: Item
    text: str
    withheld: list[str]
    facts: list[str]


def _find_item(store: SessionStore, user: str, name: str) -> _ItemReport:
    """Return the item of this name in a user's memory or profile.

    Raises RefoldError if there is none.
    """
    now = store.clock()
    memory = store.memory.of(user)
    item = memory.named(name)
    if item is not None:
        facts = [_support(item)]
        mean = memory.means.get(item.scenario)
        if item.success is not None and mean is not None:
            facts.insert(0, f"success {item.success:.0%}; all sessions {mean:.0%}")
        withheld = why_not_advised(
            item, now=now, threshold=Choice().threshold, means=memory.means
        )
        return _ItemReport(item, describe(item), withheld, facts)
    profile = store.memory.profile(user)
    for item in profile.items:
        if item.memory_id == name:
            text = f"{_kind(item)}: {describe_declarative(item)}"
            fact = _SOURCES.get(item.kind) or _support(item)
            return _ItemReport(item, text, _why_withheld(profile, item, now), [fact])
    raise RefoldError(
        f"there is no item {name!r}: `refold memory --all` and `refold memory "
        "--profile` list all items"
    )


# Shown in place of a confidence for these kinds.
_SOURCES: Final = {"preference": "the user's own word", "mistake": "one event"}


def _support(item: Item) -> str:
    """Return the confidence of an item, and the number of its sessions."""
    sessions = counted(item.sessions, "session")
    return f"confidence at least {item.confidence:.0%}, by {sessions}"


def _events(store: SessionStore, item: Item) -> Iterator[Envelope]:
    """Return the events behind an item."""
    for evidence in item.evidence:
        session = store.session(user_id=item.user_id, session_id=evidence.session_id)
        for seq in evidence.seqs:
            yield from session.events(after=seq - 1, limit=1)


def _advice(advice: Advice) -> Result:
    """Return the report of the advice for a model."""

    def show(screen: Screen) -> None:
        for line in advice.text.splitlines():
            screen.line(shown(line))
        total = counted(len(advice.items), "item")
        total += f", {counted(advice.tokens, 'token')}"
        if advice.left_out:
            total += f", {len(advice.left_out)} left out"
        screen.line((total, "dim"))

    value = {
        "text": advice.text,
        "items": advice.items,
        "tokens": advice.tokens,
        "left_out": advice.left_out,
    }
    return Result(value, show)


def _effect(memory: Memory) -> Result:
    """Return the comparison of how sessions ended with and without each item."""

    def row(lift: Lift) -> list[str]:
        item = memory.named(lift.memory_id)
        difference = ""
        if lift.low is not None and lift.high is not None:
            difference = f"{lift.low:+.0%} to {lift.high:+.0%}"
        return [
            lift.memory_id,
            shown(describe(item)) if item else "(gone)",
            str(lift.shown),
            _formatted(lift.success),
            str(lift.without),
            _formatted(lift.otherwise),
            difference,
            _formatted(lift.iterations, ".1f"),
            _formatted(lift.iterations_otherwise, ".1f"),
        ]

    def show(screen: Screen) -> None:
        head = (
            "item",
            "what",
            "#with",
            "#success with",
            "#without",
            "#success without",
            "#difference",
            "#reflections with",
            "#reflections without",
        )
        if memory.effect:
            screen.table(head, map(row, memory.effect[:_SHOWN]))
        count = counted(len(memory.effect), "item")
        screen.line(
            f"{count} shown in sessions that ended; a difference does not prove a cause"
        )

    return Result([lift.to_json() for lift in memory.effect], show)


def _formatted(value: float | None, form: str = ".0%") -> str:
    """Return a figure as text; nothing for None."""
    return "" if value is None else f"{value:{form}}"


# The figures of a refresh, and the words for those that count skipped users.
_COUNTED: Final = ("users", "sessions", "items", "opted_out", "frozen", "failed")
_SKIPPED: Final = {
    "opted_out": "opted out",
    "frozen": "frozen",
    "failed": "not readable",
}


def _refresh_users(store: SessionStore, user: str | None) -> Result:
    """Update the memory and the advice of all users, or of one.

    Users who are frozen or opted out are skipped and counted.  If a user's events
    cannot be read, the others are refreshed and the exit code is 1.
    """
    counts: Counter[str] = Counter()
    last_name: str | None = None
    for info in chain.from_iterable(pages(store, user)):
        name = info.user_id
        if name == last_name:  # the list is sorted by user
            continue
        last_name = name
        try:
            counts += _refresh_user(store, name)
        except (errors.CorruptEvent, errors.KeyUnavailable) as error:
            counts["failed"] += 1
            complain(f"user {name!r}: {error}")

    def show(screen: Screen) -> None:
        items = counted(counts["items"], "item")
        sessions = counted(counts["sessions"], "session")
        users = counted(counts["users"], "user")
        skipped = [
            f"{counts[reason]:,} {words}"
            for reason, words in _SKIPPED.items()
            if counts[reason]
        ]
        end = f"; skipped: {', '.join(skipped)}" if skipped else ""
        screen.line(f"{items} of {sessions} of {users}", (end, "dim"))

    value = {name: counts[name] for name in _COUNTED}
    exit_code = 1 if counts["failed"] else 0
    return Result(value, show, exit_code)


def _refresh_user(store: SessionStore, user: str) -> Counter[str]:
    """Refresh the memory of one user; returns its counts for the report."""
    if store.erasures.is_frozen(user):
        return Counter(frozen=1)
    try:
        memory = store.memory.of(user)
        if memory.opted_out:
            return Counter(opted_out=1)
        store.memory.advice(user, fresh=timedelta(0))
    except errors.Erased:
        # Erased during the refresh: the list leaves out users erased earlier.
        return Counter()
    except errors.Frozen:
        return Counter(frozen=1)
    established = [item for item in memory.items if item.established]
    return Counter(users=1, sessions=memory.sessions, items=len(established))


def consent(
    call: Call,
    user: Annotated[
        str | None,
        user_option("Name of the user.  Default: the only user.  Changes need --user."),
    ] = None,
    grant: Annotated[
        str | None,
        typer.Option(
            metavar="K", help="Allow this: declarative_memory, or a scope of your own."
        ),
    ] = None,
    withdraw: Annotated[
        str | None, typer.Option(metavar="K", help="Withdraw this grant.")
    ] = None,
    opt_out: Annotated[
        bool, typer.Option("--opt-out", help="Keep all data of the user out of memory.")
    ] = False,
    opt_in: Annotated[bool, typer.Option("--opt-in", help="End the opt-out.")] = False,
    reason: ReasonOption = "",
) -> Result:
    """Show or change what a user allows.

    Records each change as an event.  Nothing is allowed until it is granted, and an
    opt-out of memory overrides every grant.
    """
    changes = [grant is not None, withdraw is not None, opt_out, opt_in]
    if changes.count(True) > 1:
        raise typer.BadParameter(
            "give one of --grant, --withdraw, --opt-out and --opt-in"
        )
    if reason and True not in changes:
        raise typer.BadParameter(
            "--reason needs one of --grant, --withdraw, --opt-out and --opt-in"
        )
    if True in changes and user is None:
        raise typer.BadParameter("a change of what a user allows needs --user")
    store = call.store()
    grants = store.user(chosen_user(store, user))
    if grant is not None:
        grants.consent(grant, granted=True, reason=reason)
    elif withdraw is not None:
        grants.consent(withdraw, granted=False, reason=reason)
    elif opt_out:
        grants.opt_out(reason=reason)
    elif opt_in:
        grants.opt_in(reason=reason)
    status = grants.status()

    def show(screen: Screen) -> None:
        memory_state = "opted out" if status.memory_opt_out else "not opted out"
        screen.line("memory  ", (memory_state, "bold"))
        declarative = "allowed" if status.declarative_memory else "not allowed"
        screen.line("declarative memory  ", (declarative, "bold"))
        for name, scope in sorted(status.scopes.items()):
            state = "granted" if scope.granted else "withdrawn"
            screen.line("  ", shown(name), (f"  {state} {scope.at}", "dim"))

    return Result(status.to_json, show)
