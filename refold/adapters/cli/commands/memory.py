"""``refold memory``: what a user's sessions show together, and which events show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from refold.adapters.cli import options as opening
from refold.adapters.cli.options import Json, User
from refold.adapters.cli.output import Screen, complain, counted, print_json, shown
from refold.adapters.cli.previews import preview
from refold.domain.errors import (
    CorruptEvent,
    Erased,
    Frozen,
    KeyUnavailable,
    RefoldError,
)
from refold.projections.memory.advice import (
    Choosing,
    said,
    why_not as advice_why_not,
)
from refold.projections.memory.profile import place, told, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from refold.domain.envelope import Envelope
    from refold.projections.context.view import Advice
    from refold.projections.memory.items import Item
    from refold.projections.memory.profile import Profile
    from refold.store import SessionStore
    from refold.store.memory import ConsentStatus, Memory

_TOKENS: Final = 600
_WRONG: Final = {
    "--scenario": "--scenario is for a list of items and for --advice",
    "--all": "--all is for the list of a --user's items",
    "--tokens": "--tokens is for --advice",
}


def memory(
    context: typer.Context,
    user: Annotated[str | None, typer.Option(metavar="U", help="Whose memory.")] = None,
    everyone: Annotated[
        bool,
        typer.Option(
            "--everyone", help="What many users show, and nobody in particular."
        ),
    ] = False,
    scenario: Annotated[
        str | None,
        typer.Option(metavar="S", help="Only of this kind of task; general: of all."),
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Also what too few or tainted sessions show."),
    ] = False,
    item: Annotated[
        str | None,
        typer.Option(metavar="ID", help="One item, and the events that show it."),
    ] = None,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="What is known of a user who consented."),
    ] = False,
    advice: Annotated[
        bool, typer.Option("--advice", help="What would be said to a model now.")
    ] = False,
    tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help=f"How many --advice may cost; left out, {_TOKENS}.",
        ),
    ] = None,
    effect: Annotated[
        bool,
        typer.Option(
            "--effect", help="How sessions ended that were shown an item, or not."
        ),
    ] = False,
    forget: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Take an item away for good, by an event."),
    ] = None,
    refresh: Annotated[
        bool,
        typer.Option(
            "--refresh", help="Make the memory of all users, or of one, by now."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show which tools worked, failed and helped in a user's sessions, and how often.

    Everything comes from the log, and names the events that show it. Nothing is listed
    that fewer than three sessions show, but with --all.
    """
    shows = {"item": item, "advice": advice, "profile": profile, "effect": effect}
    does = {"forget": forget, "refresh": refresh}
    _check(
        [*_given(shows), *_given(does)],
        _given({"user": user, "everyone": everyone}),
        _given({"scenario": scenario, "all": every, "tokens": tokens}),
    )

    with opening.existing(context) as store:
        if user is not None:
            opening.sessions(store, user, None)  # says if there is no such user
        if refresh:
            refresh_memory(store, user, as_json=as_json)
        elif user is None:
            everybody = store.shared_memory()
            _listed(everybody, everybody.items, scenario, as_json)
        elif forget is not None:
            _forget(store, user, forget, as_json)
        elif item is not None:
            show_item(store, user, item, as_json)
        elif profile:
            _profile(store, user, as_json)
        elif advice:
            most = _TOKENS if tokens is None else tokens
            _advice(store, user, scenario, most, as_json)
        elif effect:
            show_effect(store.memory(user), as_json)
        else:
            found = store.memory(user)
            items = [one for one in found.items if every or one.established]
            _listed(found, items, scenario, as_json)


def _given(options: Mapping[str, object]) -> list[str]:
    """Those that were given, as they are written."""
    return [
        f"--{name}"
        for name, value in options.items()
        if value is not None and value is not False
    ]


