"""``refold review``: what humans are asked, by which rules, and what they decided."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.adapters.cli import options as opening
from refold.adapters.cli.commands.erase import who
from refold.adapters.cli.options import Json, SomeSession, SomeUser
from refold.adapters.cli.output import (
    Screen,
    complain,
    counted,
    print_json,
    shown_in_line,
)
from refold.adapters.cli.previews import OTHER_STYLE, STYLES, preview, readable
from refold.domain.errors import InvalidEvent, RefoldError
from refold.projections.review.bundle import FORMAT, fires_again, read_bundle
from refold.projections.review.rules import ReviewRules

if TYPE_CHECKING:
    from refold.domain.ports import SessionInfo
    from refold.projections.review.bundle import Bundle, Entry
    from refold.projections.review.decisions import Review
    from refold.store import SessionStore
    from refold.store.reviews import Reviewed, Reviews


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

    with opening.existing(context) as store:
        if given is not None and decision is not None:
            _decide(store, given, decision, who(by), note, as_json)
        elif given is not None:
            show(store, *given, as_json=as_json)
        elif action is Action.SCAN:
            scan(store, rules, user, session, as_json=as_json)
        else:
            if user is not None or session is not None:
                opening.sessions(store, user, session)
            found = store.reviews(user, session, open_only=not every)
            show_list(found, every=every, as_json=as_json)


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


_DIGEST, _TALL = 12, 12


def show_bundle(screen: Screen, bundle: Bundle) -> bool:
    """Print it; returns whether its rule fires again on its events.

    Raises InvalidEvent, before anything is printed, if an event in it is none.
    """
    again = fires_again(bundle)
    _facts(screen, bundle)
    last = 0
    for entry in bundle.events:
        if last and entry.seq > last + 1:
            screen.line(("…", "dim"))
        _entry(screen, entry, marked=entry.seq in bundle.where.seqs)
        last = entry.seq
    if bundle.left_out:
        screen.line(
            (f"{counted(bundle.left_out, 'event')} of the turn left out", "dim")
        )
    verdict = "fires again" if again else "does not fire again"
    if bundle.refused:
        screen.line("no events: ", shown_in_line(bundle.refused))
    screen.line(f"the rule {verdict} on these events (*)")
    return again


def _facts(screen: Screen, bundle: Bundle) -> None:
    where, rule = bundle.where, bundle.rule
    name = shown_in_line(rule.get("name", "?"))
    name.stylize("bold")
    screen.line(name, "  ", shown_in_line(bundle.says))
    place = f"{where.user_id} / {where.session_id}, seq {where.first_seq}"
    until = "" if where.at_seq == where.first_seq else f" to {where.at_seq}"
    screen.line("where     ", shown_in_line(place + until))
    steps: Any = rule.get("steps") or ["none"]
    screen.line("before    ", shown_in_line(", ".join(map(str, steps))))
    made = f"refold {bundle.refold}, rules {bundle.rules[:_DIGEST]}"
    screen.line("asked by  ", shown_in_line(made))
    sent = _sent(bundle)
    if sent:
        screen.line("sent      ", shown_in_line(sent))


def _sent(bundle: Bundle) -> str:
    """What the model was sent: by which strategy, and the digests of it."""
    strategy: Any = bundle.strategy or {}
    parts = {
        "strategy": strategy.get("name"),
        "model": bundle.model,
        "request": bundle.request_digest and bundle.request_digest[:_DIGEST],
        "system": bundle.system_digest and bundle.system_digest[:_DIGEST],
    }
    return ", ".join(f"{key} {value}" for key, value in parts.items() if value)


def _entry(screen: Screen, entry: Entry, *, marked: bool) -> None:
    said = preview(entry.event())
    style = "bold red" if said.failed else STYLES.get(entry.type, OTHER_STYLE)
    sign = "*" if marked else " "
    agent = f"  agent {entry.agent}" if entry.agent else ""
    warned = "".join(f"  [{warning.code}]" for warning in entry.warnings)
    about = shown_in_line(f"  {said.note}{agent}{warned}")
    screen.line((f"{entry.seq:>5}", "dim"), f" {sign} ", (entry.type, style), about)
    screen.body(said.body, indent=" " * 8, tall=_TALL)


_STYLES = {"critical": "bold red", "high": "red", "medium": "yellow"}


def show_list(found: Reviews, *, every: bool, as_json: bool) -> None:
    """A line a question, the gravest first; of bundles, nothing.

    A session that cannot be read is told, and the exit code is 1 then.
    """
    _list(found, every=every, as_json=as_json)
    for one in found.unreadable:
        complain(f"session {one.session_id!r}: {one.error}")
    if found.unreadable:
        raise typer.Exit(1)


def _list(found: list[Review], *, every: bool, as_json: bool) -> None:
    if as_json:
        print_json([_without_bundle(one) for one in found])
        return
    screen = Screen()
    if found:
        head = (
            "severity",
            "asked (UTC)",
            "user",
            "session",
            "#seq",
            "rule",
            "question",
        )
        rows = [
            (
                one.severity,
                one.at[:19].replace("T", " "),
                one.user_id,
                one.session_id,
                str(one.seq),
                shown_in_line(one.trigger),
                shown_in_line(one.question),
                shown_in_line(_state(one)),
            )
            for one in found
        ]
        screen.table((*head, "decided"), rows)
    what = "question" if every else "open question"
    screen.line(counted(len(found), what))


def show(
    store: SessionStore, user: str, session: str, seq: int, *, as_json: bool
) -> None:
    """One question with what it was asked for."""
    store.session(user, session).head()  # says if it is not there
    found = store.reviews(user, session, open_only=False)
    one = next((one for one in found if one.seq == seq), None)
    if one is None:
        if found.unreadable:
            raise found.unreadable[0].error
        raise InvalidEvent(
            f"seq {seq} of the session is no question to a human: "
            "`refold review list --all` names those there are"
        )
    if as_json:
        print_json(one.to_json())
        return
    screen = Screen()
    severity = (one.severity, _STYLES.get(one.severity, ""))
    screen.line(severity, "  ", shown_in_line(one.question))
    screen.line("decided   ", shown_in_line(_state(one) or "not yet"))
    if one.decided is not None and one.decided.note:
        screen.body(one.decided.note, indent=" " * 10)
    if one.bundle is None:
        screen.line(("no rule asked it: it has no bundle", "dim"))
        return
    if one.bundle.get("format") == FORMAT:
        show_bundle(screen, read_bundle(_json(one.bundle)))
    else:
        screen.body(readable(one.bundle), indent=" " * 10)


def scan(
    store: SessionStore,
    rules: Path | None,
    user: str | None,
    session: str | None,
    *,
    as_json: bool,
) -> None:
    """Ask what the rules say of each session that takes a question; say what is next.

    A session that cannot be looked at is told, and the others are looked at; the exit
    code is 1 then.
    """
    chosen = ReviewRules.read(rules.read_bytes()) if rules else ReviewRules.default()
    done: list[tuple[SessionInfo, Reviewed]] = []
    skipped = failed = 0
    for info in opening.sessions(store, user, session):
        if info.status != "open" or info.session_id.startswith("_"):
            skipped += info.status != "open"
            continue
        try:
            reviewed = store.session(info.user_id, info.session_id).review(chosen)
        except RefoldError as error:
            failed += 1
            complain(f"session {info.session_id!r}: {error}")
            continue
        if reviewed.asked or reviewed.recoveries:
            done.append((info, reviewed))
    if as_json:
        sessions = [_as_json(*one) for one in done]
        print_json({"sessions": sessions, "skipped": skipped, "failed": failed})
    else:
        _told(done, skipped)
    if failed:
        raise typer.Exit(1)


def _told(done: list[tuple[SessionInfo, Reviewed]], skipped: int) -> None:
    screen = Screen()
    for info, reviewed in done:
        place = f"{info.user_id} / {info.session_id}"
        for seq in reviewed.asked:
            screen.line(shown_in_line(f"{place}: asked at seq {seq}"))
        for one in reviewed.recoveries:
            screen.line(
                shown_in_line(
                    f"{place}: {one.rule} at seq {one.seq}: the agent is to "
                ),
                (one.step, "bold"),
            )
    asked = sum(len(reviewed.asked) for _, reviewed in done)
    ended = f", {counted(skipped, 'closed or frozen session')} left out"
    screen.line(f"{counted(asked, 'question')} asked{ended if skipped else ''}")


def _state(one: Review) -> str:
    if one.decided is None:
        return "session closed" if one.closed else ""
    by = f" by {one.decided.by}" if one.decided.by else ""
    return f"{one.decided.decision}{by}"


def _without_bundle(one: Review) -> dict[str, Any]:
    return {key: value for key, value in one.to_json().items() if key != "bundle"}


def _as_json(info: SessionInfo, reviewed: Reviewed) -> dict[str, Any]:
    return {
        "user_id": info.user_id,
        "session_id": info.session_id,
        "asked": reviewed.asked,
        "recoveries": [one.to_json() for one in reviewed.recoveries],
    }


def _json(value: Any) -> bytes:
    import orjson

    return orjson.dumps(value)


# A bundle is 64 KiB at most; what is around it may be a little more.
_MOST: Final = 4 << 20


def replay(
    bundle: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE", help="A file with a review bundle; - is stdin."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Show what happened in a review bundle, and whether its rule fires again on it.

    It takes what `refold review show --json` prints, or the bundle in it.  No store is
    opened.
    """
    from refold.projections.review.bundle import fires_again, read_bundle

    read = read_bundle(_data(bundle))
    if as_json:
        again = fires_again(read)
        print_json({"bundle": read.to_json(), "says": read.says, "fires_again": again})
    else:
        from refold.adapters.cli.output import Screen

        again = show_bundle(Screen(), read)
    if not again:
        raise typer.Exit(1)


def _data(name: str) -> bytes:
    if name == "-":
        data = sys.stdin.buffer.read(_MOST + 1)
    else:
        with Path(name).open("rb") as file:
            data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise RefoldError(f"{name} is over {_MOST:,} bytes: it is no review bundle")
    return data
