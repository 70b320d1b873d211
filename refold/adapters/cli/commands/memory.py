"""``refold memory`` and ``refold consent``: what a user's sessions show together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import chain, groupby
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.adapters.cli.options import (
    Call,
    ReasonOption,
    UserOption,
    given,
    pages,
    sessions,
    user_option,
)
from refold.adapters.cli.output import Result, Screen, complain, shown
from refold.adapters.display.events import preview
from refold.domain import errors
from refold.domain.errors import RefoldError, counted
from refold.projections.memory.advice import Choice, describe, why_not as unadvised
from refold.projections.memory.profile import (
    describe as describe_declarative,
    place,
    why_not,
)
from refold.projections.memory.sessions import GENERAL

if TYPE_CHECKING:
    from refold.domain.envelope import Envelope
    from refold.projections.context.budget import Advice
    from refold.projections.memory.items import Item, Lift
    from refold.projections.memory.profile import Profile
    from refold.store import SessionStore
    from refold.store.memory import Memory

_TOKENS: Final = 600
_WRONG: Final = {
    "--scenario": "use --scenario with the list of items or with --advice",
    "--all": "use --all with the list of a user's items",
    "--tokens": "use --tokens with --advice",
}


def memory(
    call: Call,
    user: Annotated[str | None, user_option("Show this user's memory.")] = None,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="Show only items that many users share.")
    ] = False,
    scenario: Annotated[
        str | None,
        typer.Option(
            metavar="S", help="Only this kind of task; general applies to all."
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Include items from too few, or from tainted, sessions."
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
    shows = _given(item=item, advice=advice, profile=profile, effect=effect)
    _check(
        [*shows, *_given(forget=forget, refresh=refresh)],
        _given(user=user, everyone=everyone),
        _given(scenario=scenario, all=every, tokens=tokens),
    )
    store = call.store()
    if user is not None:
        sessions(store, user, None)  # says if there is no such user
    if refresh:
        return _refreshed(store, user)
    if user is None:
        everybody = store.memory.shared()
        return _items(everybody, everybody.items, scenario)
    if forget is not None:
        receipt = store.user(user).forget(forget)
        done = f"{forget} is forgotten, also when memory is made anew"
        return Result({"forgotten": forget, "seq": receipt.last_seq}, done)
    if item is not None:
        return _item(store, user, item)
    if profile:
        return profiled(store.memory.profile(user), store.clock())
    if advice:
        most, kind = _TOKENS if tokens is None else tokens, scenario or GENERAL
        return _advice(
            store.memory.advice(user, fresh=timedelta(0), scenario=kind, tokens=most)
        )
    found = store.memory.of(user)
    if effect:
        return _effect(found)
    items = [one for one in found.items if every or one.established]
    return _items(found, items, scenario)


def _given(**options: object) -> list[str]:
    """Those that were given, as they are written."""
    return [f"--{name}" for name in given(options)]


def _check(what: list[str], whose: list[str], how: Iterable[str]) -> None:
    """Refuse options that do not go together.

    what: is asked for; nothing is a list.  ``how`` is what was said of it.

    Raises typer.BadParameter.
    """
    if len(what) > 1:
        both = f"{', '.join(what[:-1])} and {what[-1]}"
        raise typer.BadParameter(f"{both} do not go together: give one of them")
    one = what[0] if what else ""
    if one == "--refresh" and "--everyone" in whose:
        raise typer.BadParameter("--refresh takes all users, or one by --user")
    if one != "--refresh" and len(whose) != 1:
        raise typer.BadParameter("give --user or --everyone")
    if one and "--everyone" in whose:
        raise typer.BadParameter("--everyone only lists items")
    takes = {"": "--scenario --all", "--advice": "--scenario --tokens"}.get(one, "")
    for name in how:
        of_all = name == "--all" and "--everyone" in whose
        if of_all or name not in takes.split():
            raise typer.BadParameter(_WRONG[name])


def profiled(profile: Profile, now: int) -> Result:
    """What is known of a user who consented; of others there is nothing.

    now: in microseconds since 1970, as the profile was made.
    """

    def row(one: Item) -> tuple[str, ...]:
        says, sure = shown(describe_declarative(one)), f"{one.confidence:.2f}"
        unsaid = "; ".join(_unsaid(profile, one, now))
        return one.memory_id, _kind(one), says, str(one.sessions), sure, unsaid

    def show(screen: Screen) -> None:
        head = ("item", "kind", "what", "#sessions", "#confidence", "withheld because")
        if profile.items:
            screen.table(head, map(row, profile.items))
        for area in profile.improvement_areas:
            because = f"  because of {', '.join(area.because)}"
            screen.line("improve: ", shown(area.name), (because, "dim"))
        for subject, topics in sorted(profile.levels.items()):
            for topic, mistakes in sorted(topics.items()):
                where = place({"topic": topic, "subject": subject}) or "unnamed"
                made = (f"{error} {n:,}×" for error, n in sorted(mistakes.items()))
                if mistakes:
                    screen.line(shown(f"{where}: {', '.join(made)}"))
        items = counted(len(profile.items), "item")
        whole = f"{items} of {counted(profile.sessions, 'session')} with verdicts"
        tainted = f"{profile.tainted_sessions:,} of them tainted"
        screen.line(f"{whole}, {tainted}" if profile.tainted_sessions else whole)

    return Result(profile.to_json, show)


def _kind(one: Item) -> str:
    return f"{one.content['standing']} topic" if one.kind == "topic" else one.kind


def _unsaid(profile: Profile, one: Item, now: int) -> list[str]:
    """Why an item is not said to a model that asks with nothing set."""
    return why_not(profile, one, now=now, threshold=Choice().threshold)


_SHOWN: Final = 30  # items that are listed
_LINE: Final = 100  # characters of an event behind an item


def _items(found: Memory, items: Iterable[Item], scenario: str | None) -> Result:
    some = [one for one in items if scenario in (None, one.scenario)]

    def row(one: Item) -> tuple[str, ...]:
        what = (one.memory_id, one.kind, shown(one.scenario), shown(describe(one)))
        sure = f"{one.confidence:.2f}"
        return *what, str(one.sessions), _said(one.success), sure

    def show(screen: Screen) -> None:
        head = ("item", "kind", "scenario", "what", "#sessions", "#success")
        if some:
            screen.table((*head, "#confidence"), map(row, some[:_SHOWN]))
        if (more := len(some) - _SHOWN) > 0:
            screen.line((f"and {more:,} more: use --json to see all", "dim"))
        if found.opted_out:
            screen.line("the user opted out of memory")
            return
        ended = found.success
        well = "" if ended is None else f", {ended:.0%} of them went well"
        of = counted(found.sessions, "session")
        screen.line(f"{counted(len(some), 'item')} of {of}{well}")

    return Result([one.to_json() for one in some], show)


def _item(store: SessionStore, user: str, name: str) -> Result:
    """What an item says, whether it may be said to a model, and the events behind."""
    one, says, not_said, facts = _opened(store, user, name)
    events = list(_events(store, one))
    item: dict[str, Any] = one.to_json()

    def show(screen: Screen) -> None:
        screen.line(shown(says))
        for fact in facts:
            screen.line(fact)
        screen.line(f"seen {item['created_at']} to {item['updated_at']}")
        if not not_said:
            screen.line(f"a model may be told this until {item['expires_at']}")
        for reason in not_said:
            screen.line(f"not told to a model: {reason}")
        for event in events:
            note, body, _ = preview(event.payload)
            place = f"{event.session_id} seq {event.seq}  {event.type}  {note}"
            line = next(iter(body.splitlines()), "")
            screen.line(shown(place), "  ", (line[:_LINE], "dim"))

    shows = [envelope.to_json() for envelope in events]
    return Result({**item, "not_said": not_said, "events": shows}, show)


def _opened(
    store: SessionStore, user: str, name: str
) -> tuple[Item, str, list[str], list[str]]:
    """An item, what it says, why it is not said to a model, and what else is told.

    Raises RefoldError if there is none of that name.
    """
    found, now, likely = store.memory.of(user), store.clock(), Choice().threshold
    if one := found.named(name):
        means, says, facts = found.means, describe(one), [_sure(one)]
        not_said = unadvised(one, now=now, threshold=likely, means=means)
        if one.success is not None and (mean := means.get(one.scenario)) is not None:
            facts.insert(0, f"success {one.success:.0%}; all sessions {mean:.0%}")
    else:
        profile = store.memory.profile(user)
        one = next((one for one in profile.items if one.memory_id == name), None)
        if one is None:
            raise RefoldError(
                f"there is no item {name!r}: `refold memory --all` and `refold memory "
                "--profile` list all items"
            )
        says, not_said = (
            f"{_kind(one)}: {describe_declarative(one)}",
            _unsaid(profile, one, now),
        )
        own = {"preference": "the user's own word", "mistake": "one event"}
        facts = [own.get(one.kind) or _sure(one)]
    return one, says, not_said, facts


def _sure(one: Item) -> str:
    return f"at least {one.confidence:.0%}, by {counted(one.sessions, 'session')}"


def _events(store: SessionStore, one: Item) -> Iterator[Envelope]:
    for evidence in one.evidence:
        session = store.session(user_id=one.user_id, session_id=evidence.session_id)
        for seq in evidence.seqs:
            yield from session.events(after=seq - 1, limit=1)


def _advice(advice: Advice) -> Result:
    def show(screen: Screen) -> None:
        for line in advice.text.splitlines():
            screen.line(shown(line))
        count = counted(len(advice.items), "item")
        left = f", {len(advice.left_out)} left out" if advice.left_out else ""
        screen.line((f"{count}, {counted(advice.tokens, 'token')}{left}", "dim"))

    names = ("text", "items", "tokens", "left_out")
    return Result({name: getattr(advice, name) for name in names}, show)


def _effect(found: Memory) -> Result:
    def row(lift: Lift) -> list[str]:
        item, low, high = found.named(lift.memory_id), lift.low, lift.high
        known = low is not None and high is not None
        return [
            lift.memory_id,
            shown(describe(item)) if item else "(gone)",
            str(lift.shown),
            _said(lift.success),
            str(lift.without),
            _said(lift.otherwise),
            f"{low:+.0%} to {high:+.0%}" if known else "",
            _said(lift.iterations, ".1f"),
            _said(lift.iterations_otherwise, ".1f"),
        ]

    def show(screen: Screen) -> None:
        head = ("item", "what", "#shown", "#success", "#not shown", "#success then")
        if lifts := found.effect[:_SHOWN]:
            more = ("#difference", "#reflections", "#and then")
            screen.table((*head, *more), map(row, lifts))
        count = counted(len(found.effect), "item")
        screen.line(f"{count} shown in sessions that ended; this shows no cause")

    return Result([lift.to_json() for lift in found.effect], show)


def _said(value: float | None, form: str = ".0%") -> str:
    return "" if value is None else f"{value:{form}}"


_COUNTED: Final = ("users", "sessions", "items", "opted_out", "frozen", "failed")
_LEFT: Final = {"opted_out": "opted out", "frozen": "frozen", "failed": "not readable"}


def _refreshed(store: SessionStore, user: str | None) -> Result:
    """Make the memory of each user, or of one, and what may be said of it.

    Who is frozen or opted out of memory is counted and left out.  Of whom it cannot be
    made is told, and the others' is made; the exit code is 1 then.
    """
    done: Counter[str] = Counter()
    every = chain.from_iterable(pages(store, user))
    for name, _ in groupby(every, lambda info: info.user_id):
        try:
            done += _made(store, name)
        except (errors.CorruptEvent, errors.KeyUnavailable) as error:
            done["failed"] += 1
            complain(f"user {name!r}: {error}")

    def show(screen: Screen) -> None:
        made = (counted(done[f"{one}s"], one) for one in ("item", "session", "user"))
        left = [f"{done[one]:,} {words}" for one, words in _LEFT.items() if done[one]]
        end = f"; skipped: {', '.join(left)}" if left else ""
        screen.line(" of ".join(made), (end, "dim"))

    told = {what: done[what] for what in _COUNTED}
    return Result(told, show, int(done["failed"] > 0))


def _made(store: SessionStore, user: str) -> Counter[str]:
    if store.erasures.is_frozen(user):
        return Counter(frozen=1)
    try:
        found = store.memory.of(user)
        if found.opted_out:
            return Counter(opted_out=1)
        store.memory.advice(user, fresh=timedelta(0))
    except errors.Erased:  # meanwhile: it is nowhere any more, as those before it
        return Counter()
    except errors.Frozen:
        return Counter(frozen=1)
    items = sum(one.established for one in found.items)
    return Counter(users=1, sessions=found.sessions, items=items)


def consent(
    call: Call,
    user: UserOption,
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
    wanted = [name for name in (grant, withdraw) if name is not None]
    if len(wanted) + opt_out + opt_in > 1:
        raise typer.BadParameter(
            "give one of --grant, --withdraw, --opt-out and --opt-in"
        )
    whole = call.store().user(user)
    if wanted:
        whole.consent(wanted[0], granted=grant is not None, reason=reason)
    elif opt_out:
        whole.opt_out(reason=reason)
    elif opt_in:
        whole.opt_in(reason=reason)
    status = whole.status()

    def show(screen: Screen) -> None:
        out = "opted out" if status.memory_opt_out else "not opted out"
        screen.line("memory  ", (out, "bold"))
        yes = "allowed" if status.declarative_memory else "not allowed"
        screen.line("declarative memory  ", (yes, "bold"))
        for scope, granted in sorted(status.scopes.items()):
            word = "granted" if granted.granted else "withdrawn"
            screen.line("  ", shown(scope), (f"  {word} {granted.at}", "dim"))

    return Result(status.to_json, show)