def _check(what: list[str], whose: list[str], how: Iterable[str]) -> None:
    """Refuse options that do not go together.

    what: is asked for; nothing is a list.  ``how`` is what was said of it.

    Raises typer.BadParameter.
    """
    if len(what) > 1:
        raise typer.BadParameter(f"{_and(what)} do not go together: give one of them")
    one = what[0] if what else ""
    if one == "--refresh" and "--everyone" in whose:
        raise typer.BadParameter(
            "--refresh is of all users, or of one: --user says who"
        )
    if one != "--refresh" and len(whose) != 1:
        raise typer.BadParameter("give --user or --everyone")
    if one and "--everyone" in whose:
        raise typer.BadParameter("of --everyone items are listed, and no more")
    takes = {"": "--scenario --all", "--advice": "--scenario --tokens"}.get(one, "")
    for option in how:
        if option not in takes.split():
            raise typer.BadParameter(_WRONG[option])
        if option == "--all" and "--everyone" in whose:
            raise typer.BadParameter(_WRONG[option])


def _and(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _profile(store: SessionStore, user: str, as_json: bool) -> None:

    show_profile(store.profile(user), store.clock(), as_json)


def _advice(
    store: SessionStore, user: str, scenario: str | None, tokens: int, as_json: bool
) -> None:
    from datetime import timedelta

    from refold.projections.memory.sessions import GENERAL

    said = store.advice(
        user, fresh=timedelta(0), scenario=scenario or GENERAL, tokens=tokens
    )
    show_advice(said, as_json)


def _listed(
    found: Memory, items: list[Item], scenario: str | None, as_json: bool
) -> None:

    some = [one for one in items if scenario in (None, one.scenario)]
    show_items(found, some, as_json)


def _forget(store: SessionStore, user: str, name: str, as_json: bool) -> None:
    from refold.adapters.cli.output import Screen

    receipt = store.user(user).forget(name)
    if as_json:
        print_json({"forgotten": name, "seq": receipt.last_seq})
        return
    Screen().line(f"{name} is forgotten, also when memory is made anew")


def show_profile(profile: Profile, now: int, as_json: bool) -> None:
    """What is known of a user who consented; of others there is nothing.

    now: in microseconds since 1970, as the profile was made.
    """
    if as_json:
        print_json(profile.to_json())
        return
    screen = Screen()
    rows = [
        (
            one.memory_id,
            kind_of(one),
            shown(told(one)),
            str(one.sessions),
            f"{one.confidence:.2f}",
            "; ".join(unsaid(profile, one, now)),
        )
        for one in profile.items
    ]
    if rows:
        head = ("item", "kind", "what", "#sessions", "#confidence", "not said because")
        screen.table(head, rows)
    for area in profile.improvement_areas:
        because = ", ".join(area.because)
        screen.line("improve: ", shown(area.name), (f"  because of {because}", "dim"))
    for line in _levels(profile):
        screen.line(shown(line))
    screen.line(_summary(profile))


def kind_of(one: Item) -> str:
    """What kind of item it is, as people are told."""
    return f"{one.content['standing']} topic" if one.kind == "topic" else one.kind


def unsaid(profile: Profile, one: Item, now: int) -> list[str]:
    """Why an item is not said to a model that asks with nothing set."""
    return why_not(profile, one, now=now, threshold=Choosing().threshold)


def _levels(profile: Profile) -> Iterator[str]:
    """The three levels, a line a topic."""
    for subject, topics in sorted(profile.levels.items()):
        for topic, errors in sorted(topics.items()):
            where = place({"topic": topic, "subject": subject}) or "unnamed"
            made = ", ".join(f"{error} {n:,}×" for error, n in sorted(errors.items()))
            if made:
                yield f"{where}: {made}"


def _summary(profile: Profile) -> str:
    items = counted(len(profile.items), "item")
    whole = f"{items} of {counted(profile.sessions, 'session')} with verdicts"
    if profile.tainted_sessions:
        tainted = counted(profile.tainted_sessions, "of them", "of them")
        return f"{whole}, {tainted} may not speak"
    return whole


_SHOWN, _LINE = 30, 100


def show_items(found: Memory, items: Sequence[Item], as_json: bool) -> None:
    """A line an item, the surest first."""
    if as_json:
        print_json([one.to_json() for one in items])
        return
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
    if found.opted_out:
        screen.line("the user opted out of memory: there is none")
        return
    ended = "" if found.success is None else f", {found.success:.0%} of them went well"
    screen.line(
        f"{counted(len(items), 'item')} of {counted(found.sessions, 'session')}{ended}"
    )


class _Opened(NamedTuple):
    """One item: what it says, why it is not said to a model, and what else is told."""

    item: Item
    says: str
    not_said: list[str]
    facts: list[str]


def show_item(store: SessionStore, user: str, name: str, as_json: bool) -> None:
    """What an item says, whether it may be said to a model, and the events behind.

    Raises RefoldError if there is none of that name.
    """
    opened = _procedural(store, user, name) or _declarative(store, user, name)
    if opened is None:
        raise RefoldError(
            f"there is no item {name!r}: `refold memory --all` and `refold memory "
            "--profile` list those there are"
        )
    events = list(_events(store, opened.item))
    if as_json:
        shows = [envelope.to_json() for envelope in events]
        reasons = opened.not_said
        print_json({**opened.item.to_json(), "not_said": reasons, "events": shows})
        return
    screen = Screen()
    _facts(screen, opened)
    for envelope in events:
        note, body, _ = preview(envelope.payload)
        place = f"{envelope.session_id} seq {envelope.seq}  {envelope.type}  {note}"
        line = next(iter(body.splitlines()), "")
        screen.line(shown(place), "  ", (line[:_LINE], "dim"))


def _procedural(store: SessionStore, user: str, name: str) -> _Opened | None:
    found, now = store.memory(user), store.clock()
    one = found.named(name)
    if one is None:
        return None
    reasons = advice_why_not(
        one, now=now, threshold=Choosing().threshold, means=found.means
    )
    facts, mean = [], found.means.get(one.scenario)
    if one.success is not None and mean is not None:
        facts.append(f"success {one.success:.0%}, of all sessions {mean:.0%}")
    facts.append(_sure(one))
    return _Opened(one, said(one), reasons, facts)


def _declarative(store: SessionStore, user: str, name: str) -> _Opened | None:
    found, now = store.profile(user), store.clock()
    one = next((one for one in found.items if one.memory_id == name), None)
    if one is None:
        return None
    own = {"preference": "the user's own word", "mistake": "one event"}
    facts = [own.get(one.kind) or _sure(one)]
    says = f"{kind_of(one)}: {told(one)}"
    return _Opened(one, says, unsaid(found, one, now), facts)


def _sure(one: Item) -> str:
    return f"at least {one.confidence:.0%}, by {counted(one.sessions, 'session')}"


def _events(store: SessionStore, one: Item) -> Iterator[Envelope]:
    for evidence in one.evidence:
        session = store.session(one.user_id, evidence.session_id)
        for seq in evidence.seqs:
            yield from session.events(after=seq - 1, limit=1)


def _facts(screen: Screen, opened: _Opened) -> None:
    item = opened.item.to_json()
    screen.line(shown(opened.says))
    for fact in opened.facts:
        screen.line(fact)
    screen.line(f"seen {item['created_at']} to {item['updated_at']}")
    if not opened.not_said:
        screen.line(f"may be said to a model until {item['expires_at']}")
    for reason in opened.not_said:
        screen.line(f"not said to a model: {reason}")


def show_advice(advice: Advice, as_json: bool) -> None:
    """The section as a model is sent it."""
    if as_json:
        print_json(
            {
                "text": advice.text,
                "items": list(advice.items),
                "tokens": advice.tokens,
                "left_out": list(advice.left_out),
            }
        )
        return
    screen = Screen()
    for line in advice.text.splitlines():
        screen.line(shown(line))
    count = counted(len(advice.items), "item")
    left = f", {len(advice.left_out)} left out" if advice.left_out else ""
    screen.line((f"{count}, {advice.tokens} tokens{left}", "dim"))


def show_effect(found: Memory, as_json: bool) -> None:
    """How sessions ended that were shown an item, against those that were not."""
    if as_json:
        print_json([lift.to_json() for lift in found.effect])
        return
    screen = Screen()
    rows = []
    for lift in found.effect[:_SHOWN]:
        item = found.named(lift.memory_id)
        rows.append(
            (
                lift.memory_id,
                shown(said(item)) if item else "(not there any more)",
                str(lift.shown),
                _percent(lift.success),
                str(lift.without),
                _percent(lift.otherwise),
                _between(lift.low, lift.high),
                _number(lift.iterations),
                _number(lift.iterations_otherwise),
            )
        )
    head = ("item", "what", "#shown", "#success", "#without", "#success")
    more = ("#difference", "#reflections", "#without")
    if rows:
        screen.table((*head, *more), rows)
    count = counted(len(found.effect), "item")
    screen.line(f"{count} were shown in sessions that ended; shown is not caused by")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _between(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:+.0%} to {high:+.0%}"


_COUNTED = ("users", "sessions", "items", "opted_out", "frozen", "failed")


def refresh_memory(store: SessionStore, user: str | None, *, as_json: bool) -> None:
    """Make the memory of each user, or of one, and what may be said of it.

    Who is frozen or opted out of memory is counted and left out.  Of whom it cannot be
    made is told, and the others' is made; the exit code is 1 then.
    """
    done: Counter[str] = Counter()
    for name in sorted({info.user_id for info in store.sessions(user)}):
        try:
            done += _made(store, name)
        except (CorruptEvent, KeyUnavailable) as error:
            done["failed"] += 1
            complain(f"user {name!r}: {error}")
    if as_json:
        print_json({what: done[what] for what in _COUNTED})
    else:
        _told(done)
    if done["failed"]:
        raise typer.Exit(1)


def _made(store: SessionStore, user: str) -> Counter[str]:
    if store.is_frozen(user):
        return Counter(frozen=1)
    try:
        found = store.memory(user)
        if found.opted_out:
            return Counter(opted_out=1)
        store.advice(user, fresh=timedelta(0))
    except Erased:  # meanwhile: it is nowhere any more, as those before it
        return Counter()
    except Frozen:
        return Counter(frozen=1)
    items = sum(one.established for one in found.items)
    return Counter(users=1, sessions=found.sessions, items=items)


def _told(done: Counter[str]) -> None:
    items = counted(done["items"], "item")
    sessions = counted(done["sessions"], "session")
    made = f"{items} of {sessions} of {counted(done['users'], 'user')}"
    left = [
        f"{done[what]:,} {words}"
        for what, words in (
            ("opted_out", "opted out"),
            ("frozen", "frozen"),
            ("failed", "not readable"),
        )
        if done[what]
    ]
    Screen().line(made, (f"; left out: {', '.join(left)}" if left else "", "dim"))


def consent(
    context: typer.Context,
    user: User,
    grant: Annotated[
        str | None,
        typer.Option(metavar="K", help="The user allows it: declarative_memory …"),
    ] = None,
    withdraw: Annotated[
        str | None, typer.Option(metavar="K", help="The user does not any more.")
    ] = None,
    opt_out: Annotated[
        bool, typer.Option("--opt-out", help="Nothing of the user goes to memory.")
    ] = False,
    opt_in: Annotated[
        bool, typer.Option("--opt-in", help="Take the opt-out back.")
    ] = False,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why; it is recorded with it.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show what a user allows, or record one change of it as an event.

    What was never asked is not allowed; an opt-out of memory outweighs every grant.
    """
    wanted = [name for name in (grant, withdraw) if name is not None]
    if len(wanted) + opt_out + opt_in > 1:
        raise typer.BadParameter(
            "give one of --grant, --withdraw, --opt-out and --opt-in"
        )
    with opening.existing(context) as store:
        whole = store.user(user)
        if wanted:
            whole.consent(wanted[0], granted=grant is not None, reason=reason)
        elif opt_out:
            whole.opt_out(reason=reason)
        elif opt_in:
            whole.opt_in(reason=reason)
        status = whole.status()
    if as_json:
        print_json(status.to_json())
    else:
        _show(status)


def _show(status: ConsentStatus) -> None:
    from refold.adapters.cli.output import Screen, shown

    screen = Screen()
    out = "opted out" if status.memory_opt_out else "not opted out"
    screen.line("memory  ", (out, "bold"))
    yes = "allowed" if status.declarative_memory else "not allowed"
    screen.line("declarative memory  ", (yes, "bold"))
    for scope, granted in sorted(status.scopes.items()):
        word = "granted" if granted.granted else "withdrawn"
        screen.line(("  ", ""), shown(scope), (f"  {word} {granted.at}", "dim"))
