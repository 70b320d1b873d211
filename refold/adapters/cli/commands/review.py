"""``refold review`` and ``refold replay``: what humans are asked, and on what."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import orjson
import typer

from refold.adapters.cli import options
from refold.adapters.cli.events import STYLES
from refold.adapters.cli.output import Result, Screen, complain, shown_in_line, whose
from refold.adapters.display.events import DIGEST, preview, readable
from refold.domain.errors import InvalidEvent, RefoldError, counted
from refold.projections.review.bundle import FORMAT, fires_again, read_bundle
from refold.projections.review.rules import ReviewRules

if TYPE_CHECKING:
    from refold.domain.ports import SessionInfo
    from refold.projections.review.bundle import Bundle, Entry
    from refold.projections.review.incidents import Review
    from refold.store import SessionStore
    from refold.store.reviews import Reviewed


Action = Literal["list", "show", "decide", "scan"]
"""What to do with questions to humans."""

Decision = Literal["accept", "reject", "corrected", "dismissed"]
"""What can be decided."""


def review(
    call: options.Call,
    action: Annotated[
        Action, typer.Argument(metavar="ACTION", help="scan, list, show or decide.")
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION", help="show, decide: session of the question."
        ),
    ] = None,
    seq: Annotated[
        int | None,
        typer.Argument(metavar="SEQ", help="show, decide: seq of the question."),
    ] = None,
    user: Annotated[
        str | None,
        options.user_option(
            "show, decide: user of the session; list, scan: only this user."
        ),
    ] = None,
    session: options.SessionFilter = None,
    every: Annotated[
        bool, typer.Option("--all", help="list: include decided questions.")
    ] = False,
    decision: Annotated[
        Decision | None, typer.Option(help="decide: the decision.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="decide: name of the person who decided.  Default: your login.",
        ),
    ] = None,
    note: Annotated[
        str, typer.Option(metavar="TEXT", help="decide: the reason; it is redacted.")
    ] = "",
    rules: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="scan: your own rules in TOML, instead of the built-in ones.",
        ),
    ] = None,
) -> Result:
    """Find, list, show and decide questions to humans.

    scan applies the rules to all sessions and adds new questions; list shows open
    questions; show and decide need SESSION, SEQ and --user.
    """
    given = _given(name, seq, user)
    if (action in ("show", "decide")) is (given is None):
        raise typer.BadParameter(
            "give show and decide SESSION, SEQ and --user; give list and scan neither "
            "SESSION nor SEQ"
        )
    if (action == "decide") is (decision is None):
        raise typer.BadParameter("give --decision with decide, and only then")

    store = call.store()
    if given is not None and decision is not None:
        one, at = store.session(user_id=given[0], session_id=given[1]), given[2]
        seq = one.decide(at, decision, by=options.operator(by), note=note).last_seq
        told = {"seq": seq, "decision": decision}
        return Result(told, f"recorded at seq {seq}: {decision}")
    if given is not None:
        return _question(store, *given)
    if action == "scan":
        return _scan(store, rules, user, session)
    if user is not None or session is not None:
        options.sessions(store, user, session)
    return _list(store, user, session, every=every)


def _given(
    name: str | None, seq: int | None, user: str | None
) -> tuple[str, str, int] | None:
    """Which question is meant; None if none is."""
    if name is None and seq is None:
        return None
    if name is None or seq is None or user is None:
        raise typer.BadParameter("name a question by SESSION, SEQ and --user")
    return user, name, seq


_HEAD: Final = (
    "severity",
    "asked (UTC)",
    "user",
    "session",
    "#seq",
    "rule",
    "question",
    "decided",
)


def _list(
    store: SessionStore, user: str | None, session: str | None, *, every: bool
) -> Result:
    """A line a question, the gravest first; of bundles, nothing."""
    found = store.reviews.list(user, session_id=session, open_only=not every)
    for one in found.unreadable:
        complain(f"session {one.session_id!r}: {one.error}")

    def show(screen: Screen) -> None:
        if found:
            screen.table(_HEAD, map(_row, found))
        screen.line(counted(len(found), "question" if every else "open question"))

    told = [one.to_json() for one in found]
    for question in told:
        question.pop("bundle", None)
    return Result(told, show, int(bool(found.unreadable)))


def _row(one: Review) -> list[str]:
    about = (one.trigger, one.question, _state(one))
    place = [one.severity, one.at[:19].replace("T", " "), one.user_id, one.session_id]
    return [*place, str(one.seq), *map(shown_in_line, about)]


def _question(store: SessionStore, user: str, session: str, seq: int) -> Result:
    store.session(user_id=user, session_id=session).head()  # says if it is not there
    found = store.reviews.list(user, session_id=session, open_only=False)
    asked = next((one for one in found if one.seq == seq), None)
    if asked is None:
        if found.unreadable:
            raise found.unreadable[0].error
        raise InvalidEvent(
            f"seq {seq} of the session is not a question to a human: "
            "`refold review list --all` lists the questions"
        )

    def show(screen: Screen) -> None:
        severity = (asked.severity, STYLES["severities"].get(asked.severity, ""))
        screen.line(severity, "  ", shown_in_line(asked.question))
        screen.line("decided   ", shown_in_line(_state(asked) or "not yet"))
        if asked.decided is not None and asked.decided.note:
            screen.body(asked.decided.note, indent=" " * 10)
        if asked.bundle is None:
            screen.line(("not asked by a rule: there is no bundle", "dim"))
        elif asked.bundle.get("format") == FORMAT:
            _bundle(screen, read_bundle(orjson.dumps(asked.bundle)))
        else:
            screen.body(readable(asked.bundle), indent=" " * 10)

    return Result(asked.to_json, show)


def _state(one: Review) -> str:
    if one.decided is None:
        return "session closed" if one.closed else ""
    by = f" by {one.decided.by}" if one.decided.by else ""
    return f"{one.decided.decision}{by}"


def _scan(
    store: SessionStore, rules: Path | None, user: str | None, session: str | None
) -> Result:
    """Ask what the rules say of each session that takes a question; say what is next.

    A session that cannot be looked at is told, and the others are looked at; the exit
    code is 1 then.
    """
    chosen = ReviewRules.read(rules.read_bytes()) if rules else ReviewRules.default()
    done: list[tuple[SessionInfo, Reviewed]] = []
    skipped = failed = 0
    for info in options.sessions(store, user, session):
        if info.status != "open" or info.is_internal:
            skipped += info.status != "open"
            continue
        one = store.session(**whose(info))
        try:
            reviewed = one.review(chosen)
        except RefoldError as error:
            failed += 1
            complain(f"session {info.session_id!r}: {error}")
            continue
        if reviewed.asked or reviewed.recoveries:
            done.append((info, reviewed))
    looked = [
        {
            **whose(info),
            "asked": reviewed.asked,
            "recoveries": [one.to_json() for one in reviewed.recoveries],
        }
        for info, reviewed in done
    ]

    def show(screen: Screen) -> None:
        for info, reviewed in done:
            place = f"{info.user_id} / {info.session_id}"
            for seq in reviewed.asked:
                screen.line(shown_in_line(f"{place}: asked at seq {seq}"))
            for one in reviewed.recoveries:
                said = f"{place}: {one.rule} at seq {one.seq}: the agent should "
                screen.line(shown_in_line(said), (one.step, "bold"))
        asked = sum(len(reviewed.asked) for _, reviewed in done)
        ended = f", {counted(skipped, 'closed or frozen session')} skipped"
        screen.line(f"{counted(asked, 'question')} asked{ended if skipped else ''}")

    told = {"sessions": looked, "skipped": skipped, "failed": failed}
    return Result(told, show, int(failed > 0))


# A bundle is 64 KiB at most; what is around it may be a little more.
_MOST: Final = 4 << 20


def replay(
    bundle: Annotated[
        str,
        typer.Argument(metavar="BUNDLE", help="File with a review bundle; - is stdin."),
    ],
) -> Result:
    """Show a review bundle and apply its rule again.

    Reads the output of `refold review show --json`, or the bundle in it.  Opens no
    store.  Exits with 1 if the rule does not fire.
    """
    read = read_bundle(_data(bundle))
    again = fires_again(read)
    told = {"bundle": read.to_json(), "says": read.description, "fires_again": again}
    return Result(told, lambda screen: _bundle(screen, read), int(not again))


def _data(name: str) -> bytes:
    if name == "-":
        data = sys.stdin.buffer.read(_MOST + 1)
    else:
        with Path(name).open("rb") as file:
            data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise RefoldError(f"{name} is over {_MOST:,} bytes: this is no review bundle")
    return data


_TALL: Final = 12


def _bundle(screen: Screen, bundle: Bundle) -> None:
    """Print it, and whether its rule fires again; before that, raises InvalidEvent."""
    verdict = "fires again" if fires_again(bundle) else "does not fire again"
    _facts(screen, bundle)
    last = 0
    for entry in bundle.events:
        if last and entry.seq > last + 1:
            screen.line(("…", "dim"))
        _entry(screen, entry, marked=entry.seq in bundle.where.seqs)
        last = entry.seq
    if bundle.left_out:
        left = f"{counted(bundle.left_out, 'event')} of the turn left out"
        screen.line((left, "dim"))
    if bundle.refused:
        screen.line("no events: ", shown_in_line(bundle.refused))
    screen.line(f"the rule {verdict} on these events (*)")


def _facts(screen: Screen, bundle: Bundle) -> None:
    where, rule = bundle.where, bundle.rule
    name = shown_in_line(rule.get("name", "?"))
    screen.line((name, "bold"), "  ", shown_in_line(bundle.description))
    place = f"{where.user_id} / {where.session_id}, seq {where.first_seq}"
    until = "" if where.at_seq == where.first_seq else f" to {where.at_seq}"
    screen.line("where     ", shown_in_line(place + until))
    steps: Any = rule.get("steps") or ["none"]
    screen.line("before    ", shown_in_line(", ".join(map(str, steps))))
    made = f"refold {bundle.refold}, rules {bundle.rules[:DIGEST]}"
    screen.line("asked by  ", shown_in_line(made))
    strategy: Any = bundle.strategy or {}
    parts = {
        "strategy": strategy.get("name"),
        "model": bundle.model,
        "request": bundle.request_digest and bundle.request_digest[:DIGEST],
        "system": bundle.system_digest and bundle.system_digest[:DIGEST],
    }
    sent = ", ".join(f"{key} {value}" for key, value in parts.items() if value)
    if sent:
        screen.line("sent      ", shown_in_line(sent))


def _entry(screen: Screen, entry: Entry, *, marked: bool) -> None:
    said = preview(entry.event())
    style = "bold red" if said.failed else STYLES["events"].get(entry.type, "dim")
    sign = "*" if marked else " "
    agent = f"  agent {entry.agent}" if entry.agent else ""
    warned = "".join(f"  [{warning.code}]" for warning in entry.warnings)
    about = shown_in_line(f"  {said.note}{agent}{warned}")
    screen.line((f"{entry.seq:>5}", "dim"), f" {sign} ", (entry.type, style), about)
    screen.body(said.body, indent=" " * 8, tall=_TALL)
